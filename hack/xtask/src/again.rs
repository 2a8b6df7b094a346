//! Control-plane tests that failed are run again, each by itself: what fails only beside others on a slow machine is
//! told from what is broken, and both are told. ADR 0016.

use std::collections::BTreeMap;

/// How often a test that failed must pass by itself.
pub const TIMES: u32 = 2;
/// With more failed tests than this something is broken, and nothing is run again.
pub const MOST: usize = 3;

/// A test of a target: `it` and `failover::kinds::raw_block`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Test {
    pub target: String,
    pub name: String,
}

/// Reads from what `cargo test` prints which tests failed.
#[derive(Debug, Default)]
pub struct Failures {
    target: Option<String>,
    listed: Vec<String>,
    named: BTreeMap<String, Vec<String>>,
    /// Targets that ended without a list of what failed: a crash, or a target that does not compile.
    unnamed: bool,
}

impl Failures {
    /// One line of the output, of stdout or stderr.
    pub fn line(&mut self, line: &str) {
        if let Some(target) = target(line) {
            self.target = Some(target);
        } else if line == "failures:" {
            self.listed.clear();
        } else if let Some(name) = line.strip_prefix("    ").filter(|name| is_name(name)) {
            self.listed.push(name.to_owned());
        } else if line.starts_with("test result: FAILED") {
            let names = std::mem::take(&mut self.listed);
            match &self.target {
                Some(target) if !names.is_empty() => self.named.entry(target.clone()).or_default().extend(names),
                _ => self.unnamed = true,
            }
        } else if let Some(target) = failed_target(line) {
            self.unnamed |= !self.named.contains_key(target);
        } else if line.starts_with("error: could not compile") {
            self.unnamed = true;
        }
    }

    /// The tests that may be run again; none where a run would say nothing about what went wrong.
    pub fn into_repeats(self) -> Vec<Test> {
        let tests = self.named.into_iter();
        let tests: Vec<Test> = tests
            .flat_map(|(target, names)| names.into_iter().map(move |name| Test { target: target.clone(), name }))
            .collect();
        if self.unnamed || tests.len() > MOST { Vec::new() } else { tests }
    }
}

/// `     Running tests/it/main.rs (target/debug/deps/it-0123456789abcdef)` is the target `it`.
fn target(line: &str) -> Option<String> {
    let (_, program) = line.trim_start().strip_prefix("Running ")?.split_once(" (")?;
    let (name, _hash) = program.strip_suffix(')')?.rsplit('/').next()?.rsplit_once('-')?;
    Some(name.to_owned())
}

/// ``    `-p bulkhead --test it` `` in cargo's closing list.
fn failed_target(line: &str) -> Option<&str> {
    let words = line.trim().strip_prefix("`-p ")?.strip_suffix('`')?;
    words.split_once("--test ").map(|(_, target)| target)
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':')
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "\
     Running tests/it/main.rs (target/debug/deps/it-6bcc211bf36f6834)
test a::one ... ok
test a::two ... FAILED
failures:

---- a::two ----
timed out: {
    spec
    a::three
}

failures:
    a::two

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

     Running tests/real/main.rs (target/debug/deps/real-df9be4435dc3d3a0)
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
error: 1 target failed:
    `-p bulkhead --test it`";

    fn read(output: &str) -> Vec<Test> {
        let mut failures = Failures::default();
        output.lines().for_each(|line| failures.line(line));
        failures.into_repeats()
    }

    #[test]
    fn what_failed_is_read_from_the_closing_list() {
        assert_eq!(read(RUN), [Test { target: "it".into(), name: "a::two".into() }]);
    }

    #[test]
    fn a_target_that_crashed_is_not_repeated() {
        let crashed = format!("{RUN}\n    `-p bulkhead --test real`");
        assert_eq!(read(&crashed), []);
    }

    #[test]
    fn many_failures_are_a_defect() {
        let many = RUN.replacen("failures:\n    a::two", "failures:\n    a::a\n    a::b\n    a::c\n    a::d", 1);
        assert_eq!(read(&many), []);
    }

    #[test]
    fn a_target_that_does_not_compile_is_not_repeated() {
        assert_eq!(read(&format!("{RUN}\nerror: could not compile `bulkhead` (test \"it\")")), []);
    }
}
