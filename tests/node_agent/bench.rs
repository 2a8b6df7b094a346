//! What the tests of the probes work with: probes as the agent runs them, files as disks, volumes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bulkhead::api::hysteresis::Sample;
use bulkhead::api::volume::{Check, CheckMode};
use bulkhead::node_agent::children::Children;
use bulkhead::node_agent::probes::blocking::{ASK, Prober};
use bulkhead::node_agent::probes::gather::Gatherer;
use bulkhead::node_agent::probes::{self, Expected, ExpectedKind, HostView, Kind, Seen, Subject};
use rustix::mount::UnmountFlags;

use super::world::{PATIENCE, folder, tmpfs};

/// Probes as the agent runs them, and a folder to work in.
pub struct Bench {
    pub children: Children,
    pub gatherer: Gatherer,
    pub prober: Prober,
    pub root: PathBuf,
    pub modes: BTreeMap<Check, CheckMode>,
    _folder: tempfile::TempDir,
}

impl Bench {
    pub fn new() -> Self {
        Self::with_deadline(ASK)
    }

    /// With this deadline for what needs no write.
    pub fn with_deadline(deadline: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // How full the disk of the machine is says nothing here.
        tmpfs(folder.path());
        let children = Children::new(env!("CARGO_BIN_EXE_bulkhead-node-agent").into(), "/proc/self".into());
        Self {
            gatherer: Gatherer::new(children.clone(), "/proc/self".into()),
            prober: Prober::new(children.clone(), "worker-1".into(), deadline),
            children,
            root: folder.path().canonicalize().unwrap(),
            modes: BTreeMap::new(),
            _folder: folder,
        }
    }

    /// A folder to mount something at.
    pub fn folder(&self, name: &str) -> PathBuf {
        let path = self.root.join(name);
        folder(&path);
        path
    }

    /// A disk with an ext4 file system.
    pub fn disk(&self, name: &str) -> Disk {
        let image = self.root.join(format!("{name}.img"));
        run("truncate", &["--size", "16M", image.to_str().unwrap()]);
        run("mkfs.ext4", &["-q", "-m", "0", image.to_str().unwrap()]);
        Disk::attach(image)
    }

    pub async fn look(&self, subject: &Subject) -> Vec<Seen> {
        let view = self.gatherer.gather(std::slice::from_ref(subject)).await;
        probes::passive(&view, subject)
    }

    /// As the agent sees a volume first.
    pub async fn first(&self, mut subject: Subject) -> Subject {
        let view = self.gatherer.gather(std::slice::from_ref(&subject)).await;
        subject.baseline = probes::baseline(&view, &subject);
        assert!(subject.baseline.is_some(), "{subject:?}: {view:#?}");
        subject
    }

    /// Looks until this is wrong: what the kernel finds it may write down a moment later.
    pub async fn until_wrong(&self, subject: &Subject, expected: &[(Check, &str)]) {
        let end = Instant::now() + PATIENCE;
        loop {
            let seen = self.look(subject).await;
            if wrong(&seen) == expected {
                return;
            }
            assert!(Instant::now() < end, "not {expected:?}: {seen:#?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub async fn probe(&self, subject: &Subject) -> Vec<Seen> {
        let view = self.gatherer.gather(std::slice::from_ref(subject)).await;
        self.ask(&view, subject).await
    }

    /// Asks with what was gathered for all: as the agent does, which gathers once and asks side by side.
    pub async fn ask(&self, view: &HostView, subject: &Subject) -> Vec<Seen> {
        let mode = |check: Check| self.modes.get(&check).copied().unwrap_or_else(|| check.default_mode());
        self.prober.probe(view, subject, mode).await
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let below = |line: &&str| line.split(' ').nth(4).unwrap().starts_with(self.root.to_str().unwrap());
        for line in mounts.lines().rev().filter(below) {
            let _ = rustix::mount::unmount(line.split(' ').nth(4).unwrap(), UnmountFlags::DETACH);
        }
    }
}

/// A file as a disk.
pub struct Disk {
    pub image: PathBuf,
    pub device: PathBuf,
}

impl Disk {
    pub fn attach(image: PathBuf) -> Self {
        let device = run("losetup", &["--find", "--show", image.to_str().unwrap()]);
        Self { image, device: device.trim().into() }
    }

    pub fn name(&self) -> &str {
        self.device.file_name().unwrap().to_str().unwrap()
    }

    pub fn mount(&self, at: &Path, options: &str) {
        run("mount", &["-t", "ext4", "-o", options, self.device.to_str().unwrap(), at.to_str().unwrap()]);
    }

    /// Makes the file system believe that it has found an error.
    pub fn break_file_system(&self) {
        fs::write(format!("/sys/fs/ext4/{}/trigger_fs_error", self.name()), "made by a test").unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).status();
    }
}

pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

pub fn unmount(path: &Path) {
    rustix::mount::unmount(path, UnmountFlags::empty()).unwrap();
}

pub fn subject(kind: Kind) -> Subject {
    Subject {
        name: "pv-1".into(),
        kind,
        block: false,
        fs_type: String::new(),
        read_only: false,
        capacity: 0,
        expected: Vec::new(),
        device: None,
        baseline: None,
    }
}

pub fn local(path: &Path) -> Subject {
    subject(Kind::Local { path: path.to_str().unwrap().into() })
}

pub fn staged(path: &Path) -> Expected {
    Expected { path: path.to_str().unwrap().into(), kind: ExpectedKind::Staging }
}

pub fn target(path: &Path, pod: &str) -> Expected {
    Expected { path: path.to_str().unwrap().into(), kind: ExpectedKind::Target { pod: pod.into() } }
}

/// What is wrong: checks and reasons. No check is told twice.
pub fn wrong(seen: &[Seen]) -> Vec<(Check, &'static str)> {
    let mut checks: Vec<_> = seen.iter().map(|one| one.check).collect();
    checks.sort();
    checks.dedup();
    assert_eq!(checks.len(), seen.len(), "a check is told twice: {seen:#?}");
    let reason = |one: &Seen| match &one.sample {
        Sample::Bad(trouble) | Sample::NoAnswer(trouble) => Some((one.check, trouble.reason)),
        Sample::Good | Sample::Unknown => None,
    };
    let mut found: Vec<_> = seen.iter().filter_map(reason).collect();
    found.sort();
    found
}

/// Which checks were looked at and are good; none is unknown.
pub fn good(seen: &[Seen]) -> Vec<Check> {
    assert!(seen.iter().all(|one| one.sample == Sample::Good), "{seen:#?}");
    let mut checks: Vec<_> = seen.iter().map(|one| one.check).collect();
    checks.sort();
    checks
}

pub const NONE: [(Check, &str); 0] = [];
