//! What the machine lacks that a test program needs, and namespaces of its own for one that mounts.

use std::fmt::Display;
use std::path::Path;
use std::process::{Command, ExitCode};

use libtest_mimic::{Failed, Trial};

/// Set in the run of a test program that has namespaces of its own.
const INSIDE: &str = "BULKHEAD_TEST_MOUNT_NAMESPACE";

/// Why a test program cannot run its trials here. Nothing where it only lists them.
pub fn lacking<T, E: Display>(lists: bool, look: impl FnOnce() -> Result<T, E>) -> Option<String> {
    if lists { None } else { look().err().map(|error| error.to_string()) }
}

/// The trial, where nothing is lacking for it. Else it is left out by name: one that only returned would read as passed. In CI,
/// which leaves nothing out, it fails.
#[must_use]
pub fn unless(lacking: Option<&str>, trial: Trial) -> Trial {
    match lacking.map(str::to_owned) {
        None => trial,
        Some(lacking) if is_ci() => Trial::test(trial.name().to_owned(), || Err(Failed::from(lacking))),
        Some(lacking) => trial.with_kind(lacking).with_ignored_flag(true),
    }
}

/// Whether this is CI.
pub fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

/// What a trial lacks here that needs root.
pub fn lacks_root() -> Option<&'static str> {
    (!is_root()).then_some("needs root: run the tests as root")
}

/// The same of one that serves a FUSE mount.
pub fn lacks_fuse() -> Option<&'static str> {
    lacks_root().or_else(|| (!Path::new("/dev/fuse").exists()).then_some("needs /dev/fuse"))
}

/// Whether this program may mount.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs this program again, in namespaces of its own for mounts and processes, where it can do no harm, and returns how that
/// ended. Nothing where it is to go on here: it is that run, it only lists its trials, or it is not root.
pub fn in_own_namespaces(lists: bool) -> Option<ExitCode> {
    let goes_on = lists || !is_root() || std::env::var_os(INSIDE).is_some();
    (!goes_on).then(again)
}

fn again() -> ExitCode {
    let ended = std::env::current_exe().and_then(|program| {
        Command::new("unshare")
            .args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc", "--"])
            .arg(program)
            .args(std::env::args_os().skip(1))
            .env(INSIDE, "1")
            .status()
    });
    match ended {
        Ok(status) => ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)),
        Err(error) => {
            eprintln!("error: unshare (util-linux): {error}");
            ExitCode::FAILURE
        }
    }
}
