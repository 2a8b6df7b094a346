//! `explain`: why, and why not, in words.

use bulkhead::api::node_fence::Phase;
use bulkhead_testbed::array::{Effect, Fault, Method};
use bulkhead_testbed::cluster::{Cluster, Workload};
use libtest_mimic::Failed;
use serde_json::json;

use super::plugin;
use crate::failover::fleet::{Lane, LaneOptions};
use crate::failover::look::phase;

pub async fn a_node_is_explained_before_during_and_after(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "explained", LaneOptions::default()).await?;
    let set = lane.workload("db");
    lane.run(&set).await?;
    let victim = lane.victim()?.name().to_owned();
    let explain = ["explain", "node", victim.as_str()];
    let well = plugin::json(cluster, &explain).await?;
    assert_eq!(well["suspected"], false, "{well}");
    assert_eq!(well["pods"][0]["selectedBy"], json!(["explained"]), "{well}");
    assert!(well["verdict"].as_str().is_some_and(|it| it.contains("is well")), "{well}");
    let text = plugin::done(cluster, &explain).await?;
    assert!(text.contains("channel Kubelet: Ready=True") && text.contains("NodeFailure: its node failed"), "{text}");
    // An array that says yes and does nothing: the incident waits for a proof, and says for which.
    let fault = lane.array().faults().add(Fault::on(Method::ControllerUnpublishVolume, Effect::DoNothing));
    lane.victim()?.kill().await;
    lane.fence("held", |fence| {
        fence
            .status
            .iter()
            .flat_map(|status| &status.volumes)
            .any(|row| row.reason.as_deref() == Some("StillPublished"))
    })
    .await?;
    let held = plugin::json(cluster, &explain).await?;
    assert!(held["verdict"].as_str().is_some_and(|it| it.contains("open incident")), "{held}");
    assert_eq!(held["incident"]["open"], true);
    let volume = &held["incident"]["volumes"][0];
    assert!(volume["means"].as_str().is_some_and(|it| it.contains("StillPublished")), "{held}");
    assert_eq!(volume["committed"], true, "{held}");
    let text = plugin::done(cluster, &explain).await?;
    assert!(text.contains("It waits for:") && text.contains("What to do:"), "{text}");
    lane.array().faults().remove(fault);
    lane.moved(&set).await?;
    lane.fence("over", |fence| matches!(phase(fence), Some(Phase::PodsReleased | Phase::Detached))).await?;
    let over = plugin::json(cluster, &explain).await?;
    assert_eq!(over["incident"]["pods"][0]["state"], "Released", "{over}");
    let pod = plugin::json(cluster, &["explain", "pod", &format!("{}-0", set.name)]).await?;
    assert_eq!(pod["lastIncident"]["node"], json!(victim), "{pod}");
    assert_eq!(pod["lastIncident"]["samePod"], false, "the replacement is another pod: {pod}");
    assert_ne!(pod["node"], json!(victim));
    lane.end().await
}

pub async fn a_pod_is_explained_with_its_policies_and_volumes(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "podwise", LaneOptions::default()).await?;
    let set = lane.workload("db");
    lane.run(&set).await?;
    let bare = Workload { labels: [].into(), ..lane.workload("alone") };
    lane.run(&bare).await?;
    let pod = plugin::json(cluster, &["explain", "pod", &format!("{}-0", set.name), "-n", "default"]).await?;
    assert!(pod["verdict"].as_str().is_some_and(|it| it.contains("would be released")), "{pod}");
    let selects: Vec<_> =
        pod["policies"].as_array().ok_or("no policies")?.iter().filter(|it| it["selects"] == true).collect();
    assert_eq!(selects.len(), 1, "{pod}");
    assert_eq!(selects[0]["name"], "podwise");
    let volume = &pod["volumes"][0];
    assert_eq!(volume["name"], json!(set.volume_name(0, 0)));
    assert_eq!((&volume["minimumProof"], &volume["bestProof"]), (&json!("Verified"), &json!("Verified")), "{pod}");
    let alone = plugin::json(cluster, &["explain", "pod", &format!("{}-0", bare.name)]).await?;
    assert!(alone["verdict"].as_str().is_some_and(|it| it.contains("would stay")), "{alone}");
    let ours = alone["policies"].as_array().ok_or("no policies")?.iter().find(|it| it["name"] == "podwise");
    assert_eq!(ours.ok_or("the policy is not listed")?["mismatches"][0], "podSelector does not match the pod's labels");
    let missing = plugin::run(cluster, &plugin::ADMIN, &["explain", "pod", "no-such-pod"]).await?;
    assert!(missing.error.contains("default/no-such-pod is not there"), "{}", missing.error);
    lane.end().await
}
