//! `testbed-writer`: what runs in the containers of tests. It appends to a journal on its volume for ever, whatever the
//! disk says: the worst that a fenced node can have. One line on standard output per write and per refusal.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bulkhead_testbed::journal::{Journal, JournalError};
use clap::{Args, Parser};
use tokio::signal::unix::{SignalKind, signal};

/// Appends numbered records to a journal until it is told to end.
#[derive(Parser)]
#[command(name = "testbed-writer", version)]
struct Cli {
    #[command(flatten)]
    disk: Disk,
    /// The time between two records, such as 100ms or 2s
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = duration)]
    every: Duration,
    /// Who writes, for the record
    #[arg(long, value_name = "NAME", env = "POD_NAME", default_value = "unnamed")]
    writer: String,
    /// End with the first I/O error
    #[arg(long)]
    exit_on_error: bool,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct Disk {
    /// The journal's file
    #[arg(long, value_name = "PATH")]
    journal: Option<PathBuf>,
    /// A raw block device to keep the journal on
    #[arg(long, value_name = "PATH")]
    device: Option<PathBuf>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    // Process 1 of a container only ends by signals that it has asked for.
    let signals =
        signal(SignalKind::terminate()).and_then(|terminate| Ok((terminate, signal(SignalKind::interrupt())?)));
    let (mut terminate, mut interrupt) = match signals {
        Ok(signals) => signals,
        Err(error) => {
            say(&format!("cannot wait for signals: {error}"));
            return ExitCode::FAILURE;
        }
    };
    // A write that hangs must not hang the end.
    let writing = tokio::task::spawn_blocking(move || write(&cli));
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        _ = writing => std::process::exit(1),
    }
    std::process::exit(0)
}

/// Returns only when there is no point in going on.
fn write(cli: &Cli) {
    let Some(mut journal) = open(cli) else {
        return;
    };
    say(&format!("opened records={}", journal.last()));
    loop {
        match journal.append(&cli.writer) {
            Ok(number) => say(&format!("wrote {number}")),
            Err(error) => {
                say(&format!("refused {}: {error}", journal.last() + 1));
                if cli.exit_on_error {
                    return;
                }
            }
        }
        std::thread::sleep(cli.every);
    }
}

fn open(cli: &Cli) -> Option<Journal> {
    let (path, is_device) = match (&cli.disk.journal, &cli.disk.device) {
        (_, Some(device)) => (device, true),
        (Some(journal), None) => (journal, false),
        // clap has asked for one of them.
        (None, None) => return None,
    };
    loop {
        match Journal::open(path, is_device) {
            Ok(journal) => return Some(journal),
            Err(JournalError::Io(error)) => say(&format!("refused to open: {error}")),
            Err(error @ JournalError::Gap { .. }) => {
                say(&format!("broken: {error}"));
                return None;
            }
        }
        if cli.exit_on_error {
            return None;
        }
        std::thread::sleep(cli.every);
    }
}

/// Whether anybody listens is not this program's concern.
fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

fn duration(text: &str) -> Result<Duration, String> {
    let parsed = match text.strip_suffix("ms") {
        Some(number) => number.parse().map(Duration::from_millis),
        None => text.strip_suffix('s').unwrap_or(text).parse().map(Duration::from_secs),
    };
    parsed.map_err(|_| format!("{text:?} is not a time such as 100ms or 2s"))
}
