//! Switches between the candidates of a fixed list: how many writes, in which order, and what is told of them.

use serde_json::json;

use crate::api::shared_volume::{FailoverMode, SharedVolumePhase};

use super::world::World;

fn static_() -> World {
    World::serving(&json!({}))
}

#[test]
fn from_nothing_to_ready() {
    let mut world = World::of(&json!({}));
    world.converge();
    assert_eq!(world.phase(), SharedVolumePhase::Ready);
    assert_eq!(world.condition("Ready"), Some(("True".into(), "Serving".into())));
    let ready = world.status().conditions[0].clone();
    assert_eq!((ready.type_.as_str(), ready.message.as_str()), ("Ready", "a (10.0.0.1:20490) answers"));
    assert_eq!(world.leads_to(), ["10.0.0.1"]);
    assert_eq!(world.status().mount_endpoint, Some(format!("{}:2049", world.ip())));
    assert_eq!(world.reason("Published"), "NoTarget");
    assert_eq!((world.status().failovers, world.status().last_failover), (None, None));
    assert_eq!(world.notes, ["ServiceCreated"]);
}

#[test]
fn at_rest_nothing_is_written_not_even_by_another_process() {
    let mut world = static_();
    world.converge();
    world.restart();
    world.converge();
    assert_eq!(world.writes, [""; 0]);
}

/// The order of the list decides at the beginning, not who answers first.
#[test]
fn the_preferred_one_gets_its_time_to_answer() {
    let mut world = World::of(&json!({}));
    world.dies("10.0.0.1");
    world.settle();
    assert!(world.leads_to().is_empty());
    world.probe();
    world.settle();
    assert_eq!(world.leads_to(), ["10.0.0.2"]);
    world.lives("10.0.0.1");
    world.converge();
    assert_eq!(world.leads_to(), ["10.0.0.2"], "it stays");
}

#[test]
fn a_person_switches_in_one_write() {
    let mut world = static_();
    world.spec().failover.active_candidate = Some("b".into());
    world.settle();
    world.probe();
    world.settle();
    assert_eq!(world.writes.iter().filter(|write| **write == "slice").count(), 1, "{:?}", world.writes);
    assert_eq!(world.leads_to(), ["10.0.0.2"]);
    let last = world.status().last_failover.unwrap();
    assert_eq!(
        (last.from.as_deref(), last.to.as_deref(), last.reason.as_str()),
        (Some("a"), Some("b"), "UserRequested")
    );
    assert!(last.switched_at.is_some() && last.serving_at >= last.switched_at);
    assert_eq!(world.status().failovers, Some(1));
    assert!(world.notes.contains(&"FailoverCompleted"), "{:?}", world.notes);
}

/// Automatic: a wish waits until it can be granted. Manual: the old one is withdrawn after a moment, and comes back for nobody.
#[test]
fn a_switch_to_one_that_does_not_answer() {
    for (mode, left) in [(FailoverMode::Automatic, vec!["10.0.0.1"]), (FailoverMode::Manual, vec![])] {
        let mut world = static_();
        world.dies("10.0.0.2");
        world.spec().failover.active_candidate = Some("b".into());
        world.spec().failover.mode = mode;
        world.settle();
        assert_eq!(world.leads_to(), ["10.0.0.1"], "{mode:?}");
        world.wait(0.2);
        world.settle();
        world.fails();
        world.settle();
        assert_eq!(world.leads_to(), left, "{mode:?}");
        world.lives("10.0.0.2");
        world.converge();
        assert_eq!(world.leads_to(), ["10.0.0.2"], "{mode:?}");
        assert_eq!(world.status().last_failover.unwrap().reason, "UserRequested");
    }
}

#[test]
fn one_that_does_not_answer_is_withdrawn_and_another_takes_over() {
    let mut world = static_();
    world.dies("10.0.0.1");
    world.probe();
    world.settle();
    assert_eq!(world.leads_to(), ["10.0.0.1"], "one failure is none");
    world.fails();
    world.settle();
    assert_eq!(world.leads_to(), ["10.0.0.2"]);
    let last = world.status().last_failover.unwrap();
    assert_eq!((last.reason.as_str(), world.status().failovers), ("ProbeFailed", Some(1)));
}

#[test]
fn with_nobody_else_it_is_withdrawn_or_kept() {
    for (policy, left, phase) in [
        ("Withdraw", vec![], SharedVolumePhase::FailingOver),
        ("Keep", vec!["10.0.0.1"], SharedVolumePhase::FailingOver),
    ] {
        let mut world = World::serving(&json!({ "spec": { "failover": { "onBackendLost": policy } } }));
        world.dies("10.0.0.1");
        world.dies("10.0.0.2");
        world.converge();
        assert_eq!(
            (world.leads_to(), world.phase()),
            (left.iter().map(|it| (*it).to_owned()).collect(), phase),
            "{policy}"
        );
        assert_eq!(world.reason("BackendAvailable"), "NoCandidateServes");
        assert_eq!(world.condition("Ready").unwrap().0, "False");
        let writes = world.writes.len();
        world.converge();
        world.restart();
        world.converge();
        assert_eq!(world.writes.len(), writes, "{policy}: {:?}", world.writes);
        world.lives("10.0.0.1");
        world.converge();
        assert_eq!((world.leads_to(), world.phase()), (vec!["10.0.0.1".to_owned()], SharedVolumePhase::Ready));
        assert_eq!(world.status().failovers.unwrap_or_default(), 0, "the same one is no switch");
    }
}

/// Two that come and go do not take turns.
#[test]
fn the_hold_down_keeps_it_where_it_is() {
    let mut world = World::serving(&json!({ "spec": { "failover": { "holdDown": "1m" } } }));
    world.dies("10.0.0.1");
    world.fails();
    world.settle();
    world.probe();
    world.settle();
    assert_eq!(world.leads_to(), ["10.0.0.2"]);
    world.lives("10.0.0.1");
    world.dies("10.0.0.2");
    world.fails();
    world.settle();
    world.probe();
    world.settle();
    assert!(world.leads_to().is_empty(), "a waits");
    assert_eq!(world.phase(), SharedVolumePhase::Degraded);
    // Another process knows it too.
    world.restart();
    world.settle();
    world.probe();
    world.settle();
    assert!(world.leads_to().is_empty());
    world.lives("10.0.0.2");
    world.probe();
    world.settle();
    assert_eq!((world.leads_to(), world.status().failovers), (vec!["10.0.0.2".to_owned()], Some(1)));
    world.dies("10.0.0.2");
    world.fails();
    world.wait(61.0);
    world.converge();
    assert_eq!((world.leads_to(), world.status().failovers), (vec!["10.0.0.1".to_owned()], Some(2)));
}

/// One that was lost comes back like any other: the field was not edited.
#[test]
fn the_wanted_candidate_comes_back_after_the_hold_down() {
    let mut world = World::serving(&json!({ "spec": { "failover": { "activeCandidate": "a", "holdDown": "30s" } } }));
    world.dies("10.0.0.1");
    world.fails();
    world.settle();
    world.probe();
    world.settle();
    assert_eq!(world.leads_to(), ["10.0.0.2"]);
    world.lives("10.0.0.1");
    world.probe();
    world.settle();
    assert_eq!((world.leads_to(), world.phase()), (vec!["10.0.0.2".to_owned()], SharedVolumePhase::Degraded));
    world.wait(31.0);
    world.settle();
    assert_eq!(world.leads_to(), ["10.0.0.1"]);
}

#[test]
fn a_fenced_node_is_left_at_once_whatever_the_policy() {
    for policy in ["Withdraw", "Keep"] {
        let mut world =
            World::serving(&json!({ "spec": { "failover": { "onBackendLost": policy, "holdDown": "1h" } } }));
        world.fence("node-a");
        world.settle();
        assert!(world.leads_to().is_empty(), "{policy}");
        world.probe();
        world.settle();
        assert_eq!(world.leads_to(), ["10.0.0.2"], "{policy}");
        assert_eq!(world.status().last_failover.unwrap().reason, "NodeFenced");
        world.fence("node-b");
        world.settle();
        assert!(world.leads_to().is_empty(), "{policy}");
        assert_eq!(world.reason("BackendAvailable"), "NodeFenced");
        world.fenced.clear();
        world.converge();
        assert_eq!(world.leads_to().len(), 1, "{policy}");
    }
}

/// Until the node is proved to be cut off the server there may still write: another one would be the second writer.
#[test]
fn nobody_takes_over_before_the_node_that_was_left_is_proved_to_be_cut_off() {
    let mut world = static_();
    world.fence("node-a");
    world.unproved.insert("node-a".into());
    world.settle();
    world.probe();
    world.settle();
    assert!(world.leads_to().is_empty());
    assert_eq!(world.reason("BackendAvailable"), "NodeFenced");
    // Nor does a person.
    world.spec().failover.active_candidate = Some("b".into());
    world.settle();
    assert!(world.leads_to().is_empty());
    world.unproved.clear();
    world.converge();
    assert_eq!(world.leads_to(), ["10.0.0.2"]);
    assert_eq!(world.status().last_failover.unwrap().reason, "NodeFenced");
}

/// Suspended too.
#[test]
fn a_fenced_node_is_left_also_when_it_is_suspended() {
    let mut world = static_();
    world.spec().mode = crate::api::shared_volume::SharedVolumeMode::Suspended;
    world.fence("node-a");
    world.pass(1);
    assert!(world.leads_to().is_empty());
}

/// Whatever else is wrong.
#[test]
fn a_fenced_node_is_left_also_when_the_claim_is_gone_or_the_object_goes() {
    for deleted in [true, false] {
        let mut world = static_();
        if deleted {
            world.deleted();
        } else {
            world.claim = None;
        }
        world.fence("node-a");
        world.pass(1);
        assert!(world.leads_to().is_empty(), "{deleted}");
    }
}

#[test]
fn two_families_never_lead_to_two_servers() {
    let mut world = World::of(&json!({ "spec": { "service": { "ipFamilies": ["IPv4", "IPv6"] } } }));
    let spec = world.spec();
    let candidates = &mut spec.backend.static_.as_mut().unwrap().candidates;
    candidates[0].addresses.push("fd00::1".parse().unwrap());
    candidates[1].addresses.push("fd00::2".parse().unwrap());
    world.converge();
    assert_eq!(world.leads_to(), ["10.0.0.1", "fd00::1"]);
    assert_eq!(world.status().mount_endpoints.len(), 2);
    assert!(world.status().mount_endpoints[1].starts_with("[fd00:96::"), "{:?}", world.status());
    world.spec().failover.active_candidate = Some("b".into());
    world.writes.clear();
    world.converge();
    assert_eq!(world.leads_to(), ["10.0.0.2", "fd00::2"]);
    assert_eq!(world.writes.iter().filter(|write| **write == "slice").count(), 3);
    assert_eq!(world.status().failovers, Some(1));
}

#[test]
fn a_slice_that_somebody_changed_or_deleted_is_repaired() {
    let mut world = World::serving(&json!({ "spec": { "failover": { "activeCandidate": "b" } } }));
    assert_eq!(world.leads_to(), ["10.0.0.2"]);
    world.slices.get_mut("media-ipv4").unwrap().endpoints[0].addresses[0] = "10.9.9.9".into();
    world.settle();
    assert_eq!((world.leads_to(), world.writes.len()), (vec!["10.0.0.2".to_owned()], 1));
    world.slices.clear();
    world.settle();
    assert_eq!((world.leads_to(), world.writes.len()), (vec!["10.0.0.2".to_owned()], 2));
}

#[test]
fn without_a_probe_it_is_ready_at_once() {
    let mut world = World::of(&json!({ "spec": { "probe": { "type": "None" } } }));
    world.settle();
    assert_eq!((world.leads_to(), world.reason("Serving")), (vec!["10.0.0.1".to_owned()], "NotProbed".into()));
    assert_eq!(world.phase(), SharedVolumePhase::Ready);
}

#[test]
fn suspended_nothing_is_touched() {
    let mut world = static_();
    world.spec().mode = crate::api::shared_volume::SharedVolumeMode::Suspended;
    world.settle();
    assert_eq!((world.writes.clone(), world.phase()), (vec!["status"], SharedVolumePhase::Suspended));
    world.dies("10.0.0.1");
    world.slices.clear();
    world.converge();
    assert_eq!(world.writes, ["status"]);
    assert_eq!(world.condition("Ready"), Some(("True".into(), "Suspended".into())));
    assert!(world.decide().probes.is_empty());
}
