//! What the kernel log says of devices. The log itself is read by `gather`; here its lines are understood and mapped to
//! volumes. Pure.

use std::time::Duration;

use super::view::BlockDevice;
use super::{HostView, Seen, Subject, inaccessible};
use crate::api::hysteresis::Sample;
use crate::api::volume::Check;

/// How long a line that tells of an event counts.
pub const COUNTS: Duration = Duration::from_secs(60);

/// Something that the log says of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Which event it is, in the order of the log.
    pub number: u64,
    /// Name of the device, such as `sda`.
    pub device: String,
    /// First sector, where it is told, on that device.
    pub sector: Option<u64>,
    /// What happened.
    pub kind: Event,
    /// How long ago.
    pub age: Duration,
    /// Mounts of the device when it happened: a state of a file system ends with them.
    pub mounts: Vec<u64>,
}

/// What happened to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request failed.
    IOError,
    /// The medium cannot be read there.
    MediumError,
    /// A request timed out, and the device was reset.
    Timeout,
    /// The device is offline and takes no request.
    Offline,
    /// The file system was shut down; that lasts until it is mounted anew.
    Shutdown,
}

/// A line of the log, understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// Of a device, with the sector.
    Device(String, Option<u64>, Event),
    /// An NFS server does not respond (`true`) or responds again.
    Server(String, bool),
}

fn device_of<'a>(view: &'a HostView, subject: &Subject) -> Option<&'a BlockDevice> {
    view.device_of(subject).and_then(|device| view.devices.get(&device)?.as_ref())
}

/// What the log says of the volume's device, as long as it counts.
pub fn facts_of<'a>(view: &'a HostView, subject: &Subject) -> impl Iterator<Item = &'a Fact> {
    let device = device_of(view, subject);
    let mounted = move |id: &u64| view.mounts.iter().flatten().any(|mount| mount.id == *id);
    let holds = move |fact: &&Fact| match fact.kind {
        Event::Shutdown => fact.mounts.iter().any(&mounted),
        _ => fact.age < COUNTS,
    };
    let ours = move |fact: &&Fact| {
        let Some(facts) = device else { return false };
        let on_disk = fact.device == facts.disk && facts.disk != facts.name;
        let range = facts.start..facts.start.saturating_add(facts.sectors);
        fact.device == facts.name || on_disk && fact.sector.is_none_or(|sector| range.contains(&sector))
    };
    view.kernel.iter().filter(holds).filter(ours)
}

/// Looks at what the log says of the volume's device. A line says nothing more by getting older; only a shutdown lasts.
pub fn look(view: &HostView, subject: &Subject) -> Vec<Seen> {
    if device_of(view, subject).is_none() {
        return Vec::new();
    }
    let sample = match facts_of(view, subject).max_by_key(|fact| fact.kind.weight()) {
        None => Sample::Good,
        Some(fact) if fact.kind != Event::Shutdown && !view.events.contains(&subject.name) => Sample::Unknown,
        Some(fact) => {
            let place = fact.sector.map(|sector| format!(" at sector {sector}")).unwrap_or_default();
            let told = |what: &str| format!("the kernel log tells of {what} on {}{place}", fact.device);
            match fact.kind {
                Event::IOError => inaccessible("IOError", told("an I/O error")),
                Event::MediumError => inaccessible("BadBlocks", told("a block that cannot be read")),
                Event::Timeout => super::degraded("IOHung", told("a request that timed out")),
                Event::Offline => inaccessible("DeviceMissing", told("requests refused because it is offline")),
                Event::Shutdown => inaccessible("FilesystemShutdown", told("a file system that was shut down")),
            }
        }
    };
    vec![Seen::of(subject, Check::KernelLog, sample)]
}

impl Event {
    fn weight(self) -> u8 {
        match self {
            Self::Timeout => 0,
            Self::IOError => 1,
            Self::MediumError => 2,
            Self::Offline => 3,
            Self::Shutdown => 4,
        }
    }
}

/// Understands a record of `/dev/kmsg`: a header, `;`, and the text in its first line. Records of programs (facility
/// other than the kernel's) say nothing of devices: anybody who is root in a container may write them.
pub fn parse(record: &str) -> Option<Line> {
    let (header, rest) = record.split_once(';')?;
    let priority: u32 = header.split(',').next()?.parse().ok()?;
    if priority >> 3 != 0 {
        return None;
    }
    parse_text(rest.lines().next()?)
}

fn parse_text(text: &str) -> Option<Line> {
    block_error(text)
        .or_else(|| buffer_error(text))
        .or_else(|| offline(text))
        .or_else(|| nvme(text))
        .or_else(|| shutdown(text))
        .or_else(|| server(text))
}

/// `I/O error, dev sda, sector 2048 op 0x0:(READ) flags 0x0 …`, `critical medium error, dev sda, sector …`.
fn block_error(text: &str) -> Option<Line> {
    let (before, after) = text.split_once(" error, dev ")?;
    let mut words = after.split([' ', ',']).filter(|word| !word.is_empty());
    let device = name(words.next()?)?;
    let sector = after.split_once("sector ").and_then(|(_, rest)| rest.split([' ', ',']).next()?.parse().ok());
    // What a device cannot do is not an error of its medium.
    if ["(DISCARD)", "(SECURE_ERASE)", "(WRITE_ZEROES)"].iter().any(|op| after.contains(op)) {
        return None;
    }
    let kind = match before.rsplit(": ").next()? {
        "critical medium" | "protection" => Event::MediumError,
        "timeout" => Event::Timeout,
        "I/O"
        | "critical target"
        | "critical nexus"
        | "recoverable transport"
        | "device offline"
        | "end_request: I/O" => Event::IOError,
        _ => return None,
    };
    Some(Line::Device(device, sector, kind))
}

/// `Buffer I/O error on dev sda1, logical block 0, …`.
fn buffer_error(text: &str) -> Option<Line> {
    let (_, after) = text.split_once("Buffer I/O error on dev")?;
    let device = name(after.trim_start_matches("ice").split([' ', ',']).find(|word| !word.is_empty())?)?;
    Some(Line::Device(device, None, Event::IOError))
}

/// `sd 2:0:0:0: [sda] … rejecting I/O to offline device`.
fn offline(text: &str) -> Option<Line> {
    let (before, _) = text.split_once("rejecting I/O to offline device")?;
    let device = name(before.split_once('[')?.1.split_once(']')?.0)?;
    Some(Line::Device(device, None, Event::Offline))
}

/// `nvme0n1: I/O Cmd(0x2) @ LBA …, I/O Error …`; `nvme nvme0: I/O 12 QID 3 timeout, …` names only the controller.
fn nvme(text: &str) -> Option<Line> {
    let (device, after) = text.split_once(": ")?;
    let is_namespace = device.starts_with("nvme") && device.trim_start_matches("nvme").contains('n');
    (is_namespace && after.starts_with("I/O Cmd") && after.contains("I/O Error"))
        .then(|| name(device).map(|device| Line::Device(device, None, Event::IOError)))?
}

/// `XFS (sda): … Shutting down filesystem.`, `EXT4-fs (sda): shut down requested`, `BTRFS error (device sda state EA): …
/// forced readonly`.
fn shutdown(text: &str) -> Option<Line> {
    let (_, after) = text.split_once('(')?;
    let (inside, rest) = after.split_once(')')?;
    let inside = inside.trim_start_matches("device ").split([' ', ':']).next()?;
    let is_xfs = text.starts_with("XFS (") && rest.to_ascii_lowercase().contains("shutting down filesystem");
    let is_ext4 = text.starts_with("EXT4-fs (") && rest.contains("shut down requested");
    (is_xfs || is_ext4).then(|| name(inside).map(|device| Line::Device(device, None, Event::Shutdown)))?
}

/// `nfs: server NAME not responding, still trying`, `… timed out`, `nfs: server NAME OK`.
fn server(text: &str) -> Option<Line> {
    let rest = text.strip_prefix("nfs: server ")?;
    let (server, what) = rest.split_once(' ')?;
    match what {
        "OK" => Some(Line::Server(server.to_owned(), false)),
        _ if what.starts_with("not responding") => Some(Line::Server(server.to_owned(), true)),
        _ => None,
    }
}

/// A device name as sysfs spells it.
fn name(text: &str) -> Option<String> {
    let kept = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '!' | '.');
    (!text.is_empty() && text.len() <= 32 && text.chars().all(kept)).then(|| text.to_owned())
}

#[cfg(test)]
#[path = "kernel_log_tests.rs"]
mod tests;
