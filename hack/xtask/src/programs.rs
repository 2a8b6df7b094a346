//! Our own programs: for release as they are shipped, and quickly, with what tests need compiled in, for a look.

use std::path::{Path, PathBuf};

use crate::Result;
use crate::room::{self, Builds};
use crate::steps::{Steps, cargo};

/// How our programs are built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Quick to build, for a look. The switches of `src/mutants.rs` are in them, and no program throws one.
    #[default]
    Dev,
    /// What is shipped, for numbers.
    Release,
}

impl Profile {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dev => "dev",
            Self::Release => "release",
        }
    }
}

/// Builds our programs and returns their folder.
pub fn build(root: &Path, profile: Profile) -> Result<PathBuf> {
    room::check(Builds::Programs)?;
    // This program itself, which `cargo xtask` has just built, is among them: so nothing that it shares is built twice. It depends
    // on the simulator, so the feature `mutants` is theirs too. Those that are shipped are built without both.
    let packages = ["--package", "xtask", "--package", "bulkhead", "--package", "bulkhead-testbed"];
    let mut command = cargo(&["build", "--bins"]);
    command.args(packages);
    if profile == Profile::Release {
        command = cargo(&["build", "--package", "bulkhead", "--package", "bulkhead-testbed", "--bins", "--release"]);
    }
    Steps::new(root).run(&mut command, "the programs do not compile: see above")?;
    Ok(target()?.join(if profile == Profile::Release { "release" } else { "debug" }))
}

/// Cargo's folder for this machine's platform, in which this program is.
pub fn target() -> Result<PathBuf> {
    // It is at TARGET/debug/xtask.
    let own = std::env::current_exe()?;
    let target =
        own.parent().and_then(Path::parent).ok_or("xtask is in no target folder: run it with `cargo xtask`")?;
    Ok(target.to_owned())
}
