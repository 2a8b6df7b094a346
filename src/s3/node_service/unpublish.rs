//! NodeUnpublishVolume: takes the mount out of a pod's folder, and nothing else. The source goes when the last is gone.

use std::io;
use std::sync::Arc;

use tonic::Status;

use crate::runtime::lock::lock;

use super::mounts::{self, Table, blocking};
use super::publication::target;
use super::source::failed;
use super::{Node, folders, legacy};

/// Unpublishes. What is not there is unpublished.
pub async fn unpublish(node: &Arc<Node>, volume_id: &str, pod_uid: &str, volume: &str) -> Result<(), Status> {
    let target = target(pod_uid, volume);
    let _turn = {
        let _left = node.leaving.announce(&target);
        node.turns.take(&target).await
    };
    let table = Table::read().map_err(|error| failed("read the mount table", &error))?;
    let was_legacy = node.records.get(&target).is_none() && legacy::is_unshared(node, &target, &table);
    let (root, path) = (node.root.clone(), target.clone());
    let unmounted = blocking(move || match mounts::unmount_all(&root, &path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => folders::remove(&root, &path),
    });
    unmounted.await.map_err(|error| failed(&format!("unmount {}", node.absolute(&target)), &error))?;
    if was_legacy {
        legacy::remove_keys(node, pod_uid, volume_id);
    }
    lock(&node.keys).remove(&target);
    node.records.forget(&node.root, &target).map_err(|error| failed("forget what was mounted", &error))
}
