//! NodePublishVolume: from a request to a mount in the pod's folder.

use std::sync::Arc;
use std::time::Duration;

use tonic::Status;

use crate::runtime::lock::lock;
use crate::s3::keys::Keys;

use super::communication::Communication;
use super::credentials::Files;
use super::decide::{Assigned, Standing};
use super::mounts::{self, Table, blocking, is_of_mount_s3};
use super::probe::Answer;
use super::publication::{self, CredentialSource, MountpointPod, Publication};
use super::source::{self, failed};
use super::{Node, assignment, folders, legacy};

/// How long a dead mount may take to say so.
const ANSWER: Duration = Duration::from_secs(2);

/// Publishes a volume in a pod. Again: credentials are written again, and what is dead is mounted anew.
pub async fn publish(
    node: &Arc<Node>,
    publication: Publication,
    keys: Option<Keys>,
    patience: Duration,
) -> Result<(), Status> {
    let _turn = node.turns.take(&publication.target()).await;
    in_turn(node, publication, keys, patience).await
}

/// Publishes again what is mounted at a target, if it still is.
pub async fn again(node: &Arc<Node>, target: &str) -> Result<Option<Publication>, Status> {
    let _turn = node.turns.take(target).await;
    let Some(publication) = node.records.get(target) else { return Ok(None) };
    in_turn(node, publication.clone(), None, Duration::ZERO).await.map(|()| Some(publication))
}

async fn in_turn(
    node: &Arc<Node>,
    publication: Publication,
    keys: Option<Keys>,
    patience: Duration,
) -> Result<(), Status> {
    let target = publication.target();
    let table = Table::read().map_err(|error| failed("read the mount table", &error))?;
    if legacy::is_mounted(node, &publication, &table) {
        return legacy::refresh(node, &publication);
    }
    if let Some(keys) = &keys {
        lock(&node.keys).insert(target.clone(), keys.clone());
    }
    let served_by = match right_already(node, &publication, &table) {
        Some(assigned) => {
            source::share(node, &publication, &assigned.pod)?;
            source::refresh(node, &publication, &assigned.pod, keys)?;
            assigned.pod
        }
        None => mount(node, &publication, keys, patience).await.inspect_err(|_| tidy(node, &target))?,
    };
    let publication = Publication { served_by: Some(served_by), ..publication };
    node.records.keep(&node.root, &publication).map_err(|error| failed("keep what is mounted", &error))
}

/// The assignment, if what is mounted is of it and not known to be dead.
fn right_already(node: &Node, publication: &Publication, table: &Table) -> Option<Assigned> {
    let (Standing::Ready(assigned) | Standing::Waiting(assigned)) = assignment::now(node, publication) else {
        return None;
    };
    let on_top = table.at(&node.absolute(&publication.target()))?;
    let source = table.at(&node.absolute(&publication::source(&assigned.pod.name)))?;
    let known = !assigned.pod.uid.is_empty() && !lock(&node.dead).contains(&on_top.device);
    (known && on_top.device == source.device).then_some(assigned)
}

async fn mount(
    node: &Arc<Node>,
    publication: &Publication,
    keys: Option<Keys>,
    patience: Duration,
) -> Result<MountpointPod, Status> {
    let target = publication.target();
    let ready = async {
        let assigned = assignment::ready(node, publication, patience).await?;
        let keys = keys.or_else(|| remembered(node, publication));
        let turn = source::ready(node, publication, &assigned, keys).await?;
        Ok::<_, Status>((assigned, turn))
    };
    let ready = node.leaving.unless_left(&target, ready).await;
    let (assigned, _turn) =
        ready.ok_or_else(|| Status::aborted(format!("volume {} is unpublished", publication.volume)))??;
    forget_death(node, &assigned.pod);
    let cleared = detach_dead_layers(node, &target).await;
    cleared.map_err(|error| failed("take a dead mount out of the pod's folder", &error))?;
    let (node, publication, pod) = (node.clone(), publication.clone(), assigned.pod.clone());
    let bound = blocking(move || bind(&node, &publication, &pod)).await;
    bound.map_err(|error| failed("mount the volume in the pod's folder", &error))?;
    Ok(assigned.pod)
}

/// Takes away what is dead on top at a target: else each death would leave one more mount in the tables of the node and of
/// its containers. The lowest stays, for containers follow what is mounted on that; and so does what lives, for those that do
/// not follow may still use it.
async fn detach_dead_layers(node: &Node, target: &str) -> std::io::Result<()> {
    let absolute = node.absolute(target);
    loop {
        let table = Table::read()?;
        let mut layers = table.all_at(&absolute);
        let (Some(top), Some(_)) = (layers.next(), layers.next()) else { return Ok(()) };
        let is_dead = is_of_mount_s3(top) && matches!(node.probes.ask(&absolute, ANSWER).await, Answer::Dead(_));
        if !is_dead {
            return Ok(());
        }
        let (root, path) = (node.root.clone(), target.to_owned());
        blocking(move || mounts::detach_top(&root, &path)).await?;
    }
}

/// Numbers of file systems are used again: one that answers is not the one that died.
fn forget_death(node: &Node, pod: &MountpointPod) {
    if let Some(source) =
        Table::read().ok().and_then(|table| table.at(&node.absolute(&publication::source(&pod.name))).cloned())
    {
        lock(&node.dead).remove(&source.device);
    }
}

/// Credentials of a volume's own secret that the kubelet brought before: to us, or to the Mountpoint Pod before.
fn remembered(node: &Node, publication: &Publication) -> Option<Keys> {
    if publication.credentials == CredentialSource::Driver {
        return None;
    }
    if let Some(keys) = lock(&node.keys).get(&publication.target()) {
        return Some(keys.clone());
    }
    let before = publication.served_by.as_ref()?;
    let communication = Communication::open(&node.root, &before.uid).ok()??;
    communication.keys(&Files::of(&before.uid, &publication.volume_id))
}

fn bind(node: &Node, publication: &Publication, pod: &MountpointPod) -> std::io::Result<()> {
    let (source, target) = (publication::source(&pod.name), publication.target());
    make_point(node, &target)?;
    let table = Table::read()?;
    let device = |path: &str| table.at(&node.absolute(path)).map(|mount| mount.device);
    if device(&source).is_some() && device(&source) == device(&target) {
        return Ok(());
    }
    mounts::bind(&node.root, &source, &target, publication.read_only)
}

/// The folder to mount on; the kubelet made the one that it is in.
fn make_point(node: &Node, target: &str) -> std::io::Result<()> {
    let (parent, name) = node.root.parent(target)?;
    match rustix::fs::mkdirat(parent, name, rustix::fs::Mode::from_raw_mode(0o750)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Leaves no empty folder behind, where nothing was mounted.
fn tidy(node: &Node, target: &str) {
    let mounted = Table::read().is_ok_and(|table| table.at(&node.absolute(target)).is_some());
    if !mounted && let Err(error) = folders::remove(&node.root, target) {
        tracing::debug!(%error, target, "the folder of a volume that was not mounted stays");
    }
}
