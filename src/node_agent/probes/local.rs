//! The path of a local volume: that it is there, a mount point if it was one, and shows what it showed first. Pure.

use super::super::mounts::mountinfo::{Device, Mount, is_within};
use super::view::{Looked, There, What};
use super::{Baseline, HostView, Seen, Subject, inaccessible, shown};
use crate::api::hysteresis::Sample;
use crate::api::volume::Check;

/// Looks at what is only of local volumes.
pub fn look(view: &HostView, subject: &Subject) -> Vec<Seen> {
    let Some(path) = subject.local_path() else { return Vec::new() };
    let mut seen = vec![Seen::of(subject, Check::PathExists, path_exists(view, subject, path))];
    if subject.block {
        seen.push(Seen::of(subject, Check::MountIdentity, same_device(view, subject, path)));
        return seen;
    }
    let baseline = subject.baseline.as_ref();
    let path = baseline.map(|first| first.canonical.as_str()).filter(|path| !path.is_empty()).unwrap_or(path);
    if view.mounts.is_none() {
        return seen;
    }
    let overmount = overmount(view, subject, path);
    // What is hidden is told once, by what hides it.
    let hidden = overmount != Sample::Good;
    let unless_hidden = |sample| if hidden { Sample::Unknown } else { sample };
    seen.push(Seen::of(subject, Check::MountPoint, unless_hidden(mount_point(view, subject, path))));
    seen.push(Seen::of(subject, Check::MountIdentity, unless_hidden(identity(view, subject, path))));
    seen.push(Seen::of(subject, Check::Overmount, overmount));
    seen
}

/// What is there now.
pub fn baseline(view: &HostView, subject: &Subject) -> Option<Baseline> {
    let there = view.there(subject);
    let canonical = there.map(|there| there.canonical.clone()).unwrap_or_default();
    if subject.local_path().is_some() && there.is_none() {
        return None;
    }
    let device = view.device_of(subject);
    let facts = device.and_then(|device| view.devices.get(&device)?.as_ref());
    let mut first = Baseline {
        device,
        disk_sequence: facts.and_then(|facts| facts.disk_sequence),
        wwid: facts.and_then(|facts| facts.wwid.clone()),
        size: facts.map(|facts| facts.size()),
        fs_uuid: device.and_then(|device| view.uuids.get(&device).cloned()),
        ..Baseline::default()
    };
    if subject.block {
        return device.map(|_| Baseline { canonical, ..first });
    }
    let mount = view.main_mount(subject)?;
    first.mount_point = subject.local_path().is_some() && mount.path == canonical;
    first.canonical = canonical;
    first.device = Some(mount.device);
    first.root = mount.root.clone();
    first.fs_type = mount.fs_type.clone();
    first.source = mount.source.clone();
    first.options = mount.options.clone();
    first.super_options = mount.super_options.clone();
    first.errors = view.counters.get(&mount.device).copied();
    Some(first)
}

fn path_exists(view: &HostView, subject: &Subject, path: &str) -> Sample {
    let there = match view.paths.get(path) {
        None | Some(Looked::Unclear(_)) => return Sample::Unknown,
        Some(Looked::Missing) => return inaccessible("PathMissing", format!("there is nothing at {path}")),
        Some(Looked::There(there)) => there,
    };
    if let Some(mount) = view.mounted_at(&there.canonical).filter(|mount| mount.deleted && !subject.block) {
        return inaccessible("PathMissing", format!("{}: the folder that is mounted there was deleted", shown(mount)));
    }
    // A link that led here from the first is taken as it is; where any other leads says nothing of the volume.
    let followed = there.canonical != path;
    let first = subject.baseline.as_ref().map_or(&there.canonical, |first| &first.canonical);
    match there.what {
        What::Block(_) if subject.block => Sample::Good,
        What::Folder if !subject.block && (!followed || there.canonical == *first) => Sample::Good,
        What::Folder if !subject.block => Sample::Unknown,
        _ => {
            let wanted = if subject.block { "a block device" } else { "a folder" };
            inaccessible("PathMissing", format!("{path} is not {wanted}"))
        }
    }
}

fn mount_point(view: &HostView, subject: &Subject, path: &str) -> Sample {
    let was = subject.baseline.as_ref().is_some_and(|first| first.mount_point);
    let missing = subject.expected.iter().filter(|one| view.mounted_at(&one.path).is_none()).count();
    let there = view.mounted_at(path);
    // The mount table was read before the path was looked at: they must agree on what is missing.
    let kernel = view.there(subject).filter(|there| there.canonical == path).and_then(|there| there.mount_root);
    match there {
        None if was && kernel == Some(true) => Sample::Unknown,
        None if was => inaccessible("NotMountPoint", format!("nothing is mounted at {path} any more")),
        _ if missing > 0 => {
            inaccessible("NotMounted", format!("{missing} of {} mounts in pods are not there", subject.expected.len()))
        }
        _ => Sample::Good,
    }
}

/// Whether a mount shows what was there first, as far as that can be told.
fn is_first(view: &HostView, first: &Baseline, mount: &Mount) -> bool {
    let numbered = mount.device.major != 0 || first.device.is_some_and(|device| device.major != 0);
    let still_there = view.mounts.iter().flatten().any(|mount| Some(mount.device) == first.device);
    let same_device = if numbered || still_there {
        Some(mount.device) == first.device
    } else {
        // Numbers without a device are given anew with each mount.
        mount.source == first.source
    };
    same_device && mount.root == first.root && mount.fs_type == first.fs_type
}

fn overmount(view: &HostView, subject: &Subject, path: &str) -> Sample {
    let Some(first) = subject.baseline.as_ref() else { return Sample::Good };
    let Some(top) = view.mount_of(path) else { return Sample::Unknown };
    let places = |mount: &Mount| if first.mount_point { mount.path == path } else { is_within(path, &mount.path) };
    let shows = |mount: &Mount| places(mount) && is_first(view, first, mount);
    if shows(top) || !view.mounts.iter().flatten().any(shows) {
        return Sample::Good;
    }
    inaccessible("Shadowed", format!("{} hides the volume at {path}", shown(top)))
}

fn identity(view: &HostView, subject: &Subject, path: &str) -> Sample {
    let Some(first) = subject.baseline.as_ref() else { return Sample::Good };
    let Some(mount) = view.mount_of(path) else { return Sample::Unknown };
    // Nothing mounted where something was: that is told as such.
    if first.mount_point && mount.path != path {
        return Sample::Unknown;
    }
    let device = view.block_device_of(mount);
    let uuid = device.and_then(|device| view.uuids.get(&device));
    let now = format!("{} is mounted, it was {} {}{}", shown(mount), first.fs_type, first.source, first.root);
    match (&first.fs_uuid, uuid) {
        (Some(first), Some(uuid)) if first != uuid => {
            return inaccessible("DeviceReplaced", format!("{now}; its UUID is {uuid}, it was {first}"));
        }
        // The same file system under another name is the same.
        (Some(_), Some(_)) if mount.root == first.root => return Sample::Good,
        _ => {}
    }
    let sequence = device.and_then(|device| view.devices.get(&device)?.as_ref()?.disk_sequence);
    let another = sequence.zip(first.disk_sequence).is_some_and(|(now, first)| now != first);
    if is_first(view, first, mount) && !another { Sample::Good } else { inaccessible("DeviceReplaced", now) }
}

fn same_device(view: &HostView, subject: &Subject, path: &str) -> Sample {
    let (Some(first), Some(There { what: What::Block(device), canonical, .. })) =
        (subject.baseline.as_ref(), view.there(subject))
    else {
        return if view.there(subject).is_some() && subject.baseline.is_none() {
            Sample::Good
        } else {
            Sample::Unknown
        };
    };
    let facts = |device: &Device| view.devices.get(device)?.as_ref();
    // A number without a device behind it is no device: that is told as such.
    if facts(device).is_none_or(|facts| facts.sectors == 0) {
        return Sample::Unknown;
    }
    let wwid = facts(device).and_then(|facts| facts.wwid.as_ref());
    let message = format!("{path} is {canonical} ({device}) now, not what it was");
    match (first.wwid.as_ref(), wwid) {
        (Some(first), Some(now)) if first == now => Sample::Good,
        (Some(_), Some(_)) => inaccessible("DeviceReplaced", message),
        // A link is made by name or id: it follows its device, whose number may change.
        _ if canonical != path => Sample::Good,
        _ if Some(*device) != first.device => inaccessible("DeviceReplaced", message),
        _ => {
            let sequence = facts(device).and_then(|facts| facts.disk_sequence);
            let another = sequence.zip(first.disk_sequence).is_some_and(|(now, first)| now != first);
            if another { inaccessible("DeviceReplaced", message) } else { Sample::Good }
        }
    }
}

#[cfg(test)]
#[path = "local_tests.rs"]
mod tests;
