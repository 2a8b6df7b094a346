//! Judges of a machine that runs on while another one has its name.

use bulkhead::api::fence_request::{Desired, FenceRequest};
use bulkhead::api::names;
use bulkhead::api::network_fence::FenceState;

use crate::chance::Prompt;
use crate::faults::Fault;
use crate::others::{POWER, first_of};
use crate::time::SECOND;
use crate::world::{Task, World};

use super::network::{changes, shut_out};
use super::power::kept_out;
use super::{detaches, end_all};

/// Another machine has the name of the first node, and nobody does anything any more.
fn replaced(mut world: World) -> World {
    end_all(&mut world);
    world.perform(Task::Fault(Box::new(Fault::Replace("n0".into(), false))), &mut Prompt);
    assert!(world.run_until(world.now + 5 * SECOND, &mut Prompt), "{:?}", world.oracle.violations);
    assert_eq!((world.counts.replaced, world.machines[&first_of("n0")].running.len()), (1, 1));
    world
}

fn is_broken(world: &World, invariant: &str) -> bool {
    world.oracle.violations.iter().any(|it| it.invariant == invariant)
}

#[test]
fn i1_the_first_of_two_machines_writes_beside_the_replacement() {
    for is_shut_out in [true, false] {
        let mut world = replaced(shut_out());
        if !is_shut_out {
            world.arrays.values_mut().for_each(|array| array.shut_out.clear());
        }
        world.oracle.touch();
        world.judge();
        assert_eq!(is_broken(&world, "I1"), !is_shut_out, "{:?}", world.oracle.violations);
    }
}

/// What is not taken from the first by its volumes it has to be kept from.
#[test]
fn i2_the_first_of_two_machines_writes_when_its_volume_is_detached() {
    for is_kept_out in [true, false] {
        let mut world = replaced(kept_out());
        world.machines.get_mut(&first_of("n0")).expect("a machine").is_off_fabric = is_kept_out;
        world.oracle.touch();
        world.judge();
        detaches(&mut world);
        assert_eq!(is_broken(&world, "I2"), !is_kept_out, "{:?}", world.oracle.violations);
    }
}

#[test]
fn i5_a_storage_lets_the_first_of_two_machines_in() {
    for is_lifted in [false, true] {
        let mut world = replaced(shut_out());
        let state = if is_lifted { FenceState::Unfenced } else { FenceState::Fenced };
        changes(&mut world, |fence| fence.spec.fence_state = state);
        assert_eq!(is_broken(&world, "I5"), is_lifted, "{:?}", world.oracle.violations);
    }
}

#[test]
fn i5_a_fencer_lets_the_first_of_two_machines_in() {
    for runs_on in [true, false] {
        let mut world = replaced(kept_out());
        let first = first_of("n0");
        if !runs_on {
            world.machines.get_mut(&first).expect("a machine").running.clear();
        }
        let request = names::fence_request("n0", POWER);
        world.api.update::<FenceRequest>(&request, |request| request.spec.desired = Desired::Unfenced);
        world.run_until(world.now + 20 * SECOND, &mut Prompt);
        assert!(!world.machines[&first].is_off_fabric, "nobody let it in: this shows nothing");
        let broken = (is_broken(&world, "I5"), is_broken(&world, "I1"));
        assert_eq!(broken, (runs_on, runs_on), "{:?}", world.oracle.violations);
    }
}
