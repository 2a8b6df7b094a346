//! What is left of volumes on this node, put together from what was read of the kernel and of the disk. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::layout::{self, Layout, Owner, Wanted};
use super::mountinfo::{Device, Mount, is_within};
use super::vol_data::Record;

/// A kubelet's folder for a volume in a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    /// The pod.
    pub pod: String,
    /// Name of the folder; for a PersistentVolume that of the volume.
    pub name: String,
    /// Whether it is of a raw block volume.
    pub block: bool,
    /// Which volume it is.
    pub record: Record,
}

/// A loop device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Loop {
    /// Its name, such as loop3.
    pub name: String,
    /// The file behind it, as the kernel shows it.
    pub backing: String,
}

/// What was read.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The kubelet's root folder as the kernel shows it.
    pub root: String,
    /// Mounts of the host.
    pub mounts: Vec<Mount>,
    /// Folders of volumes in pods.
    pub folders: Vec<Folder>,
    /// Which of the paths below the root that were asked for are there.
    pub present: BTreeSet<String>,
    /// Loop devices.
    pub loops: Vec<Loop>,
    /// Records of what the kubelet has staged, by its mount's path below the root.
    pub staged: BTreeMap<String, Record>,
}

/// A file system, or a part of one, that is a volume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// Device of the file system.
    pub device: Device,
    /// The volume's folder (or file) in it.
    pub root: String,
    /// What was mounted. The kernel shows the root `/` for every NFS mount, and one file system for all of a server that
    /// have the same id: which folder a mount shows only this says.
    pub source: String,
}

impl Identity {
    /// Whether a mount shows the volume or a part of it.
    pub fn is_of(&self, mount: &Mount) -> bool {
        // A block device may go by several names, and is one file system by any.
        let named = self.device.major != 0 || is_within(&mount.source, &self.source);
        self.device == mount.device && is_within(&mount.root, &self.root) && named
    }

    /// Whether the whole file system is the volume, so that its device number alone says so.
    pub fn is_whole(&self) -> bool {
        self.root == "/"
    }
}

/// A mount as it was seen. Nothing is unmounted that is not the same any more.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Mounted {
    /// Where, as the kernel shows it.
    pub path: String,
    /// Device of the file system.
    pub device: Device,
    /// What of it.
    pub root: String,
    /// Kind of file system.
    pub fs_type: String,
}

/// Something left at a place that a CSI call is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The path for the CSI call, below the kubelet's root.
    pub path: String,
    /// The pod; none for staging.
    pub pod: Option<String>,
    /// What is mounted there, the last one mounted first.
    pub mounts: Vec<Mounted>,
    /// Loop devices on it.
    pub loops: Vec<Loop>,
    /// Files and folders that are there, in the order in which they can be deleted.
    pub leftovers: Vec<String>,
    /// Folders to remove when they are empty.
    pub shared: Vec<String>,
}

/// A mount of the volume elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Elsewhere {
    /// The mount.
    pub mount: Mounted,
    /// The pod whose folder it is in, such as a sub-path.
    pub pod: Option<String>,
    /// Its path below the kubelet's root, if it is there.
    pub below_root: Option<String>,
}

/// A process that holds the volume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Holder {
    /// Its id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Whether it lives with the host or with the kubelet's mounts (a driver's or our own container): then what is
    /// unmounted for the host is unmounted for it, and it is no user of the volume that must end first.
    pub of_the_host: bool,
}

/// Something that cannot be told.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Unknown {
    /// Path, device or pid.
    pub id: String,
    /// Why, in CamelCase.
    pub reason: String,
}

impl Unknown {
    /// One.
    pub fn new(id: impl Into<String>, reason: &str) -> Self {
        Self { id: id.into(), reason: reason.to_owned() }
    }
}

/// What is left of one volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remains {
    /// In pods.
    pub targets: Vec<Place>,
    /// Where it is staged.
    pub staging: Vec<Place>,
    /// Its mounts elsewhere.
    pub elsewhere: Vec<Elsewhere>,
    /// Loop devices on it that no place has.
    pub loops: Vec<Loop>,
    /// Processes that hold it.
    pub holders: Vec<Holder>,
    /// What cannot be told about it.
    pub unknown: Vec<Unknown>,
}

impl Remains {
    /// Whether nothing is left.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// All mounts of it.
    pub fn mounts(&self) -> impl Iterator<Item = &Mounted> {
        let places = self.targets.iter().chain(&self.staging).flat_map(|place| &place.mounts);
        places.chain(self.elsewhere.iter().map(|elsewhere| &elsewhere.mount))
    }
}

/// What is left on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// Per volume, in the order in which they were asked for.
    pub volumes: Vec<Remains>,
    /// Folders of pods whose record cannot be read, so that they could be of any volume: the pod and the folder.
    pub unreadable: Vec<(String, Unknown)>,
    /// What cannot be told about the node as a whole.
    pub unknown: Vec<Unknown>,
}

/// Paths below the root whose presence matters for a volume.
pub fn paths(volume: &Wanted, folders: &[Folder]) -> BTreeSet<String> {
    let staging = layout::staging(volume);
    let targets = folders.iter().filter(|folder| could_be(volume, folder)).map(layout_of);
    staging.into_iter().chain(targets).flat_map(|layout| layout.leftovers.into_iter().chain(layout.shared)).collect()
}

fn layout_of(folder: &Folder) -> Layout {
    match folder.block {
        true => layout::block_target(&folder.pod, &folder.name),
        false => layout::target(&folder.pod, &folder.name),
    }
}

/// Whether the folder bears the volume's name, or a record that names the volume.
fn could_be(volume: &Wanted, folder: &Folder) -> bool {
    let named =
        matches!(&folder.record, Record::Of(data) if data.driver == volume.driver && data.handle == volume.handle);
    folder.name == volume.name || named
}

/// What is left of a volume, but for processes, and the file systems by which these can be told.
pub fn assemble(volume: &Wanted, facts: &Facts) -> (Remains, Vec<Identity>) {
    let mut remains = Remains::default();
    for folder in facts.folders.iter().filter(|folder| could_be(volume, folder)) {
        let layout = layout_of(folder);
        match &folder.record {
            // A pod names the folders of its inline volumes. It is another volume, if what is mounted there agrees: that
            // is told below.
            Record::Of(data) if data.driver != volume.driver || data.handle != volume.handle => {}
            Record::Unreadable(_) => {
                remains.unknown.push(Unknown::new(facts.absolute(&layout.path), "RecordUnreadable"));
            }
            Record::Of(_) | Record::Absent => {
                remains.targets.extend(facts.place(layout, Some(folder.pod.clone())));
            }
        }
    }
    remains.staging = layout::staging(volume).into_iter().filter_map(|layout| facts.place(layout, None)).collect();
    let identities = identities(volume, facts, &mut remains);
    of_another_record(volume, facts, &identities, &mut remains);
    elsewhere(volume, facts, &identities, &mut remains);
    loops(facts, &identities, &mut remains);
    (remains, identities)
}

/// The file systems mounted at the volume's places. One that the kubelet's own folder is part of would be far too much.
fn identities(volume: &Wanted, facts: &Facts, remains: &mut Remains) -> Vec<Identity> {
    let own: BTreeSet<_> = remains.mounts().cloned().collect();
    let known = |mount: &&Mount| {
        let seen = volume.known.iter().any(|(device, path)| mount.device == *device && mount.path == *path);
        seen || own.contains(&Mounted::from(*mount))
    };
    let found: BTreeSet<_> = facts.mounts.iter().filter(known).map(Identity::from).collect();
    let (narrow, wide): (Vec<_>, Vec<_>) = found.into_iter().partition(|identity| {
        !facts.mounts.iter().any(|mount| identity.is_of(mount) && is_within(&facts.root, &mount.path))
    });
    remains.unknown.extend(wide.iter().map(|identity| Unknown::new(identity.device.to_string(), "SystemFileSystem")));
    narrow
}

/// Folders of the volume's name that say they are another's, and yet have this one mounted or are of a pod that had it.
fn of_another_record(volume: &Wanted, facts: &Facts, identities: &[Identity], remains: &mut Remains) {
    for folder in facts.folders.iter().filter(|folder| folder.name == volume.name) {
        let Record::Of(data) = &folder.record else { continue };
        if data.driver == volume.driver && data.handle == volume.handle {
            continue;
        }
        let layout = layout_of(folder);
        let points: Vec<_> = layout.mounts.iter().map(|path| facts.absolute(path)).collect();
        let here = |mount: &&Mount| points.contains(&mount.path);
        let is_of_it = |mount: &Mount| identities.iter().any(|identity| identity.is_of(mount));
        if volume.pods.contains(&folder.pod) || facts.mounts.iter().filter(here).any(is_of_it) {
            remains.unknown.push(Unknown::new(facts.absolute(&layout.path), "RecordOfAnotherVolume"));
        }
    }
}

fn elsewhere(volume: &Wanted, facts: &Facts, identities: &[Identity], remains: &mut Remains) {
    let own: BTreeSet<String> = remains.mounts().map(|mount| mount.path.clone()).collect();
    let mut found: Vec<Elsewhere> = Vec::new();
    let mut is_shared = false;
    for mount in facts.mounts.iter().rev().filter(|mount| !own.contains(&mount.path)) {
        let is_of_it = identities.iter().any(|identity| identity.is_of(mount));
        if !is_of_it {
            // What somebody mounted on top of the volume is not ours to touch, and keeps it from being unmounted.
            if own.iter().any(|path| is_within(&mount.path, path)) {
                remains.unknown.push(Unknown::new(&mount.path, "MountedOnTheVolume"));
            }
            continue;
        }
        if !mount.exact {
            remains.unknown.push(Unknown::new(&mount.path, "PathIsNoText"));
            continue;
        }
        let below_root = facts.below_root(&mount.path);
        let pod = match below_root.as_deref().map(layout::owner) {
            // A sub-path is in a folder of its own, named after the volume.
            Some(Owner::Pod(pod, name)) if name == volume.name => Some(pod.to_owned()),
            // The same file system is another volume as well: it is the kubelet's, for that one.
            Some(Owner::Pod(pod, name)) => {
                if !facts.pod_says_another(volume, pod, name) {
                    remains.unknown.push(Unknown::new(&mount.path, "MountOfTheVolumeElsewhere"));
                }
                is_shared = true;
                continue;
            }
            Some(Owner::Volume) => {
                let record = below_root.as_deref().and_then(|path| facts.staged.get(path));
                if !record.is_some_and(|record| says_another(volume, record)) {
                    remains.unknown.push(Unknown::new(&mount.path, "MountOfTheVolumeElsewhere"));
                }
                is_shared = true;
                continue;
            }
            Some(Owner::Other) | None => None,
        };
        found.push(Elsewhere { mount: mount.into(), pod, below_root });
    }
    // Whose a private mount is cannot be told when another volume looks the same.
    let (private, of_pods): (Vec<_>, Vec<_>) = found.into_iter().partition(|found| is_shared && found.pod.is_none());
    remains.unknown.extend(private.into_iter().map(|found| Unknown::new(found.mount.path, "SharedFileSystem")));
    remains.elsewhere = of_pods;
}

fn loops(facts: &Facts, identities: &[Identity], remains: &mut Remains) {
    for device in &facts.loops {
        let backing = device.backing.strip_suffix(" (deleted)").unwrap_or(&device.backing);
        let lies_in = |place: &&mut Place| place.mounts.iter().any(|mount| mount.path == backing);
        if let Some(place) = remains.targets.iter_mut().chain(&mut remains.staging).find(lies_in) {
            place.loops.push(device.clone());
        } else if facts.is_of_volume(backing, identities) {
            remains.loops.push(device.clone());
        }
    }
}

/// Whether a record names another volume.
fn says_another(volume: &Wanted, record: &Record) -> bool {
    matches!(record, Record::Of(data) if data.driver != volume.driver || data.handle != volume.handle)
}

impl Facts {
    /// Whether the folder of that name in a pod says that it is another volume's.
    fn pod_says_another(&self, volume: &Wanted, pod: &str, name: &str) -> bool {
        let mut folders = self.folders.iter().filter(|folder| folder.pod == pod && folder.name == name);
        folders.any(|folder| says_another(volume, &folder.record))
    }

    fn absolute(&self, path: &str) -> String {
        format!("{}/{path}", self.root.trim_end_matches('/'))
    }

    /// A path relative to the kubelet's root, if it is below it.
    pub fn below_root(&self, path: &str) -> Option<String> {
        let root = self.root.trim_end_matches('/');
        path.strip_prefix(root)?.strip_prefix('/').map(str::to_owned)
    }

    /// What is left at a place, if anything is.
    fn place(&self, layout: Layout, pod: Option<String>) -> Option<Place> {
        let points: Vec<_> = layout.mounts.iter().map(|path| self.absolute(path)).collect();
        let mounts: Vec<_> =
            self.mounts.iter().rev().filter(|mount| points.contains(&mount.path)).map(Mounted::from).collect();
        let present = |path: &String| self.present.contains(path);
        let leftovers: Vec<_> = layout.leftovers.into_iter().filter(present).collect();
        let shared = layout.shared.into_iter().filter(present).collect();
        let place = Place { path: layout.path, pod, mounts, loops: Vec::new(), leftovers, shared };
        (!place.mounts.is_empty() || !place.leftovers.is_empty()).then_some(place)
    }

    /// Whether a file is in one of these file systems, or the device node that is bound as one.
    fn is_of_volume(&self, path: &str, identities: &[Identity]) -> bool {
        let mount =
            self.mounts.iter().filter(|mount| is_within(path, &mount.path)).max_by_key(|mount| mount.path.len());
        mount.is_some_and(|mount| {
            let rest = path.strip_prefix(mount.path.trim_end_matches('/')).unwrap_or_default();
            let root = format!("{}{rest}", mount.root.trim_end_matches('/'));
            let file = Mount { root, ..mount.clone() };
            identities.iter().any(|identity| identity.is_of(&file))
        })
    }
}

impl From<&Mount> for Identity {
    fn from(mount: &Mount) -> Self {
        Self { device: mount.device, root: mount.root.clone(), source: mount.source.clone() }
    }
}

impl From<&Mount> for Mounted {
    fn from(mount: &Mount) -> Self {
        Self {
            path: mount.path.clone(),
            device: mount.device,
            root: mount.root.clone(),
            fs_type: mount.fs_type.clone(),
        }
    }
}

#[cfg(test)]
#[path = "inventory_tests.rs"]
mod tests;
