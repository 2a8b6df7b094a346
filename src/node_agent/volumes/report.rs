//! The volumes of the report, from what is settled. Pure. Whatever does not change here is not written.

use crate::api::node_volume_report::{ReportedMount, ReportedVolume};
use crate::api::text::printable;
use crate::api::volume::{Finding, VolumeState};

/// Limits of the API.
pub const VOLUMES_MAX: usize = 1024;
const CHECKED_MAX: u32 = 4096;
const FINDINGS_MAX: usize = 8;
const MOUNTS_MAX: usize = 32;
const DRIVER_MAX: usize = 63;
const HANDLE_MAX: usize = 1024;
const PATH_MAX: usize = 1024;
/// What all volumes may take as JSON, in bytes: with the rest of the report it fits into one object.
const SIZE_MAX: usize = 768 * 1024;

/// A volume that is looked at.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// PersistentVolume.
    pub name: String,
    /// CSI driver and handle.
    pub csi: Option<(String, String)>,
    /// Block device, as major:minor.
    pub device: Option<String>,
    /// Its mounts in the kubelet's folders.
    pub mounts: Vec<ReportedMount>,
    /// What is settled about it.
    pub findings: Vec<Finding>,
    /// Whether anything was ever known of it.
    pub known: bool,
}

/// What is said of all volumes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeHealth {
    /// Volumes that are looked at.
    pub checked: u32,
    /// Of these, not Healthy.
    pub unhealthy: u32,
    /// By name.
    pub volumes: Vec<ReportedVolume>,
}

/// The report's part about volumes. Of too many, those that are not Healthy are told first.
pub fn health(entries: Vec<Entry>) -> NodeHealth {
    let mut volumes: Vec<_> = entries.into_iter().map(row).collect();
    volumes.sort_by(|one, other| one.name.cmp(&other.name));
    let count = |count: usize| u32::try_from(count).unwrap_or(CHECKED_MAX).min(CHECKED_MAX);
    let is_healthy = |volume: &ReportedVolume| volume.state == VolumeState::Healthy;
    let unhealthy = volumes.iter().filter(|volume| !is_healthy(volume)).count();
    let (checked, unhealthy) = (count(volumes.len()), count(unhealthy));
    if volumes.len() > VOLUMES_MAX {
        volumes.sort_by_key(|volume| std::cmp::Reverse(volume.state));
        volumes.truncate(VOLUMES_MAX);
        volumes.sort_by(|one, other| one.name.cmp(&other.name));
    }
    fit(&mut volumes);
    NodeHealth { checked, unhealthy, volumes }
}

fn row(entry: Entry) -> ReportedVolume {
    let Entry { name, csi, device, mut mounts, mut findings, known } = entry;
    // The worst first; among equals in the order of the API.
    findings.sort_by_key(|finding| (std::cmp::Reverse(finding.state), finding.check));
    findings.truncate(FINDINGS_MAX);
    let state = match findings.first() {
        Some(worst) => worst.state,
        None if known => VolumeState::Healthy,
        None => VolumeState::Unknown,
    };
    mounts.retain(|mount| !findings.is_empty() && mount.path.len() <= PATH_MAX);
    mounts.sort();
    mounts.dedup();
    mounts.truncate(MOUNTS_MAX);
    for mount in &mut mounts {
        // Nobody can use a path that was cut, and one with other signs is longer at most as it is shown.
        mount.path = printable(&mount.path);
    }
    // Which device a volume of others has it gets with its first mount: nothing to tell of one that is good.
    let device = device.filter(|_| csi.is_none() || !findings.is_empty());
    let (driver, handle) = csi.unzip();
    ReportedVolume {
        name,
        driver: driver.filter(|driver| driver.len() <= DRIVER_MAX),
        volume_handle: handle.filter(|handle| handle.len() <= HANDLE_MAX),
        device,
        state,
        mounts,
        findings,
    }
}

/// Leaves out what people can do without until all volumes fit into one object: first mounts, then messages and pods. The
/// state of no volume is left out.
fn fit(volumes: &mut [ReportedVolume]) {
    let drop_mounts: fn(&mut ReportedVolume) = |volume| volume.mounts.clear();
    let drop_words: fn(&mut ReportedVolume) = |volume| {
        for finding in &mut volume.findings {
            (finding.message, finding.pod_uids) = (None, Vec::new());
        }
    };
    let drop_minor: fn(&mut ReportedVolume) = |volume| {
        volume.findings.truncate(1);
        volume.volume_handle = None;
    };
    for shorten in [drop_mounts, drop_words, drop_minor] {
        if size(volumes) <= SIZE_MAX {
            return;
        }
        volumes.iter_mut().for_each(shorten);
    }
}

fn size(volumes: &[ReportedVolume]) -> usize {
    serde_json::to_vec(volumes).map_or(usize::MAX, |text| text.len())
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
