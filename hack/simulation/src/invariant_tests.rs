//! A check that cannot fail is a defect: for each invariant a world that was made to break it by hand.

mod moments;
mod network;
mod power;
mod replaced;
mod unattached;
mod words;

use std::sync::Arc;

use bulkhead::api::fencing::Proof;
use bulkhead::api::names;
use bulkhead::api::node_fence::{Channel, NodeFence, VOLUME_TAINT, VolumeStatusState};
use bulkhead::api::slim::{Node, Pod, VolumeAttachment};
use bulkhead::controllers::resiliency_policy::decide::{Decision, Effect};
use serde_json::json;

use crate::api::Op;
use crate::chance::Prompt;
use crate::faults::Fault;
use crate::others::{Incarnation, Power};
use crate::people::Person;
use crate::process::queue::Key;
use crate::run::{rest, settle};
use crate::shape::{Shape, handle, policy};
use crate::time::{MINUTE, SECOND};
use crate::world::{Purpose, Task, World};

/// Everything is well for two minutes.
fn well() -> World {
    let mut world = World::new(Arc::new(Shape::plain()));
    assert!(world.run_until(2 * MINUTE, &mut Prompt));
    world
}

/// The first node died, and its pods have moved.
fn failed_over() -> World {
    let mut world = World::new(Arc::new(Shape::plain()));
    befalls(&mut world, 40 * SECOND, Fault::PowerOff("n0".into()));
    assert!(world.run_until(4 * MINUTE, &mut Prompt));
    world
}

/// The first node died, and its NodeFence is there: within the first two minutes.
fn just_failed() -> World {
    let mut world = World::new(Arc::new(Shape::plain()));
    befalls(&mut world, 40 * SECOND, Fault::PowerOff("n0".into()));
    while world.api.fences.get("n0").is_none() && world.now < 2 * MINUTE && world.step(&mut Prompt) {}
    assert!(world.oracle.is_clean() && world.now < 2 * MINUTE, "{:?} at {}", world.oracle.violations, world.now);
    world
}

fn befalls(world: &mut World, at: u64, fault: Fault) {
    world.schedule(at, Task::Fault(Box::new(fault)));
}

/// A process writes, and the server takes it.
fn writes(world: &mut World, op: Op) {
    let now = world.now;
    let id = world.post(0, &Key::Cluster, op, Purpose::Plan, now, SECOND, &mut Prompt);
    world.land(id, &mut Prompt);
}

/// No process ever does anything again.
fn end_all(world: &mut World) {
    for process in &mut world.processes {
        process.is_up = false;
    }
}

#[track_caller]
fn assert_broken(world: &World, invariant: &str) {
    let broken: Vec<_> = world.oracle.violations.iter().map(|violation| violation.invariant).collect();
    assert!(broken.contains(&invariant), "{invariant} is not noticed: {broken:?}");
}

fn incarnation(volume: &str, number: u64) -> Incarnation {
    let volumes = vec![volume.to_owned()];
    Incarnation { pod: "second".into(), uid: "second".into(), volumes, number, stops_at: None }
}

#[test]
fn i1_two_nodes_write_to_a_single_writer_volume() {
    let mut world = well();
    let array = world.arrays.values_mut().next().unwrap();
    array.publish(&handle("v0"), "id-n1");
    world.machines.get_mut("n1").unwrap().running.push(incarnation("v0", 999));
    world.oracle.touch();
    world.judge();
    assert_broken(&world, "I1");
}

#[test]
fn i1_a_node_writes_to_a_shared_volume_that_it_is_proved_to_be_cut_off_from() {
    let mut shape = Shape::plain();
    shape.volumes.get_mut("v0").unwrap().shared = true;
    let mut world = World::new(Arc::new(shape));
    world.run_until(2 * MINUTE, &mut Prompt);
    world.oracle.prove("v0", "id-n0", (world.now, world.now), Proof::Acknowledged);
    world.oracle.touch();
    world.judge();
    assert!(world.oracle.is_clean(), "an acknowledgement excludes no lie");
    world.oracle.prove("v0", "id-n0", (world.now, world.now), Proof::Verified);
    world.oracle.touch();
    world.judge();
    assert_broken(&world, "I1");
}

#[test]
fn i2_a_pod_goes_without_proof() {
    for fails in [false, true] {
        let mut world = well();
        let pod = world.api.get::<Pod>("db-0").unwrap();
        writes(&mut world, if fails { Op::FailPod(pod) } else { Op::DeletePod(pod, Some(0)) });
        assert_broken(&world, "I2");
    }
}

#[test]
fn i2_an_attachment_goes_without_proof() {
    let mut world = well();
    let attachment = world.api.attachments.values().next().unwrap().clone();
    writes(&mut world, Op::DeleteAttachment(attachment));
    assert_broken(&world, "I2");
}

/// Takes the attachment of v0 off n0.
fn detaches(world: &mut World) {
    let mut attachment = VolumeAttachment::default();
    attachment.metadata.name = Some("forged".into());
    attachment.spec.node_name = "n0".into();
    attachment.spec.source.persistent_volume_name = Some("v0".into());
    let attachment = world.api.create(attachment, world.now).unwrap();
    writes(world, Op::DeleteAttachment(attachment));
}

#[test]
fn i2_a_record_that_the_array_does_not_bear_out_is_no_proof() {
    let mut world = failed_over();
    // The proof is forged: the array never took the volume from the node.
    let array = world.arrays.values_mut().next().unwrap();
    array.publish(&handle("v0"), "id-n0");
    array.revoked.clear();
    detaches(&mut world);
    assert_broken(&world, "I2");
}

/// A pod of the node that failed, as if its plan were about that one.
fn planned_again(world: &mut World) -> Arc<Pod> {
    world.api.delete_pod("db-0", Some(0), world.now);
    let mut pod = Pod::default();
    pod.metadata.name = Some("db-0".into());
    pod.spec.node_name = Some("n0".into());
    pod.spec.volumes = world.shape.workload("db").unwrap().pod(9).spec.volumes;
    let pod = world.api.create(pod, world.now).unwrap();
    world.api.update::<NodeFence>("n0", |fence| fence.spec.plan.pods[0].uid = pod.metadata.uid.clone().unwrap());
    pod
}

#[test]
fn i2_an_old_proof_is_none() {
    let mut world = failed_over();
    let pod = planned_again(&mut world);
    writes(&mut world, Op::DeletePod(pod, Some(0)));
    assert_broken(&world, "I2");
    assert!(world.oracle.violations[0].what.contains("the proof is from"), "{:?}", world.oracle.violations);
}

/// The NodeFence of the failed node, as if it were another's.
fn fence_of(world: &World, node: &str) -> Box<NodeFence> {
    let mut fence = NodeFence::clone(&world.api.get::<NodeFence>("n0").unwrap());
    fence.metadata.name = Some(node.into());
    fence.status = None;
    Box::new(fence)
}

#[test]
fn i3_a_healthy_node_is_acted_on() {
    let mut world = failed_over();
    let fence = fence_of(&world, "n1");
    writes(&mut world, Op::CreateFence(fence));
    assert_broken(&world, "I3");
}

/// A NodeFence of a node that is well, for the sake of its pods' volumes.
fn for_volumes(world: &World, node: &str) -> Box<NodeFence> {
    let mut fence = fence_of(world, node);
    fence.spec.plan.evidence.iter_mut().for_each(|it| it.channel = Channel::Volume);
    fence.spec.plan.pods.iter_mut().for_each(|row| row.reason = VOLUME_TAINT.into());
    fence
}

#[test]
fn i3_pods_move_off_a_node_where_their_volumes_are_well() {
    for (nodes, is_wrong) in [(vec!["n1".to_owned()], false), (vec!["n2".to_owned()], true), (Vec::new(), true)] {
        let mut world = just_failed();
        for volume in ["v0", "v1"] {
            world.perform(Task::Fault(Box::new(Fault::TaintVolume(volume.into(), nodes.clone()))), &mut Prompt);
        }
        let fence = for_volumes(&world, "n1");
        writes(&mut world, Op::CreateFence(fence));
        let told: Vec<_> = world.oracle.violations.iter().filter(|it| it.invariant == "I3").collect();
        assert_eq!(!told.is_empty(), is_wrong, "{nodes:?}: {told:?}");
    }
}

#[test]
fn i3_a_pod_of_a_node_that_is_well_is_not_given_its_time_to_end() {
    let mut world = failed_over();
    let fence = for_volumes(&world, "n1");
    let _ = world.api.create(*fence, world.now);
    let pod = world.api.pods.values().find(|pod| pod.spec.node_name.as_deref() == Some("n1")).unwrap().clone();
    writes(&mut world, Op::DeletePod(pod, Some(0)));
    assert_broken(&world, "I3");
}

#[test]
fn i4_more_nodes_are_acted_on_than_a_policy_allows() {
    let mut world = failed_over();
    let machine = world.machines.get_mut("n1").unwrap();
    (machine.power, machine.well_since) = (Power::Off, None);
    let fence = fence_of(&world, "n1");
    writes(&mut world, Op::CreateFence(fence));
    assert_broken(&world, "I4");
}

#[test]
fn i5_a_node_is_given_back_that_did_not_boot() {
    let mut world = failed_over();
    let node = world.api.get::<Node>("n0").unwrap();
    let taint = node.taints().iter().find(|taint| taint.key == names::FENCED_TAINT).cloned().unwrap();
    writes(&mut world, Op::RemoveTaint(node, taint));
    assert_broken(&world, "I5");
}

#[test]
fn i5_a_row_is_held_to_be_clean_while_its_pod_runs_on() {
    let mut world = well();
    befalls(&mut world, 2 * MINUTE, Fault::Disconnect("n0".into()));
    world.run_until(5 * MINUTE, &mut Prompt);
    assert!(world.oracle.is_clean() && !world.machines["n0"].running.is_empty(), "{:?}", world.oracle.violations);
    end_all(&mut world);
    let mut fence = NodeFence::clone(&world.api.get::<NodeFence>("n0").unwrap());
    fence.status.as_mut().unwrap().volumes.iter_mut().for_each(|row| row.state = VolumeStatusState::Clean);
    writes(&mut world, Op::RecordFence(Box::new(fence)));
    assert_broken(&world, "I5");
}

#[test]
fn i6_something_is_begun_while_most_nodes_are_silent() {
    let mut world = failed_over();
    for node in ["n0", "n1", "n2"] {
        befalls(&mut world, 4 * MINUTE, Fault::PowerOff(node.into()));
    }
    world.run_until(6 * MINUTE, &mut Prompt);
    assert!(world.oracle.is_clean(), "{:?}", world.oracle.violations);
    let decision = Decision { effects: vec![Effect::Open(fence_of(&world, "n1"))], ..Decision::default() };
    world.notice_cluster(0, &decision);
    assert_broken(&world, "I6");
}

#[test]
fn i6_pods_are_moved_while_volumes_of_most_nodes_are_in_trouble() {
    let mut world = failed_over();
    for (volume, node) in [("v0", "n1"), ("v1", "n2")] {
        world.perform(Task::Fault(Box::new(Fault::TaintVolume(volume.into(), vec![node.into()]))), &mut Prompt);
    }
    assert!(world.run_until(world.now + 10 * SECOND, &mut Prompt), "{:?}", world.oracle.violations);
    let decision = Decision { effects: vec![Effect::Open(for_volumes(&world, "n1"))], ..Decision::default() };
    world.notice_cluster(0, &decision);
    assert_broken(&world, "I6");
}

#[test]
fn i7_a_pod_is_held_though_all_is_there() {
    let mut world = well();
    end_all(&mut world);
    befalls(&mut world, 2 * MINUTE, Fault::PowerOff("n0".into()));
    world.run_until(3 * MINUTE, &mut Prompt);
    settle(&mut world, &mut Prompt);
    assert_broken(&world, "I7");
}

#[test]
fn i8_something_of_an_incident_is_left() {
    let mut world = failed_over();
    end_all(&mut world);
    settle(&mut world, &mut Prompt);
    assert_broken(&world, "I8");
}

#[test]
fn i11_something_is_written_at_rest() {
    let mut world = well();
    let edited = policy("all", &["db", "queue"], &json!({ "limits": { "maxNodes": 2 } }));
    befalls(&mut world, 6 * MINUTE, Fault::EditPolicy(Box::new(edited)));
    rest(&mut world, &mut Prompt);
    assert_broken(&world, "I11");
}

#[test]
fn a_write_that_the_schema_refuses_is_noticed() {
    let mut world = failed_over();
    let mut fence = NodeFence::clone(&world.api.get::<NodeFence>("n0").unwrap());
    fence.spec.plan.pods.clear();
    writes(&mut world, Op::ReplaceFence(Box::new(fence)));
    assert_broken(&world, "schema");
}

#[test]
fn i12_something_is_done_by_force_while_a_person_holds_it() {
    let mut world = World::new(Arc::new(Shape::plain()));
    befalls(&mut world, 40 * SECOND, Fault::PowerOff("n0".into()));
    let opened = |world: &World| world.api.fences.get("n0").is_some();
    while !opened(&world) && world.step(&mut Prompt) {}
    world.person(&Person::Hold("n0".into()));
    end_all(&mut world);
    assert!(world.run_until(world.now + 25 * SECOND, &mut Prompt), "{:?}", world.oracle.violations);
    let pod = world.api.get::<Pod>("db-0").unwrap();
    writes(&mut world, Op::DeletePod(pod, Some(0)));
    assert_broken(&world, "I12");
}

#[test]
fn i13_a_node_that_writes_is_cut_off_where_that_is_vetoed() {
    let mut shape = Shape::plain();
    shape.drivers.iter_mut().for_each(|driver| driver.tells_io = true);
    let spec = json!({ "detection": { "storage": { "whenIOInProgress": "Veto" } } });
    shape.policies = vec![policy("all", &["db", "queue"], &spec)];
    let mut world = World::new(Arc::new(shape));
    befalls(&mut world, 40 * SECOND, Fault::Disconnect("n0".into()));
    assert!(world.run_until(3 * MINUTE, &mut Prompt), "{:?}", world.oracle.violations);
    let request = world.api.requests.values().next().expect("a request").clone();
    world.notice_unpublish(2, &request, &request.spec.volumes[0].clone());
    assert_broken(&world, "I13");
}

#[test]
fn i14_a_program_is_moved_more_often_than_its_budget_allows() {
    let mut world = well();
    befalls(&mut world, 2 * MINUTE, Fault::FailProgram("db".into()));
    assert!(world.run_until(3 * MINUTE, &mut Prompt), "{:?}", world.oracle.violations);
    for _ in 0..4 {
        if let Some(pod) = world.api.get::<Pod>("db-0") {
            writes(&mut world, Op::DeletePod(pod, None));
        }
        world.run_until(world.now + 10 * SECOND, &mut Prompt);
    }
    assert_broken(&world, "I14");
}

#[test]
fn i15_a_node_is_declared_failed_that_somebody_hears() {
    let (unhear, mute) = (Fault::Unhear("n1".into()), Fault::Mute("n1".into()));
    let away = Fault::Disconnect("n1".into());
    for (name, faults, is_wrong) in [
        ("heard", vec![], true),
        ("reached by its peers", vec![unhear, away.clone()], true),
        ("its kubelet is heard", vec![mute.clone()], true),
        ("nobody hears of it", vec![mute, away], false),
    ] {
        let mut world = failed_over();
        let mut fence = fence_of(&world, "n1");
        fence.spec.plan.evidence.iter_mut().for_each(|it| it.channel = Channel::Agent);
        faults.into_iter().for_each(|fault| befalls(&mut world, 4 * MINUTE, fault));
        assert!(world.run_until(4 * MINUTE + 35 * SECOND, &mut Prompt), "{name}: {:?}", world.oracle.violations);
        world.notice_cluster(0, &Decision { effects: vec![Effect::Open(fence)], ..Decision::default() });
        let broken: Vec<_> = world.oracle.violations.iter().map(|violation| violation.invariant).collect();
        assert_eq!(broken.contains(&"I15"), is_wrong, "{name}: {broken:?}");
    }
}

#[test]
fn i17_a_node_that_kubernetes_gave_up_is_declared_failed_though_it_renews_its_lease() {
    let is_given_up = |world: &World| world.api.get::<Node>("n1").is_some_and(|node| node.ready() == "Unknown");
    for (fault, is_wrong) in [(Fault::LagBehind("n1".into()), true), (Fault::Freeze("n1".into()), false)] {
        let mut world = failed_over();
        let fence = fence_of(&world, "n1");
        befalls(&mut world, 4 * MINUTE, fault.clone());
        while !is_given_up(&world) && world.now < 6 * MINUTE && world.step(&mut Prompt) {}
        assert!(world.oracle.is_clean() && is_given_up(&world), "{fault:?}: {:?}", world.oracle.violations);
        world.notice_cluster(0, &Decision { effects: vec![Effect::Open(fence)], ..Decision::default() });
        let broken: Vec<_> = world.oracle.violations.iter().map(|violation| violation.invariant).collect();
        assert_eq!(broken.contains(&"I17"), is_wrong, "{fault:?}: {broken:?}");
    }
}
