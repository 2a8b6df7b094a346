//! `xtask bench s3`: how soon workloads are attached to Mountpoint Pods and let go, and what it costs. Control plane and
//! controller are real; kubelet and node service of all nodes are played.

mod phases;
mod seen;
mod world;

use std::path::Path;

use clap::Args;
use serde_json::json;

use crate::Result;

use super::repeated::Repeated;

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
    #[command(flatten)]
    repeated: Repeated,
}

/// Runs the benchmark.
pub async fn run(root: &Path, options: &Options) -> Result<()> {
    if [options.workloads, options.nodes, options.repeated.runs].contains(&0) {
        return Err("--workloads, --nodes and --runs must be 1 or more".into());
    }
    let about =
        format!("{} workloads of one bucket on {} nodes; {} keys", options.workloads, options.nodes, options.keys);
    let params = json!({
        "workloads": options.workloads, "nodes": options.nodes, "keys": options.keys, "cycles": options.cycles,
        "pods": options.pods,
    });
    options.repeated.run(root, &about, params, async |programs: &Path| Run::run(programs, options).await).await
}
