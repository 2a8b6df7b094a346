//! What was gathered of the node at one moment: pure data, and how to find something in it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::mounts::mountinfo::{Device, Mount, is_within};
use super::Subject;
use super::kernel_log::Fact;

/// What was gathered of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostView {
    /// The mounts of the host; `None` if they could not be read.
    pub mounts: Option<Vec<Mount>>,
    /// Block devices that were looked for; `None` for one that is not there.
    pub devices: BTreeMap<Device, Option<BlockDevice>>,
    /// Error counters of file systems that have some.
    pub counters: BTreeMap<Device, Counters>,
    /// UUIDs in superblocks, by block device, where they could be read.
    pub uuids: BTreeMap<Device, String>,
    /// Block devices below file systems that have a number without one, such as btrfs.
    pub below: BTreeMap<Device, Device>,
    /// Paths of local volumes. One that did not answer is not here.
    pub paths: BTreeMap<String, Looked>,
    /// What the kernel log says of devices, and when.
    pub kernel: Vec<Fact>,
    /// Volumes of which it tells an event that was not counted yet.
    pub events: BTreeSet<String>,
    /// NFS servers that the kernel waits for.
    pub silent_servers: BTreeSet<String>,
}

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Looked {
    /// Something.
    There(There),
    /// Nothing.
    Missing,
    /// It cannot be told, and why.
    Unclear(String),
}

/// Something at a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct There {
    /// Where it is, without symbolic links.
    pub canonical: String,
    /// What it is.
    pub what: What,
    /// Whether the kernel says that it is the root of a mount; `None` if it cannot say.
    pub mount_root: Option<bool>,
}

/// Kinds of what a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// A folder.
    Folder,
    /// A block device.
    Block(Device),
    /// Anything else.
    Other,
}

/// What the kernel tells of a block device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockDevice {
    /// Its name, such as `sda1`.
    pub name: String,
    /// Name of the whole disk, such as `sda`.
    pub disk: String,
    /// First sector on that disk.
    pub start: u64,
    /// Sectors of 512 bytes.
    pub sectors: u64,
    /// Whether it takes no writes.
    pub read_only: bool,
    /// State of the transport: SCSI and NVMe tell one.
    pub state: Option<String>,
    /// Which of all devices that ever had this number.
    pub disk_sequence: Option<u64>,
    /// World-wide name.
    pub wwid: Option<String>,
    /// State of a RAID, and how many of its members are missing.
    pub raid: Option<(String, u64)>,
    /// Whether a mapped device is suspended.
    pub suspended: bool,
    /// Bad blocks that the kernel knows: first sector and length.
    pub bad_blocks: Vec<(u64, u64)>,
    /// For how long requests have waited without a single one completed.
    pub stalled: Option<Duration>,
    /// What the device says of its own health.
    pub wear: Option<Wear>,
}

/// What a device says of its wear.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wear {
    /// Pre-end-of-life information of an eMMC: 1 is normal, 2 a warning, 3 urgent.
    pub pre_end_of_life: u8,
}

impl BlockDevice {
    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.sectors.saturating_mul(512)
    }
}

/// Error counters of a file system. They outlive reboots: only what is added to them tells something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Errors.
    pub errors: u64,
    /// Of these, blocks that were not what was written.
    pub corruption: u64,
    /// Time of the last one in seconds since 1970, where it is told.
    pub last: Option<u64>,
}

impl HostView {
    /// The mount that a path lies on, as a lookup by the kernel finds it: what is hidden under another mount is passed by.
    pub fn mount_of(&self, path: &str) -> Option<&Mount> {
        let mounts = self.mounts.as_deref()?;
        let mut at = mounts.iter().find(|mount| {
            mount.path == "/" && (mount.parent == mount.id || mounts.iter().all(|other| other.id != mount.parent))
        })?;
        // Each step goes to a child; a table that was changed while it was read cannot make it a circle.
        for _ in mounts {
            let on = mounts.iter().filter(|mount| {
                mount.parent == at.id && mount.id != at.id && mount.exact && is_within(path, &mount.path)
            });
            match on.min_by_key(|mount| mount.path.len()) {
                Some(next) => at = next,
                None => return Some(at),
            }
        }
        None
    }

    /// The mount that a path is the mount point of, and which is not hidden.
    pub fn mounted_at(&self, path: &str) -> Option<&Mount> {
        self.mount_of(path).filter(|mount| mount.path == path)
    }

    /// Everything that is mounted at a path, hidden or not.
    pub fn all_at<'a>(&'a self, path: &'a str) -> impl Iterator<Item = &'a Mount> {
        self.mounts.iter().flatten().filter(move |mount| mount.path == path)
    }

    /// Whether a cover of self-fencing lies on one of the volume's mounts: what is seen there is ours, and nothing of it.
    pub fn is_covered(&self, subject: &Subject) -> bool {
        let mut covers = self.mounts.iter().flatten().filter(|mount| mount.is_cover());
        covers.any(|cover| subject.expected.iter().any(|one| one.path == cover.path))
    }

    /// Where the path of a local volume leads, if it is there.
    pub fn there(&self, subject: &Subject) -> Option<&There> {
        match self.paths.get(subject.local_path()?) {
            Some(Looked::There(there)) => Some(there),
            _ => None,
        }
    }

    /// The mounts that show the volume now: the one of its local path first, then those that are expected.
    pub fn mounts_of<'a>(
        &'a self,
        subject: &'a Subject,
    ) -> impl Iterator<Item = (&'a Mount, Option<&'a super::Expected>)> {
        let local = subject
            .local_path()
            .filter(|_| !subject.block)
            .map(|path| self.there(subject).map_or(path, |there| there.canonical.as_str()));
        let local = local.and_then(|path| self.mount_of(path)).map(|mount| (mount, None));
        let expected = subject.expected.iter();
        local.into_iter().chain(expected.filter_map(|one| Some((self.mounted_at(&one.path)?, Some(one)))))
    }

    /// The mount that stands for the volume.
    pub fn main_mount<'a>(&'a self, subject: &'a Subject) -> Option<&'a Mount> {
        if subject.block {
            return None;
        }
        let staged = |one: &Option<&super::Expected>| one.is_none_or(|one| one.pod().is_none());
        let first = self.mounts_of(subject).find(|(_, one)| staged(one)).or_else(|| self.mounts_of(subject).next());
        first.map(|(mount, _)| mount)
    }

    /// The block device that the volume is on, if it is on one.
    pub fn device_of(&self, subject: &Subject) -> Option<Device> {
        let of_path = || match self.there(subject)?.what {
            What::Block(device) if subject.block => Some(device),
            _ => None,
        };
        let of_mount = || self.block_device_of(self.main_mount(subject)?);
        subject.device.or_else(of_path).or_else(of_mount).filter(|device| device.major != 0)
    }

    /// The block device that a mounted file system is on.
    pub fn block_device_of(&self, mount: &Mount) -> Option<Device> {
        if mount.device.major != 0 { Some(mount.device) } else { self.below.get(&mount.device).copied() }
    }
}
