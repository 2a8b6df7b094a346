//! Everything that we ship is applied twice, the second time after our controllers have written what they write: all objects but
//! those of the Prometheus operator's kinds, which the API server does not know, and the example of a power fencer, whose namespace
//! somebody makes first. Patches of drivers' pods are no objects.

use std::path::Path;

use bulkhead_testbed::{Testbed, TestbedOptions};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::Outcome;
use super::incident;
use super::world::{TOOL, World, apply, file, is_ours, live, take_over, told};
use crate::chart::render::{kustomize, template, without_operators_kinds};
use crate::chart::values::ALL;

/// Folders that are applied as they are. The first two are of components: with-s3 and network-policies, and monitoring.
const FOLDERS: [&str; 6] = [
    "tests/it/chart/network-policies",
    "tests/it/chart/monitoring",
    "config/samples",
    "config/samples/s3",
    "config/agent-sidecar/rights",
    "config/sidecar/drivers/aws-ebs/rights",
];

/// Nor is there anything to apply anew while a node dies and its pod moves.
pub async fn applying_everything_again_changes_nothing_in_a_failover_too(world: &World) -> Outcome {
    let testbed = world.testbed();
    let rendered = tokio::task::spawn_blocking(|| FOLDERS.map(kustomize).into_iter().collect::<Result<Vec<_>, _>>());
    let rendered = without_operators_kinds(rendered.await??.concat());
    let folder = tempfile::tempdir()?;
    let all = file(folder.path(), &rendered)?;
    take_over(testbed, &all).await?;
    world
        .wait("the controllers have written", async || {
            let objects = live(testbed, &all).await.map_err(|error| format!("{error:?}"))?;
            let unseen: Vec<_> =
                objects.iter().filter(|object| is_ours(object) && !is_seen(object)).map(told).collect();
            if unseen.is_empty() { Ok(()) } else { Err(unseen.join(", ")) }
        })
        .await?;
    unchanged(testbed, &all).await?;
    let objects = live(testbed, &all).await?;
    let finalizers =
        objects.iter().filter(|object| object["metadata"]["finalizers"].is_array()).filter(|it| is_ours(it));
    assert!(finalizers.count() >= 4, "policies and shared volumes are guarded by now");
    // What is bound, Kubernetes says in the volumes and claims of the samples.
    let is_bound = |object: &&Value| object["kind"].as_str().is_some_and(|kind| kind.starts_with("PersistentVolume"));
    for object in objects.iter().filter(|object| !is_bound(object)) {
        let foreign = foreign(object);
        assert!(foreign.is_empty(), "{}: others own {foreign:?}", told(object));
    }
    incident::is_no_drift(world, &rendered).await
}

/// On a server of its own: its marks differ from those of kustomize.
pub async fn applying_the_chart_again_changes_nothing(_: &World) -> Outcome {
    let testbed = Testbed::start(TestbedOptions::api_server_only()).await?;
    let rendered = tokio::task::spawn_blocking(|| template(&["--set", ALL])).await??;
    let rendered = without_operators_kinds(rendered);
    let folder = tempfile::tempdir()?;
    let is_first = |object: &Value| matches!(object["kind"].as_str(), Some("Namespace" | "CustomResourceDefinition"));
    let first: Vec<_> = rendered.iter().filter(|object| is_first(object)).cloned().collect();
    let definitions = file(folder.path(), &first)?;
    apply(&testbed, &definitions).await?;
    testbed.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"]).await?;
    let all = file(folder.path(), &rendered)?;
    apply(&testbed, &all).await?;
    unchanged(&testbed, &all).await
}

/// Applies again, and nothing of any object is another. What Kubernetes' own controllers write of their own accord, a status
/// of a Deployment, is not ours to forbid: then it is tried again.
async fn unchanged(testbed: &Testbed, all: &Path) -> Result<(), Failed> {
    const TRIES: usize = 10;
    let mut changed = Vec::new();
    for _ in 0..TRIES {
        let before = live(testbed, all).await?;
        apply(testbed, all).await?;
        let after = live(testbed, all).await?;
        assert_eq!(before.len(), after.len());
        let pairs = before.iter().zip(&after);
        changed = pairs.filter(|(before, after)| identity(before) != identity(after)).map(|(_, it)| told(it)).collect();
        if changed.is_empty() {
            return Ok(());
        }
    }
    Err(format!("applied {TRIES} times, and each time these changed: {}", changed.join(", ")).into())
}

/// What changes with every write, and who owns what.
fn identity(object: &Value) -> Value {
    let metadata = &object["metadata"];
    json!([metadata["uid"], metadata["resourceVersion"], metadata["generation"], metadata["managedFields"]])
}

fn is_seen(object: &Value) -> bool {
    object["status"]["observedGeneration"] == object["metadata"]["generation"]
}

/// Fields that are owned by others than the tool, but for those that git has no word in.
fn foreign(object: &Value) -> Vec<String> {
    // The testbed has applied the same before.
    let others = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let others =
        others.filter(|entry| ![TOOL, "bulkhead-testbed"].contains(&entry["manager"].as_str().unwrap_or_default()));
    let mut found = Vec::new();
    for entry in others {
        let mut paths = Vec::new();
        leaves("", &entry["fieldsV1"], &mut paths);
        paths.retain(|path| !is_not_in_git(path));
        found.extend(paths.into_iter().map(|path| format!("{}{path}", entry["manager"].as_str().unwrap_or_default())));
    }
    found
}

/// Status, finalizers, and what attach/detach, Deployments and DaemonSets count in annotations.
fn is_not_in_git(path: &str) -> bool {
    const COUNTED: [&str; 2] = ["f:deployment.kubernetes.io/revision", "f:deprecated.daemonset.template.generation"];
    path.starts_with("/f:status")
        || path.starts_with("/f:metadata/f:finalizers")
        || COUNTED.iter().any(|counted| path == format!("/f:metadata/f:annotations/{counted}"))
}

fn leaves(path: &str, fields: &Value, found: &mut Vec<String>) {
    let below: Vec<_> = fields.as_object().into_iter().flatten().filter(|(key, _)| *key != ".").collect();
    if below.is_empty() {
        found.push(path.to_owned());
    }
    for (key, fields) in below {
        leaves(&format!("{path}/{key}"), fields, found);
    }
}
