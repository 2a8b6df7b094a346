//! What can be told of a volume from its node. `passive` decides over what was gathered and never waits for anything;
//! `blocking` asks file systems and devices themselves, in children that can be killed. Nothing here counts samples or
//! knows the API server: the caller says which volumes, when, and what becomes of the samples.
//!
//! A path that comes from a PersistentVolume is opened in children only, in the host's mount namespace. A look at it
//! (O_PATH) has no effect on what is there. What is opened to be read or written is reached without any symbolic link.

pub mod answers;
pub mod blocking;
pub mod child;
pub mod csi_mounts;
pub mod device;
pub mod filesystem;
pub mod gather;
pub mod hung;
pub mod kernel_log;
pub mod local;
mod logged;
pub mod nfs;
pub mod order;
pub mod superblock;
mod sysfs;
#[cfg(test)]
mod testing;
pub mod view;
pub mod watch;

use serde::{Deserialize, Serialize};

use crate::api::hysteresis::{Sample, Trouble};
use crate::api::volume::{Check, VolumeState};

use super::mounts::mountinfo::{Device, Mount};
pub use view::HostView;

/// A volume to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Name of the PersistentVolume.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// Whether it is a raw block volume: no mount point, no file system.
    pub block: bool,
    /// File system that the PersistentVolume names. Empty or `auto`: any.
    pub fs_type: String,
    /// Whether it is meant to be read-only, by the PersistentVolume, its access modes or its mount options.
    pub read_only: bool,
    /// Capacity in bytes; 0 if unknown.
    pub capacity: u64,
    /// What must be mounted, as long as it must be.
    pub expected: Vec<Expected>,
    /// Its block device, where the caller knows it. Else it is told from what is mounted.
    pub device: Option<Device>,
    /// What was seen of it first, see [`baseline`].
    pub baseline: Option<Baseline>,
}

/// What a volume is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A path of the node.
    Local {
        /// The path.
        path: String,
    },
    /// A volume of a CSI driver.
    CSI {
        /// Driver.
        driver: String,
        /// Its name for the volume.
        handle: String,
    },
    /// An export of an NFS server.
    NFS {
        /// Server.
        server: String,
        /// Path there.
        path: String,
    },
    /// Something else that a FUSE server shows.
    FUSE,
}

/// A path that must be a mount point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The path as the kernel shows it: without symbolic links.
    pub path: String,
    /// Whose it is.
    pub kind: ExpectedKind,
}

/// Whose mount it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpectedKind {
    /// The volume's own on this node.
    Staging,
    /// The one of the pod with this uid.
    Target {
        /// Uid of the pod.
        pod: String,
    },
}

/// What was seen of a volume first. Later looks are compared with it. It holds for as long as the volume is not mounted
/// anew by those who may: the caller forgets it when nothing is expected to be mounted any more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Baseline {
    /// Where the path of a local volume led.
    pub canonical: String,
    /// Whether the path of a local volume was a mount point. A plain folder is legal too.
    pub mount_point: bool,
    /// Device of the file system, or the block device of a raw block volume.
    pub device: Option<Device>,
    /// The part of the file system that is mounted.
    pub root: String,
    /// Kind of file system.
    pub fs_type: String,
    /// What was mounted.
    pub source: String,
    /// Options of the mount.
    pub options: Vec<String>,
    /// Options of the file system.
    pub super_options: Vec<String>,
    /// UUID in its superblock, where it could be read.
    pub fs_uuid: Option<String>,
    /// Which of all devices that ever had this number, where the kernel tells.
    pub disk_sequence: Option<u64>,
    /// World-wide name of the device, where it has one.
    pub wwid: Option<String>,
    /// Size of the device in bytes.
    pub size: Option<u64>,
    /// Error counters of the file system.
    pub errors: Option<view::Counters>,
}

/// What one look at a volume gave for a check. A check is told once per look, or not at all if it does not apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// What was looked at.
    pub check: Check,
    /// What was found.
    pub sample: Sample,
    /// Uids of the pods it touches, where it touches some.
    pub pods: Vec<String>,
}

/// Decides every passive check that applies.
pub fn passive(view: &HostView, subject: &Subject) -> Vec<Seen> {
    let families =
        [local::look, csi_mounts::look, device::look, filesystem::look, hung::look, kernel_log::look, nfs::look];
    families.into_iter().flat_map(|look| look(view, subject)).collect()
}

/// What is there now, to compare later looks with; nothing if there is nothing yet.
pub fn baseline(view: &HostView, subject: &Subject) -> Option<Baseline> {
    local::baseline(view, subject)
}

impl Subject {
    /// The path of a local volume.
    pub fn local_path(&self) -> Option<&str> {
        match &self.kind {
            Kind::Local { path } => Some(match path.trim_end_matches('/') {
                "" => "/",
                path => path,
            }),
            _ => None,
        }
    }

    /// Pods with a mount of it.
    pub fn pods(&self) -> Vec<String> {
        self.expected.iter().filter_map(Expected::pod).map(str::to_owned).collect()
    }
}

impl Expected {
    fn pod(&self) -> Option<&str> {
        match &self.kind {
            ExpectedKind::Target { pod } => Some(pod),
            ExpectedKind::Staging => None,
        }
    }
}

impl Seen {
    /// A finding about the volume as a whole touches all of its pods; a good one needs none.
    fn of(subject: &Subject, check: Check, sample: Sample) -> Self {
        let pods = if matches!(sample, Sample::Good | Sample::Unknown) { Vec::new() } else { subject.pods() };
        Self { check, sample, pods }
    }
}

/// It cannot be used.
fn inaccessible(reason: &'static str, message: impl Into<String>) -> Sample {
    Sample::Bad(Trouble { state: VolumeState::Inaccessible, reason, message: message.into() })
}

/// It works, but something is wrong.
fn degraded(reason: &'static str, message: impl Into<String>) -> Sample {
    Sample::Bad(Trouble { state: VolumeState::Degraded, reason, message: message.into() })
}

/// Nobody answers.
fn silent(reason: &'static str, message: impl Into<String>) -> Sample {
    Sample::NoAnswer(Trouble { state: VolumeState::Inaccessible, reason, message: message.into() })
}

/// `path` shown as a mount, for messages.
fn shown(mount: &Mount) -> String {
    format!("{} ({}, {}{})", mount.path, mount.fs_type, mount.source, if mount.deleted { ", deleted" } else { "" })
}
