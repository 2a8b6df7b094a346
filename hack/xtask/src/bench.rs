//! `xtask bench`: measurements. Each prints a table and, with `--json`, writes a list of `{name, params, value, unit, n,
//! target, ok}`. A missed target is no failure; a broken promise or an unfinished run is.

mod calm;
mod cleanup;
mod detect;
mod exhaustive;
mod failover;
mod health;
mod measured;
mod objects;
mod on_real_nodes;
mod repeated;
mod report;
mod s3;
mod scale;
mod shared_volume;
mod simulate;
mod timeline;
mod watched;

use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead::api::time;
use bulkhead_testbed::binaries::Binaries;
use clap::{Args, Subcommand};
use serde_json::json;

use crate::Result;
use crate::programs::{self, Profile};

use self::failover::{Measured, Size};
use self::report::Measure;

/// What can be measured.
#[derive(Subcommand)]
pub enum Benchmark {
    /// Nodes die with their pods: from the taint unreachable:NoSchedule to the running replacements
    Failover(Options),
    /// The same of ten nodes at once, with a hundred pods on each
    #[command(
        mut_arg("nodes", |arg| arg.default_value("10")),
        mut_arg("pods", |arg| arg.default_value("100")),
        mut_arg("attacher_qps", |arg| arg.default_value("200")),
        mut_arg("runs", |arg| arg.default_value("1"))
    )]
    Storm(Options),
    /// Volumes break, alone and by the thousand: how soon they are tainted, and what it costs when nothing happens
    Health(health::Options),
    /// Workloads with S3 volumes come and go by the thousand: how soon they are attached and let go, and what it costs
    S3(s3::Options),
    /// NFS servers are switched, alone and all at once: how soon clients are led to the other one, and what it costs
    SharedVolume(shared_volume::Options),
    /// A large cluster: what the controller costs while nothing fails, how soon it is armed, how long it decides about a node
    Scale(scale::Options),
    /// Real nodes fail one after the other: how soon heartbeats and peers tell, and how soon the pod is released
    Detect(detect::Options),
    /// Real nodes are disturbed by what is no failure: nothing may be declared, nobody deleted
    Calm(calm::Options),
    /// A node with what an incident left on it: how long its agent takes to clean it
    Cleanup(cleanup::Options),
    /// Many schedules of the simulated cluster, each with its faults; every invariant is judged
    Simulate(simulate::Options),
    /// Every schedule of a small simulated cluster, within bounds; then every mutant, and what notices it
    Exhaustive(exhaustive::Options),
}

/// Options of `bench failover`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Nodes that die together
    #[arg(long, default_value_t = 1)]
    nodes: usize,
    /// Pods on each of them
    #[arg(long, default_value_t = 110)]
    pods: usize,
    /// Volumes of each pod
    #[arg(long, default_value_t = 1)]
    volumes: usize,
    /// How long the array takes to cut a node off from a volume
    #[arg(long, value_name = "DURATION", default_value = "50ms")]
    fence_latency: time::Duration,
    /// How often; each time in a new cluster
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Also write the results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The controller-manager's --kube-api-qps; upstream's default is 20
    #[arg(long, default_value_t = 200)]
    kcm_qps: u32,
    /// The controller-manager's --kube-api-burst; upstream's default is 30
    #[arg(long, default_value_t = 400)]
    kcm_burst: u32,
    /// The attacher's --kube-api-qps; its burst is twice that. The default is upstream's
    #[arg(long, default_value_t = 5)]
    attacher_qps: u32,
    /// How long a node may be silent until Kubernetes calls it unreachable; not part of what is measured
    #[arg(long, value_name = "DURATION", default_value = "8s")]
    grace: time::Duration,
    /// Volumes whose fence hangs for ever; their pods stay, and are left out of what is measured
    #[arg(long, default_value_t = 0)]
    hanging: usize,
    /// Also print, for each run, who asked the API server for what, until the hand-over and after it
    #[arg(long)]
    timeline: bool,
    /// Measure the development build: quick to make, slow to run
    #[arg(long)]
    dev: bool,
}

/// Runs a benchmark.
pub async fn run(root: &Path, benchmark: &Benchmark) -> Result<()> {
    match benchmark {
        Benchmark::Failover(options) | Benchmark::Storm(options) => fail_over(root, options).await,
        Benchmark::Health(options) => health::run(root, options).await,
        Benchmark::S3(options) => s3::run(root, options).await,
        Benchmark::SharedVolume(options) => shared_volume::run(root, options).await,
        Benchmark::Scale(options) => scale::run(root, options).await,
        Benchmark::Detect(options) => detect::run(root, options).await,
        Benchmark::Calm(options) => calm::run(root, options).await,
        Benchmark::Cleanup(options) => {
            let (root, options) = (root.to_owned(), options.clone());
            tokio::task::spawn_blocking(move || cleanup::run(&root, &options).map_err(|error| error.to_string()))
                .await??;
            Ok(())
        }
        Benchmark::Simulate(options) => {
            let (root, options) = (root.to_owned(), *options);
            tokio::task::spawn_blocking(move || simulate::run(&root, options).map_err(|error| error.to_string()))
                .await??;
            Ok(())
        }
        Benchmark::Exhaustive(options) => {
            let (root, options) = (root.to_owned(), *options);
            tokio::task::spawn_blocking(move || exhaustive::run(&root, options).map_err(|error| error.to_string()))
                .await??;
            Ok(())
        }
    }
}

async fn fail_over(root: &Path, options: &Options) -> Result<()> {
    if [options.nodes, options.pods, options.volumes, options.runs].contains(&0) || options.attacher_qps == 0 {
        return Err("--nodes, --pods, --volumes, --runs and --attacher-qps must be 1 or more".into());
    }
    if options.hanging >= options.nodes * options.pods {
        return Err("--hanging must leave a pod to measure: give fewer than all pods".into());
    }
    let profile = if options.dev { Profile::Dev } else { Profile::Release };
    let programs = programs::build(root, profile)?;
    tokio::task::spawn_blocking(|| Binaries::ensure(None)).await??;
    let size = Size { nodes: options.nodes, pods: options.pods, volumes: options.volumes };
    let mut runs = Vec::new();
    for number in 1..=options.runs {
        let measured =
            failover::run(&programs, options, size).await.map_err(|error| format!("run {number}: {error}"))?;
        println!("run {number} of {}: {measured}", options.runs);
        runs.push(measured);
    }
    let measures = measures(&runs, size);
    report::print(&measures, options.runs, profile, "clocks start at the taint unreachable:NoSchedule");
    if let Some(file) = &options.json {
        report::write(file, &measures, options.runs, &params(options, profile))?;
    }
    Ok(())
}

fn params(options: &Options, profile: Profile) -> serde_json::Value {
    json!({
        "nodes": options.nodes, "pods": options.pods, "volumes": options.volumes,
        "fenceLatency": options.fence_latency.to_string(), "grace": options.grace.to_string(),
        "hanging": options.hanging,
        "kcmQPS": options.kcm_qps, "kcmBurst": options.kcm_burst, "attacherQPS": options.attacher_qps,
        "build": profile.name(), "machine": report::machine(),
    })
}

/// Targets are for all runs: the slowest counts.
fn measures(runs: &[Measured], size: Size) -> Vec<Measure> {
    let of = |value: fn(&Measured) -> f64| runs.iter().map(value).collect::<Vec<_>>();
    // The goals of the project: one full node in three seconds, ten of them in thirty.
    let handed_over = if size.nodes == 1 { 3.0 } else { 30.0 };
    vec![
        Measure::new("failover/first-pod-gone", "s", of(|run| run.first_pod)).target((size.nodes == 1).then_some(1.0)),
        // A hundred pods with two volumes each, fenced in 100 ms, too.
        Measure::new("failover/all-pods-gone", "s", of(|run| run.all_pods)).target((size.nodes == 1).then_some(5.0)),
        Measure::new("failover/handed-over", "s", of(|run| run.handed_over)).target(Some(handed_over)),
        Measure::new("failover/attachments-gone", "s", of(|run| run.detached)),
        Measure::new("failover/replacements-running", "s", of(|run| run.running)),
        Measure::new("failover/api-writes", "", of(|run| run.writes)).target(Some(size.write_budget())),
        Measure::new("failover/api-reads", "", of(|run| run.reads)).target(Some(size.read_budget())),
        Measure::new("failover/events", "", of(|run| run.events)),
        Measure::new("failover/controller-peak-memory", "MiB", of(|run| run.controller.0)),
        Measure::new("failover/controller-processor", "s", of(|run| run.controller.1)),
        Measure::new("failover/sidecar-peak-memory", "MiB", of(|run| run.sidecar.0)),
        Measure::new("failover/sidecar-processor", "s", of(|run| run.sidecar.1)),
    ]
}

/// The time by which a run must be over, from the kill on.
fn deadline(options: &Options, size: Size) -> Duration {
    // Each volume costs the attacher about three writes there and three here.
    let attacher = size.all_volumes() as f64 * 6.0 / f64::from(options.attacher_qps);
    // That a machine is slow is told by what is measured, not by an end without numbers.
    options.grace.get() + Duration::from_secs(300) + Duration::from_secs_f64(attacher)
}
