//! Small worlds under a model checker: every schedule with one fault at any point is looked at; and the mutants that a
//! small world can show are found there, each in a shortest schedule.

use bulkhead::mutants::Mutant;
use bulkhead_simulation::exhaustive::{Bounds, Exhaustive, Order, QUICK, Report, Small, all};

fn told(report: &Report) -> String {
    report.broken.iter().map(|(invariant, told)| format!("{invariant} is broken:\n{told}\n")).collect()
}

#[test]
fn no_schedule_of_a_small_world_breaks_an_invariant() {
    let report = all(QUICK).search(Order::Breadth, 2);
    println!("{report}; reached: {}", report.reached.join(", "));
    assert!(report.broken.is_empty(), "{}", told(&report));
    assert!(report.is_complete, "{report}");
    for what in
        // An undo needs a node that returns between two writes: the ten thousand schedules meet it, one fault here does not.
        ["a pod is released", "a node is given back", "a lie is caught", "a brake holds", "a second leader"]
    {
        assert!(report.reached.contains(&what), "never reached: {what}; only {:?}", report.reached);
    }
}

/// A mutant breaks that invariant in a schedule with so many faults.
fn is_found(mutant: Mutant, faults: u32, invariant: &str) {
    let world = Small { one_pod: mutant != Mutant::BrakeCountedPerPass, power: false };
    let bounds = Bounds { faults, ..QUICK };
    let report = Exhaustive { bounds, mutant: Some(mutant), worlds: vec![world] }.search(Order::Breadth, 1);
    println!("{mutant:?}: {report}\n{}", told(&report));
    let broken: Vec<_> = report.broken.iter().map(|(invariant, _)| *invariant).collect();
    assert!(broken.contains(&invariant), "{invariant} is not broken, but {broken:?}: {report}");
}

#[test]
fn without_a_fence_a_pod_goes_unproved() {
    is_found(Mutant::NoFence, 0, "I2");
}

#[test]
fn a_pod_that_goes_before_its_fence_goes_unproved() {
    is_found(Mutant::DeleteBeforeFence, 0, "I2");
}

#[test]
fn without_a_read_back_a_lie_is_believed() {
    is_found(Mutant::NoReadBack, 1, "I2");
}

#[test]
fn a_stale_proof_outlives_its_leader() {
    is_found(Mutant::StaleProof, 1, "I2");
}

#[test]
fn a_brake_that_forgets_lets_a_second_node_go() {
    is_found(Mutant::BrakeCountedPerPass, 1, "I4");
}

#[test]
fn what_a_late_watch_shows_is_believed() {
    is_found(Mutant::NoLiveReread, 2, "I3");
}
