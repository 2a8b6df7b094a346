//! What an answer of a child says of a volume. Pure.

use rustix::io::Errno;

use super::order::{Outcome, Space};
use super::{degraded, inaccessible, silent};
use crate::api::hysteresis::Sample;
use crate::api::volume::Check;

/// Who answers for a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// The kernel, from a device or memory.
    Kernel,
    /// An NFS server.
    NFS,
    /// A FUSE server.
    FUSE,
}

impl Server {
    /// The check that tells whether it answers.
    pub fn check(self) -> Check {
        match self {
            Self::Kernel => Check::Capacity,
            Self::NFS => Check::NFS,
            Self::FUSE => Check::FUSE,
        }
    }

    /// Nobody answered within the deadline.
    pub fn silence(self, message: &str) -> Sample {
        silent(if self == Self::NFS { "BackendUnreachable" } else { "IOHung" }, message)
    }
}

/// What the file system says of itself: whether it answers, and how much is left.
pub fn of_root(server: Server, read_only: bool, outcome: &Outcome) -> Vec<(Check, Sample)> {
    let space = match outcome {
        Outcome::Space(space) if read_only => Some((space, Sample::Good)),
        Outcome::Space(space) => Some((space, room(space))),
        _ => None,
    };
    let answered = match outcome {
        Outcome::Space(_) => Sample::Good,
        Outcome::Failed { errno, at } => failed(*errno, at),
        _ => Sample::Unknown,
    };
    match (server, space) {
        (Server::Kernel, Some((_, room))) => vec![(Check::Capacity, room)],
        (server, None) => vec![(server.check(), answered)],
        (server, Some((_, room))) => vec![(server.check(), answered), (Check::Capacity, room)],
    }
}

fn room(space: &Space) -> Sample {
    if space.inodes > 0 && space.inodes_free == 0 {
        degraded("OutOfInodes", format!("all {} inodes are used", space.inodes))
    } else if space.available.saturating_mul(100) < space.blocks {
        degraded("OutOfSpace", format!("{} of {} blocks are left", space.available, space.blocks))
    } else {
        Sample::Good
    }
}

/// What reading, or writing and reading back, says.
pub fn of_data(outcome: &Outcome) -> Sample {
    match outcome {
        Outcome::Done => Sample::Good,
        Outcome::Mismatch => inaccessible("IOError", "what was read back is not what was written"),
        Outcome::Failed { errno, at } => failed(*errno, at),
        _ => Sample::Unknown,
    }
}

/// What a scrub says, with all bad blocks known now.
pub fn of_scrub(bad: &[u64]) -> Sample {
    match bad.first() {
        Some(first) => {
            inaccessible("BadBlocks", format!("{} blocks cannot be read, the first at byte {first}", bad.len()))
        }
        None => Sample::Good,
    }
}

/// What an error of the kernel says. One that tells of the agent rather than of the volume (it may not) says nothing.
fn failed(errno: i32, at: &str) -> Sample {
    let errno = Errno::from_raw_os_error(errno);
    let message = format!("{at}: {errno}");
    match errno {
        Errno::NOTCONN | Errno::CONNABORTED => inaccessible("FuseDisconnected", message),
        Errno::STALE => inaccessible("StaleHandle", message),
        Errno::IO | Errno::REMOTEIO | Errno::UCLEAN | Errno::BADMSG | Errno::ILSEQ | Errno::NODATA => {
            inaccessible("IOError", message)
        }
        Errno::SHUTDOWN => inaccessible("FilesystemShutdown", message),
        Errno::NODEV | Errno::NXIO | Errno::NOMEDIUM => inaccessible("DeviceMissing", message),
        Errno::ROFS => inaccessible("ReadOnlyRemount", message),
        Errno::NOSPC | Errno::DQUOT => degraded("OutOfSpace", message),
        Errno::TIMEDOUT | Errno::HOSTDOWN | Errno::HOSTUNREACH | Errno::CONNREFUSED => {
            silent("BackendUnreachable", message)
        }
        _ => Sample::Unknown,
    }
}

#[cfg(test)]
#[path = "answers_tests.rs"]
mod tests;
