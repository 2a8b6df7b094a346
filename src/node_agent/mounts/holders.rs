//! Which processes hold a volume, in any mount namespace. Open files are told by the id of their mount, which the kernel
//! knows without asking the file system; memory by its device. Where only the file itself could tell (its mount is
//! detached), it is asked for nothing but what the kernel has in memory.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::inventory::{Facts, Holder, Identity, Remains, Unknown};
use super::layout::{self, Wanted};
use super::mountinfo::{self, Device, Mount, is_within};
use super::process;
use super::read::is_gone;
use super::reader::{File, Reader};

/// How long a process that can no longer be read is asked whether it is gone.
const ENDING: Duration = Duration::from_millis(50);
/// First words of a child of ours that unmounts: one that outlived its agent holds what it could not unmount.
const UNMOUNTING: [&str; 2] = ["child", "unmount"];

/// The mounts that some processes see.
struct View {
    /// Mounts of volumes: id and volume.
    mounts: Vec<Mount>,
    /// Volumes whose mounts here do not go when the host's go.
    keeps: BTreeSet<usize>,
    /// Volumes whose pods the containers here belong to.
    users: BTreeSet<usize>,
    /// Whether they are the host's own.
    is_host: bool,
    /// Whether what is mounted for the kubelet is mounted here too.
    of_the_host: bool,
}

impl View {
    /// Whether what is unmounted of a volume for the host is unmounted here. A pod's own container is its user even if
    /// it shares the kubelet's mounts.
    fn is_of_the_host(&self, volume: usize) -> bool {
        self.of_the_host && !self.keeps.contains(&volume) && !self.users.contains(&volume)
    }
}

struct Search<'a> {
    facts: &'a Facts,
    wanted: &'a [Wanted],
    identities: &'a [Vec<Identity>],
    /// Device numbers that can only be of that volume: of a whole file system.
    devices: BTreeMap<Device, usize>,
    /// Device numbers of raw block volumes.
    nodes: BTreeMap<Device, usize>,
    /// Mount id → volume, `None` for other mounts.
    ids: HashMap<u64, Option<usize>>,
    views: HashMap<(String, String), View>,
    reader: Reader,
}

/// Adds to each volume the processes that hold it.
pub fn find(
    facts: &Facts,
    wanted: &[Wanted],
    identities: &[Vec<Identity>],
    volumes: &mut [Remains],
    unknown: &mut Vec<Unknown>,
) {
    let mut search = Search {
        facts,
        wanted,
        identities,
        devices: BTreeMap::new(),
        nodes: BTreeMap::new(),
        ids: HashMap::new(),
        views: HashMap::new(),
        reader: Reader::start(),
    };
    search.index(facts);
    for (device, index) in &search.nodes {
        let folder = Path::new("/sys/dev/block").join(device.to_string()).join("holders");
        let used = stacked(&folder).into_iter().map(|name| Unknown::new(name, "BlockDeviceInUse"));
        if let Some(volume) = volumes.get_mut(*index) {
            volume.unknown.extend(used);
        }
    }
    let processes = match processes() {
        Ok(processes) => processes,
        Err(_) => return unknown.push(Unknown::new("/proc", "ProcessesUnreadable")),
    };
    let me = std::process::id();
    let mut seen = Vec::new();
    for pid in processes.into_iter().filter(|pid| *pid != me) {
        match while_it_lives(pid, |folder| search.view(folder)) {
            Ok(key) => seen.push((pid, key)),
            Err(error) if is_gone(&error) => {}
            Err(error) => unknown.push(unreadable(pid, &error)),
        }
    }
    // One process stands for all that see the same mounts.
    let mut told = HashSet::new();
    for (pid, key) in seen {
        let mut held = match while_it_lives(pid, |folder| search.held_by(folder, &key)) {
            Ok(held) => held,
            Err(error) if is_gone(&error) => continue,
            Err(error) => {
                unknown.push(unreadable(pid, &error));
                continue;
            }
        };
        if told.insert(key.clone()) {
            held.extend(search.held_in(&key));
        }
        let name = process::shown_name(&fs::read(format!("/proc/{pid}/comm")).unwrap_or_default());
        let of_host = search.views.get(&key).is_some_and(|view| view.is_host);
        if of_host && search.is_unmounting(pid) {
            unknown.push(Unknown::new(format!("pid {pid} ({name})"), "UnmountHangs"));
        }
        for index in held {
            let of_the_host = search.views.get(&key).is_some_and(|view| view.is_of_the_host(index));
            if let Some(volume) = volumes.get_mut(index) {
                volume.holders.push(Holder { pid, name: name.clone(), of_the_host });
            }
        }
    }
}

/// Looks at a process, again if it ended, or its first thread did, meanwhile: what is read of one that ends can be
/// nothing, an error, or half of it. `NOENT` or `SRCH` if it is gone.
fn while_it_lives<T>(pid: u32, mut look: impl FnMut(&str) -> io::Result<T>) -> io::Result<T> {
    let process = Path::new("/proc").join(pid.to_string());
    let deadline = Instant::now() + ENDING;
    loop {
        let folder = process::folder(&process)?;
        let found = look(&folder.to_string_lossy());
        let ends = match &found {
            Ok(_) => process::folder(&process)? != folder,
            Err(error) => is_gone(error) || error.raw_os_error() == Some(Errno::INVAL.raw_os_error()),
        };
        if !ends {
            return found;
        }
        if Instant::now() > deadline {
            // It is there, so what is gone is not it.
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it ends, and does not end"));
        }
        std::thread::yield_now();
    }
}

fn unreadable(pid: u32, error: &io::Error) -> Unknown {
    let reason = match error.kind() {
        io::ErrorKind::PermissionDenied => "NotPermitted",
        io::ErrorKind::TimedOut => "ProcessHangs",
        _ => "ProcessUnreadable",
    };
    Unknown::new(format!("pid {pid}"), reason)
}

/// The devices that were made of a block device (mapped, encrypted, joined), from its `holders`. One that cannot be read
/// is told by its path; a device that is gone has none.
fn stacked(folder: &Path) -> Vec<String> {
    match fs::read_dir(folder) {
        Ok(entries) => {
            entries.filter_map(Result::ok).map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(_) => vec![folder.display().to_string()],
    }
}

fn processes() -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        found.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    found.sort_unstable();
    Ok(found)
}

/// Whether the words of a process are those of a child that unmounts, and its `status` that of one whose agent is gone: of
/// root, and not of `agent`, which knows its own. Anybody can have such words.
fn is_unmounting(line: &str, status: &str, agent: Option<u32>) -> bool {
    let mut words = line.split('\0');
    let program = words.next().unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next();
    program.ends_with("bulkhead-node-agent")
        && UNMOUNTING.iter().all(|word| words.next() == Some(word))
        && field("Uid:") == Some("0")
        && field("PPid:").and_then(|parent| parent.parse().ok()) != agent
}

impl<'a> Search<'a> {
    fn index(&mut self, facts: &Facts) {
        for (index, identity) in self.each_identity() {
            let of_the_device = |mount: &&Mount| mount.device == identity.device;
            if identity.is_whole() && facts.mounts.iter().filter(of_the_device).all(|mount| identity.is_of(mount)) {
                self.devices.insert(identity.device, index);
            } else if let Some(device) = block_device(facts, identity) {
                self.nodes.insert(device, index);
            }
        }
        self.add_ids(&facts.mounts);
    }

    /// Whether a process that sees the host's mounts is a child that unmounts. One that hangs does not keep us.
    fn is_unmounting(&mut self, pid: u32) -> bool {
        let agent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
        let line = self.reader.text(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        is_unmounting(&line, &status, agent)
    }

    fn each_identity(&self) -> impl Iterator<Item = (usize, &'a Identity)> + use<'a> {
        let identities = self.identities;
        identities.iter().enumerate().flat_map(|(index, of)| of.iter().map(move |identity| (index, identity)))
    }

    fn volume_of(&self, mount: &Mount) -> Option<usize> {
        self.each_identity().find(|(_, identity)| identity.is_of(mount)).map(|(index, _)| index)
    }

    fn add_ids(&mut self, mounts: &[Mount]) {
        for mount in mounts {
            let volume = self.volume_of(mount);
            self.ids.insert(mount.id, volume);
        }
    }

    /// Reads the mounts that a process sees, once for all that see the same.
    fn view(&mut self, folder: &str) -> io::Result<(String, String)> {
        let link = |name: &str| Ok::<_, io::Error>(fs::read_link(format!("{folder}/{name}"))?.display().to_string());
        let key = (link("ns/mnt")?, link("root")?);
        if !self.views.contains_key(&key) {
            let text = fs::read(format!("{folder}/mountinfo"))?;
            // A process that has just ended still has the file, without a line.
            if text.is_empty() {
                return Err(Errno::NOENT.into());
            }
            let mounts = mountinfo::parse(&text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            let host = link("ns/mnt")? == fs::read_link("/proc/self/ns/mnt")?.display().to_string();
            self.add_ids(&mounts);
            let view = self.look_at(mounts, host);
            self.views.insert(key.clone(), view);
        }
        Ok(key)
    }

    fn look_at(&self, mounts: Vec<Mount>, host: bool) -> View {
        let kept = mounts.iter().filter_map(|mount| Some((mount, self.volume_of(mount)?)));
        let kept = kept.filter(|(mount, _)| !host && !self.follows(mount, &mounts)).map(|(_, volume)| volume);
        let pods: BTreeSet<String> =
            mounts.iter().filter_map(|mount| layout::pod_of_root(&mount.root)).map(str::to_owned).collect();
        let used = |volume: &Wanted| !host && volume.may_be_of(&pods);
        let users = self.wanted.iter().enumerate().filter(|(_, volume)| used(volume)).map(|(index, _)| index);
        let (keeps, users) = (kept.collect(), users.collect());
        let covering = |mount: &&Mount| is_within(&self.facts.root, &mount.path);
        let kubelet = self.facts.mounts.iter().filter(covering).max_by_key(|mount| mount.path.len());
        let group = kubelet.and_then(|mount| mount.shared);
        let of_the_host = host || group.is_some() && mounts.iter().any(|mount| mount.shared == group);
        View { keeps, users, is_host: host, of_the_host, mounts }
    }

    /// Whether a mount is taken away when the host's is. That goes from what the host's is mounted on to the peers and
    /// followers of that; in which group the mount itself is says nothing.
    fn follows(&self, mount: &Mount, seen: &[Mount]) -> bool {
        let on = |mount: &Mount, all: &[Mount]| all.iter().find(|other| other.id == mount.parent).cloned();
        let Some(here) = on(mount, seen) else { return false };
        let same = |host: &&Mount| host.device == mount.device && host.root == mount.root;
        self.facts.mounts.iter().filter(same).any(|host| {
            on(host, &self.facts.mounts).is_some_and(|there| {
                let told = there.shared.is_some() && [here.shared, here.master].contains(&there.shared);
                told && mount.point(&here).is_some() && mount.point(&here) == host.point(&there)
            })
        })
    }

    /// Volumes held by the mounts that a group of processes sees, or by the pod that they are.
    fn held_in(&self, key: &(String, String)) -> BTreeSet<usize> {
        let Some(view) = self.views.get(key) else { return BTreeSet::new() };
        view.users.union(&view.keeps).copied().collect()
    }

    /// Volumes held by the files of one process.
    fn held_by(&mut self, folder: &str, key: &(String, String)) -> io::Result<BTreeSet<usize>> {
        let mut held = BTreeSet::new();
        if self.identities.iter().all(Vec::is_empty) {
            return Ok(held);
        }
        for link in ["cwd", "root", "exe"] {
            held.extend(self.reader.file(format!("{folder}/{link}"))?.and_then(|file| self.volume_with(&file)));
        }
        for entry in fs::read_dir(format!("{folder}/fdinfo"))? {
            let number = entry?.file_name().to_string_lossy().into_owned();
            match self.open_file(folder, &number) {
                Ok(volume) => held.extend(volume),
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let maps = self.reader.text(format!("{folder}/maps"))?;
        for mapped in process::mapped(&maps) {
            let mapped = mapped.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            held.extend(self.devices.get(&mapped.device).copied().or_else(|| self.mapped_in(key, &mapped)));
        }
        Ok(held)
    }

    fn open_file(&mut self, folder: &str, number: &str) -> io::Result<Option<usize>> {
        let text = fs::read_to_string(format!("{folder}/fdinfo/{number}"))?;
        let id = process::mount_id(&text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let known = self.ids.get(&id).copied();
        if let Some(Some(volume)) = known {
            return Ok(Some(volume));
        }
        // Through a mount that is no volume's: only a device node can still be one.
        if known.is_some() && self.nodes.is_empty() {
            return Ok(None);
        }
        let path = format!("{folder}/fd/{number}");
        // Pipes, sockets and the like have no path.
        if !fs::read_link(&path)?.starts_with("/") {
            return Ok(None);
        }
        Ok(self.reader.file(path)?.and_then(|file| self.volume_with(&file)))
    }

    fn volume_with(&self, file: &File) -> Option<usize> {
        let by_mount = file.mount.and_then(|id| self.ids.get(&id).copied().flatten());
        let by_device = || self.devices.get(&file.device).copied();
        let by_node = || file.node.and_then(|device| self.nodes.get(&device).copied());
        by_mount.or_else(by_device).or_else(by_node)
    }

    /// The volume of a mapped file, by the mount that its path lies in, where the device number does not tell.
    fn mapped_in(&self, key: &(String, String), mapped: &process::Mapped<'_>) -> Option<usize> {
        if !self.each_identity().any(|(_, identity)| identity.device == mapped.device) {
            return None;
        }
        let mounts = &self.views.get(key)?.mounts;
        let covering = mounts.iter().filter(|mount| is_within(mapped.path, &mount.path));
        let mount = covering.max_by_key(|mount| mount.path.len())?;
        self.volume_of(mount)
    }
}

/// The device that a bound device node stands for, from its name.
fn block_device(facts: &Facts, identity: &Identity) -> Option<Device> {
    let mount = facts.mounts.iter().find(|mount| identity.is_of(mount))?;
    if mount.fs_type != "devtmpfs" {
        return None;
    }
    let name = identity.root.trim_start_matches('/').replace('/', "!");
    fs::read_to_string(Path::new("/sys/class/block").join(name).join("dev")).ok()?.parse().ok()
}

#[cfg(test)]
#[path = "holders_tests.rs"]
mod tests;
