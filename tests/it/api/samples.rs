//! Definitions and samples on the server.

use std::path::PathBuf;

use bulkhead::api::resiliency_policy::{Detection, Fencing, Limits, Recovery, Release, ResiliencyPolicy, Triggers};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::Outcome;
use super::objects::{api_of, changed, dynamic, one, read};
use super::world::{World, root, samples};

pub async fn definitions_are_served_and_explained(world: &World) -> Outcome {
    let served = Api::<CustomResourceDefinition>::all(world.admin.clone()).list(&ListParams::default()).await?;
    for definition in bulkhead::api::definitions() {
        let name = definition.name_any();
        let found = served.iter().find(|found| found.name_any() == name).ok_or(format!("{name} is not there"))?;
        let conditions = found.status.as_ref().and_then(|status| status.conditions.as_ref()).ok_or("no conditions")?;
        let state = |type_: &str| conditions.iter().find(|c| c.type_ == type_).map(|c| c.status.clone());
        assert_eq!(state("Established").as_deref(), Some("True"), "{name}: {conditions:?}");
        assert_eq!(state("NamesAccepted").as_deref(), Some("True"), "{name}: {conditions:?}");
        assert_ne!(state("NonStructuralSchema").as_deref(), Some("True"), "{name}: {conditions:?}");
        for short in definition.spec.names.short_names.iter().flatten() {
            world.testbed.kubectl(&["get", short]).await?;
        }
    }
    world.testbed.kubectl(&["get", "bulkhead"]).await?;
    let explained = world.testbed.kubectl(&["explain", "rpol.spec.fencing.callTimeout"]).await?;
    assert!(explained.contains("Deadline of one fence call, as a duration from 1s to 5m."), "{explained}");
    Ok(())
}

pub async fn the_first_policy_gets_every_default(world: &World) -> Outcome {
    // The minimum goes over the wire, not what the Rust type fills in.
    let first = changed(&one(&root().join("config/samples/resiliencypolicy-first.yaml"))?, "all-defaults", &vec![])?;
    let stored = api_of(&world.admin, &first)?.create(&PostParams::default(), &dynamic(&first)?).await?;
    let spec = &stored.data["spec"];
    assert_eq!(spec["detection"]["kubelet"], json!({"suspectAfter": "20s", "decisiveAfter": "0s"}));
    assert_eq!(spec["detection"]["agent"], json!({"suspectAfter": "3s"}));
    assert_eq!(spec["limits"]["maxNodes"], json!("10%"));
    let typed = Api::<ResiliencyPolicy>::all(world.admin.clone()).get("all-defaults").await?.spec;
    assert_eq!(typed.triggers, Triggers::default());
    assert_eq!(typed.detection, Detection::default());
    assert_eq!(typed.fencing, Fencing::default());
    assert_eq!(typed.release, Release::default());
    assert_eq!(typed.recovery, Recovery::default());
    assert_eq!(typed.limits, Limits::default());
    assert_eq!(serde_json::to_value(&typed)?, *spec, "the Rust defaults are those of the schema");
    Ok(())
}

pub async fn applying_a_sample_again_changes_nothing(world: &World) -> Outcome {
    let mut count = 0;
    for file in sample_files()? {
        let status = file.parent().is_some_and(|folder| folder.ends_with("status"));
        for object in read(&file)? {
            let api = api_of(&world.admin, &object)?;
            let name = object["metadata"]["name"].as_str().ok_or("no name")?;
            let params = PatchParams {
                field_validation: Some(kube::api::ValidationDirective::Strict),
                ..PatchParams::apply("a-sample")
            };
            let apply = async || match status {
                true => api.patch_status(name, &params, &Patch::Apply(&object)).await,
                false => api.patch(name, &params, &Patch::Apply(&object)).await,
            };
            apply().await.map_err(|error| format!("{}: {error}", file.display()))?;
            // The server takes a status off what is created, and stores its default with the next write: here no controller
            // has written.
            let first = apply().await?;
            let second = apply().await?;
            assert_eq!(first.resource_version(), second.resource_version(), "{} changed", file.display());
            let part = if status { "status" } else { "spec" };
            if let Some(sent) = object.get(part) {
                assert_covers(&second.data[part], sent, &format!("{} {part}", file.display()));
            }
            count += 1;
        }
    }
    assert_eq!(count, 24, "samples were lost or added without adding here");
    Ok(())
}

/// Definitions of status after those of what it belongs to.
fn sample_files() -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for folder in [root().join("config/samples"), samples(), samples().join("status")] {
        let mut found =
            std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
        found.retain(|path| {
            let others = ["kustomization.yaml", "person.yaml", "tenant.yaml", "shared-volume-team.yaml"];
            path.extension().is_some_and(|e| e == "yaml") && !others.iter().any(|other| path.ends_with(other))
        });
        found.sort();
        files.extend(found);
    }
    Ok(files)
}

/// Whether everything that was sent is there as it was sent: nothing pruned, no time or duration rewritten.
fn assert_covers(stored: &Value, sent: &Value, path: &str) {
    match (stored, sent) {
        (Value::Object(stored), Value::Object(sent)) => {
            for (key, sent) in sent {
                assert_covers(stored.get(key).unwrap_or(&Value::Null), sent, &format!("{path}.{key}"));
            }
        }
        (Value::Array(stored), Value::Array(sent)) => {
            assert_eq!(stored.len(), sent.len(), "{path}");
            for (index, (stored, sent)) in stored.iter().zip(sent).enumerate() {
                assert_covers(stored, sent, &format!("{path}[{index}]"));
            }
        }
        _ => assert_eq!(stored, sent, "{path}"),
    }
}
