//! Where RBAC lets an identity write a kind, and the object or the field is somebody else's: real requests, as dry runs, which
//! an admission policy or RBAC must refuse.

use bulkhead_testbed::Identity;
use futures::{StreamExt, stream};
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::CONCURRENCY;
use crate::api::Outcome;
use crate::api::admission::{Answer, create};
use crate::api::agent::{with_token, with_token_of};
use crate::api::objects::{api, changed, dynamic, with_status};
use crate::api::rules::sample;
use crate::api::world::{DRIVER, World, eventually, root, samples};

/// A request that must be refused, or (for comparison) allowed.
pub struct Try {
    what: String,
    api: Api<DynamicObject>,
    name: String,
    how: How,
    refused: bool,
}

/// What is sent.
pub enum How {
    Create(Box<DynamicObject>),
    Replace(Box<DynamicObject>),
    Patch(Value),
    PatchStatus(Value),
    /// As our programs write it: the whole, at the version that is stored.
    ReplaceStatus(Box<DynamicObject>),
    Delete,
}

impl Try {
    pub fn new(who: &str, api: Api<DynamicObject>, name: &str, how: How) -> Self {
        let (verb, body) = match &how {
            How::Create(_) => ("create", String::new()),
            How::Replace(_) => ("update", String::new()),
            How::Patch(body) => ("patch", body.to_string()),
            How::PatchStatus(body) => ("patch status of", body.to_string()),
            How::ReplaceStatus(object) => ("update status of", object.data["status"].to_string()),
            How::Delete => ("delete", String::new()),
        };
        let what = format!("{who}: {verb} {}/{name} {body}", api.resource_url());
        Self { what, api, name: name.to_owned(), how, refused: true }
    }

    fn allowed(self) -> Self {
        Self { refused: false, ..self }
    }

    async fn sent(&self) -> Answer<()> {
        let (patch, post) = (
            PatchParams { dry_run: true, ..PatchParams::default() },
            PostParams { dry_run: true, ..PostParams::default() },
        );
        match &self.how {
            How::Create(object) => self.api.create(&post, object).await.map(drop),
            How::Replace(object) => self.api.replace(&self.name, &post, object).await.map(drop),
            How::Patch(body) => self.api.patch(&self.name, &patch, &Patch::Merge(body)).await.map(drop),
            How::PatchStatus(body) => self.api.patch_status(&self.name, &patch, &Patch::Merge(body)).await.map(drop),
            How::ReplaceStatus(object) => self.api.replace_status(&self.name, &post, object).await.map(drop),
            How::Delete => {
                let delete = DeleteParams { dry_run: true, ..DeleteParams::default() };
                self.api.delete(&self.name, &delete).await.map(drop)
            }
        }
    }

    /// What is wrong, if the answer never becomes the one that is expected: policies are in force some time after they are
    /// stored.
    async fn judged(self) -> Option<String> {
        let refused = self.refused;
        let as_expected = async || {
            let answer = self.sent().await;
            let is_refusal = matches!(&answer, Err(kube::Error::Api(status)) if status.code == 403);
            (if refused { is_refusal } else { answer.is_ok() }).then_some(())
        };
        let outcome = eventually(&self.what, as_expected).await;
        outcome.is_err().then(|| format!("{} not {}", self.what, if refused { "refused" } else { "allowed" }))
    }
}

pub async fn objects_of_others_are_out_of_reach(world: &World) -> Outcome {
    let subjects = super::identities::install(world).await?;
    world.testbed.apply_file(&root().join("config/s3/node_policy.yaml")).await?;
    world.testbed.apply_file(&samples().join("tenant.yaml")).await?;
    let mut tries = super::rows::tries(world, &subjects).await?;
    let of_rows = tries.len();
    tries.extend(nodes(world).await?);
    tries.extend(answers(world).await?);
    tries.extend(incidents(world).await?);
    tries.extend(healths(world).await?);
    tries.extend(tenants(world).await?);
    let refusals = tries.iter().filter(|one| one.refused).count();
    let judged = stream::iter(tries.into_iter().map(Try::judged)).buffer_unordered(CONCURRENCY);
    let wrong: Vec<_> = judged.filter_map(async |wrong| wrong).collect().await;
    println!("objects of others: {refusals} requests refused, {of_rows} of them for rows of the table");
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(refusals >= 80 && of_rows >= 30, "only {refusals} were tried, {of_rows} of them for rows");
    Ok(())
}

/// Says this of an object as it is stored.
pub fn says(stored: &DynamicObject, status: &Value) -> Result<How, Failed> {
    Ok(How::ReplaceStatus(Box::new(with_status(stored, status)?)))
}

/// Three nodes, each with an agent and an S3 node service whose tokens are bound to it, write about each other's objects.
async fn nodes(world: &World) -> Result<Vec<Try>, Failed> {
    const NODES: [&str; 3] = ["matrix-1", "matrix-2", "matrix-3"];
    let node_kind = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Node"));
    let nodes: Api<DynamicObject> = Api::all_with(world.admin.clone(), &node_kind);
    let reports = api(&world.admin, "NodeVolumeReport");
    let mut identities =
        vec![("an unbound agent".to_owned(), with_token(&world.testbed, &world.admin, Value::Null).await?, "")];
    let (mut services, mut stored) = (Vec::new(), Vec::new());
    for name in NODES {
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "spec": {"taints": [{"key": "example.com/other", "effect": "NoExecute"}]},
        });
        let node = nodes.create(&PostParams::default(), &dynamic(&node)?).await?;
        let report =
            json!({"apiVersion": "bulkhead.dev/v1alpha1", "kind": "NodeVolumeReport", "metadata": {"name": name}});
        stored.push(reports.create(&PostParams::default(), &dynamic(&report)?).await?);
        let bound = json!({"kind": "Node", "apiVersion": "v1", "name": name, "uid": node.uid()});
        identities.push((
            format!("the agent of {name}"),
            with_token(&world.testbed, &world.admin, bound.clone()).await?,
            name,
        ));
        let service = with_token_of(&world.testbed, &world.admin, ("kube-system", "s3-csi-driver-sa"), bound).await?;
        services.push((format!("the S3 service of {name}"), service));
    }
    services.push(("the controller".to_owned(), world.controller.clone()));
    let mut tries = Vec::new();
    let said = json!({"agentVersion": "0.1.0"});
    for (target, stored) in NODES.into_iter().zip(&stored) {
        for (who, client, own) in &identities {
            let reports = api(client, "NodeVolumeReport");
            let one = Try::new(who, reports.clone(), target, says(stored, &said)?);
            tries.push(if *own == target { one.allowed() } else { one });
            let nodes = Api::all_with(client.clone(), &node_kind);
            tries.push(Try::new(who, reports.clone(), target, How::Delete));
            tries.push(Try::new(who, reports, target, How::Patch(json!({"metadata": {"labels": {"a": "b"}}}))));
            tries.push(Try::new(who, nodes.clone(), target, How::Patch(json!({"spec": {"taints": null}}))));
            tries.push(Try::new(who, nodes, target, How::PatchStatus(json!({"status": {"phase": "Running"}}))));
        }
        for (who, client) in &services {
            // No taint of theirs is there: each of these is another's matter, for the service on its own node too.
            let nodes: Api<DynamicObject> = Api::all_with(client.clone(), &node_kind);
            for change in [
                json!({"spec": {"taints": null}}),
                json!({"spec": {"unschedulable": true}}),
                json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "b"}}}),
                json!({"metadata": {"annotations": {"bulkhead.dev/paused": "b"}}}),
            ] {
                tries.push(Try::new(who, nodes.clone(), target, How::Patch(change)));
            }
            tries.push(Try::new(who, api(client, "NodeVolumeReport"), target, says(stored, &said)?));
        }
    }
    Ok(tries)
}

/// Sidecars answer for their driver, and for no other; nobody else answers at all.
async fn answers(world: &World) -> Result<Vec<Try>, Failed> {
    let template = ("csi-example", "csi-controller");
    let other = with_token_of(&world.testbed, &world.admin, template, Value::Null).await?;
    let identities = [
        ("the sidecar of the test driver", world.sidecar.clone(), DRIVER),
        ("the sidecar of csi.example.com", other, "csi.example.com"),
        ("the controller", world.controller.clone(), ""),
        ("the agent", world.agent.clone(), ""),
        ("a person with all rights on the kinds", world.person.clone(), ""),
        ("an approver", world.approver.clone(), ""),
    ];
    let report = sample("DriverReport")?;
    let mut tries = Vec::new();
    for fencer in [DRIVER, "csi.example.com", "power.example.com", "csi.example.com.evil.example.org"] {
        let name = format!("matrix-{fencer}");
        let asked = vec![("/spec/fencerName", json!(fencer))];
        let stored = create(&world.controller, "FenceRequest", &name, &asked).await?;
        for (who, client, own) in &identities {
            let answer = says(&stored, &json!({"progress": "0/2"}))?;
            let report = How::Create(Box::new(dynamic(&changed(&report, fencer, &vec![])?)?));
            for one in [
                Try::new(who, api(client, "FenceRequest"), &name, answer),
                Try::new(who, api(client, "DriverReport"), fencer, report),
            ] {
                if *own != fencer {
                    tries.push(one);
                } else if matches!(one.how, How::ReplaceStatus(_)) {
                    tries.push(one.allowed());
                }
            }
        }
    }
    Ok(tries)
}

/// Approval and hold are the people's, everything else of a NodeFence the controller's.
async fn incidents(world: &World) -> Result<Vec<Try>, Failed> {
    let name = "matrix";
    let stored = create(&world.controller, "NodeFence", name, &vec![]).await?;
    let operator = Identity::User { name: "has-bulkhead-operator".into(), groups: vec![] };
    let viewer = Identity::User { name: "has-bulkhead-viewer".into(), groups: vec![] };
    let identities = [
        ("the controller", world.controller.clone(), false),
        ("the sidecar", world.sidecar.clone(), false),
        ("the agent", world.agent.clone(), false),
        ("a viewer", world.testbed.client(&viewer).await?, false),
        ("an operator", world.testbed.client(&operator).await?, true),
        ("an approver", world.approver.clone(), true),
        ("a person with all rights on the kinds", world.person.clone(), true),
    ];
    let peoples = [
        json!({"spec": {"approval": {"planDigest": "sha256:9c1e55d0a7b3", "reason": "ticket 4711"}}}),
        json!({"spec": {"hold": {"reason": "the array is looked at"}}}),
    ];
    let controllers = [
        json!({"spec": {"plan": {"digest": "sha256:00000000"}}}),
        json!({"spec": {"episode": 3}}),
        json!({"metadata": {"labels": {"bulkhead.dev/active": null}}}),
        json!({"metadata": {"finalizers": null}}),
    ];
    let mut tries = Vec::new();
    for (who, client, is_person) in identities {
        let fences: Api<DynamicObject> = api(&client, "NodeFence");
        for change in &peoples {
            let one = Try::new(who, fences.clone(), name, How::Patch(change.clone()));
            tries.push(if is_person { one.allowed() } else { one });
        }
        let told = Try::new(who, fences.clone(), name, says(&stored, &json!({"phase": "Recovered"}))?);
        let made = How::Create(Box::new(dynamic(&changed(&sample("NodeFence")?, "matrix-made-up", &vec![])?)?));
        let made = Try::new(who, fences.clone(), "matrix-made-up", made);
        let planned = controllers.iter().map(|change| Try::new(who, fences.clone(), name, How::Patch(change.clone())));
        let of_the_controller = planned.chain([told, made]);
        tries.extend(of_the_controller.map(|one| if who == "the controller" { one.allowed() } else { one }));
    }
    Ok(tries)
}

/// Who runs the storage says what is said of a volume by hand; label, finalizers and owners of its VolumeHealth are the
/// controller's.
async fn healths(world: &World) -> Result<Vec<Try>, Failed> {
    let name = "matrix";
    create(&world.controller, "VolumeHealth", name, &vec![]).await?;
    let operator = Identity::User { name: "has-bulkhead-operator".into(), groups: vec![] };
    let viewer = Identity::User { name: "has-bulkhead-viewer".into(), groups: vec![] };
    let by_hand = json!({"spec": {"manualTaints": [{"key": "example.com/moved", "reason": "ticket 4711"}]}});
    let controllers = [
        json!({"metadata": {"labels": {"bulkhead.dev/no-attach-or-mount": "Enforce"}}}),
        json!({"metadata": {"finalizers": ["example.com/mine"]}}),
        json!({"metadata": {"ownerReferences": [
            {"apiVersion": "v1", "kind": "PersistentVolume", "name": "matrix", "uid": "made-up"},
        ]}}),
    ];
    let mut tries = Vec::new();
    for (who, client, may_say) in [
        ("the sidecar", world.sidecar.clone(), false),
        ("the agent", world.agent.clone(), false),
        ("a viewer", world.testbed.client(&viewer).await?, false),
        ("an approver", world.approver.clone(), false),
        ("an operator", world.testbed.client(&operator).await?, true),
        ("a person with all rights on the kinds", world.person.clone(), true),
    ] {
        let healths: Api<DynamicObject> = api(&client, "VolumeHealth");
        let said = Try::new(who, healths.clone(), name, How::Patch(by_hand.clone()));
        tries.push(if may_say { said.allowed() } else { said });
        let changed = controllers.iter().map(|change| Try::new(who, healths.clone(), name, How::Patch(change.clone())));
        tries.extend(changed);
    }
    let healths = api(&world.controller, "VolumeHealth");
    let own = |change| Try::new("the controller", healths.clone(), name, How::Patch(change)).allowed();
    tries.extend(controllers.into_iter().map(own));
    Ok(tries)
}

/// A team with every right in its own namespace, and nothing beyond it.
async fn tenants(world: &World) -> Result<Vec<Try>, Failed> {
    let team = Identity::User { name: "bob".into(), groups: vec!["shop-team".into()] };
    let client = world.testbed.client(&team).await?;
    let who = "a tenant";
    let mut tries = Vec::new();
    for kind in [
        "ResiliencyPolicy",
        "NodeFence",
        "FenceRequest",
        "DriverReport",
        "NodeVolumeReport",
        "VolumeHealth",
        "VolumeHealthPolicy",
        "SharedVolumeProvider",
    ] {
        let made = How::Create(Box::new(dynamic(&changed(&sample(kind)?, "matrix-tenant", &vec![])?)?));
        tries.push(Try::new(who, api(&client, kind), "matrix-tenant", made));
        tries.push(Try::new(who, api(&client, kind), "matrix-tenant", How::Delete));
    }
    let core = |kind: &str| ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", kind));
    for namespace in ["mount-s3", "bulkhead-system", "kube-system", "csi-example"] {
        for (kind, spec) in [
            ("Pod", json!({"containers": [{"name": "main", "image": "app"}]})),
            ("Secret", Value::Null),
            ("ConfigMap", Value::Null),
            ("ServiceAccount", Value::Null),
        ] {
            let mut object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "matrix-tenant"}});
            if !spec.is_null() {
                object["spec"] = spec;
            }
            let api = Api::namespaced_with(client.clone(), namespace, &core(kind));
            tries.push(Try::new(who, api.clone(), "matrix-tenant", How::Create(Box::new(dynamic(&object)?))));
            tries.push(Try::new(who, api, "matrix-tenant", How::Delete));
        }
    }
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("s3.csi.scality.com", "v2", "MountpointS3PodAttachment"));
    let attachments: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
    let change = json!({"spec": {"mountpointS3PodAttachments": {}}});
    tries.push(Try::new(who, attachments.clone(), "matrix-tenant", How::Patch(change)));
    tries.push(Try::new(who, attachments, "matrix-tenant", How::Delete));
    let shared = sample("SharedVolume")?;
    for namespace in ["default", "atelier", "kube-system"] {
        let mut object = changed(&shared, "matrix-tenant", &vec![])?;
        object["metadata"]["namespace"] = json!(namespace);
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("bulkhead.dev", "v1alpha1", "SharedVolume"));
        let api = Api::namespaced_with(client.clone(), namespace, &kind);
        tries.push(Try::new(who, api, "matrix-tenant", How::Create(Box::new(dynamic(&object)?))));
    }
    Ok(tries)
}
