//! `kubectl-bulkhead`: the plugin of kubectl, with the person's own rights.

use std::process::ExitCode;

use bulkhead::kubectl::{self, Cli};
use clap::Parser;

#[tokio::main]
async fn main() -> ExitCode {
    kubectl::run(Cli::parse()).await
}
