//! The mount table of this process, and how to mount and unmount. Nothing here touches a mounted file system, so that a
//! hung one hangs nobody.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bulkhead::node_agent::mounts::mountinfo::{self, Mount};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

/// What is mounted at `path`, on top; `None` if nothing is. `path` has no symbolic links.
pub(super) fn at(path: &Path) -> io::Result<Option<Mount>> {
    let table = mountinfo::parse(&fs::read("/proc/self/mountinfo")?);
    let table = table.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(table.into_iter().rfind(|mount| Path::new(&mount.path) == path))
}

/// `path` as the mount table has it: without symbolic links on the way to it. Its last part is not looked at.
pub(super) fn resolved(path: &Path) -> io::Result<PathBuf> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok(fs::canonicalize(parent)?.join(name)),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} names no file or folder", path.display()))),
    }
}

/// Mounts `source` also at `target`.
pub(super) fn bind(source: &Path, target: &Path, read_only: bool) -> io::Result<()> {
    rustix::mount::mount_bind(source, target)?;
    if read_only {
        let remounted = rustix::mount::mount_remount(target, MountFlags::BIND | MountFlags::RDONLY, c"");
        if let Err(error) = remounted {
            rustix::mount::unmount(target, UnmountFlags::DETACH)?;
            return Err(error.into());
        }
    }
    Ok(())
}

/// Unmounts everything at `path` for which `is_dead` says yes lazily, and all else only if nobody uses it. Nothing
/// mounted is fine.
pub(super) fn unmount_all(path: &Path, is_dead: impl Fn(&Mount) -> bool) -> io::Result<()> {
    while let Some(mounted) = at(path)? {
        let lazily = if is_dead(&mounted) { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        match rustix::mount::unmount(path, UnmountFlags::NOFOLLOW | lazily) {
            // Somebody else unmounted it in between.
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_of_this_process_is_mounted_and_a_plain_folder_is_not() {
        assert!(at(Path::new("/proc")).expect("table").is_some());
        let folder = tempfile::tempdir().expect("folder");
        assert_eq!(at(&resolved(folder.path()).expect("path")).expect("table"), None);
    }
}
