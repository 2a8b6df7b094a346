//! Mounts that must be there: staging and pod mounts of CSI volumes, and pod mounts of NFS and FUSE volumes. Pure.

use super::super::mounts::mountinfo::Mount;
use super::{Expected, HostView, Kind, Seen, Subject, inaccessible, shown};
use crate::api::hysteresis::Sample;
use crate::api::s3;
use crate::api::volume::Check;

/// Looks at what is expected to be mounted. Those of local volumes are told with their path.
pub fn look(view: &HostView, subject: &Subject) -> Vec<Seen> {
    let check = match subject.kind {
        Kind::Local { .. } => return Vec::new(),
        Kind::CSI { .. } => Check::CSIMounts,
        Kind::NFS { .. } | Kind::FUSE => Check::MountPoint,
    };
    if view.mounts.is_none() || subject.expected.is_empty() {
        return Vec::new();
    }
    let hidden: Vec<_> = subject.expected.iter().filter_map(|one| Some((one, hides(view, subject, one)?))).collect();
    let is_hidden = |one: &Expected| hidden.iter().any(|(other, _)| *other == one);
    let missing = subject.expected.iter().filter(|one| view.mounted_at(&one.path).is_none() && !is_hidden(one));
    let deleted = subject.expected.iter().filter(|one| view.mounted_at(&one.path).is_some_and(|mount| mount.deleted));
    let (missing, deleted): (Vec<_>, Vec<_>) = (missing.collect(), deleted.collect());
    let mounts = match (missing.first(), deleted.first()) {
        (Some(first), _) => inaccessible("NotMounted", format!("nothing is mounted at {}", first.path)),
        (_, Some(first)) => inaccessible("PathMissing", format!("what is mounted at {} was deleted", first.path)),
        _ => Sample::Good,
    };
    let overmount = match hidden.first() {
        Some((one, top)) => inaccessible("Shadowed", format!("{} hides the volume at {}", shown(top), one.path)),
        None => Sample::Good,
    };
    let touched = if missing.is_empty() { deleted } else { missing };
    vec![
        Seen { check, sample: mounts, pods: pods(subject, touched) },
        Seen {
            check: Check::Overmount,
            sample: overmount,
            pods: pods(subject, hidden.into_iter().map(|(one, _)| one)),
        },
    ]
}

/// Pods of these mounts; staging is of all.
fn pods<'a>(subject: &Subject, touched: impl IntoIterator<Item = &'a Expected>) -> Vec<String> {
    let mut pods = Vec::new();
    for one in touched {
        match one.pod() {
            Some(pod) => pods.push(pod.to_owned()),
            None => return subject.pods(),
        }
    }
    pods
}

/// What hides a mount that is there: something else above it, or above a folder that it lies in. The same mounted twice
/// hides nothing.
fn hides<'a>(view: &'a HostView, subject: &Subject, expected: &'a Expected) -> Option<&'a Mount> {
    let top = view.mount_of(&expected.path)?;
    let same = |mount: &Mount| {
        (mount.device, &mount.root) == (top.device, &top.root) || is_successor(subject, expected, top, mount)
    };
    view.all_at(&expected.path).any(|mount| mount.id != top.id && !same(mount)).then_some(top)
}

/// Whether a mount is the same S3 volume again, by a newer Mountpoint Pod: over its predecessor's, which containers keep that
/// began with it. Each server's file system has a number of its own.
fn is_successor(subject: &Subject, expected: &Expected, top: &Mount, mount: &Mount) -> bool {
    let is_s3 = matches!(&subject.kind, Kind::CSI { driver, .. } if driver == s3::DRIVER);
    let is_of_mount_s3 = |mount: &Mount| mount.source == s3::DEVICE && mount.fs_type.starts_with("fuse");
    is_s3 && top.path == expected.path && is_of_mount_s3(top) && is_of_mount_s3(mount)
}

#[cfg(test)]
mod tests {
    use super::super::ExpectedKind;
    use super::super::testing::{local, mounts, reasons};
    use super::*;

    #[test]
    fn an_s3_volume_over_its_dead_predecessor_is_not_hidden() {
        let subject = |driver: &str| Subject {
            kind: Kind::CSI { driver: driver.into(), handle: "bucket".into() },
            expected: vec![Expected { path: "/t".into(), kind: ExpectedKind::Target { pod: "u-1".into() } }],
            ..local()
        };
        let (dead, new) = ("1 0:40 / /t rw - fuse mountpoint-s3 rw", "2 0:41 / /t rw - fuse mountpoint-s3 rw");
        let shadowed = vec![(Check::Overmount, "Shadowed")];
        let cases = [
            ("one after the other", s3::DRIVER, vec![dead, new], vec![]),
            ("another driver does no such thing", "csi.example.com", vec![dead, new], shadowed.clone()),
            ("something else over it", s3::DRIVER, vec![dead, "2 0:42 / /t rw - tmpfs t rw"], shadowed.clone()),
            ("over something else", s3::DRIVER, vec!["1 0:42 / /t rw - tmpfs t rw", new], shadowed),
        ];
        for (name, driver, lines, expected) in cases {
            assert_eq!(reasons(&look(&mounts(&lines), &subject(driver))), expected, "{name}");
        }
        let alive = look(&mounts(&[dead, new]), &subject(s3::DRIVER));
        assert!(alive.iter().all(|seen| seen.sample == Sample::Good), "{alive:?}");
    }

    #[test]
    fn a_cover_of_ours_is_known() {
        let subject = Subject {
            kind: Kind::CSI { driver: "csi.example.com".into(), handle: "h".into() },
            expected: vec![Expected { path: "/t".into(), kind: ExpectedKind::Target { pod: "u-1".into() } }],
            ..local()
        };
        let volume = "1 8:1 / /t rw - ext4 /dev/sda1 rw";
        for (over, expected) in [
            ("2 0:40 / /t ro - tmpfs bulkhead-self-fencing ro", true),
            ("2 0:40 / /t ro - tmpfs tmpfs ro", false),
            ("2 0:40 / /t ro - nfs bulkhead-self-fencing ro", false),
            ("1 0:40 / /another ro - tmpfs bulkhead-self-fencing ro", false),
        ] {
            assert_eq!(mounts(&[volume, over]).is_covered(&subject), expected, "{over}");
        }
    }
}
