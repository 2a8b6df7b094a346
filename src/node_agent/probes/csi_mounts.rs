//! Mounts that must be there: staging and pod mounts of CSI volumes, and pod mounts of NFS and FUSE volumes. Pure.

use super::super::mounts::mountinfo::Mount;
use super::{Expected, HostView, Kind, Seen, Subject, inaccessible, shown};
use crate::api::hysteresis::Sample;
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
    let hidden: Vec<_> = subject.expected.iter().filter_map(|one| Some((one, hides(view, one)?))).collect();
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
fn hides<'a>(view: &'a HostView, expected: &'a Expected) -> Option<&'a Mount> {
    let top = view.mount_of(&expected.path)?;
    let same = |mount: &Mount| (mount.device, &mount.root) == (top.device, &top.root);
    view.all_at(&expected.path).any(|mount| mount.id != top.id && !same(mount)).then_some(top)
}
