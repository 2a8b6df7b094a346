//! A Mountpoint Pod without Kubernetes: its folders, and the mounter as a process.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

/// How long anything may take. What is waited for ends the waiting.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The folders of one Mountpoint Pod. They outlive its container, as an emptyDir does.
pub struct Pod {
    folder: TempDir,
}

/// A running mounter.
pub struct Mounter {
    child: Child,
}

impl Pod {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["comm", "bin"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        Self { folder }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A file that mounter and node service share.
    pub fn comm(&self, name: &str) -> PathBuf {
        self.path().join("comm").join(name)
    }

    pub fn socket(&self) -> PathBuf {
        self.comm("mount.sock")
    }

    /// What `mount.err` says, once it is there.
    pub fn error(&self) -> String {
        until("mount.err", || fs::read_to_string(self.comm("mount.err")).ok())
    }

    pub fn write_exit_file(&self) {
        fs::write(self.comm("mount.exit"), "").unwrap();
    }

    /// Makes the script that stands for mount-s3. In it, `$here` is [`Pod::path`].
    pub fn engine(&self, script: &str) {
        let program = self.path().join("bin/mount-s3");
        fs::write(&program, format!("#!/bin/sh\nhere={}\n{script}\n", self.path().display())).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// What that script wrote to a file of its own, once it is there.
    pub fn told(&self, name: &str) -> String {
        until(name, || fs::read_to_string(self.path().join(name)).ok())
    }

    /// How the mounter is run.
    pub fn command(&self) -> Vec<String> {
        let path = |name: &str| self.path().join(name).to_str().unwrap().to_owned();
        vec![
            env!("CARGO_BIN_EXE_bulkhead-s3-mounter").to_owned(),
            format!("--communication-folder={}", path("comm")),
            format!("--mountpoint-bin-dir={}", path("bin")),
            format!("--cache-folder={}", path("local-cache")),
        ]
    }

    pub fn start(&self) -> Mounter {
        self.start_with(&[])
    }

    /// Where a mounter that is run with the most verbose log writes it.
    pub fn log(&self) -> PathBuf {
        self.path().join("mounter.log")
    }

    pub fn start_with(&self, arguments: &[&str]) -> Mounter {
        let mut command = self.command();
        command.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        Mounter::run(&command)
    }
}

impl Mounter {
    pub fn run(command: &[String]) -> Self {
        Self::spawn(command, Stdio::inherit())
    }

    /// The same with the most verbose log there is, in this file.
    pub fn run_verbose(command: &[String], log: &Path) -> Self {
        let verbose = [command, &["--log=trace".to_owned()]].concat();
        Self::spawn(&verbose, fs::File::create(log).unwrap().into())
    }

    fn spawn(command: &[String], log: Stdio) -> Self {
        let mut program = Command::new(&command[0]);
        let child = program.args(&command[1..]).stdin(Stdio::null()).stderr(log).spawn().unwrap();
        Self { child }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Its exit code, once it ended by itself.
    pub fn code(&mut self) -> i32 {
        let status: ExitStatus = until("the mounter's end", || self.child.try_wait().unwrap());
        status.code().unwrap_or_else(|| panic!("the mounter did not end by itself: {status}"))
    }

    pub fn open_descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.id())).unwrap().count()
    }

    /// Its processes: those whose parent it is.
    pub fn children(&self) -> Vec<u32> {
        let list = format!("/proc/{0}/task/{0}/children", self.id());
        fs::read_to_string(list).unwrap_or_default().split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    }
}

impl Drop for Mounter {
    fn drop(&mut self) {
        for child in self.children() {
            if let Some(pid) = i32::try_from(child).ok().and_then(Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until `look` finds something.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
