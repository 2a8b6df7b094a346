//! `bulkhead-s3-csi`: the CSI plugin of the S3 driver, on a node or beside the provisioner.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bulkhead::api::s3::MOUNTPOINT_NAMESPACE;
use bulkhead::csi::client::socket_path;
use bulkhead::error::{Error, Result};
use bulkhead::runtime::program::{self, Flags};
use bulkhead::s3::controller_service;
use bulkhead::s3::keys::Keys;
use bulkhead::s3::node_service::{self, Parts, Settings, probe};
use clap::{Parser, ValueEnum};

const _: () = assert!(
    cfg!(debug_assertions) || !bulkhead::mutants::ARE_BUILT_IN,
    "the feature `mutants` is for tests: build the programs with `--package bulkhead`, not with the whole workspace"
);

/// What is handed on to mount-s3 as it is.
const PASSED_ON: [&str; 2] = ["AWS_REGION", "AWS_ENDPOINT_URL"];

/// Which part of the driver it is.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// The node plugin: mounts.
    Node,
    /// The controller plugin: creates and deletes buckets.
    Controller,
}

/// The CSI plugin of the S3 driver.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    common: Flags,
    /// Which part of the driver it is.
    #[arg(long, env = "BULKHEAD_S3_MODE", value_enum, default_value = "node")]
    mode: Mode,
    /// Socket of the services, as the kubelet sees it.
    #[arg(long, env = "CSI_ENDPOINT", default_value = "unix:///var/lib/kubelet/plugins/s3.csi.scality.com/csi.sock")]
    endpoint: String,
    /// Id of the node for the driver: its name.
    #[arg(long, env = "CSI_NODE_NAME", default_value = "")]
    node_id: String,
    /// Name of the node; the same as its id when not given.
    #[arg(long, env = "NODE_NAME", default_value = "")]
    node_name: String,
    /// The kubelet's root folder, as it was told to the kubelet.
    #[arg(long, env = "KUBELET_PATH", default_value = "/var/lib/kubelet")]
    kubelet_path: String,
    /// Namespace of Mountpoint Pods.
    #[arg(long, env = "MOUNTPOINT_NAMESPACE", default_value = MOUNTPOINT_NAMESPACE)]
    mountpoint_namespace: String,
    /// Whether the kubelet is told of the plugin. false where a node-driver-registrar does that.
    #[arg(long, env = "BULKHEAD_S3_REGISTER", default_value_t = true, action = clap::ArgAction::Set)]
    register: bool,
    /// How many volumes of the driver the scheduler may bring to the node. Without it, as many as it likes.
    #[arg(long, env = "BULKHEAD_S3_MAX_VOLUMES_PER_NODE")]
    max_volumes_per_node: Option<i64>,
    /// How long a call waits for the Mountpoint Pod to run, before it says what that waits for.
    #[arg(long, env = "BULKHEAD_S3_POD_TIMEOUT", default_value = "30s", value_parser = duration)]
    pod_timeout: Duration,
    /// How long mount-s3 may take until its mount answers.
    #[arg(long, env = "BULKHEAD_S3_MOUNT_TIMEOUT", default_value = "30s", value_parser = duration)]
    mount_timeout: Duration,
    /// For `--mode=controller`.
    #[command(flatten)]
    controller: controller_service::Args,
}

fn duration(text: &str) -> std::result::Result<Duration, String> {
    bulkhead::api::time::Duration::try_from(text.to_owned())
        .map(|duration| duration.get())
        .map_err(|error| error.to_string())
}

fn main() -> ExitCode {
    if std::env::args().nth(1).is_some_and(|first| first == probe::CHILD) {
        return probe::main();
    }
    let cli = Cli::parse();
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(run(cli)).unwrap_or_else(|error| program::failed(&error)),
        Err(source) => program::failed(&Error::Io { context: "the asynchronous runtime".into(), source }),
    }
}

async fn run(cli: Cli) -> Result<ExitCode> {
    match cli.mode {
        Mode::Node => node(cli).await,
        Mode::Controller => controller(cli).await,
    }
}

async fn controller(cli: Cli) -> Result<ExitCode> {
    let settings = cli.controller.clone().settings(socket(&cli)?)?;
    let program = cli.common.serve("bulkhead-s3-csi").await?.without_lease();
    let cancel = program.cancel.clone();
    if cli.controller.log_cleanup {
        let (watches, telemetry, cancel) = (program.clients.watches.clone(), program.telemetry.clone(), cancel.clone());
        tokio::spawn(async move { controller_service::cleanup::log(&watches, &telemetry, cancel).await });
    }
    let mut failure = None;
    let ended = program.run(async { failure = controller_service::serve(settings, cancel).await.err() }).await;
    failure.map_or(Ok(ended), Err)
}

fn socket(cli: &Cli) -> Result<PathBuf> {
    socket_path(&cli.endpoint).map_err(|error| Error::Invalid(error.to_string()))
}

async fn node(cli: Cli) -> Result<ExitCode> {
    let settings = settings(&cli)?;
    let program = cli.common.serve("bulkhead-s3-csi").await?.without_lease();
    let parts = Parts {
        clients: program.clients.clone(),
        writer: program.writer.clone(),
        events: program.events.clone(),
        telemetry: program.telemetry.clone(),
        health: program.health.clone(),
        cancel: program.cancel.clone(),
        program: PathBuf::from("/proc/self/exe"),
    };
    let mut failure = None;
    let ended = program.run(async { failure = node_service::run(settings, parts).await.err() }).await;
    match failure {
        Some(error) => Err(error),
        None => Ok(ended),
    }
}

fn settings(cli: &Cli) -> Result<Settings> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let named = |name: &str, other: &str| if name.is_empty() { other.to_owned() } else { name.to_owned() };
    let node_name = named(&cli.node_name, &cli.node_id);
    if node_name.is_empty() {
        return Err(Error::Invalid("the name of the node is missing: set --node-id or CSI_NODE_NAME".into()));
    }
    let passed_on = PASSED_ON.iter().filter_map(|name| Some(((*name).to_owned(), variable(name)?)));
    Ok(Settings {
        node_id: named(&cli.node_id, &node_name),
        node_name,
        kubelet_root: cli.kubelet_path.trim_end_matches('/').to_owned(),
        socket: socket(cli)?,
        registers: cli.register,
        mountpoint_namespace: cli.mountpoint_namespace.clone(),
        volumes_max: cli.max_volumes_per_node,
        patience: cli.pod_timeout,
        mount_patience: cli.mount_timeout,
        keys: Keys::of_environment(variable).map_err(Error::Invalid)?,
        environment: passed_on.collect::<BTreeMap<_, _>>(),
    })
}
