//! The folder that a Mountpoint Pod and we share, in the pod's memory. The pod may write to it: no name in it is trusted, no
//! link followed, no size believed.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::api::s3::{CREDENTIALS_FOLDER, ERROR_FILE, EXIT_FILE, SOCKET, communication_folder};
use crate::node_agent::mounts::read::Root;
use crate::s3::keys::Keys;

use super::credentials::{self, Files};
use super::folders;

/// How much of the words of mount-s3 is told.
const ERROR_MAX: u64 = 64 << 10;
const TOLD_MAX: usize = 3000;
const CREDENTIALS_MAX: u64 = 64 << 10;
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// The folder, held open.
pub struct Communication {
    folder: OwnedFd,
}

impl Communication {
    /// Opens it; nothing if the pod has none, any more or yet.
    pub fn open(root: &Root, pod_uid: &str) -> io::Result<Option<Self>> {
        let path = communication_folder(Path::new(""), pod_uid);
        let path = path.to_str().ok_or(io::ErrorKind::InvalidInput)?;
        match root.open_below(path, FOLDER) {
            Ok(folder) => Ok(Some(Self { folder })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The socket on which the mounter listens. The path is good while this lives.
    pub fn socket(&self) -> PathBuf {
        PathBuf::from(folders::path_of(&self.folder)).join(SOCKET)
    }

    /// Tells the mounter that the end of mount-s3 is no failure.
    pub fn tell_to_exit(&self) -> io::Result<()> {
        folders::replace(&self.folder, EXIT_FILE, 0o640, b"")
    }

    /// Forgets why mount-s3 failed before.
    pub fn forget_error(&self) -> io::Result<()> {
        folders::remove_file(&self.folder, ERROR_FILE)
    }

    /// Why mount-s3 failed, if the mounter says so: the end of it.
    pub fn error(&self) -> Option<String> {
        let text = folders::read(&self.folder, ERROR_FILE, ERROR_MAX).ok()?;
        let text = String::from_utf8_lossy(&text);
        let shown: String = text.trim().chars().map(|c| if c.is_control() && c != '\n' { '?' } else { c }).collect();
        let from = shown.len().saturating_sub(TOLD_MAX);
        let from = (from..=shown.len()).find(|&at| shown.is_char_boundary(at)).unwrap_or_default();
        shown.get(from..).map(str::to_owned)
    }

    /// Writes credentials.
    pub fn write_keys(&self, files: &Files, keys: &Keys) -> io::Result<()> {
        match rustix::fs::mkdirat(&self.folder, CREDENTIALS_FOLDER, Mode::from_raw_mode(0o750)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let credentials = self.credentials()?;
        folders::give_group(&self.folder, &credentials)?;
        rustix::fs::fchmod(&credentials, Mode::from_raw_mode(0o750))?;
        for (name, text) in files.contents(keys) {
            folders::replace(&credentials, name, 0o640, text.as_bytes())?;
        }
        Ok(())
    }

    /// Credentials that were written before.
    pub fn keys(&self, files: &Files) -> Option<Keys> {
        let text = folders::read(&self.credentials().ok()?, &files.credentials, CREDENTIALS_MAX).ok()?;
        credentials::read(&String::from_utf8(text).ok()?)
    }

    /// Removes credentials.
    pub fn remove_keys(&self, files: &Files) -> io::Result<()> {
        let credentials = match self.credentials() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        folders::remove_file(&credentials, &files.config)?;
        folders::remove_file(&credentials, &files.credentials)
    }

    fn credentials(&self) -> io::Result<OwnedFd> {
        let flags = FOLDER | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let confined = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        Ok(rustix::fs::openat2(&self.folder, CREDENTIALS_FOLDER, flags, Mode::empty(), confined)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn keys() -> Keys {
        Keys::new("A", "s", None).unwrap()
    }

    fn pod(kubelet: &Path) -> (PathBuf, Communication) {
        let folder = communication_folder(kubelet, "uid");
        std::fs::create_dir_all(&folder).unwrap();
        let root = Root::open(kubelet.to_str().unwrap()).unwrap();
        (folder, Communication::open(&root, "uid").unwrap().unwrap())
    }

    #[test]
    fn what_the_pod_puts_there_is_not_followed() {
        let kubelet = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        let (folder, communication) = pod(kubelet.path());
        symlink(outside.path(), folder.join(CREDENTIALS_FOLDER)).unwrap();
        symlink("/etc/passwd", folder.join(ERROR_FILE)).unwrap();
        symlink(outside.path().join("made"), folder.join(EXIT_FILE)).unwrap();
        assert!(communication.write_keys(&Files::of("uid", "v"), &keys()).is_err());
        assert_eq!(communication.error(), None);
        communication.tell_to_exit().unwrap();
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
        assert!(folder.join(EXIT_FILE).symlink_metadata().unwrap().is_file());
    }

    #[test]
    fn keys_are_replaced_as_a_whole() {
        use std::os::unix::fs::PermissionsExt as _;
        let kubelet = tempfile::tempdir().unwrap();
        let (folder, communication) = pod(kubelet.path());
        let files = Files::of("uid", "a/b");
        assert_eq!(communication.keys(&files), None);
        for _ in 0..2 {
            communication.write_keys(&files, &keys()).unwrap();
            assert_eq!(communication.keys(&files), Some(keys()));
        }
        let mode = |path: &str| folder.join(path).metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("credentials"), mode("credentials/uid-a~b-s3-csi-credentials")), (0o750, 0o640));
        assert_eq!(std::fs::read_dir(folder.join("credentials")).unwrap().count(), 2);
        communication.remove_keys(&files).unwrap();
        communication.remove_keys(&files).unwrap();
        assert_eq!(std::fs::read_dir(folder.join("credentials")).unwrap().count(), 0);
    }

    #[test]
    fn only_the_end_of_many_words_is_told() {
        let kubelet = tempfile::tempdir().unwrap();
        let (folder, communication) = pod(kubelet.path());
        assert_eq!(communication.error(), None);
        std::fs::write(folder.join(ERROR_FILE), format!("{}Error: no\x1b such bucket\n", "ä".repeat(10_000))).unwrap();
        let error = communication.error().unwrap();
        assert!(error.len() <= TOLD_MAX && error.ends_with("Error: no? such bucket"), "{error}");
    }
}
