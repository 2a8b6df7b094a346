//! The parts of `testbed` that are about real nodes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bulkhead_testbed::Testbed;
use bulkhead_testbed::real_nodes::{NodeNetwork, RealNodeOptions, RealNodes, remote, script};

use crate::{Error, Of, Up, file_error, run_folder};

/// All nodes at once, and returns when they are Ready.
pub(crate) async fn start(up: &Up, testbed: &Testbed, network: NodeNetwork) -> Result<RealNodes, Error> {
    let usual = RealNodeOptions::default();
    // A heartbeat must be quicker than the patience that waits for it.
    let quick = up.node_monitor_grace_period <= usual.lease_duration.as_secs();
    let options =
        RealNodeOptions { binaries: up.binaries.clone(), ..if quick { RealNodeOptions::fast() } else { usual } };
    let nodes = RealNodes::start(testbed, network, options).await?;
    let names: Vec<String> = (1..=up.real_nodes).map(|number| format!("node-{number}")).collect();
    futures::future::try_join_all(names.iter().map(|name| nodes.add(testbed, name))).await?;
    Ok(nodes)
}

fn socket(of: &Of) -> Result<PathBuf, Error> {
    match &of.socket {
        Some(socket) => Ok(socket.clone()),
        None => Ok(run_folder()?.join(format!("{}.socket", of.testbed))),
    }
}

pub(crate) async fn ask(of: &Of, line: &str) -> Result<(), Error> {
    Ok(remote::ask(&socket(of)?, line).await?)
}

pub(crate) async fn import(of: &Of, archive: &Path) -> Result<(), Error> {
    Ok(remote::ask_to_import(&socket(of)?, archive).await?)
}

/// Plays a script and tells when each step was done.
pub(crate) async fn play(of: &Of, script: &Path) -> Result<(), Error> {
    let text = if script.as_os_str() == "-" { io::read_to_string(io::stdin()) } else { fs::read_to_string(script) };
    let started = tokio::time::Instant::now();
    for step in script::parse(&text.map_err(file_error(script))?)? {
        if let Some(at) = step.at {
            tokio::time::sleep_until(started + at).await;
        }
        ask(of, &step.to_string()).await?;
        println!("{:7.1} s  {step}", started.elapsed().as_secs_f64());
    }
    Ok(())
}
