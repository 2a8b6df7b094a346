//! What counts as proof, what does not, and what is asked anew.

use std::sync::Arc;

use serde_json::json;

use crate::api::fence_request::FenceOutcome;
use crate::api::fencing::{FenceMethodType, Proof};
use crate::api::node_fence::{PodStatusState, VolumeStatusState};
use crate::api::slim::VolumeAttachment;
use crate::controllers::testing::*;

use super::world::{Fencer, World};

const ACKNOWLEDGED: &str = r#"{ "fencing": { "minimumProof": "Acknowledged" } }"#;

fn acknowledged() -> serde_json::Value {
    serde_json::from_str(ACKNOWLEDGED).unwrap()
}

#[test]
fn without_enough_proof_nothing_is_deleted_and_the_reason_is_told() {
    let cases = [
        ("OK but no read-back", Fencer::Proves(Proof::Acknowledged), "ProofTooWeak"),
        ("the driver does not know the volume", Fencer::Fails("NotFound"), "ProofTooWeak"),
        ("the call timed out", Fencer::Fails("DeadlineExceeded"), "FenceTimeout"),
        ("the driver cannot", Fencer::Refuses("Unimplemented"), "Unimplemented"),
        ("the node is still published", Fencer::Fails("StillPublished"), "ProofTooWeak"),
        ("the sidecar hangs", Fencer::Hangs, "Fencing"),
        ("the sidecar is silent", Fencer::Silent, "Fencing"),
    ];
    for (name, fencer, reason) in cases {
        let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
        world.fencers.insert(DRIVER.into(), fencer);
        for _ in 0..20 {
            world.run();
            world.wait(7.0);
        }
        assert!(!world.did("delete") && !world.did("detach"), "{name}: {:#?}", world.log);
        assert!(!world.did("taint out-of-service"), "{name}");
        assert_eq!(world.condition("Ready"), Some(("False".into(), reason.into())), "{name}");
    }
}

#[test]
fn a_driver_without_a_sidecar_holds_its_pods() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    world.seen.reports.clear();
    world.run();
    assert_eq!(world.condition("Ready"), Some(("False".into(), "FencerMissing".into())));
    assert_eq!(world.condition("Stalled"), Some(("True".into(), "FencerMissing".into())));
    assert!(!world.did("ask") && !world.did("delete"), "{:#?}", world.log);
    world.seen.reports = reports([able(DRIVER)]);
    world.run();
    assert!(world.did("delete pg grace 0"), "it goes on when the sidecar comes: {:#?}", world.log);
}

#[test]
fn two_drivers_must_both_prove() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1"), csi_of("file.example.com", "f1")])], &json!({}));
    world.fencers.insert("file.example.com".into(), Fencer::Fails("Unavailable"));
    world.run();
    assert_eq!(world.volume("v1").state, VolumeStatusState::Fenced);
    assert_eq!(world.pod("pg"), (PodStatusState::Waiting, "ProofTooWeak".into()));
    assert!(!world.did("delete"), "{:#?}", world.log);
    world.fencers.clear();
    world.wait(20.0);
    world.run();
    world.assert_order(&[
        "pg is Waiting",
        "ask Fenced f1 round 2",
        "ask Fenced v1 round 2",
        "Fenced v1",
        "delete pg grace 0",
    ]);
}

#[test]
fn an_answer_after_ten_seconds_is_followed_by_a_new_round() {
    for (name, seconds, rounds) in [("in time", 9.5, 1), ("too late", 10.5, 2)] {
        let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
        world.fencers.insert(DRIVER.into(), Fencer::Hangs);
        world.run();
        world.wait(seconds);
        world.fencers.clear();
        world.run();
        assert_eq!(world.did("ask Fenced v1 round 2"), rounds == 2, "{name}: {:#?}", world.log);
        assert!(world.did("delete pg grace 0"), "{name}: {:#?}", world.log);
    }
}

#[test]
fn an_answer_that_lies_waiting_grows_too_old_for_a_delete() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    world.fencers.insert(DRIVER.into(), Fencer::Hangs);
    world.run();
    world.fencers.clear();
    world.fencers_act();
    while !world.did("pg is Releasing") {
        assert!(world.pass(), "{:#?}", world.log);
    }
    world.wait(11.0);
    world.run_controller();
    assert!(!world.did("delete"), "the proof is 11 s old: {:#?}", world.log);
    world.run();
    world.assert_order(&["pg is Releasing", "ask Fenced v1 round 2", "Fenced v1", "delete pg grace 0"]);
}

#[test]
fn after_a_restart_a_new_round_is_asked_before_any_delete() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    world.asks_again_after_a_restart();
}

#[test]
fn a_later_round_that_says_still_published_takes_the_proof_back() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1"), csi_of("file.example.com", "f1")])], &json!({}));
    world.fencers.insert("file.example.com".into(), Fencer::Hangs);
    world.run();
    assert_eq!(world.volume("v1").state, VolumeStatusState::Fenced);
    world.wait(11.0);
    world.fencers.insert(DRIVER.into(), Fencer::Fails("StillPublished"));
    world.run();
    assert!(world.did("ask Fenced v1 round 2"), "{:#?}", world.log);
    assert_eq!((world.volume("v1").state, world.volume("v1").proof), (VolumeStatusState::Failed, Proof::None));
    // Somebody deletes the pod: its attachment still must not go.
    world.remove_pod("pg");
    world.run();
    assert!(!world.did("detach") && !world.did("taint out-of-service"), "{:#?}", world.log);
}

#[test]
fn an_answer_without_started_is_no_proof() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    world.fencers.insert(DRIVER.into(), Fencer::Hangs);
    world.run_controller();
    world.fencers.clear();
    world.fencers_act();
    world.fencers_act();
    let request = Arc::make_mut(&mut world.seen.requests[0]);
    request.status.as_mut().unwrap().volumes[0].started_at = None;
    world.run_controller();
    assert!(!world.did("delete") && !world.did("v1 is Fenced"), "{:#?}", world.log);
}

#[test]
fn a_failed_call_is_tried_again_after_a_growing_wait() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    world.fencers.insert(DRIVER.into(), Fencer::Fails("Unavailable"));
    let mut rounds = Vec::new();
    for _ in 0..400 {
        world.run();
        let asked = world.log.iter().filter(|entry| entry.starts_with("ask Fenced")).count();
        rounds.push(asked);
        world.wait(1.0);
    }
    assert!((6..=14).contains(rounds.last().unwrap()), "backs off to a minute: {:?}", rounds.last());
    world.fencers.clear();
    world.wait(60.0);
    world.run();
    assert!(world.did("delete pg grace 0"));
}

#[test]
fn an_attach_in_flight_is_no_proof_and_is_not_asked_about_in_a_loop() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    world.seen.attachments.clear();
    world.attach("v1", "va-v1", false);
    world.run();
    for _ in 0..30 {
        world.wait(1.0);
        world.run();
    }
    assert!(!world.did("delete"), "{:#?}", world.log);
    let rounds = world.log.iter().filter(|entry| entry.starts_with("ask Fenced")).count();
    assert!(rounds <= 4, "{rounds} rounds while nothing could be proved: {:#?}", world.log);
    world.seen.attachments.clear();
    world.attach("v1", "va-v1", true);
    world.wait(0.1);
    world.run();
    let again = format!("ask Fenced v1 round {}", rounds + 1);
    world.assert_order(&[&again, "Fenced v1", "delete pg grace 0"]);
}

#[test]
fn an_attachment_that_comes_back_is_fenced_again_and_told() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    world.run();
    assert_eq!(world.volume("v1").state, VolumeStatusState::Detached);
    world.log.clear();
    world.wait(20.0);
    world.attach("v1", "va-again", true);
    world.wait(0.1);
    world.run();
    world.assert_order(&["ask Fenced v1 round 2", "v1 is Fencing", "Fenced v1", "v1 is Fenced", "detach v1"]);
    assert_eq!(world.volume("v1").refences, Some(1));
    assert_eq!(world.volume("v1").state, VolumeStatusState::Detached);
}

#[test]
fn method_detach_is_its_own_fence_call_under_acknowledged() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &acknowledged());
    world.seen.reports.clear();
    world.attacher = false;
    world.run();
    world.assert_order(&["active", "taint fenced", "v1 is Fencing", "detach v1"]);
    assert!(!world.did("delete"), "the attachment is not gone: {:#?}", world.log);
    assert!(world.volume("v1").committed_at.is_some(), "the point of no return is recorded before the delete");
    world.attacher = true;
    world.run();
    world.assert_order(&["detach v1", "v1 is Fenced", "pg is Releasing", "delete pg grace 0"]);
    assert_eq!(world.volume("v1").proof, Proof::Acknowledged);
    world.attach("v1", "va-again", true);
    world.run();
    assert_eq!(world.log.iter().filter(|entry| *entry == "detach v1").count(), 2, "{:#?}", world.log);
    assert_eq!((world.volume("v1").refences, world.volume("v1").state), (Some(1), VolumeStatusState::Detached));
}

#[test]
fn method_detach_never_serves_verified_nor_an_attachment_that_proves_nothing() {
    type Case = (&'static str, serde_json::Value, fn(&mut VolumeAttachment));
    let cases: [Case; 3] = [
        ("Verified is required", json!({}), |_| {}),
        ("never attached", acknowledged(), |attachment| attachment.status.attached = false),
        ("no finalizer of the attacher", acknowledged(), |attachment| attachment.metadata.finalizers = None),
    ];
    for (name, spec, change) in cases {
        let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &spec);
        world.seen.reports.clear();
        change(Arc::make_mut(&mut world.seen.attachments[0]));
        world.run();
        assert!(!world.did("detach") && !world.did("delete"), "{name}: {:#?}", world.log);
    }
}

#[test]
fn proof_none_tries_the_fence_and_then_goes_on() {
    let none = json!({ "fencing": { "minimumProof": "None", "acknowledgeRisk": "DoubleWriters" } });
    for (name, fencer, waits) in [("failing", Fencer::Fails("Internal"), false), ("silent", Fencer::Silent, true)] {
        let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &none);
        world.fencers.insert(DRIVER.into(), fencer);
        world.run();
        assert_eq!(world.did("delete pg grace 0"), !waits, "{name}: {:#?}", world.log);
        world.wait(11.0);
        world.run();
        assert!(world.did("delete pg grace 0"), "{name}: {:#?}", world.log);
    }
}

#[test]
fn a_policy_made_stricter_meanwhile_holds_and_a_laxer_one_does_not() {
    for (name, planned, now, released) in
        [("stricter", "Acknowledged", "Verified", false), ("laxer", "Verified", "Acknowledged", false)]
    {
        let spec = |proof| json!({ "fencing": { "minimumProof": proof } });
        let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &spec(planned));
        world.seen.policies = vec![Arc::new(policy("db", &spec(now)))];
        world.fencers.insert(DRIVER.into(), Fencer::Proves(Proof::Acknowledged));
        world.run();
        assert_eq!(world.did("delete"), released, "{name}: {:#?}", world.log);
    }
}

#[test]
fn the_outcome_of_an_older_round_never_counts() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    world.run_controller();
    world.fencers_act();
    world.fencers_act();
    let key = (DRIVER.to_owned(), 1, "v1".to_owned());
    world.seen.asked.get_mut(&key).unwrap().round = 2;
    let request = Arc::make_mut(&mut world.seen.requests[0]);
    request.spec.volumes[0].round = 2;
    assert_eq!(request.status.as_ref().unwrap().volumes[0].result, FenceOutcome::Fenced);
    world.run_controller();
    assert!(!world.did("delete") && !world.did("v1 is Fenced"), "{:#?}", world.log);
}

/// The record says what must not be given back: of what the array has taken, nothing was taken by who gives back a whole machine.
#[test]
fn whose_proof_counts_is_recorded() {
    let fencing = json!({
        "minimumProof": "Verified", "methods": [{ "type": "Unpublish" }, external()], "callTimeout": "5s", "giveUpAfter": "20s",
    });
    let pods = vec![pod("pg", "n1", &[csi("v1"), csi_of("file.example.com", "f1")])];
    let mut world = World::new(pods, &json!({ "fencing": fencing }));
    world.fencers.insert("file.example.com".into(), Fencer::Silent);
    world.run();
    assert_eq!(world.volume("v1").method, Some(FenceMethodType::Unpublish), "{:#?}", world.log);
    // It does not answer again, so that what it proved is too old by the time that the other answers.
    for silent in [DRIVER, POWER] {
        world.fencers.insert(silent.into(), Fencer::Silent);
    }
    let wait = |world: &mut World| {
        for _ in 0..15 {
            world.wait(2.0);
            world.run();
        }
    };
    wait(&mut world);
    world.fencers.insert(POWER.into(), Fencer::Proves(Proof::Verified));
    wait(&mut world);
    assert!(world.did("delete pg grace 0"), "{:#?}", world.log);
    assert_eq!(world.volume("v1").method, Some(FenceMethodType::External), "{:#?}", world.log);
}
