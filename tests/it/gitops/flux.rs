//! Flux itself brings what we ship, and objects of ours, from git to a cluster; then a node dies.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use bulkhead::api::node_fence::Phase;
use bulkhead_testbed::Testbed;
use bulkhead_testbed::cluster::{Cluster, ClusterError, ClusterOptions, Workload};
use bulkhead_testbed::flux::Flux;
use bulkhead_testbed::git_server::GitServer;
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::world::{items, told};
use crate::api::world::root;
use crate::failover::fleet::{self, SOON};
use crate::failover::look::phase;

/// What is in git, in the order in which it is applied.
const STEPS: [&str; 2] = [DEFAULT, "mine"];
const DEFAULT: &str = "config/default";
/// Samples that can be Ready anywhere.
const SAMPLES: [&str; 9] = [
    "resiliencypolicy-first",
    "resiliencypolicy-full",
    "resiliencypolicy-network-fence",
    "resiliencypolicy-podmon",
    "resiliencypolicy-seconds",
    "resiliencypolicy-volume-taints",
    "volumehealth",
    "volumehealthpolicy-databases",
    "volumehealthpolicy-local",
];
const MANAGER: &str = "kustomize-controller";

pub async fn objects_from_git_reach_ready_and_a_failover_is_no_drift() -> Result<(), Failed> {
    let options = ClusterOptions { nodes: 6, ..fleet::options() };
    let cluster = Cluster::start(options).await?;
    let testbed = &cluster.testbed;
    let set = Workload { node: Some("node-1".to_owned()), ..Workload::new("db") };
    cluster.stateful_set(&set).await?;
    cluster.pods_ready(&set, SOON).await?;
    // No other pod is to be on the node that will die.
    testbed.kubectl(&["cordon", "node-1"]).await?;
    testbed.apply(vec![serde_json::from_value(volume())?]).await?;
    let folder = tempfile::tempdir()?;
    let git = GitServer::start(folder.path()).await?;
    fill(folder.path())?;
    let commit = git.commit("What is wanted").await?;
    let flux = Flux::start(testbed).await?;
    testbed.apply(declared(&git.url())?).await?;
    for name in STEPS {
        ready(&cluster, &flux, &format!("is Ready at {commit}"), name, |status| {
            status["lastAppliedRevision"].as_str().is_some_and(|it| it.ends_with(&commit))
        })
        .await?;
    }
    let before = applied(testbed).await?;
    assert!(before.len() >= SAMPLES.len(), "{before:?}");

    cluster.node("node-1")?.kill().await;
    cluster.fence("node-1", "begun", SOON, |fence| phase(fence).is_some()).await?;
    let during = again(&cluster, &flux, "during").await?;
    cluster.fence("node-1", "Detached", SOON, |fence| phase(fence) == Some(Phase::Detached)).await?;
    let after = again(&cluster, &flux, "after").await?;
    assert_eq!(before, during, "nothing was applied anew while the pod moved");
    assert_eq!(before, after, "nor afterwards");
    Ok(cluster.judge()?)
}

/// What a team keeps in git: our manifests as they are, and its own objects.
fn fill(folder: &Path) -> Result<(), Failed> {
    for shipped in ["config", "crds"] {
        let copied = std::process::Command::new("cp").arg("-r").args([&root().join(shipped), folder]).status()?;
        assert!(copied.success());
    }
    let mine = folder.join("mine");
    std::fs::create_dir(&mine)?;
    for sample in SAMPLES {
        std::fs::copy(root().join(format!("config/samples/{sample}.yaml")), mine.join(format!("{sample}.yaml")))?;
    }
    Ok(())
}

/// The volume that a sample is about.
fn volume() -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pvc-77aa"},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "csi.block.example.com", "volumeHandle": "77aa"},
        },
    })
}

/// One source, and a Kustomization for each step.
fn declared(url: &str) -> Result<Vec<kube::api::DynamicObject>, Failed> {
    let namespace = "flux-system";
    let mut objects = vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
        json!({
            "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository",
            "metadata": {"name": "bulkhead", "namespace": namespace},
            "spec": {"url": url, "ref": {"branch": "main"}, "interval": "1m"},
        }),
    ];
    let controller = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "bulkhead-controller", "namespace": "bulkhead-system"});
    let mut before: Option<String> = None;
    for path in STEPS {
        let name = name(path);
        let depends: Vec<_> = before.iter().map(|name| json!({"name": name})).collect();
        objects.push(json!({
            "apiVersion": "kustomize.toolkit.fluxcd.io/v1", "kind": "Kustomization",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "sourceRef": {"kind": "GitRepository", "name": "bulkhead"}, "path": path, "dependsOn": depends,
                "interval": "10m", "retryInterval": "5s", "timeout": "2m",
                // With the definitions all objects of our kinds would go.
                "prune": path != DEFAULT,
                // A DaemonSet is in progress while a node is away.
                "wait": path != DEFAULT,
                "healthChecks": if path == DEFAULT { json!([controller]) } else { json!([]) },
            },
        }));
        before = Some(name);
    }
    objects.into_iter().map(|object| Ok(serde_json::from_value(object)?)).collect()
}

fn name(path: &str) -> String {
    path.replace('/', "-")
}

/// Has Flux apply everything again, and says what it has applied then.
async fn again(cluster: &Cluster, flux: &Flux, token: &str) -> Result<BTreeMap<String, Value>, Failed> {
    let note = format!("reconcile.fluxcd.io/requestedAt={token}");
    let kustomizations = ["kustomizations.kustomize.toolkit.fluxcd.io", "-n", "flux-system"];
    let annotate = [&["annotate", "--overwrite", "--all"][..], &kustomizations, &[&note]].concat();
    cluster.testbed.kubectl(&annotate).await?;
    for name in STEPS {
        ready(cluster, flux, &format!("has looked again {token}"), name, |status| {
            status["lastHandledReconcileAt"] == token
        })
        .await?;
    }
    applied(&cluster.testbed).await
}

/// Waits until a Kustomization is Ready and its status is so.
async fn ready(
    cluster: &Cluster,
    flux: &Flux,
    what: &str,
    path: &str,
    holds: impl Fn(&Value) -> bool,
) -> Result<(), Failed> {
    let name = name(path);
    let arguments = ["get", "kustomizations.kustomize.toolkit.fluxcd.io", &name, "-n", "flux-system", "-o", "json"];
    let limit = Duration::from_secs(180);
    let what = format!("{path} {what}");
    let waited = cluster.wait(&what, limit, async || {
        let live: Value = serde_json::from_str(&cluster.testbed.kubectl(&arguments).await?)?;
        let status = &live["status"];
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let is_ready = conditions.iter().any(|it| it["type"] == "Ready" && it["status"] == "True");
        let is_new = status["observedGeneration"] == live["metadata"]["generation"];
        Ok(if is_ready && is_new && holds(status) { Ok(()) } else { Err(status.to_string()) })
    });
    let logs = |_: &ClusterError| {
        for process in [&flux.source_controller, &flux.kustomize_controller] {
            eprintln!("{}: {}", process.launch().name, process.log_tail());
        }
    };
    Ok(waited.await.inspect_err(logs)?)
}

/// What Flux says it owns of each of our objects, and since when: it changes with whatever Flux changes.
async fn applied(testbed: &Testbed) -> Result<BTreeMap<String, Value>, Failed> {
    let kinds = "resiliencypolicies,volumehealthpolicies,volumehealths,deployments,daemonsets,\
                 validatingadmissionpolicies,clusterroles,customresourcedefinitions";
    let list = testbed.kubectl(&["get", kinds, "-A", "--show-managed-fields", "-o", "json"]).await?;
    let owned = |object: &Value| {
        let entries = object["metadata"]["managedFields"].as_array()?;
        let entry = entries.iter().find(|entry| entry["manager"] == MANAGER && entry["operation"] == "Apply")?;
        Some((told(object), json!([object["metadata"]["generation"], entry])))
    };
    Ok(items(&list)?.iter().filter_map(owned).collect())
}
