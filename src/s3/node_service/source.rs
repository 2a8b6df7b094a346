//! The source of a Mountpoint Pod: a FUSE mount that we make and mount-s3 in the pod serves.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::OwnedMutexGuard;
use tonic::Status;

use crate::runtime::clock::monotonic;
use crate::runtime::lock::lock;
use crate::s3::keys::Keys;
use crate::s3::socket_protocol::{Connection, MountMessage, ProtocolError};

use super::Node;
use super::communication::Communication;
use super::credentials::Files;
use super::decide::Assigned;
use super::mounts::{self, Table, blocking, is_of_mount_s3};
use super::probe::Answer;
use super::publication::{self, CredentialSource, MountpointPod, Publication, environment};

/// How long a mount that is there may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// How often the mounter's word is looked for while nobody answers.
const LOOK: Duration = Duration::from_millis(50);
/// How long the mounter may take to say why mount-s3 ended.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The turn of a Mountpoint Pod.
pub type Turn = OwnedMutexGuard<Option<Failure>>;

/// The last attempt failed; for those who waited for it.
pub struct Failure {
    at: Instant,
    status: Status,
}

/// Waits for the Mountpoint Pod's turn, and sees to it that its source is there and answers; with credentials as they are
/// now. Whoever waited while an attempt failed shares its failure: one after the other would take as long as all together.
/// An attempt goes on to its end though nobody waits for it any more.
pub async fn ready(
    node: &Arc<Node>,
    publication: &Publication,
    assigned: &Assigned,
    keys: Option<Keys>,
) -> Result<Turn, Status> {
    let begun = monotonic();
    let mut turn = node.source_turns.take(&assigned.pod.name).await;
    if let Some(failure) = turn.as_ref().filter(|failure| failure.at >= begun) {
        return Err(failure.status.clone());
    }
    share(node, publication, &assigned.pod)?;
    let communication = open(node, &assigned.pod)?;
    let files = write_keys(node, &communication, publication, &assigned.pod, keys)?;
    let (node, publication, assigned) = (node.clone(), publication.clone(), assigned.clone());
    let attempt = tokio::spawn(async move {
        let done = ensure(&node, &publication, &assigned, &communication, files).await;
        *turn = done.as_ref().err().map(|status| Failure { at: monotonic(), status: status.clone() });
        done.map(|()| turn)
    });
    attempt.await.unwrap_or_else(|panic| Err(Status::internal(format!("the node plugin failed: {panic}"))))
}

/// Refuses what would give a workload another's bucket. An s3pa knows a volume by its name, and that may be made anew while
/// workloads still have the one before.
pub fn share(node: &Node, publication: &Publication, pod: &MountpointPod) -> Result<(), Status> {
    let origin = publication.origin();
    match lock(&node.origins).get(&pod.name) {
        Some(of) if *of != origin => Err(Status::failed_precondition(format!(
            "{} serves bucket {:?} with the credentials of the {}, but volume {} of {} is bucket {:?} with those of the {}: \
             was the volume made anew under its name? Delete the pods that have the one before",
            shown(node, pod),
            of.bucket,
            of.credentials.name(),
            publication.volume,
            publication.pod(),
            origin.bucket,
            origin.credentials.name(),
        ))),
        _ => Ok(()),
    }
}

async fn ensure(
    node: &Node,
    publication: &Publication,
    assigned: &Assigned,
    communication: &Communication,
    files: Option<Files>,
) -> Result<(), Status> {
    let pod = &assigned.pod;
    let absolute = node.absolute(&publication::source(&pod.name));
    let table = Table::read().map_err(|error| failed("read the mount table", &error))?;
    if let Some(mounted) = table.at(&absolute) {
        if !is_of_mount_s3(mounted) {
            let what = format!("{} ({}) is mounted at {absolute}", mounted.source, mounted.fs_type);
            return Err(Status::failed_precondition(format!("{what}, where only mount-s3 belongs: unmount it")));
        }
        match node.probes.ask(&absolute, ANSWER).await {
            Answer::Alive(_) => {
                // Unknown when it was mounted before we started, and for nobody that we know of.
                lock(&node.origins).entry(pod.name.clone()).or_insert_with(|| publication.origin());
                return Ok(());
            }
            Answer::Silent => {
                return Err(Status::unavailable(format!(
                    "mount-s3 of {} has not answered within {ANSWER:?}",
                    shown(node, pod)
                )));
            }
            Answer::Dead(_) => discard(node, pod).await,
        }
    }
    let served = serve(node, publication, assigned, communication, files).await;
    match served {
        Ok(()) => drop(lock(&node.origins).insert(pod.name.clone(), publication.origin())),
        Err(_) => discard(node, pod).await,
    }
    served
}

/// Writes credentials again, for a source that is there.
pub fn refresh(node: &Node, publication: &Publication, pod: &MountpointPod, keys: Option<Keys>) -> Result<(), Status> {
    write_keys(node, &open(node, pod)?, publication, pod, keys).map(drop)
}

fn open(node: &Node, pod: &MountpointPod) -> Result<Communication, Status> {
    let opened = Communication::open(&node.root, &pod.uid);
    opened
        .map_err(|error| failed("open the folder of the Mountpoint Pod", &error))?
        .ok_or_else(|| Status::unavailable(format!("{} has no folder on this node yet, or any more", shown(node, pod))))
}

fn write_keys(
    node: &Node,
    communication: &Communication,
    publication: &Publication,
    pod: &MountpointPod,
    keys: Option<Keys>,
) -> Result<Option<Files>, Status> {
    let files = Files::of(&pod.uid, &publication.volume_id);
    let keys = match publication.credentials {
        CredentialSource::Driver => node.settings.keys.clone(),
        CredentialSource::Secret => Some(keys.or_else(|| communication.keys(&files)).ok_or_else(|| {
            Status::unavailable(format!(
                "the credentials of {} are not known until the kubelet publishes volume {} again",
                publication.pod(),
                publication.volume
            ))
        })?),
    };
    let Some(keys) = keys else { return Ok(None) };
    communication
        .write_keys(&files, &keys)
        .map_err(|error| failed("write credentials for the Mountpoint Pod", &error))?;
    Ok(Some(files))
}

/// What mount-s3 is told, and whether the source is for reading only.
fn message(
    node: &Node,
    publication: &Publication,
    assigned: &Assigned,
    files: Option<Files>,
) -> Result<(MountMessage, bool), Status> {
    let mounting = publication.mounting(&assigned.group, node.kubernetes().as_deref());
    let mounting = mounting.map_err(|error| Status::invalid_argument(format!("volume_capability: {error}")))?;
    if !mounting.dropped.is_empty() {
        tracing::warn!(volume = publication.volume, options = ?mounting.dropped, "mount options that a volume may not choose are left out");
    }
    let mut variables = node.settings.environment.clone();
    variables.extend(mounting.env);
    if publication.credentials == CredentialSource::Secret {
        // Or the node's own role would be found.
        variables.insert("AWS_EC2_METADATA_DISABLED".to_owned(), "true".to_owned());
    }
    variables.extend(files.iter().flat_map(Files::environment));
    let env = environment(&variables);
    Ok((MountMessage { bucket_name: publication.bucket.clone(), args: mounting.args, env }, mounting.read_only))
}

async fn serve(
    node: &Node,
    publication: &Publication,
    assigned: &Assigned,
    communication: &Communication,
    files: Option<Files>,
) -> Result<(), Status> {
    let pod = &assigned.pod;
    let path = publication::source(&pod.name);
    let (message, read_only) = message(node, publication, assigned, files)?;
    let refused = |error| refused(node, pod, error);
    let mounter = Connection::open(&communication.socket(), node.settings.mount_patience).await.map_err(refused)?;
    // Not before: until it listens, the mounter may still have to say why the mount-s3 before failed.
    communication.forget_error().map_err(|error| failed("remove an old mount.err", &error))?;
    let (root, made) = (node.root.clone(), path.clone());
    let device = blocking(move || mounts::mount_fuse(&root, &made, read_only)).await;
    let device = device.map_err(|error| failed(&format!("mount FUSE at {}", node.absolute(&path)), &error))?;
    mounter.send(&message, device.as_fd()).await.map_err(refused)?;
    // The mount is to die with mount-s3.
    drop(device);
    let answered = async {
        match node.probes.ask(&node.absolute(&path), node.settings.mount_patience).await {
            Answer::Alive(_) => Ok(()),
            Answer::Dead(_) => Err(last_words(communication).await),
            Answer::Silent => Err(None),
        }
    };
    let said = tokio::select! {
        answered = answered => answered,
        said = words(communication) => Err(Some(said)),
    };
    said.map_err(|said| {
        let pod = shown(node, pod);
        match said {
            Some(said) => Status::internal(format!("mount-s3 of {pod} failed: {said}")),
            None => Status::unavailable(format!(
                "mount-s3 of {pod} does not answer within {:?}; see kubectl logs of it",
                node.settings.mount_patience
            )),
        }
    })
}

/// The mounter could not be told.
fn refused(node: &Node, pod: &MountpointPod, error: ProtocolError) -> Status {
    match error {
        ProtocolError::Deadline { what, deadline, .. } => {
            Status::unavailable(format!("{}: {what} within {deadline:?}", shown(node, pod)))
        }
        error => Status::internal(format!("{}: {error}", shown(node, pod))),
    }
}

async fn last_words(communication: &Communication) -> Option<String> {
    let said = tokio::time::timeout(LAST_WORDS, words(communication)).await;
    Some(said.unwrap_or_else(|_| "it ended without a word".to_owned()))
}

/// Waits for the mounter to say why mount-s3 ended.
async fn words(communication: &Communication) -> String {
    loop {
        if let Some(said) = communication.error() {
            return said;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Takes away a source that nobody serves, and its folder.
async fn discard(node: &Node, pod: &MountpointPod) {
    lock(&node.origins).remove(&pod.name);
    let (root, path) = (node.root.clone(), publication::source(&pod.name));
    let done = blocking(move || {
        mounts::discard(&root, &path)?;
        super::folders::remove(&root, &path)
    });
    if let Err(error) = done.await {
        tracing::warn!(%error, "a source that nobody serves cannot be removed");
    }
}

/// A Mountpoint Pod in words.
pub fn shown(node: &Node, pod: &MountpointPod) -> String {
    format!("Mountpoint Pod {}/{}", node.settings.mountpoint_namespace, pod.name)
}

/// A failed step of ours.
pub fn failed(what: &str, error: &std::io::Error) -> Status {
    Status::internal(format!("cannot {what}: {error}"))
}
