//! The project's own commands. `hack/test`, `hack/demo` and `hack/bench` call it.

mod generate;

use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

#[derive(Parser)]
#[command(about = "The project's own commands")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Regenerate everything that is made from something else in the tree.
    Generate {
        /// Write nothing; fail with the list of files that differ.
        #[arg(long)]
        check: bool,
    },
}

fn main() -> Result<()> {
    let root = root();
    match Cli::parse().command {
        Command::Generate { check: false } => generate::write(&root),
        Command::Generate { check: true } => generate::check(&root),
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
