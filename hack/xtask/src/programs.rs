//! Our own programs, built as they are shipped.

use std::path::{Path, PathBuf};

use crate::Result;
use crate::steps::{Steps, cargo};

/// Which build of our programs is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Quick to build, for a look.
    Dev,
    /// What is shipped, for numbers.
    Release,
}

impl Profile {
    /// How the profile is named in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dev => "dev",
            Self::Release => "release",
        }
    }
}

/// Builds our programs and returns their folder.
pub fn build(root: &Path, profile: Profile) -> Result<PathBuf> {
    // With the same selection of packages as for the tests, so that as little as possible is built twice.
    let mut command = cargo(&["build", "--workspace", "--bins"]);
    if profile == Profile::Release {
        command = cargo(&["build", "--package", "bulkhead", "--bins", "--release"]);
    }
    Steps::new(root).run(&mut command, "the programs do not compile: see above")?;
    // This program is at TARGET/debug/xtask.
    let own = std::env::current_exe()?;
    let target =
        own.parent().and_then(Path::parent).ok_or("xtask is in no target folder: run it with `cargo xtask`")?;
    Ok(target.join(if profile == Profile::Release { "release" } else { "debug" }))
}
