//! `xtask bench cleanup`: how long a node's agent takes to clean what an incident left there. Mounts, kernel and agent are
//! real, the CSI driver's node plugin is played; it is a trial of `tests/node_agent`, in a mount namespace of its own. From
//! the fence on: the taint goes when the controller has read that the node is clean.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;
use serde_json::json;

use crate::Result;
use crate::programs::Profile;
use crate::steps::{Steps, cargo};

use super::measured::{self, Measured};
use super::report;

/// The trial, and what tells it how much and where to.
const TRIAL: [&str; 3] = ["timed::a_node_is_cleaned", "BULKHEAD_CLEANUP_VOLUMES", "BULKHEAD_CLEANUP_RESULT"];
/// The goal of the project for fifty volumes: seconds.
const FIFTY: (usize, f64) = (50, 10.0);

/// Options of `bench cleanup`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Volumes that are left there, each staged and published
    #[arg(long, default_value_t = 50)]
    volumes: usize,
    /// How often; each time on a new node
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Also write the results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What the trial tells.
#[derive(Deserialize)]
struct Told {
    mounts: usize,
    unmounted: f64,
    clean: f64,
}

/// Runs the benchmark.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    if [options.volumes, options.runs].contains(&0) {
        return Err("--volumes and --runs must be 1 or more".into());
    }
    let runs: Vec<_> = (0..options.runs).map(|_| measure(root, options.volumes)).collect::<Result<_>>()?;
    let measures = measured::measures(&runs);
    let about = format!("{} volumes; the clock starts with the agent", options.volumes);
    report::print(&measures, options.runs, Profile::Dev, &about);
    if let Some(file) = &options.json {
        let params = json!({ "volumes": options.volumes, "build": Profile::Dev.name(), "machine": report::machine() });
        report::write(file, &measures, options.runs, &params)?;
    }
    Ok(())
}

fn measure(root: &Path, volumes: usize) -> Result<Measured> {
    let ([trial, asked, answer], folder) = (TRIAL, tempfile::tempdir()?);
    let result = folder.path().join("result.json");
    let mut command = cargo(&["test", "--workspace", "--test", "node_agent", "--", "--exact", trial]);
    command.env(asked, volumes.to_string()).env(answer, &result);
    let mut steps = Steps::new(root);
    steps.tests(&format!("{volumes} volumes are cleaned"), &mut command, "the node was not cleaned: see above")?;
    let text = std::fs::read_to_string(&result);
    let text = text.map_err(|error| format!("the trial {trial} did not run; it needs root: {error}"))?;
    let told: Told = serde_json::from_str(&text)?;
    let mut measured = Measured::default();
    measured.note("cleanup/mounts", "", told.mounts as f64);
    measured.note("cleanup/unmounted", "s", told.unmounted);
    let (fifty, target) = FIFTY;
    if volumes == fifty {
        measured.hold("cleanup/clean", "s", told.clean, target);
    } else {
        measured.note("cleanup/clean", "s", told.clean);
    }
    Ok(measured)
}
