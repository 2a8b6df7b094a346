//! `/proc/<pid>/mountinfo`, as proc_pid_mountinfo(5) describes it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A device number: of a block device, or of a file system without one (FUSE, NFS, tmpfs).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Device {
    /// Major number; 0 without a block device.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl FromStr for Device {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let wrong = || Unreadable(text.to_owned());
        let (major, minor) = text.trim_end().split_once(':').ok_or_else(wrong)?;
        Ok(Self { major: major.parse().map_err(|_| wrong())?, minor: minor.parse().map_err(|_| wrong())? })
    }
}

impl Serialize for Device {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Device {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A text of the kernel that is not what its manual says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not what the kernel's manual describes")]
pub struct Unreadable(pub String);

/// One mount of one mount namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Its id; open files name the mount they were opened through by it. Unique on the machine while the mount lives.
    pub id: u64,
    /// The id of the mount it is mounted on.
    pub parent: u64,
    /// The file system's device.
    pub device: Device,
    /// The folder (or file) of the file system that is mounted here.
    pub root: String,
    /// Whether that folder was deleted since it was mounted here.
    pub deleted: bool,
    /// Where it is mounted, seen from the root of the process that was asked.
    pub path: String,
    /// Whether that path is exactly what the kernel has; one that is not UTF-8 can only be shown.
    pub exact: bool,
    /// The peer group it belongs to: what is unmounted here is unmounted there.
    pub shared: Option<u64>,
    /// The peer group it follows.
    pub master: Option<u64>,
    /// Kind of file system.
    pub fs_type: String,
    /// What was mounted, as it was called then: a device, or a server's export.
    pub source: String,
    /// Options of this mount.
    pub options: Vec<String>,
    /// Options of the file system, the same for all its mounts.
    pub super_options: Vec<String>,
}

/// Reads all mounts. One line that cannot be read makes the whole unreadable: it could be the one that matters.
pub fn parse(text: &[u8]) -> Result<Vec<Mount>, Unreadable> {
    text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Result<Mount, Unreadable> {
    let wrong = || Unreadable(String::from_utf8_lossy(line).into_owned());
    let mut fields = line.split(|byte| *byte == b' ');
    let mut next = || fields.next().ok_or_else(wrong);
    let id = number(next()?).ok_or_else(wrong)?;
    let parent = number(next()?).ok_or_else(wrong)?;
    let device = std::str::from_utf8(next()?).ok().and_then(|text| text.parse().ok()).ok_or_else(wrong)?;
    let (root, root_exact) = unescaped(next()?);
    let (path, path_exact) = unescaped(next()?);
    let options = listed(next()?);
    let (mut shared, mut master) = (None, None);
    loop {
        let field = next()?;
        if field == b"-" {
            break;
        } else if let Some(group) = field.strip_prefix(b"shared:") {
            shared = Some(number(group).ok_or_else(wrong)?);
        } else if let Some(group) = field.strip_prefix(b"master:") {
            master = Some(number(group).ok_or_else(wrong)?);
        }
    }
    let fs_type = unescaped(next()?).0;
    let source = unescaped(next()?).0;
    let super_options = listed(next().unwrap_or_default());
    // A file bound from a folder that was deleted since keeps this mark behind its root.
    let (root, deleted) = match root.strip_suffix("//deleted") {
        Some(root) => (root.to_owned(), true),
        None => (root, false),
    };
    let exact = root_exact && path_exact;
    Ok(Mount {
        id,
        parent,
        device,
        root,
        deleted,
        path,
        exact,
        shared,
        master,
        fs_type,
        source,
        options,
        super_options,
    })
}

fn listed(field: &[u8]) -> Vec<String> {
    unescaped(field).0.split(',').filter(|option| !option.is_empty()).map(str::to_owned).collect()
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// A field with its escapes (`\040` for a space) undone, and whether it was UTF-8.
fn unescaped(field: &[u8]) -> (String, bool) {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        match after {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..] if first == b'\\' => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = tail;
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    match String::from_utf8(bytes) {
        Ok(text) => (text, true),
        Err(error) => (String::from_utf8_lossy(error.as_bytes()).into_owned(), false),
    }
}

/// By this name covers are told from all other mounts: what self-fencing mounts over the volumes of pods that it stops.
pub const COVER: &str = "bulkhead-self-fencing";

impl Mount {
    /// Whether it is a cover of self-fencing, and no volume.
    pub fn is_cover(&self) -> bool {
        self.fs_type == "tmpfs" && self.source == COVER
    }

    /// Which folder of which file system it is mounted on, if `on` is what it is mounted on.
    pub fn point(&self, on: &Mount) -> Option<(Device, String)> {
        let rest = self.path.strip_prefix(on.path.trim_end_matches('/')).filter(|_| self.parent == on.id)?;
        Some((on.device, format!("{}{rest}", on.root.trim_end_matches('/'))))
    }
}

/// Whether `path` is `folder` or lies below it.
pub fn is_within(path: &str, folder: &str) -> bool {
    let folder = folder.strip_suffix('/').unwrap_or(folder);
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
#[path = "mountinfo_tests.rs"]
mod tests;
