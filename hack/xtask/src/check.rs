//! `xtask check`: what can be said about the tree without running it.

use std::path::{Path, PathBuf};
use std::process::Command;

use bulkhead_testbed::binaries::cache_folder;

use crate::steps::{Steps, cargo};
use crate::{Result, advisories, generate};

/// The release of cargo-deny that reads `deny.toml`.
const CARGO_DENY: &str = "0.20.2";

/// The checks by themselves.
pub fn alone(root: &Path) -> Result<()> {
    let mut steps = Steps::new(root);
    let done = run(&mut steps);
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
        let mut deny = Command::new(cargo_deny(steps)?);
        deny.args(["check", "--hide-inclusion-graph", "licenses", "bans", "sources"]);
        steps.run(
            &mut deny,
            "a dependency is not as `deny.toml` wants it: choose another, or add an exception with its reason",
        )
    })?;
    steps.step("dependencies: known holes", |steps| {
        let program = cargo_deny(steps)?;
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

/// The program cargo-deny in our cache, installed there when it is missing.
fn cargo_deny(steps: &Steps) -> Result<PathBuf> {
    let folder = cache_folder()?.join("tools").join(format!("cargo-deny-{CARGO_DENY}"));
    let program = folder.join("bin/cargo-deny");
    if !program.is_file() {
        println!("    cargo-deny {CARGO_DENY} is not in {} yet: installing it, a few minutes", folder.display());
        let mut install = cargo(&["install", "--locked", "--version", CARGO_DENY, "--root"]);
        install.arg(&folder).arg("cargo-deny");
        steps.run(&mut install, "cargo-deny could not be installed: is the crate registry reachable?")?;
    }
    Ok(program)
}
