use super::super::testing::{disk, first, local, mounts, on_disk, reasons};
use super::super::view::Counters;
use super::super::{Baseline, ExpectedKind};
use super::*;
use crate::api::volume::VolumeState;

#[test]
fn read_only_is_told_from_what_was_asked_for() {
    let flipped = Some("ReadOnlyRemount");
    for (first_seen, now, wanted, expected) in [
        (("rw", "rw"), ("rw", "rw"), false, None),
        // Newer kernels say so beside rw.
        (("rw", "rw"), ("rw", "rw,emergency_ro"), false, flipped),
        (("rw", "rw"), ("rw", "rw,emergency_ro"), true, None),
        // Older ones turn the file system, not the mount.
        (("rw", "rw"), ("rw,relatime", "ro,errors=remount-ro"), false, flipped),
        (("rw", "ro"), ("rw", "ro"), false, flipped),
        (("rw", "rw"), ("ro", "ro"), false, flipped),
        (("rw", "rw"), ("ro", "rw"), false, flipped),
        // It was mounted so.
        (("ro", "ro"), ("ro", "ro"), false, None),
        (("ro", "rw"), ("ro", "rw"), false, None),
        (("rw", "rw"), ("ro", "ro"), true, None),
        (("rw", "rw"), ("rw", "rw,shutdown"), false, Some("FilesystemShutdown")),
        (("rw", "rw"), ("rw", "rw,shutdown,emergency_ro"), true, Some("FilesystemShutdown")),
        // Words that only look like it.
        (("rw", "rw"), ("rw,nosuid", "rw,errors=remount-ro,romantic"), false, None),
    ] {
        let subject = first(&on_disk(first_seen.0, first_seen.1), Subject { read_only: wanted, ..local() });
        let found = reasons(&look(&on_disk(now.0, now.1), &subject));
        let expected: Vec<_> = expected.map(|reason| (Check::ReadOnly, reason)).into_iter().collect();
        assert_eq!(found, expected, "{first_seen:?} {now:?} {wanted}");
    }
}

#[test]
fn a_device_that_takes_no_writes_is_read_only() {
    let mut view = on_disk("rw", "rw");
    view.devices.get_mut(&disk()).unwrap().as_mut().unwrap().read_only = true;
    assert_eq!(reasons(&look(&view, &local())), [(Check::ReadOnly, "ReadOnlyRemount")]);
    assert_eq!(reasons(&look(&view, &Subject { read_only: true, ..local() })), []);
}

#[test]
fn a_read_only_mount_of_a_pod_is_its_own_choice() {
    let staged = "1 8:1 / /k/globalmount rw - ext4 /dev/sda1 rw";
    let view = mounts(&[staged, "1 8:1 / /k/pods/u ro - ext4 /dev/sda1 rw"]);
    let expected = vec![
        Expected { path: "/k/globalmount".into(), kind: ExpectedKind::Staging },
        Expected { path: "/k/pods/u".into(), kind: ExpectedKind::Target { pod: "u".into() } },
    ];
    let kind = Kind::CSI { driver: "d".into(), handle: "h".into() };
    let subject = first(&view, Subject { kind, expected, ..local() });
    assert_eq!(reasons(&look(&view, &subject)), []);
    let view = mounts(&[staged, "1 8:1 / /k/pods/u rw - ext4 /dev/sda1 ro"]);
    let seen = look(&view, &subject);
    assert_eq!((reasons(&seen), &seen[1].pods), (vec![(Check::ReadOnly, "ReadOnlyRemount")], &vec!["u".to_owned()]));
}

#[test]
fn the_type_is_compared_where_somebody_chose_it() {
    let told = |wanted: &str, line: &str, path: &str, kind: fn(&str) -> Kind| {
        let subject = Subject {
            kind: kind(path),
            fs_type: wanted.into(),
            expected: vec![Expected { path: path.into(), kind: ExpectedKind::Staging }],
            ..local()
        };
        reasons(&look(&mounts(&[line]), &subject)).len()
    };
    let csi: fn(&str) -> Kind = |_| Kind::CSI { driver: "d".into(), handle: "h".into() };
    let at: fn(&str) -> Kind = |path| Kind::Local { path: path.into() };
    let on = |fs_type: &str, root: &str, device: &str| format!("1 {device} {root} /v rw - {fs_type} /dev/x rw");
    for (wanted, line, kind, wrong) in [
        ("ext4", on("ext4", "/", "8:1"), csi, 0),
        ("xfs", on("ext4", "/", "8:1"), csi, 1),
        ("XFS", on("xfs", "/", "8:1"), csi, 0),
        ("", on("ext4", "/", "8:1"), csi, 0),
        ("auto", on("ext4", "/", "8:1"), at, 0),
        ("xfs", on("ext4", "/", "8:1"), at, 1),
        ("ext4", on("btrfs", "/", "0:40"), at, 1),
        ("xfs", on("ext4", "/folder", "8:1"), csi, 0),
        ("ext4", on("fuse.x", "/", "0:40"), csi, 0),
        ("ntfs", on("fuseblk", "/", "8:1"), csi, 0),
        ("ext4", on("nfs4", "/", "0:40"), csi, 0),
        ("ext4", on("overlay", "/", "0:40"), csi, 0),
    ] {
        assert_eq!(told(wanted, &line, "/v", kind), wrong, "{wanted} {line}");
    }
    assert_eq!(told("xfs", &on("ext4", "/", "8:1"), "/v/folder", at), 0, "a plain folder");
}

#[test]
fn only_new_errors_count() {
    let counters = |errors, corruption, last| Some(Counters { errors, corruption, last });
    for (was, now, expected) in [
        (counters(0, 0, Some(0)), counters(0, 0, Some(0)), None),
        (counters(5, 0, Some(100)), counters(5, 0, Some(100)), None),
        (counters(5, 0, Some(100)), counters(6, 0, Some(100)), Some(false)),
        // It was checked since, and has a new one.
        (counters(5, 0, Some(100)), counters(1, 0, Some(200)), Some(false)),
        (counters(5, 0, Some(100)), counters(0, 0, Some(0)), None),
        (counters(0, 0, None), counters(1, 1, None), Some(true)),
        (None, counters(7, 0, Some(100)), None),
    ] {
        let mut view = on_disk("rw", "rw");
        let mut subject = first(&view, local());
        subject.baseline = subject.baseline.map(|first| Baseline { errors: was, ..first });
        view.counters.extend(now.map(|now| (disk(), now)));
        let seen = look(&view, &subject);
        let corrupt = |one: &Seen| match &one.sample {
            Sample::Bad(trouble) => Some(trouble.state == VolumeState::Inaccessible),
            _ => None,
        };
        assert_eq!(seen.iter().find_map(corrupt), expected, "{was:?} {now:?}");
    }
}
