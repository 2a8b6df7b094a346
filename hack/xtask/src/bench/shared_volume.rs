//! `xtask bench shared-volume`: how soon the clients of shared volumes are led to another server, how soon a new volume has its
//! address, and what it costs. Control plane and controller are real; the NFS servers answer probes and nothing else.

mod phases;
mod seen;
mod world;

use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead::api::time;
use bulkhead_testbed::binaries::Binaries;
use clap::Args;
use serde_json::json;

use crate::Result;
use crate::programs::{self, Profile};

use super::health::measured;
use super::report;

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
    /// SharedVolumes that are there while it is counted what is written at rest
    #[arg(long, default_value_t = 1000)]
    idle: usize,
    /// How long nothing happens meanwhile [default: 60s, 10s with --dev]
    #[arg(long, value_name = "DURATION")]
    rest: Option<time::Duration>,
    /// Also write v1 Endpoints, as discovered volumes have them
    #[arg(long)]
    endpoints: bool,
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

    fn rest(&self) -> Duration {
        let usual = Duration::from_secs(if self.dev { 10 } else { 60 });
        self.rest.as_ref().map_or(usual, time::Duration::get)
    }
}

/// Runs the benchmark.
pub async fn run(root: &Path, options: &Options) -> Result<()> {
    if [options.volumes, options.switches, options.runs].contains(&0) || options.deletions > options.volumes {
        return Err("--volumes, --switches and --runs must be 1 or more, --deletions not more than --volumes".into());
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
    let about = format!("{} volumes; {} idle for {:?}", options.volumes, options.idle, options.rest());
    report::print(&measures, options.runs, options.profile(), &about);
    if let Some(file) = &options.json {
        let params = json!({
            "volumes": options.volumes, "switches": options.switches, "deletions": options.deletions, "idle": options.idle,
            "rest": options.rest().as_secs(), "endpoints": options.endpoints, "build": options.profile().name(),
            "machine": report::machine(),
        });
        let text = serde_json::to_string_pretty(&report::json(&measures, options.runs, &params))?;
        std::fs::write(file, text + "\n").map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    Ok(())
}
