//! `xtask check`: what can be said about the tree without running it.

use std::path::Path;
use std::process::Command;

use crate::steps::{Steps, cargo};
use crate::tools::Tool;
use crate::{Result, advisories, generate};

/// What reads `deny.toml`.
const CARGO_DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2", arguments: &["--debug"] };

/// The checks by themselves.
pub fn alone(root: &Path) -> Result<()> {
    let mut steps = Steps::new(root);
    let done = run(&mut steps);
    steps.tell_not_checked();
    done
}

/// Known holes in dependencies, by themselves.
pub fn advisories(root: &Path) -> Result<()> {
    let mut steps = Steps::new(root);
    let done = known_holes(&mut steps);
    steps.tell_not_checked();
    done
}

/// All checks, the quickest first.
pub fn run(steps: &mut Steps) -> Result<()> {
    let format = &mut cargo(&["fmt", "--all", "--check", "--", "-l"]);
    steps.command("format", format, "not formatted: run `cargo fmt --all` and commit")?;
    steps.step("generated files", |steps| generate::check(&steps.root))?;
    let lint = &mut cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]);
    steps.command("lint", lint, "clippy has something to say: see above; `cargo clippy --fix` repairs some of it")?;
    steps.step("shipped programs: no mutants", |steps| no_mutants(&steps.root))?;
    steps.step("dependencies: licenses, bans, sources", |steps| {
        let mut deny = Command::new(CARGO_DENY.ensure(steps)?);
        deny.args(["check", "--hide-inclusion-graph", "licenses", "bans", "sources"]);
        steps.run(
            &mut deny,
            "a dependency is not as `deny.toml` wants it: choose another, or add an exception with its reason",
        )
    })?;
    known_holes(steps)
}

fn known_holes(steps: &mut Steps) -> Result<()> {
    steps.step("dependencies: known holes", |steps| {
        let program = CARGO_DENY.ensure(steps)?;
        advisories::check(steps, &program)
    })
}

/// The features that cargo gives our package when it is built alone, as it is shipped. (The programs refuse to be built
/// for release with the mutants in them as well.)
fn no_mutants(root: &Path) -> Result<()> {
    let mut tree = cargo(&["tree", "--package", "bulkhead", "--edges", "normal", "--depth", "0", "--format", "{f}"]);
    let output = tree.current_dir(root).output()?;
    if !output.status.success() {
        return Err(format!("cargo tree fails: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let features = String::from_utf8(output.stdout)?;
    if features.contains("mutants") {
        return Err(
            "the feature `mutants` is for hack/simulation only: take it out of the defaults in Cargo.toml".into()
        );
    }
    Ok(())
}
