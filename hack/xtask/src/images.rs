//! `xtask images`: images without a container engine. As they are tested: of all programs, the test driver and what runs beside
//! it. As they are shipped: of our programs, for several platforms, each with its bill of materials.

mod compare;
mod foreign;
mod origin;
mod platform;
mod sbom;

use std::path::{Path, PathBuf};

use bulkhead_testbed::images;

use self::platform::Platform;
use crate::Result;
use crate::programs::{self, Profile};

#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Folder for the archives. Without it: `images`, in cargo's target folder.
    #[arg(long)]
    out: Option<PathBuf>,
    /// As shipped: optimised, labelled, the same each time, with a bill of materials beside each archive.
    #[arg(long)]
    release: bool,
    /// With --release: a platform that the archives are for; repeat it for more. Without it: that of this machine.
    #[arg(long, value_enum, requires = "release")]
    platform: Vec<Platform>,
    /// Build nothing: say whether the archives of --release that are there are the same as those in this folder, such as
    /// another clone's.
    #[arg(long, value_name = "FOLDER", conflicts_with = "release")]
    compare: Option<PathBuf>,
}

/// Builds what is missing or out of date, and prints the files, one a line; or compares what was built.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    if let Some(others) = &options.compare {
        return compare::run(&shipped_to(options)?, others);
    }
    let files = if options.release { ship(root, options)? } else { test(root, options)? };
    files.iter().for_each(|file| println!("{}", file.display()));
    Ok(())
}

fn test(root: &Path, options: &Options) -> Result<Vec<PathBuf>> {
    let programs = programs::build(root, Profile::Dev)?;
    let folder = options.out.clone().unwrap_or_else(|| images::folder(&programs));
    Ok(images::ensure(&programs, &folder)?)
}

fn shipped_to(options: &Options) -> Result<PathBuf> {
    options.out.clone().map_or_else(|| programs::target().map(|target| target.join("images")), Ok)
}

fn ship(root: &Path, options: &Options) -> Result<Vec<PathBuf>> {
    let mut platforms = options.platform.clone();
    if platforms.is_empty() {
        platforms.push(Platform::of_this_machine()?);
    }
    platforms.sort_unstable();
    platforms.dedup();
    // A build takes long enough for somebody to work in the tree meanwhile.
    let origin = origin::of(root)?;
    let programs = platforms.iter().map(|platform| platform.build(root)).collect::<Result<Vec<_>>>()?;
    let c_libraries = platforms.iter().map(|platform| foreign::c_library(*platform)).collect::<Result<_>>()?;
    let materials = sbom::Materials::of(root, &platforms, c_libraries)?;
    // From here on nothing is read from the tree, and no archive is written yet.
    origin.check(root)?;
    let folder = shipped_to(options)?;
    std::fs::create_dir_all(&folder)?;
    let mut files = Vec::new();
    for name in images::shipped() {
        let sbom = materials.document(name, &origin)?.to_string();
        let (archive, document) = (folder.join(format!("{name}.tar")), folder.join(format!("{name}.cdx.json")));
        images::ship(name, &programs, &origin.with_sbom(&sbom), &archive)?;
        std::fs::write(&document, sbom)?;
        files.extend([archive, document]);
    }
    Ok(files)
}
