//! Method NetworkFence: the node is shut out by its addresses, and nothing but the word that its machine is off, or another
//! boot of it, lets it in again.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt as _;
use serde_json::json;

use crate::api::driver_report::DriverReport;
use crate::api::fence_request::{Desired, FenceOutcome, FencerMethodType};
use crate::api::fencing::{FenceMethodType, Proof};
use crate::api::names;
use crate::api::node_fence::{Channel, Phase, VOLUME_TAINT, VolumeStatusState};
use crate::api::slim::{Node, NodeAddress};
use crate::controllers::testing::*;

use super::super::rows::Rows;
use super::world::{Fencer, World};

/// The Node's own address.
pub(super) const ADDRESS: &str = "10.0.0.1";

/// A failed node with these pods, each with a volume of its own, whose storage shuts it out by its addresses.
pub(super) fn shut_out_by_network(pods: &[(&str, &str)]) -> World {
    let method = json!({ "type": "NetworkFence", "networkFence": { "className": "file-fence" } });
    let fencing = json!({ "minimumProof": "Acknowledged", "methods": [method], "callTimeout": "5s" });
    let pods = pods.iter().map(|(name, volume)| pod(name, "n1", &[csi(volume)])).collect();
    let mut world = World::new(pods, &json!({ "fencing": fencing }));
    world.seen.reports = reports([fencing_report(&["NetworkFence"])]);
    world.fencers.insert(DRIVER.into(), Fencer::Proves(Proof::Acknowledged));
    Arc::make_mut(&mut world.seen.fence).spec.node.addresses = vec![ADDRESS.into(), "10.9.0.1".into()];
    world.node_becomes(|node| with_address(node, ADDRESS));
    world
}

/// The Node by another address.
pub(super) fn with_address(mut node: Node, address: &str) -> Node {
    node.status.addresses = vec![NodeAddress { type_: "InternalIP".into(), address: address.into() }];
    node
}

pub(super) fn fencing_report(capabilities: &[&str]) -> DriverReport {
    let mut report = report(DRIVER, capabilities);
    report.status.as_mut().unwrap().network_fence_classes = vec!["file-fence".into()];
    report
}

/// Everything has moved; then the Node is deleted.
pub(super) fn deleted() -> World {
    let mut world = shut_out_by_network(&[("pg", "v1")]);
    world.run();
    let row = world.volume("v1");
    assert_eq!((row.method, row.proof), (Some(FenceMethodType::NetworkFence), Proof::Acknowledged), "{:#?}", world.log);
    world.seen.node = None;
    world.run();
    world
}

pub(super) fn is_shut_out(world: &World) -> bool {
    world.seen.requests.iter().any(|request| request.spec.desired == Desired::Fenced && request.shuts_out())
}

pub(super) fn say_that_it_is_off(world: &mut World, word: &str) {
    let annotations = Arc::make_mut(&mut world.seen.fence).annotations_mut();
    annotations.insert(names::MACHINE_OFF_ANNOTATION.into(), word.into());
}

#[test]
fn a_deleted_node_stays_shut_out_until_somebody_says_that_it_is_off() {
    let mut world = deleted();
    assert!(is_shut_out(&world), "{:#?}", world.log);
    assert_eq!(world.seen.phase(), Some(Phase::Cleaning));
    assert_eq!(world.condition("NodeClean"), Some(("Unknown".into(), "MachineMayRun".into())));
    assert_eq!(world.condition("Stalled"), Some(("True".into(), "MachineMayRun".into())));
    let conditions = world.seen.fence.status.iter().flat_map(|status| &status.conditions);
    let told: Vec<_> = conditions.filter(|it| it.reason == "MachineMayRun").map(|it| it.message.as_str()).collect();
    let command = "kubectl annotate --overwrite nodefence n1 bulkhead.dev/machine-is-off=1";
    assert!(!told.is_empty() && told.iter().all(|message| message.ends_with(command)), "{told:?}");
    world.wait(3600.0);
    world.run();
    assert!(is_shut_out(&world), "time proves nothing: {:#?}", world.log);
    say_that_it_is_off(&mut world, "7");
    world.run();
    assert!(is_shut_out(&world), "it was said of another episode: {:#?}", world.log);
    say_that_it_is_off(&mut world, "1");
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{:#?}", world.log);
    assert!(world.seen.requests.is_empty());
}

#[test]
fn what_lifts_nothing_is_turned_round_for_a_deleted_node() {
    let mut world = shut_out_by_network(&[("pg", "v1")]);
    world.run();
    for request in &mut world.seen.requests {
        Arc::make_mut(request).status.as_mut().unwrap().conditions.clear();
    }
    world.seen.node = None;
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{:#?}", world.log);
}

/// One NetworkFence serves all volumes: turned round for the one that was not begun, it would let the others be written too.
#[test]
fn a_request_that_shuts_out_is_not_turned_round_for_what_was_not_begun() {
    let mut world = shut_out_by_network(&[("a", "v1"), ("b", "v2")]);
    world.fencers.insert(DRIVER.into(), Fencer::BeginsOnly("v1"));
    world.run();
    // What BeginsOnly answers is by the first method of the row.
    assert!(is_shut_out(&world), "{:#?}", world.log);
    world.node_returns();
    world.run();
    assert!(is_shut_out(&world) && !world.did("ask Unfenced"), "{:#?}", world.log);
    assert_ne!(world.volume("v1").state, VolumeStatusState::Clean);
    world.fencers.insert(DRIVER.into(), Fencer::Proves(Proof::Acknowledged));
    world.run();
    let begun = |name: &str| world.volume(name).committed_at.is_some();
    assert!(begun("v1") && begun("v2"), "what was asked for is brought to its end: {:#?}", world.log);
    let answers = world.seen.requests.iter().flat_map(|request| request.status.clone().unwrap().volumes);
    assert!(answers.into_iter().all(|row| row.result != FenceOutcome::Unfenced));
}

/// Rook fences a node with the key by the same addresses, and lifts that for all when the key is gone.
#[test]
fn who_is_shut_out_does_not_get_the_out_of_service_key() {
    let mut world = shut_out_by_network(&[("pg", "v1")]);
    world.run();
    assert!(world.did("detach v1") && !world.did("taint out-of-service"), "{:#?}", world.log);
}

#[test]
fn a_fence_that_somebody_lifted_is_asked_for_again_though_all_has_moved() {
    let mut world = shut_out_by_network(&[("pg", "v1")]);
    world.run();
    assert_eq!(world.volume("v1").state, VolumeStatusState::Detached, "{:#?}", world.log);
    somebody_lifts(&mut world);
    world.wait(5.0);
    world.run();
    world.assert_order(&["v1 is Failed", "ask Fenced v1 round 2", "Started v1", "v1 is Detached"]);
    assert_eq!(world.volume("v1").proof, Proof::Acknowledged);
}

/// The sidecar has looked, and the addresses are let in.
pub(super) fn somebody_lifts(world: &mut World) {
    let row = &mut Arc::make_mut(&mut world.seen.requests[0]).status.as_mut().unwrap().volumes[0];
    (row.result, row.proof, row.reason) = (FenceOutcome::Failed, Proof::None, Some("NetworkFenceLifted".into()));
}

fn answer(world: &World) -> (FenceOutcome, i32) {
    let answers = world.seen.requests.iter().flat_map(|request| &request.status).flat_map(|status| &status.volumes);
    answers.into_iter().next().map(|row| (row.result, row.round)).unwrap()
}

/// Nobody waits for a proof any more; but what ran there may run still.
#[test]
fn a_fence_that_somebody_lifted_is_asked_for_again_while_the_machine_may_write_on() {
    for name in ["back and not clean", "its Node is deleted"] {
        let mut world = shut_out_by_network(&[("pg", "v1")]);
        world.run();
        if name == "its Node is deleted" {
            world.seen.node = None;
        } else {
            world.node_returns();
        }
        world.run();
        assert_eq!(answer(&world), (FenceOutcome::Fenced, 1), "{name}: {:#?}", world.log);
        somebody_lifts(&mut world);
        world.fencers.insert(DRIVER.into(), Fencer::Fails("BeingUnfenced"));
        world.wait(5.0);
        world.run();
        assert_eq!(answer(&world), (FenceOutcome::Failed, 2), "{name}: {:#?}", world.log);
        world.fencers.insert(DRIVER.into(), Fencer::Proves(Proof::Acknowledged));
        world.run();
        assert_eq!(answer(&world), (FenceOutcome::Failed, 2), "{name}: not at once");
        world.wait(5.0);
        world.run();
        assert_eq!(answer(&world), (FenceOutcome::Fenced, 3), "{name}: {:#?}", world.log);
        assert!(is_shut_out(&world), "{name}: {:#?}", world.log);
    }
}

/// Once the machine is another boot nobody is shut out again.
#[test]
fn a_fence_that_somebody_lifted_is_not_asked_for_again_when_the_node_is_clean() {
    let mut world = shut_out_by_network(&[("pg", "v1")]);
    world.run();
    somebody_lifts(&mut world);
    world.wait(5.0);
    world.node_reboots();
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{:#?}", world.log);
    assert!(!world.did("ask Fenced v1 round 2"), "{:#?}", world.log);
}

/// The node is back, not clean, and one of its volumes is in trouble: the row of the incident before is carried over, and its
/// fence is kept, though nobody else on a node that is well is shut out.
#[test]
fn a_row_that_is_carried_over_into_an_incident_of_volumes_stays_shut_out() {
    let mut world = shut_out_by_network(&[("pg", "v1")]);
    world.run();
    world.node_returns();
    world.run();
    let other = pod("other", "n1", &[csi("v2")]);
    let mut next = super::build::fence(std::slice::from_ref(&other), &world.seen.policies[0]).spec;
    next.episode = 2;
    next.plan.pods.iter_mut().for_each(|row| (row.episode, row.reason) = (2, VOLUME_TAINT.into()));
    next.plan.volumes.iter_mut().for_each(|row| row.episode = 2);
    next.plan.evidence.iter_mut().for_each(|it| it.channel = Channel::Volume);
    next.plan.volumes.extend(world.seen.fence.spec.plan.volumes.clone());
    Arc::make_mut(&mut world.seen.fence).spec = next;
    world.seen.pods.push(other);
    world.attach("v2", "va-v2", true);
    let health = tainted("v2", "VolumeNotUsable", &["n1"]);
    world.seen.healths = Some(BTreeMap::from([("v2".into(), Arc::new(health))]));
    let policy = Arc::make_mut(&mut world.seen.policies[0]);
    policy.spec.triggers.volume_taints = vec!["VolumeNotUsable".into()];
    world.run();
    assert_eq!(answer(&world), (FenceOutcome::Fenced, 1), "{:#?}", world.log);
    assert_eq!(world.volume("v2").state, VolumeStatusState::Failed, "a node that is well is not shut out");
    somebody_lifts(&mut world);
    world.wait(5.0);
    world.run();
    assert!(is_shut_out(&world), "{:#?}", world.log);
    assert_eq!(answer(&world), (FenceOutcome::Fenced, 2), "{:#?}", world.log);
    let first = world.seen.fence.status.iter().flat_map(|status| &status.volumes).find(|row| row.name == "v1");
    assert!(first.is_some_and(|row| row.episode == 1 && row.proof == Proof::Acknowledged), "{first:?}");
}

/// A node that is well is not shut out for some volumes; when it fails while they are not cut off yet, it may be.
#[test]
fn the_next_method_comes_into_question_when_the_node_fails_too() {
    let network = json!({ "type": "NetworkFence", "networkFence": { "className": "file-fence" } });
    let fencing = json!({ "minimumProof": "Acknowledged", "methods": [{ "type": "Unpublish" }, network] });
    let spec = json!({ "fencing": fencing, "triggers": { "volumeTaints": ["VolumeNotUsable"] } });
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &spec);
    world.seen.reports = reports([fencing_report(&["Unpublish", "ListPublishedNodes", "NetworkFence"])]);
    world.fencers.insert(DRIVER.into(), Fencer::Fails("Unavailable"));
    world.plan().evidence.iter_mut().for_each(|it| it.channel = Channel::Volume);
    world.plan().pods.iter_mut().for_each(|row| row.reason = VOLUME_TAINT.into());
    let health = tainted("v1", "VolumeNotUsable", &["n1"]);
    world.seen.healths = Some(BTreeMap::from([("v1".into(), Arc::new(health))]));
    world.node_returns();
    world.run();
    let methods = |world: &World| {
        let requested = world.seen.requests.iter().flat_map(|request| &request.spec.volumes);
        requested.flat_map(|volume| &volume.methods).map(|method| method.type_).collect::<Vec<_>>()
    };
    assert_eq!(methods(&world), [FencerMethodType::Unpublish], "{:#?}", world.log);
    world.plan().evidence.iter_mut().for_each(|it| it.channel = Channel::Kubelet);
    world.seen.lease_is_still = true;
    world.node_fails();
    world.wait(5.0);
    world.run();
    assert_eq!(methods(&world), [FencerMethodType::Unpublish, FencerMethodType::NetworkFence], "{:#?}", world.log);
    assert!(world.did("ask Fenced v1 round 2"), "{:#?}", world.log);
}

#[test]
fn a_class_that_the_driver_does_not_have_is_told_and_not_tried() {
    let mut world = shut_out_by_network(&[("pg", "v1")]);
    let report = Arc::make_mut(world.seen.reports.get_mut(DRIVER).unwrap());
    report.status.as_mut().unwrap().network_fence_classes = vec!["another".into()];
    world.run();
    assert!(world.seen.requests.is_empty(), "{:#?}", world.log);
    let row = world.volume("v1");
    assert_eq!(row.reason.as_deref(), Some("ClassNotFound"));
    assert!(row.message.is_some_and(|message| message.contains("file-fence")));
}

/// An answer names its method and not the class; and a request has room for each method once.
#[test]
fn a_fencer_is_asked_for_each_method_once() {
    let network = |class: &str| json!({ "type": "NetworkFence", "networkFence": { "className": class } });
    let unpublish = json!({ "type": "Unpublish" });
    let methods = json!([unpublish, network("file-fence"), network("another"), unpublish]);
    let fencing = json!({ "minimumProof": "Acknowledged", "methods": methods });
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({ "fencing": fencing }));
    world.seen.reports = reports([fencing_report(&["Unpublish", "NetworkFence"])]);
    world.run();
    let volume = world.seen.requests.iter().flat_map(|request| &request.spec.volumes).next().unwrap();
    let asked: Vec<_> = volume.methods.iter().map(|method| (method.type_, method.class_name.as_deref())).collect();
    assert_eq!(asked, [(FencerMethodType::Unpublish, None), (FencerMethodType::NetworkFence, Some("file-fence"))]);
}

/// By that it is raised again when somebody lifts it; that a fencer has proved it since is on record beside it.
#[test]
fn a_network_fence_on_which_pods_went_stays_on_record() {
    let fencing = json!({ "minimumProof": "Acknowledged", "methods": [network(), external()], "callTimeout": "5s" });
    let kept = but(pod("b", "n1", &[csi("v1")]), |pod| pod.metadata.finalizers = Some(vec!["kept".into()]));
    let mut world = World::new(vec![pod("a", "n1", &[csi("v1")]), kept], &json!({ "fencing": fencing }));
    world.seen.reports = reports([fencing_report(&["NetworkFence"])]);
    world.fencers.insert(DRIVER.into(), Fencer::Proves(Proof::Acknowledged));
    world.fencers.insert(POWER.into(), Fencer::Proves(Proof::Verified));
    Arc::make_mut(&mut world.seen.fence).spec.node.addresses = vec![ADDRESS.into()];
    world.node_becomes(|node| with_address(node, ADDRESS));
    world.run();
    assert!(world.did("delete a grace 0"), "{:#?}", world.log);
    let by = |world: &World| (world.volume("v1").method, world.volume("v1").external_proof);
    assert_eq!(by(&world), (Some(FenceMethodType::NetworkFence), None), "{:#?}", world.log);
    world.fencers.insert(DRIVER.into(), Fencer::Silent);
    for _ in 0..3 {
        world.wait(11.0);
        world.run();
    }
    assert!(world.seen.request(POWER).is_some(), "{:#?}", world.log);
    assert_eq!(by(&world), (Some(FenceMethodType::NetworkFence), Some(Proof::Verified)), "{:#?}", world.log);
}

/// Its row says Fenced until all of it is lifted.
#[test]
fn a_fence_that_is_being_lifted_is_no_proof() {
    let mut world = shut_out_by_network(&[("pg", "v1")]);
    world.run();
    let is_fresh = |world: &World| Rows::advance(&world.seen, world.now).volume("v1").is_some_and(|row| row.fresh);
    assert!(is_fresh(&world), "{:#?}", world.log);
    Arc::make_mut(&mut world.seen.requests[0]).spec.desired = Desired::Unfenced;
    assert!(!is_fresh(&world));
}
