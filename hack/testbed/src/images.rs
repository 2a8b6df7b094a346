//! The images of our programs and of the upstream ones that run in pods: which there are and where their archives are. How an
//! archive looks stands in [`crate::image`].
//!
//! All programs are static (`.cargo/config.toml`), so there is nothing else in an image. They are built before: what is packed
//! is what was tested.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use crate::binaries::{Binaries, BinariesError, Program};
use crate::image::{self, ImageError, ImageFile, ImageSpec, oci};

/// Nobody in particular, as in the manifests that we ship.
const NOBODY: Option<u32> = Some(65532);
/// Root: what the program needs belongs to root on the node, a CSI socket or all of a node's mounts.
const ROOT: Option<u32> = None;
/// As whom Mountpoint Pods run.
const MOUNTPOINT: Option<u32> = Some(1000);
/// Where mount-s3 is in the image of Mountpoint Pods.
const ENGINE_FOLDER: &str = "/mountpoint-s3/bin";
/// Where distributions keep the authorities that they trust; the first is where programs look in our images.
const AUTHORITIES: [&str; 2] = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];

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
    /// Whether its program speaks TLS to servers of others: with the authorities that this machine trusts.
    authorities: bool,
    /// Further names of the program.
    links: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
}

impl Image {
    /// The others are of the testbed.
    fn is_shipped(&self) -> bool {
        self.source == Source::Ours && self.name.starts_with("bulkhead-")
    }
}

const fn ours(name: &'static str, user: Option<u32>) -> Image {
    Image { name, source: Source::Ours, user, authorities: false, links: &[], environment: &[] }
}

const fn upstream(name: &'static str, program: Program) -> Image {
    Image { source: Source::Upstream(program), ..ours(name, ROOT) }
}

/// What runs in Mountpoint Pods. The program has the name that the Scality driver's controller calls it by too, and finds
/// mount-s3 where that driver's image has it.
const MOUNTER: Image = Image {
    authorities: true,
    links: &["/bin/scality-s3-csi-mounter"],
    environment: &[("MOUNTPOINT_BIN_DIR", ENGINE_FOLDER)],
    ..ours("bulkhead-s3-mounter", MOUNTPOINT)
};

/// Every image there is.
const IMAGES: [Image; 9] = [
    ours("bulkhead-controller", NOBODY),
    ours("bulkhead-csi-sidecar", ROOT),
    ours("bulkhead-node-agent", ROOT),
    Image { authorities: true, ..ours("bulkhead-s3-csi", ROOT) },
    MOUNTER,
    ours("testbed-csi-driver", ROOT),
    ours("testbed-writer", ROOT),
    upstream("csi-attacher", Program::CsiAttacher),
    upstream("csi-provisioner", Program::CsiProvisioner),
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
    #[error("cannot run {strip} ({source}): install the package binutils, which comes with the C compiler")]
    Strip {
        /// The command.
        strip: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The command failed.
    #[error("{strip} failed for {path}: {message}")]
    NotStripped {
        /// The command.
        strip: &'static str,
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
        let archive = folder.join(format!("{}.tar", image.name));
        pack(image, &[(&program, "/")], &archive)?;
        archives.push(archive);
    }
    Ok(archives)
}

/// What an image that is shipped says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Its tag.
    pub version: String,
    /// When, as RFC 3339.
    pub created: String,
    /// Names and values.
    pub labels: Vec<(String, String)>,
}

/// The names of the images that are shipped.
pub fn shipped() -> impl Iterator<Item = &'static str> {
    IMAGES.into_iter().filter(Image::is_shipped).map(|image| image.name)
}

/// The archive of a shipped image for all platforms: one folder of programs for each.
///
/// # Errors
/// As [`ensure`].
pub fn ship(name: &str, programs: &[PathBuf], origin: &Origin, archive: &Path) -> Result<(), ImagesError> {
    let scratch = tempfile::tempdir().map_err(file_error("write", archive))?;
    let mut variants = Vec::new();
    for image in IMAGES.into_iter().filter(|image| image.is_shipped() && image.name == name) {
        for (number, programs) in programs.iter().enumerate() {
            let program = programs.join(image.name);
            if !program.exists() {
                return Err(ImagesError::NoProgram { path: program });
            }
            let own = scratch.path().join(number.to_string());
            std::fs::create_dir(&own).map_err(file_error("create", &own))?;
            let plain = spec(image, &[(&program, "/")], &own)?;
            variants.push(ImageSpec {
                name: format!("{name}:{}", origin.version),
                labels: origin.labels.clone(),
                created: Some(origin.created.clone()),
                ..plain
            });
        }
    }
    Ok(oci::write(&variants, archive)?)
}

/// The archive of the Mountpoint Pods' image with a mount-s3 in it, which the one of [`ensure`] lacks: it is not ours to
/// ship.
///
/// # Errors
/// As [`ensure`].
pub fn mounter_with(engine: &Path, programs: &Path, folder: &Path) -> Result<PathBuf, ImagesError> {
    std::fs::create_dir_all(folder).map_err(file_error("create", folder))?;
    let archive = folder.join(format!("{}-with-mount-s3.tar", MOUNTER.name));
    pack(MOUNTER, &[(&programs.join(MOUNTER.name), "/"), (engine, ENGINE_FOLDER)], &archive)?;
    Ok(archive)
}

/// Writes the archive of some programs, each with its folder in the image, unless it is younger than all of them. The first
/// is what a container runs.
fn pack(image: Image, programs: &[(&Path, &str)], archive: &Path) -> Result<(), ImagesError> {
    let modified = |path: &Path| std::fs::metadata(path).and_then(|metadata| metadata.modified());
    let mut built = SystemTime::UNIX_EPOCH;
    for (program, _) in programs {
        if !program.exists() {
            return Err(ImagesError::NoProgram { path: program.to_path_buf() });
        }
        built = built.max(modified(program).map_err(file_error("read", program))?);
    }
    if modified(archive).is_ok_and(|written| built < written) {
        return Ok(());
    }
    let scratch =
        tempfile::tempdir_in(archive.parent().unwrap_or(Path::new("/"))).map_err(file_error("write", archive))?;
    let spec = spec(image, programs, scratch.path())?;
    let written = scratch.path().join("image.tar");
    spec.write(&written)?;
    // Whoever reads it meanwhile has the old one or the new one.
    std::fs::rename(&written, archive).map_err(file_error("write", archive))
}

/// The file of this machine's authorities.
fn authorities() -> Option<PathBuf> {
    AUTHORITIES.iter().map(PathBuf::from).find(|path| path.is_file())
}

/// The file of authorities in the image of this name, where it is on this machine; none where its program trusts nobody.
pub fn authorities_of(name: &str) -> Option<PathBuf> {
    let trusts = IMAGES.iter().any(|image| image.name == name && image.authorities);
    trusts.then(authorities).flatten()
}

fn spec(image: Image, programs: &[(&Path, &str)], scratch: &Path) -> Result<ImageSpec, ImagesError> {
    let mut files = Vec::new();
    for (program, folder) in programs {
        let name = program.file_name().unwrap_or_default();
        let small = scratch.join(name);
        strip(program, &small)?;
        let path = Path::new(folder).join(name).display().to_string();
        files.push(ImageFile { source: small, path, mode: 0o755 });
    }
    let entrypoint: Vec<_> = files.first().map(|file| file.path.clone()).into_iter().collect();
    let authorities = image.authorities.then(authorities).flatten();
    let [place, ..] = AUTHORITIES;
    files.extend(authorities.map(|source| ImageFile { source, path: place.to_owned(), mode: 0o644 }));
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Ok(ImageSpec {
        name: format!("{}:latest", image.name),
        links: image
            .links
            .iter()
            .flat_map(|link| entrypoint.first().map(|to| ((*link).to_owned(), to.clone())))
            .collect(),
        environment: image.environment.iter().map(owned).collect(),
        user: image.user,
        files,
        entrypoint,
        ..ImageSpec::default()
    })
}

/// Every node of a testbed unpacks it: without what only a debugger needs.
pub(crate) fn strip(program: &Path, to: &Path) -> Result<(), ImagesError> {
    let is_foreign = image::architecture_of(program).is_some_and(|it| it != image::architecture());
    // Who builds for arm64 elsewhere has that compiler's tools.
    let strip = if is_foreign { "aarch64-linux-gnu-strip" } else { "strip" };
    let output = Command::new(strip).args(["--strip-all", "-o"]).args([to, program]).output();
    let output = output.map_err(|source| ImagesError::Strip { strip, source })?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(ImagesError::NotStripped { strip, path: program.to_owned(), message })
}

fn file_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ImagesError {
    let path = path.to_owned();
    move |source| ImagesError::File { action, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: &Path, seconds: u64) {
        let time = SystemTime::now() + std::time::Duration::from_secs(seconds);
        std::fs::File::options().append(true).open(path).unwrap().set_modified(time).unwrap();
    }

    #[test]
    fn an_archive_is_written_when_its_program_is_younger() {
        let folder = tempfile::tempdir().unwrap();
        let (program, archive) = (folder.path().join("program"), folder.path().join("program.tar"));
        let image = ours("program", NOBODY);
        let pack = || pack(image, &[(&program, "/")], &archive).unwrap();
        std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        pack();
        let first = std::fs::metadata(&archive).unwrap().len();
        touch(&archive, 60);
        std::fs::copy("/bin/true", &program).unwrap();
        pack();
        assert_eq!(std::fs::metadata(&archive).unwrap().len(), first, "the archive is younger");
        touch(&program, 120);
        pack();
        assert_ne!(std::fs::metadata(&archive).unwrap().len(), first, "the program is younger");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_mountpoint_pod_finds_the_mounter_and_mount_s3_by_the_names_of_the_scality_driver() {
        let folder = tempfile::tempdir().unwrap();
        let [mounter, engine] = ["bulkhead-s3-mounter", "mount-s3"].map(|name| folder.path().join(name));
        for program in [&mounter, &engine] {
            std::fs::copy("/bin/true", program).unwrap();
        }
        let scratch = tempfile::tempdir().unwrap();
        let spec = spec(MOUNTER, &[(&mounter, "/"), (&engine, ENGINE_FOLDER)], scratch.path()).unwrap();
        assert_eq!(spec.entrypoint, ["/bulkhead-s3-mounter"]);
        assert_eq!(spec.links, [("/bin/scality-s3-csi-mounter".to_owned(), "/bulkhead-s3-mounter".to_owned())]);
        assert!(spec.files.iter().any(|file| file.path == "/mountpoint-s3/bin/mount-s3" && file.mode == 0o755));
        assert_eq!(spec.environment, [("MOUNTPOINT_BIN_DIR".to_owned(), "/mountpoint-s3/bin".to_owned())]);
        assert_eq!(spec.user, Some(1000));
    }
}
