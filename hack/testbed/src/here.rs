//! What the machine lacks that a test program needs, and namespaces of its own for one that mounts.

use std::fmt::Display;
use std::process::{Command, ExitCode};

/// Set in the run of a test program that has namespaces of its own.
const INSIDE: &str = "BULKHEAD_TEST_MOUNT_NAMESPACE";

/// Why a test program cannot run its trials here, so that it leaves them out by name. Nothing where it only lists them; nor in
/// CI, where what is missing must fail.
pub fn lacking<T, E: Display>(lists: bool, look: impl FnOnce() -> Result<T, E>) -> Option<String> {
    if lists || std::env::var("CI").is_ok_and(|value| value == "true") {
        return None;
    }
    look().err().map(|error| error.to_string())
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
