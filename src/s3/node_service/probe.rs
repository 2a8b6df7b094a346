//! Asks mounts whether their servers answer: in a child process, which can be killed. A server that does not answer would
//! hold a thread of ours for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::runtime::lock::lock;

/// First argument of a child.
pub const CHILD: &str = "probe";
/// What a child that was killed may take to end.
const KILLED: Duration = Duration::from_millis(500);

/// How a mount is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Its server answers.
    Alive(Usage),
    /// It has no server any more: the error.
    Dead(i32),
    /// It has not answered.
    Silent,
}

/// How full a file system is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Size of a block.
    pub block: u64,
    /// Blocks.
    pub blocks: u64,
    /// Free ones.
    pub free: u64,
    /// Free ones that anybody may use.
    pub available: u64,
    /// Inodes.
    pub files: u64,
    /// Free ones.
    pub files_free: u64,
}

/// Starts children.
#[derive(Clone)]
pub struct Probes {
    program: PathBuf,
    /// What children that could not be killed wait for. It is not asked again meanwhile.
    hung: Arc<Mutex<BTreeSet<String>>>,
}

#[derive(Serialize, Deserialize)]
struct Line {
    path: String,
    answer: Answer,
}

impl Probes {
    /// `program` is this program.
    pub fn new(program: PathBuf) -> Self {
        Self { program, hung: Arc::default() }
    }

    /// Asks one mount.
    pub async fn ask(&self, path: &str, deadline: Duration) -> Answer {
        self.ask_all(vec![path.to_owned()], deadline).await.remove(path).unwrap_or(Answer::Silent)
    }

    /// Asks mounts, side by side.
    pub async fn ask_all(&self, paths: Vec<String>, deadline: Duration) -> BTreeMap<String, Answer> {
        let mut answers: BTreeMap<_, _> = paths.into_iter().map(|path| (path, Answer::Silent)).collect();
        let asked: BTreeSet<String> = {
            let hung = lock(&self.hung);
            answers.keys().filter(|path| !hung.contains(*path)).cloned().collect()
        };
        if asked.is_empty() {
            return answers;
        }
        let spawned = Command::new(&self.program)
            .arg(CHILD)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .env_clear()
            .kill_on_drop(true)
            .spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) => {
                tracing::warn!(%error, "no mount can be asked: a child process cannot be started");
                return answers;
            }
        };
        let conversed = tokio::time::timeout(deadline, converse(&mut child, &asked, &mut answers)).await;
        if !matches!(conversed, Ok(Ok(()))) {
            self.kill(child, asked, &answers).await;
        }
        answers
    }

    async fn kill(&self, mut child: Child, asked: BTreeSet<String>, answers: &BTreeMap<String, Answer>) {
        // It may have ended by itself meanwhile.
        let _ = child.start_kill();
        if tokio::time::timeout(KILLED, child.wait()).await.is_ok() {
            return;
        }
        let silent: Vec<_> = asked.into_iter().filter(|path| answers.get(path) == Some(&Answer::Silent)).collect();
        tracing::warn!(mounts = ?silent, "a child process cannot be killed: it waits for a mount that does not answer");
        lock(&self.hung).extend(silent.iter().cloned());
        let hung = self.hung.clone();
        tokio::spawn(async move {
            let _ = child.wait().await;
            lock(&hung).retain(|path| !silent.contains(path));
        });
    }
}

async fn converse(
    child: &mut Child,
    asked: &BTreeSet<String>,
    answers: &mut BTreeMap<String, Answer>,
) -> std::io::Result<()> {
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(&serde_json::to_vec(asked)?).await?;
    }
    if let Some(stdout) = child.stdout.take() {
        let mut lines = BufReader::new(stdout).lines();
        while let Some(line) = lines.next_line().await? {
            let Line { path, answer } = serde_json::from_str(&line)?;
            answers.insert(path, answer);
        }
    }
    child.wait().await.map(drop)
}

/// Runs the child: paths on stdin, an answer per line on stdout.
pub fn main() -> ExitCode {
    // A child whose parent is gone has nobody to answer to.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let Ok(paths) = serde_json::from_reader::<_, Vec<String>>(std::io::stdin()) else { return ExitCode::FAILURE };
    let threads = paths.into_iter().map(|path| {
        std::thread::spawn(move || {
            let answer = ask(&path);
            if let Ok(mut line) = serde_json::to_vec(&Line { path, answer }) {
                line.push(b'\n');
                let _ = std::io::stdout().lock().write_all(&line);
            }
        })
    });
    for thread in threads.collect::<Vec<_>>() {
        let _ = thread.join();
    }
    let _ = std::io::stdout().flush();
    ExitCode::SUCCESS
}

fn ask(path: &str) -> Answer {
    let opened = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
    let usage = |mount: OwnedFd| -> Result<Usage, Errno> {
        let space = rustix::fs::fstatvfs(&mount)?;
        Ok(Usage {
            block: space.f_frsize,
            blocks: space.f_blocks,
            free: space.f_bfree,
            available: space.f_bavail,
            files: space.f_files,
            files_free: space.f_ffree,
        })
    };
    match opened.and_then(usage) {
        Ok(usage) => Answer::Alive(usage),
        Err(
            errno
            @ (Errno::NOTCONN | Errno::CONNABORTED | Errno::STALE | Errno::HOSTDOWN | Errno::NODEV | Errno::NOENT),
        ) => Answer::Dead(errno.raw_os_error()),
        // The server's own word.
        Err(_) => Answer::Alive(Usage::default()),
    }
}
