//! The file system of a volume, from the mount table and its error counters: type, read-only flip, errors. Pure.

use super::super::mounts::mountinfo::Mount;
use super::nfs::is_nfs;
use super::{Expected, HostView, Kind, Seen, Subject, degraded, inaccessible, shown};
use crate::api::hysteresis::Sample;
use crate::api::volume::Check;

/// Looks at the file system that is mounted.
pub fn look(view: &HostView, subject: &Subject) -> Vec<Seen> {
    let Some(main) = view.main_mount(subject) else { return Vec::new() };
    // Where something else is mounted than what was there first, that says nothing of the volume's own.
    let path = subject.baseline.as_ref().filter(|first| first.mount_point).map(|first| first.canonical.as_str());
    if path.is_some_and(|path| main.path != path) {
        return Vec::new();
    }
    let mut seen = Vec::new();
    seen.extend(fs_type(subject, main).map(|sample| Seen::of(subject, Check::FilesystemType, sample)));
    seen.push(read_only(view, subject));
    seen.extend(errors(view, subject, main).map(|sample| Seen::of(subject, Check::FilesystemErrors, sample)));
    seen
}

/// Whether a mount is of a FUSE server.
pub fn is_fuse(mount: &Mount) -> bool {
    mount.fs_type == "fuse" || mount.fs_type == "fuseblk" || mount.fs_type.starts_with("fuse.")
}

fn fs_type(subject: &Subject, mount: &Mount) -> Option<Sample> {
    let first = subject.baseline.as_ref().map(|first| first.fs_type.as_str());
    let mismatch = |wanted: &str| {
        inaccessible("FilesystemTypeMismatch", format!("{} is mounted where {wanted} is wanted", shown(mount)))
    };
    if let Some(first) = first.filter(|first| !is_same(first, &mount.fs_type)) {
        return Some(mismatch(first));
    }
    // What the PersistentVolume names holds for a device that the kubelet or the driver made a file system on. A folder
    // of another file system, a server's export or a FUSE server's view has a type that nobody asked for.
    let is_whole = mount.root == "/" && mount.device.major != 0 || matches!(mount.fs_type.as_str(), "btrfs" | "tmpfs");
    let is_volume = subject.local_path().is_none_or(|path| mount.path == path);
    let named = !matches!(subject.fs_type.as_str(), "" | "auto") && !matches!(subject.kind, Kind::NFS { .. });
    if named && is_whole && is_volume && !is_fuse(mount) && !is_nfs(mount) {
        let wrong = !is_same(&subject.fs_type.to_ascii_lowercase(), &mount.fs_type);
        return Some(if wrong { mismatch(&subject.fs_type) } else { Sample::Good });
    }
    first.map(|_| Sample::Good)
}

fn is_same(one: &str, other: &str) -> bool {
    one == other || matches!((one, other), ("nfs", "nfs4") | ("nfs4", "nfs"))
}

/// Why a mount that is to be written takes no writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flip {
    Shutdown,
    ReadOnly,
}

fn read_only(view: &HostView, subject: &Subject) -> Seen {
    let flips = view.mounts_of(subject).filter_map(|(mount, one)| Some((flip(subject, mount, one)?, mount, one)));
    let flips: Vec<_> = flips.collect();
    let device = view.device_of(subject).and_then(|device| view.devices.get(&device)?.as_ref());
    let Some((worst, mount, _)) = flips.iter().min_by_key(|(flip, ..)| *flip != Flip::Shutdown) else {
        let sample = match (device, view.main_mount(subject)) {
            (Some(device), Some(mount)) if device.read_only && is_writable(mount) && !subject.read_only => {
                inaccessible("ReadOnlyRemount", format!("the device {} takes no writes any more", device.name))
            }
            _ => Sample::Good,
        };
        return Seen::of(subject, Check::ReadOnly, sample);
    };
    let sample = match worst {
        Flip::Shutdown => inaccessible("FilesystemShutdown", format!("{} was shut down by the kernel", shown(mount))),
        Flip::ReadOnly => inaccessible("ReadOnlyRemount", format!("{} takes no writes any more", shown(mount))),
    };
    // A file system flips as a whole; a mount that was made read-only, alone.
    if flips.iter().any(|(_, mount, one)| one.is_none() || !is_writable_super(mount)) {
        return Seen::of(subject, Check::ReadOnly, sample);
    }
    let pods = flips.iter().filter_map(|(.., one)| one.and_then(Expected::pod).map(str::to_owned)).collect();
    Seen { check: Check::ReadOnly, sample, pods }
}

fn has(options: &[String], name: &str) -> bool {
    options.iter().any(|option| option == name)
}

fn is_writable_super(mount: &Mount) -> bool {
    !["ro", "emergency_ro", "shutdown"].iter().any(|name| has(&mount.super_options, name))
}

fn is_writable(mount: &Mount) -> bool {
    is_writable_super(mount) && !has(&mount.options, "ro")
}

fn flip(subject: &Subject, mount: &Mount, one: Option<&Expected>) -> Option<Flip> {
    if has(&mount.super_options, "shutdown") {
        return Some(Flip::Shutdown);
    }
    if subject.read_only {
        return None;
    }
    if has(&mount.super_options, "emergency_ro") {
        return Some(Flip::ReadOnly);
    }
    let first = subject.baseline.as_ref().filter(|first| first.device == Some(mount.device));
    let was_writable =
        |options: fn(&super::Baseline) -> &[String]| first.is_some_and(|first| !has(options(first), "ro"));
    let mount_ro = has(&mount.options, "ro");
    // Who mounts read-only asks for both. The kernel turns only the file system, by itself.
    let by_the_kernel = !mount_ro || was_writable(|first| &first.super_options);
    if has(&mount.super_options, "ro") && by_the_kernel {
        return Some(Flip::ReadOnly);
    }
    // A pod may ask for a read-only mount of its own.
    let is_pods = one.is_some_and(|one| one.pod().is_some());
    (mount_ro && !is_pods && was_writable(|first| &first.options)).then_some(Flip::ReadOnly)
}

fn errors(view: &HostView, subject: &Subject, mount: &Mount) -> Option<Sample> {
    let now = view.counters.get(&mount.device)?;
    let first =
        subject.baseline.as_ref().filter(|first| first.device == Some(mount.device)).and_then(|first| first.errors);
    let Some(first) = first else { return Some(Sample::Good) };
    // A check of the file system begins to count anew.
    let later = now.last.zip(first.last.or(Some(0))).is_some_and(|(now, first)| now > first);
    let more = now.errors > first.errors || now.errors > 0 && later;
    let message = || format!("{} has {} errors, {} when first seen", shown(mount), now.errors, first.errors);
    Some(if now.corruption > first.corruption {
        inaccessible("FilesystemErrors", format!("{}; blocks of it are not what was written", message()))
    } else if more {
        degraded("FilesystemErrors", message())
    } else {
        Sample::Good
    })
}

#[cfg(test)]
#[path = "filesystem_tests.rs"]
mod tests;
