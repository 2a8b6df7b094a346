//! What was seen of each volume first, kept over restarts of the agent in a file beside its lock: a local volume that was
//! unmounted while no agent ran is a plain folder to who does not know better.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::super::Settings;
use super::super::lock::FOLDER;
use super::super::probes::{self, Baseline, HostView};
use super::subjects::Found;

/// Name of the file.
const FILE: &str = "volumes.json";
/// Longest file that is read, in bytes.
const LENGTH_MAX: u64 = 16 * 1024 * 1024;

/// What was seen first, by uid of the PersistentVolume.
#[derive(Clone, Debug, Default)]
pub struct Baselines {
    volumes: BTreeMap<String, Kept>,
    changed: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Kept {
    baseline: Baseline,
    /// It is of an earlier boot: everything was mounted anew since, or should have been, and devices have other numbers.
    #[serde(default)]
    outdated: bool,
}

#[derive(Default, Serialize, Deserialize)]
struct Stored {
    boot_id: String,
    volumes: BTreeMap<String, Kept>,
}

impl Baselines {
    /// Those of an earlier process; none if they cannot be read.
    pub async fn read(settings: &Settings) -> Self {
        let (host, root, boot) = (settings.host.clone(), settings.kubelet_root.clone(), settings.boot_id_file.clone());
        let read =
            tokio::task::spawn_blocking(move || Ok::<_, io::Error>((load(&host, &root)?, boot_id(&boot)?))).await;
        let (stored, boot_id) = match read.unwrap_or_else(|panic| Err(io::Error::other(panic))) {
            Ok(read) => read,
            Err(error) => {
                tracing::debug!(%error, "what was seen of volumes first is seen anew");
                return Self::default();
            }
        };
        let rebooted = stored.boot_id != boot_id;
        let outdate = |mut kept: Kept| {
            kept.outdated |= rebooted;
            kept
        };
        let volumes = stored.volumes.into_iter().map(|(uid, kept)| (uid, outdate(kept))).collect();
        Self { volumes, changed: rebooted }
    }

    /// Writes them down, if there is anything new.
    pub async fn write(&mut self, settings: &Settings) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        let (host, root, boot) = (settings.host.clone(), settings.kubelet_root.clone(), settings.boot_id_file.clone());
        let volumes = self.volumes.clone();
        let written = tokio::task::spawn_blocking(move || {
            let stored = Stored { boot_id: boot_id(&boot)?, volumes };
            store(&host, &root, &serde_json::to_vec(&stored)?)
        });
        if let Err(error) = written.await.unwrap_or_else(|panic| Err(io::Error::other(panic))) {
            tracing::warn!(%error, "what was seen of volumes first cannot be written down: a restart sees it anew");
        }
    }

    /// Forgets all but these.
    pub fn keep(&mut self, is_kept: impl Fn(&str) -> bool) {
        let before = self.volumes.len();
        self.volumes.retain(|uid, _| is_kept(uid));
        self.changed |= self.volumes.len() != before;
    }

    /// What was seen of a volume first.
    pub fn get(&self, uid: &str) -> Option<&Baseline> {
        self.volumes.get(uid).map(|kept| &kept.baseline)
    }

    /// Takes note of a volume that is looked at.
    pub fn note(&mut self, uid: &str, found: &Found, view: &HostView) {
        let before = self.volumes.remove(uid);
        let is_local = found.subject.local_path().is_some();
        // The kubelet may mount it anew for the next pod.
        let next = if is_local || !found.subject.expected.is_empty() {
            next(before.as_ref(), probes::baseline(view, &found.subject))
        } else {
            None
        };
        self.changed |= next != before;
        self.volumes.extend(next.map(|kept| (uid.to_owned(), kept)));
    }
}

/// What is compared with from now on, after what was seen first and what is there now.
fn next(before: Option<&Kept>, now: Option<Baseline>) -> Option<Kept> {
    let fresh = |baseline| Kept { baseline, outdated: false };
    match (before, now) {
        (None, now) => now.map(fresh),
        (Some(before), None) => Some(before.clone()),
        (Some(before), Some(now)) => {
            let first = &before.baseline;
            let differs = first.fs_uuid.is_some() && now.fs_uuid.is_some() && first.fs_uuid != now.fs_uuid;
            if before.outdated && first.mount_point == now.mount_point && !differs {
                return Some(fresh(Baseline { fs_uuid: now.fs_uuid.clone().or(first.fs_uuid.clone()), ..now }));
            }
            let mut next = before.clone();
            // A device may tell of itself later than its mount is there.
            if first.device == now.device && first.root == now.root {
                let Baseline { fs_uuid, disk_sequence, wwid, size, errors, .. } = &mut next.baseline;
                *fs_uuid = fs_uuid.take().or(now.fs_uuid);
                *disk_sequence = disk_sequence.or(now.disk_sequence);
                *wwid = wwid.take().or(now.wwid);
                *size = size.or(now.size);
                *errors = errors.or(now.errors);
            }
            Some(next)
        }
    }
}

fn boot_id(path: &str) -> io::Result<String> {
    Ok(std::fs::read_to_string(path)?.trim().to_owned())
}

/// The agent's folder on the host.
fn folder(host: &str, kubelet_root: &str) -> io::Result<OwnedFd> {
    let path = OFlags::PATH | OFlags::CLOEXEC;
    let host = rustix::fs::openat(CWD, format!("{host}/root"), path, Mode::empty())?;
    let root = rustix::fs::openat2(host, kubelet_root, path | OFlags::DIRECTORY, Mode::empty(), ResolveFlags::IN_ROOT)?;
    for made in ["plugins", FOLDER] {
        match rustix::fs::mkdirat(&root, made, Mode::from_raw_mode(0o750)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    let confined = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    Ok(rustix::fs::openat2(root, FOLDER, path | OFlags::DIRECTORY, Mode::empty(), confined)?)
}

fn load(host: &str, kubelet_root: &str) -> io::Result<Stored> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match rustix::fs::openat(folder(host, kubelet_root)?, FILE, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(Stored::default()),
        opened => File::from(opened?),
    };
    let mut text = Vec::new();
    file.take(LENGTH_MAX).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Replaces the file as a whole.
fn store(host: &str, kubelet_root: &str, text: &[u8]) -> io::Result<()> {
    let folder = folder(host, kubelet_root)?;
    let new = format!("{FILE}.new");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut file = File::from(rustix::fs::openat(&folder, &new, flags, Mode::from_raw_mode(0o600))?);
    file.write_all(text)?;
    file.sync_data()?;
    Ok(rustix::fs::renameat(&folder, &new, &folder, FILE)?)
}

#[cfg(test)]
#[path = "baselines_tests.rs"]
mod tests;
