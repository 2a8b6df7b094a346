use super::super::testing::{disk, first, local, on_disk, reasons};
use super::*;

fn told(change: impl Fn(&mut BlockDevice), capacity: u64) -> Vec<(Check, &'static str)> {
    let mut view = on_disk("rw", "rw");
    let subject = first(&view, Subject { capacity, ..local() });
    view.devices.get_mut(&disk()).unwrap().as_mut().map(change);
    let seen = look(&view, &subject);
    let silent = |one: &Seen| matches!(one.sample, Sample::NoAnswer(_));
    assert!(
        !seen.iter().any(silent)
            || reasons(&seen).iter().all(|(_, reason)| reason.ends_with("Unreachable") || *reason == "IOHung")
    );
    reasons(&seen)
}

#[test]
fn what_the_kernel_says_of_a_device() {
    let state = |text: &'static str| move |facts: &mut BlockDevice| facts.state = Some(text.into());
    for good in ["running", "live", "quiesced by nobody"] {
        assert_eq!(told(state(good), 0), [], "{good}");
    }
    for gone in ["offline", "transport-offline", "dead", "deleting"] {
        assert_eq!(told(state(gone), 0), [(Check::Device, "DeviceMissing")], "{gone}");
    }
    for silent in ["blocked", "connecting", "resetting", "quiesce"] {
        assert_eq!(told(state(silent), 0), [(Check::Device, "BackendUnreachable")], "{silent}");
    }
    assert_eq!(told(|facts| facts.sectors = 0, 0), [(Check::Device, "DeviceMissing")]);
    assert_eq!(told(|facts| facts.sectors = 2047, 0), [(Check::Device, "DeviceShrunk")]);
    assert_eq!(told(|facts| facts.sectors = 9999, 0), [], "to grow is fine");
    assert_eq!(told(|_| {}, 2048 * 512 + 1), [(Check::Device, "DeviceShrunk")]);
    assert_eq!(told(|_| {}, 2048 * 512), []);
    assert_eq!(told(|facts| facts.suspended = true, 0), [(Check::Device, "IOHung")]);
    assert_eq!(told(|facts| facts.raid = Some(("inactive".into(), 0)), 0), [(Check::Device, "DeviceMissing")]);
    assert_eq!(told(|facts| facts.raid = Some(("clean".into(), 1)), 0), [(Check::Device, "DeviceFailing")]);
    assert_eq!(told(|facts| facts.raid = Some(("active-idle".into(), 0)), 0), []);
    assert_eq!(told(|facts| facts.wear = Some(crate::node_agent::probes::view::Wear { pre_end_of_life: 1 }), 0), []);
    let urgent = crate::node_agent::probes::view::Wear { pre_end_of_life: 3 };
    assert_eq!(told(|facts| facts.wear = Some(urgent.clone()), 0), [(Check::DeviceHealth, "DeviceFailing")]);
}

#[test]
fn a_device_that_is_gone_is_known_by_what_was_there_first() {
    let mut view = on_disk("rw", "rw");
    let subject = first(&view, local());
    view.devices.insert(disk(), None);
    assert_eq!(reasons(&look(&view, &subject)), [(Check::Device, "DeviceMissing")]);
    view.mounts = None;
    assert_eq!(reasons(&look(&view, &subject)), [(Check::Device, "DeviceMissing")]);
    view.devices.clear();
    assert_eq!(look(&view, &subject), [], "nobody looked");
}

#[test]
fn bad_blocks_count_for_the_part_of_the_disk_that_is_the_volume() {
    for (bad, expected) in [
        ((99, 1), None),
        ((99, 2), Some("BadBlocks")),
        ((199, 1), Some("BadBlocks")),
        ((200, 8), None),
        ((0, 1000), Some("BadBlocks")),
        ((u64::MAX, u64::MAX), None),
    ] {
        let change = |facts: &mut BlockDevice| {
            (facts.start, facts.sectors, facts.bad_blocks) = (100, 100, vec![bad]);
        };
        let found: Vec<_> = told(change, 0).into_iter().filter(|(check, _)| *check == Check::BadBlocks).collect();
        assert_eq!(found, expected.map(|reason| (Check::BadBlocks, reason)).into_iter().collect::<Vec<_>>(), "{bad:?}");
    }
}

#[test]
fn texts_of_sysfs() {
    assert_eq!(parse_bad_blocks("8 1\n4096 16\n"), [(8, 1), (4096, 16)]);
    assert_eq!(parse_bad_blocks("\nx\n8\n8 x\n"), []);
    let now = "10 1 2 3 20 5 6 7 0 9 10 30 12 13 14 40 16";
    assert_eq!(parse_completed(now), Some(100));
    assert_eq!(parse_completed("10 1 2 3 20 5 6 7 0 9 10"), Some(30), "older kernels tell less");
    assert_eq!(parse_completed(""), None);
    assert_eq!(parse_in_flight("       1        2\n"), Some(3));
    assert_eq!(parse_in_flight("x"), None);
}

#[test]
fn only_requests_of_which_none_completes_are_stalled() {
    let second = Duration::from_secs(1);
    let mut stall = Stall::default();
    assert_eq!(stall.add(3, 7, second), None, "seen for the first time");
    assert_eq!(stall.add(3, 7, second), Some(second));
    assert_eq!(stall.add(2, 7, second), Some(second * 2));
    assert_eq!(stall.add(2, 8, second), None, "one completed");
    assert_eq!(stall.add(2, 8, second), Some(second));
    assert_eq!(stall.add(0, 8, second), None, "none waits");
    assert_eq!(stall.add(1, 8, second), Some(second));
    let mut view = on_disk("rw", "rw");
    for (seconds, expected) in [(59, 0), (60, 1)] {
        view.devices.get_mut(&disk()).unwrap().as_mut().unwrap().stalled = Some(second * seconds);
        assert_eq!(reasons(&super::super::hung::look(&view, &local())).len(), expected);
    }
}
