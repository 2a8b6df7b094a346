//! `bulkhead-controller`: the controllers, as a leader-elected Deployment.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use bulkhead::api::time;
use bulkhead::controllers::{
    Context, Informers, ProviderStores, S3Stores, SharedVolumeStores, Stores, mountpoint_s3_pod_attachment, node_fence,
    resiliency_policy, shared_volume, shared_volume_provider, volume_health, volume_health_policy,
};
use bulkhead::error::{Error, Result};
use bulkhead::heartbeat::announce::Announcer;
use bulkhead::heartbeat::listener::Heartbeats;
use bulkhead::runtime::client::Clients;
use bulkhead::runtime::clock::Clock;
use bulkhead::runtime::installation;
use bulkhead::runtime::program::{self, Flags, Program};
use bulkhead::runtime::writer::Writer;
use bulkhead::scratch_volume::ScratchVolume;
use clap::Parser;

const _: () = assert!(
    cfg!(debug_assertions) || !bulkhead::mutants::ARE_BUILT_IN,
    "the feature `mutants` is for tests: build the programs with `--package bulkhead`, not with the whole workspace"
);

/// What a first list or a look at every pod needs for a moment is many times what is kept. glibc's heaps shrink only from their
/// end, where some small object always lies, so that most of it would stay with the process; this one gives unused pages back
/// wherever they are.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long `check` waits: longer than a rollout and the change of a leader take.
const CHECK_PATIENCE: Duration = Duration::from_secs(60);

/// Bulkhead's controllers: fence failed nodes, release their pods, clean up after them; know the health of volumes; mount S3
/// volumes in pods of their own; give NFS servers an address that survives failover.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    common: Flags,
    /// What to do instead of running the controllers.
    #[command(subcommand)]
    command: Option<Command>,
    /// Re-sync period of the CSI attachers: how long a detached node is watched for what comes back.
    #[arg(long, env = "BULKHEAD_ATTACHER_RESYNC_PERIOD", default_value = "60s")]
    attacher_resync_period: time::Duration,
    /// Longest time that the out-of-service taint may stay on a node.
    #[arg(long, env = "BULKHEAD_OUT_OF_SERVICE_MAX", default_value = "60s")]
    out_of_service_max: time::Duration,
    /// Address of this replica at which the node agents reach it with their heartbeats; in a pod, the pod's. Without it none
    /// are heard, and channel Agent is unknown.
    #[arg(long, env = "BULKHEAD_HEARTBEAT_ADDRESS")]
    heartbeat_address: Option<IpAddr>,
    /// UDP port of the heartbeats; 0 takes any that is free.
    #[arg(long, env = "BULKHEAD_HEARTBEAT_PORT", default_value = "9811")]
    heartbeat_port: u16,
    #[command(flatten)]
    s3: mountpoint_s3_pod_attachment::flags::S3Flags,
    #[command(flatten)]
    providers: shared_volume_provider::flags::ProviderFlags,
    #[command(flatten)]
    shared_volumes: shared_volume::flags::SharedVolumeFlags,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Take back all that keeps users off tainted volumes: labels, annotations and reservations of PersistentVolumes,
    /// scheduling gates of pods, labels and finalizers of VolumeHealths. For the end of an installation: it waits until no
    /// controller runs.
    ReleaseVolumes,
    /// Take our finalizer from all MountpointS3PodAttachments, before the Scality driver's own controller takes over again or
    /// for the end of an installation. No mount is interrupted. It waits until no controller runs.
    ReleaseS3,
    /// Say whether this installation works: definitions are served, a controller leads, and its pod is ready. Waits a minute
    /// for it. What `helm test` runs.
    Check,
    #[command(subcommand, hide = true)]
    ScratchVolume(ScratchVolume),
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = shared_volume_provider::flags::with_two_dashes(std::env::args_os());
    run(Cli::parse_from(arguments)).await.unwrap_or_else(|error| program::failed(&error))
}

async fn run(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        None => {}
        Some(Command::ReleaseVolumes) => return alone(&cli.common, volume_health::uninstall::release).await,
        Some(Command::ReleaseS3) => {
            let release = async |clients: &Clients, writer: &Writer| {
                let released = mountpoint_s3_pod_attachment::uninstall::release(clients, writer).await?;
                Ok(format!("{released} MountpointS3PodAttachments released"))
            };
            return alone(&cli.common, release).await;
        }
        Some(Command::Check) => return check(&cli.common).await,
        Some(Command::ScratchVolume(asked)) => return scratch_volume(asked).await,
    }
    let namespace = cli.common.namespace.clone();
    let s3 = cli.s3.config().map_err(Error::Invalid)?;
    let identity = cli.common.identity.clone();
    let program = cli.common.serve("bulkhead-controller").await?.lead("bulkhead-controller".into());
    let heartbeats = match cli.heartbeat_address {
        Some(address) => Heartbeats::listen(SocketAddr::new(address, cli.heartbeat_port), &program.telemetry).await?,
        None => Heartbeats::default(),
    };
    let announced = announced(&program, &heartbeats, namespace.clone(), identity);
    let informers = Informers {
        client: &program.clients.watches,
        telemetry: &program.telemetry,
        health: &program.health,
        cancel: &program.cancel,
    };
    let cx = Context {
        stores: Stores::spawn(informers, &namespace),
        clients: program.clients.clone(),
        writer: program.writer.clone(),
        events: program.events.clone(),
        telemetry: program.telemetry.clone(),
        clock: Clock::system(),
    };
    let settings = node_fence::decide::Settings {
        resync: positive(cli.attacher_resync_period.get()),
        out_of_service_max: positive(cli.out_of_service_max.get()),
        ..node_fence::decide::Settings::default()
    };
    let cancel = program.cancel.clone();
    let s3 = s3.map(|config| {
        let stores = S3Stores::spawn(informers, &config.pods.namespace);
        mountpoint_s3_pod_attachment::run(cx.clone(), stores, config, cancel.clone())
    });
    let shared_volumes = shared_volumes(&cx, informers, &cli.providers, cli.shared_volumes);
    let work = async move {
        tokio::join!(
            shared_volumes,
            announced,
            async {
                if let Some(s3) = s3 {
                    s3.await;
                }
            },
            resiliency_policy::run(cx.clone(), heartbeats, cancel.clone()),
            node_fence::run(cx.clone(), settings, cancel.clone()),
            volume_health::run(cx.clone(), cancel.clone()),
            volume_health_policy::run(cx, cancel),
        );
    };
    Ok(program.run(work).await)
}

/// Tells the agents where this replica listens, if it does.
fn announced(
    program: &Program,
    heartbeats: &Heartbeats,
    namespace: String,
    identity: String,
) -> impl Future<Output = ()> + use<> {
    let (clients, leadership) = (program.clients.clone(), program.writer.leadership().clone());
    let (telemetry, cancel) = (program.telemetry.clone(), program.cancel.clone());
    let announcer = heartbeats.replica().map(|replica| Announcer { clients, namespace, identity, replica, leadership });
    async move {
        if let Some(announcer) = announcer {
            announcer.run(&telemetry, cancel).await;
        }
    }
}

/// Shared volumes and their providers, which meet in what the providers report.
fn shared_volumes(
    cx: &Context,
    informers: Informers<'_>,
    providers: &shared_volume_provider::flags::ProviderFlags,
    flags: shared_volume::flags::SharedVolumeFlags,
) -> impl Future<Output = ()> + use<> {
    let stores = SharedVolumeStores::spawn(informers);
    let of_providers = ProviderStores::spawn(informers, stores.shared_volumes.clone());
    let cancel = informers.cancel;
    let intervals = shared_volume::decide::Intervals {
        cache_expiry: providers.cache_expiry(),
        create_poll: providers.create_poll(),
        create_wait: providers.create_wait(),
    };
    let config = shared_volume::Config { intervals, cluster_domain: flags.cluster_domain };
    let (reports, metrics) = shared_volume_provider::providers(cx);
    let served = shared_volume::run(cx.clone(), stores, reports.clone(), config, cancel.clone());
    let config = shared_volume_provider::Config { poll: providers.poll() };
    let polled = shared_volume_provider::run(cx.clone(), of_providers, (reports, metrics), config, cancel.clone());
    async move {
        tokio::join!(served, polled);
    }
}

/// Does this while it holds the Lease, so that no controller does anything again; and says what came of it.
async fn alone<T: Display + Send + 'static>(
    flags: &Flags,
    release: impl AsyncFnOnce(&Clients, &Writer) -> Result<T>,
) -> Result<ExitCode> {
    let program = flags.serve("bulkhead-controller").await?.lead("bulkhead-controller".into());
    let (clients, writer) = (program.clients.clone(), program.writer.clone());
    let (done, outcome) = tokio::sync::oneshot::channel();
    let work = async move {
        if writer.leadership().remaining().is_none() {
            eprintln!("waiting for the Lease bulkhead-controller; end the controllers: kubectl scale --replicas=0");
        }
        writer.leadership().acquired().await;
        // Nobody listens only when the program is ending anyhow.
        let _ = done.send(release(&clients, &writer).await);
    };
    let ended = program.run(work).await;
    match outcome.await {
        Ok(released) => println!("{}", released?),
        Err(_) => return Ok(ExitCode::FAILURE),
    }
    Ok(ended)
}

/// Needs no Lease: it writes nothing.
async fn check(flags: &Flags) -> Result<ExitCode> {
    let clients = Clients::load(flags.kubeconfig.as_deref(), "bulkhead-controller").await?;
    installation::check(&clients.reads, &flags.namespace, CHECK_PATIENCE).await?;
    println!("the definitions are served, a controller leads, and its pod is ready");
    Ok(ExitCode::SUCCESS)
}

/// Blocks for as long as the volume does.
async fn scratch_volume(asked: ScratchVolume) -> Result<ExitCode> {
    let ended = tokio::task::spawn_blocking(move || asked.run()).await;
    let ended = ended.unwrap_or_else(|panic| Err(std::io::Error::other(panic)));
    ended.map_err(|source| Error::Io { context: "the scratch volume".into(), source })?;
    Ok(ExitCode::SUCCESS)
}

/// A period of zero would never end or never begin; the shortest useful one is a second.
fn positive(period: Duration) -> Duration {
    period.max(Duration::from_secs(1))
}
