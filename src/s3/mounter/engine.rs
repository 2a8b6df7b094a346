//! Runs mount-s3 and waits for its end.

use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use command_fds::{CommandFdExt as _, FdMapping};
use rustix::process::{Pid, WaitOptions, WaitStatus};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::runtime::lock::lock;

use super::arguments::FUSE_DESCRIPTOR;
use super::tail::Tail;

/// The name of the program.
const PROGRAM: &str = "mount-s3";
/// How much is kept of what it says.
const ROOM: usize = 64 * 1024;
/// How long its last words may take after its end: somebody else may hold its standard error.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A running mount-s3.
pub struct Engine {
    end: JoinHandle<io::Result<WaitStatus>>,
    listener: JoinHandle<()>,
    said: Arc<Mutex<Tail>>,
}

/// How it ended.
#[derive(Debug)]
pub struct Ended {
    /// In words.
    pub how: String,
    /// The end of its standard error.
    pub said: String,
}

impl Engine {
    /// Starts `folder`/mount-s3 with exactly this environment. Afterwards nobody but it has the descriptor: when it ends, the
    /// mount is dead, and that can be seen.
    pub fn start(folder: &Path, arguments: &[String], environment: &[String], fuse: OwnedFd) -> Result<Self, String> {
        let program: PathBuf = folder.join(PROGRAM);
        let cannot = |error: io::Error| {
            format!("cannot run {}: {error}; does the image have mount-s3 in MOUNTPOINT_BIN_DIR?", program.display())
        };
        let mut command = Command::new(&program);
        command.args(arguments).env_clear().envs(environment.iter().filter_map(|entry| entry.split_once('=')));
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        command
            .fd_mappings(vec![FdMapping { parent_fd: fuse, child_fd: FUSE_DESCRIPTOR }])
            .map_err(|error| cannot(io::Error::other(error)))?;
        let mut child = command.spawn().map_err(cannot)?;
        drop(command);
        let said = Arc::new(Mutex::new(Tail::new(ROOM)));
        let pid = Pid::from_child(&child);
        let listener = match child.stderr.take() {
            Some(stderr) => {
                let said = said.clone();
                spawn_blocking(move || listen(stderr, &said))
            }
            None => spawn_blocking(|| ()),
        };
        Ok(Self { end: spawn_blocking(move || wait(pid)), listener, said })
    }

    /// Waits for its end.
    pub async fn ended(self) -> Ended {
        let how = match self.end.await {
            Ok(Ok(status)) => in_words(status),
            Ok(Err(error)) => format!("was lost: {error}"),
            Err(error) => format!("was lost: {error}"),
        };
        let _ = tokio::time::timeout(LAST_WORDS, self.listener).await;
        let said = lock(&self.said).text();
        Ended { how, said }
    }
}

/// Passes on what it says, and keeps the end of it.
fn listen(mut stderr: ChildStderr, said: &Mutex<Tail>) {
    let mut chunk = [0; 4096];
    loop {
        match stderr.read(&mut chunk) {
            Ok(0) => return,
            Ok(length) => {
                let chunk = chunk.get(..length).unwrap_or_default();
                lock(said).add(chunk);
                // Nobody may be reading ours any more.
                let _ = io::stderr().write_all(chunk);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Waits for the end of `pid`. As process 1 of the container we get every process whose parent ended; each is waited for, so
/// that none is left a zombie.
fn wait(pid: Pid) -> io::Result<WaitStatus> {
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((ended, status))) if ended == pid => return Ok(status),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn in_words(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(9)) => "was killed (signal 9), perhaps because it ran out of memory".to_owned(),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => format!("ended with {status:?}"),
    }
}
