//! Every mutant is caught: with one safety measure taken out, the invariant that it stands for is broken in one of the
//! schedules of its story; and none is broken in any of them as the product is.

#![allow(clippy::panic, reason = "a test says what it expects by panicking")]

use bulkhead::mutants::Mutant;
use bulkhead_simulation::mutants::{Story, hunt_at_random};

fn is_caught(mutant: Mutant) {
    let story = Story::of(mutant);
    for schedule in 0..story.schedules {
        let (broken, world) = story.run(schedule, None);
        let trace = world.trace.unwrap_or_default().join("\n");
        assert_eq!(broken, None, "broken without the mutant, in schedule {schedule}\n{trace}");
    }
    let Some(caught) = story.hunt() else {
        let trace = story.run(0, Some(mutant)).1.trace.unwrap_or_default().join("\n");
        panic!("{mutant:?} is not caught; the first of its {} schedules:\n{trace}", story.schedules);
    };
    println!(
        "{mutant:?}: {} after {} schedules: {}",
        caught.violation.invariant, caught.schedules, caught.violation.what
    );
    assert_eq!(caught.violation.invariant, story.invariant, "{}", caught.violation);
}

#[test]
fn mutant_no_fence_is_caught() {
    is_caught(Mutant::NoFence);
}

#[test]
fn mutant_no_read_back_is_caught() {
    is_caught(Mutant::NoReadBack);
}

#[test]
fn mutant_delete_before_fence_is_caught() {
    is_caught(Mutant::DeleteBeforeFence);
}

#[test]
fn mutant_no_out_of_service_guard_is_caught() {
    is_caught(Mutant::NoOutOfServiceGuard);
}

#[test]
fn mutant_wrong_node_id_is_caught() {
    is_caught(Mutant::WrongNodeId);
}

#[test]
fn mutant_stale_proof_is_caught() {
    is_caught(Mutant::StaleProof);
}

#[test]
fn mutant_no_live_reread_is_caught() {
    is_caught(Mutant::NoLiveReread);
}

#[test]
fn mutant_lease_ignored_is_caught() {
    is_caught(Mutant::LeaseIgnored);
    // And at random: in one schedule of eight the node lifecycle controller lags behind.
    let caught = hunt_at_random(Mutant::LeaseIgnored, 2000).expect("no schedule notices it");
    println!("at random after {} schedules: {}", caught.schedules, caught.violation);
}

#[test]
fn mutant_brake_counted_per_pass_is_caught() {
    is_caught(Mutant::BrakeCountedPerPass);
}

#[test]
fn mutant_hold_ignored_is_caught() {
    is_caught(Mutant::HoldIgnored);
}

#[test]
fn mutant_lease_checked_once_is_caught() {
    is_caught(Mutant::LeaseCheckedOnce);
}

#[test]
fn mutant_io_ignored_is_caught() {
    is_caught(Mutant::IoIgnored);
}

#[test]
fn mutant_budget_per_pod_is_caught() {
    is_caught(Mutant::BudgetPerPod);
}

#[test]
fn mutant_crash_loop_mode_ignored_is_caught() {
    is_caught(Mutant::CrashLoopModeIgnored);
}

#[test]
fn mutant_array_outage_ignored_is_caught() {
    is_caught(Mutant::ArrayOutageIgnored);
}

#[test]
fn mutant_power_believed_is_caught() {
    is_caught(Mutant::PowerBelieved);
}

#[test]
fn mutant_whole_node_for_volumes_is_caught() {
    is_caught(Mutant::WholeNodeForVolumes);
    // And by its network, which `is_caught` is content without.
    let (broken, world) = Story::of(Mutant::WholeNodeForVolumes).run(1, Some(Mutant::WholeNodeForVolumes));
    let trace = world.trace.unwrap_or_default().join("\n");
    assert!(broken.is_some_and(|it| it.invariant == "I3" && it.what.contains("is shut out for the sake")), "{trace}");
}

#[test]
fn mutant_peers_unasked_is_caught() {
    is_caught(Mutant::PeersUnasked);
}

#[test]
fn mutant_heartbeat_alone_is_caught() {
    is_caught(Mutant::HeartbeatAlone);
}

#[test]
fn mutant_contradiction_ignored_is_caught() {
    is_caught(Mutant::ContradictionIgnored);
}

#[test]
fn mutant_deleted_node_let_in_is_caught() {
    is_caught(Mutant::DeletedNodeLetIn);
}

#[test]
fn mutant_fence_unawaited_is_caught() {
    is_caught(Mutant::FenceUnawaited);
}

#[test]
fn mutant_lift_unawaited_is_caught() {
    is_caught(Mutant::LiftUnawaited);
}

#[test]
fn mutant_late_fence_left_is_caught() {
    is_caught(Mutant::LateFenceLeft);
}

#[test]
fn mutant_edit_believed_is_caught() {
    is_caught(Mutant::EditBelieved);
}

#[test]
fn mutant_claim_ignored_is_caught() {
    is_caught(Mutant::ClaimIgnored);
}

#[test]
fn mutant_second_boot_forgotten_is_caught() {
    is_caught(Mutant::SecondBootForgotten);
}

#[test]
fn mutant_deleted_boot_forgotten_is_caught() {
    is_caught(Mutant::DeletedBootForgotten);
}

#[test]
fn mutant_cluster_ignored_is_caught() {
    is_caught(Mutant::ClusterIgnored);
    // And at random: one schedule in four has volumes that are not attached.
    let caught = hunt_at_random(Mutant::ClusterIgnored, 1000).expect("no schedule notices it");
    assert_eq!(caught.violation.invariant, "I2", "{}", caught.violation);
    println!("at random after {} schedules: {}", caught.schedules, caught.violation.what);
}

#[test]
fn mutant_processes_let_in_is_caught() {
    is_caught(Mutant::ProcessesLetIn);
    // And by who writes beside the replacement, which `is_caught` is content without.
    let world = Story::of(Mutant::ProcessesLetIn).run(0, Some(Mutant::ProcessesLetIn)).1;
    let has_two_writers = world.oracle.violations.iter().any(|violation| violation.invariant == "I1");
    assert!(has_two_writers, "{}", world.trace.unwrap_or_default().join("\n"));
}

#[test]
fn mutant_former_word_believed_is_caught() {
    is_caught(Mutant::FormerWordBelieved);
}

#[test]
fn mutant_begun_given_back_is_caught() {
    is_caught(Mutant::BegunGivenBack);
}
