//! `xtask images`: the images of our programs, the test driver and what runs beside it, without a container engine.

use std::path::{Path, PathBuf};

use bulkhead_testbed::images;

use crate::Result;
use crate::programs::{self, Profile};

#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Folder for the archives. Without it: `images`, beside the programs in cargo's target folder.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Build as shipped: slower to build, smaller, faster.
    #[arg(long)]
    release: bool,
}

/// Builds what is missing or out of date, and prints the archives, one a line.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let programs = programs::build(root, if options.release { Profile::Release } else { Profile::Dev })?;
    let folder = options.out.clone().unwrap_or_else(|| images::folder(&programs));
    for archive in images::ensure(&programs, &folder)? {
        println!("{}", archive.display());
    }
    Ok(())
}
