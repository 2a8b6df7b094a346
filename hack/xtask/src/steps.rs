//! Steps that run one after the other: each says what it does and how long it took, and one that fails says what helps.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::Result;

/// How many tests ended how, over all runners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// Tests that were left out, by their own word or because the machine lacks something.
    pub skipped: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

impl Counts {
    /// Adds what a runner says in its closing line: `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
    fn add(&mut self, line: &str) {
        let Some((_, counts)) = line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". ")) else {
            return;
        };
        for part in counts.split("; ") {
            match part.split_once(' ').map(|(number, word)| (number.parse::<u64>(), word)) {
                Some((Ok(number), "passed")) => self.passed += number,
                Some((Ok(number), "failed")) => self.failed += number,
                Some((Ok(number), "ignored")) => self.skipped += number,
                _ => {}
            }
        }
    }
}

/// A run of steps.
pub struct Steps {
    /// Where the commands run.
    pub root: PathBuf,
    /// What the test runners said so far.
    pub counts: Counts,
}

impl Steps {
    /// No step done yet.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), counts: Counts::default() }
    }

    /// Does one step.
    pub fn step(&mut self, name: &str, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        println!("==> {name}");
        let started = Instant::now();
        let done = work(self);
        let verdict = if done.is_ok() { "done" } else { "FAILED" };
        println!("==> {name}: {verdict} in {:.1} s", started.elapsed().as_secs_f64());
        done
    }

    /// One step that is one command; `remedy` says what to do when it fails.
    pub fn command(&mut self, name: &str, command: &mut Command, remedy: &str) -> Result<()> {
        self.step(name, |steps| steps.run(command, remedy))
    }

    /// Runs a command to its end.
    pub fn run(&self, command: &mut Command, remedy: &str) -> Result<()> {
        let status = prepare(command, &self.root).status().map_err(|error| cannot_start(command, &error))?;
        if status.success() { Ok(()) } else { Err(remedy.into()) }
    }

    /// One step that is a test runner: what it prints is passed on, and its closing lines are added up.
    pub fn tests(&mut self, name: &str, command: &mut Command, remedy: &str) -> Result<()> {
        self.step(name, |steps| {
            let spawned = prepare(command, &steps.root).stdout(Stdio::piped()).spawn();
            let mut child = spawned.map_err(|error| cannot_start(command, &error))?;
            let output = child.stdout.take().map(BufReader::new);
            for line in output.into_iter().flat_map(BufRead::lines).map_while(std::result::Result::ok) {
                println!("{line}");
                steps.counts.add(&line);
            }
            if child.wait()?.success() { Ok(()) } else { Err(remedy.into()) }
        })
    }
}

/// What cargo tells its children about the package it runs. A cargo that is started below must not see it: build scripts
/// that look at these variables would run again, and all that depends on them would be built anew.
const OF_A_PACKAGE: [&str; 2] = ["CARGO_PKG_", "CARGO_MANIFEST_"];

fn without_package(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        if OF_A_PACKAGE.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command
}

fn prepare<'a>(command: &'a mut Command, root: &Path) -> &'a mut Command {
    without_package(command).current_dir(root).stdin(Stdio::null())
}

fn cannot_start(command: &Command, error: &std::io::Error) -> String {
    format!("cannot run {}: {error}", command.get_program().to_string_lossy())
}

/// `cargo` with these arguments.
pub fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(args);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_added_up() {
        let mut counts = Counts::default();
        for line in [
            "running 5 tests",
            "test result: ok. 3 passed; 0 failed; 2 ignored; 0 measured; 7 filtered out; finished in 0.01s",
            "test result: FAILED. 4 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 9.30s",
            "a test that prints: 9 passed; 9 failed",
        ] {
            counts.add(line);
        }
        assert_eq!(counts.to_string(), "7 passed, 1 failed, 2 skipped");
    }

    #[test]
    fn a_runner_that_fails_is_an_error_with_the_remedy_and_its_counts() {
        let mut steps = Steps::new(Path::new("/"));
        let line = "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out";
        let mut runner = Command::new("sh");
        runner.args(["-c", &format!("echo '{line}'; exit 1")]);
        let failed = steps.tests("tests", &mut runner, "repair it").expect_err("the runner failed");
        assert_eq!(failed.to_string(), "repair it");
        assert_eq!(steps.counts, Counts { passed: 1, failed: 1, skipped: 0 });
    }
}
