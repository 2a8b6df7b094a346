//! One directed schedule per mutant: a story in which the safety measure that the mutant takes out is the only thing
//! that stands between the operator and a broken invariant. As the product is, every story ends well.

use bulkhead::mutants::{Mutant, throw};

use crate::oracle::Violation;
use crate::stories::{self, network};
use crate::world::World;

/// A story and what it is told for.
#[derive(Clone, Copy)]
pub struct Story {
    /// What is taken out.
    pub mutant: Mutant,
    /// What then is broken.
    pub invariant: &'static str,
    /// How many schedules it has: the same story with other times.
    pub schedules: u64,
    tell: fn(u64) -> World,
}

/// What a mutant came to.
#[derive(Clone, Debug)]
pub struct Caught {
    /// Schedules that were run until it was seen.
    pub schedules: u64,
    /// What was broken.
    pub violation: Violation,
}

impl Story {
    /// The story of a mutant.
    pub fn of(mutant: Mutant) -> Self {
        let (invariant, schedules, tell): (_, _, fn(u64) -> World) = match mutant {
            Mutant::NoFence => ("I2", 1, stories::a_node_falls_silent),
            Mutant::NoReadBack => ("I2", 1, stories::the_array_says_ok_and_does_nothing),
            Mutant::DeleteBeforeFence => ("I2", 1, stories::a_call_hangs_for_ever),
            Mutant::NoOutOfServiceGuard => ("I2", 1, stories::another_pod_is_terminating_on_the_node),
            Mutant::WrongNodeId => ("I3", 1, stories::another_machine_registers_under_the_name),
            Mutant::StaleProof => ("I2", 1, stories::one_of_two_volumes_hangs),
            Mutant::NoLiveReread => ("I3", 1, stories::the_watches_are_late),
            Mutant::LeaseIgnored => ("I17", 1, stories::kubernetes_gives_up_a_node_that_is_well),
            Mutant::BrakeCountedPerPass => ("I4", 1, stories::two_nodes_fail_and_the_budget_is_one),
            Mutant::HoldIgnored => ("I12", 1, stories::a_person_holds_it),
            Mutant::LeaseCheckedOnce => ("I4", 20, stories::a_leader_sleeps_between_two_writes),
            Mutant::IoIgnored => ("I13", 1, stories::the_array_sees_it_writing),
            Mutant::BudgetPerPod => ("I14", 1, stories::a_program_fails_everywhere),
            Mutant::CrashLoopModeIgnored => ("I12", 1, stories::a_program_fails_where_people_are_asked_first),
            Mutant::ArrayOutageIgnored => ("I6", 1, stories::an_array_is_out_for_everyone),
            Mutant::PowerBelieved => ("I2", 1, stories::the_node_is_switched_on_and_its_fencer_is_dead),
            Mutant::WholeNodeForVolumes => ("I3", 2, stories::a_volume_is_in_trouble_on_a_node_that_is_well),
            Mutant::PeersUnasked => ("I15", 1, stories::its_peers_reach_it),
            Mutant::HeartbeatAlone => ("I15", 1, stories::only_its_heartbeats_are_lost),
            Mutant::ContradictionIgnored => ("I15", 1, stories::it_is_heard_after_it_was_called_off),
            Mutant::DeletedNodeLetIn => ("I1", 1, network::its_node_is_deleted_while_it_is_shut_out),
            Mutant::FenceUnawaited => ("I2", 1, network::the_storage_hangs_in_the_middle_of_a_fence),
            Mutant::LiftUnawaited => ("I16", 1, network::the_storage_hangs_in_the_middle_of_a_lift),
            Mutant::LateFenceLeft => ("I8", 1, network::a_fence_is_made_when_its_incident_is_over),
            Mutant::EditBelieved => ("I16", 1, network::a_person_writes_another_address_into_a_fence),
            Mutant::ClaimIgnored => ("I3", 1, network::its_address_is_another_nodes_before_it_is_shut_out),
            Mutant::SecondBootForgotten => ("I5", 1, network::it_fails_again_after_a_reboot),
            Mutant::DeletedBootForgotten => ("I5", 1, network::its_node_is_deleted_after_a_reboot),
            Mutant::FormerWordBelieved => ("I5", 1, network::another_machine_joins_when_it_has_failed_again),
            Mutant::ClusterIgnored => ("I2", 1, network::its_class_is_of_another_cluster),
            Mutant::ProcessesLetIn => ("I5", 1, stories::its_fencer_leaves_it_its_power),
            Mutant::BegunGivenBack => {
                ("I1", 1, stories::another_machine_joins_beside_one_whose_fence_proves_too_little)
            }
        };
        Self { mutant, invariant, schedules, tell }
    }

    /// The first thing that is broken in a schedule of the story, told with the mutant or as the product is.
    pub fn run(&self, schedule: u64, mutant: Option<Mutant>) -> (Option<Violation>, World) {
        let _thrown = throw(mutant);
        let world = (self.tell)(schedule);
        (world.oracle.violations.first().cloned(), world)
    }

    /// Tells its schedules with the mutant until something is broken.
    pub fn hunt(&self) -> Option<Caught> {
        (0..self.schedules).find_map(|schedule| {
            let violation = self.run(schedule, Some(self.mutant)).0?;
            Some(Caught { schedules: schedule + 1, violation })
        })
    }
}

/// Runs the schedules of seeds with a mutant until something is broken.
pub fn hunt_at_random(mutant: Mutant, seeds: u64) -> Option<Caught> {
    let _thrown = throw(mutant);
    (0..seeds).find_map(|seed| {
        let violation = crate::run(seed).violations.into_iter().next()?;
        Some(Caught { schedules: seed + 1, violation })
    })
}
