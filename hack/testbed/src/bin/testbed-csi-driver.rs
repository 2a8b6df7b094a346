//! `testbed-csi-driver`: the CSI driver of the test array, for nodes that are real. See `bulkhead_testbed::csi_driver`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bulkhead_testbed::csi_driver::{ControllerOptions, NodeHealth, NodeOptions, run_controller, run_node};
use clap::{Parser, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// The CSI driver of Bulkhead's test array.
#[derive(Parser)]
#[command(name = "testbed-csi-driver", version)]
struct Cli {
    /// What this process is
    #[arg(long, value_enum)]
    mode: Mode,
    /// Where to make the driver's socket
    #[arg(long, value_name = "PATH", default_value = "/csi/csi.sock")]
    csi_address: PathBuf,
    /// The array's management, on the control network
    #[arg(long, value_name = "IP:PORT", required_if_eq("mode", "controller"))]
    array_management: Option<SocketAddr>,
    /// The array's I/O, on the storage network
    #[arg(long, value_name = "IP:PORT", required_if_eq("mode", "node"))]
    array_io: Option<SocketAddr>,
    /// The CSI node id
    #[arg(long, value_name = "ID", env = "NODE_ID", required_if_eq("mode", "node"))]
    node_id: Option<String>,
    /// The CSI driver's name
    #[arg(long, value_name = "NAME", default_value = "array.testbed.bulkhead.dev")]
    driver_name: String,
    /// Seconds that an operation waits for the array until it is an I/O error
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    io_timeout: u64,
    /// What the node plugin says of its volumes' health
    #[arg(long, value_enum, default_value = "none")]
    health: NodeHealth,
    /// Register with the kubelet whose folder for plugins this is
    #[arg(long, value_name = "DIR")]
    plugins_registry: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Beside the sidecars
    Controller,
    /// On every node
    Node,
}

#[tokio::main]
async fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let cli = Cli::parse();
    let stop = CancellationToken::new();
    let served = match (cli.mode, cli.array_management, cli.array_io, cli.node_id) {
        (Mode::Controller, Some(management), _, _) => {
            let options = ControllerOptions { socket: cli.csi_address, management };
            until_told(run_controller(options, stop.clone()), &stop).await
        }
        (Mode::Node, _, Some(io), Some(node_id)) => {
            let options = NodeOptions {
                socket: cli.csi_address,
                driver_name: cli.driver_name,
                node_id,
                io,
                io_timeout: Duration::from_secs(cli.io_timeout),
                health: cli.health,
                registry: cli.plugins_registry,
            };
            until_told(run_node(options, stop.clone()), &stop).await
        }
        // clap has asked for what each mode needs.
        _ => Ok(()),
    };
    match served {
        // At once: a thread that waits for the array would hold up the end of the runtime.
        Ok(()) => std::process::exit(0),
        Err(error) => {
            tracing::error!(%error, "the driver failed");
            ExitCode::FAILURE
        }
    }
}

/// Serves until SIGTERM or SIGINT.
async fn until_told(
    serving: impl Future<Output = std::io::Result<()>>,
    stop: &CancellationToken,
) -> std::io::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let told = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.cancel();
        std::future::pending().await
    };
    tokio::select! {
        served = serving => served,
        () = told => Ok(()),
    }
}
