//! Finds or builds `mount-s3` from `hack/mount-s3`: the program that serves a bucket as a file system, in tests and demos.
//!
//! It is a workspace of its own, because building it takes cmake, a C compiler and libclang. What is built is kept in the
//! user's cache under the hash of its sources, so that this happens once.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use bulkhead::api::names::hex;
use sha2::{Digest as _, Sha256};

use crate::binaries::{BinariesError, cache_folder};

/// The variable that names a ready program.
pub const MOUNT_S3_VARIABLE: &str = "BULKHEAD_MOUNT_S3";
/// Where its sources are in a checkout of this repository.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../mount-s3");
/// What decides how the program turns out. The last one says that it is static.
const INPUTS: [&str; 6] = ["Cargo.toml", "Cargo.lock", "src", "pkg-config", ".cargo", "../../.cargo"];
/// The name of the program's file.
const NAME: &str = "mount-s3";

/// Why there is no mount-s3.
#[derive(Debug, thiserror::Error)]
pub enum MountS3Error {
    /// There is no cache folder.
    #[error(transparent)]
    Cache(#[from] BinariesError),
    /// The variable names nothing.
    #[error("{MOUNT_S3_VARIABLE} names {}, where there is no file", .0.display())]
    NotThere(PathBuf),
    /// Cargo cannot be run.
    #[error("cannot run cargo: {0}")]
    NoCargo(io::Error),
    /// The build failed; its output is above.
    #[error(
        "mount-s3 was not built, see the output above: install cmake, clang and libclang-dev, or name a ready program \
         in {MOUNT_S3_VARIABLE}"
    )]
    Build,
    /// A file could not be read, written, renamed or locked.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Finds `mount-s3`, or builds it: static, so that it runs in an image that holds nothing else. Blocks: for minutes when it
/// builds.
///
/// # Errors
/// When it is not there and cannot be built.
pub fn ensure() -> Result<PathBuf, MountS3Error> {
    if let Some(given) = std::env::var_os(MOUNT_S3_VARIABLE).map(PathBuf::from) {
        return if given.is_file() { Ok(given) } else { Err(MountS3Error::NotThere(given)) };
    }
    let cache = cache_folder()?.join(NAME);
    let program = cache.join(hash_of_sources()?).join(NAME);
    if !program.is_file() {
        fs::create_dir_all(&cache).map_err(file_error("create", &cache))?;
        let lock_path = cache.join(".lock");
        let lock = File::create(&lock_path).map_err(file_error("create", &lock_path))?;
        lock.lock().map_err(file_error("lock", &lock_path))?;
        // Another process may have built it while this one waited for the lock.
        if !program.is_file() {
            build(&cache, &program)?;
        }
    }
    Ok(program)
}

fn build(cache: &Path, program: &Path) -> Result<(), MountS3Error> {
    eprintln!(
        "testbed: building mount-s3: not in {} yet; the first time takes about four minutes on two cores",
        cache.display()
    );
    let started = Instant::now();
    let scratch = cache.join(".building");
    let built = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(SOURCES)
        // They would take the place of the flags that make it static.
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .args(["install", "--path", ".", "--locked", "--no-track", "--force", "--root"])
        .arg(&scratch)
        // What of it is other people's need not be built again when ours changes.
        .arg("--target-dir")
        .arg(cache.join("target"))
        .status()
        .map_err(MountS3Error::NoCargo)?;
    if !built.success() {
        return Err(MountS3Error::Build);
    }
    if let Some(parent) = program.parent() {
        fs::create_dir_all(parent).map_err(file_error("create", parent))?;
    }
    let made = scratch.join("bin").join(NAME);
    fs::rename(&made, program).map_err(file_error("move the built program to", program))?;
    fs::remove_dir_all(&scratch).map_err(file_error("remove", &scratch))?;
    eprintln!("testbed: built mount-s3 in {} s", started.elapsed().as_secs());
    Ok(())
}

fn hash_of_sources() -> Result<String, MountS3Error> {
    let mut hash = Sha256::new();
    for input in INPUTS {
        add(&Path::new(SOURCES).join(input), &mut hash)?;
    }
    Ok(hex(&hash.finalize(), 8))
}

/// Adds a file, or the files of a folder by their names.
fn add(path: &Path, hash: &mut Sha256) -> Result<(), MountS3Error> {
    if path.is_dir() {
        let entries = fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let mut paths: Vec<PathBuf> =
            entries.map_err(file_error("list", path))?.into_iter().map(|entry| entry.path()).collect();
        paths.sort();
        return paths.iter().try_for_each(|path| add(path, hash));
    }
    let text = fs::read(path).map_err(file_error("read", path))?;
    let name = path.file_name().unwrap_or_default();
    // Each with its length, so that nothing can move from one file to the next unseen.
    for part in [name.as_encoded_bytes(), &text] {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    Ok(())
}

fn file_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> MountS3Error {
    let path = path.to_owned();
    move |source| MountS3Error::File { action, path, source }
}
