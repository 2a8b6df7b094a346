use super::super::testing::{disk, on_disk};
use super::*;

#[test]
fn a_device_that_would_keep_a_reader_waiting_is_not_read() {
    let children = Children::new("/proc/self/exe".into(), "/proc/self".into());
    let gatherer = Gatherer::new(children.clone(), "/proc/self".into());
    let now = Instant::now();
    let (mounts, seconds) = (MountsOf::new(), Duration::from_secs);
    let asked = |change: fn(&mut BlockDevice), at| {
        let mut view = on_disk("rw", "rw");
        view.devices.values_mut().flatten().for_each(change);
        !gatherer.unread(&view, &mounts, at).is_empty()
    };
    for (what, change, expected) in [
        ("at rest", (|_| {}) as fn(&mut BlockDevice), true),
        ("suspended", |facts| facts.suspended = true, false),
        ("busy", |facts| facts.stalled = Some(Duration::from_millis(100)), true),
        ("stalled", |facts| facts.stalled = Some(Duration::from_secs(2)), false),
    ] {
        assert_eq!(asked(change, now), expected, "{what}");
    }
    let of_another = children.hangs("probe of 8:2");
    assert!(asked(|_| {}, now), "another device that hangs says nothing of this one");
    let hangs = children.hangs(&about(disk()));
    assert!(!asked(|_| {}, now), "one waits for it already");
    drop((hangs, of_another));
    lock(&gatherer.memory).unreadable.insert(disk(), now);
    assert!(!asked(|_| {}, now + seconds(59)), "it did not answer");
    assert!(asked(|_| {}, now + seconds(61)), "it is tried again");
    let same = unchanged(&on_disk("rw", "rw"), &mounts, disk());
    lock(&gatherer.memory).uuids.insert(disk(), (same, None));
    assert!(!asked(|_| {}, now + seconds(61)), "it is known");
    assert!(asked(|facts| facts.disk_sequence = Some(2), now + seconds(61)), "another device of that number is not");
}
