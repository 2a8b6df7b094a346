use super::*;
use crate::api::fencing::Proof;

const FENCED_AT: u64 = 10_000;

fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

fn row(result: FenceOutcome, reason: &str) -> FenceResult {
    serde_json::from_value(serde_json::json!({
        "episode": 1, "name": "pv", "round": 1, "result": result, "proof": Proof::Verified, "method": "Unpublish",
        "reason": reason,
    }))
    .unwrap()
}

fn fenced() -> FenceResult {
    row(FenceOutcome::Fenced, "NotPublished")
}

/// A number each second until 20 s; those after `until` are refused.
fn log(until: u64) -> WriterLog {
    let mut log = WriterLog::default();
    for number in 1..=20 {
        let at = number * 1_000;
        let what = if at <= until { "written" } else { "refused" };
        log.hear(&format!("tried {number} at {}", at - 10), ms(at - 10));
        log.hear(&format!("{what} {number} at {at}"), ms(at));
    }
    log
}

fn sound() -> Facts {
    Facts {
        fenced: Some((fenced(), ms(FENCED_AT))),
        again: Some((fenced(), ms(20_000))),
        log: log(FENCED_AT),
        ended: true,
        found: Some(10),
        stopped: None,
    }
}

fn verdict(facts: &Facts) -> (Verdict, &'static str) {
    let (verdict, reason) = judge(facts);
    (verdict, reason.reason)
}

#[test]
fn a_driver_that_revokes_is_certified() {
    assert_eq!(verdict(&sound()), (Verdict::Certified, "Revoked"));
    // One write was on its way when the fence came: refused to the writer, and on the disk all the same.
    let mut late = sound();
    late.log.hear("tried 1000 at 10100", ms(10_100));
    late.found = Some(1000);
    assert_eq!(verdict(&late), (Verdict::Certified, "Revoked"));
}

#[test]
fn a_driver_that_lists_the_node_still_is_not() {
    let facts =
        Facts { fenced: Some((row(FenceOutcome::Failed, "StillPublished"), ms(FENCED_AT))), ..Facts::default() };
    assert_eq!(verdict(&facts), (Verdict::NotCertified, "StillPublished"));
}

#[test]
fn a_driver_whose_list_lies_is_found_out_by_the_writes() {
    let lying = Facts { log: log(u64::MAX), found: None, ..sound() };
    assert_eq!(verdict(&lying), (Verdict::NotCertified, "WritesArrive"));
    // The writer is told errors, and its data arrives.
    assert_eq!(verdict(&Facts { found: Some(15), ..sound() }), (Verdict::NotCertified, "WritesFound"));
    assert_eq!(verdict(&Facts { found: Some(9), ..sound() }), (Verdict::NotCertified, "WritesLost"));
}

#[test]
fn a_volume_that_was_published_again_shows_nothing() {
    let listed = Some((row(FenceOutcome::Failed, "StillPublished"), ms(20_000)));
    let again = Facts { again: listed.clone(), log: log(u64::MAX), ..sound() };
    assert_eq!(verdict(&again), (Verdict::Inconclusive, "PublishedAgain"));
    assert_eq!(
        verdict(&Facts { again: listed, found: Some(15), ..sound() }),
        (Verdict::Inconclusive, "PublishedAgain")
    );
    // Written after the last look at the list.
    let late = Facts { again: Some((fenced(), ms(14_000))), found: Some(15), ..sound() };
    assert_eq!(verdict(&late), (Verdict::Inconclusive, "PublishedAgain"));
    // And acknowledged.
    let mut late = Facts { again: Some((fenced(), ms(20_000))), found: Some(21), ..sound() };
    late.log.hear("tried 21 at 21000", ms(21_000));
    late.log.hear("written 21 at 21010", ms(21_010));
    assert_eq!(verdict(&late), (Verdict::Inconclusive, "PublishedAgain"));
}

#[test]
fn without_every_fact_nothing_is_certified() {
    let silent = WriterLog::default();
    let idle = {
        let mut log = WriterLog::default();
        log.hear("tried 1 at 900", ms(900));
        log.hear("written 1 at 1000", ms(1_000));
        log.hear("alive at 20000", ms(20_000));
        log
    };
    let cases = [
        (Facts { fenced: None, ..sound() }, "NoAnswer"),
        (Facts { fenced: Some((row(FenceOutcome::Failed, "NeverPublished"), ms(1))), ..sound() }, "NotFenced"),
        (Facts { again: None, ..sound() }, "NotWatched"),
        (Facts { again: None, log: log(u64::MAX), found: None, ..sound() }, "WritesArrive"),
        (Facts { log: silent, ..sound() }, "NothingWritten"),
        (Facts { log: idle, found: Some(1), ..sound() }, "WriterSilent"),
        (Facts { again: Some((fenced(), ms(30_000))), ..sound() }, "WriterSilent"),
        (Facts { found: None, ..sound() }, "NotFound"),
        (Facts { stopped: Some(Reason { reason: "Interrupted", message: String::new() }), ..sound() }, "Interrupted"),
    ];
    for (facts, reason) in cases {
        assert_eq!(verdict(&facts), (Verdict::Inconclusive, reason));
    }
}

#[test]
fn a_write_that_hangs_is_told_with_its_remedy() {
    let mut log = log(FENCED_AT);
    log.hear("tried 21 at 21000", ms(21_000));
    log.hear("alive at 27000", ms(27_000));
    let timed_out = Reason { reason: "TimedOut", message: "waited 300 s for the writer to end".into() };
    let hung = Facts { log, ended: false, found: None, stopped: Some(timed_out.clone()), ..sound() };
    let (verdict, reason) = judge(&hung);
    assert_eq!((verdict, reason.reason), (Verdict::Inconclusive, "WriteHangs"));
    assert!(reason.message.contains("no_path_retry"), "{}", reason.message);
    assert!(reason.message.contains(&timed_out.message), "{}", reason.message);
    assert_eq!(
        judge(&Facts { again: None, ..hung.clone() }).1.reason,
        "WriteHangs",
        "nor does the sidecar answer again"
    );
    // Nothing of it where writes are refused, nobody was cut off, or the writer ended and something else takes too long.
    for facts in [
        Facts { stopped: Some(timed_out), ended: false, found: None, ..sound() },
        Facts { fenced: None, ..hung.clone() },
        Facts { ended: true, ..hung.clone() },
        Facts { stopped: Some(Reason { reason: "Interrupted", message: String::new() }), ..hung },
    ] {
        assert_ne!(judge(&facts).1.reason, "WriteHangs");
    }
}
