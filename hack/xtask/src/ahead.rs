//! What the tests need of other people's programs, built from the beginning on: a process of its own does it beside what cargo
//! builds, with what that leaves of the processors, and is waited for before the first test runs.

use std::fs::File;
use std::io::{self, Write};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use bulkhead_testbed::binaries::{Binaries, Program};
use bulkhead_testbed::csi_addons::real;
use bulkhead_testbed::{mount_s3, real_nodes};
use rustix::process::{Signal, kill_current_process_group, nice, setpgid};
use tempfile::NamedTempFile;

use crate::Result;

/// The command by which this program is the process.
const COMMAND: &str = "build-ahead";
/// The least urgent of all.
const NICE: i32 = 19;
/// How often its output is passed on while it is waited for.
const PACE: Duration = Duration::from_millis(200);
/// How long what was started may take to end by itself.
const ENDS: Duration = Duration::from_secs(3);

/// The process. It ends when this is dropped, and when the program that has it ends in any other way.
pub struct Ahead {
    process: Child,
    output: File,
}

impl Ahead {
    /// Begins.
    pub fn begin() -> Result<Self> {
        Self::start(Command::new(std::env::current_exe()?).arg(COMMAND))
    }

    fn start(command: &mut Command) -> Result<Self> {
        // What it says would stand between the lines of cargo.
        let file = NamedTempFile::new()?;
        let (output, input) = (file.reopen()?, file.reopen()?);
        command.stdin(Stdio::piped()).stdout(input.try_clone()?).stderr(input);
        let process = command.spawn().map_err(|error| format!("cannot build ahead: {error}"))?;
        Ok(Self { process, output })
    }

    /// Waits for its end, and passes on what it says. Whether it has failed is not asked: what it has not built is built where it
    /// is asked for next, and what goes wrong again is told there.
    pub fn wait(&mut self, to: &mut impl Write) -> Result<()> {
        loop {
            // Not `wait`, which would close its input.
            let ended = self.process.try_wait()?;
            io::copy(&mut self.output, to)?;
            if ended.is_some() {
                return Ok(());
            }
            thread::sleep(PACE);
        }
    }
}

/// What the process does.
pub fn build() -> Result<()> {
    // A group of its own, with which all that it has started ends.
    setpgid(None, None)?;
    nice(NICE)?;
    thread::spawn(end_with_input);
    let built = programs();
    // It does not run everywhere. Whoever asks for it next is told why not.
    let _ = real::ensure();
    if real_nodes::check().is_ok() {
        mount_s3::ensure()?;
    }
    built
}

/// Nobody writes to the input. It ends with whoever holds its other end, however that ends.
fn end_with_input() {
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
    // As by Ctrl-C, at which Go removes its scratch files; and for certain, where that signal is ignored.
    for signal in [Signal::INT, Signal::KILL] {
        let _ = kill_current_process_group(signal);
        thread::sleep(ENDS);
    }
}

/// Finds or builds upstream's programs.
pub fn programs() -> Result<()> {
    let of_others = [Program::Helm, Program::Kstatus, Program::ArgoCd, Program::CsiProvisioner, Program::CsiSanity];
    let mut programs = [&Program::BASE[..], &of_others].concat();
    // Where the tests on real nodes say themselves what is lacking, nothing is built for them.
    if real_nodes::check().is_ok() {
        programs.extend(Program::REAL_NODES);
    }
    Ok(Binaries::ensure_all(None, &programs).map(drop)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_it_says_is_passed_on_and_its_input_stays_open() {
        let mut command = Command::new("sh");
        let script = "echo building; echo failed >&2; (sleep 0.3; kill $$) & read -r line || echo its input has ended";
        command.args(["-c", script]);
        let mut ahead = Ahead::start(&mut command).unwrap();
        let mut said = Vec::new();
        ahead.wait(&mut said).unwrap();
        assert_eq!(String::from_utf8(said).unwrap(), "building\nfailed\n");
    }
}
