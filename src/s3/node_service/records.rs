//! What is mounted for whom, kept in files: after a restart everything can be mounted again without the kubelet. In the
//! driver's own folder and not in a Mountpoint Pod's: a pod must not choose what is mounted for another.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use rustix::fs::OFlags;

use crate::api::s3::DRIVER;
use crate::node_agent::mounts::read::Root;
use crate::runtime::lock::lock;

use super::folders;
use super::publication::{Publication, parse_target};

const LENGTH_MAX: u64 = 1 << 20;

/// All that is mounted, by target.
#[derive(Default)]
pub struct Records {
    all: Mutex<BTreeMap<String, Publication>>,
}

fn path() -> String {
    format!("plugins/{DRIVER}/publications")
}

fn open(root: &Root) -> io::Result<OwnedFd> {
    folders::make(root, &path(), 0o700)?;
    root.open_below(&path(), OFlags::RDONLY | OFlags::DIRECTORY)
}

impl Records {
    /// Reads what an earlier run kept. What cannot be read, or says something else than its name, is left alone.
    pub fn load(root: &Root) -> io::Result<Self> {
        let folder = open(root)?;
        let records = Self::default();
        for name in folders::names(root, &path())?.into_iter().filter(|name| name.ends_with(".json")) {
            let text = folders::read(&folder, &name, LENGTH_MAX)?;
            match serde_json::from_slice::<Publication>(&text) {
                Ok(kept) if kept.file() == name && parse_target("", &format!("/{}", kept.target())).is_some() => {
                    lock(&records.all).insert(kept.target(), kept);
                }
                _ => tracing::warn!(file = name, "not a record of what is mounted: ignored"),
            }
        }
        Ok(records)
    }

    /// What is mounted at a target.
    pub fn get(&self, target: &str) -> Option<Publication> {
        lock(&self.all).get(target).cloned()
    }

    /// All of it.
    pub fn list(&self) -> Vec<Publication> {
        lock(&self.all).values().cloned().collect()
    }

    /// Keeps what was mounted.
    pub fn keep(&self, root: &Root, publication: &Publication) -> io::Result<()> {
        if self.get(&publication.target()).as_ref() == Some(publication) {
            return Ok(());
        }
        let text = serde_json::to_vec(publication)?;
        folders::replace(&open(root)?, &publication.file(), 0o600, &text)?;
        lock(&self.all).insert(publication.target(), publication.clone());
        Ok(())
    }

    /// Forgets what is mounted no more.
    pub fn forget(&self, root: &Root, target: &str) -> io::Result<()> {
        let Some(publication) = lock(&self.all).remove(target) else { return Ok(()) };
        folders::remove_file(&open(root)?, &publication.file())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_knows_what_was_mounted() {
        let kubelet = tempfile::tempdir().unwrap();
        let root = Root::open(kubelet.path().to_str().unwrap()).unwrap();
        let records = Records::load(&root).unwrap();
        let one = Publication { pod_uid: "u".into(), volume: "pv".into(), ..Publication::default() };
        records.keep(&root, &one).unwrap();
        let folder = kubelet.path().join(path());
        std::fs::copy(folder.join(one.file()), folder.join("copy.json")).unwrap();
        std::fs::write(folder.join("z.json"), "{").unwrap();
        assert_eq!(Records::load(&root).unwrap().list(), std::slice::from_ref(&one));
        records.forget(&root, &one.target()).unwrap();
        records.forget(&root, &one.target()).unwrap();
        assert_eq!(Records::load(&root).unwrap().list(), []);
    }
}
