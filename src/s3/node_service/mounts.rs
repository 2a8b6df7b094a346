//! The mount table, and what is done to it. Nothing here asks a mounted file system anything.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::api::s3::{DEVICE, DRIVER};
use crate::node_agent::mounts::mountinfo::Mount;
use crate::node_agent::mounts::read::{self, Root};
use crate::node_agent::probes::watch::MountWatch;

use super::folders;

/// How often the table is read although the kernel announces nothing.
const AGAIN: Duration = Duration::from_secs(5);
/// How long a mount that is in use is tried to be unmounted, and how often.
const BUSY: Duration = Duration::from_secs(2);
const BUSY_PAUSE: Duration = Duration::from_millis(50);
/// Options of every mount of ours.
const SAFE: MountFlags = MountFlags::NODEV.union(MountFlags::NOSUID).union(MountFlags::NOATIME);

/// All mounts at one moment.
#[derive(Clone, Debug, Default)]
pub struct Table(Vec<Mount>);

impl Table {
    /// As it is now.
    pub fn read() -> io::Result<Self> {
        read::mounts().map(Self)
    }

    /// What is mounted at a path, on top.
    pub fn at(&self, path: &str) -> Option<&Mount> {
        self.0.iter().rfind(|mount| mount.path == path)
    }

    /// All that is mounted at a path, the top first.
    pub fn all_at<'a>(&'a self, path: &'a str) -> impl Iterator<Item = &'a Mount> {
        self.0.iter().rev().filter(move |mount| mount.path == path)
    }

    /// Other mounts of the same folder of the same file system.
    pub fn references<'a>(&'a self, of: &'a Mount) -> impl Iterator<Item = &'a Mount> {
        self.0.iter().filter(|mount| mount.device == of.device && mount.root == of.root && mount.path != of.path)
    }

    /// All mounts.
    pub fn all(&self) -> &[Mount] {
        &self.0
    }
}

/// Whether a mount is of mount-s3.
pub fn is_of_mount_s3(mount: &Mount) -> bool {
    mount.source == DEVICE && mount.fs_type.starts_with("fuse")
}

/// Reads the table whenever the kernel says that it changed, and hands it to all who wait.
pub async fn watch(tables: watch::Sender<Arc<Table>>, cancel: CancellationToken) {
    let announced = MountWatch::new("/proc/self");
    if let Err(error) = &announced {
        tracing::warn!(%error, "mounts are not announced; they are read every {AGAIN:?}");
    }
    while !cancel.is_cancelled() {
        match Table::read() {
            Ok(table) => drop(tables.send_replace(Arc::new(table))),
            Err(error) => tracing::warn!(%error, "the mount table cannot be read"),
        }
        let changed = async {
            match &announced {
                Ok(announced) if announced.changed().await.is_ok() => {}
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            () = changed => {}
            () = tokio::time::sleep(AGAIN) => {}
            () = cancel.cancelled() => {}
        }
    }
}

/// Makes a FUSE mount that nobody serves yet. What is read from the answer and written to it is the server's side.
pub fn mount_fuse(root: &Root, path: &str, read_only: bool) -> io::Result<OwnedFd> {
    folders::make(root, path, 0o755)?;
    let point = folders::folder(root, path)?;
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let user = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions,allow_other",
        device.as_raw_fd(),
        user.0,
        user.1
    );
    let data = std::ffi::CString::new(data)?;
    let flags = if read_only { SAFE | MountFlags::RDONLY } else { SAFE };
    rustix::mount::mount(DEVICE, folders::path_of(&point), "fuse", flags, data.as_c_str())?;
    Ok(device)
}

/// Mounts `source` at `target` too, over what is there: a container that follows the mounts of its node then sees it.
pub fn bind(root: &Root, source: &str, target: &str, read_only: bool) -> io::Result<()> {
    let (from, to) = (folders::folder(root, source)?, folders::folder(root, target)?);
    // Else all targets would be peers: what is mounted over one, or goes from it, would come and go with all others.
    rustix::mount::mount_change(folders::path_of(&from), MountPropagationFlags::PRIVATE)?;
    if !read_only {
        return Ok(rustix::mount::mount_bind(folders::path_of(&from), folders::path_of(&to))?);
    }
    // What containers get to see is read-only from the first moment: made so elsewhere, and then mounted there.
    let made = format!("{}/{}", read_only_folder(), random());
    folders::make(root, &made, 0o700)?;
    let bound = bind_read_only(root, &from, &made).and_then(|()| {
        let ready = folders::folder(root, &made)?;
        Ok(rustix::mount::mount_bind(folders::path_of(&ready), folders::path_of(&to))?)
    });
    unmount_all(root, &made)?;
    folders::remove(root, &made)?;
    bound
}

/// Where mounts are made read-only; nothing stays there.
pub fn read_only_folder() -> String {
    format!("plugins/{DRIVER}/read-only")
}

fn random() -> String {
    format!("{:012x}", (crate::runtime::random_unit() * (1u64 << 48) as f64) as u64)
}

fn bind_read_only(root: &Root, from: &OwnedFd, made: &str) -> io::Result<()> {
    rustix::mount::mount_bind(folders::path_of(from), folders::path_of(&folders::folder(root, made)?))?;
    let mounted = folders::folder(root, made)?;
    let flags = SAFE | MountFlags::BIND | MountFlags::RDONLY;
    Ok(rustix::mount::mount_remount(folders::path_of(&mounted), flags, c"")?)
}

/// Unmounts all that is mounted at a path. It must not be in use.
pub fn unmount_all(root: &Root, path: &str) -> io::Result<()> {
    unmount_while(root, path, UnmountFlags::empty())
}

/// Ends every request to the servers of all that is mounted at a path, and unmounts it whoever uses it. Nobody else may use
/// these servers.
pub fn discard(root: &Root, path: &str) -> io::Result<()> {
    unmount_while(root, path, UnmountFlags::FORCE | UnmountFlags::DETACH)
}

/// Takes away what is mounted at a path on top, whoever uses it.
pub fn detach_top(root: &Root, path: &str) -> io::Result<()> {
    unmount_top(root, path, UnmountFlags::DETACH)
}

fn unmount_top(root: &Root, path: &str, flags: UnmountFlags) -> io::Result<()> {
    let (parent, name) = root.parent(path)?;
    let at = format!("{}/{name}", folders::path_of(&parent));
    Ok(rustix::mount::unmount(at, flags | UnmountFlags::NOFOLLOW)?)
}

fn unmount_while(root: &Root, path: &str, flags: UnmountFlags) -> io::Result<()> {
    let absolute = format!("{}/{path}", root.path);
    let mut tried = None;
    let end = Instant::now() + BUSY;
    while let Some(id) = Table::read()?.at(&absolute).map(|mount| mount.id) {
        if let Err(error) = unmount_top(root, path, flags) {
            match Errno::from_io_error(&error) {
                // Somebody else did it meanwhile.
                Some(Errno::INVAL | Errno::NOENT) if tried != Some(id) => {}
                // A child of ours may just be asking it how it is.
                Some(Errno::BUSY) if Instant::now() < end => std::thread::sleep(BUSY_PAUSE),
                _ => return Err(error),
            }
        }
        tried = Some(id);
    }
    Ok(())
}

/// Runs what may wait for the kernel, where that holds up nobody.
pub async fn blocking<T: Send + 'static>(act: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(act).await.unwrap_or_else(|panic| Err(io::Error::other(panic)))
}
