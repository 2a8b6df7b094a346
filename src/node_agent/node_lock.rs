//! One agent per node acts: the one that holds the lock on a file in the kubelet's folder. The kernel takes it from a
//! process that dies, however it dies; a process that holds it is a live one.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::runtime::health::Gate;

/// The agent's folder, below the kubelet's root.
pub const FOLDER: &str = "plugins/bulkhead-node-agent";
/// How often one that waits asks for it.
const RETRY: Duration = Duration::from_secs(1);

/// The lock, held as long as this lives.
#[derive(Debug)]
pub struct Held(#[expect(dead_code, reason = "the lock lives as long as its descriptor")] OwnedFd);

/// Waits for the lock. `host` is a process of the host, such as `/proc/1`. The gate is closed while the lock cannot even
/// be asked for; one that another agent has leaves it open.
pub async fn hold(host: String, kubelet_root: String, gate: Gate) -> Held {
    let mut told = None;
    let mut retry = tokio::time::interval(RETRY);
    loop {
        retry.tick().await;
        let (host, root) = (host.clone(), kubelet_root.clone());
        let tried = tokio::task::spawn_blocking(move || try_lock(&host, &root)).await;
        let failure = match tried.unwrap_or_else(|panic| Err(io::Error::other(panic))) {
            Ok(Some(held)) => {
                gate.open();
                return held;
            }
            Ok(None) => {
                gate.open();
                "another agent of this node has it".to_owned()
            }
            Err(error) => {
                let why =
                    format!("{kubelet_root}/{FOLDER}/lock: {error}; is --kubelet-root what the kubelet was told?");
                gate.close(why.clone());
                why
            }
        };
        if told.as_ref() != Some(&failure) {
            tracing::info!(kubelet_root, failure, "follower: waiting for the lock of this node's agents");
            told = Some(failure);
        }
    }
}

fn try_lock(host: &str, kubelet_root: &str) -> io::Result<Option<Held>> {
    let path = OFlags::PATH | OFlags::CLOEXEC;
    let host = rustix::fs::openat(CWD, format!("{host}/root"), path, Mode::empty())?;
    let folder = path | OFlags::DIRECTORY;
    let root = rustix::fs::openat2(host, kubelet_root, folder, Mode::empty(), ResolveFlags::IN_ROOT)?;
    let confined = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    for made in ["plugins", FOLDER] {
        match rustix::fs::mkdirat(&root, made, Mode::from_raw_mode(0o750)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat2(root, format!("{FOLDER}/lock"), flags, Mode::from_raw_mode(0o600), confined)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(Held(file))),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::health::Health;

    #[test]
    fn one_holds_it_and_its_end_frees_it() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_str().unwrap();
        let held = try_lock("/proc/self", root).unwrap().expect("nobody has it");
        assert!(try_lock("/proc/self", root).unwrap().is_none());
        drop(held);
        assert!(try_lock("/proc/self", root).unwrap().is_some());
    }

    #[tokio::test]
    async fn who_waits_is_ready_and_who_cannot_ask_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_str().unwrap().to_owned();
        let health = Health::new();
        let _held = try_lock("/proc/self", &root).unwrap().expect("nobody has it");
        let wait = |root: String| {
            tokio::time::timeout(Duration::from_millis(500), hold("/proc/self".into(), root, health.gate("lock")))
        };
        assert!(wait(root.clone()).await.is_err());
        assert_eq!(health.closed(), []);
        assert!(wait(format!("{root}/nothing")).await.is_err());
        let [(gate, why)] = &health.closed()[..] else { panic!("ready") };
        assert!(gate == "lock" && why.contains("--kubelet-root"), "{why}");
    }

    #[test]
    fn a_link_in_its_place_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("elsewhere")).unwrap();
        std::fs::create_dir(folder.path().join("plugins")).unwrap();
        std::os::unix::fs::symlink("../elsewhere", folder.path().join(FOLDER)).unwrap();
        assert!(try_lock("/proc/self", folder.path().to_str().unwrap()).is_err());
        assert!(!folder.path().join("elsewhere/lock").exists());
    }
}
