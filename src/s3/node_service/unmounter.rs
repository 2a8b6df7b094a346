//! Takes sources away: of Mountpoint Pods that no workload uses any more, and of those that are gone. One task for each, so
//! that one which waits holds up no other.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::api::mountpoint_s3_pod_attachment::MountpointS3PodAttachment;
use crate::runtime::lock::lock;
use crate::s3::spans;

use super::communication::Communication;
use super::credentials::Files;
use super::decide::needs_unmount;
use super::mounts::{self, Table, blocking, is_of_mount_s3};
use super::publication::{is_name, source};
use super::{Node, folders};

/// How often all folders of sources are looked through.
const SWEEP: Duration = Duration::from_secs(120);
/// Pauses before a source that is in use is unmounted again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Works until `cancel`. The first look finds what happened while we did not run.
pub async fn run(node: Arc<Node>, cancel: CancellationToken) {
    let busy = Arc::new(Mutex::new(BTreeSet::new()));
    let (mut pods, mut attachments) = (node.stores.pods.subscribe(), node.stores.attachments.subscribe());
    let mut sweep = tokio::time::interval(SWEEP);
    loop {
        let look = tokio::select! {
            () = cancel.cancelled() => return,
            Some(change) = pods.recv() => vec![change.key.name],
            Some(change) = attachments.recv() => change.old.iter().flat_map(|before| named(before)).collect(),
            _ = sweep.tick() => everything(&node),
        };
        for name in look {
            if is_done_with(&node, &name) && lock(&busy).insert(name.clone()) {
                let (node, busy) = (node.clone(), busy.clone());
                tokio::spawn(async move {
                    retire(&node, &name).instrument(spans::unmount(&name)).await;
                    lock(&busy).remove(&name);
                });
            }
        }
    }
}

/// All names for which there is a folder, and those of Mountpoint Pods.
fn everything(node: &Node) -> Vec<String> {
    let mut names = folders::names(&node.root, &sources()).unwrap_or_else(|error| {
        tracing::warn!(%error, "cleanup: the folder of sources cannot be read");
        Vec::new()
    });
    names.extend(node.stores.pods.list().iter().filter_map(|pod| pod.metadata.name.clone()));
    names.retain(|name| is_name(name));
    names
}

fn sources() -> String {
    source("").trim_end_matches('/').to_owned()
}

/// The Mountpoint Pods that an s3pa names.
fn named(attachment: &MountpointS3PodAttachment) -> Vec<String> {
    attachment.spec.mountpoint_s3_pod_attachments.keys().cloned().collect()
}

/// Whether nothing is to be mounted through a Mountpoint Pod any more. One that is not known counts only once all are; one
/// that is drained, when its workloads were given to another.
fn is_done_with(node: &Node, name: &str) -> bool {
    match node.mountpoint_pod(name) {
        Some(pod) if needs_unmount(&pod) => true,
        Some(pod) if pod.is_terminating() => node.stores.attachments.synced() && !is_assigned(node, name),
        Some(_) => false,
        None => node.stores.pods.synced(),
    }
}

fn is_assigned(node: &Node, name: &str) -> bool {
    node.stores.attachments.list().iter().any(|attachment| named(attachment).iter().any(|one| one == name))
}

/// Tells the mounter that mount-s3 may end, waits until the source alone is left, and takes it away.
async fn retire(node: &Arc<Node>, name: &str) {
    tell_to_exit(node, name);
    let mut pause = PAUSES.0;
    let mut tables = node.tables.subscribe();
    while is_done_with(node, name) {
        tables.mark_unchanged();
        match take_away(node, name).await {
            Ok(true) => return,
            Ok(false) => drop(tokio::time::timeout(PAUSES.1, tables.changed()).await),
            Err(error) => {
                tracing::warn!(%error, mountpoint_pod = name, "cleanup: the source is not unmounted yet; it is tried again");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSES.1);
            }
        }
    }
}

fn tell_to_exit(node: &Node, name: &str) {
    let Some(pod) = node.mountpoint_pod(name) else { return };
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    // Without its folder there is no mounter to tell; the source goes all the same.
    let told = Communication::open(&node.root, &uid).and_then(|open| open.map_or(Ok(()), |open| open.tell_to_exit()));
    if let Err(error) = told {
        tracing::warn!(%error, mountpoint_pod = name, "the mounter cannot be told to exit");
    }
}

/// Whether the source is gone; it stays while it is mounted for a workload.
async fn take_away(node: &Arc<Node>, name: &str) -> io::Result<bool> {
    let _turn = node.source_turns.take(name).await;
    let absolute = node.absolute(&source(name));
    let table = Table::read()?;
    if let Some(mounted) = table.at(&absolute)
        && table.references(mounted).next().is_some()
    {
        return Ok(false);
    }
    let was_mounted = table.at(&absolute).is_some();
    if table.at(&absolute).is_some_and(|mounted| !is_of_mount_s3(mounted)) {
        return Err(io::Error::other(format!("something else than mount-s3 is mounted at {absolute}")));
    }
    let (root, path) = (node.root.clone(), source(name));
    blocking(move || {
        match mounts::unmount_all(&root, &path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        folders::remove(&root, &path)
    })
    .await?;
    lock(&node.origins).remove(name);
    remove_keys(node, name);
    if was_mounted {
        tracing::info!(mountpoint_pod = name, "cleanup: the source is unmounted");
    }
    Ok(true)
}

/// They would go with the pod; until then nobody needs them.
fn remove_keys(node: &Node, name: &str) {
    let Some(pod) = node.mountpoint_pod(name) else { return };
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    let volume = pod.metadata.annotations.as_ref().and_then(|all| all.get(crate::api::s3::VOLUME_ID).cloned());
    let (Some(volume), Ok(Some(folder))) = (volume, Communication::open(&node.root, &uid)) else { return };
    if let Err(error) = folder.remove_keys(&Files::of(&uid, &volume)) {
        tracing::debug!(%error, mountpoint_pod = name, "credentials stay until the pod is gone");
    }
}
