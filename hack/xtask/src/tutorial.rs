//! `xtask tutorial`: a shell with the cluster of `docs/tutorials`. With the shell everything ends.

use std::path::Path;

use bulkhead_testbed::cluster::tutorial::Tutorial;

use crate::Result;
use crate::programs::{self, Profile};

/// The pages are written for it, and tested with it.
const SHELL: &str = "bash";

/// Starts the cluster and the shell, and returns when the shell ends.
pub async fn run(root: &Path) -> Result<()> {
    Tutorial::check()?;
    println!("Preparing: our programs, upstream's and mount-s3 (built once, then cached).");
    let programs = programs::build(root, Profile::Dev)?;
    println!("Starting: control plane, 3 real nodes, an array, an S3 server, and Bulkhead from the shipped manifests.");
    let tutorial = Tutorial::start(&programs).await?;
    println!("\nThis shell has the cluster: try `kubectl get nodes`. The pages are in docs/tutorials.");
    println!("`exit` ends the shell, and the cluster with it.\n");
    let mut command = tutorial.command(SHELL)?;
    command.args(["--norc", "-i"]).env("PS1", "tutorial$ ");
    let mut shell = tokio::process::Command::from(command).kill_on_drop(true).spawn()?;
    tokio::select! {
        // What the last command in it ended with is nobody's concern.
        ended = shell.wait() => Ok(ended.map(drop)?),
        served = tutorial.serve() => Ok(served?),
    }
}
