//! Reads files of `/proc` that may not answer, and never waits for one for long.

use std::fs;
use std::io;
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags};

use super::mountinfo::Device;
use super::read::is_gone;

/// How long one file of `/proc` may take. Some wait for a lock that a process holds which itself waits for a dead disk.
const PATIENCE: Duration = Duration::from_millis(500);

/// What the kernel has in memory of a file.
pub(super) struct File {
    /// The id of the mount it was opened through.
    pub(super) mount: Option<u64>,
    /// The device it is on.
    pub(super) device: Device,
    /// The block device that it stands for.
    pub(super) node: Option<Device>,
}

fn look(path: &str) -> io::Result<File> {
    // Asked for nothing and told not to ask any server, a file system has nothing to wait for; device and mount (since
    // Linux 5.8) are the kernel's own to tell.
    let stat = rustix::fs::statx(CWD, path, AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT, StatxFlags::empty())?;
    let is_node = FileType::from_raw_mode(u32::from(stat.stx_mode)) == FileType::BlockDevice;
    Ok(File {
        mount: (stat.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(stat.stx_mnt_id),
        device: Device { major: stat.stx_dev_major, minor: stat.stx_dev_minor },
        node: is_node.then_some(Device { major: stat.stx_rdev_major, minor: stat.stx_rdev_minor }),
    })
}

/// Reads in a thread, and starts another when that one does not come back.
pub(super) struct Reader {
    jobs: mpsc::Sender<Job>,
}

enum Job {
    Text(String, mpsc::Sender<io::Result<String>>),
    File(String, mpsc::Sender<io::Result<File>>),
}

impl Reader {
    pub(super) fn start() -> Self {
        let (jobs, todo) = mpsc::channel::<Job>();
        std::thread::spawn(move || {
            for job in todo {
                // Whoever gave up waiting does not listen any more.
                let _ = match job {
                    Job::Text(path, answer) => {
                        let text = fs::read(path).map(|text| String::from_utf8_lossy(&text).into_owned());
                        answer.send(text).is_ok()
                    }
                    Job::File(path, answer) => answer.send(look(&path)).is_ok(),
                };
            }
        });
        Self { jobs }
    }

    pub(super) fn text(&mut self, path: String) -> io::Result<String> {
        let (answer, answered) = mpsc::channel();
        self.wait(Job::Text(path, answer), &answered)
    }

    /// None for a link that leads nowhere, as that of a kernel thread to its program.
    pub(super) fn file(&mut self, path: String) -> io::Result<Option<File>> {
        let (answer, answered) = mpsc::channel();
        match self.wait(Job::File(path, answer), &answered) {
            Ok(file) => Ok(Some(file)),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn wait<T>(&mut self, job: Job, answered: &mpsc::Receiver<io::Result<T>>) -> io::Result<T> {
        if self.jobs.send(job).is_err() {
            *self = Self::start();
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        answered.recv_timeout(PATIENCE).unwrap_or_else(|_| {
            *self = Self::start();
            Err(io::ErrorKind::TimedOut.into())
        })
    }
}
