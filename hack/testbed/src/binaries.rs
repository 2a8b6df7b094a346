//! Finds or builds the unmodified upstream programs of the testbed.
//!
//! Order: the folder given by the user, the folder that `KUBEBUILDER_ASSETS` names (each only for
//! programs of the right version), the user's cache, and last a build from the Go modules pinned
//! in `hack/testbed/go`. Nothing is downloaded except by `go build`, and never a Go toolchain.

mod modules;
mod program;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use bulkhead::api::names::hex;
use sha2::{Digest, Sha256};

pub use self::program::Program;

use self::modules::Module;

/// The oldest Go release that the pinned modules accept (major, minor).
const GO: (u32, u32) = (1, 26);
/// Where the wrapper modules are in a checkout of this repository.
const MODULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/go");
/// The variable that names the user's own folder of programs.
pub const BINARIES_VARIABLE: &str = "BULKHEAD_BINARIES";
/// The variable that kubebuilder's envtest sets.
const ASSETS_VARIABLE: &str = "KUBEBUILDER_ASSETS";

/// Why a program is not there.
#[derive(Debug, thiserror::Error)]
pub enum BinariesError {
    /// Neither XDG_CACHE_HOME nor HOME is set.
    #[error("no cache folder: set XDG_CACHE_HOME or HOME to a folder that can be written to")]
    NoCacheFolder,
    /// No Go toolchain.
    #[error(
        "cannot run go ({0}): install Go {major}.{minor} or newer from https://go.dev/dl and put it \
         into the PATH, or name a folder with built programs in {BINARIES_VARIABLE}",
        major = GO.0, minor = GO.1
    )]
    NoGo(io::Error),
    /// The Go toolchain is too old.
    #[error(
        "go is {found}, but Go {major}.{minor} or newer is needed: install it from \
         https://go.dev/dl (none is downloaded unasked), or name a folder with built programs in \
         {BINARIES_VARIABLE}",
        major = GO.0, minor = GO.1
    )]
    OldGo {
        /// What `go env GOVERSION` printed.
        found: String,
    },
    /// `go build` failed; its output is above.
    #[error("go build failed in {folder}: see its output above")]
    Build {
        /// The wrapper module's folder.
        folder: PathBuf,
    },
    /// A file could not be written, renamed or locked.
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

/// The folder of a program's upstream module, with what else is in it besides code: the definitions of its kinds, as an
/// example.
///
/// # Errors
/// When Go does not have it and cannot get it.
pub fn upstream_folder(program: Program) -> Result<PathBuf, BinariesError> {
    let module = program.module();
    let folder = Path::new(MODULES).join(module.folder);
    let output = Command::new("go")
        .current_dir(&folder)
        .env("GOTOOLCHAIN", "local")
        .args(["mod", "download", "-json", module.path])
        .output()
        .map_err(BinariesError::NoGo)?;
    let answer: Option<serde_json::Value> = serde_json::from_slice(&output.stdout).ok();
    let found = answer.as_ref().and_then(|answer| answer.get("Dir")).and_then(serde_json::Value::as_str);
    found.map(PathBuf::from).ok_or(BinariesError::Build { folder })
}

/// Where each program is.
#[derive(Clone, Debug)]
pub struct Binaries {
    paths: BTreeMap<Program, PathBuf>,
}

impl Binaries {
    /// Finds what every testbed needs: see [`Binaries::ensure_all`].
    ///
    /// # Errors
    /// When a program is nowhere and cannot be built.
    pub fn ensure(given: Option<&Path>) -> Result<Self, BinariesError> {
        Self::ensure_all(given, &Program::BASE)
    }

    /// Finds all of `programs`, building those that are nowhere. `given` is the folder the user named;
    /// without one, the variable `BULKHEAD_BINARIES` counts. Blocks: for minutes when it builds.
    ///
    /// # Errors
    /// When a program is nowhere and cannot be built.
    pub fn ensure_all(given: Option<&Path>, programs: &[Program]) -> Result<Self, BinariesError> {
        let folders: Vec<PathBuf> = [
            given.map(Path::to_owned).or_else(|| std::env::var_os(BINARIES_VARIABLE).map(PathBuf::from)),
            std::env::var_os(ASSETS_VARIABLE).map(PathBuf::from),
        ]
        .into_iter()
        .flatten()
        .collect();
        let cache = cache_folder()?.join("bin");
        let mut paths = BTreeMap::new();
        for program in programs {
            let path = match find_given(*program, &folders) {
                Some(path) => path,
                None => ensure_cached(*program, programs, &cache)?,
            };
            paths.insert(*program, path);
        }
        Ok(Self { paths })
    }

    /// The program's file.
    pub fn path(&self, program: Program) -> PathBuf {
        // Every program that was asked for is in; the PATH is what is left to a program that is not.
        self.paths.get(&program).cloned().unwrap_or_else(|| program.name().into())
    }
}

/// `$XDG_CACHE_HOME/bulkhead`, or `~/.cache/bulkhead`.
///
/// # Errors
/// When neither variable is set.
pub fn cache_folder() -> Result<PathBuf, BinariesError> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    set("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| set("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .map(|folder| folder.join("bulkhead"))
        .ok_or(BinariesError::NoCacheFolder)
}

fn find_given(program: Program, folders: &[PathBuf]) -> Option<PathBuf> {
    folders.iter().map(|folder| folder.join(program.name())).find(|path| {
        let fits = path.is_file() && version_fits(program, path);
        if path.is_file() && !fits {
            eprintln!("testbed: {} is not used: it is not {}", path.display(), program.version());
        }
        fits
    })
}

fn version_fits(program: Program, path: &Path) -> bool {
    let arguments: &[&str] = match program {
        Program::Kubectl => &["version", "--client"],
        Program::Helm => &["version", "--short"],
        Program::ContainerdShim => &["-v"],
        _ => &["--version"],
    };
    let wanted = minor_version(program.version());
    Command::new(path).args(arguments).output().is_ok_and(|output| {
        let text = String::from_utf8_lossy(&output.stdout);
        text.split_whitespace().find_map(minor_version) == wanted
    })
}

/// Major and minor number of a word such as `v1.36.3` or `go1.26.8`.
fn minor_version(word: &str) -> Option<(u32, u32)> {
    let numbers = word.trim_start_matches("go").trim_start_matches('v');
    let (major, rest) = numbers.split_once('.')?;
    // A pre-release such as go1.27rc1 has letters behind the minor number.
    let minor = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn cached(program: Program, cache: &Path) -> PathBuf {
    let linked = if program.is_static() { "-static" } else { "" };
    let source = program.source().map(|source| format!("-{}", hex(&Sha256::digest(source), 4))).unwrap_or_default();
    cache.join(format!("{}-{}{linked}{source}", program.name(), program.version())).join(program.name())
}

/// Builds `program`, and with it what else of `wanted` is missing of its module.
fn ensure_cached(program: Program, wanted: &[Program], cache: &Path) -> Result<PathBuf, BinariesError> {
    let path = cached(program, cache);
    if !path.is_file() {
        let module = program.module();
        create_folder(cache)?;
        let lock_path = cache.join(format!(".{}.lock", module.folder));
        let lock = File::create(&lock_path).map_err(file_error("create", &lock_path))?;
        lock.lock().map_err(file_error("lock", &lock_path))?;
        // Another process may have built it while this one waited for the lock.
        if !path.is_file() {
            build(module, wanted, cache)?;
        }
    }
    Ok(path)
}

/// Builds what is missing of one module among `wanted`. One call of `go build` for all of them shares the work.
fn build(module: &Module, wanted: &[Program], cache: &Path) -> Result<(), BinariesError> {
    check_go()?;
    let missing: Vec<Program> = wanted
        .iter()
        .copied()
        .filter(|program| program.module() == module && !cached(*program, cache).is_file())
        .collect();
    let names: Vec<&str> = missing.iter().map(|program| program.name()).collect();
    eprintln!(
        "testbed: building {} {} ({}): not in {} yet; the first time takes about {} on two cores",
        module.path,
        module.version,
        names.join(", "),
        cache.display(),
        module.usual_time,
    );
    let started = Instant::now();
    let folder = Path::new(MODULES).join(module.folder);
    let scratch = cache.join(format!(".{}.building", module.folder));
    create_folder(&scratch)?;
    let built = Command::new("go")
        .current_dir(&folder)
        .env("GOTOOLCHAIN", "local")
        .env("GOFLAGS", "-mod=readonly")
        .envs(missing.iter().any(|program| program.is_static()).then_some(("CGO_ENABLED", "0")))
        .args(["build", "-trimpath", "-tags", module.tags, "-ldflags"])
        .arg(format!("-s -w {}", module.linker_flags))
        .arg("-o")
        .arg(scratch.join(""))
        .args(missing.iter().map(|program| program.package()))
        .status()
        .map_err(BinariesError::NoGo)?;
    if !built.success() {
        return Err(BinariesError::Build { folder });
    }
    for program in missing {
        let target = cached(program, cache);
        if let Some(parent) = target.parent() {
            create_folder(parent)?;
        }
        fs::rename(scratch.join(program.built_as()), &target)
            .map_err(file_error("move a built program to", &target))?;
    }
    fs::remove_dir_all(&scratch).map_err(file_error("remove", &scratch))?;
    eprintln!("testbed: built {} {} in {} s", module.path, module.version, started.elapsed().as_secs());
    Ok(())
}

fn check_go() -> Result<(), BinariesError> {
    let output = Command::new("go")
        .args(["env", "GOVERSION"])
        .env("GOTOOLCHAIN", "local")
        .output()
        .map_err(BinariesError::NoGo)?;
    let found = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match minor_version(&found) {
        Some(version) if version >= GO => Ok(()),
        _ => Err(BinariesError::OldGo { found }),
    }
}

fn create_folder(path: &Path) -> Result<(), BinariesError> {
    fs::create_dir_all(path).map_err(file_error("create", path))
}

fn file_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BinariesError {
    let path = path.to_owned();
    move |source| BinariesError::File { action, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_words_are_read() {
        assert_eq!(minor_version("v1.36.3"), Some((1, 36)));
        assert_eq!(minor_version("3.6.16"), Some((3, 6)));
        assert_eq!(minor_version("go1.26.8"), Some((1, 26)));
        assert_eq!(minor_version("go1.27rc1"), Some((1, 27)));
        assert_eq!(minor_version("Kubernetes"), None);
    }

    #[test]
    fn programs_of_another_version_are_not_used() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("etcd");
        let write = |text: &str| {
            fs::write(&path, format!("#!/bin/sh\necho 'etcd Version: {text}'\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        };
        let folders = [folder.path().to_owned()];
        write("3.5.9");
        assert_eq!(find_given(Program::Etcd, &folders), None);
        write("3.6.2");
        assert_eq!(find_given(Program::Etcd, &folders), Some(path.clone()));
    }
}
