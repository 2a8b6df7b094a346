//! `xtask bench health`: what volume health costs at rest, and how soon a broken volume is tainted. The control plane and the
//! controller are real; so is one agent, on this machine. The agents of all other nodes are written for.

mod agents;
mod local;
mod phases;
mod run;
mod verdicts;
mod world;

use std::path::Path;
use std::time::Duration;

use bulkhead::api::time;
use clap::Args;
use serde_json::json;

use crate::Result;
use crate::steps::{Steps, cargo};

use super::repeated::Repeated;

/// Options of `bench health`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// PersistentVolumes, all of them bound
    #[arg(long, default_value_t = 10_000)]
    volumes: usize,
    /// Nodes that the volumes are spread over
    #[arg(long, default_value_t = 500)]
    nodes: usize,
    /// Volumes that break at the same moment
    #[arg(long, default_value_t = 1000)]
    faults: usize,
    /// Volumes that break one after the other
    #[arg(long, default_value_t = 100)]
    single_faults: usize,
    /// Volumes on this machine, which the real agent looks at; they break one after the other. Needs root; 0 leaves the
    /// agent out
    #[arg(long, default_value_t = 50)]
    local: usize,
    /// How long nothing happens while it is counted what is written at rest [default: 60s, 10s with --dev]
    #[arg(long, value_name = "DURATION")]
    rest: Option<time::Duration>,
    /// Then let so many claims race with the taints of their volumes, on the real binder and scheduler
    #[arg(long, default_value_t = 0)]
    bindings: usize,
    #[command(flatten)]
    repeated: Repeated,
}

impl Options {
    fn rest(&self) -> Duration {
        self.repeated.rest(self.rest.as_ref())
    }

    fn check(&self) -> Result<()> {
        if [self.volumes, self.nodes, self.faults, self.single_faults, self.repeated.runs].contains(&0) {
            return Err("--volumes, --nodes, --faults, --single-faults and --runs must be 1 or more".into());
        }
        if self.faults > self.volumes || self.single_faults > self.volumes {
            return Err("--faults and --single-faults cannot be more than --volumes".into());
        }
        // What a NodeVolumeReport can tell of.
        if self.volumes.div_ceil(self.nodes) > 1024 || self.local > 1024 {
            return Err("a node tells of 1024 volumes at most: give more --nodes, or fewer --volumes or --local".into());
        }
        Ok(())
    }
}

/// The test that races, and what tells it for how many rounds.
const RACE: (&str, &str) = ("volume_health::no_claim_is_bound_to_a_volume_while_it_is_tainted", "BULKHEAD_BIND_ROUNDS");

/// Runs the benchmark.
pub async fn run(root: &Path, options: &Options) -> Result<()> {
    options.check()?;
    let mut options = options.clone();
    if options.local > 0 && !local::is_possible() {
        println!("the real agent is left out: it needs root, to mount volumes and to look into a mount namespace");
        options.local = 0;
    }
    let about = format!("{} volumes on {} nodes, {} break at once", options.volumes, options.nodes, options.faults);
    let measure = async |programs: &Path| run::run(root, programs, &options).await;
    options.repeated.run(root, &about, params(&options), measure).await?;
    if options.bindings > 0 {
        let (root, bindings) = (root.to_owned(), options.bindings);
        tokio::task::spawn_blocking(move || race(&root, bindings).map_err(|error| error.to_string())).await??;
    }
    Ok(())
}

fn race(root: &Path, rounds: usize) -> Result<()> {
    let (test, variable) = RACE;
    let mut command = cargo(&["test", "--workspace", "--test", "it", "--", "--exact", test]);
    command.env(variable, rounds.to_string());
    let mut steps = Steps::new(root);
    steps.tests(&format!("{rounds} claims race with taints"), &mut command, "a claim was bound wrongly: see above")?;
    if steps.counts.passed == 1 { Ok(()) } else { Err(format!("the test {test} did not run").into()) }
}

fn params(options: &Options) -> serde_json::Value {
    json!({
        "volumes": options.volumes, "nodes": options.nodes, "faults": options.faults,
        "singleFaults": options.single_faults, "local": options.local, "rest": options.rest().as_secs(),
    })
}
