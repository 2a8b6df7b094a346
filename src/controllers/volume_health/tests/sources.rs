//! Who is believed, who may take a taint back, and what silence means.

use serde_json::{Value, json};

use super::world::{World, finding};

fn broken(world: &World, seconds: i64) -> Value {
    finding("ReadOnly", "Inaccessible", "ReadOnlyRemount", world.ago(seconds))
}

fn abnormal(world: &World, reason: &str, node: Option<&str>) -> Value {
    json!({
        "state": "Inaccessible", "reason": reason, "node": node, "since": world.ago(5), "volumeHandles": ["other", "h"],
    })
}

#[test]
fn a_taint_comes_and_goes_with_the_word_of_its_source() {
    let mut world = World::csi(&["n1"]);
    world.settle();
    assert_eq!((world.phase().as_str(), world.summary()), ("Healthy", ""));
    assert_eq!(world.condition("Observed"), "True Fresh");
    world.report("n1", &[broken(&world, 3)]);
    world.settle();
    assert_eq!((world.phase().as_str(), world.summary()), ("Unhealthy", "VolumeNotUsable"));
    assert_eq!(world.taint("VolumeNotUsable").nodes, ["n1"]);
    assert_eq!(world.status().affected_nodes.as_deref(), Some("1/1"));
    assert_eq!(world.status().users, ["shop/pod-n1"]);
    let added = world.taint("VolumeNotUsable").time_added;
    let writes = world.writes;
    world.wait(3600);
    world.settle();
    assert_eq!(
        (world.writes, world.taint("VolumeNotUsable").time_added),
        (writes, added),
        "at rest nothing is written"
    );
    world.report("n1", &[]);
    world.settle();
    assert_eq!((world.phase().as_str(), world.summary()), ("Healthy", ""));
    assert_eq!(world.status().users, [""; 0]);
    assert_eq!(world.writes, writes + 1, "one write per transition");
}

/// An agent is believed of volumes that its node can have, by what others say of it: the list of what it may break.
#[test]
fn a_lying_agent_taints_nothing_of_others() {
    let mut world = World::csi(&["n1"]);
    world.settle();
    world.report("n2", &[broken(&world, 3), finding("FUSE", "DataLoss", "DataLoss", world.ago(3))]);
    world.settle();
    assert_eq!((world.phase().as_str(), world.status().observations.len()), ("Healthy", 0));
    assert_eq!(world.status().affected_nodes, None);

    let mut world = World::local();
    world.report("n1", &[]);
    world.report("n2", &[broken(&world, 3)]);
    world.settle();
    assert_eq!((world.phase().as_str(), world.status().observations.len()), ("Healthy", 0));

    // Nor does it say for another that all is well.
    let mut world = World::local();
    world.report("n1", &[broken(&world, 3)]);
    world.settle();
    world.report("n2", &[]);
    world.settle();
    assert_eq!(world.summary(), "VolumeNotUsable");
}

#[test]
fn an_agent_of_an_earlier_node_of_that_name_is_not_believed() {
    let mut world = World::local();
    let volumes = json!([{ "name": "v", "state": "Inaccessible", "findings": [broken(&world, 3)] }]);
    world.report_as("n1", "uid-earlier", volumes);
    world.settle();
    assert_eq!((world.phase().as_str(), world.condition("Observed").as_str()), ("Unknown", "Unknown NeverObserved"));
    world.report("n1", &[broken(&world, 3)]);
    world.settle();
    assert_eq!(world.summary(), "VolumeNotUsable");
    // The machine has registered anew; its agent has not spoken yet.
    world.report_as("n1", "uid-earlier", json!([]));
    world.settle();
    assert_eq!(world.summary(), "VolumeNotUsable", "silence clears nothing");
}

#[test]
fn what_a_report_no_longer_lists_is_no_longer_there() {
    let mut world = World::csi(&["n1", "n2"]);
    world.report("n1", &[broken(&world, 3)]);
    world.settle();
    assert_eq!(world.status().affected_nodes.as_deref(), Some("1/2"));
    world.report_as("n1", "uid-n1", json!([]));
    world.settle();
    assert_eq!(world.summary(), "");
}

/// The node was fenced while its agent saw errors, and nobody there uses the volume any more: the replacement must not
/// wait for the word of an agent that may never speak again.
#[test]
fn what_was_seen_where_the_volume_has_left_holds_nobody_up() {
    let hung = |world: &World| finding("HungIO", "Inaccessible", "IOHung", world.ago(3));
    type Change = fn(&mut World);
    let cases: [(&str, bool, Change); 6] = [
        ("attached and used", true, |_| {}),
        ("still attached", true, |world| world.seen.pods.clear()),
        ("still used", true, |world| world.seen.attachments.clear()),
        ("the pod has ended", false, |world| {
            world.seen.attachments.clear();
            let pod = std::sync::Arc::make_mut(&mut world.seen.pods[0]);
            pod.status.phase = Some("Failed".into());
        }),
        ("the agent still says so", false, |world| {
            world.seen.attachments.clear();
            world.seen.pods.clear();
        }),
        ("the agent is dead", false, |world| {
            world.seen.attachments.clear();
            world.seen.pods.clear();
            let place = world.place("n1");
            (place.report, place.agent_ready) = (None, false);
        }),
    ];
    for (case, stays, change) in cases {
        let mut world = World::csi(&["n1"]);
        world.report("n1", &[hung(&world)]);
        world.settle();
        assert_eq!(world.summary(), "VolumeNotUsable", "{case}");
        change(&mut world);
        world.settle();
        assert_eq!(world.summary(), if stays { "VolumeNotUsable" } else { "" }, "{case}");
    }
}

#[test]
fn of_what_was_seen_where_the_volume_has_left_only_a_recorded_loss_stays() {
    let lost = |world: &World| finding("Device", "DataLoss", "DataLoss", world.ago(3));
    let mut world = World::csi(&["n1"]);
    world.report("n1", &[broken(&world, 3)]);
    world.settle();
    world.seen.attachments.clear();
    world.seen.pods.clear();
    world.report("n1", &[finding("ReadOnly", "DataLoss", "DataLoss", world.ago(1)), lost(&world)]);
    world.settle();
    assert_eq!(world.status().observations, [], "a node that cannot have it raises no word");

    let mut world = World::csi(&["n1"]);
    world.report("n1", &[lost(&world), broken(&world, 3)]);
    world.settle();
    world.seen.attachments.clear();
    world.seen.pods.clear();
    world.place("n1").report = None;
    world.settle();
    let left: Vec<_> = world.status().observations.iter().map(|it| it.reason.as_str()).collect();
    assert_eq!(left, ["DataLoss"]);
}

/// A local volume does not leave: a node that is relabelled still answers for what it said, and for nothing else.
#[test]
fn a_relabelled_node_ends_its_word_of_a_local_volume_and_gives_no_new_one() {
    let mut world = World::local();
    world.report("n1", &[broken(&world, 3)]);
    world.settle();
    let relabelled = crate::controllers::testing::node("n1");
    world.place("n1").node = Some(std::sync::Arc::new(relabelled));
    let worse = finding("ReadOnly", "DataLoss", "DataLoss", world.ago(1));
    world.report("n1", &[worse, finding("FUSE", "Inaccessible", "FuseDisconnected", world.ago(1))]);
    world.settle();
    assert_eq!((world.summary(), world.status().data_loss_token.as_ref()), ("VolumeNotUsable", None));
    world.report("n1", &[]);
    world.settle();
    assert_eq!(world.summary(), "");
}

#[test]
fn a_node_that_is_no_more_says_nothing_more_of_volumes_that_can_move() {
    let mut world = World::csi(&["n1"]);
    world.report("n1", &[broken(&world, 3)]);
    world.settle();
    let place = world.place("n1");
    (place.node, place.report) = (None, None);
    world.settle();
    assert_eq!(world.summary(), "");
}

#[test]
fn of_several_nodes_a_taint_names_those_it_holds_for() {
    let mut world = World::csi(&["n1", "n2", "n3"]);
    world.report("n1", &[broken(&world, 9)]);
    world.report("n3", &[broken(&world, 3)]);
    world.settle();
    assert_eq!(world.taint("VolumeNotUsable").nodes, ["n1", "n3"]);
    assert_eq!(world.status().affected_nodes.as_deref(), Some("2/3"));
    world.driver(true, "Complete", &[abnormal(&world, "BackendDeleted", None)]);
    world.settle();
    assert_eq!(world.taint("VolumeNotUsable").nodes, [""; 0], "the driver says so of all");
    assert_eq!(world.status().affected_nodes.as_deref(), Some("3/3"));
    assert_eq!(world.taint("VolumeNotUsable").reason, "ReadOnlyRemount", "it stays with who set it");
}

/// Only the sidecar's own word ends what it said, and only when it is complete.
#[test]
fn a_drivers_word_ends_by_a_complete_one() {
    let mut world = World::csi(&[]);
    world.driver(true, "Complete", &[abnormal(&world, "BackendDeleted", None)]);
    world.settle();
    assert_eq!(world.taint("VolumeNotUsable").reason, "BackendDeleted");
    for (what, ready, coverage, heard) in
        [("not ready", false, "Complete", true), ("capped", true, "Capped", true), ("silent", true, "Complete", false)]
    {
        world.driver(ready, coverage, &[]);
        world.seen.driver_is_heard = heard;
        world.settle();
        assert_eq!(world.summary(), "VolumeNotUsable", "{what}");
    }
    assert_eq!(world.condition("Observed"), "False DriverUnreachable");
    world.seen.driver_report = None;
    world.settle();
    assert_eq!(world.summary(), "VolumeNotUsable", "no report");
    world.driver(true, "Complete", &[]);
    world.settle();
    assert_eq!((world.summary(), world.condition("Observed").as_str()), ("", "True Fresh"));
}

/// A report that does not tell all ends nothing, also where it says something else of the volume.
#[test]
fn what_an_incomplete_report_leaves_out_stays() {
    let unreachable = |world: &World| abnormal(world, "BackendUnreachable", None);
    let mismatch = |world: &World| abnormal(world, "PublishedNodeMismatch", Some("n1"));
    for (ready, coverage, left) in [
        (true, "Capped", "VolumeNotUsable,VolumeNotAttached"),
        (false, "Complete", "VolumeNotUsable,VolumeNotAttached"),
        (true, "Complete", "VolumeNotUsable"),
    ] {
        let mut world = World::csi(&["n1"]);
        world.driver(true, "Complete", &[mismatch(&world)]);
        world.settle();
        world.driver(ready, coverage, &[unreachable(&world)]);
        world.settle();
        assert_eq!(world.summary(), left, "{ready} {coverage}");
        // The same check on the same node is no second word.
        world.driver(ready, coverage, &[abnormal(&world, "BackendDeleted", None)]);
        world.settle();
        let of_all: Vec<_> = world.status().observations.iter().filter(|it| it.node.is_empty()).collect();
        assert_eq!((of_all.len(), of_all[0].reason.as_str()), (1, "BackendDeleted"), "{ready} {coverage}");
    }
}

#[test]
fn a_silent_driver_sets_nothing() {
    let mut world = World::csi(&[]);
    world.driver(true, "Complete", &[abnormal(&world, "BackendDeleted", None)]);
    world.seen.driver_is_heard = false;
    world.settle();
    assert_eq!((world.phase().as_str(), world.condition("Observed").as_str()), ("Unknown", "Unknown NeverObserved"));
}

#[test]
fn a_driver_says_it_of_one_node_or_of_all_and_tells_attachment_from_health() {
    let mut world = World::csi(&["n1", "n2"]);
    let said = [abnormal(&world, "PublishedNodeMismatch", Some("n2")), abnormal(&world, "BackendUnreachable", None)];
    world.driver(true, "Complete", &said);
    world.settle();
    assert_eq!(world.summary(), "VolumeNotUsable,VolumeNotAttached");
    assert_eq!(world.taint("VolumeNotAttached").nodes, ["n2"]);
    assert_eq!(world.condition("Attached"), "False PublishedNodeMismatch");
    assert_eq!(world.condition("Usable"), "False BackendUnreachable");
}

#[test]
fn when_the_first_source_takes_its_word_back_the_taint_passes_to_the_next() {
    let mut world = World::csi(&["n1"]);
    world.report("n1", &[broken(&world, 3)]);
    world.settle();
    let added = world.taint("VolumeNotUsable").time_added;
    world.wait(60);
    world.driver(true, "Complete", &[abnormal(&world, "BackendUnreachable", None)]);
    world.settle();
    assert_eq!(format!("{:?}", world.taint("VolumeNotUsable").source), "NodeAgent");
    world.wait(60);
    world.report("n1", &[]);
    world.settle();
    let taint = world.taint("VolumeNotUsable");
    assert_eq!(
        (format!("{:?}", taint.source).as_str(), taint.reason.as_str()),
        ("CSIController", "BackendUnreachable")
    );
    assert_eq!(taint.time_added, added, "the key was tainted all the time");
    world.driver(true, "Complete", &[]);
    world.settle();
    assert_eq!(world.summary(), "");
}

#[test]
fn what_the_node_plugin_says_is_its_own_word() {
    let mut world = World::csi(&["n1"]);
    world.report("n1", &[finding("ControllerHealth", "Inaccessible", "BackendUnreachable", world.ago(2))]);
    world.settle();
    assert_eq!(format!("{:?}", world.taint("VolumeNotUsable").source), "CSINode");
}

#[test]
fn silence_is_shown_and_changes_no_taint() {
    let mut world = World::csi(&["n1"]);
    world.report("n1", &[broken(&world, 3)]);
    world.settle();
    world.place("n1").agent_ready = false;
    world.settle();
    assert_eq!((world.summary(), world.condition("Observed").as_str()), ("VolumeNotUsable", "False AgentSilent"));
    world.place("n1").report = None;
    world.settle();
    assert_eq!(world.summary(), "VolumeNotUsable");
    world.place("n1").agent_ready = true;
    world.report("n1", &[]);
    world.settle();
    assert_eq!((world.summary(), world.condition("Observed").as_str()), ("", "True Fresh"));
}

#[test]
fn the_worst_observations_are_kept_when_there_are_too_many() {
    let nodes: Vec<_> = (0..40).map(|number| format!("n{number}")).collect();
    let mut world = World::csi(&nodes.iter().map(String::as_str).collect::<Vec<_>>());
    for node in &nodes {
        let degraded = finding("Capacity", "Degraded", "OutOfSpace", world.ago(2));
        world.report(node, &[broken(&world, 3), degraded]);
    }
    world.settle();
    let observations = &world.status().observations;
    assert_eq!(observations.len(), 64);
    assert!(observations[..40].iter().all(|it| it.reason == "ReadOnlyRemount"));
    assert_eq!(world.taint("VolumeNotUsable").nodes, [""; 0], "more nodes than a taint may name: everywhere");
    assert_eq!(world.status().affected_nodes.as_deref(), Some("40/40"));
}
