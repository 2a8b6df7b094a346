//! The agent's files on its node, in its folder below the kubelet's root: what a later process must know though no API can
//! tell it.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::node_lock::FOLDER;

/// Longest file that is read, in bytes.
const LENGTH_MAX: u64 = 16 * 1024 * 1024;

/// The agent's folder on the host.
fn folder(host: &str, kubelet_root: &str) -> io::Result<OwnedFd> {
    let path = OFlags::PATH | OFlags::CLOEXEC;
    let host = rustix::fs::openat(CWD, format!("{host}/root"), path, Mode::empty())?;
    let root = rustix::fs::openat2(host, kubelet_root, path | OFlags::DIRECTORY, Mode::empty(), ResolveFlags::IN_ROOT)?;
    for made in ["plugins", FOLDER] {
        match rustix::fs::mkdirat(&root, made, Mode::from_raw_mode(0o750)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    let confined = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    Ok(rustix::fs::openat2(root, FOLDER, path | OFlags::DIRECTORY, Mode::empty(), confined)?)
}

/// Reads a file; nothing if it is not there. `host` is a process of the host, such as `/proc/1`.
pub fn read(host: &str, kubelet_root: &str, name: &str) -> io::Result<Option<Vec<u8>>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match rustix::fs::openat(folder(host, kubelet_root)?, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        opened => File::from(opened?),
    };
    let mut text = Vec::new();
    file.take(LENGTH_MAX).read_to_end(&mut text)?;
    Ok(Some(text))
}

/// Replaces a file as a whole. Only root can read it.
pub fn write(host: &str, kubelet_root: &str, name: &str, text: &[u8]) -> io::Result<()> {
    let folder = folder(host, kubelet_root)?;
    let new = format!("{name}.new");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut file = File::from(rustix::fs::openat(&folder, &new, flags, Mode::from_raw_mode(0o600))?);
    file.write_all(text)?;
    file.sync_data()?;
    Ok(rustix::fs::renameat(&folder, &new, &folder, name)?)
}

/// The boot id in a file.
pub fn boot_id(path: &str) -> io::Result<String> {
    Ok(std::fs::read_to_string(path)?.trim().to_owned())
}
