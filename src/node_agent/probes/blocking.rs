//! Probes that may wait for a file system or a device for ever. Each runs in a child with a deadline; whatever hangs, few
//! children do, and there are always places for volumes that answered last time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::super::child::{Answer, Task};
use super::super::children::{Children, NoAnswer};
use super::super::mounts::mountinfo::{Device, Mount};
use super::answers::{self, Server};
use super::filesystem::is_fuse;
use super::nfs::is_nfs;
use super::order::{Disk, Outcome, Place, Probe, Scrub};
use super::{HostView, Seen, Subject, inaccessible};
use crate::api::hysteresis::Sample;
use crate::api::volume::{Check, CheckMode};
use crate::runtime::lock::lock;

/// What a child of a probe is about: a device, whose number follows.
pub const PROBE: &str = "probe of ";
/// Children of probes alive at once, those included that cannot be killed.
pub const PROBES_MAX: usize = 4;
/// Of these, for devices that did not answer last time.
const SUSPECTS_MAX: usize = 2;
/// Deadline of a question that needs no write.
pub const ASK: Duration = Duration::from_secs(5);
/// A device that did not answer last time has as much less time.
const SUSPECT: f64 = 0.4;
/// Deadline of a write that is flushed and read back.
const WRITE: Duration = Duration::from_secs(10);
/// Deadline of a scrub of one part.
const SCRUB: Duration = Duration::from_secs(30);
/// What a child may take to end after it was killed, before its device is left alone.
const KILLED: Duration = Duration::from_secs(2);

/// Runs probes; clones share what was seen before.
#[derive(Clone)]
pub struct Prober {
    children: Children,
    node: String,
    deadline: Duration,
    places: Arc<Semaphore>,
    suspect_places: Arc<Semaphore>,
    scrubs: Arc<Semaphore>,
    devices: Arc<Mutex<BTreeMap<Device, Known>>>,
}

/// What is known of a device.
#[derive(Clone, Default)]
struct Known {
    /// One probe at a time.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// It did not answer last time.
    suspect: bool,
    /// How often it was read.
    reads: u64,
    /// How far it was scrubbed, and what could not be read.
    scrubbed: u64,
    bad: Vec<u64>,
}

/// No outcome of a probe.
enum Lost {
    /// The deadline passed.
    Silent(Duration),
    /// A child of this device cannot be killed.
    Quarantined,
    /// There was no place, or the child could not be run: nothing is known.
    NotAsked,
}

impl Prober {
    /// `node` names the canaries of this node, `deadline` is that of what needs no write.
    pub fn new(children: Children, node: String, deadline: Duration) -> Self {
        let places = |number| Arc::new(Semaphore::new(number));
        Self {
            children,
            node,
            deadline,
            places: places(PROBES_MAX),
            suspect_places: places(SUSPECTS_MAX),
            scrubs: places(1),
            devices: Arc::default(),
        }
    }

    /// Asks a volume how it is, as far as `mode` allows. It takes seconds where something hangs, and longer where much
    /// does: run it for each volume by itself. A check that is not told was not asked.
    pub async fn probe(&self, view: &HostView, subject: &Subject, mode: impl Fn(Check) -> CheckMode) -> Vec<Seen> {
        let active = |check| mode(check) == CheckMode::Active;
        let mut seen = Vec::new();
        let mut tell = |check, sample| seen.push(Seen::of(subject, check, sample));
        let disk = view.device_of(subject).and_then(|device| Some((device, view.devices.get(&device)?.as_ref()?)));
        let disk = disk.map(|(device, facts)| Disk { name: facts.name.clone(), device, size: facts.size(), turn: 0 });
        let mount = view.main_mount(subject);
        let place = mount.and_then(|mount| self.place(view, subject, mount));
        if let (Some(mount), Some(place)) = (mount, &place) {
            let server = server_of(mount);
            if [server.check(), Check::Capacity].iter().any(|check| mode(*check) != CheckMode::Disabled) {
                let outcome = self.ask(mount.device, Probe::Root(place.clone())).await;
                let is_lost = outcome.is_err();
                let told = match outcome {
                    Ok(outcome) => answers::of_root(server, subject.read_only, &outcome),
                    Err(lost) => vec![(server.check(), lost.sample(server))],
                };
                told.into_iter().filter(|(check, _)| mode(*check) != CheckMode::Disabled).for_each(
                    |(check, sample)| {
                        tell(check, sample);
                    },
                );
                // Who does not answer is not asked more.
                if is_lost {
                    return seen;
                }
            }
        }
        let key = disk.as_ref().map(|disk| disk.device).or(mount.map(|mount| mount.device));
        let Some(key) = key else { return seen };
        let server = mount.map_or(Server::Kernel, server_of);
        if active(Check::ReadProbe) {
            let read = disk.clone().map(|disk| Probe::Read(Disk { turn: self.next_turn(key), ..disk }));
            if let Some(probe) = read.or_else(|| place.clone().map(Probe::ReadCanary)) {
                tell(Check::ReadProbe, self.data(key, server, probe).await);
            }
        }
        let writable = mount.is_some_and(|mount| !subject.read_only && is_known(subject, mount));
        if let Some(place) = place.filter(|_| active(Check::WriteProbe) && writable) {
            tell(Check::WriteProbe, self.data(key, server, Probe::Write(place)).await);
        }
        if let Some(disk) = disk.filter(|_| active(Check::Scrub)) {
            tell(Check::Scrub, self.scrub(disk).await);
        }
        seen
    }

    /// Forgets devices that no volume is on any more. One that hangs is remembered.
    pub fn retain(&self, devices: &BTreeSet<Device>) {
        lock(&self.devices).retain(|device, known| devices.contains(device) || known.turn.try_lock().is_err());
    }

    fn place(&self, view: &HostView, subject: &Subject, mount: &Mount) -> Option<Place> {
        let path = match subject.local_path() {
            Some(path) => {
                let leads = &view.there(subject)?.canonical;
                // A link is taken as it was seen first. Where it leads now, anybody may have chosen.
                let first = subject.baseline.as_ref().map_or(path, |first| &first.canonical);
                Some(leads).filter(|leads| *leads == path || *leads == first)?.clone()
            }
            None => mount.path.clone(),
        };
        Some(Place { path, mount: mount.id, node: self.node.clone() })
    }

    fn with<T>(&self, device: Device, change: impl FnOnce(&mut Known) -> T) -> T {
        change(lock(&self.devices).entry(device).or_default())
    }

    fn next_turn(&self, device: Device) -> u64 {
        self.with(device, |known| {
            known.reads = known.reads.wrapping_add(1);
            known.reads
        })
    }

    async fn data(&self, device: Device, server: Server, probe: Probe) -> Sample {
        match self.ask(device, probe).await {
            Ok(outcome) => answers::of_data(&outcome),
            Err(lost) => lost.sample(server),
        }
    }

    async fn scrub(&self, disk: Disk) -> Sample {
        let device = disk.device;
        // One device at a time: it is slow on purpose.
        let Ok(_turn) = self.scrubs.try_acquire() else { return Sample::Unknown };
        let (from, again) = self.with(device, |known| (known.scrubbed, known.bad.clone()));
        let part = Scrub { from: if from < disk.size { from } else { 0 }, disk, again: again.clone() };
        match self.ask(device, Probe::Scrub(part)).await {
            Ok(Outcome::Scrubbed { to, bad }) => self.with(device, |known| {
                (known.scrubbed, known.bad) = (to, bad);
                answers::of_scrub(&known.bad)
            }),
            Ok(outcome) => answers::of_data(&outcome),
            Err(lost) => lost.sample(Server::Kernel),
        }
    }

    /// A place to run, and one more for a device that did not answer last time.
    async fn places(&self, suspect: bool) -> Option<Vec<OwnedSemaphorePermit>> {
        let mut places = Vec::new();
        if suspect {
            places.push(self.suspect_places.clone().acquire_owned().await.ok()?);
        }
        places.push(self.places.clone().acquire_owned().await.ok()?);
        Some(places)
    }

    /// Runs a probe of a device, one at a time for each.
    async fn ask(&self, device: Device, probe: Probe) -> Result<Outcome, Lost> {
        let about = about(device);
        if self.children.hung_of(&about) > 0 {
            return Err(Lost::Quarantined);
        }
        let turn = self.with(device, |known| known.turn.clone()).lock_owned().await;
        if self.children.hung_of(&about) > 0 {
            return Err(Lost::Quarantined);
        }
        let suspect = self.with(device, |known| known.suspect);
        let Some(places) = self.places(suspect).await else { return Err(Lost::NotAsked) };
        let deadline = match probe {
            Probe::Write(_) => WRITE,
            Probe::Scrub(_) => SCRUB,
            _ if suspect => self.deadline.mul_f64(SUSPECT),
            _ => self.deadline,
        };
        let answer = self.children.run(&about, Task::Probe(probe), deadline).await;
        self.with(device, |known| known.suspect = matches!(answer, Err(NoAnswer::TimedOut(_))));
        match answer {
            Ok(Answer::Probed(outcome)) => Ok(outcome),
            Err(NoAnswer::TimedOut(_)) if !self.children.all_ended(&about, KILLED).await => {
                let children = self.children.clone();
                tokio::spawn(async move {
                    while !children.all_ended(&about, Duration::MAX).await {}
                    drop((places, turn));
                });
                Err(Lost::Quarantined)
            }
            Err(NoAnswer::TimedOut(after)) => Err(Lost::Silent(after)),
            other => {
                tracing::warn!(?other, about, "a probe could not be run");
                Err(Lost::NotAsked)
            }
        }
    }
}

/// What a child is about that may wait for this device.
pub fn about(device: Device) -> String {
    format!("{PROBE}{device}")
}

impl Lost {
    fn sample(self, server: Server) -> Sample {
        match self {
            Self::Silent(after) => server.silence(&format!("no answer within {after:?}")),
            Self::Quarantined => inaccessible(
                "IOHung",
                "a process that waits for it cannot be killed; only an answer or a reboot ends it",
            ),
            Self::NotAsked => Sample::Unknown,
        }
    }
}

fn server_of(mount: &Mount) -> Server {
    if is_nfs(mount) {
        Server::NFS
    } else if is_fuse(mount) {
        Server::FUSE
    } else {
        Server::Kernel
    }
}

/// Whether what is mounted is what was there first: nothing is ever written anywhere else.
fn is_known(subject: &Subject, mount: &Mount) -> bool {
    let same = |first: &super::Baseline| {
        (first.device, &first.root, &first.fs_type) == (Some(mount.device), &mount.root, &mount.fs_type)
    };
    subject.baseline.as_ref().is_some_and(same)
}
