//! `bulkhead-node-agent`: removes from its node what fenced pods left behind, and looks after its volumes.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bulkhead::api::node_volume_report::HeartbeatEndpoint;
use bulkhead::error::{Error, Result};
use bulkhead::heartbeat::metrics::AgentMetrics;
use bulkhead::heartbeat::sender::Surroundings;
use bulkhead::heartbeat::{announce, sender};
use bulkhead::node_agent::children::Children;
use bulkhead::node_agent::driver::Plugins;
use bulkhead::node_agent::metrics::Metrics;
use bulkhead::node_agent::self_fence::record::Record;
use bulkhead::node_agent::self_fence::{self, record};
use bulkhead::node_agent::{self, Context, Settings, VOLUMES_AT_ONCE, child, node_lock};
use bulkhead::runtime::clock::Clock;
use bulkhead::runtime::program::{self, Flags};
use bulkhead::runtime::random_unit;
use bulkhead::runtime::telemetry::Telemetry;
use clap::Parser;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const _: () = assert!(
    cfg!(debug_assertions) || !bulkhead::mutants::ARE_BUILT_IN,
    "the feature `mutants` is for tests: build the programs with `--package bulkhead`, not with the whole workspace"
);

/// Removes from its node what fenced pods left behind, looks after the health of its volumes, and reports both.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    common: Flags,
    /// Name of the node it runs on.
    #[arg(long, env = "BULKHEAD_NODE_NAME")]
    node_name: String,
    /// The kubelet's root folder, as it was told to the kubelet.
    #[arg(long, env = "BULKHEAD_KUBELET_ROOT", default_value = "/var/lib/kubelet")]
    kubelet_root: String,
    /// A process of the host, whose mounts, sockets and addresses are the node's. Needs hostPID.
    #[arg(long, env = "BULKHEAD_HOST_PROCESS", default_value = "/proc/1")]
    host_process: String,
    /// Where the kernel tells the boot id; it must be the one that the kubelet reports.
    #[arg(long, env = "BULKHEAD_BOOT_ID_FILE", default_value = "/proc/sys/kernel/random/boot_id")]
    boot_id_file: String,
    /// How long the kubelet may take to clean up after a pod is gone, before the agent does. No time when it is not Ready.
    #[arg(long, env = "BULKHEAD_KUBELET_PATIENCE", default_value = "3s", value_parser = duration)]
    kubelet_patience: Duration,
    /// How often the node is looked at again behind the watches, while it has a NodeFence.
    #[arg(long, env = "BULKHEAD_NODE_CHECK_INTERVAL", default_value = "30s", value_parser = duration)]
    node_check_interval: Duration,
    /// Deadline of a call to a CSI driver.
    #[arg(long, env = "BULKHEAD_CSI_TIMEOUT", default_value = "30s", value_parser = duration)]
    csi_timeout: Duration,
    /// Deadline of a look at what is left on the node.
    #[arg(long, env = "BULKHEAD_INVENTORY_TIMEOUT", default_value = "15s", value_parser = duration)]
    inventory_timeout: Duration,
    /// Address of this node at which the agents of other nodes reach it; from it heartbeats are sent to the controller.
    /// Without it there are none.
    #[arg(long, env = "BULKHEAD_HEARTBEAT_ADDRESS")]
    heartbeat_address: Option<IpAddr>,
    /// UDP port of the heartbeats, on the host network.
    #[arg(long, env = "BULKHEAD_HEARTBEAT_PORT", default_value = "9811", value_parser = clap::value_parser!(u16).range(1..))]
    heartbeat_port: u16,
    /// Socket of a CSI driver beside us, in addition to those that are registered with the kubelet.
    #[arg(long, env = "BULKHEAD_CSI_ADDRESS")]
    csi_address: Option<String>,
}

fn duration(text: &str) -> std::result::Result<Duration, String> {
    bulkhead::api::time::Duration::try_from(text.to_owned())
        .map(|duration| duration.get())
        .map_err(|error| error.to_string())
}

fn main() -> ExitCode {
    // A child works alone in another mount namespace, which a process with threads cannot enter.
    if std::env::args().nth(1).is_some_and(|first| first == child::CHILD) {
        return child::main(detach_loop);
    }
    let cli = Cli::parse();
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(run(cli)).unwrap_or_else(|error| program::failed(&error)),
        Err(source) => program::failed(&Error::Io { context: "the asynchronous runtime".into(), source }),
    }
}

async fn run(cli: Cli) -> Result<ExitCode> {
    if cli.host_process == "/proc/1" && std::process::id() == 1 {
        return Err(Error::Invalid("process 1 is the agent itself, not the host: set hostPID: true in its pod".into()));
    }
    let children = Children::new(PathBuf::from("/proc/self/exe"), cli.host_process.clone());
    let program = cli.common.serve("bulkhead-node-agent").await?.without_lease();
    let metrics = Metrics::register(&program.telemetry, children.clone());
    let plugins =
        Plugins { host: cli.host_process.clone(), kubelet_root: cli.kubelet_root.clone(), beside: cli.csi_address };
    let settings = Settings {
        node_name: cli.node_name,
        kubelet_root: cli.kubelet_root,
        host: cli.host_process,
        boot_id_file: cli.boot_id_file,
        kubelet_patience: cli.kubelet_patience,
        // Up to a quarter longer, so that many nodes do not ask together.
        check_interval: cli.node_check_interval.mul_f64(1.0 + random_unit() / 4.0),
        call_timeout: cli.csi_timeout,
        inventory_timeout: cli.inventory_timeout,
    };
    let cx = Context {
        settings: Arc::new(settings),
        plugins,
        children,
        clients: program.clients.clone(),
        writer: program.writer.clone(),
        events: program.events.clone(),
        metrics: metrics.clone(),
        clock: Clock::system(),
        turns: Arc::new(Semaphore::new(VOLUMES_AT_ONCE)),
        found: Arc::default(),
        heartbeat: None,
        self_fence: Arc::default(),
        health: Arc::default(),
    };
    let (telemetry, health, cancel) = (program.telemetry.clone(), program.health.clone(), program.cancel.clone());
    let heartbeat = cli.heartbeat_address.map(|address| SocketAddr::new(address, cli.heartbeat_port));
    let namespace = cli.common.namespace.clone();
    let work = async move {
        // A follower is ready: it would take over at once.
        let waiting = node_lock::hold(cx.settings.host.clone(), cx.settings.kubelet_root.clone(), health.gate("lock"));
        let Some(_held) = cancel.run_until_cancelled(waiting).await else { return };
        metrics.holds();
        tracing::info!(node = cx.settings.node_name, "this agent acts for the node");
        // Who starts while the API is away goes on with what an earlier process knew.
        let earlier = record::read(&cx.settings).await;
        let beating = match heartbeat {
            Some(at) => beat(at, &cx, namespace, &earlier, &telemetry, &cancel).await,
            None => None,
        };
        let (heartbeat, surroundings, beats) = match beating {
            Some((heartbeat, surroundings, beats)) => (Some(heartbeat), Some(surroundings), Some(beats)),
            None => (None, None, None),
        };
        let cx = Context { heartbeat, ..cx };
        node_agent::run(cx, (surroundings, earlier), &telemetry, &health, cancel).await;
        // Its last datagrams say good-bye.
        if let Some(beats) = beats {
            let _ = beats.await;
        }
    };
    Ok(program.run(work).await)
}

/// Begins to send heartbeats. A node whose agent cannot is as one without: nothing else waits for them.
async fn beat(
    at: SocketAddr,
    cx: &Context,
    namespace: String,
    earlier: &Record,
    telemetry: &Telemetry,
    cancel: &CancellationToken,
) -> Option<(HeartbeatEndpoint, watch::Receiver<Surroundings>, JoinHandle<()>)> {
    let config_maps = announce::informer(&cx.clients, &namespace).eager().spawn(cancel.clone(), telemetry);
    let source = sender::Source { config_maps, namespace };
    let acquaintance = self_fence::acquaintance(earlier);
    match sender::start(at, source, acquaintance, AgentMetrics::register(telemetry), cancel.clone()).await {
        Ok(started) => Some((started.endpoint, started.surroundings, tokio::spawn(started.work))),
        Err(error) => {
            tracing::warn!(%error, "no heartbeats are sent");
            None
        }
    }
}

/// LOOP_CLR_FD of `linux/loop.h`: takes the file away from a loop device.
const LOOP_CLR_FD: rustix::ioctl::Opcode = 0x4C01;

/// Detaches a loop device. The only call of the product that has no safe form.
#[allow(unsafe_code)]
fn detach_loop(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: LOOP_CLR_FD takes no argument and touches no memory of ours; on a file that is no loop device it fails.
    let called = unsafe { rustix::ioctl::ioctl(device, rustix::ioctl::NoArg::<LOOP_CLR_FD>::new()) };
    Ok(called?)
}
