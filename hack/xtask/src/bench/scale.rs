//! `xtask bench scale`: what the controller costs in a large cluster while nothing fails, how soon it is armed there, and how
//! long it decides about one node. API server, etcd and controller are real; nodes, pods and volumes are only objects, which
//! are put straight into etcd: to create that many would take the API server longer than all else.

mod agents;
mod etcd;
mod objects;
mod run;
mod world;

use std::path::Path;
use std::time::Duration;

use bulkhead::api::time;
use clap::Args;
use serde_json::json;

use crate::Result;

use super::repeated::Repeated;

/// Options of `bench scale`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Nodes, whose Leases are renewed and whose agents send heartbeats
    #[arg(long, default_value_t = 5000)]
    nodes: usize,
    /// Pods, bound and running
    #[arg(long, default_value_t = 150_000)]
    pods: usize,
    /// VolumeAttachments: so many of the pods are protected and have a volume each, of one claim
    #[arg(long, default_value_t = 50_000)]
    attachments: usize,
    /// How long nothing happens while it is measured what that costs [default: 60s, 10s with --dev]
    #[arg(long, value_name = "DURATION")]
    rest: Option<time::Duration>,
    #[command(flatten)]
    repeated: Repeated,
}

impl Options {
    fn rest(&self) -> Duration {
        self.repeated.rest(self.rest.as_ref())
    }

    fn check(&self) -> Result<()> {
        if [self.attachments, self.repeated.runs].contains(&0) || self.nodes < 4 {
            return Err("--attachments and --runs must be 1 or more, --nodes 4 or more".into());
        }
        if self.attachments > self.pods {
            return Err("--attachments cannot be more than --pods: each is of a pod of its own".into());
        }
        Ok(())
    }
}

/// Runs the benchmark.
pub async fn run(root: &Path, options: &Options) -> Result<()> {
    options.check()?;
    let about = format!("{} nodes, {} pods, {} attachments", options.nodes, options.pods, options.attachments);
    let params = json!({
        "nodes": options.nodes, "pods": options.pods, "attachments": options.attachments,
        "rest": options.rest().as_secs(),
    });
    let measure = async |programs: &Path| run::run(root, programs, options).await;
    options.repeated.run(root, &about, params, measure).await
}
