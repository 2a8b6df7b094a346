//! `testbed-nfs-client`: keeps one file of an NFS server open, appends numbered records to it, each safe before the next, and
//! reads each back. One line on standard output for everything that happens, with its time. A server that does not answer
//! is asked for ever; one that comes up in its place must have every record that was safe.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bulkhead_testbed::journal::{RECORD, number, record};
use bulkhead_testbed::nfs_client::{NfsError, NfsFile, Renewal};
use chrono::{SecondsFormat, Utc};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

/// The pause after an operation that failed.
const AGAIN: Duration = Duration::from_millis(100);
/// How many records are read at once.
const RECORDS: u64 = 512;

/// Appends numbered records to a file of an NFS server and reads them back, until it is told to end.
#[derive(Parser)]
#[command(name = "testbed-nfs-client", version)]
struct Cli {
    /// The server's address and port
    #[arg(long, value_name = "IP:PORT")]
    server: SocketAddr,
    /// The file, from the root of the server's exports on; it is made if it is not there
    #[arg(long, value_name = "PATH")]
    path: String,
    /// Who this client is towards the server: nobody else has this name
    #[arg(long, value_name = "NAME", env = "POD_NAME", default_value = "testbed-nfs-client")]
    name: String,
    /// Milliseconds between two records
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 100)]
    every: u64,
    /// Milliseconds after which a connection is given up and made again
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 1000)]
    patience: u64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    // Process 1 of a container only ends by signals that it has asked for.
    let mut terminate = match signal(SignalKind::terminate()) {
        Ok(terminate) => terminate,
        Err(error) => {
            say(&format!("cannot wait for signals: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let working = tokio::task::spawn_blocking(move || Work::new(&cli).go_on());
    tokio::select! {
        _ = terminate.recv() => {}
        // What it says on its end is said.
        _ = working => std::process::exit(1),
    }
    std::process::exit(0)
}

struct Work {
    file: NfsFile,
    name: String,
    every: Duration,
    /// The last record that the server said is safe.
    last: u64,
    /// Since when nothing succeeds.
    failing: Option<Instant>,
}

impl Work {
    fn new(cli: &Cli) -> Self {
        Self {
            file: NfsFile::new(cli.server, &cli.path, &cli.name, Duration::from_millis(cli.patience)),
            name: cli.name.clone(),
            every: Duration::from_millis(cli.every),
            last: 0,
            failing: None,
        }
    }

    /// Returns only when there is no point in going on: when records are lost.
    fn go_on(&mut self) {
        let Some(found) = self.read_all() else { return };
        self.last = found;
        say(&format!("opened records={found}"));
        loop {
            let renewals = self.append();
            if renewals.contains(&Renewal::Client) {
                // Another server, or the same one anew.
                match self.read_all() {
                    Some(found) if found >= self.last => say(&format!("found records={found}")),
                    Some(found) => return say(&format!("lost records {}..={}", found + 1, self.last)),
                    None => return,
                }
            }
            std::thread::sleep(self.every);
        }
    }

    /// Writes the next record and reads it back, however long that takes. Returns what had to be made anew.
    fn append(&mut self) -> Vec<Renewal> {
        let next = self.last + 1;
        let bytes = record(next, &self.name);
        let mut renewals = self.insist("write", next, |file| file.write(offset(next), &bytes));
        self.last = next;
        say(&format!("wrote {next}"));
        let length = u32::try_from(RECORD).unwrap_or(u32::MAX);
        let mut read = Vec::new();
        renewals.extend(self.insist("read", next, |file| file.read(offset(next), length).map(|bytes| read = bytes)));
        say(&format!("{} {next}", if read == bytes { "read" } else { "read something else than" }));
        renewals
    }

    /// How many records there are without a gap; none if one is missing in between.
    fn read_all(&mut self) -> Option<u64> {
        let mut last = 0;
        loop {
            let mut bytes = Vec::new();
            let length = u32::try_from(RECORDS.saturating_mul(RECORD as u64)).unwrap_or(u32::MAX);
            self.insist("read", last + 1, |file| file.read(offset(last + 1), length).map(|read| bytes = read));
            for found in bytes.chunks_exact(RECORD).map(number) {
                if found != Some(last + 1) {
                    say(&format!("broken: after record {last} comes {found:?}"));
                    return None;
                }
                last += 1;
            }
            if bytes.len() < RECORD {
                return Some(last);
            }
        }
    }

    /// Tries until it is done.
    fn insist(
        &mut self,
        what: &str,
        number: u64,
        mut attempt: impl FnMut(&mut NfsFile) -> Result<(), NfsError>,
    ) -> Vec<Renewal> {
        let mut renewals = Vec::new();
        loop {
            let began = Instant::now();
            let done = attempt(&mut self.file);
            let made = self.file.renewals();
            for renewal in &made {
                say(&format!("renewed {renewal:?}"));
            }
            renewals.extend(made);
            match done {
                Ok(()) => {
                    if let Some(since) = self.failing.take() {
                        say(&format!("resumed after {} ms", since.elapsed().as_millis()));
                    }
                    return renewals;
                }
                Err(error) => {
                    self.failing.get_or_insert(began);
                    let stale = matches!(&error, NfsError::Status(status) if status.is_stale_handle());
                    say(&format!("{} {what} {number}: {error}", if stale { "stale" } else { "failed" }));
                    std::thread::sleep(AGAIN);
                }
            }
        }
    }
}

/// Where a record is in the file.
fn offset(number: u64) -> u64 {
    number.saturating_sub(1).saturating_mul(RECORD as u64)
}

/// Whether anybody listens is not this program's concern.
fn say(line: &str) {
    let time = Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true);
    let _ = writeln!(io::stdout(), "{time} {line}");
}
