//! `bulkhead-csi-sidecar`: answers FenceRequests and reports the health of volumes, and which nodes reach the array, beside
//! one CSI driver's controller.

use std::process::ExitCode;
use std::time::Duration;

use bulkhead::api::names;
use bulkhead::csi::client;
use bulkhead::csi_sidecar::driver::Driver;
use bulkhead::csi_sidecar::health::{self as volume_health, observe::Stores};
use bulkhead::csi_sidecar::metrics::Metrics;
use bulkhead::csi_sidecar::{self, Context, connectivity, report};
use bulkhead::error::{Error, Result};
use bulkhead::runtime::clock::Clock;
use bulkhead::runtime::program::{self, Flags};
use clap::Parser;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

const _: () = assert!(
    cfg!(debug_assertions) || !bulkhead::mutants::ARE_BUILT_IN,
    "the feature `mutants` is for tests: build the programs with `--package bulkhead`, not with the whole workspace"
);

/// Fences volumes for the CSI driver beside it, when a FenceRequest asks for it.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    common: Flags,
    /// Socket of the CSI driver.
    #[arg(long, env = "BULKHEAD_CSI_ADDRESS", default_value = "/csi/csi.sock")]
    csi_address: String,
}

#[tokio::main]
async fn main() -> ExitCode {
    run(Cli::parse()).await.unwrap_or_else(|error| program::failed(&error))
}

async fn run(cli: Cli) -> Result<ExitCode> {
    let serving = cli.common.serve("bulkhead-csi-sidecar").await?;
    let channel = client::connect(&cli.csi_address).map_err(|error| Error::Invalid(error.to_string()))?;
    let driver = Driver::new(channel);
    let name = wait_for(&driver).await;
    let program = serving.lead(names::fencer_lease(&name));
    let cx = Context {
        driver,
        name,
        clients: program.clients.clone(),
        writer: program.writer.clone(),
        events: program.events.clone(),
        telemetry: program.telemetry.clone(),
        metrics: Metrics::register(&program.telemetry),
        clock: Clock::system(),
        calls: TaskTracker::new(),
    };
    let (cancel, health) = (program.cancel.clone(), program.health.clone());
    let work = async move {
        let stores = Stores::spawn(&cx, &cancel);
        let (volumes, of_volumes) = watch::channel(None);
        let (paths, of_paths) = watch::channel(None);
        let reporting = tokio::spawn(report::run(cx.clone(), report::Parts { volumes: of_volumes, paths: of_paths }));
        let watching = tokio::spawn(volume_health::run(cx.clone(), stores.clone(), volumes, cancel.clone()));
        let asking = tokio::spawn(connectivity::run(cx.clone(), stores, paths, cancel.clone()));
        csi_sidecar::run(cx, &health, cancel).await;
        for task in [reporting, watching, asking] {
            task.abort();
        }
    };
    Ok(program.run(work).await)
}

/// The driver starts beside us and may be slower; its name is what everything else is called after.
async fn wait_for(driver: &Driver) -> String {
    let mut retry = tokio::time::interval(Duration::from_secs(1));
    let mut told = None;
    loop {
        retry.tick().await;
        match driver.name(Duration::from_secs(5)).await {
            Ok(name) => return name,
            Err(failure) if told.as_ref() == Some(&failure) => {}
            Err(failure) => {
                tracing::info!(code = failure.code, message = failure.message, "waiting for the CSI driver");
                told = Some(failure);
            }
        }
    }
}
