//! The chart in a user's hands: installed with helm into a cluster that has its driver and its workloads already, upgraded while a
//! failover runs, and uninstalled as `docs/uninstall.md` says. The cluster is its own: the others find Bulkhead installed.

use std::collections::BTreeMap;
use std::process::Command;

use bulkhead::api::names::OPERATOR_NAMESPACE;
use bulkhead::api::node_fence::Phase;
use bulkhead::api::resiliency_policy::ResiliencyPolicy;
use bulkhead::api::s3::MOUNTPOINT_NAMESPACE;
use bulkhead_testbed::array::{Effect, Fault as ArrayFault, Method};
use bulkhead_testbed::cluster::ClusterError;
use bulkhead_testbed::cluster::real::{PodPlace, RealCluster, RealClusterOptions, RealWorkload, S3Volume, Shell};
use bulkhead_testbed::real_nodes::Fault;
use bulkhead_testbed::s3_server::{KeyPair, Usable};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::Outcome;
use super::bed::{self, SOON};
use super::remains;
use super::s3::{add, run};
use super::story::{Story, condition, of_now, one, phase};
use super::table::BY_AGENT;

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/bulkhead");
/// A definition, and a field of its status that the chart which is installed first lacks. The upgrade brings it.
const DEFINITION: &str = "nodefences.bulkhead.dev";
const NEW_FIELD: &str = "failedBootIDs";
/// The driver that is there before us.
const DRIVER_NAMESPACE: &str = "csi-array";
/// Of the volume that is a bucket, and of the pod that uses it.
const BUCKET: &str = "through-the-upgrade";
/// What `docs/uninstall.md` says of the nodes' disks.
const KEPT_ON_NODES: [&str; 2] =
    ["/var/lib/kubelet/plugins/bulkhead-node-agent", "/var/lib/kubelet/plugins/s3.csi.scality.com"];

/// Installed, upgraded between the plan and the release, uninstalled.
pub async fn upgraded_in_the_middle() -> Outcome {
    let options = RealClusterOptions { operator: false, nfs: false, ..bed::options()? };
    let cluster = &RealCluster::start(options).await?;
    assert_eq!(remains::in_the_api(cluster).await?, Vec::<String>::new(), "before anything is installed");
    install(cluster).await?;
    let labels = protect(cluster).await?;
    let node = cluster.node_without_leader().await?;
    let workload = RealWorkload { labels, node: Some(node.clone()), ..RealWorkload::new("upgraded") };
    let mut story = Story::prepare(cluster, workload).await?;
    assert_eq!(story.old.node, node);
    let others = cluster.node_names().filter(|name| *name != node);
    let other = others.last().ok_or("there is one node alone")?;
    bucket(cluster, &other).await?;

    let before = programs(cluster, None).await?;
    let asked = cluster.array.calls().count(Method::ControllerUnpublishVolume);
    let held = cluster.array.faults().add(ArrayFault::on(Method::ControllerUnpublishVolume, Effect::Hang));
    story.fail(&[Fault::CutControl]).await?;
    story.writes_when_declared().await?;
    cluster
        .wait("the fence waits for the array", SOON, async || {
            let count = cluster.array.calls().count(Method::ControllerUnpublishVolume);
            Ok(if count > asked { Ok(()) } else { Err("it does not ask".to_owned()) })
        })
        .await?;
    assert!(!has_new_field(cluster).await?, "the chart that was installed has it already");
    upgrade(cluster, &node).await?;
    assert!(has_new_field(cluster).await?, "helm leaves definitions as they were");
    is_not_released(&story).await?;

    cluster.array.faults().remove(held);
    let new = released(&story).await?;
    cluster.settled().await?;
    all_are_new(cluster, &before, 1, None).await?;
    helm(cluster, "test", &["--timeout=3m"]).await?;
    bucket_is_there_still(cluster, &other).await?;
    cluster.judge()?;

    uninstall(cluster).await?;
    nothing_is_left(cluster).await?;
    let uninstalled = story.ledger().now();
    story.ledger().wait_for_write(&story.volume, &new.node, uninstalled, SOON).await?;
    assert_eq!(one(cluster.running(&story.workload, &[], SOON).await?)?, new, "another pod");
    Ok(cluster.judge()?)
}

/// As `docs/install.md` says; then the sidecar of the driver.
async fn install(cluster: &RealCluster) -> Outcome {
    let server = cluster.s3()?;
    let key = KeyPair::new("INSTALLED", "installed/secret");
    let [id, secret] = [("access_key_id", &key.access_key), ("secret_access_key", &key.secret_key)]
        .map(|(name, value)| format!("--from-literal={name}={value}"));
    kubectl(cluster, &["create", "secret", "generic", "s3-secret", "-n", "kube-system", &id, &secret]).await?;
    server.keys().set(key, Usable::All);
    let values = json!({
        "image": {"tag": "latest"},
        "controller": {"replicas": 3, "attacherResyncPeriod": "1s"},
        // The pod on a node that is away counts as one of them.
        "nodeAgent": {"maxUnavailable": 2},
        "s3": {
            "enabled": true,
            "endpointUrl": server.endpoint(),
            "node": {"maxUnavailable": 2},
            "controller": {"provisioner": {"image": {"registry": "", "tag": "latest"}}},
        },
    });
    let values = file(cluster, "installed", &values)?;
    let chart = earlier(cluster)?;
    helm(cluster, "install", &[&chart, "--create-namespace", "--wait", "--timeout=4m", "-f", &values]).await?;
    let restricted = ["app.kubernetes.io/name=bulkhead", "pod-security.kubernetes.io/enforce=restricted"];
    kubectl(cluster, &[&["label", "namespace", OPERATOR_NAMESPACE][..], &restricted].concat()).await?;
    helm(cluster, "test", &["--timeout=3m"]).await?;

    cluster.apply_driver(true).await?;
    cluster.settled().await?;
    cluster
        .wait("the driver is reported", SOON, async || {
            Ok(if cluster.is_reported().await? { Ok(()) } else { Err("it is not".to_owned()) })
        })
        .await?;
    assert!(!remains::in_the_api(cluster).await?.is_empty());
    Ok(())
}

/// The chart of an earlier release: one definition lacks a field.
fn earlier(cluster: &RealCluster) -> Result<String, Failed> {
    let chart = cluster.testbed.folder().join("earlier");
    let copied = Command::new("cp").arg("-r").arg(CHART).arg(&chart).status()?;
    assert!(copied.success(), "the chart is copied");
    let path = chart.join(format!("files/crds/{DEFINITION}.yaml"));
    let definition = std::fs::read_to_string(&path)?;
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut dropped: Option<usize> = None;
    let kept = definition.lines().filter(|line| {
        dropped = dropped.filter(|field| indent(line) > *field);
        if line.trim() == format!("{NEW_FIELD}:") {
            dropped = Some(indent(line));
        }
        dropped.is_none()
    });
    let kept: Vec<_> = kept.collect();
    assert!(kept.len() < definition.lines().count(), "{DEFINITION} has no {NEW_FIELD}");
    std::fs::write(path, kept.join("\n"))?;
    Ok(chart.to_string_lossy().into_owned())
}

/// Whether the API server knows the field that the upgrade brings.
async fn has_new_field(cluster: &RealCluster) -> Result<bool, Failed> {
    let definition = cluster.testbed.kubectl(&["get", "crd", DEFINITION, "-o", "json"]).await?;
    Ok(definition.contains(&format!("\"{NEW_FIELD}\":")))
}

/// Has pods with a label of the user's own protected, and says which label.
async fn protect(cluster: &RealCluster) -> Result<BTreeMap<String, String>, Failed> {
    let labels = BTreeMap::from([("tier".to_owned(), "database".to_owned())]);
    let policy: ResiliencyPolicy = serde_json::from_value(json!({
        "apiVersion": "bulkhead.dev/v1alpha1",
        "kind": "ResiliencyPolicy",
        "metadata": {"name": "databases"},
        "spec": {"mode": "Enforce", "selector": {"podSelector": {"matchLabels": labels}}},
    }))?;
    Api::<ResiliencyPolicy>::all(cluster.client.clone()).create(&PostParams::default(), &policy).await?;
    Ok(labels)
}

/// The shipped chart brings its definitions, another log level restarts every program, and there is one replica less; the driver's own pods follow, our sidecar in them.
/// Without `--wait`, which would wait for the agent of the node that is away.
async fn upgrade(cluster: &RealCluster, away: &str) -> Outcome {
    let before = programs(cluster, Some(away)).await?;
    let values = json!({"log": {"level": "info,bulkhead=debug"}, "controller": {"replicas": 2}});
    let values = file(cluster, "upgraded", &values)?;
    helm(cluster, "upgrade", &[CHART, "--reuse-values", "--timeout=4m", "-f", &values]).await?;
    kubectl(cluster, &["rollout", "restart", "deployment/csi-controller", "-n", DRIVER_NAMESPACE]).await?;
    all_are_new(cluster, &before, 0, Some(away)).await
}

/// Waits until others have taken the places of all these, but for so many fewer. `away` is a node whose pods nobody can replace.
async fn all_are_new(cluster: &RealCluster, before: &[Program], fewer: usize, away: Option<&str>) -> Outcome {
    cluster
        .wait("all programs are new", SOON * 2, async || {
            let now = programs(cluster, away).await?;
            let is_new = |it: &&Program| it.ready && before.iter().all(|old| old.uid != it.uid);
            let new = now.iter().filter(is_new).count();
            if new == now.len() && new + fewer >= before.len() {
                return Ok(Ok(()));
            }
            let others: Vec<_> = now.iter().filter(|it| !is_new(it)).map(|it| it.name.as_str()).collect();
            Ok(Err(format!("{new} instead of {}; not new: {}", before.len(), others.join(", "))))
        })
        .await?;
    Ok(())
}

/// A pod of ours, or of the driver with our sidecar.
struct Program {
    name: String,
    uid: String,
    node: String,
    ready: bool,
}

/// What runs or ends on the nodes, but on the one that is away. No Mountpoint Pods, which are to go on.
async fn programs(cluster: &RealCluster, away: Option<&str>) -> Result<Vec<Program>, ClusterError> {
    let pods = Api::<Pod>::all(cluster.client.clone()).list(&ListParams::default()).await?;
    let is_ours = |pod: &Pod| {
        let mut containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let has_image = containers.any(|it| it.image.as_deref().is_some_and(|image| image.starts_with("bulkhead-")));
        has_image && pod.namespace().as_deref() != Some(MOUNTPOINT_NAMESPACE)
    };
    let program = |pod: Pod| {
        let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let ready = conditions.any(|it| it.type_ == "Ready" && it.status == "True");
        Some(Program { name: pod.name_any(), uid: pod.uid()?, ready, node: pod.spec?.node_name? })
    };
    let found = pods.items.into_iter().filter(is_ours).filter_map(program);
    Ok(found.filter(|program| Some(program.node.as_str()) != away).collect())
}

/// The old pod writes as before, and nobody has taken its place.
async fn is_not_released(story: &Story<'_>) -> Outcome {
    let now = story.ledger().now();
    story.ledger().wait_for_write(&story.volume, &story.old.node, now, SOON).await?;
    let fence = story.fence("open", of_now).await?;
    assert!(matches!(phase(&fence), Some(Phase::Planned | Phase::Fencing)), "{:?}", fence.status);
    let pods = Api::<Pod>::namespaced(story.cluster.client.clone(), &story.workload.namespace);
    let pod = pods.get(&story.old.name).await?;
    assert_eq!(pod.uid().as_ref(), Some(&story.old.uid));
    Ok(())
}

/// What was begun by the programs before is carried through by those after. Returns the new pod.
async fn released(story: &Story<'_>) -> Result<PodPlace, Failed> {
    story.moves().await?;
    story.is_refused().await?;
    story.detached().await?;
    story.node.heal_all().await?;
    let fence = story.fence("Recovered", |fence| phase(fence) == Some(Phase::Recovered)).await?;
    assert_eq!(condition(&fence, "NodeClean"), Some(("True", BY_AGENT)));
    story.cluster.usable(&story.old.node, SOON).await?;
    story.kubelet_lets_go().await?;
    one(story.cluster.running(&story.workload, std::slice::from_ref(&story.old), SOON).await?)
}

/// A pod with a bucket, which it has written to.
async fn bucket(cluster: &RealCluster, node: &str) -> Outcome {
    add(cluster, &S3Volume::new(BUCKET)).await?;
    run(cluster, &[Shell::new(BUCKET, BUCKET, node)]).await?;
    cluster.shell(BUCKET, "echo before >greeting").await?;
    Ok(())
}

/// The same pod reads it, and ends: workloads end before the S3 driver goes.
async fn bucket_is_there_still(cluster: &RealCluster, node: &str) -> Outcome {
    assert_eq!(cluster.shell(BUCKET, "cat greeting").await?, "before\n");
    cluster.end_shells(&[BUCKET], SOON).await?;
    cluster
        .wait("nothing is left of the bucket's mount", SOON, async || {
            let left = cluster.left_of(BUCKET, node).await?;
            Ok(if left.is_empty() { Ok(()) } else { Err(left.join(", ")) })
        })
        .await?;
    Ok(cluster.remove_s3_volume(BUCKET).await?)
}

/// The commands of `docs/uninstall.md`, while the workload goes on.
async fn uninstall(cluster: &RealCluster) -> Outcome {
    let limit = "--timeout=4m";
    kubectl(cluster, &["delete", "resiliencypolicies", "--all", limit]).await?;
    kubectl(cluster, &["delete", "nodefences", "--all", limit]).await?;
    kubectl(cluster, &["delete", "sharedvolumes", "--all", "-A", limit]).await?;
    let everything = "decommission=true,crds.keep=false,s3.mountNamespace.keep=false";
    let upgrade = [CHART, "--reuse-values", "--set", everything, "--wait", "--wait-for-jobs", limit];
    helm(cluster, "upgrade", &upgrade).await?;
    helm(cluster, "uninstall", &["--wait", limit]).await?;
    kubectl(cluster, &["delete", "namespace", OPERATOR_NAMESPACE, limit]).await?;
    kubectl(cluster, &["delete", "lease", "s3-csi-scality-com", "-n", "kube-system"]).await?;
    // The driver's manifests without the sidecar, and its rights.
    cluster.apply_driver(false).await?;
    let rights = format!("bulkhead-fencer-{}", cluster.array.driver_name());
    kubectl(cluster, &["delete", "clusterrole,clusterrolebinding,flowschema", &rights]).await?;
    let election = format!("bulkhead-fencer-leader-election-{}", cluster.array.driver_name());
    kubectl(cluster, &["delete", "flowschema", &election]).await?;
    kubectl(cluster, &["delete", "secret", "s3-secret", "-n", "kube-system"]).await
}

/// No object of any kind says a name of ours, and no node has anything but what the page says.
async fn nothing_is_left(cluster: &RealCluster) -> Outcome {
    cluster
        .wait("nothing is left", SOON, async || {
            Ok(match remains::in_the_api(cluster).await {
                Ok(left) if left.is_empty() => Ok(()),
                Ok(left) => Err(left.join(", ")),
                // A kind may go while it is listed.
                Err(error) => Err(error.to_string()),
            })
        })
        .await?;
    for node in cluster.node_names() {
        let mut left = remains::on_node(cluster, &node).await?;
        left.retain(|path| !KEPT_ON_NODES.contains(&path.as_str()));
        assert_eq!(left, Vec::<String>::new(), "{node}");
    }
    Ok(())
}

async fn helm(cluster: &RealCluster, command: &str, further: &[&str]) -> Outcome {
    let release = [command, "bulkhead", "--namespace", OPERATOR_NAMESPACE];
    cluster.testbed.helm(&[&release[..], further].concat()).await?;
    Ok(())
}

async fn kubectl(cluster: &RealCluster, args: &[&str]) -> Outcome {
    cluster.testbed.kubectl(args).await?;
    Ok(())
}

/// Values as a file for helm, which reads JSON as the YAML that it is.
fn file(cluster: &RealCluster, name: &str, values: &Value) -> Result<String, Failed> {
    let path = cluster.testbed.folder().join(format!("{name}.yaml"));
    std::fs::write(&path, values.to_string())?;
    Ok(path.to_string_lossy().into_owned())
}
