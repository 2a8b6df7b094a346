//! Volumes that break on real nodes: what is found, told and tainted, who is kept off, and that all of it goes again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bulkhead::api::names::{OPERATOR_NAMESPACE, TAINTED_LABEL, VOLUME_TAINTED_GATE, fencer_lease};
use bulkhead::api::resiliency_policy::{ResiliencyPolicy, ResiliencyPolicySpec};
use bulkhead::api::volume::{NOT_ATTACHED, NOT_MOUNTED, NOT_USABLE, Source};
use bulkhead::api::volume_health::{VolumeHealth, VolumeTaint};
use bulkhead_testbed::cluster::ClusterError;
use bulkhead_testbed::cluster::real::{LocalVolume, PodPlace, RealCluster, RealWorkload, last_written, records_found};
use bulkhead_testbed::cluster::watched::{WatchedClaim, WatchedClass, create_writer, health, pod};
use bulkhead_testbed::process::Signal;
use bulkhead_testbed::real_nodes::{Fault, RealNodeError};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::Outcome;
use super::bed::{SOON, WITHOUT_BRAKES};
use super::story::{Story, one};
use super::table::BY_AGENT;

/// From the break to the taint. It takes five seconds; a machine with two cores for a whole cluster is granted more.
const TAINTED: Duration = Duration::from_secs(30);
/// The class of the array's volumes that are watched, and that of local ones.
const CLASS: &str = "watched";
const LOCAL: &str = "watched-local";
/// Who looks at volumes, and who says what it means.
const PROGRAMS: [&str; 3] = ["bulkhead-controller", "bulkhead-csi-sidecar", "bulkhead-node-agent"];

/// The FUSE server of a volume dies under a running pod; a new pod mounts anew.
pub async fn dead_file_server(cluster: &RealCluster) -> Outcome {
    let story = watched_story(cluster, RealWorkload::new("dead-server")).await?;
    let volume = volume_of(cluster, &story.workload.claim(0)).await?;
    let broken = Instant::now();
    cluster.end_file_server(&story.old.node, &story.volume).await?;
    let taint = tainted(cluster, &volume, NOT_MOUNTED, TAINTED).await?;
    println!("dead_file_server: tainted after {:.1} s", broken.elapsed().as_secs_f64());
    assert_eq!((taint.source, taint.reason.as_str()), (Source::NodeAgent, "FuseDisconnected"), "{taint:?}");
    assert_eq!(taint.nodes, std::slice::from_ref(&story.old.node));
    told(cluster, "PersistentVolumeClaim", &story.workload.claim(0), "VolumeConditionAbnormal").await?;
    told(cluster, "Pod", &story.old.name, "VolumeConditionAbnormal").await?;
    let new = replaced(cluster, &story).await?;
    let again = story.ledger().now();
    story.ledger().wait_for_write(&story.volume, &new.node, again, SOON).await?;
    untainted(cluster, &volume).await?;
    told(cluster, "PersistentVolumeClaim", &story.workload.claim(0), "VolumeConditionNormal").await?;
    Ok(cluster.end(&story.workload, SOON).await?)
}

/// A disk with local volumes is gone: its users are kept, new ones are kept off.
pub async fn local_folder_gone(cluster: &RealCluster) -> Outcome {
    class(cluster, LOCAL, None, json!({})).await?;
    let (client, node) = (&cluster.client, "node-1");
    let volume = |name, disk, size| LocalVolume { name, node, disk, class: LOCAL, size };
    for volume in [volume("used", "one", "16Mi"), volume("spare", "one", "16Mi"), volume("other", "two", "32Mi")] {
        cluster.add_local_volume(&volume).await?;
    }
    claim(LOCAL, "used", Some("used")).create(client).await?;
    create_writer(client, "first", "used", None).await?;
    let first = pod(client, "first", "runs", SOON, is_running).await?;
    healthy(cluster, &["used", "spare", "other"]).await?;

    cluster.hide_disk(node, "one").await?;
    for volume in ["used", "spare"] {
        let taint = tainted(cluster, volume, NOT_USABLE, TAINTED).await?;
        assert_eq!((taint.source, taint.reason.as_str()), (Source::NodeAgent, "PathMissing"), "{taint:?}");
    }
    told(cluster, "PersistentVolumeClaim", "used", "VolumeConditionAbnormal").await?;
    told(cluster, "Pod", "first", "VolumeConditionAbnormal").await?;
    // The smaller of two is what the scheduler takes, if it may.
    volume_is(cluster, "spare", "reserved", |volume| reserved(volume) && labels(volume) == Some("Enforce")).await?;
    claim(LOCAL, "new", None).create(client).await?;
    create_writer(client, "elsewhere", "new", None).await?;
    create_writer(client, "held", "used", None).await?;
    pod(client, "elsewhere", "runs", SOON, is_running).await?;
    assert_eq!(volume_of(cluster, "new").await?, "other");
    let held = pod(client, "held", "is held", SOON, is_held).await?;
    assert!(held.spec.and_then(|spec| spec.node_name).is_none());
    told(cluster, "Pod", "held", "VolumeConditionAbnormal").await?;

    cluster.show_disk(node, "one").await?;
    for volume in ["used", "spare"] {
        untainted(cluster, volume).await?;
    }
    volume_is(cluster, "spare", "given back", |volume| !reserved(volume) && labels(volume).is_none()).await?;
    pod(client, "held", "runs", SOON, is_running).await?;
    let now = pod(client, "first", "runs", SOON, is_running).await?;
    assert_eq!((now.uid(), restarts(&now)), (first.uid(), 0), "nobody touches who has the volume");
    end(cluster, &["first", "held", "elsewhere"], &["used", "new"], &["used", "spare", "other"]).await
}

/// A dead FUSE server makes the pod move, when a policy says so.
pub async fn dead_file_server_moves_the_pod(cluster: &RealCluster) -> Outcome {
    let movers = BTreeMap::from([("moves-off".to_owned(), "true".to_owned())]);
    let limits: Value = serde_json::from_str(WITHOUT_BRAKES)?;
    let policy: ResiliencyPolicySpec = serde_json::from_value(json!({
        "mode": "Enforce",
        "selector": {"podSelector": {"matchLabels": movers}},
        "triggers": {"volumeTaints": [NOT_MOUNTED]},
        "limits": limits,
    }))?;
    let policies: Api<ResiliencyPolicy> = Api::all(cluster.client.clone());
    policies.create(&PostParams::default(), &ResiliencyPolicy::new("moves-off", policy)).await?;
    let story = watched_story(cluster, RealWorkload { labels: movers, ..RealWorkload::new("moves-off") }).await?;
    // When it is gone its kubelet removes the log.
    let safe = cluster.wait("the pod says what it wrote", SOON, async || {
        let log = cluster.log(&story.workload, &story.old)?;
        Ok(last_written(&log).ok_or(log))
    });
    let safe = safe.await?;
    cluster.end_file_server(&story.old.node, &story.volume).await?;
    let broken = story.ledger().now();
    let new = one(cluster.running(&story.workload, std::slice::from_ref(&story.old), SOON).await?)?;
    assert_ne!(new.node, story.old.node);
    story.ledger().wait_for_write(&story.volume, &new.node, broken, SOON).await?;
    let found = cluster.wait("the new pod says what it found", SOON, async || {
        let log = cluster.log(&story.workload, &new)?;
        Ok(records_found(&log).ok_or(log))
    });
    let found = found.await?;
    assert!(found >= safe, "safe: {safe:?}, found: {found:?}");
    assert_eq!(story.ledger().writes(&story.volume, &story.old.node, broken), 0, "nobody serves it there");
    story.becomes_whole(BY_AGENT).await?;
    policies.delete("moves-off", &DeleteParams::default()).await?;
    Ok(())
}

/// Somebody deletes a volume in the array's own console; then all programs of ours end at once, and what is known stays.
pub async fn deleted_in_the_backend(cluster: &RealCluster) -> Outcome {
    let story = watched_story(cluster, RealWorkload::new("deleted")).await?;
    let volume = volume_of(cluster, &story.workload.claim(0)).await?;
    cluster.array.lose_volume(&story.volume);
    let taint = tainted(cluster, &volume, NOT_USABLE, SOON).await?;
    assert_eq!((taint.source, taint.reason.as_str()), (Source::CSIController, "BackendDeleted"), "{taint:?}");
    told(cluster, "PersistentVolumeClaim", &story.workload.claim(0), "VolumeConditionAbnormal").await?;
    all_end_at_once(cluster).await?;
    let after = tainted(cluster, &volume, NOT_USABLE, SOON).await?;
    // One that had gone and come back would be younger.
    assert_eq!((after.reason, after.time_added), (taint.reason, taint.time_added));
    cluster.array.find_volume(&story.volume)?;
    untainted(cluster, &volume).await?;
    let again = story.ledger().now();
    story.ledger().wait_for_write(&story.volume, &story.old.node, again, SOON).await?;
    Ok(cluster.end(&story.workload, SOON).await?)
}

/// Kills every program of ours that has to do with volumes, on every node, and returns when others lead in their place.
async fn all_end_at_once(cluster: &RealCluster) -> Outcome {
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), OPERATOR_NAMESPACE);
    let sidecar = fencer_lease(cluster.array.driver_name());
    let leaders = async || {
        let mut holders = Vec::new();
        for lease in ["bulkhead-controller", sidecar.as_str()] {
            let lease = leases.get_opt(lease).await?;
            holders.push(lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default());
        }
        Ok::<_, ClusterError>(holders)
    };
    let before = leaders().await?;
    for name in cluster.node_names() {
        let node = cluster.node(&name)?;
        for program in PROGRAMS {
            match node.signal(program, Signal::Kill).await {
                // Not every node has one.
                Ok(()) | Err(RealNodeError::NotRunning { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    let others = async || {
        let now = leaders().await?;
        let is_new = now.iter().zip(&before).all(|(now, before)| !now.is_empty() && now != before);
        Ok(if is_new { Ok(()) } else { Err(format!("{now:?}")) })
    };
    cluster.wait("other processes lead", SOON, others).await?;
    Ok(cluster.settled().await?)
}

/// The array takes a node's access away; Kubernetes' attacher gives it again, and nothing keeps it from that.
pub async fn unpublished_behind(cluster: &RealCluster) -> Outcome {
    let story = watched_story(cluster, RealWorkload::new("unpublished")).await?;
    let volume = volume_of(cluster, &story.workload.claim(0)).await?;
    cluster.array.unpublish_unasked(&story.volume, &story.old.node)?;
    let taint = tainted(cluster, &volume, NOT_ATTACHED, SOON).await?;
    assert_eq!((taint.source, taint.reason.as_str()), (Source::CSIController, "PublishedNodeMismatch"), "{taint:?}");
    let revoked = story.ledger().now();
    story.ledger().wait_for_write(&story.volume, &story.old.node, revoked, SOON).await?;
    untainted(cluster, &volume).await?;
    assert_eq!(one(cluster.running(&story.workload, &[], SOON).await?)?, story.old, "another pod");
    Ok(cluster.end(&story.workload, SOON).await?)
}

/// Who shares a broken volume is kept, who would come to it from another node is not let in.
pub async fn shared_volume(cluster: &RealCluster) -> Outcome {
    const SHARED: &str = "watched-shared";
    let off = json!({"effects": [{"key": NOT_MOUNTED, "effect": "NoAttachOrMount"}]});
    class(cluster, SHARED, Some(cluster.array.driver_name()), off).await?;
    let client = &cluster.client;
    WatchedClaim { access: "ReadWriteMany", ..claim(SHARED, "shared", None) }.create(client).await?;
    create_writer(client, "sharer", "shared", Some("node-1")).await?;
    let sharer = pod(client, "sharer", "runs", SOON, is_running).await?;
    let volume = volume_of(cluster, "shared").await?;
    healthy(cluster, &[&volume]).await?;
    cluster.end_file_server("node-1", &handle_of(cluster, &volume).await?).await?;
    tainted(cluster, &volume, NOT_MOUNTED, TAINTED).await?;
    create_writer(client, "latecomer", "shared", Some("node-2")).await?;
    pod(client, "latecomer", "is held", SOON, is_held).await?;
    let now = pod(client, "sharer", "runs", SOON, is_running).await?;
    assert_eq!((now.uid(), restarts(&now)), (sharer.uid(), 0), "nobody touches who has the volume");
    // Nobody is left for whom it is broken.
    Api::<Pod>::default_namespaced(client.clone()).delete("sharer", &DeleteParams::default()).await?;
    pod(client, "latecomer", "runs", SOON, is_running).await?;
    untainted(cluster, &volume).await?;
    end(cluster, &["latecomer"], &["shared"], &[]).await
}

/// A node is off: its disks are too.
pub async fn node_with_local_volumes(cluster: &RealCluster) -> Outcome {
    class(cluster, LOCAL, None, json!({})).await?;
    cluster
        .add_local_volume(&LocalVolume { name: "away", node: "node-3", disk: "three", class: LOCAL, size: "16Mi" })
        .await?;
    healthy(cluster, &["away"]).await?;
    let node = cluster.node("node-3")?;
    node.fault(Fault::KillEverything).await?;
    let taint = tainted(cluster, "away", NOT_USABLE, SOON).await?;
    assert_eq!((taint.source, taint.reason.as_str()), (Source::NodeLifecycle, "NodeDown"), "{taint:?}");
    node.heal_all().await?;
    untainted(cluster, "away").await?;
    cluster.usable("node-3", SOON).await?;
    end(cluster, &[], &[], &["away"]).await
}

/// A database on a volume that is watched, and known to be good.
async fn watched_story(cluster: &RealCluster, workload: RealWorkload) -> Result<Story<'_>, Failed> {
    class(cluster, CLASS, Some(cluster.array.driver_name()), json!({})).await?;
    let workload = RealWorkload { class: Some(CLASS.to_owned()), ..workload };
    let story = Story::prepare(cluster, workload).await?;
    healthy(cluster, &[&volume_of(cluster, &story.workload.claim(0)).await?]).await?;
    Ok(story)
}

/// Makes a class that is not there yet: the tests share the cluster, and each runs alone too.
async fn class(cluster: &RealCluster, name: &str, provisioner: Option<&str>, spec: Value) -> Outcome {
    let classes: Api<StorageClass> = Api::all(cluster.client.clone());
    if classes.get_opt(name).await?.is_none() {
        WatchedClass { name, provisioner, spec }.create(&cluster.client).await?;
    }
    Ok(())
}

fn claim<'a>(class: &'a str, name: &'a str, volume: Option<&'a str>) -> WatchedClaim<'a> {
    WatchedClaim { name, class, size: "16Mi", volume, access: "ReadWriteOnce" }
}

/// Deletes the pod; its successor is mounted anew.
async fn replaced(cluster: &RealCluster, story: &Story<'_>) -> Result<PodPlace, Failed> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &story.workload.namespace);
    pods.delete(&story.old.name, &DeleteParams::default()).await?;
    one(cluster.running(&story.workload, std::slice::from_ref(&story.old), SOON).await?)
}

/// The PersistentVolume of a claim.
async fn volume_of(cluster: &RealCluster, claim: &str) -> Result<String, Failed> {
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(cluster.client.clone());
    Ok(claims.get(claim).await?.spec.and_then(|spec| spec.volume_name).ok_or("the claim is not bound")?)
}

async fn handle_of(cluster: &RealCluster, volume: &str) -> Result<String, Failed> {
    let volume = Api::<PersistentVolume>::all(cluster.client.clone()).get(volume).await?;
    Ok(volume.spec.and_then(|spec| spec.csi).map(|csi| csi.volume_handle).ok_or("the volume is of no CSI driver")?)
}

/// Waits until somebody looked at each volume, and all was well.
async fn healthy(cluster: &RealCluster, volumes: &[&str]) -> Outcome {
    for volume in volumes {
        health(&cluster.client, volume, "Healthy", SOON, |health| phase(health) == Some("Healthy")).await?;
    }
    Ok(())
}

async fn tainted(cluster: &RealCluster, volume: &str, key: &str, limit: Duration) -> Result<VolumeTaint, Failed> {
    let health = health(&cluster.client, volume, key, limit, |health| taint(health, key).is_some()).await?;
    Ok(taint(&health, key).cloned().ok_or("the taint is gone")?)
}

async fn untainted(cluster: &RealCluster, volume: &str) -> Outcome {
    let clean = |health: &VolumeHealth| health.taints().is_empty() && phase(health) == Some("Healthy");
    health(&cluster.client, volume, "Healthy, without a taint", SOON, clean).await?;
    volume_is(cluster, volume, "without our label", |volume| labels(volume).is_none()).await
}

fn taint<'a>(health: &'a VolumeHealth, key: &str) -> Option<&'a VolumeTaint> {
    health.taints().iter().find(|taint| taint.key == key)
}

fn phase(health: &VolumeHealth) -> Option<&'static str> {
    use bulkhead::api::volume_health::Phase;
    Some(match health.status.as_ref()?.phase? {
        Phase::Healthy => "Healthy",
        Phase::Degraded => "Degraded",
        Phase::Unhealthy => "Unhealthy",
        Phase::Unknown => "Unknown",
    })
}

async fn volume_is(
    cluster: &RealCluster,
    name: &str,
    what: &str,
    holds: impl Fn(&PersistentVolume) -> bool,
) -> Outcome {
    let volumes: Api<PersistentVolume> = Api::all(cluster.client.clone());
    cluster
        .wait(&format!("PersistentVolume {name} is {what}"), SOON, async || {
            let volume = volumes.get(name).await?;
            Ok(if holds(&volume) { Ok(()) } else { Err(format!("{:?} {:?}", volume.labels(), volume.spec)) })
        })
        .await?;
    Ok(())
}

fn labels(volume: &PersistentVolume) -> Option<&str> {
    volume.labels().get(TAINTED_LABEL).map(String::as_str)
}

/// Kept for a claim that never is.
fn reserved(volume: &PersistentVolume) -> bool {
    let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    claim.is_some_and(|claim| claim.namespace.as_deref() == Some(OPERATOR_NAMESPACE) && claim.uid.is_none())
}

/// Waits for an Event.
async fn told(cluster: &RealCluster, kind: &str, name: &str, reason: &str) -> Outcome {
    let events: Api<Event> = Api::default_namespaced(cluster.client.clone());
    let about = ListParams::default().fields(&format!("involvedObject.kind={kind},involvedObject.name={name}"));
    cluster
        .wait(&format!("Event {reason} on {kind} {name}"), SOON, async || {
            let events = events.list(&about).await?;
            let reasons: Vec<_> = events.iter().filter_map(|event| event.reason.as_deref()).collect();
            Ok(if reasons.contains(&reason) { Ok(()) } else { Err(format!("{reasons:?}")) })
        })
        .await?;
    Ok(())
}

fn is_running(pod: &Pod) -> bool {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let ready: Vec<_> = statuses.map(|status| status.ready).collect();
    !ready.is_empty() && ready.iter().all(|ready| *ready)
}

fn is_held(pod: &Pod) -> bool {
    let gates = pod.spec.iter().flat_map(|spec| spec.scheduling_gates.iter().flatten());
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let said = |reason| conditions.into_iter().any(|condition| condition.reason.as_deref() == Some(reason));
    gates.into_iter().any(|gate| gate.name == VOLUME_TAINTED_GATE) && said("SchedulingGated")
}

fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    statuses.map(|status| status.restart_count).sum()
}

/// Deletes all of it, for a test that begins anew.
async fn end(cluster: &RealCluster, pods: &[&str], claims: &[&str], volumes: &[&str]) -> Outcome {
    let (client, delete) = (&cluster.client, DeleteParams::default());
    for name in pods {
        Api::<Pod>::default_namespaced(client.clone()).delete(name, &delete).await?;
    }
    for name in claims {
        Api::<PersistentVolumeClaim>::default_namespaced(client.clone()).delete(name, &delete).await?;
    }
    for name in volumes {
        Api::<PersistentVolume>::all(client.clone()).delete(name, &delete).await?;
    }
    Ok(())
}
