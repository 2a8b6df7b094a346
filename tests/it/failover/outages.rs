//! Parts of the cluster that are down: the controller while a node dies, the API server while none does, a sidecar of
//! two; and parts that are slow. What was not seen is not acted on; what is so still is.

use std::time::Duration;

use bulkhead::api::fence_request::{FenceOutcome, FenceRequest};
use bulkhead::api::names;
use bulkhead_testbed::array::{Effect, Fault, Method};
use bulkhead_testbed::audit::Record;
use bulkhead_testbed::cluster::{Cluster, ClusterError, ClusterOptions, Workload};
use bulkhead_testbed::{AttacherOptions, Component};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::PostParams;
use libtest_mimic::Failed;
use serde_json::json;

use super::fleet::{Lane, LaneOptions, SOON, attacher, create_policy, options};
use super::look::{answer, operator_records};

/// Kubernetes' own informers try again every 30 to 60 s once an API server has been away for long.
const AFTER_OUTAGE: Duration = Duration::from_secs(180);

const UNPUBLISH: Method = Method::ControllerUnpublishVolume;

/// A cluster of its own with a protected pod on `node-1`.
async fn alone(name: &str, nodes: usize) -> Result<(Cluster, Workload), Failed> {
    let cluster = Cluster::start(ClusterOptions { nodes, ..options() }).await?;
    let limits = json!({ "limits": { "maxUnhealthy": "99%" } });
    create_policy(&cluster.client, name, name, &limits).await?;
    let labels = [("lane".to_owned(), name.to_owned())].into();
    let set = Workload { labels, node: Some("node-1".into()), ..Workload::new("db") };
    cluster.stateful_set(&set).await?;
    cluster.pods_ready(&set, SOON).await?;
    Ok((cluster, set))
}

/// Waits until the workload runs elsewhere.
async fn moved(cluster: &Cluster, set: &Workload, within: Duration) -> Result<(), Failed> {
    let elsewhere = async || {
        let placed = cluster.pods_ready(set, within).await?;
        Ok(if placed.values().any(|node| node == "node-1") { Err(format!("{placed:?}")) } else { Ok(()) })
    };
    Ok(cluster.wait("it runs elsewhere", within, elsewhere).await?)
}

pub async fn a_node_that_dies_while_no_controller_runs() -> Result<(), Failed> {
    let (mut cluster, set) = alone("unseen", 3).await?;
    cluster.controllers.remove(0).kill().await;
    cluster.node("node-1")?.kill().await;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let unreachable = async || {
        let node = nodes.get("node-1").await?;
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        let there = taints.iter().any(|taint| taint.key == names::UNREACHABLE_TAINT && taint.effect == "NoSchedule");
        Ok(if there { Ok(()) } else { Err(format!("{taints:?}")) })
    };
    cluster.wait("the node is unreachable", SOON, unreachable).await?;
    let before = operator_records(&cluster, |record| record.is_write() && destructive(record))?;
    assert_eq!(before, [], "nobody was there to do it");
    cluster.start_controller().await?;
    moved(&cluster, &set, SOON).await?;
    let fence = cluster.fence("node-1", "planned", SOON, |_| true).await?;
    let words = fence.spec.plan.evidence.first().and_then(|evidence| evidence.message.as_deref()).unwrap_or_default();
    assert!(words.contains("Ready=Unknown"), "{words}");
    cluster.judge()?;
    Ok(())
}

/// What acts on a node or its pods.
fn destructive(record: &Record) -> bool {
    ["pods", "volumeattachments", "nodes", "nodefences", "fencerequests"].contains(&record.resource.as_str())
}

/// All Leases stood still, and the controller-manager may take all nodes for dead for a moment. The brakes are off as
/// far as they go.
pub async fn an_api_server_that_was_down_leaves_no_suspicion() -> Result<(), Failed> {
    let (mut cluster, set) = alone("down", 4).await?;
    // A node without protected pods is no candidate, whatever is said of it.
    let others: Vec<_> = (2..=4)
        .map(|number| {
            let (name, node) = (format!("other-{number}"), Some(format!("node-{number}")));
            Workload { labels: set.labels.clone(), node, ..Workload::new(&name) }
        })
        .collect();
    for other in &others {
        cluster.stateful_set(other).await?;
        cluster.pods_ready(other, SOON).await?;
    }
    let outage = Duration::from_secs(if super::is_wide() { 600 } else { 25 });
    cluster.testbed.stop(Component::ApiServer).await?;
    // How long it lasts is what this is about: longer than Leases, than grace periods, than `suspectAfter`.
    tokio::time::sleep(outage).await;
    cluster.testbed.start_again(Component::ApiServer).await?;
    restart_what_ended(&mut cluster).await?;
    let from = chrono::Utc::now();
    let renewed = async || -> Result<_, ClusterError> {
        let api: Api<Lease> = Api::namespaced(cluster.client.clone(), names::OPERATOR_NAMESPACE);
        Ok(api.get("bulkhead-controller").await?.spec.and_then(|spec| spec.renew_time))
    };
    let before = renewed().await?;
    let leads = async || Ok(if renewed().await? == before { Err("not renewed".to_owned()) } else { Ok(()) });
    cluster.wait("the controller leads again", SOON, leads).await?;
    let names: Vec<_> = (1..=4).map(|number| format!("node-{number}")).collect();
    cluster.nodes_usable(&names).await?;
    schedules_again(&cluster).await?;
    // It looks, and acts on what is true: so it has looked at the others too.
    cluster.node("node-1")?.kill().await;
    moved(&cluster, &set, AFTER_OUTAGE).await?;
    let acted = operator_records(&cluster, |record| record.is_write() && destructive(record))?;
    let untouched: Vec<_> = names.iter().skip(1).chain(others.iter().map(|other| &other.name)).collect();
    let wrong: Vec<_> =
        acted.iter().filter(|record| untouched.iter().any(|name| record.name.starts_with(*name))).collect();
    assert!(wrong.is_empty(), "a suspicion was acted on: {wrong:?}");
    let first = acted.iter().map(|record| record.received).min().ok_or("nothing was done")?;
    assert!(first > from, "acted at {first}, before the API server was back for all at {from}");
    cluster.judge()?;
    Ok(())
}

/// A scheduler that was not watching while a pod of a StatefulSet was replaced takes both for one that changed its node,
/// and ends ("Scheduler cache is corrupted", kube-scheduler 1.36). Its kubelet would start it again; here nobody does.
async fn schedules_again(cluster: &Cluster) -> Result<(), Failed> {
    let api: Api<Pod> = Api::default_namespaced(cluster.client.clone());
    let container = json!({ "name": "main", "image": "any" });
    let probe = json!({ "metadata": { "name": "scheduled" }, "spec": { "containers": [container] } });
    api.create(&PostParams::default(), &serde_json::from_value(probe)?).await?;
    let placed = async || {
        let node = api.get("scheduled").await?.spec.and_then(|spec| spec.node_name);
        Ok(node.map(|_| ()).ok_or_else(|| "has no node".to_owned()))
    };
    Ok(cluster.wait("a pod is scheduled", AFTER_OUTAGE, placed).await?)
}

/// A program that lost its Lease ends, and its kubelet starts it again.
async fn restart_what_ended(cluster: &mut Cluster) -> Result<(), Failed> {
    let mut controller = cluster.controllers.remove(0);
    if controller.exit_status().is_some() {
        cluster.start_controller().await?;
    } else {
        cluster.controllers.push(controller);
    }
    let drivers: Vec<_> = cluster.sidecars.keys().cloned().collect();
    for driver in drivers {
        let ended = cluster.sidecars.get_mut(&driver).is_some_and(|sidecar| sidecar.exit_status().is_some());
        if ended {
            cluster.start_sidecar(&driver).await?;
        }
    }
    Ok(())
}

/// Who holds the Lease of the lane's sidecars.
async fn leads(lane: &Lane<'_>, name: &str) -> Result<(), Failed> {
    let api: Api<Lease> = Api::namespaced(lane.client(), names::OPERATOR_NAMESPACE);
    let lease = names::fencer_lease(lane.array().driver_name());
    let look = async || {
        let holder = api.get_opt(&lease).await?.and_then(|lease| lease.spec?.holder_identity);
        // Behind its name it has a token of its own process.
        Ok(if holder.as_deref().is_some_and(|holder| holder.starts_with(name)) {
            Ok(())
        } else {
            Err(format!("{holder:?}"))
        })
    };
    Ok(lane.cluster.wait(&format!("{name} leads"), SOON, look).await?)
}

pub async fn of_two_sidecars_one_calls_and_the_other_takes_over(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "replicas", LaneOptions { sidecar: false, ..LaneOptions::default() }).await?;
    let first = cluster.sidecar_named(lane.array(), "replicas-first")?;
    leads(&lane, "replicas-first").await?;
    let _second = cluster.sidecar_named(lane.array(), "replicas-second")?;
    let set = lane.workload("db");
    lane.run(&set).await?;
    let before = lane.before(&set).await?;
    let volume = set.volume_name(0, 0);
    let hang = lane.array().faults().add(Fault::on(UNPUBLISH, Effect::Hang));
    lane.victim()?.kill().await;
    lane.begun(&volume).await?;
    let called = async || {
        let calls = lane.array().calls().count(UNPUBLISH);
        Ok(if calls == 1 { Ok(()) } else { Err(format!("{calls} calls")) })
    };
    cluster.wait("the leader calls", SOON, called).await?;
    let begun = lane.begun(&volume).await?;
    first.kill().await;
    leads(&lane, "replicas-second").await?;
    lane.assert_untouched(&set, &before).await?;
    // The new leader writes the row before its own call, and keeps when the first call was.
    let again = async || {
        let calls = lane.array().calls().count(UNPUBLISH);
        Ok(if calls == 2 { Ok(()) } else { Err(format!("{calls} calls")) })
    };
    cluster.wait("the new leader calls", SOON, again).await?;
    let row = |request: &FenceRequest| answer(request, &volume).map(|row| (row.started_at, row.published_before_at));
    assert_eq!(row(&lane.begun(&volume).await?), row(&begun));
    lane.array().faults().remove(hang);
    lane.moved(&set).await?;
    lane.end().await
}

/// A pod with two volumes, one of which hangs: the proof of the other grows old, and meanwhile the attacher's re-sync
/// gives the access back. It must be asked for anew, each time.
pub async fn a_volume_that_hangs_ages_the_proofs_of_the_others(cluster: &Cluster) -> Result<(), Failed> {
    let rounds = if super::is_wide() { 9 } else { 2 };
    let attacher = AttacherOptions { reconcile_sync: Duration::from_secs(5), ..attacher() };
    let lane = Lane::new(cluster, "slow", LaneOptions { attacher, ..LaneOptions::default() }).await?;
    let pair = Workload { volumes: vec![0, 0], ..lane.workload("pair") };
    let single = lane.workload("single");
    lane.run(&pair).await?;
    lane.run(&single).await?;
    let before = lane.before(&pair).await?;
    let (quick, slow) = (pair.volume_name(0, 0), pair.volume_name(0, 1));
    let victim = lane.victim()?;
    let hang = lane.array().faults().add(Fault::on(UNPUBLISH, Effect::Hang).volume(&pair.handle(0, 1)));
    victim.kill().await;
    lane.moved(&single).await?;
    lane.begun(&slow).await?;
    let limit = SOON * 3;
    let api: Api<FenceRequest> = Api::all(lane.client());
    let name = names::fence_request(victim.name(), lane.array().driver_name());
    let aged = async || {
        let request = api.get(&name).await?;
        let row = answer(&request, &quick).map(|row| (row.round, row.result));
        let asked = row.is_some_and(|(round, result)| round > rounds && result == FenceOutcome::Fenced);
        Ok(if asked { Ok(()) } else { Err(format!("{row:?}")) })
    };
    cluster.wait("the proof of the other volume is asked for anew", limit, aged).await?;
    assert_eq!(lane.pod(&pair, 0).await?.metadata.uid, before.uid, "released on one proof of two");
    let republished = republished(&lane, &pair.handle(0, 0));
    assert!(republished > 0, "the attacher's re-sync never gave the access back: the trap was not set");
    lane.array().faults().remove(hang);
    lane.moved(&pair).await?;
    let deleted = lane.deletions(&[])?.into_iter().find(|record| record.name.contains("pair") && record.succeeded());
    let deleted = deleted.ok_or("the pod was not deleted by us")?.received;
    let asked = operator_records(cluster, |record| {
        record.resource == "fencerequests"
            && record.verb == "update"
            && record.name == name
            && record.received <= deleted
    })?;
    let asked = asked.iter().map(|record| record.received).max().ok_or("never asked anew")?;
    assert!((deleted - asked).num_milliseconds() <= 10_000, "released on a proof of {}", deleted - asked);
    lane.end().await
}

/// An array that takes longer for a call than a sidecar's Lease allows: each call ends without an answer, the driver goes on
/// with what it began, and one of the calls that follow finds it done. Until then nothing is released.
pub async fn an_array_that_is_slower_than_a_lease_is_asked_again(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "patience", LaneOptions::default()).await?;
    let set = lane.workload("db");
    lane.run(&set).await?;
    let before = lane.before(&set).await?;
    let slow = Effect::Latency(Duration::from_secs(25));
    lane.array().faults().add(Fault::on(UNPUBLISH, slow).times(1));
    lane.victim()?.kill().await;
    // What the driver says to the second call, while it works on the first.
    lane.answered(&set.volume_name(0, 0), FenceOutcome::Started, "Aborted").await?;
    lane.assert_untouched(&set, &before).await?;
    lane.moved(&set).await?;
    lane.end().await
}

/// How often the victim got access that it had lost.
fn republished(lane: &Lane<'_>, handle: &str) -> usize {
    use bulkhead_testbed::ledger::Event;
    let node = lane.nodes.first().map(|node| node.csi_node_id().to_owned()).unwrap_or_default();
    lane.array().ledger().read(|entries| {
        let granted = |event: &Event| matches!(event, Event::Published { repeated: false, .. });
        let ours = entries.iter().filter(|entry| *entry.volume == *handle && *entry.node == *node);
        ours.filter(|entry| granted(&entry.event)).count().saturating_sub(1)
    })
}
