//! What a child does to stop pods' access, and to give it back. All their processes are killed; and the kubelet's mounts of
//! their volumes are covered by an empty file system that nobody can write to, so that what the kubelet starts anew has no
//! volume. Nothing is unmounted: a container that starts on the node's own disk would take that for its volume.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};

use super::super::mounts::layout::{self, Owner};
use super::super::mounts::mountinfo::{self, COVER, Mount};
use super::super::mounts::process;
use super::super::mounts::read::{self, Root, is_gone};
use super::super::mounts::vol_data::Record;

/// How long killed processes may take to end.
const ENDS: Duration = Duration::from_secs(2);
/// Pause between two looks at them.
const PACE: Duration = Duration::from_millis(10);

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Tell which volumes pods have.
    Volumes(String),
    /// Tell which pods are under a cover.
    Covered(String),
    /// End what runs of pods.
    Stop(Stop),
    /// Cover mounts of a pod.
    Cover(Cover),
    /// Write what is in memory of these mounts.
    Sync(Vec<String>),
    /// Uncover the mounts of a pod.
    GiveBack(GiveBack),
}

/// Whose processes to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// The kubelet's root folder.
    pub kubelet_root: String,
    /// The pods, by uid.
    pub pods: BTreeSet<String>,
}

/// Which mounts to cover.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cover {
    /// The kubelet's root folder.
    pub kubelet_root: String,
    /// The pod, by uid. Its processes end once more after that.
    pub pod: String,
    /// These mounts of it and no others: they are written down.
    pub paths: Vec<String>,
}

/// Which mounts to give back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GiveBack {
    /// The kubelet's root folder.
    pub kubelet_root: String,
    /// The pod, by uid. Its covers are known by their name: an agent that ended before it wrote them down leaves none behind.
    pub pod: String,
    /// Mounts of its files, which were made read-only.
    pub paths: Vec<String>,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Done {
    /// The volumes of pods.
    Volumes(Vec<PodVolume>),
    /// The pods under a cover, by uid.
    Covered(BTreeSet<String>),
    /// The access is stopped, as far as this says.
    Stopped(Stopped),
    /// The mounts are uncovered; what is left of those who began under a cover, in words.
    GivenBack(Vec<String>),
    /// All of it.
    All,
    /// This could not be done.
    Failed(String),
}

/// A CSI volume that a pod has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodVolume {
    /// The pod's uid.
    pub pod: String,
    /// The name of its folder: that of the PersistentVolume.
    pub volume: String,
    /// CSI driver.
    pub driver: String,
}

/// How far pods were stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopped {
    /// Mounts that were not covered before, and are.
    pub covered: Vec<String>,
    /// Processes that were killed.
    pub killed: usize,
    /// Pods that the kubelet has no folder of.
    pub removed: BTreeSet<String>,
    /// Mounts that are not covered, by pod.
    pub open: BTreeMap<String, Vec<String>>,
    /// What is left, in words.
    pub left: Vec<String>,
}

impl Stopped {
    /// What a child told; that it did not is left to be done.
    pub fn of(told: Result<Done, String>) -> Self {
        match told {
            Ok(Done::Stopped(done)) => done,
            Ok(other) => Self { left: vec![format!("{other:?}")], ..Self::default() },
            Err(error) => Self { left: vec![error], ..Self::default() },
        }
    }
}

/// Does it.
pub fn obey(order: &Order) -> Done {
    let done = match order {
        Order::Volumes(root) => volumes(root).map(Done::Volumes),
        Order::Covered(root) => under_covers(root).map(Done::Covered),
        Order::Stop(stop) => stopped(stop).map(Done::Stopped),
        Order::Cover(order) => covered(order).map(Done::Stopped),
        Order::Sync(paths) => paths.iter().try_for_each(|path| sync(path)).map(|()| Done::All),
        Order::GiveBack(give_back) => given_back(give_back).map(Done::GivenBack),
    };
    done.unwrap_or_else(|error| Done::Failed(error.to_string()))
}

/// From the kubelet's folders alone: the API may be away.
fn volumes(kubelet_root: &str) -> io::Result<Vec<PodVolume>> {
    let root = Root::open(kubelet_root)?;
    let folders = read::pod_folders(&root).map_err(|(path, error)| io::Error::other(format!("{path}: {error}")))?;
    let volume = |folder: super::super::mounts::inventory::Folder| match folder.record {
        Record::Of(data) => Some(PodVolume { pod: folder.pod, volume: folder.name, driver: data.driver }),
        Record::Absent | Record::Unreadable(_) => None,
    };
    Ok(folders.into_iter().filter_map(volume).collect())
}

/// From the mounts alone.
fn under_covers(kubelet_root: &str) -> io::Result<BTreeSet<String>> {
    let root = Root::open(kubelet_root)?;
    let mounts = of_pods(&root, |_| true)?;
    let covers = mounts.values().filter(|mount| mount.is_cover());
    Ok(covers.filter_map(|cover| pod_of(&root, cover)).map(str::to_owned).collect())
}

/// It waits for no file system.
fn stopped(stop: &Stop) -> io::Result<Stopped> {
    let mut done = Stopped::default();
    end(&stop.pods, |_| true, &mut done)?;
    match Root::open(&stop.kubelet_root) {
        Ok(root) => {
            let mounts = of_pods(&root, |pod| stop.pods.contains(pod))?.into_values();
            for mount in mounts.filter(|mount| !is_closed(mount)) {
                let Some(pod) = pod_of(&root, &mount) else { continue };
                done.open.entry(pod.to_owned()).or_default().push(mount.path.clone());
            }
            done.removed = removed(&root, &stop.pods);
        }
        Err(error) => done.left.push(format!("{}: {error}", stop.kubelet_root)),
    }
    done.left.sort();
    done.left.dedup();
    Ok(done)
}

/// It may wait for the pod's storage.
fn covered(order: &Cover) -> io::Result<Stopped> {
    let mut done = Stopped::default();
    let root = Root::open(&order.kubelet_root)?;
    let is_wanted = |mount: &Mount| !is_closed(mount) && order.paths.contains(&mount.path);
    for mount in of_pods(&root, |pod| pod == order.pod)?.into_values().filter(is_wanted) {
        match cover(&root, &mount) {
            Ok(()) => done.covered.push(mount.path),
            Err(error) => done.left.push(format!("{}: {error}", mount.path)),
        }
    }
    // Whoever was started meanwhile may have the volume still.
    end(&BTreeSet::from([order.pod.clone()]), |_| true, &mut done)?;
    done.left.sort();
    done.left.dedup();
    Ok(done)
}

/// The pods that the kubelet has no folder of any more: it does not start them again.
fn removed(root: &Root, pods: &BTreeSet<String>) -> BTreeSet<String> {
    let has = |path: &str| root.has(path).unwrap_or(true);
    pods.iter().filter(|pod| has("pods") && !has(&format!("pods/{pod}"))).cloned().collect()
}

/// Kills the processes of the pods that see such mounts, and waits until they have ended.
fn end(pods: &BTreeSet<String>, sees: impl Fn(&[Mount]) -> bool, done: &mut Stopped) -> io::Result<()> {
    let until = Instant::now() + ENDS;
    let mut killed = BTreeSet::new();
    loop {
        let found = processes_of(pods, &sees)?;
        for (pid, view) in &found {
            match kill(*pid, view) {
                Ok(true) => _ = killed.insert(*pid),
                Ok(false) => {}
                Err(error) if is_gone(&error) => {}
                Err(error) => done.left.push(format!("pid {pid}: {error}")),
            }
        }
        if found.is_empty() || Instant::now() >= until {
            done.left.extend(found.keys().map(|pid| format!("pid {pid}: it was killed and has not ended")));
            done.killed += killed.len();
            return Ok(());
        }
        std::thread::sleep(PACE);
    }
}

/// Mounts of pods' volumes and their sub-paths by path: of several the one on top.
fn of_pods(root: &Root, is_wanted: impl Fn(&str) -> bool) -> io::Result<BTreeMap<String, Mount>> {
    let is_of = |mount: &Mount| mount.exact && pod_of(root, mount).is_some_and(&is_wanted);
    let mounts = read::mounts()?.into_iter().filter(is_of);
    Ok(mounts.map(|mount| (mount.path.clone(), mount)).collect())
}

/// The pod that the kubelet has mounted it for, if it is of a CSI volume.
fn pod_of<'a>(root: &Root, mount: &'a Mount) -> Option<&'a str> {
    match layout::owner(mount.path.strip_prefix(&root.path)?.strip_prefix('/')?) {
        Owner::Pod(pod, _) => Some(pod),
        Owner::Volume | Owner::Other => None,
    }
}

fn is_closed(mount: &Mount) -> bool {
    mount.is_cover() || mount.options.iter().any(|option| option == "ro")
}

/// What nobody can write to by its file system: a container's own mount of it may be made writable, and is not. A file has no
/// room for a file system, so its mount alone is made read-only.
fn cover(root: &Root, mount: &Mount) -> io::Result<()> {
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let (_held, path) = reached(root, mount)?;
    // What is mounted on a shared mount is on all of its peers too: in other pods, and where the volume is staged. In a group of
    // its own it stays one that containers may share.
    if mount.shared.is_some() {
        rustix::mount::mount_change(path.as_str(), MountPropagationFlags::PRIVATE)?;
        rustix::mount::mount_change(path.as_str(), MountPropagationFlags::SHARED)?;
    }
    match rustix::mount::mount(COVER, path.as_str(), "tmpfs", flags, c"size=4k,mode=0555") {
        Err(Errno::NOTDIR) => remount(&path, mount, true),
        done => Ok(done?),
    }
}

/// A path to where something is mounted, through its folder, which was reached without any symbolic link.
fn reached(root: &Root, mount: &Mount) -> io::Result<(OwnedFd, String)> {
    let below = mount.path.strip_prefix(&root.path).and_then(|rest| rest.strip_prefix('/')).unwrap_or_default();
    let (folder, name) = root.parent(below)?;
    let path = format!("/proc/self/fd/{}/{name}", folder.as_raw_fd());
    Ok((folder, path))
}

fn remount(path: &str, mount: &Mount, read_only: bool) -> io::Result<()> {
    let mut flags = MountFlags::BIND;
    flags.set(MountFlags::RDONLY, read_only);
    // Flags that are not given would be taken away; the kernel keeps those of access times by itself.
    for (option, flag) in [("nosuid", MountFlags::NOSUID), ("nodev", MountFlags::NODEV), ("noexec", MountFlags::NOEXEC)]
    {
        flags.set(flag, mount.options.iter().any(|found| found == option));
    }
    Ok(rustix::mount::mount_remount(path, flags, c"")?)
}

/// Only what is ours still: a path that is gone needs nothing. What is left of who began under a cover.
fn given_back(give_back: &GiveBack) -> io::Result<Vec<String>> {
    let root = Root::open(&give_back.kubelet_root)?;
    let is_ours = |mount: &Mount| mount.is_cover() || is_closed(mount) && give_back.paths.contains(&mount.path);
    let mut outcome = Ok(());
    for mount in of_pods(&root, |pod| pod == give_back.pod)?.values().filter(|mount| is_ours(mount)) {
        let (_held, path) = reached(&root, mount)?;
        outcome = outcome.and(match mount.is_cover() {
            true => rustix::mount::unmount(path.as_str(), UnmountFlags::NOFOLLOW).map_err(io::Error::from),
            false => remount(&path, mount, false),
        });
    }
    outcome?;
    // A container that began under a cover has it among its own mounts for good; begun anew it has its volume.
    let mut done = Stopped::default();
    end(&BTreeSet::from([give_back.pod.clone()]), |mounts| mounts.iter().any(Mount::is_cover), &mut done)?;
    Ok(done.left)
}

/// Through another mount of the same file system, such as the staged one: the pod's own is covered.
fn sync(path: &str) -> io::Result<()> {
    let mounts = read::mounts()?;
    let on_top = |path: &str| mounts.iter().rfind(|mount| mount.path == path);
    let Some(volume) = mounts.iter().rfind(|mount| mount.path == path && !mount.is_cover()) else { return Ok(()) };
    let is_open = |mount: &&Mount| {
        mount.device == volume.device && mount.exact && on_top(&mount.path).is_some_and(|top| top.id == mount.id)
    };
    let Some(open) = mounts.iter().find(is_open) else { return Ok(()) };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    Ok(rustix::fs::syncfs(rustix::fs::openat(CWD, open.path.as_str(), flags, Mode::empty())?)?)
}

/// The processes of pods that see such mounts, each with what it sees: a container has its pod's `etc-hosts` or its termination
/// log mounted. The host's own are none of them.
fn processes_of(pods: &BTreeSet<String>, sees: impl Fn(&[Mount]) -> bool) -> io::Result<BTreeMap<u32, String>> {
    let host = fs::read_link("/proc/self/ns/mnt")?.display().to_string();
    let mut views: BTreeMap<String, bool> = BTreeMap::from([(host, false)]);
    let mut found = BTreeMap::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Ok(folder) = process::folder(&Path::new("/proc").join(pid.to_string())) else { continue };
        let Ok(view) = view(&folder) else { continue };
        let is_theirs = match views.get(&view) {
            Some(known) => *known,
            None => {
                // One that ends has none: what lives and sees the same tells.
                let Some(mounts) = mounts_of(&folder) else { continue };
                let is_of_pod = |mount: &Mount| layout::pod_of_root(&mount.root).is_some_and(|pod| pods.contains(pod));
                let is_theirs = mounts.iter().any(is_of_pod) && sees(&mounts);
                views.insert(view.clone(), is_theirs);
                is_theirs
            }
        };
        if is_theirs {
            found.insert(pid, view);
        }
    }
    Ok(found)
}

fn view(folder: &Path) -> io::Result<String> {
    Ok(fs::read_link(folder.join("ns/mnt"))?.display().to_string())
}

fn mounts_of(folder: &Path) -> Option<Vec<Mount>> {
    let text = fs::read(folder.join("mountinfo")).ok().filter(|text| !text.is_empty())?;
    mountinfo::parse(&text).ok()
}

/// Kills a process if it is still the one that was seen; whether it was.
fn kill(pid: u32, seen: &str) -> io::Result<bool> {
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(false) };
    let held = rustix::process::pidfd_open(number, PidfdFlags::empty())?;
    // From here on the number is not given to another.
    let folder = process::folder(&Path::new("/proc").join(pid.to_string()))?;
    if view(&folder)? != seen {
        return Ok(false);
    }
    rustix::process::pidfd_send_signal(held, Signal::KILL)?;
    Ok(true)
}
