//! What runs in a child process: everything that may wait for a file system that does not answer. The agent starts its
//! own program again for it, so that it can be killed. It works in the host's mount namespace, does one task and ends.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::process::ExitCode;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, UnmountFlags, fsconfig_create, fsmount, fsopen};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::mounts::inventory::{Inventory, Loop, Mounted};
use super::mounts::layout::{Owner, is_name, owner_anywhere};
use super::mounts::mountinfo::Mount;
use super::mounts::read::{self, Request, Root};
use super::probes;
use super::probes::order::{Outcome, Probe};
use super::self_fence::cut;

/// First argument of a child, before the name of its task.
pub const CHILD: &str = "child";

/// Detaches a loop device. The one system call that has no safe form: the program hands it in.
pub type DetachLoop = fn(BorrowedFd<'_>) -> io::Result<()>;

/// A task, and whose mounts it is about.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    /// A process of the host, such as `/proc/1`.
    pub host: String,
    /// The task.
    pub task: Task,
}

/// A task.
#[derive(Debug, Serialize, Deserialize)]
pub enum Task {
    /// Look at what is left.
    Inventory(Request),
    /// End every request to the servers of these FUSE mounts.
    Abort(Vec<Mounted>),
    /// Remove what is left at a place.
    Unmount(Removal),
    /// Ask a volume how it is.
    Probe(Probe),
    /// Stop the access of pods, or give it back.
    SelfFence(cut::Order),
}

impl Task {
    /// Its name in the child's arguments.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Inventory(_) => "inventory",
            Self::Abort(_) => "abort",
            Self::Unmount(_) => "unmount",
            Self::Probe(_) => "probe",
            Self::SelfFence(_) => "self-fence",
        }
    }
}

/// What to remove, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    /// The kubelet's root folder, as it was told to the kubelet.
    pub kubelet_root: String,
    /// Loop devices to detach.
    pub loops: Vec<Loop>,
    /// Mounts to take away, if they are still the same.
    pub mounts: Vec<Mounted>,
    /// Files and empty folders to delete, below the root.
    pub leftovers: Vec<String>,
    /// Folders to delete if they are empty, below the root.
    pub shared: Vec<String>,
}

/// What could not be removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stuck {
    /// Path or device.
    pub id: String,
    /// Why, in CamelCase.
    pub reason: String,
    /// What the kernel says.
    pub message: String,
}

/// What became of a task.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// What is left.
    Inventory(Inventory),
    /// All of it is removed.
    Removed,
    /// It is not.
    Stuck(Stuck),
    /// What a probe found.
    Probed(Outcome),
    /// What became of pods' access.
    SelfFenced(cut::Done),
    /// The task could not be begun.
    Failed(String),
}

/// Runs the child: reads its order from stdin, answers on stdout.
pub fn main(detach: DetachLoop) -> ExitCode {
    // A child whose agent is gone has nobody to answer to.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let answer = match ordered() {
        Ok(order) => obey(order.task, detach),
        Err(error) => Answer::Failed(error.to_string()),
    };
    let told = serde_json::to_vec(&answer).map_err(io::Error::from).and_then(|text| io::stdout().write_all(&text));
    // Threads that wait for a lock of a hung process end with us.
    std::process::exit(i32::from(told.is_err()))
}

fn ordered() -> io::Result<Order> {
    let mut text = Vec::new();
    io::stdin().read_to_end(&mut text)?;
    let order: Order = serde_json::from_slice(&text)?;
    read::enter(&order.host)?;
    Ok(order)
}

fn obey(task: Task, detach: DetachLoop) -> Answer {
    match task {
        Task::Inventory(request) => Answer::Inventory(read::inventory(&request)),
        Task::Abort(mounts) => match mounts.iter().try_for_each(|mounted| abort(mounted, &mounts)) {
            Ok(()) => Answer::Removed,
            Err(stuck) => Answer::Stuck(stuck),
        },
        Task::Unmount(removal) => match remove(&removal, detach) {
            Ok(()) => Answer::Removed,
            Err(stuck) => Answer::Stuck(stuck),
        },
        Task::Probe(probe) => Answer::Probed(probes::child::obey(probe)),
        Task::SelfFence(order) => Answer::SelfFenced(cut::obey(&order)),
    }
}

fn stuck(id: &str, reason: &str, error: impl ToString) -> Stuck {
    Stuck { id: id.to_owned(), reason: reason.to_owned(), message: error.to_string() }
}

fn remove(removal: &Removal, detach: DetachLoop) -> Result<(), Stuck> {
    let root = Root::open(&removal.kubelet_root)
        .map_err(|error| stuck(&removal.kubelet_root, "KubeletFolderUnreadable", error))?;
    for device in &removal.loops {
        detach_if_same(device, detach).map_err(|error| stuck(&device.name, "LoopNotDetached", error))?;
    }
    for mounted in &removal.mounts {
        unmount(&root, mounted)?;
    }
    for path in &removal.leftovers {
        delete(&root, path).map_err(|errno| {
            let reason = match errno {
                Errno::NOTEMPTY => "FolderNotEmpty",
                Errno::BUSY => "StillMounted",
                _ => "NotDeleted",
            };
            stuck(&format!("{}/{path}", root.path), reason, errno)
        })?;
    }
    for path in &removal.shared {
        match delete(&root, path) {
            Ok(()) | Err(Errno::NOTEMPTY) => {}
            Err(errno) => return Err(stuck(&format!("{}/{path}", root.path), "NotDeleted", errno)),
        }
    }
    Ok(())
}

fn detach_if_same(device: &Loop, detach: DetachLoop) -> io::Result<()> {
    let is_same = || Ok::<_, io::Error>(read::backing_file(&device.name)?.as_ref() == Some(&device.backing));
    if !is_name(&device.name) || !is_same()? {
        return Ok(());
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = rustix::fs::open(format!("/dev/{}", device.name), flags, Mode::empty())?;
    // While it is held open it keeps its file: only now does a look say what is detached.
    if is_same()? { detach(opened.as_fd()) } else { Ok(()) }
}

/// Ends every request to a FUSE server, those that hang too. The volume is fenced: nothing of it could be kept anyway. A
/// file system of which the volume is only a part serves others as well, and is left alone.
fn abort(mounted: &Mounted, ours: &[Mounted]) -> Result<(), Stuck> {
    if !mounted.fs_type.starts_with("fuse") || mounted.device.major != 0 || mounted.root != "/" {
        return Ok(());
    }
    let failed = |errno: Errno| stuck(&mounted.path, "FuseNotAborted", errno);
    let file = match fuse_connection(mounted.device.minor) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(failed(errno)),
    };
    // Numbers are used again. The open file is of one connection for good, so what is mounted now tells whose it is.
    let mounts = read::mounts().map_err(|error| stuck(&mounted.path, "MountsUnreadable", error))?;
    if !may_abort(mounted, ours, &mounts) {
        return Ok(());
    }
    rustix::io::write(file, b"1").map(drop).map_err(failed)
}

/// Whether a FUSE server serves nothing but what is removed: the mount is there as it was seen, and no other volume's or
/// pod's is of the same server.
fn may_abort(mounted: &Mounted, ours: &[Mounted], mounts: &[Mount]) -> bool {
    let is_ours = |mount: &Mount| match owner_anywhere(&mount.path) {
        Owner::Pod(..) => ours.iter().any(|other| owner_anywhere(&other.path) == owner_anywhere(&mount.path)),
        Owner::Volume => ours.iter().any(|other| other.path == mount.path),
        Owner::Other => true,
    };
    mounts.iter().any(|mount| Mounted::from(mount) == *mounted)
        && mounts.iter().filter(|mount| mount.device == mounted.device).all(is_ours)
}

/// The file that ends a FUSE connection. Its file system need not be mounted anywhere: we make a mount that nobody sees.
fn fuse_connection(number: u32) -> Result<OwnedFd, Errno> {
    let made = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&made)?;
    let connections = fsmount(&made, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    rustix::fs::openat(connections, format!("{number}/abort"), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
}

fn unmount(root: &Root, mounted: &Mounted) -> Result<(), Stuck> {
    let mounts = read::mounts().map_err(|error| stuck(&mounted.path, "MountsUnreadable", error))?;
    let Some(top) = mounts.iter().rev().find(|mount| mount.path == mounted.path) else { return Ok(()) };
    if Mounted::from(top) != *mounted {
        return Err(stuck(&mounted.path, "MountChanged", "something else is mounted there now"));
    }
    let flags = UnmountFlags::NOFOLLOW;
    let below = mounted.path.strip_prefix(&root.path).and_then(|rest| rest.strip_prefix('/'));
    let taken =
        match below {
            // By its folder, which was reached without any symbolic link.
            Some(path) => root.parent(path).map_err(|error| stuck(&mounted.path, "UnmountFailed", error)).map(
                |(folder, name)| rustix::mount::unmount(format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()), flags),
            )?,
            None => rustix::mount::unmount(mounted.path.as_str(), flags),
        };
    match taken {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(stuck(&mounted.path, "MountBusy", Errno::BUSY)),
        Err(errno) => Err(stuck(&mounted.path, "UnmountFailed", errno)),
    }
}

/// Deletes a file or an empty folder. One that is gone is deleted.
fn delete(root: &Root, path: &str) -> Result<(), Errno> {
    let gone = |errno| if errno == Errno::NOENT { Ok(()) } else { Err(errno) };
    let (folder, name) = match root.parent(path) {
        Ok(found) => found,
        Err(error) => return gone(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    };
    match rustix::fs::unlinkat(&folder, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => rustix::fs::unlinkat(&folder, name, AtFlags::REMOVEDIR).or_else(gone),
        other => other.or_else(gone),
    }
}

#[cfg(test)]
mod tests {
    use super::super::mounts::mountinfo::parse;
    use super::*;

    #[test]
    fn a_fuse_server_is_cut_off_only_if_it_still_is_the_volumes_and_nobody_elses() {
        let at = |path: &str, device: &str, fs_type: &str| format!("7 1 {device} / {path} rw - {fs_type} x rw\n");
        let target = "/k/pods/u-1/volumes/kubernetes.io~csi/pvc-1/mount";
        let staging = "/k/plugins/kubernetes.io/csi/d/0123/globalmount";
        let seen = parse((at(target, "0:50", "fuse.x") + &at(staging, "0:50", "fuse.x")).as_bytes()).unwrap();
        let ours: Vec<_> = seen.iter().map(Mounted::from).collect();
        for (now, may) in [
            (at(target, "0:50", "fuse.x"), true),
            (at(target, "0:50", "fuse.x") + &at(staging, "0:50", "fuse.x"), true),
            (at(target, "0:50", "fuse.x") + &at("/run/driver/1", "0:50", "fuse.x"), true),
            (at(target, "0:50", "fuse.x") + &at("/k/pods/u-1/volume-subpaths/pvc-1/db/0", "0:50", "fuse.x"), true),
            (String::new(), false),
            (at(target, "0:51", "fuse.x"), false),
            (at(target, "0:50", "fuse.y"), false),
            (at("/k/pods/u-2/volumes/kubernetes.io~csi/pvc-2/mount", "0:50", "fuse.x"), false),
            (
                at(target, "0:50", "fuse.x")
                    + &at("/k/pods/u-2/volumes/kubernetes.io~csi/pvc-1/mount", "0:50", "fuse.x"),
                false,
            ),
            (
                at(target, "0:50", "fuse.x") + &at("/k/plugins/kubernetes.io/csi/d/4567/globalmount", "0:50", "fuse.x"),
                false,
            ),
        ] {
            assert_eq!(may_abort(&ours[0], &ours, &parse(now.as_bytes()).unwrap()), may, "{now}");
        }
    }
}
