//! The project's own commands. `hack/test`, `hack/demo` and `hack/bench` call it.

mod check;
mod generate;
mod steps;
mod test;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own commands")]
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
    /// The fast part of `test`: format, generated files, lint, licenses and sources of dependencies.
    Check,
    /// Everything that must pass before a commit: `check`, then all tests.
    Test {
        /// Also what takes long: many more cases of the property tests.
        #[arg(long)]
        wide: bool,
    },
}

fn main() -> ExitCode {
    let root = root();
    let done = match Cli::parse().command {
        Command::Generate { check: false } => generate::write(&root),
        Command::Generate { check: true } => generate::check(&root),
        Command::Check => check::run(&mut steps::Steps::new(&root)),
        Command::Test { wide } => test::run(&root, wide),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // As a person would write it; the long form works too.
    root.canonicalize().unwrap_or(root)
}
