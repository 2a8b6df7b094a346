//! One of our programs while it is measured: what it holds of the machine, what it writes, whether it is ready.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bulkhead_testbed::audit::{Audit, Record};
use bulkhead_testbed::process::Process;
use bulkhead_testbed::usage::{self, Usage};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::Result;

/// So long nothing is written when nothing is left to be written.
pub const QUIET: Duration = Duration::from_secs(3);

/// API writes by what was written and how it was answered, Leases left out: `patch persistentvolumes` and so on.
#[derive(Clone, Debug, Default)]
pub struct Writes(BTreeMap<String, usize>);

impl Writes {
    /// What `user` has asked for since the log ended there, granted or not.
    pub fn since(audit: &Audit, end: u64, user: &str) -> Result<Self> {
        let is_counted = |record: &Record| record.is_write() && record.user == user && record.resource != "leases";
        let mut counts = BTreeMap::new();
        for record in audit.records_since(end)?.filter(is_counted) {
            let subresource = if record.subresource.is_empty() { "" } else { "/" };
            let refused = if record.succeeded() { String::new() } else { format!(" answered {}", record.code) };
            let Record { verb, resource, subresource: of, .. } = record;
            let what = format!("{verb} {resource}{subresource}{of}{refused}");
            *counts.entry(what).or_default() += 1;
        }
        Ok(Self(counts))
    }

    /// All of them.
    pub fn all(&self) -> usize {
        self.0.values().sum()
    }

    /// Without Events and status.
    pub fn kept(&self) -> usize {
        let is_told = |what: &str| what.contains(" events") || what.contains("/status");
        self.0.iter().filter(|(what, _)| !is_told(what)).map(|(_, count)| count).sum()
    }

    /// Events, which tell people something and keep nothing.
    pub fn events(&self) -> usize {
        self.0.iter().filter(|(what, _)| what.contains(" events")).map(|(_, count)| count).sum()
    }
}

impl std::fmt::Display for Writes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        let parts: Vec<_> = self.0.iter().map(|(what, count)| format!("{count} {what}")).collect();
        f.write_str(&parts.join(", "))
    }
}

/// What a program has used since a moment.
pub struct Spell {
    began: Instant,
    before: Usage,
}

/// What it came to.
#[derive(Clone, Copy, Debug)]
pub struct Spent {
    /// Seconds of processor time.
    pub processor: f64,
    /// Percent of one processor.
    pub share: f64,
    /// MiB that it holds now.
    pub memory: f64,
    /// The most MiB that it held at once since then.
    pub peak: f64,
}

impl Spell {
    /// From now on.
    pub fn begin(process: &Process) -> Result<Self> {
        usage::forget_peak(process)?;
        Ok(Self { began: Instant::now(), before: usage::of(process)? })
    }

    /// From now on, of a program that has just been started.
    pub fn of_start() -> Self {
        Self { began: Instant::now(), before: Usage::default() }
    }

    /// Until now.
    pub fn end(&self, process: &Process) -> Result<Spent> {
        let now = usage::of(process).map_err(|error| format!("{error}:\n{}", process.log_tail()))?;
        let processor = now.processor.saturating_sub(self.before.processor).as_secs_f64();
        let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        Ok(Spent {
            processor,
            share: 100.0 * processor / self.began.elapsed().as_secs_f64(),
            memory: mebibytes(now.memory),
            peak: mebibytes(now.peak_memory),
        })
    }
}

/// Waits until a program has nothing to write any more.
pub async fn quiet(audit: &Audit, user: &str, limit: Duration) -> Result<()> {
    let deadline = Instant::now() + limit;
    loop {
        let end = audit.end()?;
        tokio::time::sleep(QUIET).await;
        let written = Writes::since(audit, end, user)?;
        if written.all() == 0 {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("there is no rest: in the last {QUIET:?} the controller wrote {written}").into());
        }
    }
}

/// Waits until the program that was started last under this name says that it is ready.
pub async fn ready(process: &mut Process, limit: Duration) -> Result<()> {
    let deadline = Instant::now() + limit;
    loop {
        process.ensure_running()?;
        let last = match get(process, "/readyz").await {
            Ok(answer) if answer.starts_with("HTTP/1.0 200") || answer.starts_with("HTTP/1.1 200") => return Ok(()),
            Ok(answer) => answer,
            Err(error) => error.to_string(),
        };
        if Instant::now() > deadline {
            return Err(format!("{} is not ready after {limit:?}: {last}", process.launch().name).into());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The sum of a program's metrics of that name that carry these labels.
pub async fn metric(process: &Process, name: &str, labels: &str) -> Result<f64> {
    let text = get(process, "/metrics").await?;
    Ok(sum(&text, name, labels))
}

fn sum(text: &str, name: &str, labels: &str) -> f64 {
    let of_name =
        |line: &&str| line.split(['{', ' ']).next().is_some_and(|it| it.trim_start_matches("bulkhead_") == name);
    let named = text.lines().filter(of_name).filter(|line| line.contains(labels));
    named.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

async fn get(process: &Process, path: &str) -> Result<String> {
    let log = std::fs::read_to_string(&process.launch().log)?;
    let address = address(&log).ok_or("it has not said where it listens")?;
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// The address in the last line that says that the program has started.
fn address(log: &str) -> Option<&str> {
    let line = log.lines().rev().find(|line| line.contains(" started"))?;
    let from = line.find("127.0.0.1:")?;
    let address = line.get(from..)?;
    let end = address.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ':').unwrap_or(address.len());
    address.get(..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_start_tells_the_address() {
        let log = "x started address=127.0.0.1:1\nlater\n bulkhead started \u{1b}[3maddress\u{1b}[0m=127.0.0.1:4242 version=1\n";
        assert_eq!(address(log), Some("127.0.0.1:4242"));
        assert_eq!(address("nothing"), None);
    }

    #[test]
    fn a_metric_is_the_sum_of_those_with_its_labels() {
        let text = "HTTP/1.0 200 OK\r\n\r\n# TYPE bulkhead_a counter\nbulkhead_a{q=\"x\",r=\"1\"} 2\nbulkhead_a{q=\"x\",r=\"2\"} \
                    0.5\nbulkhead_a{q=\"y\"} 7\nbulkhead_a_total{q=\"x\"} 9\n";
        assert_eq!((sum(text, "a", "q=\"x\""), sum(text, "b", "")), (2.5, 0.0));
    }

    #[test]
    fn writes_are_told_by_kind() {
        let writes = Writes([("create events".to_owned(), 3), ("patch persistentvolumes".to_owned(), 2)].into());
        assert_eq!((writes.all(), writes.events()), (5, 3));
        assert_eq!(writes.to_string(), "3 create events, 2 patch persistentvolumes");
    }
}
