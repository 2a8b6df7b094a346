//! What people want: taints of their own, suppressions, and the acknowledgement of a loss.

use serde_json::json;

use super::world::{World, finding};

#[test]
fn a_manual_taint_stays_until_it_is_taken_out() {
    let mut world = World::csi(&["n1"]);
    world.settle();
    world.want(json!({ "manualTaints": [
        { "key": "storage.example.com/migrating", "effect": "NoAttachOrMount", "reason": "moves, ticket\u{7} 4711" },
    ] }));
    world.settle();
    let taint = world.taint("storage.example.com/migrating");
    assert_eq!((taint.reason.as_str(), taint.message.as_deref()), ("ManualTaint", Some("moves, ticket? 4711")));
    assert_eq!((world.phase().as_str(), world.condition("Usable").as_str()), ("Healthy", "False ManualTaint"));
    world.want(json!({ "manualTaints": [{ "key": "storage.example.com/migrating", "reason": "informs" }] }));
    world.settle();
    assert_eq!(world.condition("Usable"), "True Healthy", "one without effect only informs");
    world.want(json!({}));
    world.settle();
    assert_eq!(world.summary(), "");
}

#[test]
fn one_key_of_a_person_and_a_program_is_one_taint_with_the_stricter_effect() {
    let mut world = World::csi(&["n1"]);
    world.settle();
    world.want(json!({ "manualTaints": [{ "key": "VolumeNotUsable", "reason": "looks odd" }] }));
    world.settle();
    assert_eq!(world.phase(), "Healthy");
    let added = world.taint("VolumeNotUsable").time_added;
    world.wait(10);
    world.report("n1", &[finding("Device", "Inaccessible", "DeviceMissing", world.ago(2))]);
    world.settle();
    let taint = world.taint("VolumeNotUsable");
    assert_eq!(format!("{:?} {:?}", taint.source, taint.effect()), "NodeAgent NoAttachOrMount");
    assert_eq!((taint.reason.as_str(), taint.nodes.as_slice()), ("DeviceMissing", ["n1".to_owned()].as_slice()));
    assert_eq!((taint.time_added, world.status().taints.len()), (added, 1));
    assert_eq!((world.phase().as_str(), world.condition("Usable").as_str()), ("Unhealthy", "False DeviceMissing"));
    world.report("n1", &[]);
    world.settle();
    let taint = world.taint("VolumeNotUsable");
    assert_eq!((format!("{:?}", taint.source).as_str(), taint.time_added), ("Manual", added));
    assert_eq!(world.phase(), "Healthy");
}

/// Which order they come in makes no difference, and the stricter effect is a person's here.
#[test]
fn a_persons_taint_never_hides_a_failure() {
    let manual = json!({ "manualTaints": [
        { "key": "VolumeNotMounted", "effect": "NoAttachOrMount", "reason": "looks odd" },
    ] });
    for person_first in [true, false] {
        let mut world = World::csi(&["n1", "n2"]);
        world.settle();
        let broken = finding("MountPoint", "Inaccessible", "NotMountPoint", world.ago(2));
        if person_first {
            world.want(manual.clone());
            world.settle();
        }
        world.report("n2", &[broken]);
        world.settle();
        world.want(manual.clone());
        world.settle();
        let taint = world.taint("VolumeNotMounted");
        let said = format!("{:?} {} {:?} {:?}", taint.source, taint.reason, taint.effect(), taint.nodes);
        assert_eq!(said, r#"NodeAgent NotMountPoint NoAttachOrMount ["n2"]"#, "{person_first}");
        assert_eq!(world.phase(), "Unhealthy", "{person_first}");
    }
}

#[test]
fn a_suppression_holds_until_its_end_and_is_not_renewed() {
    let mut world = World::csi(&["n1"]);
    world.report("n1", &[finding("CSIMounts", "Inaccessible", "NotMounted", world.ago(2))]);
    world.settle();
    let until = world.now.wall + chrono::TimeDelta::hours(2);
    world.want(json!({ "suppressTaints": [{ "key": "VolumeNotMounted", "until": until, "reason": "known" }] }));
    let decision = world.settle();
    assert_eq!((world.summary(), world.phase().as_str()), ("", "Degraded"), "it is still wrong");
    assert_eq!(decision.look_again.unwrap().as_secs(), 7200);
    world.wait(7199);
    world.settle();
    assert_eq!(world.summary(), "");
    world.wait(2);
    let decision = world.settle();
    assert_eq!((world.summary(), decision.look_again), ("VolumeNotMounted", None));
    // The spec still names it.
    let writes = world.writes;
    world.wait(86400);
    world.settle();
    assert_eq!((world.summary(), world.writes), ("VolumeNotMounted", writes));
}

#[test]
fn a_suppression_lasts_a_week_at_most_and_manual_taints_are_not_suppressed() {
    let mut world = World::csi(&["n1"]);
    world.report("n1", &[finding("CSIMounts", "Inaccessible", "NotMounted", world.ago(2))]);
    world.settle();
    let year = world.now.wall + chrono::TimeDelta::days(365);
    let suppressed = json!([{ "key": "VolumeNotMounted", "until": year, "reason": "known" }]);
    world.want(json!({ "suppressTaints": suppressed }));
    world.settle();
    let end = world.now.wall + chrono::TimeDelta::hours(168);
    assert_eq!(world.status().suppressions[0].effective_until, crate::api::time::stamp(end));
    world.wait(6 * 86400);
    let manual = json!([{ "key": "VolumeNotMounted", "reason": "mine" }]);
    world.want(json!({ "suppressTaints": suppressed, "manualTaints": manual }));
    world.settle();
    assert_eq!(world.summary(), "VolumeNotMounted");
    assert_eq!(world.status().suppressions[0].effective_until, crate::api::time::stamp(end), "an edit renews nothing");
    world.wait(2 * 86400);
    world.want(json!({ "suppressTaints": suppressed }));
    world.settle();
    assert_eq!(format!("{:?}", world.taint("VolumeNotMounted").source), "NodeAgent");
}

#[test]
fn a_loss_stays_until_a_person_has_seen_it() {
    let lost = |world: &World, seconds| finding("ControllerHealth", "DataLoss", "DataLoss", world.ago(seconds));
    let mut world = World::csi(&["n1"]);
    world.report("n1", &[lost(&world, 5)]);
    world.settle();
    assert_eq!((world.summary(), world.condition("Usable").as_str()), ("VolumeNotUsable", "False DataLoss"));
    let token = world.status().data_loss_token.clone().unwrap();
    world.report("n1", &[]);
    world.settle();
    assert_eq!(world.summary(), "VolumeNotUsable", "it does not clear by itself");
    world.report_as("n1", "uid-n1", json!([]));
    world.settle();
    assert_eq!(world.summary(), "VolumeNotUsable", "nor when the volume has left the node");
    world.want(json!({ "acknowledgeDataLoss": "something-else" }));
    world.settle();
    assert_eq!(world.summary(), "VolumeNotUsable");
    world.want(json!({ "acknowledgeDataLoss": token }));
    world.settle();
    assert_eq!((world.summary(), world.phase().as_str()), ("", "Healthy"));
    assert_eq!(world.status().data_loss_token, None);
    // Another loss is another matter.
    world.wait(100);
    world.report("n1", &[lost(&world, 1)]);
    world.settle();
    assert_eq!(world.summary(), "VolumeNotUsable");
    assert_ne!(world.status().data_loss_token.as_ref(), Some(&token));
}

#[test]
fn an_acknowledged_loss_that_is_still_reported_taints_no_more() {
    let mut world = World::csi(&[]);
    let said = json!({ "state": "DataLoss", "reason": "DataLoss", "since": world.ago(5), "volumeHandles": ["h"] });
    world.driver(true, "Complete", &[said]);
    world.settle();
    let token = world.status().data_loss_token.clone().unwrap();
    world.want(json!({ "acknowledgeDataLoss": token }));
    world.settle();
    assert_eq!((world.summary(), world.phase().as_str()), ("", "Degraded"));
    assert_eq!(world.status().data_loss_token.as_ref(), Some(&token), "it is still so");
}

/// A group of the driver's report has the time of its first member, so it moves when other volumes join and leave.
#[test]
fn an_acknowledged_loss_is_not_another_because_the_group_it_is_in_has_changed() {
    let said = |world: &World, seconds| json!({ "state": "DataLoss", "reason": "DataLoss", "since": world.ago(seconds), "volumeHandles": ["h", "i"] });
    let mut world = World::csi(&[]);
    world.driver(true, "Complete", &[said(&world, 5)]);
    world.settle();
    let token = world.status().data_loss_token.clone().unwrap();
    world.want(json!({ "acknowledgeDataLoss": token }));
    world.settle();
    let writes = world.writes;
    for seconds in [500, 1] {
        world.driver(true, "Complete", &[said(&world, seconds)]);
        world.settle();
        assert_eq!((world.summary(), world.writes), ("", writes), "{seconds}");
    }
    assert_eq!(world.status().data_loss_token.as_ref(), Some(&token));
    // It was good in between: that is another loss.
    world.driver(true, "Complete", &[]);
    world.settle();
    world.wait(10);
    world.driver(true, "Complete", &[said(&world, 1)]);
    world.settle();
    assert_eq!(world.summary(), "VolumeNotUsable");
    assert_ne!(world.status().data_loss_token, Some(token));
}
