//! The child's side of probes: everything that may wait for a file system or a device. Runs in a process that can be
//! killed, in the host's mount namespace.
//!
//! Paths come from PersistentVolumes, and what lies below them from tenants. A look follows links but opens nothing. All
//! else is reached without a symbolic link, and is in the mount that was meant.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use super::super::mounts::layout::is_name;
use super::super::mounts::mountinfo::Device;
use super::order::{BLOCK, Disk, Outcome, Place, Probe, SCRUB, Scrub, Space, positions};
use super::superblock;
use super::view::{Looked, There, What};

/// How long one path may take in a look at many.
const PATIENCE: Duration = Duration::from_millis(500);
/// Folder of the canaries, at the top of a volume.
const FOLDER: &str = ".bulkhead";
/// How much is read at once by a scrub, and how fast at most.
const PIECE: usize = 256 << 10;
const PIECE_TIME: Duration = Duration::from_millis(32);

/// No symbolic link leads anywhere.
const STRICT: ResolveFlags = ResolveFlags::NO_SYMLINKS.union(ResolveFlags::NO_MAGICLINKS);
/// And nothing but this mount is reached.
const CONFINED: ResolveFlags = STRICT.union(ResolveFlags::BENEATH).union(ResolveFlags::NO_XDEV);

/// A call that failed, and what was done.
struct Failure(Errno, String);

type Tried<T> = Result<T, Failure>;

/// Does what it is asked to.
pub fn obey(probe: Probe) -> Outcome {
    let tried = match probe {
        Probe::Look(paths) => Ok(look(paths)),
        Probe::Superblock(device, name) => Ok(Outcome::Superblock(superblock_of(device, &name))),
        Probe::Root(place) => root(&place),
        Probe::Read(disk) => read(&disk),
        Probe::ReadCanary(place) => read_canary(&place),
        Probe::Write(place) => write(&place),
        Probe::Scrub(part) => scrub(&part),
    };
    tried.unwrap_or_else(|Failure(errno, at)| Outcome::Failed { errno: errno.raw_os_error(), at })
}

fn at<T>(done: &str, result: Result<T, Errno>) -> Tried<T> {
    result.map_err(|errno| Failure(errno, done.to_owned()))
}

fn io_at<T>(done: &str, result: io::Result<T>) -> Tried<T> {
    result.map_err(|error| Failure(Errno::from_io_error(&error).unwrap_or(Errno::IO), done.to_owned()))
}

/// Looks at all of them. One that hangs is passed by: its thread ends with this process.
fn look(paths: Vec<String>) -> Outcome {
    let mut looked = BTreeMap::new();
    let mut paths = paths.into_iter().peekable();
    while paths.peek().is_some() {
        let (asking, asked) = mpsc::channel::<String>();
        let (telling, told) = mpsc::channel();
        std::thread::spawn(move || {
            for path in asked {
                let found = there(&path).map_or_else(unclear, Looked::There);
                if telling.send((path, found)).is_err() {
                    return;
                }
            }
        });
        for path in paths.by_ref() {
            let answer = asking.send(path).ok().and_then(|()| told.recv_timeout(PATIENCE).ok());
            match answer {
                Some((path, found)) => drop(looked.insert(path, found)),
                // Another thread goes on with the next.
                None => break,
            }
        }
    }
    Outcome::Looked(looked)
}

fn unclear(errno: Errno) -> Looked {
    match errno {
        Errno::NOENT | Errno::NOTDIR => Looked::Missing,
        other => Looked::Unclear(other.to_string()),
    }
}

/// What is at a path. Symbolic links are followed only to see where they lead.
fn there(path: &str) -> Result<There, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let opened = rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)?;
    let stat = rustix::fs::statx(
        &opened,
        "",
        AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC,
        StatxFlags::TYPE | StatxFlags::NLINK,
    )?;
    let what = match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::Directory => What::Folder,
        FileType::BlockDevice => What::Block(Device { major: stat.stx_rdev_major, minor: stat.stx_rdev_minor }),
        _ => What::Other,
    };
    let told = stat.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT);
    let mount_root = told.then(|| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
    let link = rustix::fs::readlinkat(CWD, format!("/proc/self/fd/{}", opened.as_raw_fd()), Vec::new());
    let canonical = link?.into_string().map_err(|_| Errno::ILSEQ)?;
    // A folder that was deleted and lives on in a mount is shown with a mark.
    let unmarked = canonical.strip_suffix(" (deleted)").filter(|_| stat.stx_nlink == 0).map(str::to_owned);
    Ok(There { canonical: unmarked.unwrap_or(canonical), what, mount_root })
}

fn superblock_of(device: Device, name: &str) -> Option<String> {
    let opened = open_disk(name, device, OFlags::empty()).ok()?;
    let mut start = vec![0; superblock::LENGTH];
    let read = File::from(opened).read_at(&mut start, 0).ok()?;
    superblock::uuid(start.get(..read)?)
}

/// Opens a block device by its name, if it is the one that is meant.
fn open_disk(name: &str, device: Device, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = format!("/dev/{}", name.replace('!', "/"));
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | flags;
    let looked = rustix::fs::openat2(CWD, path.as_str(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), STRICT)?;
    let number = |stat: rustix::fs::Stat| Device {
        major: rustix::fs::major(stat.st_rdev),
        minor: rustix::fs::minor(stat.st_rdev),
    };
    let is_it = |stat: rustix::fs::Stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice && number(stat) == device
    };
    // Not even opened if it is another one: to open some devices does something.
    if !is_it(rustix::fs::fstat(&looked)?) {
        return Err(Errno::NODEV);
    }
    let opened = rustix::fs::openat2(CWD, path.as_str(), flags, Mode::empty(), STRICT)?;
    if is_it(rustix::fs::fstat(&opened)?) { Ok(opened) } else { Err(Errno::NODEV) }
}

/// Opens a folder, if it is in the mount that is meant.
fn open_place(place: &Place) -> Result<Option<OwnedFd>, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = match rustix::fs::openat2(CWD, place.path.as_str(), flags, Mode::empty(), STRICT) {
        Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => return Ok(None),
        other => other?,
    };
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(&opened, "", flags, StatxFlags::MNT_ID)?;
    let known = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::MNT_ID);
    Ok((known && stat.stx_mnt_id == place.mount).then_some(opened))
}

fn root(place: &Place) -> Tried<Outcome> {
    let Some(folder) = at("open the mount", open_place(place))? else { return Ok(Outcome::Changed) };
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    at("stat the mount", rustix::fs::statx(&folder, "", flags, StatxFlags::BASIC_STATS))?;
    let space = at("statfs", rustix::fs::fstatfs(&folder))?;
    Ok(Outcome::Space(Space {
        blocks: space.f_blocks,
        available: space.f_bavail,
        inodes: space.f_files,
        inodes_free: space.f_ffree,
    }))
}

/// A buffer that a device can be read into around the page cache.
struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Buffer {
    fn new(length: usize) -> Self {
        let bytes = vec![0; length + BLOCK];
        let start = bytes.as_ptr().align_offset(BLOCK).min(BLOCK);
        Self { bytes, start, length }
    }

    fn get(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.start..self.start + self.length).unwrap_or_default()
    }

    /// Reads all of it.
    fn fill(&mut self, file: impl AsFd, offset: u64) -> Result<(), Errno> {
        let whole = self.length;
        let read = rustix::io::retry_on_intr(|| rustix::io::pread(&file, &mut *self.get(), offset))?;
        // Less than that there should be.
        if read < whole { Err(Errno::IO) } else { Ok(()) }
    }
}

fn read(disk: &Disk) -> Tried<Outcome> {
    let opened = at("open the device", open_disk(&disk.name, disk.device, OFlags::DIRECT))?;
    let mut buffer = Buffer::new(BLOCK);
    for position in positions(disk.size, disk.turn) {
        at(&format!("read at byte {position} of {}", disk.name), buffer.fill(&opened, position))?;
    }
    Ok(Outcome::Done)
}

fn canary(place: &Place) -> Option<String> {
    is_name(&place.node).then(|| format!("canary-{}", place.node))
}

/// The folder of the canaries: a folder, of root, in the same mount.
fn canaries(place: &Place, create: bool) -> Tried<Option<OwnedFd>> {
    let Some(root) = at("open the mount", open_place(place))? else { return Ok(None) };
    if create {
        match rustix::fs::mkdirat(&root, FOLDER, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(Failure(errno, format!("make the folder {FOLDER}"))),
        }
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = match rustix::fs::openat2(&root, FOLDER, flags, Mode::empty(), CONFINED) {
        Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR | Errno::XDEV) => return Ok(None),
        other => at("open the folder of the canary", other)?,
    };
    let stat = at("open the folder of the canary", rustix::fs::fstat(&folder))?;
    Ok((stat.st_uid == 0).then_some(folder))
}

/// A canary, opened; nothing if it is not a file that only we have.
fn open_canary(folder: &OwnedFd, name: &str, flags: OFlags) -> Tried<Option<File>> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mode = if flags.contains(OFlags::CREATE) { Mode::RUSR | Mode::WUSR } else { Mode::empty() };
    let file = match rustix::fs::openat2(folder, name, flags, mode, CONFINED) {
        Err(Errno::LOOP | Errno::XDEV | Errno::ISDIR) => return Ok(None),
        Err(Errno::NOENT) if !flags.contains(OFlags::CREATE) => return Ok(None),
        other => at("open the canary", other)?,
    };
    let stat = at("open the canary", rustix::fs::fstat(&file))?;
    let ours = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_nlink == 1;
    Ok(ours.then(|| File::from(file)))
}

/// Reads a canary around the page cache; where the file system has no such way, after it was told to forget its pages.
fn read_back(folder: &OwnedFd, name: &str) -> Tried<Option<Vec<u8>>> {
    let direct = match open_canary(folder, name, OFlags::RDONLY | OFlags::DIRECT) {
        Err(Failure(Errno::INVAL, _)) => None,
        other => match other? {
            Some(file) => Some(file),
            None => return Ok(None),
        },
    };
    let mut buffer = Buffer::new(BLOCK);
    if let Some(file) = direct {
        match buffer.fill(&file, 0) {
            Err(Errno::INVAL) => {}
            other => return at("read the canary", other).map(|()| Some(buffer.get().to_vec())),
        }
    }
    let Some(file) = open_canary(folder, name, OFlags::RDONLY)? else { return Ok(None) };
    at("read the canary", rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed))?;
    at("read the canary", buffer.fill(&file, 0))?;
    Ok(Some(buffer.get().to_vec()))
}

fn read_canary(place: &Place) -> Tried<Outcome> {
    let (Some(folder), Some(name)) = (canaries(place, false)?, canary(place)) else { return Ok(Outcome::Changed) };
    Ok(read_back(&folder, &name)?.map_or(Outcome::Changed, |_| Outcome::Done))
}

fn write(place: &Place) -> Tried<Outcome> {
    let (Some(folder), Some(name)) = (canaries(place, true)?, canary(place)) else { return Ok(Outcome::Changed) };
    let Some(file) = open_canary(&folder, &name, OFlags::RDWR | OFlags::CREATE)? else { return Ok(Outcome::Changed) };
    let text = pattern();
    io_at("write the canary", file.write_all_at(&text, 0))?;
    at("flush the canary", rustix::fs::fdatasync(&file))?;
    Ok(match read_back(&folder, &name)? {
        Some(read) if read == text => Outcome::Done,
        Some(_) => Outcome::Mismatch,
        None => Outcome::Changed,
    })
}

/// Another text each time: an old one that is read back is not what was written.
fn pattern() -> Vec<u8> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let line = format!("bulkhead canary {} {}\n", now.as_nanos(), std::process::id());
    line.bytes().cycle().take(BLOCK).collect()
}

fn scrub(part: &Scrub) -> Tried<Outcome> {
    let disk = &part.disk;
    let opened = at("open the device", open_disk(&disk.name, disk.device, OFlags::DIRECT))?;
    let mut block = Buffer::new(BLOCK);
    let mut bad = Vec::new();
    for position in part.again.iter().copied() {
        check(&opened, &mut block, position, &mut bad)?;
    }
    let mut piece = Buffer::new(PIECE);
    let end = part.from.saturating_add(SCRUB).min(disk.size);
    let mut position = part.from;
    while position < end {
        let began = Instant::now();
        let length = (PIECE as u64).min(disk.size - position);
        let whole = length == PIECE as u64 && piece.fill(&opened, position).is_ok();
        if !whole {
            for offset in (position..position + length).step_by(BLOCK).filter(|at| at + BLOCK as u64 <= disk.size) {
                check(&opened, &mut block, offset, &mut bad)?;
            }
        }
        position += length;
        std::thread::sleep(PIECE_TIME.saturating_sub(began.elapsed()));
    }
    bad.sort_unstable();
    bad.dedup();
    Ok(Outcome::Scrubbed { to: if position >= disk.size { 0 } else { position }, bad })
}

/// Most bad blocks that one scrub tells: a device that is gone altogether has them all.
const BAD_MAX: usize = 64;

fn check(device: &OwnedFd, block: &mut Buffer, position: u64, bad: &mut Vec<u64>) -> Tried<()> {
    if bad.len() < BAD_MAX {
        match block.fill(device, position) {
            Ok(()) => {}
            Err(Errno::IO | Errno::NODATA | Errno::ILSEQ) => bad.push(position),
            Err(errno) => return Err(Failure(errno, "scrub".into())),
        }
    }
    Ok(())
}
