//! What was seen of each volume first, kept over restarts of the agent in a file beside its lock: a local volume that was
//! unmounted while no agent ran is a plain folder to who does not know better.

use std::collections::BTreeMap;
use std::io;

use serde::{Deserialize, Serialize};

use super::super::Settings;
use super::super::disk;
use super::super::probes::{self, Baseline, HostView};
use super::subjects::Found;

/// Name of the file.
const FILE: &str = "volumes.json";

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
            tokio::task::spawn_blocking(move || Ok::<_, io::Error>((load(&host, &root)?, disk::boot_id(&boot)?))).await;
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
            let stored = Stored { boot_id: disk::boot_id(&boot)?, volumes };
            disk::write(&host, &root, FILE, &serde_json::to_vec(&stored)?)
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

fn load(host: &str, kubelet_root: &str) -> io::Result<Stored> {
    match disk::read(host, kubelet_root, FILE)? {
        Some(text) => Ok(serde_json::from_slice(&text)?),
        None => Ok(Stored::default()),
    }
}

#[cfg(test)]
#[path = "baselines_tests.rs"]
mod tests;
