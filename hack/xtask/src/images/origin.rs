//! Where an image comes from: version, commit and its time. Nothing of this machine or of now, so that who builds the same
//! commit again gets the same archive.

use std::path::Path;
use std::process::Command;

use bulkhead_testbed::image::digest;
use bulkhead_testbed::images;
use chrono::{DateTime, SecondsFormat};

use crate::Result;

/// The variable by which distributions say what time it should be in what they build.
const EPOCH: &str = "SOURCE_DATE_EPOCH";

/// Behind the commit where the tree differs from it.
const DIRTY: &str = "-dirty";

/// What an image of this tree says of itself.
pub struct Origin {
    /// The version of the workspace.
    pub version: &'static str,
    /// The commit; with `-dirty` where the tree differs from it.
    pub revision: String,
    /// Of the commit, unless `SOURCE_DATE_EPOCH` says otherwise; RFC 3339.
    pub created: String,
}

/// That of the tree at `root`.
pub fn of(root: &Path) -> Result<Origin> {
    // First: whatever changes from here on, `check` sees.
    let revision = revision(root)?;
    let seconds = match std::env::var(EPOCH) {
        Ok(seconds) => seconds,
        Err(_) => git(root, &["log", "-1", "--format=%ct"])?,
    };
    Ok(Origin { version: env!("CARGO_PKG_VERSION"), revision, created: time(&seconds)? })
}

impl Origin {
    /// Fails if the tree is no longer what it was: then nobody knows what was built. Of a clean tree, that is: one that differed from
    /// its commit before may differ in another way now, and says `-dirty` all the same.
    pub fn check(&self, root: &Path) -> Result<()> {
        match change(&self.revision, &revision(root)?) {
            None => Ok(()),
            Some(change) => Err(change.into()),
        }
    }

    /// As labels of an image that has this bill of materials.
    pub fn with_sbom(&self, sbom: &str) -> images::Origin {
        let label = |name: &str, value: &str| (format!("org.opencontainers.image.{name}"), value.to_owned());
        images::Origin {
            version: self.version.to_owned(),
            created: self.created.clone(),
            labels: vec![
                label("created", &self.created),
                label("licenses", "Apache-2.0"),
                label("revision", &self.revision),
                label("title", "Bulkhead"),
                label("version", self.version),
                ("dev.bulkhead.sbom.digest".to_owned(), format!("sha256:{}", digest(sbom.as_bytes()))),
            ],
        }
    }
}

fn revision(root: &Path) -> Result<String> {
    let commit = git(root, &["rev-parse", "HEAD"])?;
    let is_clean = git(root, &["status", "--porcelain"])?.is_empty();
    Ok(if is_clean { commit } else { commit + DIRTY })
}

/// What became of the tree between two looks at its revision, and what to do.
fn change(before: &str, now: &str) -> Option<String> {
    if before == now {
        return None;
    }
    let (commit, is_dirty) = before.strip_suffix(DIRTY).map_or((before, false), |commit| (commit, true));
    let what = if now.strip_suffix(DIRTY).unwrap_or(now) != commit {
        format!("it was {before} and is {now}")
    } else if is_dirty {
        format!("files differed from the commit {commit} and do so no longer")
    } else {
        format!("files differ from the commit {commit} now, see git status")
    };
    Some(format!(
        "the tree changed while it was built: {what}. Nothing was packed, for no revision is that of the programs: \
         build again in a worktree of its own (git worktree add --detach FOLDER {commit})"
    ))
}

fn time(seconds: &str) -> Result<String> {
    let time = seconds.parse().ok().and_then(|seconds| DateTime::from_timestamp(seconds, 0));
    let time = time.ok_or_else(|| format!("{EPOCH} is {seconds:?}: give the seconds since 1970"))?;
    Ok(time.to_rfc3339_opts(SecondsFormat::Secs, true))
}

fn git(root: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new("git").arg("-C").arg(root).args(arguments).output();
    let output = output.map_err(|error| format!("cannot run git ({error}), which knows what is built: install it"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("git {} failed: {}", arguments.join(" "), said.trim()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_that_changed_while_it_was_built_is_told() {
        for same in ["0123", "0123-dirty"] {
            assert_eq!(change(same, same), None);
        }
        let changes = [
            ("0123", "4567", "it was 0123 and is 4567."),
            ("0123-dirty", "4567", "it was 0123-dirty and is 4567."),
            ("0123", "0123-dirty", "files differ from the commit 0123 now"),
            ("0123-dirty", "0123", "and do so no longer"),
        ];
        for (before, now, what) in changes {
            let told = change(before, now).unwrap();
            assert!(told.contains(what) && told.ends_with("(git worktree add --detach FOLDER 0123)"), "{told}");
        }
    }

    #[test]
    fn times_are_those_of_the_source() {
        assert_eq!(time("1795305600").unwrap(), "2026-11-22T00:00:00Z");
        assert!(time("today").unwrap_err().to_string().contains("SOURCE_DATE_EPOCH"));
    }
}
