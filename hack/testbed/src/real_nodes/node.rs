//! One real node: boots, breaks and heals.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use rustix::process::Signal as Unix;
use tokio::sync::Mutex;

use super::command::{InNamespaces, run};
use super::error::RealNodeError;
use super::faults::{Fault, NodeProgram};
use super::machine::{Hardware, Machine, inner_program, signal};
use super::network::{Link, NodeNetwork};
use super::settings::CONTAINERD_SOCKET;
use crate::process::{Process, Signal, log_tail};

const POLL: Duration = Duration::from_millis(50);
/// A loaded machine needs more than the usual second.
const CONTAINERD_DEADLINE: Duration = Duration::from_secs(60);
/// How long a node may take until it is Ready. A loaded machine needs more than the usual ten seconds.
const READY_DEADLINE: Duration = Duration::from_secs(120);

/// What stays the same about a node however often it boots.
pub(super) struct Built {
    pub name: String,
    pub number: u8,
    pub network: Arc<NodeNetwork>,
    /// The node's root file system on the host, without its mounts.
    pub disk: PathBuf,
    pub logs: PathBuf,
    /// The control group of all that the node runs.
    pub group: String,
    /// Upstream programs.
    pub programs: Vec<PathBuf>,
    pub args: BTreeMap<NodeProgram, Vec<String>>,
    /// The image of a pod's first process.
    pub pause: PathBuf,
    pub client: Client,
}

/// What changes.
#[derive(Default)]
pub(super) struct State {
    boot_id: String,
    machine: Option<Machine>,
    programs: BTreeMap<NodeProgram, Process>,
    faults: BTreeSet<Fault>,
}

/// One real node. Cheap to clone; all clones are the same node.
#[derive(Clone)]
pub struct RealNode {
    built: Arc<Built>,
    state: Arc<Mutex<State>>,
}

impl RealNode {
    pub(super) fn new(built: Built) -> Self {
        Self { built: Arc::new(built), state: Arc::default() }
    }

    /// The name of its Node object.
    pub fn name(&self) -> &str {
        &self.built.name
    }

    pub(super) fn number(&self) -> u8 {
        self.built.number
    }

    /// Its address in the control network, which the Node object shows.
    pub fn control_address(&self) -> std::net::Ipv4Addr {
        self.built.network.node_address(Link::Control, self.built.number)
    }

    /// Its address in the storage network.
    pub fn storage_address(&self) -> std::net::Ipv4Addr {
        self.built.network.node_address(Link::Storage, self.built.number)
    }

    /// Its disk, seen from the host: the root file system without what is mounted in it, kept over a reboot.
    pub fn disk(&self) -> &Path {
        &self.built.disk
    }

    /// Its file system as its own processes see it, mounts included, seen from the host. Another one after a reboot.
    /// Touching what a frozen FUSE server serves hangs.
    ///
    /// # Errors
    /// When the node is off.
    pub async fn root(&self) -> Result<PathBuf, RealNodeError> {
        Ok(self.machine(&*self.state.lock().await)?.root())
    }

    /// The boot id of its present or last boot, which its kubelet reports, and which stands in `/run/testbed/boot_id`.
    pub async fn boot_id(&self) -> String {
        self.state.lock().await.boot_id.clone()
    }

    /// The host's numbers of all its processes, those in containers too.
    pub async fn processes(&self) -> BTreeSet<i32> {
        self.state.lock().await.machine.as_ref().map(Machine::processes).unwrap_or_default()
    }

    /// The faults it has now.
    pub async fn faults(&self) -> BTreeSet<Fault> {
        self.state.lock().await.faults.clone()
    }

    /// Runs a program inside the node, not in a container, and returns when it has ended. The node has the host's `/usr`, and
    /// the upstream programs in its PATH. Killed when the returned future is dropped.
    ///
    /// # Errors
    /// When the node is off or the program cannot be started; not when it fails.
    pub async fn exec(&self, argv: &[&str]) -> Result<Output, RealNodeError> {
        let inside = self.machine(&*self.state.lock().await)?.inside();
        let (program, args) = argv.split_first().map_or(("true", [].as_slice()), |(first, rest)| (*first, rest));
        let mut command = inside.command(program, args);
        command.stdin(std::process::Stdio::null());
        let failed =
            |error: std::io::Error| RealNodeError::Command { command: argv.join(" "), message: error.to_string() };
        command.output().await.map_err(failed)
    }

    /// Sends a signal to every process of this program, those in containers too. Frozen so, it is no [`Fault`]: who stops it
    /// lets it go on.
    ///
    /// # Errors
    /// When the node is off, or no such program runs there.
    pub async fn signal(&self, program: &str, signal: Signal) -> Result<(), RealNodeError> {
        match self.machine(&*self.state.lock().await)?.signal_program(program, signal) {
            0 => Err(RealNodeError::NotRunning { node: self.built.name.clone(), program: program.to_owned() }),
            _ => Ok(()),
        }
    }

    /// Puts an image archive (see [`crate::image`]) into the node's containerd.
    ///
    /// # Errors
    /// When the node is off, or its containerd refuses the image or does not run.
    pub async fn import_image(&self, archive: &Path) -> Result<(), RealNodeError> {
        let inside = self.machine(&*self.state.lock().await)?.inside();
        import(&inside, archive).await
    }

    /// Breaks something. What is broken already stays so.
    ///
    /// # Errors
    /// When the machine refuses it.
    pub async fn fault(&self, fault: Fault) -> Result<(), RealNodeError> {
        let mut state = self.state.lock().await;
        if !state.faults.insert(fault) {
            return Ok(());
        }
        match fault {
            Fault::Kill(program) => kill(&mut state, program).await,
            Fault::KillEverything => power_off(&mut state).await,
            _ => self.settle(&state, fault).await?,
        }
        Ok(())
    }

    /// Mends something. A program that was killed is started; a node whose power was off boots.
    ///
    /// # Errors
    /// When a program does not start.
    pub async fn heal(&self, fault: Fault) -> Result<(), RealNodeError> {
        let mut state = self.state.lock().await;
        if !state.faults.remove(&fault) {
            return Ok(());
        }
        match fault {
            Fault::Kill(_) if state.machine.is_none() => Ok(()),
            Fault::Kill(program) => self.start(&mut state, program).await,
            Fault::KillEverything => self.boot(&mut state).await,
            _ => self.settle(&state, fault).await,
        }
    }

    /// Mends all that is broken.
    ///
    /// # Errors
    /// As [`RealNode::heal`].
    pub async fn heal_all(&self) -> Result<(), RealNodeError> {
        // In the order of the faults: links first, then the programs in the order of their start, power last.
        for fault in self.faults().await {
            self.heal(fault).await?;
        }
        Ok(())
    }

    /// Power off and on: no process, no mount and nothing of `/run` is left, and the boot id is a new one; the disk is kept.
    /// Links that are cut stay cut; all other faults are healed by it. Returns when its programs run.
    ///
    /// # Errors
    /// When a program does not start.
    pub async fn reboot(&self) -> Result<(), RealNodeError> {
        let mut state = self.state.lock().await;
        power_off(&mut state).await;
        self.boot(&mut state).await
    }

    /// Waits until the API server shows it as Ready, with its present boot id.
    ///
    /// # Errors
    /// When it does not get there, or one of its programs ends.
    pub async fn wait_ready(&self) -> Result<(), RealNodeError> {
        let nodes: Api<Node> = Api::all(self.built.client.clone());
        let started = Instant::now();
        loop {
            let boot_id = {
                let mut state = self.state.lock().await;
                state.programs.values_mut().try_for_each(Process::ensure_running)?;
                state.boot_id.clone()
            };
            // An API server that is busy or away for a moment is waited for too.
            let seen = nodes.get_opt(self.name()).await;
            if seen.is_ok_and(|node| node.is_some_and(|node| is_ready(&node, &boot_id))) {
                return Ok(());
            }
            if started.elapsed() > READY_DEADLINE {
                return Err(self.late("it is Ready", READY_DEADLINE, NodeProgram::Kubelet));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Boots it for the first time.
    pub(super) async fn power_on(&self) -> Result<(), RealNodeError> {
        self.boot(&mut *self.state.lock().await).await
    }

    /// Takes its power for good.
    pub(super) async fn power_off(&self) {
        power_off(&mut *self.state.lock().await).await;
    }

    async fn boot(&self, state: &mut State) -> Result<(), RealNodeError> {
        let built = &self.built;
        let path = Path::new("/proc/sys/kernel/random/uuid");
        let id = fs::read_to_string(path).map_err(|source| RealNodeError::File { path: path.to_owned(), source })?;
        id.trim().clone_into(&mut state.boot_id);
        let machine = Machine::boot(&Hardware {
            name: &built.name,
            group: &built.group,
            disk: &built.disk,
            boot_id: &state.boot_id,
            programs: &built.programs,
            logs: &built.logs,
        })
        .await?;
        let init = machine.init();
        state.machine = Some(machine);
        // Only what is not in the machine is as it was before.
        state.faults.retain(|fault| matches!(fault, Fault::CutControl | Fault::CutStorage));
        built.network.connect(built.number, init).await?;
        self.settle_links(state).await?;
        for program in NodeProgram::ALL {
            self.start(state, program).await?;
        }
        Ok(())
    }

    async fn start(&self, state: &mut State, program: NodeProgram) -> Result<(), RealNodeError> {
        let args = self.built.args.get(&program).cloned().unwrap_or_default();
        let process = self.machine(state)?.start(program.name(), args)?;
        state.programs.insert(program, process);
        if program == NodeProgram::Containerd {
            self.containerd_answers(state).await?;
        }
        Ok(())
    }

    /// Waits for containerd, and gives it the one image that it cannot do without.
    async fn containerd_answers(&self, state: &mut State) -> Result<(), RealNodeError> {
        let started = Instant::now();
        let socket = self.machine(state)?.root().join(CONTAINERD_SOCKET.trim_start_matches('/'));
        while tokio::net::UnixStream::connect(&socket).await.is_err() {
            state.programs.values_mut().try_for_each(Process::ensure_running)?;
            if started.elapsed() > CONTAINERD_DEADLINE {
                return Err(self.late("containerd answers", CONTAINERD_DEADLINE, NodeProgram::Containerd));
            }
            tokio::time::sleep(POLL).await;
        }
        let inside = self.machine(state)?.inside();
        let images = run(&inside, "ctr", ["--namespace=k8s.io", "images", "list", "--quiet"], "").await?;
        if images.lines().any(|image| image == super::settings::PAUSE_IMAGE) {
            return Ok(());
        }
        import(&inside, &self.built.pause).await
    }

    /// Links and processes become as the faults say, as far as this one is about them.
    async fn settle(&self, state: &State, fault: Fault) -> Result<(), RealNodeError> {
        match fault {
            Fault::CutControl | Fault::CutStorage => self.settle_links(state).await?,
            Fault::LossyControl | Fault::LossyStorage => self.settle_losses(state).await?,
            Fault::Freeze(_) | Fault::FreezeEverything => settle_frozen(state).await,
            Fault::Kill(_) | Fault::KillEverything => {}
        }
        Ok(())
    }

    async fn settle_links(&self, state: &State) -> Result<(), RealNodeError> {
        if state.machine.is_none() {
            return Ok(());
        }
        let links = [(Link::Control, Fault::CutControl), (Link::Storage, Fault::CutStorage)];
        for (link, cut) in links {
            self.built.network.set_link(link, self.built.number, !state.faults.contains(&cut)).await?;
        }
        Ok(())
    }

    async fn settle_losses(&self, state: &State) -> Result<(), RealNodeError> {
        let Some(machine) = &state.machine else { return Ok(()) };
        for (link, lossy) in [(Link::Control, Fault::LossyControl), (Link::Storage, Fault::LossyStorage)] {
            self.built.network.set_lossy(link, machine.init(), state.faults.contains(&lossy)).await?;
        }
        Ok(())
    }

    fn machine<'a>(&self, state: &'a State) -> Result<&'a Machine, RealNodeError> {
        state.machine.as_ref().ok_or_else(|| RealNodeError::Off(self.built.name.clone()))
    }

    fn late(&self, what: &'static str, limit: Duration, program: NodeProgram) -> RealNodeError {
        let log = self.built.logs.join(format!("{}-{}.log", self.built.name, program.name()));
        RealNodeError::Timeout { node: self.built.name.clone(), what, limit, tail: log_tail(&log, 15) }
    }
}

async fn import(inside: &InNamespaces, archive: &Path) -> Result<(), RealNodeError> {
    let failed = |message: String| RealNodeError::Command {
        command: format!("ctr images import {}", archive.display()),
        message,
    };
    let file = fs::File::open(archive).map_err(|source| RealNodeError::File { path: archive.to_owned(), source })?;
    let mut command = inside.command("ctr", ["--namespace=k8s.io", "images", "import", "-"]);
    command.stdin(file);
    let output = command.output().await.map_err(|error| failed(error.to_string()))?;
    if output.status.success() { Ok(()) } else { Err(failed(String::from_utf8_lossy(&output.stderr).into_owned())) }
}

/// Stops and continues processes until all are as the faults say.
async fn settle_frozen(state: &State) {
    let Some(machine) = &state.machine else { return };
    let frozen: BTreeSet<i32> = state
        .programs
        .iter()
        .filter(|(program, _)| state.faults.contains(&Fault::Freeze(**program)))
        .filter_map(|(_, process)| inner_program(process))
        .collect();
    let mut known = BTreeSet::new();
    loop {
        let present = machine.processes();
        for process in present.difference(&known) {
            let stop = state.faults.contains(&Fault::FreezeEverything) || frozen.contains(process);
            signal(*process, if stop { Unix::STOP } else { Unix::CONT });
        }
        // One that was running a moment ago may have started another.
        if present.is_subset(&known) {
            return;
        }
        known.extend(present);
    }
}

async fn kill(state: &mut State, program: NodeProgram) {
    if let Some(process) = state.programs.remove(&program) {
        if let Some(inner) = inner_program(&process) {
            signal(inner, Unix::KILL);
        }
        process.kill().await;
    }
}

async fn power_off(state: &mut State) {
    if let Some(machine) = state.machine.take() {
        machine.power_off().await;
    }
    for (_, process) in std::mem::take(&mut state.programs) {
        process.kill().await;
    }
}

fn is_ready(node: &Node, boot_id: &str) -> bool {
    let Some(status) = &node.status else { return false };
    let booted = status.node_info.as_ref().is_some_and(|info| info.boot_id == boot_id);
    let ready = |condition: &k8s_openapi::api::core::v1::NodeCondition| {
        condition.type_ == "Ready" && condition.status == "True"
    };
    booted && status.conditions.iter().flatten().any(ready)
}
