//! The metrics of all controllers together.

use std::time::Duration;

use chrono::DateTime;

use super::resiliency_policy::decide::Seen;
use super::resiliency_policy::evidence::Silence;
use super::resiliency_policy::heartbeat::Heartbeat;
use super::{
    mountpoint_s3_pod_attachment, node_fence, resiliency_policy, shared_volume, shared_volume_provider, testing,
    volume_health,
};
use crate::api::conditions::{self, State};
use crate::api::fencing::PolicyMode;
use crate::api::node_fence::{AWAITING_STORAGE, Channel, MACHINE_MAY_RUN, NodeFence, NodeFenceStatus, Phase, Timeline};
use crate::api::shared_volume::{LastFailover, SharedVolumeStatus};
use crate::api::time;
use crate::api::volume_health::VolumeHealth;
use crate::runtime::telemetry::{EventResult, InformerLabel, Outcome, QueueLabel, Telemetry};

fn tainted() -> NodeFenceStatus {
    let at = |seconds| DateTime::from_timestamp(seconds, 0);
    let timeline = Timeline { decided_at: at(100), tainted_at: at(101), ..Timeline::default() };
    NodeFenceStatus { timeline: Some(timeline), ..NodeFenceStatus::default() }
}

fn unhealthy() -> VolumeHealth {
    let taint = serde_json::json!({
        "key": "example.com/of-a-person", "value": "true", "source": "Manual", "reason": "ManualTaint",
        "timeAdded": "2026-11-21T02:14:31Z",
    });
    let status = serde_json::json!({ "phase": "Healthy", "taints": [taint] });
    let status = serde_json::from_value(status).unwrap();
    VolumeHealth { status: Some(status), ..VolumeHealth::default() }
}

/// A failover that was noticed at 100 s and switched at 101 s.
fn failed_over(serving: Option<i64>) -> SharedVolumeStatus {
    let at = |seconds| DateTime::from_timestamp(seconds, 0);
    let failover = LastFailover {
        from: Some("a".to_owned()),
        to: Some("b".to_owned()),
        reason: "NodeFenced".to_owned(),
        detected_at: at(100).unwrap(),
        switched_at: at(101),
        serving_at: serving.and_then(at),
    };
    SharedVolumeStatus { last_failover: Some(failover), ..SharedVolumeStatus::default() }
}

#[test]
fn each_part_of_a_failover_is_observed_once() {
    let telemetry = Telemetry::new();
    let metrics = shared_volume::metrics::Metrics::register(&telemetry);
    let (switched, serving) = (failed_over(None), failed_over(Some(120)));
    metrics.recorded(None, &switched);
    metrics.recorded(Some(&switched), &serving);
    metrics.recorded(Some(&serving), &serving);
    let text = telemetry.encode().unwrap();
    for line in [
        "bulkhead_shared_volume_failovers_total{reason=\"NodeFenced\"} 1",
        "bulkhead_shared_volume_failover_seconds_sum{phase=\"Switch\"} 1.0",
        "bulkhead_shared_volume_failover_seconds_count{phase=\"Switch\"} 1",
        "bulkhead_shared_volume_failover_seconds_sum{phase=\"Serving\"} 20.0",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn keys_of_people_have_no_series_of_their_own() {
    let telemetry = Telemetry::new();
    let metrics = volume_health::metrics::Metrics::register(&telemetry);
    metrics.look(&[std::sync::Arc::new(unhealthy())], 0.0, false);
    let text = telemetry.encode().unwrap();
    let series = "bulkhead_volume_taints{key=\"Custom\",effect=\"NoEffect\",source=\"Manual\"} 1";
    assert!(text.contains(series), "{text}");
    assert!(text.contains("bulkhead_volumes{phase=\"Healthy\"} 1"), "{text}");
    metrics.look(&[], 0.0, false);
    assert!(!telemetry.encode().unwrap().contains(series));
}

/// Names are an interface: dashboards and alerts rest on them.
#[test]
fn the_list_of_metrics_is_as_recorded() {
    let telemetry = Telemetry::new();
    let (informer, queue) = (InformerLabel { informer: "i" }, QueueLabel { queue: "q" });
    let runtime = &telemetry.runtime;
    // A family without a member is not in the text.
    let _ = runtime.informer_objects.get_or_create(&informer);
    let _ = runtime.informer_relists.get_or_create(&informer);
    let _ = runtime.informer_idle.get_or_create(&informer);
    let _ = runtime.informer_undecodable.get_or_create(&informer);
    let _ = runtime.informer_errors.get_or_create(&informer);
    let _ = runtime.queue_depth.get_or_create(&queue);
    let _ = runtime.queue_running.get_or_create(&queue);
    runtime.reconciled("q", Outcome::Ok, Duration::ZERO);
    runtime.event(EventResult::Published);
    node_fence::metrics::Metrics::register(&telemetry).reached(None, &tainted());
    let passes = resiliency_policy::metrics::Metrics::register(&telemetry);
    passes.pass(&resiliency_policy::decide::Decision::default(), &[]);
    passes.ready(&[]);
    passes.planned(&declared(Channel::Kubelet, "NodeUnreachable"), &silent());
    let volumes = volume_health::metrics::Metrics::register(&telemetry);
    volumes.wrote(volume_health::metrics::Written::Record);
    volumes.look(&[std::sync::Arc::new(unhealthy())], 0.0, false);
    let mounts = mountpoint_s3_pod_attachment::metrics::Metrics::register(&telemetry);
    mounts.wrote(mountpoint_s3_pod_attachment::metrics::Written::Create);
    mounts.look(&[], &[]);
    let addresses = shared_volume::metrics::Metrics::register(&telemetry);
    addresses.wrote(shared_volume::metrics::Written::Record);
    addresses.probed(shared_volume::metrics::ProbeResult::Answered, Duration::ZERO);
    addresses.published(&Ok(()));
    addresses.recorded(None, &failed_over(Some(120)));
    addresses.look(&[]);
    shared_volume_provider::metrics::Metrics::register(&telemetry).polled("", None);
    crate::storageos::metrics::Metrics::register(&telemetry).helped("list_namespaces", "", 0.0);
    let text = telemetry.encode().unwrap();
    let mut lines: Vec<_> =
        text.lines().filter(|line| line.starts_with("# HELP") || line.starts_with("# TYPE")).collect();
    lines.sort_unstable();
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn a_policy_that_could_not_fence_is_counted_by_its_reason() {
    let telemetry = Telemetry::new();
    let metrics = resiliency_policy::metrics::Metrics::register(&telemetry);
    let mut policy = testing::policy("db", &serde_json::json!({}));
    let conditions = &mut policy.status.get_or_insert_default().conditions;
    conditions::set(conditions, "FenceReady", State::False, "FencerMissing", "", 1, testing::at(0));
    metrics.ready(&[std::sync::Arc::new(policy.clone())]);
    let series = |reason, count| format!("bulkhead_policies_not_ready{{reason=\"{reason}\"}} {count}\n");
    let text = telemetry.encode().unwrap();
    assert!(text.contains(&series("FencerMissing", 1)) && text.contains(&series("PodsUnmovable", 0)), "{text}");
    metrics.ready(&[]);
    assert!(telemetry.encode().unwrap().contains(&series("FencerMissing", 0)));
    let (mut observes, mut deleted) = (policy.clone(), policy);
    observes.spec.mode = PolicyMode::DryRun;
    deleted.metadata.deletion_timestamp = Some(time::to_k8s(testing::at(0)));
    metrics.ready(&[std::sync::Arc::new(observes), std::sync::Arc::new(deleted)]);
    let text = telemetry.encode().unwrap();
    assert!(text.contains(&series("FencerMissing", 0)), "nobody relies on these: {text}");
}

#[test]
fn a_machine_that_may_run_is_counted_in_whichever_phase() {
    let telemetry = Telemetry::new();
    let metrics = resiliency_policy::metrics::Metrics::register(&telemetry);
    let node_clean = |phase, reason| {
        let mut fence = declared(Channel::Kubelet, "NodeUnreachable");
        let status = fence.status.get_or_insert_default();
        status.phase = Some(phase);
        conditions::set(&mut status.conditions, "NodeClean", State::Unknown, reason, "", 1, testing::at(0));
        std::sync::Arc::new(fence)
    };
    let fences = [
        node_clean(Phase::Detached, MACHINE_MAY_RUN),
        node_clean(Phase::Cleaning, MACHINE_MAY_RUN),
        node_clean(Phase::Cleaning, "AgentMissing"),
    ];
    metrics.pass(&resiliency_policy::decide::Decision::default(), &fences);
    assert!(telemetry.encode().unwrap().contains("bulkhead_machines_shut_out 2\n"));
}

#[test]
fn a_node_that_awaits_its_storage_is_counted_in_whichever_phase() {
    let telemetry = Telemetry::new();
    let metrics = resiliency_policy::metrics::Metrics::register(&telemetry);
    let waits = |phase, reason| {
        let mut fence = declared(Channel::Storage, "Disconnected");
        let status = fence.status.get_or_insert_default();
        status.phase = Some(phase);
        conditions::set(&mut status.conditions, "Ready", State::False, reason, "", 1, testing::at(0));
        std::sync::Arc::new(fence)
    };
    let fences = [
        waits(Phase::Detached, AWAITING_STORAGE),
        waits(Phase::Cleaning, AWAITING_STORAGE),
        waits(Phase::Detached, "AwaitingNode"),
    ];
    metrics.pass(&resiliency_policy::decide::Decision::default(), &fences);
    assert!(telemetry.encode().unwrap().contains("bulkhead_nodes_awaiting_storage 2\n"));
}

/// A plan of node n0, of its first episode.
fn declared(channel: Channel, reason: &str) -> NodeFence {
    let at = "2026-11-21T02:14:31Z";
    let evidence = serde_json::json!([{ "channel": channel, "state": "Failed", "since": at, "reason": reason }]);
    let spec = serde_json::json!({
        "episode": 1, "node": { "uid": "uid-n0" }, "policies": [],
        "plan": { "decidedAt": at, "digest": "sha256:00000000", "evidence": evidence },
    });
    NodeFence::new("n0", serde_json::from_value(spec).unwrap())
}

/// A cluster whose node n0 was not heard of for a while: its agent for 5 s, its kubelet for 62.
fn silent() -> Seen {
    let heartbeat = Heartbeat { silent_for: Some(Duration::from_secs(5)), ..Heartbeat::default() };
    let silence =
        Silence { still_for: Some(Duration::from_secs(62)), has_moved: true, heartbeat, ..Silence::default() };
    Seen { nodes: vec![(std::sync::Arc::new(testing::node("n0")), silence)], ..Seen::default() }
}

#[test]
fn a_detection_is_timed_from_the_last_sign_of_life_once_per_episode() {
    let telemetry = Telemetry::new();
    let metrics = resiliency_policy::metrics::Metrics::register(&telemetry);
    let mut seen = silent();
    let unreachable = declared(Channel::Kubelet, "NodeUnreachable");
    metrics.planned(&unreachable, &seen);
    metrics.planned(&declared(Channel::Agent, "HeartbeatLost"), &seen);
    metrics.planned(&declared(Channel::Taint, "NodeTainted"), &seen);
    // The plan of the same episode has grown.
    seen.fences.push(std::sync::Arc::new(unreachable.clone()));
    metrics.planned(&unreachable, &seen);
    let text = telemetry.encode().unwrap();
    for line in [
        "bulkhead_detection_seconds_sum{channel=\"Kubelet\"} 62.0",
        "bulkhead_detection_seconds_count{channel=\"Kubelet\"} 1",
        "bulkhead_detection_seconds_sum{channel=\"Agent\"} 5.0",
        "bulkhead_detection_seconds_count{channel=\"Agent\"} 1",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn a_recovery_of_hours_is_told_from_one_of_minutes() {
    let telemetry = Telemetry::new();
    let mut status = tainted();
    let timeline = status.timeline.get_or_insert_default();
    timeline.recovered_at = DateTime::from_timestamp(100 + 6 * 3600, 0);
    node_fence::metrics::Metrics::register(&telemetry).reached(None, &status);
    let text = telemetry.encode().unwrap();
    let buckets = text.lines().filter_map(|line| line.strip_prefix("bulkhead_incident_step_seconds_bucket{le=\""));
    let of_step = buckets.filter(|line| line.contains("step=\"Recovered\"") && line.ends_with(" 1"));
    let bounds: Vec<f64> = of_step.filter_map(|line| line.split('"').next()?.parse().ok()).collect();
    assert!(bounds.iter().any(|bound| bound.is_finite()), "only in +Inf: {bounds:?}\n{text}");
    assert!(bounds.iter().all(|bound| *bound > 6.0 * 3600.0), "{bounds:?}");
}

#[test]
fn a_step_is_observed_once_per_episode() {
    let telemetry = Telemetry::new();
    let metrics = node_fence::metrics::Metrics::register(&telemetry);
    let status = tainted();
    metrics.reached(None, &status);
    metrics.reached(Some(&status), &status);
    let text = telemetry.encode().unwrap();
    assert!(text.contains("bulkhead_incident_step_seconds_count{step=\"Tainted\"} 1"), "{text}");
}

#[test]
fn a_taint_is_timed_when_it_goes_once_per_episode() {
    let telemetry = Telemetry::new();
    let metrics = node_fence::metrics::Metrics::register(&telemetry);
    let (status, mut over) = (tainted(), tainted());
    over.timeline.get_or_insert_default().recovered_at = DateTime::from_timestamp(161, 0);
    metrics.reached(None, &status);
    assert!(telemetry.encode().unwrap().contains("bulkhead_taint_seconds_count 0"), "it is there yet");
    metrics.reached(Some(&status), &over);
    metrics.reached(Some(&over), &over);
    let text = telemetry.encode().unwrap();
    assert!(text.contains("bulkhead_taint_seconds_sum 60.0"), "{text}");
    assert!(text.contains("bulkhead_taint_seconds_count 1"), "{text}");
}
