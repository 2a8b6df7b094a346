//! What is remembered, and what the report says.

use serde_json::json;

use crate::api::driver_report::{Coverage, DriverReportStatus};

use super::super::memory::{Memory, Volumes};
use super::super::status::VolumeReport;
use super::*;

fn volumes(handles: impl IntoIterator<Item = String>, watched: &Watched) -> Volumes {
    handles.into_iter().map(|handle| (handle, watched.clone())).collect()
}

fn one(watched: &Watched) -> Volumes {
    volumes([HANDLE.to_owned()], watched)
}

fn report(memory: &Memory, volumes: &Volumes, now: Now) -> DriverReportStatus {
    let mut status = DriverReportStatus::default();
    VolumeReport::new(memory.rows(volumes, now), Some(volumes.len())).write(&mut status);
    status
}

/// Reasons of what is wrong with one volume after these samples, one per second.
fn reasons(watched: &Watched, samples: Vec<(Subject, Sample<Cause>)>) -> Vec<String> {
    let mut memory = Memory::default();
    let mut end = 0;
    for (second, sample) in (0..).zip(samples) {
        memory.add(HANDLE, &watched.thresholds, vec![sample], at(second));
        end = second;
    }
    report(&memory, &one(watched), at(end)).abnormal.into_iter().map(|group| group.reason).collect()
}

#[test]
fn that_a_volume_is_gone_needs_two_words_whatever_the_policy_says() {
    let hasty = Thresholds { failure: 1, ..Thresholds::default() };
    let volume = Watched { thresholds: hasty, ..watched() };
    let gone = || (Subject::Health, Sample::Bad(problem(VolumeState::Inaccessible, "BackendDeleted")));
    let ill = || (Subject::Health, Sample::Bad(problem(VolumeState::Inaccessible, "Offline")));
    let well = || (Subject::Health, Sample::Good);
    assert_eq!(reasons(&volume, vec![ill()]), ["Offline"]);
    assert_eq!(reasons(&volume, vec![gone()]), [""; 0]);
    assert_eq!(reasons(&volume, vec![gone(), well(), gone()]), [""; 0]);
    assert_eq!(reasons(&volume, vec![gone(), gone()]), ["BackendDeleted"]);
}

#[test]
fn a_mismatch_waits_for_the_grace_and_goes_with_the_attachment() {
    let grace = Thresholds { attach_grace: "10s".parse().unwrap(), ..Thresholds::default() };
    let volume = Watched { thresholds: grace, ..attached() };
    let mut memory = Memory::default();
    let mismatch = || Sample::Bad(problem(VolumeState::Inaccessible, "PublishedNodeMismatch"));
    for second in 0..3 {
        let samples = vec![(Subject::Published("node-1".into()), mismatch()), (Subject::Health, Sample::Good)];
        memory.add(HANDLE, &volume.thresholds, samples, at(second));
    }
    assert_eq!(report(&memory, &one(&volume), at(9)).abnormal, []);
    let status = report(&memory, &one(&volume), at(10));
    let expected = json!([{
        "state": "Inaccessible", "reason": "PublishedNodeMismatch", "node": "node-1", "since": "1970-01-01T00:00:00Z",
        "message": "PublishedNodeMismatch happened", "volumeHandles": [HANDLE],
    }]);
    assert_eq!(serde_json::to_value(&status.abnormal).unwrap(), expected);
    memory.keep(&one(&Watched { attached: BTreeMap::new(), ..volume.clone() }));
    assert_eq!(report(&memory, &one(&volume), at(11)).abnormal, []);
}

#[test]
fn a_new_process_goes_on_where_the_report_stands() {
    let volume = attached();
    let known = volumes((0..9).map(|number| format!("v{number}")), &volume);
    let mut memory = Memory::default();
    let raw = Problem {
        reason: Cause { reason: "Odd".into(), raw_status: Some(42) },
        ..problem(VolumeState::Unknown, "Odd")
    };
    for (number, (handle, _)) in (0..).zip(&known) {
        let sample = || match number % 3 {
            0 => (Subject::Health, Sample::Bad(raw.clone())),
            1 => (
                Subject::Published("node-1".into()),
                Sample::Bad(problem(VolumeState::Inaccessible, "PublishedNodeMismatch")),
            ),
            _ => (Subject::Health, Sample::Good),
        };
        for second in 0..2 {
            memory.add(handle, &volume.thresholds, vec![sample()], at(number + second));
        }
    }
    let before = report(&memory, &known, at(20));
    assert_eq!((before.abnormal.len(), before.abnormal_volumes, before.checked_volumes), (2, Some(6), Some(9)));
    let mut next = Memory::from_report(&before);
    next.keep(&known);
    assert_eq!(report(&next, &known, at(500)), before, "nothing to write");
    assert!(next.suspects("v0") && !next.suspects("v2"));
    // Errors never clear, three good samples do.
    for second in 0..2 {
        next.add(
            "v0",
            &volume.thresholds,
            health(Sample::NoAnswer(problem(VolumeState::Inaccessible, "BackendUnreachable"))),
            at(600 + 300 * second),
        );
        next.add("v0", &volume.thresholds, health(Sample::Good), at(601 + 300 * second));
    }
    assert_eq!(report(&next, &known, at(901)), before);
    let changes: Vec<_> =
        (0..3).map(|second| next.add("v0", &volume.thresholds, health(Sample::Good), at(1000 + second))).collect();
    assert_eq!(changes.iter().filter(|changed| **changed).count(), 1);
    assert_eq!(report(&next, &known, at(1002)).abnormal_volumes, Some(5));
}

/// A report on so many volumes, each ill in its own way as `problem` has it.
fn many(count: usize, handle: usize, problem: impl Fn(usize) -> Problem) -> DriverReportStatus {
    let known = volumes((0..count).map(|number| format!("{number:0handle$}")), &watched());
    let mut memory = Memory::default();
    for (number, handle) in known.keys().enumerate() {
        for second in 0..2 {
            memory.add(handle, &Thresholds::default(), health(Sample::Bad(problem(number))), at(second));
        }
    }
    report(&memory, &known, at(2))
}

#[test]
fn what_does_not_fit_makes_the_coverage_capped() {
    let offline = |_| problem(VolumeState::Inaccessible, "Offline");
    let whole = many(5_000, 5, offline);
    assert_eq!((whole.coverage, whole.abnormal.len()), (Some(Coverage::Complete), 1));
    assert_eq!(whole.abnormal[0].volume_handles.len(), 5_000);
    let more = many(5_001, 5, offline);
    assert_eq!((more.coverage, more.abnormal_volumes), (Some(Coverage::Capped), Some(5_001)));
    assert_eq!(more.abnormal[0].volume_handles.len(), 5_000);
    let long = many(2_000, 1_024, offline);
    assert_eq!((long.coverage, long.abnormal_volumes), (Some(Coverage::Capped), Some(2_000)));
    assert!(serde_json::to_vec(&long).unwrap().len() < 1 << 20);
}

#[test]
fn messages_that_differ_do_not_fill_the_report() {
    let named = |number| Problem { message: format!("volume {number}"), ..problem(VolumeState::Degraded, "Slow") };
    let few = many(64, 5, named);
    assert_eq!((few.coverage, few.abnormal.len()), (Some(Coverage::Complete), 64));
    let many_messages = many(65, 5, named);
    assert_eq!((many_messages.coverage, many_messages.abnormal.len()), (Some(Coverage::Complete), 1));
    assert_eq!(many_messages.abnormal[0].message, None);
    let reasons = many(70, 5, |number| match number {
        69 => problem(VolumeState::DataLoss, "Lost"),
        _ => problem(VolumeState::Degraded, &format!("Slow{number}")),
    });
    assert_eq!((reasons.coverage, reasons.abnormal.len()), (Some(Coverage::Capped), 64));
    assert_eq!(reasons.abnormal[0].reason, "Lost", "the worst is never left out");
}
