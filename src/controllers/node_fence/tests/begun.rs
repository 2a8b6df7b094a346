//! What an external fencer has begun and never proved. It may have cut the machine off all the same: given back while nobody is there who
//! knows of its processes, these would write beside those that came after.

use std::sync::Arc;

use crate::api::fence_request::Desired;
use crate::api::fencing::Proof;
use crate::api::node_fence::{Phase, PodAction, PodStatusState};
use crate::api::usage::PodView;
use crate::controllers::testing::*;

use super::cleaning::{clean, condition, says};
use super::given_back::{ANOTHER, created_again, desired, failed_again, failed_at, machine_may_run};
use super::network::{ADDRESS, say_that_it_is_off, with_address};
use super::world::{Fencer, World};

/// A call that hangs, fails, or proves less than is demanded may have cut it off.
const BEGINNINGS: [(Fencer, &str); 3] = [
    (Fencer::Hangs, "Verified"),
    (Fencer::Fails("DeadlineExceeded"), "Verified"),
    (Fencer::Proves(Proof::Verified), "PowerOff"),
];

/// Its fencer has begun with the volume of its pod.
fn begun(fencer: &Fencer, minimum: &str) -> World {
    let mut world = failed_at(minimum, vec![pod("a", "n1", &[csi("v1")])], &[external()]);
    world.fencers.insert(POWER.into(), fencer.clone());
    world.run();
    assert!(world.did("Started v1") && !world.did("delete a"), "{fencer:?}: {:#?}", world.log);
    world
}

/// Its fencer has begun with the first of two volumes, and has proved less than is demanded.
fn half_begun() -> World {
    let pods = vec![pod("a", "n1", &[csi("v1")]), pod("b", "n1", &[csi("v2")])];
    let mut world = failed_at("PowerOff", pods, &[external()]);
    world.fencers.insert(POWER.into(), Fencer::BeginsOnly("v1"));
    world.run();
    assert!(world.did("Started v1") && !world.did("Started v2"), "{:#?}", world.log);
    world
}

/// Its pod is gone, and nobody of ours has removed it.
fn pod_is_removed(world: &mut World) {
    world.remove_pod("a");
    world.seen.attachments.clear();
    world.run();
    assert!(!world.did("delete a"), "{:#?}", world.log);
}

fn node_is_deleted(world: &mut World) {
    world.seen.node = None;
    pod_is_removed(world);
}

/// Another machine that has its name knows nothing of its processes.
#[test]
fn what_was_begun_with_a_machine_is_not_given_back_while_another_has_its_name() {
    for (fencer, minimum) in BEGINNINGS {
        for (address, is_let_in) in [(ANOTHER, false), (ADDRESS, true)] {
            let mut world = begun(&fencer, minimum);
            world.node_becomes(|node| with_address(node, address));
            world.node_reboots();
            world.run();
            assert!(world.did("delete a graceful") && !world.did("delete a grace 0"), "{fencer:?}: {:#?}", world.log);
            world.remove_pod("a");
            world.seen.attachments.clear();
            world.run();
            assert_eq!(world.did("ask Unfenced"), is_let_in, "{fencer:?} {address}: {:#?}", world.log);
            if !is_let_in {
                assert_eq!(world.condition("Stalled"), machine_may_run(), "{fencer:?}: {:#?}", world.log);
                say_that_it_is_off(&mut world, "1");
                world.run();
            }
            assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{fencer:?} {address}: {:#?}", world.log);
        }
    }
}

/// With the Node Kubernetes has removed its pods, whoever writes on there.
#[test]
fn nor_while_its_node_is_deleted() {
    for (fencer, minimum) in BEGINNINGS {
        let mut world = begun(&fencer, minimum);
        node_is_deleted(&mut world);
        assert_eq!(desired(&world, POWER), Some(Desired::Fenced), "{fencer:?}: {:#?}", world.log);
        assert_eq!(world.condition("Stalled"), machine_may_run(), "{fencer:?}: {:#?}", world.log);
        let told = condition(&world, "NodeClean").2;
        assert!(told.contains("fencer power.example.com has begun to cut it off, and has not proved it"), "{told}");
        say_that_it_is_off(&mut world, "1");
        world.run();
        assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{fencer:?}: {:#?}", world.log);
    }
}

#[test]
fn a_node_that_is_made_anew_is_given_back_when_it_is_the_machine_and_has_rebooted() {
    let cases = [("boot-2", ADDRESS, true), ("boot-2", ANOTHER, false), ("boot-1", ADDRESS, false)];
    for (fencer, minimum) in BEGINNINGS {
        for (boot_id, address, is_let_in) in cases {
            let mut world = begun(&fencer, minimum);
            node_is_deleted(&mut world);
            world.seen.node = Some(Arc::new(created_again(boot_id, address)));
            world.run();
            let is_recovered = world.seen.phase() == Some(Phase::Recovered);
            let about = format!("{fencer:?} {boot_id} {address}: {:#?}", world.log);
            assert_eq!((world.did("ask Unfenced"), is_recovered), (is_let_in, is_let_in), "{about}");
        }
    }
}

/// What ran there may run still, and its kubelet has only just begun to end it; also what runs for a volume that was not begun with, for it is
/// the whole machine that is cut off. The agent looks for what was begun; the rest its kubelet has ended by then.
#[test]
fn a_node_whose_pods_others_removed_is_let_in_when_its_agent_finds_it_clean() {
    for (removed, is_seen_at_once) in [("a", false), ("a", true), ("b", false), ("b", true)] {
        let mut world = half_begun();
        world.remove_pod(removed);
        if !is_seen_at_once {
            world.run();
        }
        world.node_returns();
        world.run_controller();
        assert_eq!(desired(&world, POWER), Some(Desired::Fenced), "{removed} {is_seen_at_once}: {:#?}", world.log);
        world.remove_pod("a");
        world.run_controller();
        let told = condition(&world, "NodeClean").2;
        assert!(told.contains("; fencer power.example.com is not told to give back before it has booted"), "{told}");
        let status = clean(&world);
        says(&mut world, status);
        world.run();
        assert!(world.did("ask Unfenced"), "{removed} {is_seen_at_once}: {:#?}", world.log);
    }
}

/// Its rows are closed with the Node, so that no record has it.
#[test]
fn that_it_has_no_power_counts_though_its_node_is_deleted() {
    for (says, is_let_in) in [(Proof::PowerOff, true), (Proof::Verified, false)] {
        let mut world = begun(&Fencer::Hangs, "PowerOff");
        node_is_deleted(&mut world);
        world.fencers.insert(POWER.into(), Fencer::Proves(says));
        world.run();
        assert_eq!(world.did("ask Unfenced"), is_let_in, "{says:?}: {:#?}", world.log);
        assert_eq!(world.seen.phase() == Some(Phase::Recovered), is_let_in, "{says:?}: {:#?}", world.log);
    }
}

/// So it holds up no other node by its policies' limits (`brakes::counts`), which a silent fencer would do for ever.
#[test]
fn no_pod_is_left_where_its_fencer_is_silent_about_the_rest() {
    let mut world = half_begun();
    world.remove_pod("b");
    node_is_deleted(&mut world);
    world.wait(3600.0);
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Detached), "{:#?}", world.log);
    assert_eq!(world.condition("Stalled"), machine_may_run(), "{:#?}", world.log);
}

/// Nothing that its fencer gives back is access to what its driver has taken.
#[test]
fn what_its_driver_has_proved_keeps_nothing_that_was_begun() {
    for (is_deleted, end) in [(false, Phase::Detached), (true, Phase::Recovered)] {
        // With folders of the node, as every DaemonSet of its network has.
        let kept = pod("kept", "n1", &[local("host")]);
        let mut world = driver_proves_after_it(vec![pod("a", "n1", &[csi("v1")]), kept]);
        if is_deleted {
            world.remove_pod("kept");
            world.seen.node = None;
            world.seen.attachments.clear();
        }
        world.wait(61.0);
        world.run();
        assert_eq!(world.seen.phase(), Some(end), "{is_deleted}: {:#?}", world.log);
        let wanted = (!is_deleted).then_some(Desired::Unfenced);
        assert_eq!(desired(&world, POWER), wanted, "it may have its power again, {is_deleted}: {:#?}", world.log);
    }
}

/// The driver of the first volume proves it, after an external fencer has begun with that and failed.
fn driver_proves_after_it(pods: Vec<PodView>) -> World {
    let mut world = failed_at("Verified", pods, &[external(), unpublish()]);
    for row in world.plan().pods.iter_mut().filter(|row| row.name == "kept") {
        (row.action, row.reason) = (PodAction::Keep, "NoPolicy".into());
    }
    world.fencers.insert(POWER.into(), Fencer::Fails("DeadlineExceeded"));
    world.run();
    assert!(world.did("Started v1") && world.did("delete a grace 0"), "{:#?}", world.log);
    world
}

/// It has cut off all of the machine, also what nobody has taken from it.
#[test]
fn what_its_driver_has_proved_of_one_volume_says_nothing_of_the_others() {
    for is_deleted in [false, true] {
        let mut world = driver_proves_after_it(vec![pod("a", "n1", &[csi("v1")]), pod("kept", "n1", &[csi("v2")])]);
        assert_eq!(world.pod("kept").0, PodStatusState::Kept, "{:#?}", world.log);
        world.remove_pod("kept");
        world.seen.attachments.clear();
        if is_deleted {
            world.seen.node = None;
        }
        world.wait(61.0);
        world.run();
        assert_eq!(desired(&world, POWER), Some(Desired::Fenced), "{is_deleted}: {:#?}", world.log);
        let told = condition(&world, "NodeClean").2;
        assert_eq!(told.starts_with("fencer power.example.com is not told to give back"), !is_deleted, "{told}");
    }
}

/// Which pods of an earlier episode are gone is not on record any more.
#[test]
fn what_an_earlier_episode_has_begun_is_kept_until_the_node_is_clean() {
    let mut world = failed_again(Fencer::Fails("DeadlineExceeded"));
    world.node_returns();
    world.run_controller();
    assert!(!world.did("ask Unfenced"), "{:#?}", world.log);
}

/// Nobody else would ask again for a volume that no pod waits for.
#[test]
fn a_fencer_that_has_failed_is_asked_again_though_its_node_is_deleted() {
    for first in [Fencer::Fails("BmcUnavailable"), Fencer::Proves(Proof::Verified)] {
        let mut world = begun(&first, "PowerOff");
        node_is_deleted(&mut world);
        assert_eq!(world.condition("Stalled"), machine_may_run(), "{first:?}: {:#?}", world.log);
        world.fencers.insert(POWER.into(), Fencer::Proves(Proof::PowerOff));
        world.wait(61.0);
        world.run();
        world.assert_order(&["ask Fenced v1 round 1", "ask Fenced v1 round 2", "Fenced v1", "ask Unfenced"]);
        assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{first:?}: {:#?}", world.log);
    }
}

/// It was off in the first boot and is off in the second: nothing of either lives.
#[test]
fn what_is_proved_to_be_off_again_is_given_its_power() {
    let mut world = failed_at("PowerOff", vec![pod("a", "n1", &[csi("v1")])], &[external()]);
    world.fencers.insert(POWER.into(), Fencer::Proves(Proof::PowerOff));
    world.run_until("v1 is Fenced");
    Arc::make_mut(&mut world.seen.fence).status.as_mut().unwrap().failed_boot_ids = vec!["boot-1-then".into()];
    world.remove_pod("a");
    world.seen.attachments.clear();
    world.run();
    world.wait(61.0);
    world.run();
    assert!(world.did("ask Unfenced"), "{:#?}", world.log);
}

/// Without frozen addresses nobody can tell whether that is the machine.
#[test]
fn a_node_that_is_made_anew_in_another_boot_waits_where_no_agent_told_its_addresses() {
    let mut world = begun(&Fencer::Hangs, "Verified");
    Arc::make_mut(&mut world.seen.fence).spec.node.addresses.clear();
    node_is_deleted(&mut world);
    world.seen.node = Some(Arc::new(created_again("boot-2", ADDRESS)));
    world.run();
    assert!(!world.did("ask Unfenced"), "{:#?}", world.log);
    assert_eq!(world.condition("Stalled"), machine_may_run(), "{:#?}", world.log);
}

/// The kubelet that is back ends the pods that are there, and may need their storage for that.
#[test]
fn beside_its_own_kubelet_it_is_given_back() {
    let mut world = half_begun();
    world.node_returns();
    world.run_controller();
    assert!(world.did("delete a graceful") && world.did("ask Unfenced"), "{:#?}", world.log);
}

/// Without power no process of the machine is left, whichever of its volumes shows that; but for those of a boot after that.
#[test]
fn a_machine_that_is_proved_to_be_off_by_another_volume_is_given_back() {
    for (is_again, is_let_in) in [(false, true), (true, false)] {
        let pods = vec![pod("a", "n1", &[csi("v1")]), pod("b", "n1", &[csi("v2")])];
        let mut world = failed_at("PowerOff", pods, &[external()]);
        world.fencers.insert(POWER.into(), Fencer::HangsBut("v1", Proof::PowerOff));
        world.run();
        assert!(world.did("delete a grace 0") && world.did("Started v2"), "{:#?}", world.log);
        if is_again {
            Arc::make_mut(&mut world.seen.fence).status.as_mut().unwrap().failed_boot_ids = vec!["boot-1-then".into()];
        }
        world.remove_pod("b");
        world.seen.attachments.clear();
        world.node_becomes(|node| with_address(node, ANOTHER));
        world.node_reboots();
        world.run();
        assert_eq!(world.did("ask Unfenced"), is_let_in, "{is_again}: {:#?}", world.log);
    }
}
