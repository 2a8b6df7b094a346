//! Reads mounts, the kubelet's folder and loop devices. Runs in a child, in the host's mount namespace; nothing here
//! looks at a file system of a volume, only at the folders around it.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::holders;
use super::inventory::{self, Facts, Folder, Inventory, Loop, Unknown};
use super::layout::{self, Wanted, is_name};
use super::mountinfo;
use super::vol_data::{self, Record};

/// What to look for, and where.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// The kubelet's root folder, as it was told to the kubelet.
    pub kubelet_root: String,
    /// The volumes.
    pub wanted: Vec<Wanted>,
}

/// The kubelet's root folder, held open.
pub struct Root {
    fd: OwnedFd,
    /// Its path as the kernel shows it.
    pub path: String,
}

/// Takes an inventory.
pub fn inventory(request: &Request) -> Inventory {
    let mut unknown = Vec::new();
    let read = facts(request, &mut unknown);
    let facts = match read {
        Ok(facts) => facts,
        Err(failure) => return Inventory { unknown: vec![failure], ..Inventory::default() },
    };
    let (mut volumes, identities): (Vec<_>, Vec<_>) =
        request.wanted.iter().map(|volume| inventory::assemble(volume, &facts)).unzip();
    holders::find(&facts, &request.wanted, &identities, &mut volumes, &mut unknown);
    let unreadable = facts.folders.iter().filter_map(|folder| match &folder.record {
        Record::Unreadable(_) => {
            let id = format!("{}/pods/{}/{}", facts.root, folder.pod, folder.name);
            Some((folder.pod.clone(), Unknown::new(id, "RecordUnreadable")))
        }
        _ => None,
    });
    Inventory { volumes, unreadable: unreadable.collect(), unknown }
}

fn facts(request: &Request, unknown: &mut Vec<Unknown>) -> Result<Facts, Unknown> {
    let root = Root::open(&request.kubelet_root)
        .map_err(|_| Unknown::new(&request.kubelet_root, "KubeletFolderUnreadable"))?;
    let mounts = mounts().map_err(|_| Unknown::new("/proc/self/mountinfo", "MountsUnreadable"))?;
    let mut facts = Facts { root: root.path.clone(), mounts, ..Facts::default() };
    let failed = |path: String| Unknown::new(path, "KubeletFolderUnreadable");
    // A folder without pods is some other folder: nothing would be found there, and mean nothing.
    if !root.has("pods").unwrap_or(false) {
        return Err(failed(root.path));
    }
    folders(&root, &mut facts.folders, unknown).map_err(|(path, _)| failed(path))?;
    for mount in &facts.mounts {
        if let Some(path) = facts.below_root(&mount.path)
            && let Some(record) = layout::staging_record(&path)
        {
            facts.staged.insert(path, root.record(&record));
        }
    }
    for volume in &request.wanted {
        for path in inventory::paths(volume, &facts.folders) {
            if root.has(&path).map_err(|_| failed(path.clone()))? {
                facts.present.insert(path);
            }
        }
    }
    facts.loops = loops().map_err(|_| Unknown::new("/sys/block", "LoopDevicesUnreadable"))?;
    Ok(facts)
}

/// The mounts of this process's namespace.
pub fn mounts() -> io::Result<Vec<mountinfo::Mount>> {
    let text = fs::read("/proc/self/mountinfo")?;
    mountinfo::parse(&text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

type Failed = (String, io::Error);

/// All folders of CSI volumes in pods, as far as their names can be read.
pub fn pod_folders(root: &Root) -> Result<Vec<Folder>, (String, io::Error)> {
    let mut found = Vec::new();
    folders(root, &mut found, &mut Vec::new())?;
    Ok(found)
}

/// All folders of CSI volumes in pods.
fn folders(root: &Root, found: &mut Vec<Folder>, unknown: &mut Vec<Unknown>) -> Result<(), Failed> {
    for pod in root.names("pods", unknown)? {
        let mounts = format!("pods/{pod}/{}", layout::POD_MOUNTS);
        for name in root.names(&mounts, unknown)? {
            let record = root.record(&format!("{mounts}/{name}/{}", layout::RECORD));
            found.push(Folder { pod: pod.clone(), name, block: false, record });
        }
        for name in root.names(&format!("pods/{pod}/{}", layout::POD_DEVICES), unknown)? {
            found.push(root.block_folder(pod.clone(), name));
        }
    }
    // What is left of a raw block volume in the folders beside, when the pod's own is gone.
    let mut devices = BTreeSet::new();
    for name in root.names(layout::BLOCK, unknown)? {
        match name.as_str() {
            "staging" => {}
            "publish" => {
                for volume in root.names(&format!("{}/publish", layout::BLOCK), unknown)? {
                    let pods = root.names(&format!("{}/publish/{volume}", layout::BLOCK), unknown)?;
                    devices.extend(pods.into_iter().map(|pod| (pod, volume.clone())));
                }
            }
            _ => {
                let pods = root.names(&format!("{}/{name}/dev", layout::BLOCK), unknown)?;
                devices.extend(pods.into_iter().map(|pod| (pod, name.clone())));
            }
        }
    }
    for (pod, name) in devices {
        if !found.iter().any(|folder| folder.block && folder.pod == pod && folder.name == name) {
            found.push(root.block_folder(pod, name));
        }
    }
    Ok(())
}

fn loops() -> io::Result<Vec<Loop>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with("loop")
            && let Some(backing) = backing_file(&name)?
        {
            found.push(Loop { name, backing });
        }
    }
    Ok(found)
}

/// The file behind a loop device; none when it is free.
pub fn backing_file(device: &str) -> io::Result<Option<String>> {
    match fs::read(Path::new("/sys/block").join(device).join("loop/backing_file")) {
        Ok(text) => Ok(Some(String::from_utf8_lossy(text.strip_suffix(b"\n").unwrap_or(&text)).into_owned())),
        Err(error) if matches!(error.raw_os_error(), Some(2 | 6)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// No symbolic link is followed and nothing outside of the folder is reached.
const CONFINED: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

impl Root {
    /// Opens it. The path itself may lead through symbolic links: whoever runs the kubelet chose it.
    pub fn open(path: &str) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        let shown = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
        let path = shown.into_os_string().into_string().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        Ok(Self { fd, path })
    }

    /// Opens something below it.
    pub fn open_below(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        Ok(rustix::fs::openat2(&self.fd, path, flags, Mode::empty(), CONFINED)?)
    }

    /// Opens the folder that holds `path`, and the last name of it.
    pub fn parent<'a>(&self, path: &'a str) -> io::Result<(OwnedFd, &'a str)> {
        let (folder, name) = path.rsplit_once('/').unwrap_or((".", path));
        Ok((self.open_below(folder, OFlags::RDONLY | OFlags::DIRECTORY)?, name))
    }

    /// Whether it is there. Only names are read: what is mounted there is not asked.
    pub fn has(&self, path: &str) -> io::Result<bool> {
        match self.parent(path) {
            Ok((folder, name)) => Ok(entries(folder)?.iter().any(|entry| entry.to_bytes() == name.as_bytes())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The names in a folder below it; none if there is no such folder. One that cannot be used is told as unknown.
    fn names(&self, path: &str, unknown: &mut Vec<Unknown>) -> Result<Vec<String>, Failed> {
        let listed = match self.open_below(path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(folder) => entries(folder),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        };
        let mut names = Vec::new();
        for entry in listed.map_err(|error| (format!("{}/{path}", self.path), error))? {
            match entry.into_string() {
                Ok(name) if is_name(&name) => names.push(name),
                other => {
                    let name = other.unwrap_or_else(|error| error.into_cstring().to_string_lossy().into_owned());
                    unknown.push(Unknown::new(format!("{}/{path}/{name}", self.path), "UnexpectedName"));
                }
            }
        }
        Ok(names)
    }

    fn block_folder(&self, pod: String, name: String) -> Folder {
        let record = self.record(&format!("{}/{name}/data/{}", layout::BLOCK, layout::RECORD));
        Folder { pod, name, block: true, record }
    }

    fn record(&self, path: &str) -> Record {
        match self.read(path, vol_data::LENGTH_MAX + 1) {
            Ok(text) => vol_data::parse(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Record::Absent,
            Err(error) => Record::Unreadable(error.to_string()),
        }
    }

    fn read(&self, path: &str, most: usize) -> io::Result<Vec<u8>> {
        let fd = self.open_below(path, OFlags::RDONLY)?;
        if FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) != FileType::RegularFile {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        let mut text = Vec::new();
        fs::File::from(fd).take(most as u64).read_to_end(&mut text)?;
        Ok(text)
    }
}

fn entries(folder: OwnedFd) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::new(folder)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}

/// Goes where the mounts of the process at `host` (such as `/proc/1`) are. Only before any thread was started.
pub fn enter(host: &str) -> io::Result<()> {
    let theirs = format!("{host}/ns/mnt");
    if fs::read_link(&theirs)? == fs::read_link("/proc/self/ns/mnt")? {
        return Ok(());
    }
    let space = rustix::fs::openat(CWD, theirs.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let kind = Some(rustix::thread::LinkNameSpaceType::Mount);
    rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&space), kind)?;
    Ok(())
}

/// Whether a process that was looked at has ended meanwhile.
pub fn is_gone(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::SRCH))
}
