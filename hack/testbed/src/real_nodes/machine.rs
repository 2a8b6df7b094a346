//! One boot of a real node: its namespaces, which its first process (`init.sh`) keeps, and the processes in them. Knows
//! nothing of Kubernetes.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal as Unix, kill_process};

use super::command::{HOST, InNamespaces, PATH, run};
use super::error::RealNodeError;
use crate::process::{Launch, Process, Signal};

const INIT: &str = include_str!("init.sh");
/// Enters the node's control groups, so that all that it becomes and starts can be found.
const JOIN: &str = include_str!("join.sh");
/// Names the loop devices of a control group, and ends its FUSE connections.
const REMAINS: &str = concat!(include_str!("remains.sh"), "\nloops_of \"$1\"\nabort_fuse_of \"$1\"\n");
const NAMESPACES: [&str; 5] = ["--mount", "--net", "--pid", "--uts", "--ipc"];
const BOOT_DEADLINE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);
/// So much of a program's name the kernel keeps.
const NAME_MAX: usize = 15;

/// What a machine is made from.
pub(super) struct Hardware<'a> {
    pub name: &'a str,
    /// The control group of all its processes. To the node it is the root.
    pub group: &'a str,
    /// Its root file system.
    pub disk: &'a Path,
    pub boot_id: &'a str,
    /// Upstream programs, at `/opt/programs` in the node.
    pub programs: &'a [PathBuf],
    /// The folder of logs.
    pub logs: &'a Path,
}

/// A node that is on.
#[derive(Debug)]
pub(super) struct Machine {
    init: i32,
    group: String,
    logs: PathBuf,
    name: String,
    process: Process,
}

impl Machine {
    /// Boots it.
    pub(super) async fn boot(hardware: &Hardware<'_>) -> Result<Self, RealNodeError> {
        // First the control group that the node takes for the root, then the one beside its containers'.
        let programs = programs_group(hardware.group);
        let mut words =
            ["unshare", "--cgroup", "sh", "-c", JOIN, "join", &programs, "unshare"].map(str::to_owned).to_vec();
        words.extend(NAMESPACES.map(str::to_owned));
        words.extend(
            ["--fork", "--kill-child", "--propagation", "private", "sh", "-c", INIT, "init"].map(str::to_owned),
        );
        words.extend([hardware.disk.display().to_string(), hardware.name.to_owned(), hardware.boot_id.to_owned()]);
        words.push(hardware.group.to_owned());
        words.extend(hardware.programs.iter().map(|program| program.display().to_string()));
        let launch = launch(hardware.name, "init", hardware.group, hardware.logs, words);
        let process = Process::spawn(launch)?;
        let mut machine = Self {
            init: 0,
            group: hardware.group.to_owned(),
            logs: hardware.logs.to_owned(),
            name: hardware.name.to_owned(),
            process,
        };
        let started = Instant::now();
        while !machine.has_booted() {
            machine.process.ensure_running()?;
            if started.elapsed() > BOOT_DEADLINE {
                return Err(RealNodeError::Timeout {
                    node: machine.name.clone(),
                    what: "it has booted",
                    limit: BOOT_DEADLINE,
                    tail: machine.process.log_tail(),
                });
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(machine)
    }

    fn has_booted(&mut self) -> bool {
        let Some(init) = program_of(&self.process).and_then(first_child) else { return false };
        self.init = init;
        // The node's own /run; the host has no such file.
        self.root().join("run/testbed/booted").exists()
    }

    /// The host's number of its first process.
    pub(super) fn init(&self) -> i32 {
        self.init
    }

    /// The node's file system, its mounts included, seen from the host.
    pub(super) fn root(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.init))
    }

    /// Inside the node.
    pub(super) fn inside(&self) -> InNamespaces {
        InNamespaces::node(self.init)
    }

    /// Starts a program inside the node.
    pub(super) fn start(&self, program: &str, args: Vec<String>) -> Result<Process, RealNodeError> {
        let mut words = self.inside().prefix();
        words.push(program.to_owned());
        words.extend(args);
        Ok(Process::spawn(launch(&self.name, program, &programs_group(&self.group), &self.logs, words))?)
    }

    /// All its processes, those in containers too.
    pub(super) fn processes(&self) -> BTreeSet<i32> {
        members(&self.group)
    }

    /// Sends a signal to every process of this program, and tells how many there are.
    pub(super) fn signal_program(&self, program: &str, sent: Signal) -> usize {
        let name = program.get(..NAME_MAX).unwrap_or(program);
        let comm = |process: &i32| fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
        let found: Vec<_> = self.processes().into_iter().filter(|process| comm(process).trim_end() == name).collect();
        found.iter().for_each(|process| signal(*process, unix(sent)));
        found.len()
    }

    /// Ends all its processes, and with them its namespaces, its mounts and its loop devices.
    pub(super) async fn power_off(mut self) {
        let loops = run(&HOST, "sh", ["-c", REMAINS, "loops", &self.group], "").await.unwrap_or_default();
        self.end_processes().await;
        for device in loops.lines() {
            // It may have gone with its last user.
            let _ = run(&HOST, "losetup", ["--detach", device], "").await;
        }
    }

    async fn end_processes(&mut self) {
        let started = Instant::now();
        // An error means that it has ended by itself.
        let _ = self.process.signal(Signal::Kill);
        self.process.ended_by_itself().await;
        while started.elapsed() < BOOT_DEADLINE {
            let left = members(&self.group);
            if left.is_empty() {
                return groups(&self.group).iter().for_each(|group| remove_group(group));
            }
            for process in left {
                signal(process, Unix::KILL);
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

/// Where the node's own programs are, beside its containers: a control group has either processes or groups in it.
fn programs_group(node: &str) -> String {
    format!("{node}/programs")
}

fn launch(node: &str, program: &str, group: &str, logs: &Path, words: Vec<String>) -> Launch {
    let args = ["-c", JOIN, "join", group].map(str::to_owned).into_iter().chain(words);
    Launch {
        name: format!("{node}'s {program}"),
        program: "sh".into(),
        args: args.map(Into::into).collect(),
        env: vec![("PATH".into(), PATH.into())],
        log: logs.join(format!("{node}-{program}.log")),
    }
}

/// The program that was started inside a node: the child of the nsenter that is the process's own program.
pub(super) fn inner_program(process: &Process) -> Option<i32> {
    program_of(process).and_then(first_child)
}

fn unix(signal: Signal) -> Unix {
    match signal {
        Signal::Stop => Unix::STOP,
        Signal::Continue => Unix::CONT,
        Signal::Terminate => Unix::TERM,
        Signal::Kill => Unix::KILL,
    }
}

/// Sends a signal; that there is no such process any more is no error.
pub(super) fn signal(process: i32, signal: Unix) {
    if let Some(pid) = Pid::from_raw(process) {
        let _ = kill_process(pid, signal);
    }
}

fn program_of(process: &Process) -> Option<i32> {
    first_child(i32::try_from(process.supervisor()).ok()?)
}

fn first_child(process: i32) -> Option<i32> {
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// The folders of a control group, one per hierarchy.
fn groups(group: &str) -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let hierarchies = fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
    hierarchies.chain([root.to_owned()]).map(|hierarchy| hierarchy.join(group)).filter(|path| path.is_dir()).collect()
}

/// The processes in a control group and those below, in whichever hierarchy.
fn members(group: &str) -> BTreeSet<i32> {
    let mut found = BTreeSet::new();
    for group in groups(group) {
        collect_members(&group, &mut found);
    }
    found
}

fn collect_members(group: &Path, found: &mut BTreeSet<i32>) {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|process| *process != 0));
    for below in groups_below(group) {
        collect_members(&below, found);
    }
}

/// Removes an empty control group and those below. What cannot be removed is left to the guard.
fn remove_group(group: &Path) {
    groups_below(group).iter().for_each(|below| remove_group(below));
    let _ = fs::remove_dir(group);
}

fn groups_below(group: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}
