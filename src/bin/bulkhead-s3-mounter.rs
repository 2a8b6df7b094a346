//! `bulkhead-s3-mounter`: runs mount-s3 in a Mountpoint Pod.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bulkhead::api::s3::{CACHE_FOLDER, COMMUNICATION_FOLDER};
use bulkhead::error::{Error, Result};
use bulkhead::runtime::logs::{self, LogFormat};
use bulkhead::runtime::program;
use bulkhead::s3::mounter::{self, Outcome, Settings};
use clap::Parser;

/// As a shell tells that SIGTERM ended a program.
const TERMINATED: u8 = 128 + 15;

/// Receives options and the descriptor of a FUSE mount from the node service of the S3 driver, and runs mount-s3.
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// How long to wait for options.
    #[arg(long, default_value = "2m", value_parser = duration)]
    mount_sock_recv_timeout: Duration,
    /// Folder of the program mount-s3.
    #[arg(long, env = "MOUNTPOINT_BIN_DIR", default_value = "/mountpoint-s3/bin")]
    mountpoint_bin_dir: PathBuf,
    /// Folder that it shares with the node service.
    #[arg(long, default_value = COMMUNICATION_FOLDER)]
    communication_folder: PathBuf,
    /// Where the cache of mount-s3 is, if the pod has that volume.
    #[arg(long, default_value = CACHE_FOLDER)]
    cache_folder: PathBuf,
    /// What to log, for example info or bulkhead=debug.
    #[arg(long, env = "BULKHEAD_LOG", default_value = "info")]
    log: String,
    /// How logs look.
    #[arg(long, env = "BULKHEAD_LOG_FORMAT", value_enum, default_value = "text")]
    log_format: LogFormat,
}

fn duration(text: &str) -> std::result::Result<Duration, String> {
    bulkhead::api::time::Duration::try_from(text.to_owned())
        .map(|duration| duration.get())
        .map_err(|error| error.to_string())
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => {
            let code = runtime.block_on(run(cli)).unwrap_or_else(|error| program::failed(&error));
            // A thread may still wait for the last words of mount-s3.
            runtime.shutdown_background();
            code
        }
        Err(source) => program::failed(&Error::Io { context: "the asynchronous runtime".into(), source }),
    }
}

async fn run(cli: Cli) -> Result<ExitCode> {
    let _tracing = logs::init("bulkhead-s3-mounter", cli.log_format, &cli.log, None)?;
    let settings = Settings {
        communication_folder: cli.communication_folder,
        cache_folder: cli.cache_folder,
        mountpoint_bin_dir: cli.mountpoint_bin_dir,
        receive_timeout: cli.mount_sock_recv_timeout,
    };
    Ok(match mounter::run(&settings).await? {
        Outcome::Done => ExitCode::SUCCESS,
        Outcome::Stopped => ExitCode::from(TERMINATED),
        Outcome::Failed => ExitCode::FAILURE,
    })
}
