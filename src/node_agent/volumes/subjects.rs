//! Which volumes this node has, and what must be mounted of them. Pure. Local volumes are the node's by their affinity,
//! whoever made them and in whatever phase; all others while they are mounted or used by a pod here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::super::mounts::layout::{self, Wanted};
use super::super::mounts::mountinfo::Mount;
use super::super::probes::{Expected, ExpectedKind, Kind, Subject};
use crate::api::affinity::Host;
use crate::api::node_volume_report::{MountKind, ReportedMount};
use crate::api::quantity;
use crate::api::slim::{PersistentVolume, Pod, VolumeSource};
use crate::api::time;

/// A pod must have run for so long before its mounts are missed: while it starts the kubelet mounts one after the other.
const RUNNING: TimeDelta = TimeDelta::seconds(30);

/// What is known of the node.
pub struct Here<'a> {
    /// The node.
    pub node: Host<'a>,
    /// PersistentVolumes that may be its own.
    pub volumes: &'a [Arc<PersistentVolume>],
    /// Pods bound to it.
    pub pods: &'a [Arc<Pod>],
    /// Its mounts.
    pub mounts: &'a [Mount],
    /// The kubelet's root folder as the kernel shows it.
    pub kubelet_root: &'a str,
    /// Now.
    pub now: DateTime<Utc>,
}

/// A volume that the node has.
#[derive(Clone, Debug)]
pub struct Found {
    /// What is looked at. Baseline and device are not filled in.
    pub subject: Subject,
    /// The PersistentVolume.
    pub volume: Arc<PersistentVolume>,
    /// Its mounts in the kubelet's folders.
    pub mounts: Vec<ReportedMount>,
    /// Where it is staged, if it is.
    pub staged: Option<String>,
    /// Whether a pod uses it for good: it has run for a while and does not end.
    pub is_used: bool,
}

/// What is mounted in the kubelet's folders.
#[derive(Default)]
struct Mounted<'a> {
    /// By name of the folder: pod and mount point.
    targets: BTreeMap<&'a str, Vec<(&'a str, &'a str)>>,
    /// Relative paths of what is staged, and the mount points.
    staging: BTreeMap<&'a str, &'a str>,
}

/// The volumes of this node, by name.
pub fn find(here: &Here) -> Vec<Found> {
    let mounted = mounted(here);
    let users = users(here);
    let mut found: Vec<_> =
        here.volumes.iter().filter_map(|volume| of_volume(here, &mounted, &users, volume)).collect();
    // What is staged of a volume that no pod here has: only its digest says which.
    let known: BTreeSet<_> = found.iter().filter_map(|one| one.staged.clone()).collect();
    let unknown: Vec<_> = mounted.staging.iter().filter(|(_, path)| !known.contains(**path)).collect();
    if !unknown.is_empty() {
        let names: BTreeSet<_> = found.iter().map(|one| one.subject.name.clone()).collect();
        let others = here.volumes.iter().filter(|volume| !names.contains(name(volume)));
        found.extend(others.filter_map(|volume| staged_only(&mounted, volume)));
    }
    found.sort_by(|one, other| one.subject.name.cmp(&other.subject.name));
    found
}

fn name(volume: &PersistentVolume) -> &str {
    volume.metadata.name.as_deref().unwrap_or_default()
}

fn mounted<'a>(here: &Here<'a>) -> Mounted<'a> {
    let mut found = Mounted::default();
    let root = here.kubelet_root.trim_end_matches('/');
    for mount in here.mounts.iter().filter(|mount| !mount.is_cover()) {
        let Some(path) = mount.path.strip_prefix(root).and_then(|rest| rest.strip_prefix('/')) else { continue };
        if let Some((pod, folder)) = layout::pod_mount(path) {
            found.targets.entry(folder).or_default().push((pod, &mount.path));
        } else if layout::staging_record(path).is_some() {
            found.staging.insert(path, &mount.path);
        }
    }
    found
}

/// The pods that have not ended, by namespace and name of the claims they use.
fn users<'a>(here: &Here<'a>) -> BTreeMap<(&'a str, String), Vec<&'a Pod>> {
    let mut users = BTreeMap::<_, Vec<&Pod>>::new();
    for pod in here.pods.iter().filter(|pod| !pod.is_finished()) {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        for volume in &pod.spec.volumes {
            let claim = match &volume.source {
                VolumeSource::Claim(claim) => claim.clone(),
                VolumeSource::Ephemeral => {
                    format!("{}-{}", pod.metadata.name.as_deref().unwrap_or_default(), volume.name)
                }
                _ => continue,
            };
            users.entry((namespace, claim)).or_default().push(pod);
        }
    }
    users
}

fn of_volume<'a>(
    here: &Here<'a>,
    mounted: &Mounted<'a>,
    users: &BTreeMap<(&'a str, String), Vec<&'a Pod>>,
    volume: &Arc<PersistentVolume>,
) -> Option<Found> {
    let claim = volume.spec.claim_ref.as_ref().filter(|_| volume.status.phase.as_deref() == Some("Bound"));
    let claim = claim.and_then(|claim| Some((claim.namespace.as_deref()?, claim.name.clone()?)));
    let users = claim.and_then(|claim| users.get(&claim)).map(Vec::as_slice).unwrap_or_default();
    let targets: Vec<_> = mounted.targets.get(name(volume)).into_iter().flatten().copied().collect();
    // A pod that the API has says itself which volumes are its own; of another the folder's name has to do.
    let is_of_it = |(pod, _): &(&str, &str)| {
        let by_uid = |one: &Pod| one.metadata.uid.as_deref() == Some(*pod);
        users.iter().any(|user| by_uid(user)) || !here.pods.iter().any(|one| by_uid(one))
    };
    let targets: Vec<_> = targets.into_iter().filter(is_of_it).collect();
    let running = |pod: &&&Pod| pod.status.phase.as_deref() == Some("Running");
    let is_local = volume.spec.local.is_some();
    let is_here = match is_local {
        true => here.node.is_selected(volume),
        false => !targets.is_empty() || users.iter().any(|pod| running(&pod)),
    };
    if !is_here {
        return None;
    }
    let fuse = || {
        here.mounts
            .iter()
            .any(|mount| mount.fs_type.starts_with("fuse") && targets.iter().any(|(_, path)| *path == mount.path))
    };
    let kind = kind(volume).or_else(|| fuse().then_some(Kind::FUSE))?;
    let mut subject = subject(volume, kind);
    let lasting: Vec<_> = users.iter().filter(|pod| is_lasting(pod, here.now)).collect();
    for uid in lasting.iter().filter_map(|pod| pod.metadata.uid.as_deref()) {
        if let Some(path) = target(volume, uid, subject.block) {
            let path = format!("{}/{path}", here.kubelet_root.trim_end_matches('/'));
            subject.expected.push(Expected { path, kind: ExpectedKind::Target { pod: uid.to_owned() } });
        }
    }
    let staged = staged(mounted, volume);
    let is_used = !lasting.is_empty();
    // What is there is looked at, whoever has it: a pod that starts or ends is not asked to have it.
    let there = targets.iter().map(|(pod, path)| (*path, ExpectedKind::Target { pod: (*pod).to_owned() }));
    let there = there.chain(staged.as_deref().map(|path| (path, ExpectedKind::Staging)));
    for (path, kind) in there {
        if subject.expected.iter().all(|one| one.path != path) {
            subject.expected.push(Expected { path: path.to_owned(), kind });
        }
    }
    Some(Found { subject, volume: volume.clone(), mounts: told(&targets, staged.as_deref()), staged, is_used })
}

/// A volume that is only staged here.
fn staged_only(mounted: &Mounted, volume: &Arc<PersistentVolume>) -> Option<Found> {
    let staged = staged(mounted, volume)?;
    let mut subject = subject(volume, kind(volume)?);
    subject.expected.push(Expected { path: staged.clone(), kind: ExpectedKind::Staging });
    let mounts = told(&[], Some(&staged));
    Some(Found { subject, volume: volume.clone(), mounts, staged: Some(staged), is_used: false })
}

fn told(targets: &[(&str, &str)], staged: Option<&str>) -> Vec<ReportedMount> {
    let targets = targets.iter().map(|(pod, path)| ReportedMount {
        kind: MountKind::Target,
        path: (*path).to_owned(),
        pod_uid: Some((*pod).to_owned()).filter(|uid| uid.len() <= 36),
    });
    let staged = staged.map(|path| ReportedMount { kind: MountKind::Staging, path: path.to_owned(), pod_uid: None });
    targets.chain(staged).collect()
}

/// Where a CSI volume is staged.
fn staged(mounted: &Mounted, volume: &PersistentVolume) -> Option<String> {
    let csi = volume.spec.csi.as_ref().filter(|_| !mounted.staging.is_empty())?;
    let wanted = Wanted {
        name: name(volume).to_owned(),
        driver: csi.driver.clone(),
        handle: csi.volume_handle.clone(),
        proved: false,
        pods: Vec::new(),
        others: None,
        known: Vec::new(),
    };
    let places = wanted.is_usable().then(|| layout::staging(&wanted)).into_iter().flatten();
    places.filter_map(|place| mounted.staging.get(place.path.as_str()).copied()).map(str::to_owned).next()
}

/// Whether a pod has what it needs for good: it has run for a while and does not end.
fn is_lasting(pod: &Pod, now: DateTime<Utc>) -> bool {
    let since = pod.condition("Initialized").filter(|condition| condition.status == "True");
    let since = since.and_then(|condition| condition.last_transition_time.as_ref()).map(time::from_k8s);
    !pod.is_terminating()
        && pod.status.phase.as_deref() == Some("Running")
        && since.is_some_and(|since| now - since >= RUNNING)
}

/// Where the kubelet mounts it for a pod, below its root. A raw block volume that is no CSI driver's is not mounted.
fn target(volume: &PersistentVolume, pod: &str, block: bool) -> Option<String> {
    let name = name(volume);
    let spec = &volume.spec;
    if !(layout::is_name(name) && layout::is_name(pod)) {
        return None;
    }
    match (spec.csi.is_some(), block) {
        (true, true) => Some(layout::block_target(pod, name).path),
        (true, false) => Some(layout::target(pod, name).path),
        (false, true) => None,
        (false, false) if spec.local.is_some() => Some(format!("pods/{pod}/volumes/kubernetes.io~local-volume/{name}")),
        (false, false) if spec.nfs.is_some() => Some(format!("pods/{pod}/volumes/kubernetes.io~nfs/{name}")),
        (false, false) => None,
    }
}

fn kind(volume: &PersistentVolume) -> Option<Kind> {
    let spec = &volume.spec;
    let local = spec.local.as_ref().map(|local| Kind::Local { path: local.path.clone() });
    let csi =
        || spec.csi.as_ref().map(|csi| Kind::CSI { driver: csi.driver.clone(), handle: csi.volume_handle.clone() });
    let nfs = || spec.nfs.as_ref().map(|nfs| Kind::NFS { server: nfs.server.clone(), path: nfs.path.clone() });
    local.or_else(csi).or_else(nfs)
}

fn subject(volume: &PersistentVolume, kind: Kind) -> Subject {
    let spec = &volume.spec;
    let fs_type = spec.csi.as_ref().and_then(|csi| csi.fs_type.clone());
    let fs_type = fs_type.or_else(|| spec.local.as_ref().and_then(|local| local.fs_type.clone()));
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    let options = spec.mount_options.iter().flatten();
    let read_only = spec.csi.as_ref().is_some_and(|csi| csi.read_only)
        || spec.nfs.as_ref().and_then(|nfs| nfs.read_only).unwrap_or_default()
        || !modes.is_empty() && modes.iter().all(|mode| mode == "ReadOnlyMany")
        || options.clone().any(|option| option.split(',').any(|option| option == "ro"));
    Subject {
        name: name(volume).to_owned(),
        kind,
        block: spec.volume_mode.as_deref() == Some("Block"),
        fs_type: fs_type.unwrap_or_default(),
        read_only,
        capacity: capacity(spec.capacity.get("storage")),
        expected: Vec::new(),
        device: None,
        baseline: None,
    }
}

/// In bytes; 0 where it is not told.
fn capacity(storage: Option<&Quantity>) -> u64 {
    let bytes = storage.and_then(|storage| quantity::bytes(&storage.0)).unwrap_or_default();
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "subjects_tests.rs"]
mod tests;
