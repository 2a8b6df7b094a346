//! Mounts of version 1 of the driver: mount-s3 under the host's systemd, right at the target. They are left working until
//! their pods end; only their credentials are written again, where version 1 kept them. The keys of a volume's own Secret it
//! kept nowhere: it gave them to mount-s3 in its environment, which nobody can change while that runs.

use rustix::fs::OFlags;
use tonic::Status;

use crate::api::s3::DRIVER;

use super::credentials::Files;
use super::decide::Standing;
use super::mounts::{Table, is_of_mount_s3};
use super::publication::{CredentialSource, Publication};
use super::source::failed;
use super::{Node, assignment, folders};

/// Whether what is mounted for a pod is version 1's: no source shares it, and we know of none that ever did.
pub fn is_mounted(node: &Node, publication: &Publication, table: &Table) -> bool {
    let target = publication.target();
    node.records.get(&target).is_none()
        && is_unshared(node, &target, table)
        && assignment::now(node, publication) == Standing::NotAttached
}

/// Whether mount-s3 is mounted there and nowhere else. A mount of ours shares file system and folder with its source.
pub fn is_unshared(node: &Node, target: &str, table: &Table) -> bool {
    let mounted = table.at(&node.absolute(target)).filter(|mount| is_of_mount_s3(mount));
    mounted.is_some_and(|mounted| table.references(mounted).next().is_none())
}

fn folder() -> String {
    format!("plugins/{DRIVER}")
}

/// Writes the driver's keys where version 1 has them. Where it has none, none are put on the host.
pub fn refresh(node: &Node, publication: &Publication) -> Result<(), Status> {
    let files = Files::of(&publication.pod_uid, &publication.volume_id);
    let kept = folders::names(&node.root, &folder()).map_err(|error| failed("read the driver's folder", &error))?;
    let Some(keys) = node.settings.keys.as_ref().filter(|_| publication.credentials == CredentialSource::Driver) else {
        return Ok(());
    };
    if !kept.contains(&files.credentials) {
        return Ok(());
    }
    let opened = node.root.open_below(&folder(), OFlags::RDONLY | OFlags::DIRECTORY);
    let opened = opened.map_err(|error| failed("open the driver's folder", &error))?;
    for (name, text) in files.contents(keys) {
        let written = folders::replace(&opened, name, 0o640, text.as_bytes());
        written.map_err(|error| failed("write credentials of a systemd mount", &error))?;
    }
    tracing::info!(
        volume = publication.volume,
        pod = publication.pod(),
        "credentials of a systemd mount are written again"
    );
    Ok(())
}

/// Removes the keys of a pod that has ended.
pub fn remove_keys(node: &Node, pod_uid: &str, volume_id: &str) {
    let files = Files::of(pod_uid, volume_id);
    let removed = node.root.open_below(&folder(), OFlags::RDONLY | OFlags::DIRECTORY).and_then(|opened| {
        folders::remove_file(&opened, &files.config)?;
        folders::remove_file(&opened, &files.credentials)
    });
    if let Err(error) = removed {
        tracing::warn!(%error, "credentials of a systemd mount are still on the node");
    }
}
