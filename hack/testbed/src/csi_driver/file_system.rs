//! A volume as a FUSE file system: every operation of the kernel is one operation of the array.
//!
//! Nothing is cached: files are opened for direct I/O, and attributes and names hold for no time. So every write of a
//! container reaches the array with its writer, and a node that was cut off notices with its next operation. One thread
//! serves one volume; what hangs there hangs nowhere else.
//!
//! Inodes are the array's, the same on every node: a file handle (`name_to_handle_at`) of one node is good on any other, so
//! that an NFS server may export the volume, move, and know its clients' handles.

use std::ffi::OsStr;
use std::io;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use super::connection::Connection;
use super::{errno, writer};
use crate::array::file_protocol::{AttributeChange, Attributes, FileAnswer, FileOperation, Name};
use crate::lock::lock;

/// The most bytes of one write. The kernel splits longer ones.
const WRITE_MAX: u32 = 128 << 10;
/// How long the kernel may believe what it was told.
const NO_TIME: Duration = Duration::ZERO;
/// Inodes are never used twice.
const GENERATION: Generation = Generation(0);
/// No handles are kept.
const HANDLE: FileHandle = FileHandle(0);
/// What `stat` and `statfs` count in.
const BLOCK: u32 = 4096;
const STAT_BLOCK: u64 = 512;
const NAME_MAX: u32 = 255;
/// Files have one name.
const FOLDER_LINKS: u32 = 2;

/// The file type in a mode, and that of plain files.
const TYPE_MASK: u32 = 0o170_000;
const PLAIN_FILE: u32 = 0o100_000;
/// `O_EXCL`.
const EXCLUSIVE: i32 = 0o200;

pub(super) struct VolumeFileSystem {
    connection: Mutex<Connection>,
}

impl VolumeFileSystem {
    pub fn new(connection: Connection) -> Self {
        VolumeFileSystem { connection: Mutex::new(connection) }
    }

    fn ask(&self, request: &Request, operation: &FileOperation, data: &[u8]) -> Result<(FileAnswer, Vec<u8>), Errno> {
        let tag = if operation.changes() { writer::tag(request.pid()) } else { String::new() };
        lock(&self.connection).file(operation, &tag, data).map_err(|error| {
            let errno = errno::of(&error);
            if errno.code() == Errno::EIO.code() {
                tracing::debug!(%error, ?operation, "I/O error");
            }
            errno
        })
    }

    fn attributes(&self, request: &Request, operation: &FileOperation) -> Result<FileAttr, Errno> {
        match self.ask(request, operation, &[])? {
            (FileAnswer::Attributes { attributes }, _) => Ok(kernel_attributes(&attributes)),
            _ => Err(Errno::EIO),
        }
    }

    fn done(&self, request: &Request, operation: &FileOperation, reply: ReplyEmpty) {
        match self.ask(request, operation, &[]) {
            Ok(_) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn entry(&self, request: &Request, operation: &FileOperation, reply: ReplyEntry) {
        match self.attributes(request, operation) {
            Ok(attributes) => reply.entry(&NO_TIME, &attributes, GENERATION),
            Err(error) => reply.error(error),
        }
    }
}

impl Filesystem for VolumeFileSystem {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // It is below the limit, which is the only thing that can be wrong with it.
        let _ = config.set_max_write(WRITE_MAX);
        // The kernel finds a file by its handle with a lookup of `.`, and the folder of a folder with `..`. One that cannot
        // has no handles, and only an NFS server misses them.
        let _ = config.add_capabilities(InitFlags::FUSE_EXPORT_SUPPORT);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match text(name) {
            Ok(name) => self.entry(request, &FileOperation::Lookup { parent: parent.0, name }, reply),
            // No such name was ever accepted.
            Err(_) => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, request: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(request, &FileOperation::GetAttributes { inode: inode.0 }) {
            Ok(attributes) => reply.attr(&NO_TIME, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let modified = modified.map(|time| match time {
            TimeOrNow::SpecificTime(time) => nanoseconds(time),
            TimeOrNow::Now => nanoseconds(SystemTime::now()),
        });
        let change = AttributeChange { size, mode, uid, gid, modified };
        // Times of access are not kept: changing only those changes nothing.
        let operation = if change == AttributeChange::default() {
            FileOperation::GetAttributes { inode: inode.0 }
        } else {
            FileOperation::SetAttributes { inode: inode.0, change }
        };
        match self.attributes(request, &operation) {
            Ok(attributes) => reply.attr(&NO_TIME, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        if mode & TYPE_MASK != PLAIN_FILE {
            return reply.error(Errno::EPERM);
        }
        match creation(request, parent, name, mode & !umask, false, true) {
            Ok(create) => self.entry(request, &create, reply),
            Err(error) => reply.error(error),
        }
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        match creation(request, parent, name, mode & !umask, true, true) {
            Ok(create) => self.entry(request, &create, reply),
            Err(error) => reply.error(error),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let created = creation(request, parent, name, mode & !umask, false, flags & EXCLUSIVE != 0)
            .and_then(|create| self.attributes(request, &create));
        match created {
            Ok(attributes) => {
                reply.created(&NO_TIME, &attributes, GENERATION, HANDLE, FopenFlags::FOPEN_DIRECT_IO);
            }
            Err(error) => reply.error(error),
        }
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        match text(name) {
            Ok(name) => self.done(request, &FileOperation::Unlink { parent: parent.0, name }, reply),
            Err(error) => reply.error(error),
        }
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        match text(name) {
            Ok(name) => self.done(request, &FileOperation::RemoveFolder { parent: parent.0, name }, reply),
            Err(error) => reply.error(error),
        }
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let no_replace = flags.contains(RenameFlags::RENAME_NOREPLACE);
        let (Ok(name), Ok(new_name), true) =
            (text(name), text(new_name), (flags - RenameFlags::RENAME_NOREPLACE).is_empty())
        else {
            return reply.error(Errno::EINVAL);
        };
        let (parent, new_parent) = (parent.0, new_parent.0);
        self.done(request, &FileOperation::Rename { parent, name, new_parent, new_name, no_replace }, reply);
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(HANDLE, FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        request: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.ask(request, &FileOperation::Read { inode: inode.0, offset, length }, &[]) {
            Ok((_, data)) => reply.data(&data),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        request: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.ask(request, &FileOperation::Write { inode: inode.0, offset }, data) {
            // It was not longer than WRITE_MAX.
            Ok(_) => reply.written(u32::try_from(data.len()).unwrap_or(WRITE_MAX)),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // Nothing is held back here.
        reply.ok();
    }

    fn fsync(&self, request: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.done(request, &FileOperation::Sync, reply);
    }

    fn fsyncdir(&self, request: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.done(request, &FileOperation::Sync, reply);
    }

    fn readdir(&self, request: &Request, inode: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let names = match self.ask(request, &FileOperation::List { inode: inode.0 }, &[]) {
            Ok((FileAnswer::Names { names }, _)) => names,
            Ok(_) => return reply.error(Errno::EIO),
            Err(error) => return reply.error(error),
        };
        // The kernel does not look at the inodes of these two.
        let dots = [".", ".."].map(|dot| Name { name: dot.to_owned(), inode: inode.0, folder: true });
        let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
        for (position, name) in (1..).zip(dots.into_iter().chain(names)).skip(skipped) {
            if reply.add(INodeNo(name.inode), position, kind(name.folder), name.name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, request: &Request, _: INodeNo, reply: ReplyStatfs) {
        match self.ask(request, &FileOperation::Space, &[]) {
            Ok((FileAnswer::Space { total, used }, _)) => {
                let block = u64::from(BLOCK);
                let free = total.saturating_sub(used) / block;
                reply.statfs(total / block, free, free, 0, 0, BLOCK, NAME_MAX, BLOCK);
            }
            Ok(_) => reply.error(Errno::EIO),
            Err(error) => reply.error(error),
        }
    }
}

fn creation(
    request: &Request,
    parent: INodeNo,
    name: &OsStr,
    mode: u32,
    folder: bool,
    exclusive: bool,
) -> Result<FileOperation, Errno> {
    let (uid, gid) = (request.uid(), request.gid());
    Ok(FileOperation::Create { parent: parent.0, name: text(name)?, folder, mode, uid, gid, exclusive })
}

fn text(name: &OsStr) -> Result<String, Errno> {
    name.to_str().map(str::to_owned).ok_or(Errno::EINVAL)
}

fn kind(folder: bool) -> FileType {
    if folder { FileType::Directory } else { FileType::RegularFile }
}

fn kernel_attributes(attributes: &Attributes) -> FileAttr {
    let modified = UNIX_EPOCH + Duration::from_nanos(attributes.modified);
    FileAttr {
        ino: INodeNo(attributes.inode),
        size: attributes.size,
        blocks: attributes.allocated / STAT_BLOCK,
        atime: modified,
        mtime: modified,
        ctime: modified,
        crtime: modified,
        kind: kind(attributes.folder),
        perm: u16::try_from(attributes.mode & 0o7777).unwrap_or(0),
        nlink: if attributes.folder { FOLDER_LINKS } else { 1 },
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: 0,
        blksize: BLOCK,
        flags: 0,
    }
}

fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
