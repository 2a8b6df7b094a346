//! A node that is cut off while its storage is up stops its own writer, before the controller has it cut off.
#![allow(clippy::indexing_slicing, reason = "of a JSON value, which is null where it is missing")]

use std::collections::BTreeMap;

use bulkhead::api::conditions;
use bulkhead::api::node_volume_report::NodeVolumeReport;
use bulkhead::api::resiliency_policy::{ResiliencyPolicy, ResiliencyPolicySpec};
use bulkhead_testbed::array::{Effect, Fault as ArrayFault, Method};
use bulkhead_testbed::cluster::real::{RealCluster, RealWorkload, last_written, records_found};
use bulkhead_testbed::real_nodes::Fault;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

use super::Outcome;
use super::bed::{SOON, WITHOUT_BRAKES};
use super::story::{Story, of_now, one};
use super::table::BY_AGENT;

const LABEL: &str = "fences-itself";
const FILE: &str = "/var/lib/kubelet/plugins/bulkhead-node-agent/self-fencing.json";

/// The fence is held up, so that only the node itself can end its writer.
pub async fn ends_before_the_fence(cluster: &RealCluster) -> Outcome {
    let labels = BTreeMap::from([(LABEL.to_owned(), "true".to_owned())]);
    let limits: Value = serde_json::from_str(WITHOUT_BRAKES)?;
    let policy: ResiliencyPolicySpec = serde_json::from_value(json!({
        "mode": "Enforce",
        "selector": {"podSelector": {"matchLabels": labels}},
        "selfFencing": {"mode": "Enabled", "after": "5s"},
        "limits": limits,
    }))?;
    let policies: Api<ResiliencyPolicy> = Api::all(cluster.client.clone());
    policies.create(&PostParams::default(), &ResiliencyPolicy::new(LABEL, policy)).await?;
    let mut story = Story::prepare(cluster, RealWorkload { labels, ..RealWorkload::new(LABEL) }).await?;
    known(&story).await?;
    let before = cluster.array.calls().count(Method::ControllerUnpublishVolume);
    let held = cluster.array.faults().add(ArrayFault::on(Method::ControllerUnpublishVolume, Effect::Hang));
    story.fail(&[Fault::CutControl]).await?;
    story.ledger().wait_for_write(&story.volume, &story.old.node, story.began, SOON).await?;
    cluster
        .wait("the node stops its own pod", SOON, async || {
            let processes = processes(&story).await.unwrap_or_else(|error| format!("{error:?}"));
            Ok(if processes.is_empty() { Ok(()) } else { Err(processes) })
        })
        .await?;
    // The kubelet removes it when it has started the container anew a few times.
    let safe = last_written(&cluster.log(&story.workload, &story.old)?);
    story.fence("opened", of_now).await?;
    let stopped = story.ledger().now();
    // The kubelet starts it anew again and again, and nothing of that reaches the volume.
    cluster
        .wait("the fence waits for the array", SOON, async || {
            let asked = cluster.array.calls().count(Method::ControllerUnpublishVolume);
            Ok(if asked > before { Ok(()) } else { Err("it does not ask".to_owned()) })
        })
        .await?;
    // Longer than the kubelet's first pauses between two starts.
    tokio::time::sleep(std::time::Duration::from_secs(10)).await;
    assert_eq!(story.ledger().writes(&story.volume, &story.old.node, stopped), 0, "it went on writing");
    cluster.array.faults().remove(held);
    let new = one(cluster.running(&story.workload, std::slice::from_ref(&story.old), SOON).await?)?;
    assert_ne!(new.node, story.old.node);
    story.ledger().wait_for_write(&story.volume, &new.node, stopped, SOON).await?;
    let found = cluster.wait("the new pod says what it found", SOON, async || {
        let log = cluster.log(&story.workload, &new)?;
        Ok(records_found(&log).ok_or(log))
    });
    let found = Some(found.await?);
    assert!(safe.is_some() && found >= safe, "safe: {safe:?}, found: {found:?}");
    assert_eq!(
        story.ledger().refused_writes(&story.volume, &story.old.node, story.began),
        0,
        "no writer was left to be refused"
    );
    story.node.heal_all().await?;
    let reports = Api::<NodeVolumeReport>::all(cluster.client.clone());
    cluster
        .wait("it tells what it did", SOON, async || {
            let status = reports.get(&story.old.node).await?.status.unwrap_or_default();
            let told = conditions::find(&status.conditions, "SelfFenced").cloned();
            let of_it = |message: &str| message.contains(&story.old.name);
            Ok(if told.as_ref().is_some_and(|told| of_it(&told.message)) { Ok(()) } else { Err(format!("{told:?}")) })
        })
        .await?;
    story.becomes_whole(BY_AGENT).await?;
    policies.delete(LABEL, &DeleteParams::default()).await?;
    Ok(())
}

/// Waits until the agent of the node knows whom to stop, and by whose silence.
async fn known(story: &Story<'_>) -> Outcome {
    story
        .cluster
        .wait("the agent knows", SOON, async || {
            let output = story.node.exec(&["cat", FILE]).await.map(|output| output.stdout).unwrap_or_default();
            let record = serde_json::from_slice::<Value>(&output).map(|mut it| it["record"].take()).unwrap_or_default();
            let is_known =
                record["protected"].as_array().is_some_and(|pods| pods.iter().any(|pod| pod["uid"] == *story.old.uid));
            let neighbours = record["neighbours"].as_u64().unwrap_or_default();
            Ok(if is_known && neighbours >= 2 { Ok(()) } else { Err(record.to_string()) })
        })
        .await?;
    Ok(())
}

/// Processes of the pod's containers.
async fn processes(story: &Story<'_>) -> Result<String, libtest_mimic::Failed> {
    let look = format!("grep -l 'pods/{}/' /proc/[0-9]*/mountinfo 2>/dev/null; true", story.old.uid);
    let output = story.node.exec(&["sh", "-c", &look]).await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let writers = text.lines().filter_map(|line| line.split('/').nth(2));
    let mut found = Vec::new();
    for pid in writers {
        let root = format!("tr '\\0' ' ' < /proc/{pid}/cmdline");
        let line = story.node.exec(&["sh", "-c", &root]).await?;
        let line = String::from_utf8_lossy(&line.stdout).into_owned();
        found.extend(line.contains("testbed-writer").then_some(line));
    }
    Ok(found.join("\n"))
}
