//! What the kernel announces: that mounts changed, and what it logs.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::kernel_log::{self, Line};

/// Longest record of the kernel log, with its properties.
const RECORD: usize = 8192;

/// Has the runtime wait for it. Its successor is unsafe, for types that could close their descriptor meanwhile.
#[expect(deprecated, reason = "sound for the types that own their descriptor, as these two do")]
fn watched<T: AsRawFd>(file: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(file, interest)
}

fn open(path: &str) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?)
}

/// Wakes when the mounts of a process's namespace change.
pub struct MountWatch {
    file: AsyncFd<OwnedFd>,
}

impl MountWatch {
    /// `host` is a process of the host, such as `/proc/1`.
    pub fn new(host: &str) -> io::Result<Self> {
        let file = open(&format!("{host}/mountinfo"))?;
        Ok(Self { file: watched(file, Interest::PRIORITY)? })
    }

    /// Waits for a change since the last one that was told. Several may be told as one.
    pub async fn changed(&self) -> io::Result<()> {
        self.file.ready(Interest::PRIORITY).await?.clear_ready();
        Ok(())
    }
}

/// The kernel log, from now on.
pub struct KernelLog {
    file: AsyncFd<File>,
}

impl KernelLog {
    /// Opens it, behind the last record.
    pub fn open() -> io::Result<Self> {
        let mut file = File::from(open("/dev/kmsg")?);
        file.seek(SeekFrom::End(0))?;
        Ok(Self { file: watched(file, Interest::READABLE)? })
    }

    /// The next record that tells something of a device or a server.
    pub async fn next(&self) -> io::Result<Line> {
        let mut record = vec![0; RECORD];
        loop {
            let mut ready = self.file.readable().await?;
            let read = match ready.try_io(|file| file.get_ref().read(&mut record)) {
                Ok(Ok(read)) => read,
                // Records were overwritten before we read them: go on with those that are left.
                Ok(Err(error)) if Errno::from_io_error(&error) == Some(Errno::PIPE) => continue,
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => continue,
            };
            let text = String::from_utf8_lossy(record.get(..read).unwrap_or_default());
            if let Some(line) = kernel_log::parse(&text) {
                return Ok(line);
            }
        }
    }
}
