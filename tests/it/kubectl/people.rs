//! What people write: pause, resume, hold, unhold, approve.

use bulkhead::api::names::PAUSED_ANNOTATION;
use bulkhead::api::node_fence::{NodeFence, Phase};
use bulkhead::api::resiliency_policy::ResiliencyPolicy;
use bulkhead_testbed::array::{Effect, Fault, Method};
use bulkhead_testbed::cluster::Cluster;
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;

use super::plugin;
use crate::failover::fleet::{Lane, LaneOptions};
use crate::failover::look::phase;

async fn policy(lane: &Lane<'_>, name: &str) -> Result<ResiliencyPolicy, Failed> {
    Ok(Api::<ResiliencyPolicy>::all(lane.client()).get(name).await?)
}

pub async fn a_policy_is_paused_and_goes_on(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "paused", LaneOptions::default()).await?;
    let set = lane.workload("db");
    lane.run(&set).await?;
    let pause = ["pause", "policy", "paused", "--reason", "array-7 is being upgraded"];
    let first = plugin::json(cluster, &pause).await?;
    assert_eq!(first["changed"], true, "{first}");
    let paused = policy(&lane, "paused").await?;
    assert_eq!(paused.annotations().get(PAUSED_ANNOTATION).map(String::as_str), Some("array-7 is being upgraded"));
    let managers: Vec<_> = paused.managed_fields().iter().filter_map(|it| it.manager.clone()).collect();
    assert!(managers.contains(&"kubectl-bulkhead".to_owned()), "{managers:?}");
    assert_eq!(plugin::json(cluster, &pause).await?["changed"], false, "a second time nothing is written");
    let written = |policy: &ResiliencyPolicy| {
        let ours = policy.managed_fields().iter().find(|it| it.manager.as_deref() == Some("kubectl-bulkhead")).cloned();
        ours.and_then(|ours| ours.time)
    };
    assert_eq!(written(&policy(&lane, "paused").await?), written(&paused));
    assert!(plugin::done(cluster, &["resume", "policy", "paused"]).await?.contains("goes on"));
    assert!(!policy(&lane, "paused").await?.annotations().contains_key(PAUSED_ANNOTATION));
    let again = plugin::done(cluster, &["resume", "policy", "paused"]).await?;
    assert!(again.contains("is not paused"), "{again}");
    // Nothing is created in place of what is not there.
    for what in ["policy", "node"] {
        let missing = plugin::run(cluster, &plugin::ADMIN, &["pause", what, "no-such", "--reason", "x"]).await?;
        assert_eq!(missing.code, 2, "{}", missing.out);
        assert!(missing.error.contains("no-such is not there"), "{}", missing.error);
    }
    let victim = lane.victim()?.name().to_owned();
    plugin::done(cluster, &["pause", "node", &victim, "--reason", "somebody is at it"]).await?;
    let explained = plugin::json(cluster, &["explain", "node", &victim]).await?;
    assert_eq!(explained["seen"]["paused"], "somebody is at it", "{explained}");
    plugin::done(cluster, &["resume", "node", &victim]).await?;
    lane.end().await
}

async fn fence(lane: &Lane<'_>) -> Result<NodeFence, Failed> {
    Ok(Api::<NodeFence>::all(lane.client()).get(lane.victim()?.name()).await?)
}

pub async fn an_incident_is_held_and_goes_on(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "held", LaneOptions::default()).await?;
    let set = lane.workload("db");
    lane.run(&set).await?;
    let victim = lane.victim()?.name().to_owned();
    let none = plugin::run(cluster, &plugin::ADMIN, &["hold", "node", &victim, "--reason", "x"]).await?;
    assert!(none.error.contains("has no incident"), "{}", none.error);
    let fault = lane.array().faults().add(Fault::on(Method::ControllerUnpublishVolume, Effect::Hang));
    lane.victim()?.kill().await;
    let planned = lane.fence("planned", |_| true).await?;
    let hold = plugin::json(cluster, &["hold", "node", &victim, "--reason", "we look at array-7"]).await?;
    assert_eq!(hold["changed"], true, "{hold}");
    assert_eq!(fence(&lane).await?.spec.hold.map(|hold| hold.reason).as_deref(), Some("we look at array-7"));
    let text = plugin::done(cluster, &["explain", "node", &victim]).await?;
    assert!(text.contains("Held by a person: we look at array-7"), "{text}");
    // Nobody is there to be asked, and what was read is not what is planned.
    let asked = plugin::run(cluster, &plugin::ADMIN, &["approve", "node", &victim]).await?;
    assert!(asked.error.contains("nobody can be asked"), "{}", asked.error);
    let other = ["approve", "node", victim.as_str(), "--digest", "sha256:00000000", "--yes"];
    let outdated = plugin::run(cluster, &plugin::ADMIN, &other).await?;
    assert!(
        outdated.error.contains("is outdated") && outdated.error.contains(&planned.spec.plan.digest),
        "{}",
        outdated.error
    );
    assert_eq!(fence(&lane).await?.spec.approval, None);
    let digest = planned.spec.plan.digest.as_str();
    let approve = ["approve", "node", victim.as_str(), "--digest", digest, "--reason", "ticket 4711", "--yes"];
    assert_eq!(plugin::json(cluster, &approve).await?["changed"], true);
    let approval = fence(&lane).await?.spec.approval.ok_or("not approved")?;
    assert_eq!((approval.plan_digest.as_str(), approval.reason.as_deref()), (digest, Some("ticket 4711")));
    assert_eq!(plugin::json(cluster, &approve).await?["changed"], false);
    assert!(plugin::done(cluster, &["unhold", "node", &victim]).await?.contains("goes on"));
    assert_eq!(fence(&lane).await?.spec.hold, None);
    assert!(plugin::done(cluster, &["unhold", "node", &victim]).await?.contains("is not held"));
    lane.array().faults().remove(fault);
    lane.moved(&set).await?;
    lane.fence("over", |fence| matches!(phase(fence), Some(Phase::PodsReleased | Phase::Detached))).await?;
    lane.end().await
}
