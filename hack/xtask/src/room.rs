//! Room on the disk, looked at before anything is built: a linker that finds none dies of a bus error, and says nothing of disks.

use std::env;
use std::fmt;
use std::fs;
use std::path::Path;

use bulkhead_testbed::binaries::{BINARIES_VARIABLE, cache_folder};

use crate::Result;
use crate::programs;

/// A gigabyte, as disks are sold by.
const GB: u64 = 1_000_000_000;

/// What a command builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Builds {
    /// All tests, with all that they run.
    Tests,
    /// Our programs and their images, with the programs of a control plane.
    Programs,
}

impl Builds {
    /// How many bytes it takes, all in all: what is compiled, images, and clusters while they run; and where no program of others
    /// was built yet, these, with the modules that they are made of. What was built before is there. Half of the tests' is what
    /// cargo keeps for the next edit.
    fn needed(self, is_built: bool, has_upstream: bool, is_incremental: bool) -> u64 {
        let (ours, upstream) = match (self, is_built) {
            (Self::Tests, false) => (if is_incremental { 20 } else { 14 }, 10),
            (Self::Tests, true) => (8, 10),
            (Self::Programs, false) => (8, 7),
            (Self::Programs, true) => (4, 7),
        };
        (ours + if has_upstream { 0 } else { upstream }) * GB
    }

    /// Whether cargo's folder has it from before.
    fn is_in(self, target: &Path) -> bool {
        let places: &[(&str, &str)] = match self {
            // By the program of the control-plane tests, which has a hash in its name.
            Self::Tests => &[("debug/deps", "it-")],
            Self::Programs => &[("debug", "bulkhead-controller"), ("release", "bulkhead-controller")],
        };
        places.iter().any(|(folder, begin)| {
            let mut files = fs::read_dir(target.join(folder)).into_iter().flatten().flatten();
            files.any(|file| file.file_name().to_string_lossy().starts_with(begin))
        })
    }
}

/// There is too little room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TooLittle<'a> {
    folder: &'a Path,
    free: u64,
    needed: u64,
}

impl fmt::Display for TooLittle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { folder, free, needed } = self;
        write!(
            f,
            "the disk of {} has {} GB free, and about {} GB are needed: `cargo clean` gives back what earlier builds took, \
             CARGO_INCREMENTAL=0 needs less for the tests, and CARGO_TARGET_DIR names a folder on another disk",
            folder.display(),
            free / GB,
            needed / GB
        )
    }
}

/// An error if cargo's folder has too little room for what is to be built.
pub fn check(builds: Builds) -> Result<()> {
    let target = programs::target()?;
    let space = rustix::fs::statvfs(&target)
        .map_err(|error| format!("cannot tell how much room {} has: {error}", target.display()))?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let has_upstream =
        env::var_os(BINARIES_VARIABLE).is_some() || cache_folder().is_ok_and(|cache| cache.join("bin").is_dir());
    let is_incremental = env::var_os("CARGO_INCREMENTAL").is_none_or(|value| value != "0");
    let needed = builds.needed(builds.is_in(&target), has_upstream, is_incremental);
    is_enough(&target, free, needed).map_err(|lacking| lacking.to_string().into())
}

fn is_enough(folder: &Path, free: u64, needed: u64) -> Result<(), TooLittle<'_>> {
    if free >= needed { Ok(()) } else { Err(TooLittle { folder, free, needed }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_built_before_takes_less() {
        let folder = tempfile::tempdir().unwrap();
        let needed = |builds: Builds| {
            [false, true].map(|upstream| builds.needed(builds.is_in(folder.path()), upstream, true) / GB)
        };
        fs::create_dir_all(folder.path().join("debug/deps")).unwrap();
        fs::write(folder.path().join("debug/deps/itoa-0123456789abcdef.d"), "").unwrap();
        assert_eq!([Builds::Tests, Builds::Programs].map(needed), [[30, 20], [15, 8]]);
        assert_eq!([false, true].map(|upstream| Builds::Tests.needed(false, upstream, false) / GB), [24, 14]);
        fs::write(folder.path().join("debug/bulkhead-controller"), "").unwrap();
        assert_eq!([Builds::Tests, Builds::Programs].map(needed), [[30, 20], [11, 4]]);
        fs::write(folder.path().join("debug/deps/it-0123456789abcdef"), "").unwrap();
        assert_eq!([Builds::Tests, Builds::Programs].map(needed), [[18, 8], [11, 4]]);
    }

    #[test]
    fn too_little_room_is_told_with_folder_numbers_and_remedy() {
        let folder = Path::new("/tree/target");
        assert_eq!(is_enough(folder, 8 * GB, 8 * GB), Ok(()));
        let told = is_enough(folder, 8 * GB - 1, 8 * GB).unwrap_err().to_string();
        for part in ["/tree/target has 7 GB free", "8 GB are needed", "cargo clean"] {
            assert!(told.contains(part), "{told}");
        }
    }
}
