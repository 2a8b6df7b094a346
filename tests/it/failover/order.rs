//! The order of the steps, from the audit log and the ledger; and the two ways to detach.

use bulkhead::api::names;
use bulkhead_testbed::Identity;
use bulkhead_testbed::audit::Record;
use bulkhead_testbed::cluster::Cluster;
use bulkhead_testbed::ledger::Event;
use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::fleet::{Lane, LaneOptions};
use super::look::operator_records;

/// The controller's patches of the victim's Node that added this taint.
pub fn taintings(lane: &Lane<'_>, key: &str) -> Result<Vec<Record>, Failed> {
    let victim = lane.victim()?.name();
    operator_records(lane.cluster, |record| {
        record.resource == "nodes" && record.name == victim && record.succeeded() && adds(record, key)
    })
}

/// Whether a JSON patch adds something with this text in its path or value.
fn adds(record: &Record, text: &str) -> bool {
    let operations = record.body.as_ref().and_then(Value::as_array);
    let (plain, pointer) = (text.to_owned(), text.replace('/', "~1"));
    let says = |operation: &Value| {
        let written = operation.to_string();
        operation["op"] == "add" && (written.contains(&plain) || written.contains(&pointer))
    };
    operations.is_some_and(|operations| operations.iter().any(says))
}

/// Whether this is the deletion of one of these attachments, by whomever.
fn detaches(record: &Record, attachments: &[String]) -> bool {
    record.resource == "volumeattachments" && record.verb == "delete" && attachments.contains(&record.name)
}

/// When the victim lost its access to a volume.
fn cut_off(lane: &Lane<'_>, volume: &str) -> Result<DateTime<Utc>, Failed> {
    let ledger = lane.array().ledger();
    let node = lane.victim()?.csi_node_id();
    let at = ledger.read(|entries| {
        let cut = |event: &Event| matches!(event, Event::Unpublished { repeated: false });
        entries.iter().find(|entry| *entry.volume == *volume && *entry.node == *node && cut(&entry.event)).map(|e| e.at)
    });
    Ok(ledger.wall(at.ok_or("never cut off")?))
}

/// When the first and the last of these records were finished.
fn span(records: &[Record]) -> Result<(DateTime<Utc>, DateTime<Utc>), Failed> {
    let first = records.iter().map(|record| record.received).min().ok_or("no such record")?;
    let last = records.iter().map(|record| record.finished).max().ok_or("no such record")?;
    Ok((first, last))
}

pub async fn every_step_waits_for_the_one_before(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "order", LaneOptions::default()).await?;
    let set = lane.workload("db");
    lane.run(&set).await?;
    let attachments = lane.attachments().await?;
    let victim = lane.victim()?;
    victim.kill().await;
    lane.fence("active", |fence| {
        fence.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(names::ACTIVE_LABEL))
    })
    .await?;
    // From when the API server has heard of the incident.
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let volume = set.volume_name(0, 0);
    lane.cluster
        .wait("an active incident lets no attachment in", super::fleet::SOON, async || {
            let answer = attach_with(&lane, &volume, &dry).await.map_err(|error| format!("{error:?}"));
            Ok(match answer {
                Err(text) if text.contains("denied") => Ok(()),
                other => Err(format!("{other:?}")),
            })
        })
        .await?;
    lane.moved(&set).await?;
    lane.detached().await?;
    // Set, and taken back when it had done its work.
    lane.cluster
        .wait("the out-of-service taint is gone", super::fleet::SOON, async || {
            let taints = lane.taints().await.unwrap_or_default();
            let there = taints.iter().any(|taint| taint.key == names::OUT_OF_SERVICE_TAINT);
            Ok(if there { Err(format!("{taints:?}")) } else { Ok(()) })
        })
        .await?;
    let fences = operator_records(cluster, |record| {
        record.resource == "nodefences" && record.subresource.is_empty() && record.name == victim.name()
    })?;
    // The label comes with the plan.
    let active: Vec<_> = fences.into_iter().filter(|record| record.verb == "create").collect();
    let created = lane.fence("planned", |_| true).await?;
    assert_eq!(created.metadata.generation, Some(1), "the plan was written once");
    let asked = operator_records(cluster, |record| {
        record.resource == "fencerequests" && record.verb == "create" && record.name.starts_with(victim.name())
    })?;
    let deleted = lane.deletions(&attachments)?;
    let (_, active) = span(&active)?;
    let (taint_begun, tainted) = span(&taintings(&lane, names::FENCED_TAINT)?)?;
    let (ask_begun, asked) = span(&asked)?;
    let cut = cut_off(&lane, &set.handle(0, 0))?;
    let (delete_begun, released) = span(&deleted)?;
    let (key_begun, _) = span(&taintings(&lane, &names::out_of_service_value(1))?)?;
    let detached: Vec<_> = cluster.testbed.audit().records()?.filter(|record| detaches(record, &attachments)).collect();
    let (detach_begun, _) = span(&detached)?;
    assert!(active <= taint_begun, "tainted before it was active");
    assert!(tainted <= ask_begun, "asked before it was tainted");
    assert!(asked <= cut, "cut off before it was asked for");
    assert!(cut <= delete_begun, "released before it was cut off");
    assert!(cut <= key_begun, "attach/detach was let loose before it was cut off");
    assert!(released <= detach_begun, "detached before it was released");
    assert!(deleted.iter().all(|record| record.resource == "pods"), "attachments were deleted: {deleted:?}");
    for record in deleted {
        let body = record.body.as_ref().ok_or("no body")?;
        assert!(body["preconditions"]["uid"].is_string(), "{body}");
        assert!(body["preconditions"]["resourceVersion"].is_string(), "{body}");
        assert_eq!(body["gracePeriodSeconds"], json!(0));
    }
    few_are_read(&lane, &volume, &attachments)?;
    lane.end().await
}

/// What was read one by one for the victim: Node, Lease and the agent's report for each look at the whole node, the
/// PersistentVolume for each call. Pods and attachments are listed, however many they are. The NodeFence is read more often
/// than that where a watch lags behind its creation.
fn few_are_read(lane: &Lane<'_>, volume: &str, attachments: &[String]) -> Result<(), Failed> {
    // Some for each step, more where a proof became too old on a busy machine; a look in each second would be more still.
    const LOOKS: usize = 30;
    let victim = lane.victim()?.name();
    let users = [Identity::OperatorController.user(), Identity::CsiSidecar.user()];
    let records = lane.cluster.testbed.audit().records()?;
    let gets: Vec<_> = records.filter(|record| record.verb == "get" && users.contains(&record.user)).collect();
    let of = |resource: &str, named: &dyn Fn(&str) -> bool| {
        gets.iter().filter(|record| record.resource == resource && named(&record.name)).count()
    };
    for (resource, name) in
        [("nodes", victim), ("leases", victim), ("nodevolumereports", victim), ("persistentvolumes", volume)]
    {
        let count = of(resource, &|read| read == name);
        assert!(count <= LOOKS, "{resource} {name} was read {count} times");
    }
    assert!(of("nodes", &|read| read == victim) > 0, "nothing was read before it was done");
    let pods = format!("{}-", lane.name);
    assert_eq!(of("pods", &|read| read.starts_with(&pods)), 0, "pods are read one by one");
    assert_eq!(of("volumeattachments", &|read| attachments.iter().any(|it| it == read)), 0);
    Ok(())
}

pub async fn attach(lane: &Lane<'_>, volume: &str) -> Result<VolumeAttachment, Failed> {
    attach_with(lane, volume, &PostParams::default()).await
}

async fn attach_with(lane: &Lane<'_>, volume: &str, params: &PostParams) -> Result<VolumeAttachment, Failed> {
    let attachment: VolumeAttachment = serde_json::from_value(json!({
        "metadata": { "name": format!("{}-by-hand", lane.name) },
        "spec": {
            "attacher": lane.array().driver_name(),
            "nodeName": lane.victim()?.name(),
            "source": { "persistentVolumeName": volume },
        },
    }))?;
    Ok(Api::all(lane.client()).create(params, &attachment).await?)
}

/// A pod that stays keeps the node-wide taint away: attachments are removed one by one, and only what is proved.
pub async fn beside_a_pod_that_stays_attachments_go_one_by_one(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "onebyone", LaneOptions::default()).await?;
    let stays = bulkhead_testbed::cluster::Workload { labels: [].into(), ..lane.workload("stays") };
    lane.run(&stays).await?;
    let kept = lane.attachments().await?;
    let set = lane.workload("db");
    lane.run(&set).await?;
    let attachments = lane.attachments().await?;
    lane.victim()?.kill().await;
    lane.moved(&set).await?;
    assert_eq!(lane.attachments().await?, kept, "of the pod that stays");
    assert_eq!(taintings(&lane, names::OUT_OF_SERVICE_TAINT)?, [], "the taint acts on the whole node");
    let deleted = lane.deletions(&attachments)?;
    let (pods, removed): (Vec<_>, Vec<_>) = deleted.iter().partition(|record| record.resource == "pods");
    assert!(pods.iter().all(|record| record.name.starts_with(&set.name)), "{pods:?}");
    assert!(removed.iter().all(|record| !kept.contains(&record.name)), "{removed:?}");
    let body = removed.first().and_then(|record| record.body.as_ref()).ok_or("no attachment was removed")?;
    assert!(body["preconditions"]["uid"].is_string(), "{body}");
    let released = pods.iter().map(|record| record.finished).max();
    assert!(released <= removed.iter().map(|record| record.received).min(), "detached before it was released");
    lane.end().await
}

pub async fn somebody_elses_out_of_service_taint_is_not_touched(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "foreign", LaneOptions::default()).await?;
    let set = lane.workload("db");
    lane.run(&set).await?;
    let taint = json!({ "key": names::OUT_OF_SERVICE_TAINT, "value": "nodeshutdown", "effect": "NoSchedule" });
    let nodes: Api<Node> = Api::all(lane.client());
    let patch: Value = json!({ "spec": { "taints": [taint] } });
    nodes.patch(lane.victim()?.name(), &PatchParams::default(), &Patch::Strategic(patch)).await?;
    lane.victim()?.kill().await;
    lane.moved(&set).await?;
    lane.detached().await?;
    let left = lane.taints().await?.into_iter().find(|taint| taint.key == names::OUT_OF_SERVICE_TAINT);
    assert_eq!(left.and_then(|taint| taint.value).as_deref(), Some("nodeshutdown"));
    assert_eq!(taintings(&lane, names::OUT_OF_SERVICE_TAINT)?, []);
    lane.end().await
}
