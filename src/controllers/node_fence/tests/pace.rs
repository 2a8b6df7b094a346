//! How soon it is recorded what has gone: everything at most two seconds late, and attachments that go one by one less often.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::node_fence::{Phase, VolumeStatusState};
use crate::api::resiliency_policy::{ResiliencyPolicyStatus, Restraint, RestraintType};
use crate::controllers::testing::*;

use super::super::decide::Effect;
use super::world::{Fencer, World};

/// Three pods have gone, and the attachments of all are being deleted: only the attacher works.
fn handed_over(fencing: &Value) -> World {
    let pods = ["a", "b", "c"].map(|name| pod(name, "n1", &[csi(&format!("v-{name}"))]));
    let spec = json!({ "release": { "detach": "VolumeAttachments" }, "fencing": fencing });
    let mut world = World::new(pods.to_vec(), &spec);
    world.attacher = false;
    world.fencers.insert(POWER.into(), Fencer::Silent);
    world.run();
    world.wait(7.1);
    world.run();
    for name in ["a", "b", "c"] {
        assert!(world.did(&format!("detach v-{name}")), "{name}: {:#?}", world.log);
    }
    assert_eq!(world.seen.phase(), Some(Phase::PodsReleased), "{:#?}", world.log);
    world
}

/// The attacher has done with one.
fn one_goes(world: &mut World) {
    world.seen.attachments.retain(|attachment| attachment.volume() != "v-a");
}

fn is_record(effects: &[Effect]) -> bool {
    matches!(effects, [Effect::Record(_)])
}

#[test]
fn attachments_that_go_one_by_one_are_recorded_a_few_at_a_time() {
    let mut world = handed_over(&json!({}));
    one_goes(&mut world);
    for (passed, is_due) in [(2, false), (5, false), (14, false), (15, true)] {
        world.seen.recorded_for = Duration::from_secs(passed);
        let decision = world.decide();
        assert_eq!(is_record(&decision.effects), is_due, "after {passed} s: {decision:?}");
        assert!(is_due || decision.effects.is_empty(), "after {passed} s: {decision:?}");
        let looks = decision.look_again.is_some_and(|wait| wait <= Duration::from_secs(1));
        assert!(looks, "the times of other things pass, after {passed} s: {decision:?}");
    }
}

#[test]
fn what_completes_the_detach_does_not_wait_for_that() {
    let mut world = handed_over(&json!({}));
    one_goes(&mut world);
    world.seen.recorded_for = Duration::from_secs(2);
    assert_eq!(world.decide().effects, []);
    world.seen.attachments.clear();
    let decision = world.decide();
    let [Effect::Record(status)] = decision.effects.as_slice() else { panic!("{decision:?}") };
    assert!(status.timeline.as_ref().is_some_and(|timeline| timeline.detached_at.is_some()), "{status:?}");
    world.run();
    world.wait(61.0);
    world.seen.recorded_for = Duration::ZERO;
    assert!(world.pass());
    assert_eq!(world.seen.phase(), Some(Phase::Detached), "{:#?}", world.log);
}

/// The clock of the API server is behind that of the fencer, so it seems to be older than the proof.
#[test]
fn what_is_attached_again_before_that_is_recorded_is_fenced_again() {
    let mut world = handed_over(&json!({}));
    one_goes(&mut world);
    world.wait(1.0);
    assert!(!world.pass(), "{:#?}", world.log);
    assert_eq!(world.volume("v-a").state, VolumeStatusState::Fenced, "it is not on record that it has gone");
    let mut again = attachment("v-a", "n1");
    again.metadata.uid = Some("va-again".into());
    world.seen.attachments.push(Arc::new(again));
    world.seen.attached_since.insert("va-again".into(), world.now.mono);
    let detached = |world: &World| world.log.iter().filter(|entry| *entry == "detach v-a").count();
    let before = detached(&world);
    world.run_controller();
    assert_eq!(detached(&world), before, "nobody has proved anything of it: {:#?}", world.log);
    world.run();
    world.assert_order(&["detach v-a", "ask Fenced v-a round 2", "v-a is Fenced", "detach v-a"]);
    assert_eq!(world.volume("v-a").refences, Some(1), "that one is proved, and not fenced once more");
}

/// The next step may be refused for as long as somebody likes.
#[test]
fn while_there_is_a_step_what_has_gone_is_told_as_soon_as_ever() {
    let fencing = json!({ "minimumProof": "Verified", "methods": [external(), unpublish()], "callTimeout": "5s" });
    let mut world = handed_over(&fencing);
    one_goes(&mut world);
    // Too many nodes are suspected: who has not begun is not to begin any more.
    let restraint = Restraint { type_: RestraintType::CorrelatedOutage, name: None, since: at(100_000), until: None };
    let status = ResiliencyPolicyStatus { restraints: vec![restraint], ..ResiliencyPolicyStatus::default() };
    Arc::make_mut(&mut world.seen.policies[0]).status = Some(status);
    for (passed, is_due) in [(1, false), (5, true)] {
        world.seen.recorded_for = Duration::from_secs(passed);
        let effects = world.decide().effects;
        assert!(!effects.is_empty(), "neither is done, after {passed} s");
        assert_eq!(is_record(&effects), is_due, "after {passed} s: {effects:?}");
    }
}
