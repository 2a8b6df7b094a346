//! Plays mount-s3: serves the descriptor that it is given with a few files in memory. Some of its files tell about itself.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner, OpenFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request,
    Session, SessionACL, WriteFlags,
};
use rustix::fs::{Mode, OFlags};

/// First argument of the process that is mount-s3.
pub const SERVE: &str = "mount-s3";
/// Bucket that is not there.
pub const NO_BUCKET: &str = "no-such-bucket";
/// Bucket of a mount-s3 that never answers.
pub const SILENT: &str = "silent-bucket";
/// File with its arguments, a line each.
pub const ARGUMENTS: &str = ".arguments";
/// File with its environment, a line each.
pub const ENVIRONMENT: &str = ".environment";
/// File with the credentials as they are now.
pub const KEYS: &str = ".keys";
/// File with its process id.
pub const PROCESS: &str = ".process";

const NO_TIME: Duration = Duration::ZERO;

/// Runs it: `mount-s3 <bucket> /dev/fd/<number> …`.
pub fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(2).collect();
    let (bucket, point) = (arguments[0].clone(), arguments[1].clone());
    match bucket.as_str() {
        NO_BUCKET => {
            eprintln!("Error: The bucket does not exist");
            return ExitCode::FAILURE;
        }
        SILENT => loop {
            std::thread::sleep(Duration::from_secs(3600));
        },
        _ => {}
    }
    let device = point.strip_prefix("/dev/fd/").expect("a descriptor");
    let session = Session::from_fd(Files::new(arguments), inherited(device), SessionACL::All, Config::default());
    session.and_then(Session::run).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}

/// The descriptor that we were started with. A second one for the same file is opened by the kernel's name of it; a FUSE
/// device cannot be opened again, so it is duplicated.
fn inherited(number: &str) -> OwnedFd {
    let process = rustix::process::getpid();
    let us = rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty()).expect("pidfd");
    let number = number.parse().expect("a number");
    rustix::process::pidfd_getfd(us, number, rustix::process::PidfdGetfdFlags::empty()).expect("the descriptor")
}

struct Files {
    arguments: Vec<String>,
    /// Names and contents; the inode is the place plus two.
    files: Mutex<Vec<(String, Vec<u8>)>>,
}

impl Files {
    fn new(arguments: Vec<String>) -> Self {
        let own = [ARGUMENTS, ENVIRONMENT, KEYS, PROCESS].map(|name| (name.to_owned(), Vec::new()));
        Self { arguments, files: Mutex::new(own.into()) }
    }

    fn content(&self, inode: u64) -> Option<Vec<u8>> {
        let files = self.files.lock().unwrap();
        let (name, content) = files.get(usize::try_from(inode).ok()?.checked_sub(2)?)?;
        Some(match name.as_str() {
            ARGUMENTS => self.arguments.join("\n").into_bytes(),
            ENVIRONMENT => std::env::vars()
                .map(|(name, value)| format!("{name}={value}"))
                .collect::<Vec<_>>()
                .join("\n")
                .into_bytes(),
            PROCESS => std::process::id().to_string().into_bytes(),
            KEYS => keys(),
            _ => content.clone(),
        })
    }

    fn attributes(&self, inode: u64) -> Option<FileAttr> {
        let (kind, size) = match inode {
            1 => (FileType::Directory, 0),
            file => (FileType::RegularFile, self.content(file)?.len() as u64),
        };
        Some(FileAttr {
            ino: INodeNo(inode),
            size,
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm: 0o777,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn find(&self, name: &OsStr) -> Option<u64> {
        let files = self.files.lock().unwrap();
        files.iter().position(|(other, _)| OsStr::new(other) == name).map(|place| place as u64 + 2)
    }
}

/// What the file with credentials says now. We were started in the folder that a pod has at `/comm`.
fn keys() -> Vec<u8> {
    let path = std::env::var("AWS_SHARED_CREDENTIALS_FILE").unwrap_or_default();
    std::fs::read(path.trim_start_matches("/comm/")).unwrap_or_default()
}

impl Filesystem for Files {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.find(name).and_then(|inode| self.attributes(inode)) {
            Some(attributes) => reply.entry(&NO_TIME, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode.0) {
            Some(attributes) => reply.attr(&NO_TIME, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn create(&self, _: &Request, _: INodeNo, name: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        self.files.lock().unwrap().push((name.to_string_lossy().into_owned(), Vec::new()));
        let attributes = self.find(name).and_then(|inode| self.attributes(inode)).unwrap();
        reply.created(&NO_TIME, &attributes, Generation(0), FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let content = self.content(inode.0).unwrap_or_default();
        let rest = content.get(usize::try_from(offset).unwrap()..).unwrap_or_default();
        reply.data(&rest[..rest.len().min(size as usize)]);
    }

    fn write(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut files = self.files.lock().unwrap();
        let content = &mut files[usize::try_from(inode.0).unwrap() - 2].1;
        content.truncate(usize::try_from(offset).unwrap());
        content.extend_from_slice(data);
        reply.written(u32::try_from(data.len()).unwrap());
    }

    fn readdir(&self, _: &Request, _: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let files = self.files.lock().unwrap();
        for (place, (name, _)) in files.iter().enumerate().skip(usize::try_from(offset).unwrap()) {
            let place = place as u64;
            if reply.add(INodeNo(place + 2), place + 1, FileType::RegularFile, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(1000, 600, 600, 100, 90, 4096, 255, 4096);
    }
}

/// A program `mount-s3` in a folder, which is this one.
pub fn install(folder: &std::path::Path) {
    let program = std::env::current_exe().unwrap();
    let script = format!("#!/bin/sh\nexec {} {SERVE} \"$@\"\n", program.display());
    let path = folder.join("mount-s3");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
    let file = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o755)).unwrap();
    std::io::Write::write_all(&mut std::fs::File::from(file), script.as_bytes()).unwrap();
}
