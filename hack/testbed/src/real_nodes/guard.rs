//! The process that removes what real nodes leave on the machine: see `guard.sh`.

use std::io;
use std::process::Stdio;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::io::AsyncBufReadExt;
use tokio::process::{Child, Command};

use super::command::PATH;
use super::error::RealNodeError;
use crate::lock::lock;

const SCRIPT: &str = concat!(include_str!("remains.sh"), include_str!("guard.sh"));
/// How long the end of all nodes is waited for. It takes tenths of a second, more on a busy machine.
const DEADLINE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

/// A running guard. Dropping it ends all real nodes, and returns when nothing of them is left.
#[derive(Debug)]
pub(super) struct Guard {
    group: String,
    pid: i32,
    child: Mutex<Child>,
}

impl Guard {
    pub(super) async fn start(group: &str) -> Result<Self, RealNodeError> {
        let failed = |source: io::Error| RealNodeError::Guard(source);
        let mut child = Command::new("unshare")
            .args(["--net", "sh", "-c", SCRIPT, "guard", group])
            .env("PATH", PATH)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Neither a Ctrl-C nor the end of the testbed's process group ends it.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default();
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            tokio::io::BufReader::new(stdout).read_line(&mut line).await.map_err(failed)?;
        }
        if line.trim() == "ready" {
            Ok(Self { group: group.to_owned(), pid, child: Mutex::new(child) })
        } else {
            Err(failed(io::Error::other("it ended at once; its output is above")))
        }
    }

    /// Whose network namespace is the switch.
    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// The name of the control groups that all processes of the nodes are in.
    pub(super) fn group(&self) -> &str {
        &self.group
    }
}

impl Guard {
    /// Ends all real nodes and returns when nothing of them is left.
    pub(super) fn end(&self) {
        let mut child = lock(&self.child);
        drop(child.stdin.take());
        let deadline = Instant::now() + DEADLINE;
        while matches!(child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                eprintln!("testbed: the real nodes in the control group {} do not end", self.group);
                return;
            }
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.end();
    }
}
