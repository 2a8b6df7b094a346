//! `xtask bench shared-volume`: how soon the clients of shared volumes are led to another server, how soon a new volume has its
//! address, and what it costs. Control plane and controller are real; the NFS servers answer probes and nothing else.

mod phases;
mod seen;
mod world;

use std::path::Path;
use std::time::Duration;

use bulkhead::api::time;
use clap::Args;
use serde_json::json;

use crate::Result;

use super::repeated::Repeated;

use self::phases::Run;

/// Options of `bench shared-volume`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// SharedVolumes that are published, switched and repaired
    #[arg(long, default_value_t = 300)]
    volumes: usize,
    /// Switches one after the other
    #[arg(long, default_value_t = 200)]
    switches: usize,
    /// Services that are deleted one after the other
    #[arg(long, default_value_t = 30)]
    deletions: usize,
    /// Slices that somebody edits one after the other
    #[arg(long, default_value_t = 30)]
    edits: usize,
    /// SharedVolumes that are there while it is counted what is written at rest
    #[arg(long, default_value_t = 1000)]
    idle: usize,
    /// How long nothing happens meanwhile [default: 60s, 10s with --dev]
    #[arg(long, value_name = "DURATION")]
    rest: Option<time::Duration>,
    /// Also write v1 Endpoints, as discovered volumes have them
    #[arg(long)]
    endpoints: bool,
    #[command(flatten)]
    repeated: Repeated,
}

impl Options {
    fn rest(&self) -> Duration {
        self.repeated.rest(self.rest.as_ref())
    }
}

/// Runs the benchmark.
pub async fn run(root: &Path, options: &Options) -> Result<()> {
    let broken = options.deletions.max(options.edits);
    if [options.volumes, options.switches, options.repeated.runs].contains(&0) || broken > options.volumes {
        return Err(
            "--volumes, --switches and --runs must be 1 or more, --deletions and --edits not more than --volumes"
                .into(),
        );
    }
    let about = format!("{} volumes; {} idle for {:?}", options.volumes, options.idle, options.rest());
    let params = json!({
        "volumes": options.volumes, "switches": options.switches, "deletions": options.deletions, "edits": options.edits,
        "idle": options.idle, "rest": options.rest().as_secs(), "endpoints": options.endpoints,
    });
    options.repeated.run(root, &about, params, async |programs: &Path| Run::run(programs, options).await).await
}
