//! Steps that run one after the other: each says what it does and how long it took, and one that fails says what helps.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::ops::AddAssign;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::Result;
use crate::again::{self, Failures};

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

impl AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        self.passed += more.passed;
        self.failed += more.failed;
        self.skipped += more.skipped;
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
    /// Tests that failed beside others and passed by themselves.
    pub unsteady: Vec<again::Test>,
    /// What could not be checked here, with the reason.
    pub not_checked: Vec<String>,
}

impl Steps {
    /// No step done yet.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), counts: Counts::default(), unsteady: Vec::new(), not_checked: Vec::new() }
    }

    /// Says at the end what was not checked: nobody is to take it for good.
    pub fn tell_not_checked(&self) {
        for what in &self.not_checked {
            println!("==> NOT CHECKED: {what}");
        }
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
            let (passed, counts, _) = steps.runner(command)?;
            steps.counts += counts;
            if passed { Ok(()) } else { Err(remedy.into()) }
        })
    }

    /// The same; a few tests that failed are run again, each by itself, and pass if they pass each time. Which they
    /// were is told, and kept for the last lines.
    pub fn tests_with_repeats(&mut self, name: &str, command: &mut Command, remedy: &str) -> Result<()> {
        self.step(name, |steps| {
            let (passed, counts, failures) = steps.runner(command)?;
            steps.counts += counts;
            let again = failures.into_repeats();
            if passed || again.is_empty() {
                return if passed { Ok(()) } else { Err(remedy.into()) };
            }
            for test in again {
                println!("==> again, by itself: {} {}", test.target, test.name);
                for _ in 0..again::TIMES {
                    let arguments = ["test", "--workspace", "--test", &test.target, "--", "--exact", &test.name];
                    let (passed, counts, _) = steps.runner(&mut cargo(&arguments))?;
                    // A run that found no such test has shown nothing.
                    if !passed || counts.passed != 1 {
                        return Err(remedy.into());
                    }
                }
                steps.counts.failed -= 1;
                steps.counts.passed += 1;
                steps.unsteady.push(test);
            }
            Ok(())
        })
    }

    /// Runs tests, passes on what they print, and reads it: whether all passed, how many ended how, and which failed.
    fn runner(&self, command: &mut Command) -> Result<(bool, Counts, Failures)> {
        // One pipe for both: cargo names the target on stderr, the target its tests on stdout, and the order matters.
        let (output, input) = std::io::pipe()?;
        let spawned = prepare(command, &self.root).stdout(input.try_clone()?).stderr(input).spawn();
        let spawned = spawned.map_err(|error| cannot_start(command, &error));
        // The command holds the pipe's other end, without whose closing the output never ends.
        command.stdout(Stdio::inherit()).stderr(Stdio::inherit());
        let mut child = spawned?;
        let (mut counts, mut failures) = (Counts::default(), Failures::default());
        for line in BufReader::new(output).lines().map_while(std::result::Result::ok) {
            println!("{line}");
            counts.add(&line);
            failures.line(&line);
        }
        Ok((child.wait()?.success(), counts, failures))
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
