//! What the machine lacks that a test program needs.

use std::fmt::Display;

/// Why a test program cannot run its trials here, so that it leaves them out by name. Nothing where it only lists them; nor in
/// CI, where what is missing must fail.
pub fn lacking<T, E: Display>(lists: bool, look: impl FnOnce() -> Result<T, E>) -> Option<String> {
    if lists || std::env::var("CI").is_ok_and(|value| value == "true") {
        return None;
    }
    look().err().map(|error| error.to_string())
}
