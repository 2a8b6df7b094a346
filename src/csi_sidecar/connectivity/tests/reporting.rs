//! What the DriverReport says, within its limits, and what people are told of a change.

use crate::api::driver_report::{BackendState, Capability, Coverage, DriverReport, DriverReportSpec};
use crate::controllers::testing::report;

use super::super::status::{PathReport, Row, news};
use super::*;

fn row(node: usize, state: PathState) -> Row {
    Row { node: format!("n{node:04}"), state, reason: "NotConnected", since: at(1).wall }
}

fn status(rows: Vec<Row>, state: BackendState, nodes: usize) -> DriverReportStatus {
    let mut status = DriverReportStatus { capabilities: vec![Capability::Unpublish], ..DriverReportStatus::default() };
    PathReport::new(DRIVER, Some((state, at(1).wall)), nodes, rows).write(&mut status);
    status
}

fn is_out(status: DriverReportStatus) -> bool {
    let mut report = DriverReport::new(DRIVER, DriverReportSpec::default());
    report.status = Some(status);
    report.is_out(DRIVER)
}

#[test]
fn the_capability_comes_and_goes_with_the_extension_and_leaves_the_others_alone() {
    let mut told = status(Vec::new(), BackendState::Answering, 3);
    assert_eq!(told.capabilities, [Capability::Unpublish, Capability::Connectivity, Capability::IoInProgress]);
    assert_eq!((told.unreachable_pairs, told.coverage), (Some(0), None));
    PathReport::unsupported().write(&mut told);
    assert_eq!(told.capabilities, [Capability::Unpublish]);
    assert_eq!((told.backends.len(), told.unreachable_pairs), (0, None));
}

#[test]
fn more_pairs_than_fit_are_counted_and_those_that_count_come_first() {
    let mut rows: Vec<_> = (0..2000).map(|node| row(node, PathState::Unknown)).collect();
    rows.push(row(5000, PathState::Disconnected));
    let told = status(rows, BackendState::Answering, 5000);
    assert_eq!((told.unreachable.len(), told.unreachable_pairs), (1024, Some(2001)));
    assert_eq!((told.unreachable[0].node.as_str(), told.unreachable[0].state), ("n5000", PathState::Disconnected));
    assert_eq!(told.coverage, Some(Coverage::Capped));
    assert!(is_out(told), "of a list that is cut the worst is assumed");
}

#[test]
fn a_backend_is_out_when_silent_or_when_it_lost_more_than_half_and_at_least_two() {
    let lost = |count: usize| (0..count).map(|node| row(node, PathState::Disconnected)).collect::<Vec<_>>();
    let cases = [
        ("none", status(lost(0), BackendState::Answering, 4), false),
        ("silent", status(lost(0), BackendState::Silent, 4), true),
        ("the only one", status(lost(1), BackendState::Answering, 1), false),
        ("one of two", status(lost(1), BackendState::Answering, 2), false),
        ("both", status(lost(2), BackendState::Answering, 2), true),
        ("half", status(lost(2), BackendState::Answering, 4), false),
        ("more than half", status(lost(3), BackendState::Answering, 5), true),
        (
            "unknown does not count",
            status((0..4).map(|node| row(node, PathState::Unknown)).collect(), BackendState::Answering, 4),
            false,
        ),
    ];
    for (name, status, wanted) in cases {
        assert_eq!(is_out(status), wanted, "{name}");
    }
}

#[test]
fn a_path_is_back_only_by_a_driver_that_can_be_asked_and_no_row() {
    let with = |capabilities: &[&str], rows: Vec<Row>, state| {
        let mut report = report(DRIVER, capabilities);
        let told = status(rows, state, 2);
        let known = report.status.as_mut().unwrap();
        (known.backends, known.unreachable, known.unreachable_pairs) =
            (told.backends, told.unreachable, told.unreachable_pairs);
        report
    };
    use BackendState::{Answering, Silent};
    let lost = vec![row(1, PathState::Disconnected)];
    let unknown = vec![row(1, PathState::Unknown)];
    let cases = [
        ("no row", with(&["Connectivity"], Vec::new(), Answering), true),
        ("the row of another", with(&["Connectivity"], vec![row(2, PathState::Disconnected)], Answering), true),
        ("lost", with(&["Connectivity"], lost, Answering), false),
        ("unknown", with(&["Connectivity"], unknown, Answering), false),
        ("a silent backend", with(&["Connectivity"], Vec::new(), Silent), false),
        ("no extension", with(&[], Vec::new(), Answering), false),
    ];
    for (name, report, wanted) in cases {
        assert_eq!(report.is_back("n0001", DRIVER), wanted, "{name}");
    }
}

#[test]
fn people_are_told_once_of_each_kind_of_change() {
    use BackendState::{Answering, Silent};
    let told = |before: &DriverReportStatus, after: &DriverReportStatus| -> Vec<&'static str> {
        news(before, after).into_iter().map(|it| it.reason).collect()
    };
    let well = status(Vec::new(), Answering, 9);
    let lost = status((0..9).map(|node| row(node, PathState::Disconnected)).collect(), Answering, 9);
    let recovering = status((0..9).map(|node| row(node, PathState::Unknown)).collect(), Answering, 9);
    let silent = status(Vec::new(), Silent, 9);
    let nothing = DriverReportStatus::default();
    assert_eq!(told(&nothing, &well), Vec::<&str>::new());
    assert_eq!(told(&well, &lost), ["PathLost"]);
    assert_eq!(told(&lost, &lost), Vec::<&str>::new());
    assert_eq!(told(&lost, &recovering), Vec::<&str>::new());
    assert_eq!(told(&recovering, &well), ["PathRestored"]);
    assert_eq!(told(&well, &silent), ["BackendSilent"]);
    assert_eq!(told(&silent, &well), ["BackendAnswering"]);
    assert_eq!(told(&lost, &nothing), Vec::<&str>::new(), "who is not asked about is not proved to be back");
    let note = news(&well, &lost).remove(0).note;
    assert!(note.contains("n0000") && note.contains("and 4 more"), "{note}");
}
