//! The project's own commands. `hack/test`, `hack/demo`, `hack/tutorial`, `hack/docs`, `hack/bench` and `hack/fuzz` call it.

mod advisories;
mod again;
mod ahead;
mod bench;
mod check;
mod demo;
mod docs;
mod fuzz;
mod generate;
mod images;
mod incident;
mod programs;
mod reference;
mod room;
mod steps;
mod test;
mod tools;
mod tutorial;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

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
    /// Known holes in dependencies alone, as a daily job asks for them.
    Advisories,
    /// Everything that must pass before a commit: `check`, then all tests.
    Test {
        /// Also what takes long: many more cases of the property tests, all of what the tests on the control plane sample.
        #[arg(long)]
        wide: bool,
    },
    /// A part of `test`: builds what the tests need of other people's programs, until its input ends.
    #[command(hide = true)]
    BuildAhead,
    /// A pod fails over from a dead node, with a timeline: everything from nothing, and gone afterwards.
    Demo(demo::Options),
    /// Feed the parsers of outside input with anything.
    Fuzz(fuzz::Options),
    /// The site with all pages for people, in target/site/book.
    Docs,
    /// A shell with the cluster of the pages in docs/tutorials; all of it ends with the shell.
    Tutorial,
    /// The images of all programs, as archives that `ctr images import` and `docker load` read.
    Images(images::Options),
    /// Measurements.
    Bench {
        #[command(subcommand)]
        benchmark: bench::Benchmark,
    },
}

fn main() -> ExitCode {
    let root = root();
    let done = match Cli::parse().command {
        Command::Generate { check: false } => generate::write(&root),
        Command::Generate { check: true } => generate::check(&root),
        Command::Check => check::alone(&root),
        Command::Advisories => check::advisories(&root),
        Command::Test { wide } => test::run(&root, wide),
        Command::BuildAhead => ahead::build(),
        Command::Fuzz(options) => fuzz::run(&root, &options),
        Command::Images(options) => images::run(&root, &options),
        Command::Bench { benchmark } => until_interrupted(bench::run(&root, &benchmark)),
        Command::Docs => docs::run(&root),
        Command::Tutorial => until_interrupted(tutorial::run(&root)),
        Command::Demo(options) => until_interrupted(demo::run(&root, &options)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs to the end or to Ctrl-C or SIGTERM. Dropping the work ends every process that it started.
fn until_interrupted(work: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let done = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            done = work => done,
            _ = tokio::signal::ctrl_c() => Err("interrupted; everything that was started is stopped".into()),
            _ = terminate.recv() => Err("terminated; everything that was started is stopped".into()),
        }
    });
    // What the work's tasks still hold, the folders of its clusters above all, is given back when they end. A build of
    // upstream programs that goes on in its thread must not be waited for.
    runtime.shutdown_timeout(Duration::from_secs(3));
    done
}

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // As a person would write it; the long form works too.
    root.canonicalize().unwrap_or(root)
}
