//! The images of our programs and of the upstream ones that run in pods: which there are and where their archives are. How an
//! archive looks stands in [`crate::image`].
//!
//! All programs are static (`.cargo/config.toml`), so there is nothing else in an image. They are built before: what is packed
//! is what was tested.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::binaries::{Binaries, BinariesError, Program};
use crate::image::{ImageError, ImageSpec};

/// Nobody in particular, as in the manifests that we ship.
const NOBODY: Option<u32> = Some(65532);
/// Root: what the program needs belongs to root on the node, a CSI socket or all of a node's mounts.
const ROOT: Option<u32> = None;

/// What an image is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// A program of ours.
    Ours,
    /// An upstream program.
    Upstream(Program),
}

/// One image, `NAME:latest` with the program `/NAME`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Image {
    name: &'static str,
    source: Source,
    user: Option<u32>,
}

/// Every image there is.
const IMAGES: [Image; 7] = [
    Image { name: "bulkhead-controller", source: Source::Ours, user: NOBODY },
    Image { name: "bulkhead-csi-sidecar", source: Source::Ours, user: ROOT },
    Image { name: "bulkhead-node-agent", source: Source::Ours, user: ROOT },
    Image { name: "testbed-csi-driver", source: Source::Ours, user: ROOT },
    Image { name: "testbed-writer", source: Source::Ours, user: ROOT },
    Image { name: "csi-attacher", source: Source::Upstream(Program::CsiAttacher), user: ROOT },
    Image { name: "csi-provisioner", source: Source::Upstream(Program::CsiProvisioner), user: ROOT },
];

/// Why there are no images.
#[derive(Debug, thiserror::Error)]
pub enum ImagesError {
    /// An upstream program.
    #[error(transparent)]
    Binaries(#[from] BinariesError),
    /// An archive.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A file of this machine.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A program is not there.
    #[error("there is no program {path}: build it with `cargo build --workspace --bins`")]
    NoProgram {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// A command cannot be run.
    #[error("cannot run strip ({0}): install the package binutils, which comes with the C compiler")]
    Strip(io::Error),
    /// The command failed.
    #[error("strip failed for {path}: {message}")]
    NotStripped {
        /// The program.
        path: PathBuf,
        /// What it printed.
        message: String,
    },
}

/// Where the archives are if nothing else is said: beside the programs.
pub fn folder(programs: &Path) -> PathBuf {
    programs.join("images")
}

/// Packs what is missing or out of date, and returns the archives in `folder`. Our programs are taken from `programs`, a
/// folder of cargo's; upstream's are built if they are nowhere. Blocks: for minutes if nothing was built before.
///
/// # Errors
/// When a program is not there, or an archive not be written.
pub fn ensure(programs: &Path, folder: &Path) -> Result<Vec<PathBuf>, ImagesError> {
    std::fs::create_dir_all(folder).map_err(file_error("create", folder))?;
    let upstream = Binaries::ensure_all(None, &[Program::CsiAttacher, Program::CsiProvisioner])?;
    let mut archives = Vec::new();
    for image in IMAGES {
        let program = match image.source {
            Source::Ours => programs.join(image.name),
            Source::Upstream(program) => upstream.path(program),
        };
        if !program.exists() {
            return Err(ImagesError::NoProgram { path: program });
        }
        let archive = folder.join(format!("{}.tar", image.name));
        pack(image, &program, &archive)?;
        archives.push(archive);
    }
    Ok(archives)
}

/// Writes the archive of a program unless it is younger.
fn pack(image: Image, program: &Path, archive: &Path) -> Result<(), ImagesError> {
    let modified = |path: &Path| std::fs::metadata(path).and_then(|metadata| metadata.modified());
    let built = modified(program).map_err(file_error("read", program))?;
    if modified(archive).is_ok_and(|written| built < written) {
        return Ok(());
    }
    let scratch =
        tempfile::tempdir_in(archive.parent().unwrap_or(Path::new("/"))).map_err(file_error("write", archive))?;
    let small = scratch.path().join(image.name);
    strip(program, &small)?;
    let spec = ImageSpec { user: image.user, ..ImageSpec::of_program(&format!("{}:latest", image.name), &small) };
    let written = scratch.path().join("image.tar");
    spec.write(&written)?;
    // Whoever reads it meanwhile has the old one or the new one.
    std::fs::rename(&written, archive).map_err(file_error("write", archive))
}

/// Every node of a testbed unpacks it: without what only a debugger needs.
fn strip(program: &Path, to: &Path) -> Result<(), ImagesError> {
    let output = Command::new("strip").args(["--strip-all", "-o"]).args([to, program]).output();
    let output = output.map_err(ImagesError::Strip)?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(ImagesError::NotStripped { path: program.to_owned(), message })
}

fn file_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ImagesError {
    let path = path.to_owned();
    move |source| ImagesError::File { action, path, source }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn an_archive_is_written_when_its_program_is_younger() {
        let folder = tempfile::tempdir().unwrap();
        let (program, archive) = (folder.path().join("program"), folder.path().join("program.tar"));
        let image = Image { name: "program", source: Source::Ours, user: NOBODY };
        let touch = |path: &Path, seconds| {
            let time = SystemTime::now() + std::time::Duration::from_secs(seconds);
            std::fs::File::options().append(true).open(path).unwrap().set_modified(time).unwrap();
        };
        std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        pack(image, &program, &archive).unwrap();
        let first = std::fs::metadata(&archive).unwrap().len();
        touch(&archive, 60);
        std::fs::copy("/bin/true", &program).unwrap();
        pack(image, &program, &archive).unwrap();
        assert_eq!(std::fs::metadata(&archive).unwrap().len(), first, "the archive is younger");
        touch(&program, 120);
        pack(image, &program, &archive).unwrap();
        assert_ne!(std::fs::metadata(&archive).unwrap().len(), first, "the program is younger");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
