//! Publishing: a staged volume in the folder of a pod, by bind mount.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;

use bulkhead::csi::v1::VolumeUsage;
use bulkhead::csi::v1::volume_usage::Unit;
use tonic::Status;

use super::mounts;
use super::stage::{Volumes, failed, mount_point};
use super::volume::{Usage, Volume};

impl Volumes {
    /// Mounts the staged volume at `target` too: a folder, or a file for a raw block volume. The same again changes nothing.
    pub fn publish(&self, handle: &str, staging: &Path, target: &Path, usage: Usage) -> Result<(), Status> {
        let _exclusion = self.exclude_others(handle)?;
        let volume = self.staged_volume(handle, staging, usage)?;
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).map_err(|error| failed("create the folder of", target, &error))?;
        }
        let target = mounts::resolved(target).map_err(|error| failed("find", target, &error))?;
        let source = volume.block_device().map_err(|error| failed("attach a block device for", &target, &error))?;
        match mounts::at(&target).map_err(|error| failed("look up", &target, &error))? {
            Some(mounted) if volume.is_at(&mounted) => return Ok(()),
            Some(_) => mounts::unmount_all(&target, |mounted| self.is_dead(mounted))
                .map_err(|error| failed("unmount", &target, &error))?,
            None => {}
        }
        let created = if usage.block { File::create(&target).map(drop) } else { fs::create_dir_all(&target) };
        created.map_err(|error| failed("create", &target, &error))?;
        mounts::bind(source.as_deref().unwrap_or(&volume.point), &target, usage.read_only)
            .map_err(|error| failed("mount the volume at", &target, &error))?;
        tracing::info!(volume = handle, target = %target.display(), "published");
        Ok(())
    }

    /// Staged by this process, or staged anew if it was by one before it.
    fn staged_volume(&self, handle: &str, staging: &Path, usage: Usage) -> Result<Arc<Volume>, Status> {
        let not_staged =
            || Status::failed_precondition(format!("volume {handle} is not staged at {}", staging.display()));
        let resolved = mounts::resolved(staging).map_err(|_| not_staged())?;
        match self.served_at(&resolved)? {
            Some(volume) if volume.handle == handle && volume.is_block() == usage.block => Ok(volume),
            Some(_) => Err(not_staged()),
            None => match mounts::at(&mount_point(&resolved, usage.block))
                .map_err(|error| failed("look up", staging, &error))?
            {
                Some(mounted) if self.is_dead(&mounted) => self.stage_anew(handle, &resolved, usage),
                _ => Err(not_staged()),
            },
        }
    }

    /// Unmounts `target` and removes it. Nothing there is fine.
    pub fn unpublish(&self, handle: &str, target: &Path) -> Result<(), Status> {
        let _exclusion = self.exclude_others(handle)?;
        let target = match mounts::resolved(target) {
            Ok(target) => target,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed("find", target, &error)),
        };
        mounts::unmount_all(&target, |mounted| self.is_dead(mounted))
            .map_err(|error| failed("unmount", &target, &error))?;
        let removed = match fs::symlink_metadata(&target) {
            Ok(metadata) if metadata.is_dir() => fs::remove_dir(&target),
            Ok(_) => fs::remove_file(&target),
            Err(error) => Err(error),
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", &target, &error)),
            _ => Ok(()),
        }
    }

    /// How full the volume is that is mounted at `path`.
    pub fn usage(&self, handle: &str, path: &Path) -> Result<VolumeUsage, Status> {
        let not_there = || Status::not_found(format!("volume {handle} is not mounted at {}", path.display()));
        let resolved = mounts::resolved(path).map_err(|_| not_there())?;
        let mounted = mounts::at(&resolved).map_err(|error| failed("look up", path, &error))?.ok_or_else(not_there)?;
        let volumes = self.served();
        let volume = volumes.iter().find(|volume| volume.handle == handle && volume.is_at(&mounted));
        let volume = volume.ok_or_else(not_there)?;
        let bytes = Unit::Bytes.into();
        if let Some(size) = volume.block_size().map_err(|error| failed("read the size of", path, &error))? {
            return Ok(VolumeUsage { total: signed(size), unit: bytes, ..VolumeUsage::default() });
        }
        let space = rustix::fs::statvfs(&resolved).map_err(|error| failed("read the usage of", path, &error.into()))?;
        let in_bytes = |blocks: u64| signed(blocks.saturating_mul(space.f_frsize));
        Ok(VolumeUsage {
            total: in_bytes(space.f_blocks),
            available: in_bytes(space.f_bavail),
            used: in_bytes(space.f_blocks.saturating_sub(space.f_bfree)),
            unit: bytes,
        })
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
