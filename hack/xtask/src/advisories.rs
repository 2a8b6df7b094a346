//! Known holes in dependencies. What cannot be asked is told as not asked.

use std::path::Path;
use std::process::Command;

use crate::Result;
use crate::steps::Steps;

/// The workspaces of which cargo knows what they need: ours, and what stands in for mount-s3 in tests. (Not that of the Go modules
/// which the testbed builds upstream's programs from.)
const WORKSPACES: [&str; 2] = ["./Cargo.toml", "hack/mount-s3/Cargo.toml"];
/// Says that it must not be left out: `required`.
const VARIABLE: &str = "BULKHEAD_ADVISORIES";

/// Asks the RustSec advisory database, by cargo-deny.
pub fn check(steps: &mut Steps, cargo_deny: &Path) -> Result<()> {
    let fetch = Command::new(cargo_deny).args(["fetch", "db"]).current_dir(&steps.root).output()?;
    if !fetch.status.success() {
        let said = String::from_utf8_lossy(&fetch.stderr);
        let why = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing").to_owned();
        return unreachable(steps, std::env::var(VARIABLE).ok().as_deref(), &why);
    }
    let remedy = "a dependency has a known hole: update it, or name the advisory in `deny.toml` with the reason why it does not \
                  concern us";
    WORKSPACES.iter().try_for_each(|manifest| {
        let mut deny = Command::new(cargo_deny);
        deny.args(["--manifest-path", manifest, "--locked", "check", "--config", "deny.toml"]);
        deny.args(["--hide-inclusion-graph", "--disable-fetch", "advisories"]);
        steps.run(&mut deny, remedy)
    })
}

fn unreachable(steps: &mut Steps, wanted: Option<&str>, why: &str) -> Result<()> {
    let what = format!("dependencies: known holes (the RustSec database cannot be fetched: {why})");
    if wanted == Some("required") {
        return Err(format!("{what}; without {VARIABLE}=required it is left out").into());
    }
    println!("    NOT CHECKED: {what}");
    steps.not_checked.push(what);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn what_cannot_be_asked_is_told_and_fails_where_it_is_required() {
        let mut steps = Steps::new(Path::new("."));
        assert!(
            unreachable(&mut steps, Some("required"), "no network").unwrap_err().to_string().contains("no network")
        );
        assert!(steps.not_checked.is_empty());
        unreachable(&mut steps, None, "no network").unwrap();
        assert!(steps.not_checked[0].contains("no network"));
    }

    /// Each lock file of the tree is asked about, but those of Go.
    #[test]
    fn every_lock_file_is_asked_about() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let folders = ["", "hack", "tests"].map(|folder| root.join(folder));
        let entries = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
        let below = entries.map(|entry| entry.unwrap().path().join("Cargo.lock")).filter(|lock| lock.is_file());
        let locks: BTreeSet<_> = below.chain([root.join("Cargo.lock")]).collect();
        assert_eq!(
            locks,
            WORKSPACES.map(|manifest| root.join(manifest.trim_start_matches("./")).with_extension("lock")).into()
        );
    }
}
