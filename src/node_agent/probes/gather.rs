//! Gathers what passive checks decide over: the host's mount table, sysfs, the kernel log, and looks at paths by a child.
//! None of it waits for a volume.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt as _;

use crate::runtime::lock::lock;

use super::super::child::{Answer, Task};
use super::super::children::Children;
use super::super::mounts::mountinfo::{self, Device, Mount};
use super::super::reads::Reads;
use super::blocking::{PROBE, PROBES_MAX, about};
use super::device::Stall;
use super::kernel_log::{Event, Line};
use super::logged::Log;
use super::order::{Outcome, Probe};
use super::view::BlockDevice;
use super::{HostView, Subject, sysfs};

/// Deadline of a look at paths.
const LOOK: Duration = Duration::from_secs(5);
/// Deadline of a superblock.
const SUPERBLOCK: Duration = Duration::from_secs(2);
/// One that could not be read is tried again so much later.
const LATER: Duration = Duration::from_secs(60);
/// What a child is about that looks at paths.
pub const LOOKING: &str = "paths of local volumes";

/// Gathers; clones share what was seen before.
#[derive(Clone)]
pub struct Gatherer {
    children: Children,
    host: String,
    reads: Reads,
    memory: Arc<Mutex<Memory>>,
}

#[derive(Default)]
struct Memory {
    at: Option<Instant>,
    stalls: BTreeMap<Device, Stall>,
    uuids: BTreeMap<Device, (Unchanged, Option<String>)>,
    /// Devices whose superblock could not be read, and when.
    unreadable: BTreeMap<Device, Instant>,
    log: Log,
    silent_servers: BTreeSet<String>,
}

/// As long as these are the same, so is the UUID of a device: which device it is, and the mounts of it.
type Unchanged = (Option<u64>, Vec<u64>);

impl Gatherer {
    /// `host` is a process of the host, such as `/proc/1`.
    pub fn new(children: Children, host: String) -> Self {
        Self { children, host, reads: Reads::new("mounts and devices"), memory: Arc::default() }
    }

    /// Remembers a line of the kernel log, see [`super::watch::kernel_log`].
    pub fn note(&self, line: Line) {
        let mounts = || self.mounts().unwrap_or_default();
        match line {
            Line::Server(name, silent) => {
                let servers = &mut lock(&self.memory).silent_servers;
                if silent {
                    servers.insert(name);
                } else {
                    servers.remove(&name);
                }
            }
            Line::Device(device, sector, event) => {
                // Only of a file system that was shut down it matters which mount it was.
                let all = if event == Event::Shutdown { mounts() } else { Vec::new() };
                let number = fs::read_to_string(format!("{}/class/block/{device}/dev", sysfs::SYSFS));
                let number: Option<Device> = number.ok().and_then(|text| text.parse().ok());
                let of_it = all.iter().filter(|mount| Some(mount.device) == number).map(|mount| mount.id);
                let mounts = of_it.collect();
                lock(&self.memory).log.note(device, sector, event, mounts, Instant::now());
            }
        }
    }

    /// Gathers what these volumes need.
    pub async fn gather(&self, subjects: &[Subject]) -> HostView {
        let (gatherer, wanted) = (self.clone(), subjects.to_vec());
        // Files of proc and sysfs are many, not slow.
        let read = self.reads.run(move || gatherer.read(&wanted)).await;
        let Some((mut view, mounts)) = read else { return HostView::default() };
        let paths: BTreeSet<String> = subjects.iter().filter_map(Subject::local_path).map(str::to_owned).collect();
        self.look(&mut view, paths.into_iter().collect()).await;
        self.superblocks(&view, &mounts).await;
        // Of a raw block volume only the look has told its device.
        let told = subjects.iter().filter(|subject| subject.block).filter_map(|subject| view.device_of(subject));
        for device in told.filter(|device| !view.devices.contains_key(device)).collect::<BTreeSet<_>>() {
            let facts = self.block_device(device, Duration::ZERO);
            view.devices.insert(device, facts);
        }
        let memory = &mut *lock(&self.memory);
        memory.uuids.retain(|device, _| view.devices.contains_key(device));
        // What was read of another device of that number is nothing of this one.
        let holds = |(device, (of, _)): &(&Device, &(Unchanged, _))| *of == unchanged(&view, &mounts, **device);
        let known = memory.uuids.iter().filter(holds);
        view.uuids = known.filter_map(|(device, (_, uuid))| Some((*device, uuid.clone()?))).collect();
        memory.log.tell(&mut view, subjects, Instant::now());
        view
    }

    fn mounts(&self) -> Option<Vec<Mount>> {
        mountinfo::parse(&fs::read(format!("{}/mountinfo", self.host)).ok()?).ok()
    }

    fn block_device(&self, device: Device, since: Duration) -> Option<BlockDevice> {
        let mut stall = lock(&self.memory).stalls.get(&device).cloned().unwrap_or_default();
        let facts = sysfs::block_device(device, &mut stall, since);
        lock(&self.memory).stalls.insert(device, stall);
        facts
    }

    /// The mount table, and what sysfs tells of the devices of these volumes.
    fn read(&self, subjects: &[Subject]) -> (HostView, MountsOf) {
        let now = Instant::now();
        let before = lock(&self.memory).at.replace(now);
        let since = before.map(|before| now - before).unwrap_or_default();
        let mut view = HostView { mounts: self.mounts(), ..HostView::default() };
        let shown = |subject: &Subject| {
            let first = subject.baseline.as_ref().map(|first| first.canonical.clone());
            let paths = first.into_iter().chain(subject.local_path().map(str::to_owned));
            let paths = paths.chain(subject.expected.iter().map(|one| one.path.clone()));
            paths.filter_map(|path| view.mount_of(&path).cloned()).collect::<Vec<_>>()
        };
        let shown: BTreeMap<Device, Mount> =
            subjects.iter().flat_map(shown).map(|mount| (mount.device, mount)).collect();
        let mut devices: BTreeSet<Device> = BTreeSet::new();
        for subject in subjects {
            let first = subject.baseline.as_ref().and_then(|first| first.device);
            devices.extend(subject.device.into_iter().chain(first).filter(|device| device.major != 0));
        }
        for mount in shown.values() {
            if mount.device.major == 0
                && let Some(device) = sysfs::device_of_source(mount)
            {
                view.below.insert(mount.device, device);
            }
            let Some(device) = view.block_device_of(mount) else { continue };
            devices.insert(device);
            if let Some(counters) = sysfs::counters(mount, device) {
                view.counters.insert(mount.device, counters);
            }
        }
        lock(&self.memory).stalls.retain(|device, _| devices.contains(device));
        for device in devices {
            let facts = self.block_device(device, since);
            view.devices.insert(device, facts);
        }
        let mut mounts = MountsOf::new();
        for mount in view.mounts.iter().flatten() {
            mounts.entry(view.block_device_of(mount).unwrap_or(mount.device)).or_default().push(mount.id);
        }
        self.add_log(&mut view, now);
        (view, mounts)
    }

    fn add_log(&self, view: &mut HostView, now: Instant) {
        let memory = &mut *lock(&self.memory);
        let is_mounted = |id: u64| view.mounts.iter().flatten().any(|mount| mount.id == id);
        view.kernel = memory.log.facts(is_mounted, now);
        view.silent_servers = memory.silent_servers.clone();
    }

    /// Devices whose superblock was not read since something changed, as far as nothing says that it would wait.
    fn unread(&self, view: &HostView, mounts: &MountsOf, now: Instant) -> Vec<(Device, String)> {
        let memory = &mut *lock(&self.memory);
        memory.unreadable.retain(|_, at| now.saturating_duration_since(*at) < LATER);
        let known =
            |device: &Device| memory.uuids.get(device).is_some_and(|(of, _)| *of == unchanged(view, mounts, *device));
        let waits = |facts: &BlockDevice| facts.suspended || facts.stalled.is_some_and(|time| time >= SUPERBLOCK);
        let all = view.devices.iter().filter_map(|(device, facts)| Some((*device, facts.as_ref()?)));
        let asked = all.filter(|(device, facts)| !known(device) && !waits(facts));
        let asked = asked.filter(|(device, _)| !memory.unreadable.contains_key(device));
        let asked = asked.filter(|(device, _)| self.children.hung_of(&about(*device)) == 0);
        asked.map(|(device, facts)| (device, facts.name.clone())).collect()
    }

    /// Has a child of its own read the superblock of each of these: who waits for one device waits for no other.
    async fn superblocks(&self, view: &HostView, mounts: &MountsOf) {
        let reads = self.unread(view, mounts, Instant::now()).into_iter().map(|(device, name)| async move {
            if self.children.hung_like(PROBE) >= PROBES_MAX {
                return;
            }
            let task = Task::Probe(Probe::Superblock(device, name));
            let answer = self.children.run(&about(device), task, SUPERBLOCK).await;
            let memory = &mut *lock(&self.memory);
            match answer {
                Ok(Answer::Probed(Outcome::Superblock(uuid))) => {
                    memory.uuids.insert(device, (unchanged(view, mounts, device), uuid));
                }
                other => {
                    tracing::warn!(?other, %device, "the superblock of a device could not be read");
                    memory.unreadable.insert(device, Instant::now());
                }
            }
        });
        futures::stream::iter(reads).buffer_unordered(PROBES_MAX).collect::<Vec<()>>().await;
    }

    /// Has a child look at paths. While one hangs no other is started: nothing is known of them then.
    async fn look(&self, view: &mut HostView, paths: Vec<String>) {
        if paths.is_empty() || self.children.hung_of(LOOKING) > 0 {
            return;
        }
        match self.children.run(LOOKING, Task::Probe(Probe::Look(paths)), LOOK).await {
            Ok(Answer::Probed(Outcome::Looked(paths))) => view.paths.extend(paths),
            Ok(other) => tracing::warn!(?other, "paths of local volumes could not be looked at"),
            Err(error) => tracing::warn!(%error, "paths of local volumes could not be looked at"),
        }
    }
}

/// Ids of the mounts of each device.
type MountsOf = BTreeMap<Device, Vec<u64>>;

fn unchanged(view: &HostView, mounts: &MountsOf, device: Device) -> Unchanged {
    let facts = view.devices.get(&device).and_then(Option::as_ref);
    (facts.and_then(|facts| facts.disk_sequence), mounts.get(&device).cloned().unwrap_or_default())
}

#[cfg(test)]
#[path = "gather_tests.rs"]
mod tests;
