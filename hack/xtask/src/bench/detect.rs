//! `xtask bench detect`: from the failure of a node to its declaration and to the release of its pod, with heartbeats, peers
//! and Kubernetes' usual times. Nodes, kubelets, containers and all that we ship are real; the array is played, and takes its
//! time to cut a node off. The clock starts before the node is broken.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead::api::driver_report::DriverReport;
use bulkhead::api::names::OPERATOR_NAMESPACE;
use bulkhead::api::node_fence::{NodeFence, Phase};
use bulkhead::api::resiliency_policy::ResiliencyPolicy;
use bulkhead::api::time;
use bulkhead_testbed::TestbedOptions;
use bulkhead_testbed::array::{Effect, Fault as ArrayFault, Link, Method};
use bulkhead_testbed::cluster::real::{PodPlace, RealCluster, RealClusterOptions, RealWorkload};
use bulkhead_testbed::ledger::Stamp;
use bulkhead_testbed::real_nodes::{Fault, RealNodeOptions};
use chrono::{DateTime, Utc};
use clap::{Args, ValueEnum};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::json;

use crate::Result;
use crate::incident::seconds;
use crate::programs::{self, Profile};

use super::measured::{self, Measured};
use super::report;

/// Long enough for a loaded machine; nothing waits this long when it works.
const SOON: Duration = Duration::from_secs(240);
/// How many nodes the leader hears.
const HEARD: &str = "bulkhead_heartbeat_nodes_heard ";

/// How a node fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Failure {
    /// It has no power, and its array sees that its path is gone.
    Dead,
    /// Its control link is cut: its pod writes on.
    Cut,
}

impl Failure {
    fn name(self) -> &'static str {
        match self {
            Self::Dead => "dead",
            Self::Cut => "cut",
        }
    }

    fn fault(self) -> Fault {
        match self {
            Self::Dead => Fault::KillEverything,
            Self::Cut => Fault::CutControl,
        }
    }

    /// The goals of the project for a fence of one second: declared, released.
    fn targets(self) -> (Option<f64>, f64) {
        match self {
            Self::Dead => (Some(5.0), 8.0),
            Self::Cut => (None, 25.0),
        }
    }
}

/// Options of `bench detect`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// How a node fails
    #[arg(long, value_enum, default_value = "dead")]
    failure: Failure,
    /// Nodes of the cluster; three must be left to be asked about the one that fails
    #[arg(long, default_value_t = 5)]
    nodes: usize,
    /// How many failures, one after the other
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// How long the array takes to cut a node off from a volume
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    fence_latency: time::Duration,
    /// Also write the results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Measure the development build: quick to make, slow to run
    #[arg(long)]
    dev: bool,
}

/// Runs the benchmark.
pub async fn run(root: &Path, options: &Options) -> Result<()> {
    if options.nodes < 4 || options.runs == 0 {
        return Err("--nodes must be 4 or more, --runs 1 or more".into());
    }
    let profile = if options.dev { Profile::Dev } else { Profile::Release };
    let programs = programs::build(root, profile)?;
    let cluster = start(&programs, options).await?;
    let mut runs = Vec::new();
    for number in 1..=options.runs {
        let seconds = fail(&cluster, options, number).await.map_err(|error| format!("failure {number}: {error}"))?;
        println!("failure {number} of {}: {seconds}", options.runs);
        runs.push(seconds.told(options.failure));
    }
    cluster.judge()?;
    let measures = measured::measures(&runs);
    report::print(&measures, options.runs, profile, "clocks start before the node is broken");
    if let Some(file) = &options.json {
        let params = json!({
            "failure": options.failure.name(), "nodes": options.nodes, "build": profile.name(),
            "fenceLatency": options.fence_latency.to_string(), "machine": report::machine(),
        });
        let text = serde_json::to_string_pretty(&report::json(&measures, options.runs, &params))?;
        std::fs::write(file, text + "\n").map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    Ok(())
}

async fn start(programs: &Path, options: &Options) -> Result<RealCluster> {
    let cluster = RealCluster::start(RealClusterOptions {
        nodes: options.nodes,
        testbed: TestbedOptions::default(),
        node: RealNodeOptions::default(),
        ..RealClusterOptions::new(programs)
    })
    .await?;
    let latency = Effect::Latency(options.fence_latency.get());
    cluster.array.faults().add(ArrayFault::on(Method::ControllerUnpublishVolume, latency));
    // What is cut off writes on, and the array's word on that would have it waited for. The nodes take turns, and none is too
    // many.
    let policy: ResiliencyPolicy = serde_json::from_value(json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "ResiliencyPolicy", "metadata": { "name": "protected" },
        "spec": {
            "mode": "Enforce",
            "selector": { "podSelector": { "matchLabels": { "bulkhead.dev/protect": "true" } } },
            "limits": {
                "maxNodes": "100%", "ceiling": 100, "maxUnhealthy": "100%", "window": "0s", "cooldown": "0s",
            },
            "detection": {
                "storage": { "period": "1s", "lossThreshold": 2, "recoveryThreshold": 2, "ioInProgressCheck": "Disabled" },
            },
        },
    }))?;
    Api::<ResiliencyPolicy>::all(cluster.client.clone()).create(&PostParams::default(), &policy).await?;
    Ok(cluster)
}

/// Seconds since the node was broken.
struct Seconds {
    declared: f64,
    released: f64,
    /// The replacement's first write.
    writes: f64,
}

impl Seconds {
    fn told(&self, failure: Failure) -> Measured {
        let mut measured = Measured::default();
        let (declared, released) = failure.targets();
        match declared {
            Some(target) => measured.hold("detect/declared", "s", self.declared, target),
            None => measured.note("detect/declared", "s", self.declared),
        }
        measured.hold("detect/released", "s", self.released, released);
        measured.note("detect/replacement-writes", "s", self.writes);
        measured
    }
}

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "declared {:.1} s, released {:.1} s, replacement writes {:.1} s",
            self.declared, self.released, self.writes
        )
    }
}

/// One failure from beginning to end: everything is whole again afterwards.
async fn fail(cluster: &RealCluster, options: &Options, number: usize) -> Result<Seconds> {
    let node = cluster.node_without_leader().await?;
    let workload = RealWorkload { node: Some(node), ..RealWorkload::new(&format!("detect-{number}")) };
    cluster.run(&workload).await?;
    let old = one(cluster.running(&workload, &[], SOON).await?)?;
    let (volume, ledger) = (cluster.volume(&workload, 0).await?, cluster.array.ledger());
    ledger.wait_for_write(&volume, &old.node, Stamp::START, SOON).await?;
    all_are_heard(cluster, options.nodes).await?;
    let (began, node) = (ledger.now(), cluster.node(&old.node)?);
    if options.failure == Failure::Dead {
        cluster.array.set_link(&old.node, Link::Refuse);
    }
    node.fault(options.failure.fault()).await?;
    let new = one(cluster.running(&workload, std::slice::from_ref(&old), SOON).await?)?;
    let writes = ledger.wait_for_write(&volume, &new.node, began, SOON).await?;
    let is_over = |fence: &NodeFence| phase(fence).is_some_and(|phase| phase >= Phase::PodsReleased);
    let fence = cluster.fence(&old.node, "released", SOON, is_over).await?;
    let timeline = fence.status.and_then(|status| status.timeline).ok_or("the NodeFence has no timeline")?;
    let since = |at: Option<DateTime<Utc>>, what: &str| {
        at.map(|at| seconds(ledger.wall(began), at)).ok_or_else(|| format!("the timeline lacks {what}"))
    };
    let measured = Seconds {
        declared: since(timeline.decided_at, "decidedAt")?,
        released: since(timeline.released_at, "releasedAt")?,
        writes: since(Some(ledger.wall(writes)), "the first write")?,
    };
    cluster.array.set_link(&old.node, Link::Up);
    node.heal_all().await?;
    cluster.fence(&old.node, "Recovered", SOON, |fence| phase(fence) == Some(Phase::Recovered)).await?;
    cluster.usable(&old.node, SOON).await?;
    cluster.end(&workload, SOON).await?;
    cluster.settled().await?;
    Ok(measured)
}

fn one(pods: Vec<PodPlace>) -> Result<PodPlace> {
    let [pod] = <[PodPlace; 1]>::try_from(pods).map_err(|pods| format!("{pods:?} instead of one pod"))?;
    Ok(pod)
}

fn phase(fence: &NodeFence) -> Option<Phase> {
    fence.status.as_ref().and_then(|status| status.phase)
}

/// Waits until the leader hears every node, and the driver is asked about each: before that nothing can be told so soon.
async fn all_are_heard(cluster: &RealCluster, nodes: usize) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), OPERATOR_NAMESPACE);
    let of_us = ListParams::default().labels("app.kubernetes.io/name=bulkhead,app.kubernetes.io/component=controller");
    let reports: Api<DriverReport> = Api::all(cluster.client.clone());
    cluster
        .wait("every node is heard and asked about", SOON, async || {
            let mut heard = Vec::new();
            for pod in pods.list(&of_us).await? {
                heard.extend(heard_by(cluster, &pod).await);
            }
            let report = reports.get_opt(cluster.array.driver_name()).await?.and_then(|report| report.status);
            let asked = report.iter().flat_map(|status| &status.backends).filter_map(|backend| backend.nodes).max();
            let is_it = heard.contains(&nodes) && asked.is_some_and(|asked| asked > 0);
            Ok(if is_it { Ok(()) } else { Err(format!("heard: {heard:?}, asked about: {asked:?}")) })
        })
        .await?;
    Ok(())
}

/// What a replica says of the nodes that it hears, asked from its own node; none while it does not answer.
async fn heard_by(cluster: &RealCluster, pod: &Pod) -> Option<usize> {
    let node = cluster.node(pod.spec.as_ref()?.node_name.as_deref()?).ok()?;
    let url = format!("http://{}:8080/metrics", pod.status.as_ref()?.pod_ip.as_deref()?);
    let output = node.exec(&["curl", "--silent", "--max-time", "5", &url]).await.ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.lines().find_map(|line| line.strip_prefix(HEARD))?.trim().parse().ok()
}
