//! What the definitions refuse, and what they let pass.

use std::collections::BTreeSet;

use bulkhead::api::node_fence::POLICIES_MAX;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{JSONSchemaProps, JSONSchemaPropsOrArray};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams, PostParams};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::Outcome;
use super::objects::{Changes, api_of, changed, dynamic, one};
use super::rule_cases::{Case, Refused, cases};
use super::shared_volume_rules;
use super::world::{World, root, samples};

/// A request that changes nothing but is judged like any other.
pub fn dry_run() -> PostParams {
    PostParams { dry_run: true, ..PostParams::default() }
}

/// The object that a case starts from.
pub fn sample(kind: &str) -> Result<Value, Failed> {
    match kind {
        "ResiliencyPolicy" => one(&root().join("config/samples/resiliencypolicy-full.yaml")),
        "NodeFence" => one(&samples().join("nodefence.yaml")),
        "FenceRequest" => one(&samples().join("fencerequest.yaml")),
        "VolumeHealth" => one(&root().join("config/samples/volumehealth.yaml")),
        "VolumeHealthPolicy" => one(&root().join("config/samples/volumehealthpolicy-databases.yaml")),
        "DriverReport" => one(&samples().join("driverreport.yaml")),
        "NodeVolumeReport" => one(&samples().join("nodevolumereport.yaml")),
        "SharedVolume" => one(&root().join("config/samples/sharedvolume-static.yaml")),
        "SharedVolumeProvider" => one(&root().join("config/samples/sharedvolumeprovider.yaml")),
        other => Err(format!("no sample for {other}").into()),
    }
}

pub async fn every_rule_refuses_what_it_names(world: &World) -> Outcome {
    let mut tried = BTreeSet::new();
    for (number, case) in cases().into_iter().enumerate() {
        let answer = refused(world, &case, number).await?;
        let expected = format!("{}: Invalid value:", case.field);
        let matches = answer.contains(&expected) && answer.contains(case.message);
        assert!(matches, "case {number} wants {expected} ... {}\n  but got {answer}", case.message);
        tried.insert((case.kind.to_owned(), without_indexes(case.field), case.message.to_owned()));
    }
    let untried: Vec<_> = rules().difference(&tried).cloned().collect();
    assert!(untried.is_empty(), "rules without a case that shows them at work: {untried:#?}");
    Ok(())
}

/// The server's answer to a case, which must be a refusal.
async fn refused(world: &World, case: &Case, number: usize) -> Result<String, Failed> {
    let name = format!("case-{number}");
    let sample = sample(case.kind)?;
    let api = api_of(&world.admin, &sample)?;
    let answer = match &case.refused {
        Refused::Create(changes) => api.create(&dry_run(), &dynamic(&changed(&sample, &name, changes)?)?).await,
        Refused::Update { before, after } => {
            let stored = api.create(&PostParams::default(), &dynamic(&changed(&sample, &name, before)?)?).await?;
            let update = changed(&serde_json::to_value(&stored)?, &name, after)?;
            api.replace(&name, &dry_run(), &dynamic(&update)?).await
        }
        Refused::Status { before, after } => {
            let mut object = api.create(&PostParams::default(), &dynamic(&changed(&sample, &name, &vec![])?)?).await?;
            if !before.is_empty() {
                let stored = changed(&serde_json::to_value(&object)?, &name, before)?;
                object = api.replace_status(&name, &PostParams::default(), &dynamic(&stored)?).await?;
            }
            let update = changed(&serde_json::to_value(&object)?, &name, after)?;
            api.replace_status(&name, &dry_run(), &dynamic(&update)?).await
        }
    };
    match answer {
        Ok(_) => Err(format!("case {number} was accepted: {case:?}").into()),
        Err(kube::Error::Api(status)) if status.code == 422 => Ok(status.message.clone()),
        Err(error) => Err(format!("case {number}: {error}").into()),
    }
}

/// Every CEL rule: kind, field that the refusal names, message.
fn rules() -> BTreeSet<(String, String, String)> {
    let mut rules = BTreeSet::new();
    for definition in bulkhead::api::definitions() {
        for version in &definition.spec.versions {
            if let Some(root) = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref()) {
                collect(&definition.spec.names.kind, "", root, &mut rules);
            }
        }
    }
    rules
}

fn collect(kind: &str, path: &str, schema: &JSONSchemaProps, rules: &mut BTreeSet<(String, String, String)>) {
    for rule in schema.x_kubernetes_validations.iter().flatten() {
        let field = format!("{path}{}", rule.field_path.as_deref().unwrap_or_default());
        rules.insert((kind.to_owned(), field, rule.message.clone().unwrap_or_default()));
    }
    for (name, property) in schema.properties.iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        collect(kind, &path, property, rules);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
        collect(kind, &format!("{path}[]"), items, rules);
    }
}

/// `spec.plan.pods[0]` as `spec.plan.pods[]`.
fn without_indexes(field: &str) -> String {
    field
        .split('[')
        .map(|part| part.split_once(']').map_or(part.to_owned(), |(_, rest)| format!("]{rest}")))
        .collect::<Vec<_>>()
        .join("[")
}

pub async fn limits_and_enums_are_enforced(world: &World) -> Outcome {
    let cases: Vec<(&str, Changes, &str)> = vec![
        ("ResiliencyPolicy", vec![("/spec/mode", json!("Observe"))], "spec.mode: Unsupported value"),
        ("ResiliencyPolicy", vec![("/spec/mode", Value::Null)], "spec.mode: Required value"),
        ("ResiliencyPolicy", vec![("/spec/detection/requiredChannels", json!(4))], "requiredChannels: Invalid value"),
        ("ResiliencyPolicy", vec![("/spec/detection/storage/lossThreshold", json!(0))], "lossThreshold: Invalid value"),
        (
            "ResiliencyPolicy",
            vec![("/spec/detection/storage/recoveryThreshold", json!(21))],
            "recoveryThreshold: Invalid value",
        ),
        (
            "ResiliencyPolicy",
            vec![("/spec/detection/storage/connectivityCheck", json!("On"))],
            "connectivityCheck: Unsupported value",
        ),
        (
            "ResiliencyPolicy",
            vec![("/spec/detection/storage/ioInProgressCheck", json!("On"))],
            "ioInProgressCheck: Unsupported value",
        ),
        (
            "ResiliencyPolicy",
            vec![("/spec/detection/storage/whenIOInProgress", json!("Never"))],
            "whenIOInProgress: Unsupported value",
        ),
        (
            "ResiliencyPolicy",
            vec![("/spec/triggers/storagePathLoss", json!("Move"))],
            "storagePathLoss: Unsupported value",
        ),
        ("ResiliencyPolicy", vec![("/spec/fencing/callTimeout", json!("1.5s"))], "callTimeout: Invalid value"),
        ("ResiliencyPolicy", vec![("/spec/fencing/callTimeout", json!(30))], "callTimeout: Invalid value"),
        ("ResiliencyPolicy", vec![("/spec/fencing/methods", json!([]))], "should have at least 1 items"),
        ("ResiliencyPolicy", vec![("/spec/fencing/methods/0/type", json!("Watchdog"))], "Unsupported value"),
        ("ResiliencyPolicy", vec![("/spec/fencing/minimumProof", json!("Certain"))], "Unsupported value"),
        ("ResiliencyPolicy", vec![("/spec/limits/ceiling", json!(5001))], "ceiling: Invalid value"),
        ("ResiliencyPolicy", vec![("/spec/selector/drivers", json!(["a", "a"]))], "Duplicate value"),
        ("ResiliencyPolicy", vec![("/spec/selector/drivers", json!(["no driver"]))], "should match"),
        ("ResiliencyPolicy", vec![("/spec/detection/taints/0/key", json!("no taint"))], "should match"),
        ("NodeFence", vec![("/spec/episode", json!(0))], "spec.episode: Invalid value"),
        ("NodeFence", vec![("/spec/policies", json!([]))], "should have at least 1 items"),
        ("NodeFence", vec![("/spec/plan/digest", json!("md5:1"))], "spec.plan.digest: Invalid value"),
        ("NodeFence", vec![("/spec/approval", json!({}))], "spec.approval.planDigest: Required value"),
        ("NodeFence", vec![("/spec/approval", json!({"planDigest": "yes"}))], "planDigest: Invalid value"),
        ("NodeFence", vec![("/spec/hold", json!({}))], "spec.hold.reason: Required value"),
        ("NodeFence", vec![("/spec/hold", json!({"reason": ""}))], "spec.hold.reason: Invalid value"),
        ("NodeFence", vec![("/spec/plan/decidedAt", json!("yesterday"))], "spec.plan.decidedAt: Invalid value"),
        ("FenceRequest", vec![("/spec/volumes", json!([]))], "should have at least 1 items"),
        ("FenceRequest", vec![("/spec/nodeName", json!("Worker_3"))], "spec.nodeName: Invalid value"),
        ("FenceRequest", vec![("/spec/volumes/0/methods/0/type", json!("Detach"))], "Unsupported value"),
        ("VolumeHealth", vec![("/spec/manualTaints/0/key", json!("NoSuchKey"))], "should match"),
        ("VolumeHealth", vec![("/spec/manualTaints/0/effect", json!("NoExecute"))], "Unsupported value"),
        ("VolumeHealth", vec![("/spec/suppressTaints/0/until", Value::Null)], "until: Required value"),
        ("VolumeHealthPolicy", vec![("/spec/selector", Value::Null)], "spec.selector: Required value"),
        ("VolumeHealthPolicy", vec![("/spec/thresholds/failure", json!(0))], "failure: Invalid value"),
        ("VolumeHealthPolicy", vec![("/spec/checks/0/name", json!("Vibes"))], "Unsupported value"),
    ];
    for (kind, changes, expected) in cases.into_iter().chain(shared_volume_rules::limits()) {
        let object = changed(&sample(kind)?, "beyond-limits", &changes)?;
        match api_of(&world.admin, &object)?.create(&dry_run(), &dynamic(&object)?).await {
            Err(kube::Error::Api(status)) if status.code == 422 && status.message.contains(expected) => {}
            other => return Err(format!("{changes:?}: wants {expected}, got {other:?}").into()),
        }
    }
    // What a later release adds is refused, not ignored.
    let later =
        changed(&sample("ResiliencyPolicy")?, "later", &vec![("/spec/laterField", json!({"mode": "Enabled"}))])?;
    let strict = PatchParams {
        field_validation: Some(kube::api::ValidationDirective::Strict),
        ..PatchParams::apply("a-person").dry_run()
    };
    match api_of(&world.admin, &later)?.patch("later", &strict, &Patch::Apply(&later)).await {
        Err(kube::Error::Api(status)) if status.message.contains("laterField") => Ok(()),
        other => Err(format!("spec.laterField: {other:?}").into()),
    }
}

/// Within an episode rows are added; the next episode has its own identity, plan and policies.
pub async fn an_incident_may_grow_and_recur(world: &World) -> Outcome {
    let fence = sample("NodeFence")?;
    let api = api_of(&world.controller, &fence)?;
    let name = "grows";
    let mut stored = api.create(&PostParams::default(), &dynamic(&changed(&fence, name, &vec![])?)?).await?;
    let pod = json!({"episode": 2, "uid": "late", "namespace": "shop", "name": "late-0", "action": "Keep", "reason": "NoPolicy"});
    // As many policies as a plan can have, all of which the rules compare.
    let mut policies = stored.data["spec"]["policies"].as_array().cloned().unwrap_or_default();
    let more = (policies.len()..POLICIES_MAX)
        .map(|number| json!({"name": format!("tenant-{number}"), "uid": "u", "generation": 1, "mode": "Enforce"}));
    policies.extend(more);
    let growth = vec![
        ("/spec/plan/pods/-", pod),
        ("/spec/policies", json!(policies)),
        ("/spec/plan/digest", json!("sha256:00000000")),
    ];
    let next = vec![
        ("/spec/episode", json!(3)),
        ("/spec/node", json!({"uid": "another"})),
        ("/spec/policies", json!([{"name": "other", "uid": "u", "generation": 7, "mode": "Enforce"}])),
        ("/spec/plan/decidedAt", json!("2026-11-22T00:00:00Z")),
        ("/spec/plan/pods", Value::Null),
        ("/spec/plan/volumes", Value::Null),
    ];
    let again = vec![("/spec/plan/digest", json!("sha256:00000001"))];
    for changes in [growth, again, next] {
        let update = changed(&serde_json::to_value(&stored)?, name, &changes)?;
        stored = api.replace(name, &PostParams::default(), &dynamic(&update)?).await?;
    }
    assert_eq!(stored.metadata.generation, Some(4));
    // A fencer's row may be answered again in a later round, and a carried-over row keeps its episode.
    let request = changed(&sample("FenceRequest")?, name, &vec![])?;
    let requests = api_of(&world.controller, &request)?;
    let stored = requests.create(&PostParams::default(), &dynamic(&request)?).await?;
    let again = vec![("/spec/volumes/0/round", json!(2)), ("/spec/desired", json!("Unfenced"))];
    let update = changed(&serde_json::to_value(&stored)?, name, &again)?;
    let stored = requests.replace(name, &PostParams::default(), &dynamic(&update)?).await?;
    assert_eq!(stored.name_any(), name);
    Ok(())
}
