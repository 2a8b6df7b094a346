//! Programs of others that the project's commands call: each in one release, in our cache, installed there when it is missing.

use std::path::PathBuf;

use bulkhead_testbed::binaries::cache_folder;

use crate::Result;
use crate::steps::{Steps, cargo};

/// A program that cargo installs.
pub struct Tool {
    /// Of the package and of the program.
    pub name: &'static str,
    /// The release.
    pub version: &'static str,
    /// Further arguments of `cargo install`.
    pub arguments: &'static [&'static str],
}

impl Tool {
    /// The program, installed if it is not there yet.
    pub fn ensure(&self, steps: &Steps) -> Result<PathBuf> {
        let Self { name, version, arguments } = self;
        let folder = cache_folder()?.join("tools").join(format!("{name}-{version}"));
        let program = folder.join("bin").join(name);
        if !program.is_file() {
            println!("    {name} {version} is not in {} yet: installing it, a few minutes", folder.display());
            let mut install = cargo(&["install", "--locked", "--version", version, "--root"]);
            install.arg(&folder).args(*arguments).arg(name);
            steps.run(&mut install, &format!("{name} could not be installed: is the crate registry reachable?"))?;
        }
        Ok(program)
    }
}
