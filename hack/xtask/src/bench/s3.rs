//! `xtask bench s3`: how soon workloads are attached to Mountpoint Pods and let go, and what it costs. Control plane and
//! controller are real; kubelet and node service of all nodes are played.

mod phases;
mod seen;
mod world;

use std::path::{Path, PathBuf};

use bulkhead_testbed::binaries::Binaries;
use clap::Args;
use serde_json::json;

use crate::Result;
use crate::programs::{self, Profile};

use super::health::measured;
use super::report;

use self::phases::Run;

/// Options of `bench s3`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Workloads that share one bucket
    #[arg(long, default_value_t = 1000)]
    workloads: usize,
    /// Nodes that they are spread over
    #[arg(long, default_value_t = 20)]
    nodes: usize,
    /// Volumes with a workload each
    #[arg(long, default_value_t = 1000)]
    keys: usize,
    /// Workloads that come and go while the controller is killed again and again
    #[arg(long, default_value_t = 2000)]
    cycles: usize,
    /// Pods without S3 volumes that are there when the controller's memory is read
    #[arg(long, default_value_t = 10_000)]
    pods: usize,
    /// How often; each time in a new cluster
    #[arg(long, default_value_t = 1)]
    runs: usize,
    /// Also write the results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Measure the development build: quick to make, slow to run
    #[arg(long)]
    dev: bool,
}

impl Options {
    fn profile(&self) -> Profile {
        if self.dev { Profile::Dev } else { Profile::Release }
    }
}

/// Runs the benchmark.
pub async fn run(root: &Path, options: &Options) -> Result<()> {
    if [options.workloads, options.nodes, options.runs].contains(&0) {
        return Err("--workloads, --nodes and --runs must be 1 or more".into());
    }
    let programs = programs::build(root, options.profile())?;
    tokio::task::spawn_blocking(|| Binaries::ensure(None)).await??;
    let mut runs = Vec::new();
    for number in 1..=options.runs {
        let measured = Run::run(&programs, options).await.map_err(|error| format!("run {number}: {error}"))?;
        println!("run {number} of {} is done", options.runs);
        runs.push(measured);
    }
    let measures = measured::measures(&runs);
    let about =
        format!("{} workloads of one bucket on {} nodes; {} keys", options.workloads, options.nodes, options.keys);
    report::print(&measures, options.runs, options.profile(), &about);
    if let Some(file) = &options.json {
        let params = json!({
            "workloads": options.workloads, "nodes": options.nodes, "keys": options.keys, "cycles": options.cycles,
            "pods": options.pods, "build": options.profile().name(), "machine": report::machine(),
        });
        let text = serde_json::to_string_pretty(&report::json(&measures, options.runs, &params))?;
        std::fs::write(file, text + "\n").map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    Ok(())
}
