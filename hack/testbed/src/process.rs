//! Child processes that cannot outlive their parent. Knows nothing about Kubernetes.
//!
//! Each program runs under a small shell supervisor that reads a pipe whose only writing end is
//! held by this process. A line in the pipe is a signal for the program; the end of the pipe
//! ends the program. So a panic, Ctrl-C and SIGKILL of this process end every child too, without
//! `PR_SET_PDEATHSIG` (which fires when a *thread* ends, a trap under tokio) and without the
//! reuse of a process id: only the supervisor, the program's parent, ever signals it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::Duration;

/// `"$@"` is the program. At the end of the pipe it gets three seconds to stop by itself.
/// CONT lets a stopped program see its TERM.
const SUPERVISOR: &str = r#"
exec 3<&0
"$@" </dev/null 3<&- &
child=$!
{
    while read -r signal; do kill -s "$signal" "$child"; done
    kill -s TERM "$child"
    kill -s CONT "$child"
    tries=30
    while [ "$tries" -gt 0 ] && kill -0 "$child"; do sleep 0.1; tries=$((tries - 1)); done
    kill -s KILL "$child"
} <&3 2>/dev/null &
watcher=$!
wait "$child"
status=$?
kill -s KILL "$watcher"
exit "$status"
"#;

/// How often the end of a process is looked for where it cannot be awaited.
const POLL: Duration = Duration::from_millis(20);

/// What to run and where its output goes.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Short name for messages, such as `etcd`.
    pub name: String,
    /// The program's file.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Environment variables set in addition to this process's own.
    pub env: Vec<(String, String)>,
    /// The file that standard output and error are appended to.
    pub log: PathBuf,
}

/// A signal that a running program can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Freeze it (SIGSTOP).
    Stop,
    /// Let it go on (SIGCONT).
    Continue,
    /// Ask it to end (SIGTERM).
    Terminate,
    /// End it at once (SIGKILL).
    Kill,
}

impl Signal {
    fn line(self) -> &'static str {
        match self {
            Self::Stop => "STOP\n",
            Self::Continue => "CONT\n",
            Self::Terminate => "TERM\n",
            Self::Kill => "KILL\n",
        }
    }
}

/// Why a process could not be started or signalled.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The log file could not be opened.
    #[error("cannot open {path} for the output of {name}: {source}")]
    Log {
        /// The program's short name.
        name: String,
        /// The log file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The supervisor could not be started.
    #[error("cannot start {name}: {source}; is there a POSIX shell named sh in the PATH?")]
    Spawn {
        /// The program's short name.
        name: String,
        /// The cause.
        source: io::Error,
    },
    /// The program has already ended.
    #[error("{name} has ended ({status}); its last output:\n{tail}")]
    Ended {
        /// The program's short name.
        name: String,
        /// How it ended; 128 + n stands for signal n.
        status: String,
        /// The end of its log.
        tail: String,
    },
}

/// A running program; dropping it ends the program and waits for its end.
#[derive(Debug)]
pub struct Process {
    launch: Launch,
    supervisor: Child,
    /// Dropped to end the program.
    signals: Option<ChildStdin>,
}

impl Process {
    /// Starts the program.
    ///
    /// # Errors
    /// When the log file or the supervisor cannot be opened. A program that does not exist shows
    /// as exit status 127 of a started process.
    pub fn spawn(launch: Launch) -> Result<Self, ProcessError> {
        let log_error = |source| ProcessError::Log { name: launch.name.clone(), path: launch.log.clone(), source };
        let log = File::options().create(true).append(true).open(&launch.log).map_err(log_error)?;
        let spawned = Command::new("sh")
            .args(["-c", SUPERVISOR, "supervisor"])
            .arg(&launch.program)
            .args(&launch.args)
            .envs(launch.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(log.try_clone().map_err(log_error)?)
            .stderr(log)
            // A Ctrl-C in the terminal must reach this process only, which then ends its children.
            .process_group(0)
            .spawn();
        match spawned {
            Ok(mut supervisor) => Ok(Self { signals: supervisor.stdin.take(), supervisor, launch }),
            Err(source) => Err(ProcessError::Spawn { name: launch.name, source }),
        }
    }

    /// What was started.
    pub fn launch(&self) -> &Launch {
        &self.launch
    }

    /// The process id of the supervisor, whose first child the program is.
    pub(crate) fn supervisor(&self) -> u32 {
        self.supervisor.id()
    }

    /// The end of the program's output, for error messages.
    pub fn log_tail(&self) -> String {
        log_tail(&self.launch.log, 15)
    }

    /// How the program ended, or `None` while it runs.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.supervisor.try_wait().ok().flatten()
    }

    /// An error when the program has ended.
    ///
    /// # Errors
    /// [`ProcessError::Ended`] with the end of its log.
    pub fn ensure_running(&mut self) -> Result<(), ProcessError> {
        match self.exit_status() {
            None => Ok(()),
            Some(status) => Err(self.ended(status)),
        }
    }

    /// Sends a signal; does not wait for its effect.
    ///
    /// # Errors
    /// When the program has already ended.
    pub fn signal(&mut self, signal: Signal) -> Result<(), ProcessError> {
        self.ensure_running()?;
        let written = match &mut self.signals {
            Some(pipe) => pipe.write_all(signal.line().as_bytes()),
            None => Ok(()),
        };
        match written {
            Ok(()) => Ok(()),
            Err(error) => Err(ProcessError::Ended {
                name: self.launch.name.clone(),
                status: error.to_string(),
                tail: self.log_tail(),
            }),
        }
    }

    /// Waits for the program to end by itself.
    pub async fn ended_by_itself(&mut self) -> Option<ExitStatus> {
        loop {
            match self.supervisor.try_wait() {
                Ok(None) => tokio::time::sleep(POLL).await,
                Ok(status) => return status,
                Err(_) => return None,
            }
        }
    }

    /// Asks the program to end, ends it after three seconds, and returns when it is gone.
    pub async fn stop(mut self) -> Option<ExitStatus> {
        self.signals = None;
        self.ended_by_itself().await
    }

    /// Ends the program at once and returns when it is gone.
    pub async fn kill(mut self) {
        // An error means that it is gone already.
        if self.signal(Signal::Kill).is_ok() {
            self.ended_by_itself().await;
        }
    }

    fn ended(&self, status: ExitStatus) -> ProcessError {
        ProcessError::Ended { name: self.launch.name.clone(), status: status.to_string(), tail: self.log_tail() }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signals = None;
        // Cannot hang: the supervisor ends the program after three seconds. An error means gone.
        let _ = self.supervisor.wait();
    }
}

/// The last `lines` lines of a log file; empty when it cannot be read.
pub fn log_tail(path: &Path, lines: usize) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    all.iter().skip(all.len().saturating_sub(lines)).copied().collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(folder: &Path, script: &str) -> Process {
        Process::spawn(Launch {
            name: "script".into(),
            program: "sh".into(),
            args: vec!["-c".into(), script.into()],
            env: vec![("GREETING".into(), "hello".into())],
            log: folder.join("log"),
        })
        .unwrap()
    }

    async fn logged(process: &Process, text: &str) {
        for _ in 0..500 {
            if process.log_tail().contains(text) {
                return;
            }
            tokio::time::sleep(POLL).await;
        }
        panic!("{text} is not in the log: {}", process.log_tail());
    }

    #[tokio::test]
    async fn the_end_of_a_program_is_told_with_its_output() {
        let folder = tempfile::tempdir().unwrap();
        let mut process = shell(folder.path(), "echo $GREETING; exit 7");
        let status = process.ended_by_itself().await.unwrap();
        assert_eq!(status.code(), Some(7));
        let error = process.signal(Signal::Terminate).unwrap_err().to_string();
        assert!(error.contains("exit status: 7") && error.contains("hello"), "{error}");
    }

    #[tokio::test]
    async fn a_program_is_asked_to_stop_before_it_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let script = "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
        let process = shell(folder.path(), script);
        logged(&process, "ready").await;
        assert_eq!(process.stop().await.unwrap().code(), Some(3));

        let stubborn = "trap '' TERM; echo deaf; while :; do sleep 0.05; done";
        let process = shell(folder.path(), stubborn);
        logged(&process, "deaf").await;
        assert_eq!(process.stop().await.unwrap().code(), Some(128 + 9));
    }

    #[tokio::test]
    async fn a_frozen_program_ends_when_it_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let mut process = shell(folder.path(), "echo $$ ready; while :; do sleep 0.05; done");
        logged(&process, "ready").await;
        let pid = process.log_tail().replace(" ready", "");
        let alive = || Path::new("/proc").join(&pid).exists();
        assert!(alive());
        process.signal(Signal::Stop).unwrap();
        drop(process);
        assert!(!alive());
    }
}
