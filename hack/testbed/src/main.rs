//! `testbed`: a control plane for people, kept up until it is told to go.
//!
//! A running testbed is a process that holds the lock of `bulkhead/run/NAME.json` in the user's
//! cache folder. The file says how to reach it; the lock alone says that it lives.

mod node_commands;

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use bulkhead_testbed::binaries::{Binaries, BinariesError, Program, cache_folder};
use bulkhead_testbed::cluster::tutorial::SOCKET_VARIABLE;
use bulkhead_testbed::process::log_tail;
use bulkhead_testbed::real_nodes::{NodeNetwork, RealNodeError, remote};
use bulkhead_testbed::{Identity, Testbed, TestbedError, TestbedOptions};
use clap::{Args, Parser, Subcommand};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

const POLL: Duration = Duration::from_millis(50);
/// How long a testbed may take to end before it is killed, which ends its programs too.
const DOWN_DEADLINE: Duration = Duration::from_secs(20);

/// A real Kubernetes control plane on this machine.
#[derive(Parser)]
#[command(name = "testbed", version)]
struct Cli {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Start a testbed and print the line that points kubectl to it
    Up(Up),
    /// End a testbed and wait until all of it is gone
    Down {
        /// Its name
        #[arg(default_value = "default", value_parser = name)]
        name: String,
    },
    /// List the testbeds that run
    Status,
    /// Break or mend a real node: `testbed node node-1 cut-control`
    Node {
        #[command(flatten)]
        of: Of,
        /// The node's name
        node: String,
        /// cut-control, cut-storage, lossy-control, lossy-storage, freeze PROGRAM, kill PROGRAM, reboot, heal FAULT, or heal
        /// for all; PROGRAM is kubelet, containerd, kube-proxy or everything
        #[arg(required = true)]
        action: Vec<String>,
    },
    /// Play a script of lines such as `5s node-1 cut-control`, timed from its start
    Play {
        #[command(flatten)]
        of: Of,
        /// The script; `-` is the standard input
        script: PathBuf,
    },
    /// Put a container image into every real node
    Import {
        #[command(flatten)]
        of: Of,
        /// An archive as `docker save` and `cargo xtask images` write it
        archive: PathBuf,
    },
}

#[derive(Args)]
struct Of {
    /// The testbed's name
    #[arg(long = "testbed", value_name = "NAME", default_value = "default", value_parser = name)]
    testbed: String,
    /// The socket of a testbed that has no name: that of `hack/tutorial`, whose shell sets the variable
    #[arg(long, value_name = "PATH", env = SOCKET_VARIABLE)]
    socket: Option<PathBuf>,
}

#[derive(Args)]
struct Up {
    /// A name, for several testbeds side by side
    #[arg(default_value = "default", value_parser = name)]
    name: String,
    /// Stay in the foreground until Ctrl-C
    #[arg(long)]
    foreground: bool,
    /// A folder with built programs; those of another version are not used
    #[arg(long, value_name = "DIR")]
    binaries: Option<PathBuf>,
    /// Feature gates of all components, such as InPlacePodVerticalScaling=false
    #[arg(long, value_name = "GATE=BOOL", value_delimiter = ',', value_parser = feature_gate)]
    feature_gates: Vec<(String, bool)>,
    /// Seconds until a silent node becomes Ready=Unknown
    #[arg(long, value_name = "SECONDS", default_value_t = 50)]
    node_monitor_grace_period: u64,
    /// How many real nodes run in it, named node-1 and so on; needs Linux and root
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    real_nodes: u8,
    /// Leave the terminal; for the process that `up` starts itself
    #[arg(long, hide = true)]
    detached: bool,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    #[error(transparent)]
    Binaries(#[from] BinariesError),
    #[error(transparent)]
    RealNodes(#[from] RealNodeError),
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error("testbed {0} runs already: see `testbed status`, or end it with `testbed down {0}`")]
    Runs(String),
    #[error("no testbed {0} runs: see `testbed status`")]
    RunsNot(String),
    #[error("testbed {name} could not be started; its last output, from {log}:\n{tail}")]
    NotStarted { name: String, log: PathBuf, tail: String },
    #[error("cannot start: {0}")]
    Start(io::Error),
}

/// What a running testbed says about itself.
#[derive(Default, Serialize, Deserialize)]
struct State {
    pid: i32,
    /// Absent while it starts.
    kubeconfig: Option<PathBuf>,
}

/// The file of one testbed, which may or may not run.
struct StateFile {
    path: PathBuf,
    file: File,
}

impl StateFile {
    fn open(name: &str) -> Result<Self, Error> {
        let folder = run_folder()?;
        fs::create_dir_all(&folder).map_err(file_error(&folder))?;
        let path = folder.join(format!("{name}.json"));
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(file_error(&path))?;
        Ok(Self { path, file })
    }

    /// Whether this process now is the testbed of that name. A file that the last one removed
    /// between opening and locking says nothing to anyone, so it is opened again.
    fn lock(name: &str) -> Result<Self, Error> {
        loop {
            let opened = Self::open(name)?;
            if opened.file.try_lock().is_err() {
                return Err(Error::Runs(name.to_owned()));
            }
            let inode = |metadata: io::Result<fs::Metadata>| metadata.map(|m| m.ino()).ok();
            if inode(opened.file.metadata()) == inode(fs::metadata(&opened.path)) {
                return Ok(opened);
            }
        }
    }

    fn runs(&self) -> bool {
        match self.file.try_lock() {
            Ok(()) => {
                // Only looked: an error would leave it locked until this process ends.
                let _ = self.file.unlock();
                false
            }
            Err(_) => true,
        }
    }

    /// Empty while the testbed is just writing it.
    fn state(&mut self) -> State {
        let mut text = String::new();
        let read = self.file.rewind().and_then(|()| self.file.read_to_string(&mut text));
        match read {
            Ok(_) => serde_json::from_str(&text).unwrap_or_default(),
            Err(_) => State::default(),
        }
    }

    fn write(&mut self, state: &State) -> Result<(), Error> {
        let text = serde_json::to_string(state).unwrap_or_default();
        self.file
            .set_len(0)
            .and_then(|()| self.file.rewind())
            .and_then(|()| self.file.write_all(text.as_bytes()))
            .map_err(file_error(&self.path))
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Action::Up(up) if up.foreground => foreground(&up).await,
        Action::Up(up) => background(&up).await,
        Action::Down { name } => down(&name).await,
        Action::Status => status(),
        Action::Node { of, node, action } => node_commands::ask(&of, &format!("{node} {}", action.join(" "))).await,
        Action::Play { of, script } => node_commands::play(&of, &script).await,
        Action::Import { of, archive } => node_commands::import(&of, &archive).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("testbed: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a testbed until Ctrl-C, SIGTERM or, outside a terminal, `down`.
async fn foreground(up: &Up) -> Result<(), Error> {
    let mut state_file = StateFile::lock(&up.name)?;
    let path = state_file.path.clone();
    if up.detached {
        // Fails only for a process that leads a group already, which then is detached enough.
        let _ = rustix::process::setsid();
    }
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::Start)?;
    let mut hang_up = signal(SignalKind::hangup()).map_err(Error::Start)?;
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    state_file.write(&State { pid, kubeconfig: None })?;
    let mut options = TestbedOptions {
        binaries: up.binaries.clone(),
        feature_gates: up.feature_gates.iter().cloned().collect(),
        node_monitor_grace_period: Duration::from_secs(up.node_monitor_grace_period),
        ..TestbedOptions::default()
    };
    let socket = path.with_extension("socket");
    let run = async {
        let network = if up.real_nodes > 0 { Some(NodeNetwork::create().await?) } else { None };
        options.advertise_address = network.as_ref().map(NodeNetwork::host_control_address);
        let testbed = Testbed::start(options).await?;
        let nodes = match network {
            Some(network) => Some(node_commands::start(up, &testbed, network).await?),
            None => None,
        };
        let kubeconfig = testbed.kubeconfig(&Identity::Admin)?;
        println!("export KUBECONFIG={}", kubeconfig.display());
        state_file.write(&State { pid, kubeconfig: Some(kubeconfig) })?;
        // Until a signal drops this future and the testbed in it.
        match &nodes {
            Some(nodes) => Ok(remote::serve(nodes, &socket).await?),
            None => std::future::pending::<Result<(), Error>>().await,
        }
    };
    let done = tokio::select! {
        done = run => done,
        _ = tokio::signal::ctrl_c() => Ok(()),
        _ = terminate.recv() => Ok(()),
        _ = hang_up.recv() => Ok(()),
    };
    // There is none without real nodes.
    let _ = fs::remove_file(&socket);
    fs::remove_file(&path).map_err(file_error(&path))?;
    done
}

/// Starts this program again, detached, and returns when its testbed is ready.
async fn background(up: &Up) -> Result<(), Error> {
    let mut state_file = StateFile::open(&up.name)?;
    if state_file.runs() {
        return Err(Error::Runs(up.name.clone()));
    }
    // Here and not there, so that the person who waits sees what is built.
    Binaries::ensure(up.binaries.as_deref())?;
    if up.real_nodes > 0 {
        bulkhead_testbed::real_nodes::check()?;
        Binaries::ensure_all(up.binaries.as_deref(), &Program::REAL_NODES)?;
    }
    let log_path = state_file.path.with_extension("log");
    let log = File::create(&log_path).map_err(file_error(&log_path))?;
    let mut command = Command::new(std::env::current_exe().map_err(Error::Start)?);
    command.args(["up", &up.name, "--foreground", "--detached"]);
    command.arg(format!("--node-monitor-grace-period={}", up.node_monitor_grace_period));
    command.arg(format!("--real-nodes={}", up.real_nodes));
    for (gate, on) in &up.feature_gates {
        command.arg(format!("--feature-gates={gate}={on}"));
    }
    if let Some(folder) = &up.binaries {
        command.arg("--binaries").arg(folder);
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(file_error(&log_path))?)
        .stderr(log)
        .spawn()
        .map_err(Error::Start)?;
    let pid = i32::try_from(child.id()).unwrap_or_default();
    loop {
        let state = state_file.state();
        if let (true, Some(kubeconfig)) = (state.pid == pid, state.kubeconfig) {
            println!("export KUBECONFIG={}", kubeconfig.display());
            return Ok(());
        }
        if child.try_wait().map_err(Error::Start)?.is_some() {
            return Err(Error::NotStarted { name: up.name.clone(), tail: log_tail(&log_path, 20), log: log_path });
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn down(name: &str) -> Result<(), Error> {
    let mut state_file = StateFile::open(name)?;
    if !state_file.runs() {
        return Err(Error::RunsNot(name.to_owned()));
    }
    let started = Instant::now();
    let mut signalled = None;
    while state_file.runs() {
        let wanted = if started.elapsed() < DOWN_DEADLINE {
            rustix::process::Signal::TERM
        } else {
            rustix::process::Signal::KILL
        };
        let pid = rustix::process::Pid::from_raw(state_file.state().pid);
        if let (Some(pid), true) = (pid, signalled != Some(wanted)) {
            // An error means that it has just ended.
            let _ = rustix::process::kill_process(pid, wanted);
            signalled = Some(wanted);
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

fn status() -> Result<(), Error> {
    let folder = run_folder()?;
    let mut names: Vec<String> = fs::read_dir(&folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            name.strip_suffix(".json").map(str::to_owned)
        })
        .collect();
    names.sort();
    println!("{:<16} {:<9} {:<8} KUBECONFIG", "NAME", "STATE", "PID");
    for name in names {
        let mut state_file = StateFile::open(&name)?;
        if state_file.runs() {
            let state = state_file.state();
            let (word, kubeconfig) = match state.kubeconfig {
                Some(path) => ("ready", path.display().to_string()),
                None => ("starting", String::new()),
            };
            println!("{name:<16} {word:<9} {:<8} {kubeconfig}", state.pid);
        }
    }
    Ok(())
}

fn run_folder() -> Result<PathBuf, Error> {
    Ok(cache_folder()?.join("run"))
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { path, source }
}

/// Names become file names.
fn name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if !text.is_empty() && text.chars().all(plain) {
        Ok(text.to_owned())
    } else {
        Err("a name is made of letters, digits and dashes".to_owned())
    }
}

fn feature_gate(text: &str) -> Result<(String, bool), String> {
    text.split_once('=')
        .and_then(|(gate, on)| Some((gate.to_owned(), on.parse().ok()?)))
        .ok_or_else(|| format!("{text} is not of the form Gate=true or Gate=false"))
}
