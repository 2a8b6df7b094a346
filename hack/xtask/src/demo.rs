//! `xtask demo`: a pod with a volume on a node that dies, with Bulkhead and, beside it, without. Everything is made from
//! nothing and gone afterwards; the exit status says whether the promise held. `xtask demo health` shows a volume that breaks,
//! `xtask demo s3` a bucket that pods share, `xtask demo shared-volume` an address that survives its server's node.

mod health;
mod live;
mod real;
mod report;
mod s3;
mod shared_volume;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bulkhead::api::node_fence::{NodeFence, NodeFenceStatus};
use bulkhead_testbed::binaries::Binaries;
use bulkhead_testbed::cluster::{Cluster, ClusterOptions, Workload};
use bulkhead_testbed::ledger::Stamp;
use bulkhead_testbed::oracle::{self, Verdict};
use bulkhead_testbed::{KwokOptions, TestbedOptions, real_nodes};
use clap::{Args, Subcommand};
use kube::Api;
use tokio::sync::Barrier;

use crate::Result;
use crate::incident::{self, ApiSide, ArraySide, Held, Moment};
use crate::programs::{self, Profile};

use self::live::Live;

/// Longest time for the pods of the demo to come up.
const SETUP: Duration = Duration::from_secs(90);
/// Longest time for the failover, from the taint on. It takes seconds; a machine may be busy.
const FAILOVER: Duration = Duration::from_secs(120);
/// The one pod.
const POD: &str = "db-0";

/// What to show.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Options {
    #[command(subcommand)]
    what: Option<What>,
    /// Simulated nodes: real control plane, pods without containers. Without this, real nodes where the machine can have them
    #[arg(long)]
    simulated: bool,
    /// Real nodes: the same failure also without Bulkhead, and on an array that says OK and does nothing. Takes minutes more
    #[arg(long)]
    compare: bool,
    /// When, after the node became unreachable, the person of --compare sets the out-of-service taint
    #[arg(long, value_name = "DURATION", default_value = "60s")]
    person_after: bulkhead::api::time::Duration,
    /// Simulated nodes: how many seconds to watch the same failure without Bulkhead; 0 leaves it out
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    without: u64,
    /// How long a node may be silent until Kubernetes calls it unreachable; clusters have 50s or 40s
    #[arg(long, value_name = "DURATION", default_value = "8s")]
    grace: bulkhead::api::time::Duration,
}

/// What else there is to show.
#[derive(Subcommand)]
enum What {
    /// A disk is gone under a running pod: its volumes are tainted, new users kept off, until it is back
    Health(health::Options),
    /// A bucket as a volume: workloads share a Mountpoint Pod, whose mount-s3 is killed and healed, until nothing is left
    S3,
    /// An NFS server's node dies while a client writes through its address: the server moves, the address stays
    SharedVolume(shared_volume::Options),
}

/// How it went with Bulkhead.
struct Failover {
    from: String,
    /// Where the pod runs now, if it does.
    to: Option<String>,
    api: ApiSide,
    array: ArraySide,
    /// From the NodeFence: when the node was declared failed, and when the last proof was in.
    decided: Option<Moment>,
    verified: Option<Moment>,
    verdict: Verdict,
}

/// How it went without.
enum Without {
    NotTried,
    /// The pod was still not running elsewhere after so many seconds.
    StillWaiting(u64),
    /// It ran elsewhere after so many seconds.
    Moved(f64),
}

/// A cluster with the pod running and writing.
struct Scene {
    cluster: Cluster,
    /// The node that the pod is on, and its name on the array.
    node: String,
    csi_node: String,
    held: Held,
}

/// Shows it all.
pub async fn run(root: &Path, options: &Options) -> Result<()> {
    match &options.what {
        Some(What::Health(options)) => return health::run(root, options).await,
        Some(What::S3) => return s3::run(root).await,
        Some(What::SharedVolume(options)) => return shared_volume::run(root, options).await,
        None => {}
    }
    let grace = options.grace.get();
    if grace < Duration::from_secs(4) {
        return Err("--grace must be 4s or more: the nodes give a sign of life each second".into());
    }
    match real_nodes::check() {
        Ok(()) if !options.simulated => return real::run(root, options).await,
        Err(error) if !options.simulated => println!("{error}"),
        _ => {}
    }
    println!("Nodes are simulated: pods have no containers. Everything else is the real thing.");
    println!("Preparing: our programs, and the control plane's (built once, then cached).");
    let programs = programs::build(root, Profile::Dev)?;
    tokio::task::spawn_blocking(|| Binaries::ensure(None)).await??;
    println!("Starting: control plane, 3 simulated nodes, storage array, StatefulSet `db`, and Bulkhead.");
    println!("A silent node is unreachable after {} here (--grace; Kubernetes' default is 50s).", options.grace);
    let both_ready = Barrier::new(if options.without > 0 { 2 } else { 1 });
    let policy = root.join("config/samples/resiliencypolicy-first.yaml");
    let (failover, without) = tokio::try_join!(
        with_bulkhead(programs, &policy, grace, &both_ready),
        without_bulkhead(Duration::from_secs(options.without), grace, &both_ready),
    )?;
    report::print(&failover, &without);
    failover.judge()
}

impl Failover {
    /// What was promised, each with whether it held.
    fn promises(&self) -> [(bool, &'static str); 4] {
        let released = self.api.pods_gone.get(POD);
        let verified_first =
            matches!((self.verified, released), (Some(verified), Some(released)) if verified <= *released);
        [
            (self.to.as_ref().is_some_and(|to| *to != self.from), "the pod runs on another node"),
            (verified_first, "the pod was released only after the array had confirmed the fence"),
            (self.array.refused > 0, "the dead node went on writing, and the array refused it"),
            (
                self.verdict.is_clean() && self.array.accepted_too_late == 0,
                "no write of the dead node was accepted after the first one of the new node",
            ),
        ]
    }

    fn judge(&self) -> Result<()> {
        let broken: Vec<_> = self.promises().into_iter().filter(|(held, _)| !held).map(|(_, what)| what).collect();
        if broken.is_empty() {
            Ok(())
        } else {
            Err(format!("the promise did not hold: not so: {}", broken.join("; ")).into())
        }
    }
}

async fn with_bulkhead(programs: PathBuf, policy: &Path, grace: Duration, ready: &Barrier) -> Result<Failover> {
    let scene = Scene::new(Some(programs), grace).await?;
    scene.cluster.testbed.apply_file(policy).await?;
    println!("Ready: {POD} writes to its volume on {}.", scene.node);
    ready.wait().await;
    let killed = scene.kill().await?;
    let mut live = Live::new(&scene);
    println!("Killed {}: silent towards Kubernetes, but its programs still run and write.\n", scene.node);
    let to = live.follow(grace + FAILOVER).await?;
    if to.is_none() {
        for process in scene.cluster.controllers.iter().chain(scene.cluster.sidecars.values()) {
            eprintln!("{}: its last output:\n{}", process.launch().name, process.log_tail());
        }
    }
    scene.failover(killed, to).await
}

async fn without_bulkhead(limit: Duration, grace: Duration, ready: &Barrier) -> Result<Without> {
    if limit.is_zero() {
        return Ok(Without::NotTried);
    }
    let scene = Scene::new(None, grace).await?;
    ready.wait().await;
    let killed = scene.kill().await?;
    let noticed = scene.noticed(grace + FAILOVER).await?;
    let mut said = Instant::now();
    loop {
        let waited = incident::seconds(noticed, chrono::Utc::now());
        if let Some(at) = scene.array_side(killed).first_write_elsewhere {
            return Ok(Without::Moved(incident::seconds(noticed, at)));
        }
        if waited >= limit.as_secs_f64() {
            return Ok(Without::StillWaiting(limit.as_secs()));
        }
        if said.elapsed() >= Duration::from_secs(15) {
            said = Instant::now();
            println!("              (without Bulkhead, {waited:.0} s after the taint: {POD} still waits)");
        }
        // A poll with a deadline: what it looks at is expected not to happen.
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

impl Scene {
    async fn new(programs: Option<PathBuf>, grace: Duration) -> Result<Self> {
        let cluster = Cluster::start(cluster_options(programs, grace)).await?;
        let set = Workload::new("db");
        cluster.stateful_set(&set).await?;
        let node = cluster.pods_ready(&set, SETUP).await?.remove(POD).ok_or("the pod is nowhere")?;
        let held = incident::held_by(&cluster.client, &node).await?;
        let csi_node = cluster.node(&node)?.csi_node_id().to_owned();
        let scene = Self { cluster, node, csi_node, held };
        let ledger = scene.ledger()?;
        ledger.wait_for_write(scene.volume(), &scene.csi_node, Stamp::START, SETUP).await?;
        Ok(scene)
    }

    fn ledger(&self) -> Result<&bulkhead_testbed::ledger::Ledger> {
        Ok(self.cluster.arrays.first().ok_or("the cluster has no array")?.ledger())
    }

    /// The handle of the one volume.
    fn volume(&self) -> &str {
        self.held.volumes.first().map(String::as_str).unwrap_or_default()
    }

    async fn kill(&self) -> Result<Stamp> {
        let killed = self.ledger()?.now();
        self.cluster.node(&self.node)?.kill().await;
        Ok(killed)
    }

    fn api_side(&self) -> Result<ApiSide> {
        Ok(incident::api_side(&self.cluster.testbed.audit(), &self.node, &self.held.attachments)?)
    }

    fn array_side(&self, killed: Stamp) -> ArraySide {
        let ledger = self.ledger();
        ledger.map(|ledger| incident::array_side(ledger, self.volume(), &self.csi_node, killed)).unwrap_or_default()
    }

    /// Waits until Kubernetes notices that the node is silent.
    async fn noticed(&self, limit: Duration) -> Result<Moment> {
        let look = async || Ok(self.api_side().ok().and_then(|side| side.unreachable).ok_or_else(String::new));
        Ok(self.cluster.wait("the taint unreachable:NoSchedule", limit, look).await?)
    }

    async fn failover(&self, killed: Stamp, to: Option<String>) -> Result<Failover> {
        let fence = Api::<NodeFence>::all(self.cluster.client.clone()).get_opt(&self.node).await?;
        let decided = fence.as_ref().map(|fence| fence.spec.plan.decided_at);
        let status = fence.and_then(|fence| fence.status).unwrap_or_default();
        Ok(Failover {
            from: self.node.clone(),
            to,
            api: self.api_side()?,
            array: self.array_side(killed),
            decided,
            verified: all_proved(&status),
            verdict: oracle::judge(self.ledger()?),
        })
    }
}

/// When the last volume was proved; None while one is not.
fn all_proved(status: &NodeFenceStatus) -> Option<Moment> {
    let proofs: Option<Vec<Moment>> = status.volumes.iter().map(|volume| volume.proved_at).collect();
    proofs?.into_iter().max()
}

/// Kubernetes' own timing for a usual grace period, a quicker one for a short one.
fn cluster_options(programs: Option<PathBuf>, grace: Duration) -> ClusterOptions {
    let usual = grace >= KwokOptions::default().lease_duration;
    let (testbed, kwok) = if usual {
        (TestbedOptions::default(), KwokOptions::default())
    } else {
        (TestbedOptions::fast_nodes(), KwokOptions::fast())
    };
    let testbed = TestbedOptions { node_monitor_grace_period: grace, ..testbed };
    ClusterOptions { testbed, kwok, programs, ..ClusterOptions::default() }
}
