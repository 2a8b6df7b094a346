//! One staged volume: its file system, the thread that serves it, and the loop device of a raw block volume.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread::JoinHandle;

use bulkhead::node_agent::mounts::mountinfo::{Device, Mount};
use fuser::{Session, SessionACL};
use rustix::mount::MountFlags;

use super::connection::{Connection, Route};
use super::file_system::VolumeFileSystem;
use super::loop_device::LoopDevice;
use super::mounts;
use crate::array::file_protocol::{AttributeChange, FileAnswer, FileError, FileOperation, ROOT};
use crate::array::io_protocol::IoError;
use crate::lock::lock;

/// The file of a raw block volume, in its root folder.
const BLOCK_FILE: &str = "block";
/// The type of the file systems in the mount table.
pub(super) const FILE_SYSTEM: &str = "fuse.bulkhead-testbed";

/// A volume that is mounted and served.
#[derive(Debug)]
pub(super) struct Volume {
    /// The volume handle.
    pub handle: String,
    /// Where its file system is mounted, without symbolic links.
    pub point: PathBuf,
    /// The number of its file system's device.
    pub device: Device,
    /// Its block device: `None` for a file system.
    block: Option<Block>,
    server: JoinHandle<()>,
}

/// A raw block volume has a loop device while it is published.
#[derive(Debug)]
struct Block {
    read_only: bool,
    device: Mutex<Option<LoopDevice>>,
}

/// How a volume is to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    /// As a raw block volume.
    pub block: bool,
    /// Nobody may write.
    pub read_only: bool,
}

impl Volume {
    /// Mounts the volume at `point`, where nothing is mounted, and serves it. Blocks while the array does.
    pub fn mount(route: Route, point: &Path, usage: Usage) -> Result<Self, IoError> {
        if usage.block {
            prepare_block_file(&mut Connection::new(route.clone())?)?;
        }
        let handle = route.volume.clone();
        let (server, mounted) = mount_and_serve(route, point)?;
        let block = usage.block.then(|| Block { read_only: usage.read_only, device: Mutex::default() });
        Ok(Volume { handle, point: point.to_owned(), device: mounted.device, block, server })
    }

    /// It is a raw block volume.
    pub fn is_block(&self) -> bool {
        self.block.is_some()
    }

    /// The file in `/dev` of a raw block volume, attached now if need be; `None` for a file system. Blocks while the
    /// array does.
    pub fn block_device(&self) -> io::Result<Option<PathBuf>> {
        let Some(block) = &self.block else {
            return Ok(None);
        };
        let mut device = lock(&block.device);
        let attached = match device.take() {
            Some(attached) => attached,
            None => LoopDevice::attach(&self.point.join(BLOCK_FILE), block.read_only)?,
        };
        Ok(Some(device.insert(attached).path().to_owned()))
    }

    /// The size in bytes of the block device, if there is one now.
    pub fn block_size(&self) -> io::Result<Option<u64>> {
        let device = self.block.as_ref().map(|block| lock(&block.device));
        device.as_ref().and_then(|device| device.as_ref()).map(LoopDevice::size).transpose()
    }

    /// Lets the block device go. It is gone when nobody else has it open either.
    pub fn release_block(&self) {
        if let Some(block) = &self.block {
            lock(&block.device).take();
        }
    }

    /// What is mounted there is this volume.
    pub fn is_at(&self, mounted: &Mount) -> bool {
        let Some(block) = &self.block else {
            return mounted.device == self.device;
        };
        // A device's file is mounted then; the mount table has its name.
        let device = lock(&block.device);
        device.as_ref().is_some_and(|device| Path::new(&mounted.root).file_name() == device.path().file_name())
    }

    /// Somebody answers the kernel.
    pub fn is_served(&self) -> bool {
        !self.server.is_finished()
    }
}

fn mount_and_serve(route: Route, point: &Path) -> io::Result<(JoinHandle<()>, Mount)> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
    let options =
        format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions", device.as_raw_fd());
    let options = CString::new(options)?;
    let flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOATIME;
    rustix::mount::mount(route.volume.as_str(), point, FILE_SYSTEM, flags, options.as_c_str())?;
    let gone = || io::Error::other("the mount was gone as soon as it was made");
    let served = serve(route, device.into()).and_then(|server| Ok((server, mounts::at(point)?.ok_or_else(gone)?)));
    if served.is_err() {
        mounts::unmount_all(point, |_| true)?;
    }
    served
}

fn serve(route: Route, device: OwnedFd) -> io::Result<JoinHandle<()>> {
    let name = format!("volume {}", route.volume);
    let volume = route.volume.clone();
    let file_system = VolumeFileSystem::new(Connection::new(route)?);
    std::thread::Builder::new().name(name).spawn(move || {
        let session = Session::from_fd(file_system, device, SessionACL::All, fuser::Config::default());
        match session.and_then(Session::run) {
            Ok(()) => tracing::info!(volume, "nobody has the volume mounted any more"),
            Err(error) => tracing::error!(%error, volume, "the volume is not served any more"),
        }
    })
}

/// As large as the volume, all holes at first. Made over a connection of its own: this is not the node's first writer.
fn prepare_block_file(connection: &mut Connection) -> Result<(), IoError> {
    let total = match connection.file(&FileOperation::Space, "", &[])?.0 {
        FileAnswer::Space { total, .. } => total,
        _ => return Err(unexpected()),
    };
    let lookup = FileOperation::Lookup { parent: ROOT, name: BLOCK_FILE.to_owned() };
    match connection.file(&lookup, "", &[]) {
        Ok((FileAnswer::Attributes { attributes }, _)) if attributes.size == total => return Ok(()),
        Ok(_) | Err(IoError::Failed(FileError::NotFound)) => {}
        Err(error) => return Err(error),
    }
    let create = FileOperation::Create {
        parent: ROOT,
        name: BLOCK_FILE.to_owned(),
        folder: false,
        mode: 0o600,
        uid: 0,
        gid: 0,
        exclusive: false,
    };
    let tag = super::writer::NODE;
    let FileAnswer::Attributes { attributes } = connection.file(&create, tag, &[])?.0 else {
        return Err(unexpected());
    };
    let change = AttributeChange { size: Some(total), ..AttributeChange::default() };
    connection.file(&FileOperation::SetAttributes { inode: attributes.inode, change }, tag, &[])?;
    Ok(())
}

fn unexpected() -> IoError {
    io::Error::new(io::ErrorKind::InvalidData, "the array answered something else").into()
}
