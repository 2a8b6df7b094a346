//! Folders below the kubelet's root. Reached name by name without following any link; what is mounted on the way is not
//! asked, so that a mount whose server hangs hangs nobody.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::node_agent::mounts::read::Root;
use crate::runtime::random_unit;

const CONFINED: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// A path by which system calls reach what is open, and nothing else.
pub fn path_of(open: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", open.as_raw_fd())
}

/// A folder, or what is mounted there, without asking the latter.
pub fn folder(root: &Root, path: &str) -> io::Result<OwnedFd> {
    let (parent, name) = root.parent(path)?;
    Ok(rustix::fs::openat2(parent, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty(), CONFINED)?)
}

/// Makes a folder, and those it lies in.
pub fn make(root: &Root, path: &str, mode: u32) -> io::Result<()> {
    for (at, _) in path.match_indices('/').chain([(path.len(), "")]) {
        let (parent, name) = root.parent(path.get(..at).unwrap_or(path))?;
        match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(mode)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Removes an empty folder. One that is gone is removed.
pub fn remove(root: &Root, path: &str) -> io::Result<()> {
    match root.parent(path).and_then(|(parent, name)| Ok(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes a file. One that is gone is removed.
pub fn remove_file(folder: &OwnedFd, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Names in a folder; none if there is no such folder.
pub fn names(root: &Root, path: &str) -> io::Result<Vec<String>> {
    let folder = match root.open_below(path, OFlags::RDONLY | OFlags::DIRECTORY) {
        Ok(folder) => folder,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::new(folder)? {
        if let Ok(name) = entry?.file_name().to_str()
            && !matches!(name, "." | "..")
        {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// Reads at most so many bytes of a plain file of a folder that others may write to.
pub fn read(folder: &OwnedFd, name: &str, most: u64) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = rustix::fs::openat2(folder, name, flags, Mode::empty(), CONFINED)?;
    if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = Vec::new();
    File::from(file).take(most).read_to_end(&mut text)?;
    Ok(text)
}

/// Puts a file in the place of what has that name: all of it or nothing. It belongs to the group of its folder.
pub fn replace(folder: &OwnedFd, name: &str, mode: u32, text: &[u8]) -> io::Result<()> {
    let draft = format!(".{name:.200}.{:012x}", (random_unit() * (1u64 << 48) as f64) as u64);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat2(folder, draft.as_str(), flags, Mode::from_raw_mode(0o600), CONFINED)?;
    let written = own_and_fill(folder, file, mode, text)
        .and_then(|()| Ok(rustix::fs::renameat(folder, draft.as_str(), folder, name)?));
    if written.is_err() {
        remove_file(folder, &draft)?;
    }
    written
}

fn own_and_fill(folder: &OwnedFd, file: OwnedFd, mode: u32, text: &[u8]) -> io::Result<()> {
    give_group(folder, &file)?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
    File::from(file).write_all(text)
}

/// Gives something the group of the folder it is in: fsGroup of a pod in the folders of its volumes.
pub fn give_group(folder: &OwnedFd, made: &OwnedFd) -> io::Result<()> {
    let group = rustix::fs::fstat(folder)?.st_gid;
    Ok(rustix::fs::fchown(made, None, Some(Gid::from_raw(group)))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_nowhere() {
        let outside = tempfile::tempdir().unwrap();
        let inside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), "secret").unwrap();
        std::os::unix::fs::symlink(outside.path(), inside.path().join("link")).unwrap();
        std::os::unix::fs::symlink(outside.path().join("secret"), inside.path().join("file")).unwrap();
        let root = Root::open(inside.path().to_str().unwrap()).unwrap();
        assert!(folder(&root, "link").is_err());
        assert!(make(&root, "link/made", 0o755).is_err());
        assert!(names(&root, "link").is_err());
        let open = root.open_below(".", OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
        assert!(read(&open, "file", 10).is_err());
        replace(&open, "file", 0o640, b"ours").unwrap();
        assert_eq!(std::fs::read(outside.path().join("secret")).unwrap(), b"secret");
        assert_eq!(read(&open, "file", 2).unwrap(), b"ou");
        let mut left = names(&root, ".").unwrap();
        left.sort();
        assert_eq!(left, ["file", "link"]);
    }

    #[test]
    fn folders_are_made_on_the_way() {
        let inside = tempfile::tempdir().unwrap();
        let root = Root::open(inside.path().to_str().unwrap()).unwrap();
        make(&root, "a/b/c", 0o755).unwrap();
        make(&root, "a/b/c", 0o755).unwrap();
        folder(&root, "a/b/c").unwrap();
        remove(&root, "a/b/c").unwrap();
        remove(&root, "a/b/c").unwrap();
        assert!(remove(&root, "a").is_err());
    }
}
