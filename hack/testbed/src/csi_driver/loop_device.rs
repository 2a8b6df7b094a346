//! A loop device on a file of a mounted volume, for raw block volumes.
//!
//! The device frees itself when the last that has it open closes it; this process does so too when it is killed. So none
//! is ever left behind.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, SeekFrom, makedev, mknodat};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Setter, ioctl};

/// From the kernel's `linux/loop.h`.
const LOOP_CTL_GET_FREE: Opcode = 0x4C82;
const LOOP_CONFIGURE: Opcode = 0x4C0A;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
/// The major number of loop devices.
const MAJOR: u32 = 7;
/// How often a device that another program took in the meantime is chosen anew.
const ATTEMPTS: usize = 16;

/// `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
#[derive(Clone, Copy)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// A loop device, held open.
#[derive(Debug)]
pub(super) struct LoopDevice {
    path: PathBuf,
    device: File,
}

impl LoopDevice {
    /// Makes `file` a block device. Blocks while the file's file system does.
    pub fn attach(file: &Path, read_only: bool) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(!read_only).open(file)?;
        for _ in 0..ATTEMPTS {
            let (path, device) = free()?;
            match configure(&device, &file, read_only) {
                Ok(()) => return Ok(LoopDevice { path, device }),
                Err(Errno::BUSY) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::Error::new(io::ErrorKind::ResourceBusy, "other programs take all loop devices"))
    }

    /// Its path in `/dev`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size in bytes.
    pub fn size(&self) -> io::Result<u64> {
        Ok(rustix::fs::seek(&self.device, SeekFrom::End(0))?)
    }
}

fn free() -> io::Result<(PathBuf, File)> {
    let control = File::open("/dev/loop-control")?;
    let number = get_free(&control)?;
    let path = PathBuf::from(format!("/dev/loop{number}"));
    if !path.exists() {
        match mknodat(CWD, &path, FileType::BlockDevice, Mode::RUSR | Mode::WUSR, makedev(MAJOR, number)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let device = OpenOptions::new().read(true).write(true).open(&path)?;
    Ok((path, device))
}

/// The number of a device that nobody uses.
#[expect(unsafe_code, reason = "an ioctl that rustix does not have; it takes nothing")]
fn get_free(control: &File) -> io::Result<u32> {
    // SAFETY: the opcode takes no argument.
    Ok(unsafe { ioctl(control, GetFree) }?)
}

/// Gives the device its file.
#[expect(unsafe_code, reason = "an ioctl that rustix does not have; it reads one structure of the kernel's layout")]
fn configure(device: &File, file: &File, read_only: bool) -> rustix::io::Result<()> {
    let flags = if read_only { LO_FLAGS_AUTOCLEAR | LO_FLAGS_READ_ONLY } else { LO_FLAGS_AUTOCLEAR };
    let fd = u32::try_from(file.as_raw_fd()).map_err(|_| Errno::BADF)?;
    let config = LoopConfig { fd, block_size: 0, info: LoopInfo::with(flags), reserved: [0; 8] };
    // SAFETY: the kernel reads one `struct loop_config`, which is what it is given.
    unsafe { ioctl(device, Setter::<LOOP_CONFIGURE, LoopConfig>::new(config)) }
}

impl LoopInfo {
    fn with(flags: u32) -> Self {
        LoopInfo {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags,
            file_name: [0; 64],
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        }
    }
}

/// Its answer is what the ioctl returns.
struct GetFree;

#[expect(unsafe_code, reason = "the trait is unsafe to implement")]
// SAFETY: the kernel takes no argument and returns a number that is not negative.
unsafe impl Ioctl for GetFree {
    type Output = u32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        LOOP_CTL_GET_FREE
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(number: IoctlOutput, _: *mut std::ffi::c_void) -> rustix::io::Result<u32> {
        u32::try_from(number).map_err(|_| Errno::INVAL)
    }
}
