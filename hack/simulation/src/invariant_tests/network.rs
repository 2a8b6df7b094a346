//! Judges of network fences, and of their end.

use bulkhead::api::network_fence::{FenceState, NetworkFence};
use bulkhead::api::node_fence::NodeFence;
use bulkhead::csi_sidecar::network_fence::decide::Step;

use crate::chance::Prompt;
use crate::run::settle;
use crate::stories::network::by_network;
use crate::time::{MINUTE, SECOND};
use crate::world::World;

use super::moments::planned;
use super::{assert_broken, end_all};

/// The first node runs on and is shut out, its pod has moved, and nobody does anything any more.
pub(super) fn shut_out() -> World {
    let mut world = planned(by_network(false));
    assert!(world.run_until(4 * MINUTE, &mut Prompt), "{:?}", world.oracle.violations);
    assert_eq!((world.counts.shut_out, world.counts.released), (1, 1));
    end_all(&mut world);
    world
}

/// Somebody writes into the only NetworkFence, and csi-addons works on it.
pub(super) fn changes(world: &mut World, change: impl FnOnce(&mut NetworkFence)) {
    let mut fence = world.others.csi_addons.fences.values().next().expect("a fence").clone();
    change(&mut fence);
    world.write_network_fence(&Step::Replace(Box::new(fence)), &mut Prompt).expect("it is taken");
    world.run_until(world.now + SECOND, &mut Prompt);
}

#[test]
fn i5_a_machine_is_let_in_while_its_pod_runs_on() {
    for is_lifted in [false, true] {
        let mut world = shut_out();
        let state = if is_lifted { FenceState::Unfenced } else { FenceState::Fenced };
        changes(&mut world, |fence| fence.spec.fence_state = state);
        let is_broken = world.oracle.violations.iter().any(|it| it.invariant == "I5");
        assert_eq!(is_broken, is_lifted, "{:?}", world.oracle.violations);
    }
}

#[test]
fn i16_a_fence_is_gone_and_what_it_shut_out_is_not_let_in() {
    let mut world = shut_out();
    let fence = world.others.csi_addons.fences.values().next().expect("a fence").clone();
    world.write_network_fence(&Step::Delete(Box::new(fence)), &mut Prompt).expect("it is taken");
    assert!(world.oracle.is_clean(), "our finalizer keeps it: {:?}", world.oracle.violations);
    changes(&mut world, |fence| fence.metadata.finalizers = None);
    assert_broken(&world, "I16");
}

/// An address that another node has is no reason unless one has it.
#[test]
fn i7_nobody_is_shut_out_though_no_other_node_has_the_address() {
    for is_claimed in [false, true] {
        let mut world = planned(by_network(false));
        end_all(&mut world);
        world.api.update::<NodeFence>("n0", |fence| {
            let rows = fence.status.iter_mut().flat_map(|status| &mut status.volumes);
            rows.for_each(|row| row.reason = Some("AddressClaimed".into()));
        });
        if is_claimed {
            let address = world.own_address("n0");
            world.machines.get_mut("n1").expect("a machine").address = address;
        }
        settle(&mut world, &mut Prompt);
        let is_broken = world.oracle.violations.iter().any(|it| it.invariant == "I7");
        assert_eq!(is_broken, !is_claimed, "{:?}", world.oracle.violations);
    }
}
