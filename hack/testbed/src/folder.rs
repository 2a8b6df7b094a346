//! The folder of one testbed: made for it, removed with it, and, where its process was killed,
//! removed by the next testbed that starts.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use tempfile::TempDir;

const PREFIX: &str = "bulkhead-testbed-";
const LOCK: &str = "lock";
/// Set to anything to keep folders with logs and the audit log for a look at them.
pub const KEEP_VARIABLE: &str = "BULKHEAD_KEEP";

/// A folder that is locked for as long as its testbed lives.
#[derive(Debug)]
pub(crate) struct Folder {
    directory: TempDir,
    /// Unlocked by the kernel when this process ends, however it ends.
    _lock: File,
}

impl Folder {
    pub(crate) fn create() -> io::Result<Self> {
        remove_abandoned(&std::env::temp_dir());
        let mut directory = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
        // Locked under another name first: a lock that others can see is a lock that is held.
        let unlocked = directory.path().join("lock.new");
        let lock = File::create(&unlocked)?;
        lock.lock()?;
        if std::env::var_os(KEEP_VARIABLE).is_some() {
            // Without a lock file nobody takes it for abandoned.
            fs::remove_file(&unlocked)?;
            directory.disable_cleanup(true);
            eprintln!("testbed: keeping {}", directory.path().display());
        } else {
            fs::rename(&unlocked, directory.path().join(LOCK))?;
        }
        Ok(Self { directory, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Best effort: a folder that cannot be removed belongs to someone else.
fn remove_abandoned(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let lock = File::open(entry.path().join(LOCK));
        if lock.is_ok_and(|lock| lock.try_lock().is_ok()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_abandoned_folders_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = parent.path().join(name);
            fs::create_dir(&path).unwrap();
            File::create(path.join(LOCK)).unwrap()
        };
        let held = make("bulkhead-testbed-held");
        held.lock().unwrap();
        drop(make("bulkhead-testbed-abandoned"));
        drop(make("someone-elses"));
        fs::create_dir(parent.path().join("bulkhead-testbed-kept")).unwrap();

        remove_abandoned(parent.path());

        let mut left: Vec<_> = fs::read_dir(parent.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["bulkhead-testbed-held", "bulkhead-testbed-kept", "someone-elses"]);
    }
}
