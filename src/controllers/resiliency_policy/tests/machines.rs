//! Another machine has the name of one that a network fence shuts out, or an external fencer keeps out, and fails too.

use std::sync::Arc;

use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::api::conditions::{self, State};
use crate::api::fence_request::{FenceRequest, SHUT_OUT};
use crate::api::fencing::{FenceMethodType, Proof};
use crate::api::names;
use crate::api::node_fence::{
    MACHINE_MAY_RUN, NODE_DELETED, NodeFence, Phase, PodStatus, PodStatusState, VolumeStatus, VolumeStatusState,
};
use crate::api::slim::{Node, NodeAddress};
use crate::controllers::testing::*;

use super::super::memory::{Found, Memory};
use super::super::plan::LiveNode;
use super::World;

pub(super) const FROZEN: &str = "10.0.0.1";
pub(super) const ANOTHER: &str = "10.0.0.9";

pub(super) fn by(methods: &[&str]) -> Value {
    let method = |type_: &&str| match *type_ {
        "NetworkFence" => json!({ "type": type_, "networkFence": { "className": "file-fence" } }),
        "External" => external(),
        _ => json!({ "type": type_ }),
    };
    let methods: Vec<_> = methods.iter().map(method).collect();
    json!({ "fencing": { "minimumProof": "Acknowledged", "methods": methods } })
}

/// The failed node, in that boot and by that address.
pub(super) fn machine(boot_id: &str, address: &str) -> Node {
    let mut node = unreachable("n0");
    node.status.node_info.boot_id = boot_id.into();
    node.status.addresses = vec![NodeAddress { type_: "InternalIP".into(), address: address.into() }];
    if boot_id != "boot-1" {
        node.metadata.uid = Some("uid-again".into());
    }
    node
}

/// A node has failed, and its volume is cut off by that method.
pub(super) fn cut_off(
    method: FenceMethodType,
    phase: Phase,
    (state, reason): (VolumeStatusState, Option<&str>),
) -> World {
    let methods: &[&str] = match method {
        FenceMethodType::External => &["External"],
        _ => &["NetworkFence", "Unpublish"],
    };
    let mut world = World::with_failed(3, 1, &by(methods));
    world.rest();
    world.reach("n0", phase);
    let fence = Arc::make_mut(&mut world.seen.fences[0]);
    fence.spec.node.addresses = vec![FROZEN.into()];
    let at = Some(world.now.wall);
    fence.status.as_mut().unwrap().volumes = vec![VolumeStatus {
        episode: 1,
        name: "v0".into(),
        state,
        proof: Proof::Acknowledged,
        method: Some(method),
        external_proof: None,
        committed_at: at,
        proved_at: at,
        reason: reason.map(str::to_owned),
        message: None,
        refences: None,
    }];
    world.wait(1.0);
    world
}

fn shut_out() -> World {
    cut_off(FenceMethodType::NetworkFence, Phase::Cleaning, (VolumeStatusState::Detached, None))
}

/// Its pod has gone by force, since an external fencer proves so much of its machine, or did before that was taken back.
pub(super) fn kept_out(phase: Phase, row: (VolumeStatusState, Option<&str>), proof: Proof) -> World {
    use VolumeStatusState::{Failed, Fencing};
    let mut world = cut_off(FenceMethodType::External, phase, row);
    let fence = Arc::make_mut(&mut world.seen.fences[0]);
    let status = fence.status.as_mut().unwrap();
    status.volumes[0].proof = if matches!(row.0, Failed | Fencing) { Proof::None } else { proof };
    status.volumes[0].external_proof = Some(proof).filter(|proof| *proof > Proof::None);
    status.pods = vec![PodStatus {
        episode: 1,
        uid: fence.spec.plan.pods[0].uid.clone(),
        state: PodStatusState::Released,
        released_at: None,
        reason: None,
        message: None,
    }];
    world
}

pub(super) fn episode(world: &World) -> i64 {
    world.fence("n0").unwrap().spec.episode
}

pub(super) fn say_that_it_is_off(world: &mut World, word: &str) {
    let annotations = Arc::make_mut(&mut world.seen.fences[0]).annotations_mut();
    annotations.insert(names::MACHINE_OFF_ANNOTATION.into(), word.into());
}

/// At its end, or by the reboot of the other machine, the first one would be let in too.
#[test]
fn another_machine_gets_no_incident_before_the_first_is_said_to_be_off() {
    use VolumeStatusState::{Clean, Detached, Failed, Fencing};
    for row in [
        (Clean, Some(NODE_DELETED)),
        (Detached, None),
        (Failed, Some("NetworkFenceLifted")),
        (Fencing, Some("Reattached")),
    ] {
        let mut world = cut_off(FenceMethodType::NetworkFence, Phase::Cleaning, row);
        world.node_becomes(machine("boot-2", ANOTHER));
        for said in ["", "7"] {
            say_that_it_is_off(&mut world, said);
            world.wait(3600.0);
            world.rest();
            assert_eq!(episode(&world), 1, "{row:?} {said:?}");
        }
        world.seen.live.clear();
        let decision = super::decide(&world.seen, world.now);
        assert_eq!(decision.look_at, [""; 0], "nothing is read for as long as it waits: {row:?}");
        let [held] = decision.restrained.as_slice() else { panic!("{:?}", decision.restrained) };
        assert_eq!((held.node.as_str(), held.policy.as_str(), held.brake), ("n0", "db", MACHINE_MAY_RUN));
        // The annotation of an earlier episode is there yet.
        let command = "kubectl annotate --overwrite nodefence n0 bulkhead.dev/machine-is-off=1";
        assert!(held.about.as_ref().unwrap().ends_with(command), "{held:?}");
        say_that_it_is_off(&mut world, "1");
        world.rest();
        assert_eq!(episode(&world), 2, "{row:?}");
        assert_eq!(world.fence("n0").unwrap().spec.node.uid, "uid-again", "{row:?}");
        assert_eq!(world.decide().restrained, [], "{row:?}");
    }
}

/// Who saw it off before knows nothing of that.
#[test]
fn nor_on_a_word_of_before_the_first_failed_again() {
    let mut world = shut_out();
    let fence = Arc::make_mut(&mut world.seen.fences[0]);
    fence.status.as_mut().unwrap().failed_boot_ids = vec!["boot-1-again".into()];
    let word = fence.machine_off_word();
    world.node_becomes(machine("boot-2", ANOTHER));
    say_that_it_is_off(&mut world, "1");
    world.rest();
    assert_eq!(episode(&world), 1);
    let [held] = world.decide().restrained.try_into().unwrap();
    assert!(held.about.unwrap().ends_with(&format!("bulkhead.dev/machine-is-off={word}")));
    say_that_it_is_off(&mut world, &word);
    world.rest();
    assert_eq!(episode(&world), 2);
}

#[test]
fn who_is_the_same_machine_or_rests_on_no_address_is_failed_over_again() {
    use VolumeStatusState::{Clean, Detached};
    let network = FenceMethodType::NetworkFence;
    for (name, method, phase, row, node) in [
        ("the same boot", network, Phase::Cleaning, (Detached, None), machine("boot-1", ANOTHER)),
        ("a frozen address", network, Phase::Cleaning, (Detached, None), machine("boot-2", FROZEN)),
        ("shown clean", network, Phase::Cleaning, (Clean, Some("Rebooted")), machine("boot-3", ANOTHER)),
        ("over", network, Phase::Recovered, (Clean, Some(NODE_DELETED)), machine("boot-2", ANOTHER)),
        (
            "cut off by its driver",
            FenceMethodType::Unpublish,
            Phase::Cleaning,
            (Clean, Some(NODE_DELETED)),
            machine("boot-2", ANOTHER),
        ),
    ] {
        let mut world = cut_off(method, phase, row);
        world.node_becomes(node);
        world.rest();
        assert_eq!(episode(&world), 2, "{name}");
        assert_eq!(world.decide().restrained, [], "{name}");
    }
}

/// It has power, and what ran there writes on as soon as the one FenceRequest for both is over.
#[test]
fn nor_does_it_get_one_while_a_fencer_keeps_out_the_first_that_has_power() {
    use VolumeStatusState::{Clean, Detached, Failed, Fenced, Fencing};
    let (failed, reattached) = ((Failed, Some("DeadlineExceeded")), (Fencing, Some("Reattached")));
    for proof in [Proof::Acknowledged, Proof::Verified] {
        for row in [(Fenced, None), (Detached, None), (Clean, Some(NODE_DELETED)), failed, reattached] {
            let mut world = kept_out(Phase::Cleaning, row, proof);
            world.node_becomes(machine("boot-2", ANOTHER));
            world.wait(3600.0);
            world.rest();
            assert_eq!(episode(&world), 1, "{proof:?} {row:?}");
            let restrained = world.decide().restrained;
            let [held] = restrained.as_slice() else { panic!("{proof:?} {row:?}: {restrained:?}") };
            assert_eq!((held.node.as_str(), held.brake), ("n0", MACHINE_MAY_RUN), "{proof:?} {row:?}");
            let about = held.about.as_deref().unwrap();
            assert!(about.starts_with("an external fencer"), "{about}");
            assert!(about.ends_with("bulkhead.dev/machine-is-off=1"), "{about}");
            say_that_it_is_off(&mut world, "1");
            world.rest();
            assert_eq!(episode(&world), 2, "{proof:?} {row:?}");
        }
    }
}

/// Which of the pods of an earlier episode have gone is not on record any more.
#[test]
fn what_a_fencer_has_kept_out_in_an_earlier_episode_counts_too() {
    let mut world = kept_out(Phase::Cleaning, (VolumeStatusState::Detached, None), Proof::Verified);
    let fence = Arc::make_mut(&mut world.seen.fences[0]);
    fence.spec.episode = 2;
    fence.status.as_mut().unwrap().pods.clear();
    world.node_becomes(machine("boot-2", ANOTHER));
    world.rest();
    assert_eq!(episode(&world), 2);
    let held: Vec<_> = world.decide().restrained.iter().map(|it| it.brake).collect();
    assert_eq!(held, [MACHINE_MAY_RUN]);
}

#[test]
fn where_a_fencer_keeps_out_nobody_that_runs_another_machine_is_failed_over() {
    use VolumeStatusState::{Clean, Detached, Failed};
    let as_it_is = |_: &mut NodeFence| {};
    let no_pod_has_gone =
        |fence: &mut NodeFence| fence.status.as_mut().unwrap().pods[0].state = PodStatusState::Waiting;
    let power_is_demanded = |fence: &mut NodeFence| fence.spec.plan.volumes[0].minimum_proof = Proof::PowerOff;
    let another = || machine("boot-2", ANOTHER);
    let (stands, none) = ((Detached, None), Proof::None);
    for (name, phase, row, proof, change, node) in [
        ("it has no power", Phase::Cleaning, stands, Proof::PowerOff, as_it_is as fn(&mut NodeFence), another()),
        ("it had none", Phase::Cleaning, (Failed, Some("PowerRestored")), Proof::PowerOff, as_it_is, another()),
        ("by an old record", Phase::Cleaning, (Failed, Some("PowerRestored")), none, as_it_is, another()),
        ("power is demanded", Phase::Cleaning, stands, Proof::Verified, power_is_demanded, another()),
        ("no pod has gone", Phase::Cleaning, stands, Proof::Verified, no_pod_has_gone, another()),
        ("shown clean", Phase::Cleaning, (Clean, Some("Rebooted")), Proof::Verified, as_it_is, another()),
        ("over", Phase::Recovered, (Clean, Some(NODE_DELETED)), Proof::Verified, as_it_is, another()),
        ("the same boot", Phase::Cleaning, stands, Proof::Verified, as_it_is, machine("boot-1", ANOTHER)),
        ("a frozen address", Phase::Cleaning, stands, Proof::Verified, as_it_is, machine("boot-2", FROZEN)),
    ] {
        let mut world = kept_out(phase, row, proof);
        change(Arc::make_mut(&mut world.seen.fences[0]));
        world.node_becomes(node);
        world.rest();
        assert_eq!(episode(&world), 2, "{name}");
        assert_eq!(world.decide().restrained, [], "{name}");
    }
    let mut world = kept_out(Phase::Cleaning, stands, Proof::Verified);
    world.seen.fences.clear();
    world.node_becomes(another());
    world.rest();
    assert_eq!(episode(&world), 1, "a NodeFence that is gone keeps out nobody");
}

/// Who proved last gave its rows their method; the NetworkFence of a round before, or of the episode before, is there all the same.
#[test]
fn whom_a_request_shuts_out_is_shut_out_whatever_the_rows_say() {
    use VolumeStatusState::{Clean, Detached};
    for (method, row) in [
        (FenceMethodType::Unpublish, (Clean, Some(NODE_DELETED))),
        (FenceMethodType::Unpublish, (Detached, None)),
        (FenceMethodType::Detach, (Clean, Some(NODE_DELETED))),
        (FenceMethodType::External, (Clean, Some("Rebooted"))),
    ] {
        let mut world = cut_off(method, Phase::Cleaning, row);
        world.seen.requests.insert("n0".into(), vec![Arc::new(shutting_out())]);
        world.node_becomes(machine("boot-2", ANOTHER));
        world.rest();
        assert_eq!(episode(&world), 1, "{method:?} {row:?}");
        let held: Vec<_> = world.decide().restrained.iter().map(|it| it.brake).collect();
        assert_eq!(held, [MACHINE_MAY_RUN], "{method:?} {row:?}");
        say_that_it_is_off(&mut world, "1");
        world.rest();
        assert_eq!(episode(&world), 2, "{method:?} {row:?}");
    }
}

/// The watch of the FenceRequests may be behind for longer than that of the nodes.
#[test]
fn a_request_that_is_read_live_shuts_out_too() {
    let row = (VolumeStatusState::Clean, Some(NODE_DELETED));
    let mut world = cut_off(FenceMethodType::Unpublish, Phase::Cleaning, row);
    world.node_becomes(machine("boot-2", ANOTHER));
    let live = LiveNode { requests: vec![Arc::new(shutting_out())], ..world.look_at("n0").unwrap() };
    world.live.insert("n0".into(), live);
    world.rest();
    assert_eq!(episode(&world), 1);
    let held: Vec<_> = world.decide().restrained.iter().map(|it| it.brake).collect();
    assert_eq!(held, [MACHINE_MAY_RUN]);
}

#[test]
fn a_pass_knows_what_is_asked_for_which_node() {
    let requests = ["n0", "n1", "n0"].map(|node| Arc::new(request(node, DRIVER, &json!([]))));
    let found = Found { requests: requests.into(), ..Found::default() };
    let seen = Memory::default().look(found, (0, 1), now());
    let counted = seen.requests.iter().map(|(node, requests)| (node.as_str(), requests.len()));
    assert_eq!(counted.collect::<Vec<_>>(), [("n0", 2), ("n1", 1)]);
}

pub(super) fn request(node: &str, fencer: &str, volumes: &Value) -> FenceRequest {
    serde_json::from_value(json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "FenceRequest", "metadata": { "name": node },
        "spec": {
            "fencerName": fencer, "nodeName": node, "episode": 1, "desired": "Fenced", "callTimeout": "5s",
            "node": { "uid": format!("uid-{node}") }, "volumes": volumes,
        },
    }))
    .unwrap()
}

fn shutting_out() -> FenceRequest {
    let mut request = request("n0", DRIVER, &json!([]));
    let status = request.status.get_or_insert_default();
    conditions::set(&mut status.conditions, SHUT_OUT, State::True, "NetworkFence", "", 1, now().wall);
    request
}

/// The store may be a moment behind.
#[test]
fn what_is_read_live_tells_another_machine_too() {
    let mut world = shut_out();
    world.node_becomes(machine("boot-1", FROZEN));
    let mut live = world.look_at("n0").unwrap();
    live.node = Arc::new(machine("boot-2", ANOTHER));
    world.live.insert("n0".into(), live);
    world.rest();
    assert_eq!(episode(&world), 1);
    let held: Vec<_> = world.decide().restrained.iter().map(|it| it.brake).collect();
    assert_eq!(held, [MACHINE_MAY_RUN]);
}

/// The deletion of its Node was taken to have cleaned it, and its machine never went away.
#[test]
fn what_a_deletion_cleaned_is_carried_over_in_the_same_boot() {
    for (boot_id, expected) in [("boot-1", true), ("boot-2", false), ("", false)] {
        let row = (VolumeStatusState::Clean, Some(NODE_DELETED));
        let mut world = cut_off(FenceMethodType::NetworkFence, Phase::Cleaning, row);
        world.node_becomes(machine(boot_id, FROZEN));
        world.rest();
        assert_eq!(episode(&world), 2, "{boot_id:?}");
        let rows = &world.fence("n0").unwrap().spec.plan.volumes;
        assert_eq!(rows.iter().any(|row| row.episode == 1 && row.name == "v0"), expected, "{boot_id:?}");
    }
}
