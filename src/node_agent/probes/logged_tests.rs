use super::super::kernel_log::look;
use super::super::testing::{local, on_disk};
use super::*;
use crate::api::hysteresis::{Sample, Streak};
use crate::api::volume_health_policy::Thresholds;

/// Lines at these milliseconds, and whether the volume is told bad at last, and once they are old.
fn settles(lines: &[(u64, &str, Option<u64>, Event)]) -> (Option<&'static str>, Option<&'static str>) {
    let start = Instant::now();
    let thresholds = Thresholds::default();
    let (mut log, mut streak, mut counted) = (Log::default(), Streak::default(), None::<(u64, bool)>);
    let mut lines = lines.iter().peekable();
    let mut worst = None;
    // Looked at twice a second for two minutes.
    for now in (0..120_000).step_by(550) {
        while let Some((at, device, sector, event)) = lines.next_if(|(at, ..)| *at <= now) {
            let mounts = if *event == Event::Shutdown { vec![2] } else { Vec::new() };
            log.note((*device).to_owned(), *sector, *event, mounts, start + Duration::from_millis(*at));
        }
        let mut view = on_disk("rw", "rw");
        view.kernel = log.facts(|id| id == 2, start + Duration::from_millis(now));
        log.tell(&mut view, &[local()], start + Duration::from_millis(now));
        let sample = look(&view, &local()).remove(0).sample;
        let is_good = sample == Sample::Good;
        // As samples are counted: those that say the same a second apart.
        if sample != Sample::Unknown && !counted.is_some_and(|(at, was)| was == is_good && now < at + 1000) {
            counted = Some((now, is_good));
            streak.add(sample, &thresholds, chrono::DateTime::UNIX_EPOCH);
        }
        worst = worst.or(streak.settled().map(|settled| settled.trouble.reason));
    }
    (worst, streak.settled().map(|settled| settled.trouble.reason))
}

#[test]
fn events_count_and_not_looks() {
    use Event::{IOError, MediumError, Shutdown};
    let error = |at, sector| (at, "sda1", Some(sector), IOError);
    for (what, lines, expected) in [
        ("one", vec![error(10, 8)], (None, None)),
        ("one, told again by who wanted it", vec![error(10, 8), (12, "sda1", None, IOError)], (None, None)),
        ("one, tried again at once", vec![error(10, 8), error(300, 8)], (None, None)),
        ("two, half a minute apart", vec![error(10, 8), error(30_000, 8)], (Some("IOError"), None)),
        ("two at once", vec![error(10, 8), error(11, 16)], (Some("IOError"), None)),
        ("two, one shortly after a look", vec![error(10, 8), error(600, 16)], (Some("IOError"), None)),
        ("two of two kinds", vec![(10, "sda1", Some(8), MediumError), error(20, 16)], (Some("BadBlocks"), None)),
        ("two, too far apart", vec![error(10, 8), error(75_000, 16)], (None, None)),
        ("a shutdown", vec![(10, "sda1", None, Shutdown)], (Some("FilesystemShutdown"), Some("FilesystemShutdown"))),
    ] {
        assert_eq!(settles(&lines), expected, "{what}");
    }
}

#[test]
fn a_line_of_the_partition_is_an_echo_of_that_of_its_disk_and_of_no_other() {
    let now = Instant::now();
    for (disk, device, is_echo) in [
        ("sda", "sda1", true),
        ("nvme0n1", "nvme0n1p2", true),
        ("sda", "sda", true),
        ("sda", "sdaa", false),
        ("sda", "sdb1", false),
    ] {
        let mut log = Log::default();
        log.note(disk.into(), Some(8), Event::IOError, Vec::new(), now);
        log.note(device.into(), None, Event::IOError, Vec::new(), now);
        assert_eq!(log.facts(|_| false, now).len(), if is_echo { 1 } else { 2 }, "{device}");
    }
}

#[test]
fn a_storm_is_kept_within_limits() {
    let (mut log, now) = (Log::default(), Instant::now());
    for sector in 0..2000 {
        log.note("sda1".into(), Some(sector), Event::IOError, Vec::new(), now);
    }
    assert_eq!(log.facts(|_| false, now).len(), LINES_MAX);
}
