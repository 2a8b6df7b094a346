//! Staging: which volumes this process serves, and where. What it does not serve any more, it cleans up all the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bulkhead::node_agent::mounts::mountinfo::Mount;
use tonic::Status;

use super::connection::{Connection, Route};
use super::mounts;
use super::volume::{FILE_SYSTEM, Usage, Volume};
use super::{NodeHealth, NodeOptions};
use crate::array::Ailment;
use crate::array::io_protocol::IoError;
use crate::lock::lock;

/// How long the array is waited for when it is told that a volume is unstaged. It can do without.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long a file system may stay busy after its loop device was let go: the kernel closes it a little later.
const BUSY: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The file system of a raw block volume is mounted below the staging path: a kubelet looks at that path when it takes
/// the volume down, and must not get the array's refusals there.
const BLOCK_FOLDER: &str = "volume";

/// Where the file system of a volume that is staged there is mounted.
pub(super) fn mount_point(staging: &Path, block: bool) -> PathBuf {
    if block { staging.join(BLOCK_FOLDER) } else { staging.to_owned() }
}

/// All volumes of the node.
#[derive(Debug)]
pub(super) struct Volumes {
    options: NodeOptions,
    /// By staging path.
    staged: Mutex<BTreeMap<PathBuf, Arc<Volume>>>,
    /// Volumes with a call under way.
    busy: Mutex<BTreeSet<String>>,
}

impl Volumes {
    pub fn new(options: NodeOptions) -> Self {
        Volumes { options, staged: Mutex::default(), busy: Mutex::default() }
    }

    /// Mounts and serves the volume at its staging path. The same again changes nothing.
    pub fn stage(&self, handle: &str, staging: &Path, usage: Usage) -> Result<(), Status> {
        let _exclusion = self.exclude_others(handle)?;
        if let Some(parent) = staging.parent() {
            fs::create_dir_all(parent).map_err(|error| failed("create the folder of", staging, &error))?;
        }
        let staging = mounts::resolved(staging).map_err(|error| failed("find", staging, &error))?;
        match self.served_at(&staging)? {
            Some(there) if there.handle == handle && there.is_block() == usage.block => Ok(()),
            Some(there) => Err(Status::already_exists(format!(
                "volume {} is staged at {} already, or in another way",
                there.handle,
                staging.display()
            ))),
            None => self.stage_anew(handle, &staging, usage).map(drop),
        }
    }

    /// Whatever is mounted at `staging` is dead and goes.
    pub(super) fn stage_anew(&self, handle: &str, staging: &Path, usage: Usage) -> Result<Arc<Volume>, Status> {
        let route = self.route(handle, self.options.io_timeout);
        Connection::new(route.clone()).map_err(IoError::from).and_then(|mut array| array.stage()).map_err(refusal)?;
        for dead in [staging, &mount_point(staging, true)] {
            mounts::unmount_all(dead, |_| true).map_err(|error| failed("unmount", dead, &error))?;
        }
        let point = mount_point(staging, usage.block);
        fs::create_dir_all(&point).map_err(|error| failed("create", &point, &error))?;
        let volume = Arc::new(Volume::mount(route, &point, usage).map_err(refusal)?);
        // What was there is dropped without the lock: closing a loop device waits for its last writes.
        let _earlier = lock(&self.staged).insert(staging.to_owned(), volume.clone());
        tracing::info!(volume = handle, staging = %staging.display(), "staged");
        Ok(volume)
    }

    /// Unmounts the staging path, also if this process does not serve it. Nothing there is fine.
    pub fn unstage(&self, handle: &str, staging: &Path) -> Result<(), Status> {
        let _exclusion = self.exclude_others(handle)?;
        let staging = match mounts::resolved(staging) {
            Ok(staging) => staging,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed("find", staging, &error)),
        };
        let volume = lock(&self.staged).get(&staging).cloned();
        if let Some(volume) = &volume {
            volume.release_block();
        }
        let below = mount_point(&staging, true);
        for point in [&staging, &below] {
            self.unmount_when_idle(point).map_err(|error| failed("unmount", point, &error))?;
        }
        match fs::remove_dir(&below) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("remove", &below, &error)),
            _ => {}
        }
        lock(&self.staged).remove(&staging);
        let told =
            Connection::new(self.route(handle, FAREWELL)).map_err(IoError::from).and_then(|mut array| array.unstage());
        if let Err(error) = told {
            tracing::debug!(%error, volume = handle, "the array does not know that the volume is unstaged");
        }
        tracing::info!(volume = handle, staging = %staging.display(), "unstaged");
        Ok(())
    }

    fn unmount_when_idle(&self, staging: &Path) -> io::Result<()> {
        let deadline = Instant::now() + BUSY;
        loop {
            match mounts::unmount_all(staging, |mounted| self.is_dead(mounted)) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline => {
                    std::thread::sleep(LOOK_EVERY);
                }
                result => return result,
            }
        }
    }

    /// The volume that is mounted at `staging` and served by this process.
    pub(super) fn served_at(&self, staging: &Path) -> Result<Option<Arc<Volume>>, Status> {
        let Some(volume) = lock(&self.staged).get(staging).cloned().filter(|volume| volume.is_served()) else {
            return Ok(None);
        };
        let mounted = mounts::at(&volume.point).map_err(|error| failed("look up", &volume.point, &error))?;
        Ok(mounted.is_some_and(|there| there.device == volume.device).then_some(volume))
    }

    /// All volumes that this process serves.
    pub(super) fn served(&self) -> Vec<Arc<Volume>> {
        lock(&self.staged).values().filter(|volume| volume.is_served()).cloned().collect()
    }

    /// A file system of ours that nobody serves.
    pub(super) fn is_dead(&self, mounted: &Mount) -> bool {
        mounted.fs_type == FILE_SYSTEM && !self.served().iter().any(|volume| volume.device == mounted.device)
    }

    /// What is wrong with the volume as seen from this node.
    pub fn health(&self, handle: &str) -> Result<Vec<Ailment>, Status> {
        let route = self.route(handle, self.options.io_timeout);
        let asked = Connection::new(route).map_err(IoError::from).and_then(|mut array| array.health());
        let ailments =
            asked.map_err(|error| Status::unavailable(format!("the volume's health is not known: {error}")))?;
        ailments.ok_or_else(|| Status::not_found(format!("volume {handle} does not exist")))
    }

    /// Which generation of CSI's health this plugin speaks.
    pub fn tells(&self) -> NodeHealth {
        self.options.health
    }

    fn route(&self, handle: &str, patience: Duration) -> Route {
        let NodeOptions { io, node_id, .. } = &self.options;
        Route { array: *io, volume: handle.to_owned(), node: node_id.clone(), patience }
    }

    /// Keeps other calls away from the volume while the guard lives.
    pub(super) fn exclude_others<'a>(&'a self, handle: &str) -> Result<impl Drop + use<'a>, Status> {
        if !lock(&self.busy).insert(handle.to_owned()) {
            return Err(Status::aborted(format!("another call for volume {handle} is under way")));
        }
        Ok(Exclusion { busy: &self.busy, handle: handle.to_owned() })
    }
}

struct Exclusion<'a> {
    busy: &'a Mutex<BTreeSet<String>>,
    handle: String,
}

impl Drop for Exclusion<'_> {
    fn drop(&mut self) {
        lock(self.busy).remove(&self.handle);
    }
}

pub(super) fn failed(action: &str, path: &Path, error: &io::Error) -> Status {
    Status::internal(format!("cannot {action} {}: {error}", path.display()))
}

fn refusal(error: IoError) -> Status {
    match error {
        IoError::Refused(reason) => Status::failed_precondition(format!("the array refuses the volume: {reason}")),
        IoError::Connection(error) => Status::unavailable(format!("the volume cannot be mounted: {error}")),
        IoError::Failed(error) => Status::internal(format!("the volume is not usable: {error}")),
    }
}
