//! Mounts again what is dead, and what another Mountpoint Pod is to serve, without waiting for the kubelet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::runtime::clock::monotonic;
use crate::runtime::lock::lock;
use crate::s3::spans;

use super::decide::{Standing, Verdict, verdict};
use super::mounts::{Table, is_of_mount_s3};
use super::probe::Answer;
use super::publication::{Publication, source};
use super::{Node, assignment, folders, publish, tell};

/// How often mounts are asked whether their servers live.
const ASK: Duration = Duration::from_secs(2);
/// What changes together is looked at once.
const GATHER: Duration = Duration::from_millis(100);
/// How long they may take to answer; one that takes longer is slow, not dead.
const ANSWER: Duration = Duration::from_secs(2);
/// Pauses before a mount that failed is tried again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(4));
/// How long a mount may be dead until its workload is told, though there is nothing yet to mount it from.
const TELL: Duration = Duration::from_secs(5);

/// A mount that is to be made again.
struct Patient {
    since: Instant,
    next: Instant,
    pause: Duration,
    is_told: bool,
    at_work: bool,
}

type Patients = Arc<Mutex<BTreeMap<String, Patient>>>;

/// Works until `cancel`.
pub async fn run(node: Arc<Node>, cancel: CancellationToken) {
    let patients = Patients::default();
    let mut changes = node.changes.subscribe();
    let mut ask = tokio::time::interval(ASK);
    ask.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            // A Mountpoint Pod whose container ended has changed.
            _ = changes.changed() => tokio::time::sleep(GATHER).await,
            _ = ask.tick() => {}
        }
        forget_what_is_gone(&node);
        let records = node.records.list();
        forget_patients(&patients, &records);
        if records.is_empty() {
            lock(&node.dead).clear();
            continue;
        }
        ask_all(&node).await;
        for (publication, found) in look(&node, &records) {
            treat(&node, &patients, publication, found);
        }
    }
}

/// Asks all sources, and the file systems of targets that have no source any more.
async fn ask_all(node: &Node) {
    let Ok(table) = Table::read() else { return };
    let sources = node.absolute(&source(""));
    let targets: BTreeSet<_> = node.records.list().iter().map(|record| node.absolute(&record.target())).collect();
    let mut paths = BTreeMap::new();
    for mount in table.all().iter().filter(|mount| is_of_mount_s3(mount)) {
        let is_on_top = table.at(&mount.path).is_some_and(|top| top.id == mount.id);
        if is_on_top && (mount.path.starts_with(&sources) || targets.contains(&mount.path)) {
            paths.entry(mount.device).or_insert_with(|| mount.path.clone());
        }
    }
    let answers = node.probes.ask_all(paths.values().cloned().collect(), ANSWER).await;
    let is_dead = |path: &String| matches!(answers.get(path), Some(Answer::Dead(_)));
    let mut dead: BTreeSet<_> = paths.iter().filter(|(_, path)| is_dead(path)).map(|(device, _)| *device).collect();
    // Something else may be mounted at the path meanwhile, and the number be another's.
    let Ok(after) = Table::read() else { return };
    dead.retain(|device| paths.get(device).and_then(|path| after.at(path)).is_some_and(|top| top.device == *device));
    *lock(&node.dead) = dead;
}

fn look(node: &Node, records: &[Publication]) -> Vec<(Publication, Verdict)> {
    let Ok(table) = Table::read() else { return Vec::new() };
    let dead = lock(&node.dead).clone();
    let of = |record: &Publication| {
        let on_top = table.at(&node.absolute(&record.target())).filter(|mount| is_of_mount_s3(mount));
        let (Standing::Ready(assigned) | Standing::Waiting(assigned)) = assignment::now(node, record) else {
            // Nobody is to serve it: its pod is about to go.
            return Verdict::Right;
        };
        let its_source = table.at(&node.absolute(&source(&assigned.pod.name)));
        let device = |mount: Option<&crate::node_agent::mounts::mountinfo::Mount>| mount.map(|mount| mount.device);
        verdict(record, &assigned, device(on_top), device(its_source), &dead)
    };
    records.iter().map(|record| (record.clone(), of(record))).collect()
}

fn treat(node: &Arc<Node>, patients: &Patients, publication: Publication, found: Verdict) {
    let target = publication.target();
    let now = monotonic();
    let mut all = lock(patients);
    if found == Verdict::Right {
        all.retain(|name, patient| *name != target || patient.at_work);
        return;
    }
    let fresh = || Patient { since: now, next: now, pause: PAUSES.0, is_told: false, at_work: false };
    let patient = all.entry(target.clone()).or_insert_with(fresh);
    if patient.at_work {
        return;
    }
    let can_mount = matches!(assignment::now(node, &publication), Standing::Ready(_));
    if found == Verdict::Dead && !patient.is_told && now >= patient.since + TELL {
        patient.is_told = true;
        tokio::spawn(tell::dead(node.clone(), publication.clone()));
    }
    if !can_mount || now < patient.next {
        return;
    }
    patient.at_work = true;
    let since = patient.since;
    drop(all);
    let (node, patients) = (node.clone(), patients.clone());
    let span = spans::repair(&publication.volume, &publication.pod());
    let work = async move {
        tracing::debug!(volume = publication.volume, pod = publication.pod(), ?found, "to be mounted again");
        let mounted = publish::again(&node, &target).await;
        settle(&node, &patients, publication, found, since, mounted);
    };
    tokio::spawn(work.instrument(span));
}

fn settle(
    node: &Arc<Node>,
    patients: &Patients,
    publication: Publication,
    found: Verdict,
    since: Instant,
    mounted: Result<Option<Publication>, tonic::Status>,
) {
    let mut all = lock(patients);
    let target = publication.target();
    match mounted {
        Ok(None) => {
            all.remove(&target);
            tracing::debug!(
                volume = publication.volume,
                pod = publication.pod(),
                "not mounted again: unpublished meanwhile"
            );
        }
        Ok(Some(publication)) => {
            all.remove(&target);
            let took = monotonic().saturating_duration_since(since);
            tracing::info!(volume = publication.volume, pod = publication.pod(), ?took, "mounted again");
            node.metrics.repaired(took);
            tokio::spawn(tell::mounted_again(node.clone(), publication, found));
        }
        Err(status) => {
            tracing::warn!(
                volume = publication.volume,
                error = status.message(),
                "not mounted again yet; it is tried again"
            );
            if let Some(patient) = all.get_mut(&target) {
                patient.at_work = false;
                patient.next = monotonic() + patient.pause;
                patient.pause = (patient.pause * 2).min(PAUSES.1);
            }
        }
    }
}

/// What is mounted no more need not be mounted again.
fn forget_patients(patients: &Patients, records: &[Publication]) {
    let mounted: BTreeSet<_> = records.iter().map(Publication::target).collect();
    lock(patients).retain(|target, patient| patient.at_work || mounted.contains(target));
}

/// The kubelet removes the folders of pods that are gone; what is left of them here is of no use.
fn forget_what_is_gone(node: &Node) {
    for record in node.records.list() {
        let target = record.target();
        let folder = target.trim_end_matches("/mount");
        let is_gone =
            matches!(folders::folder(&node.root, folder), Err(error) if error.kind() == std::io::ErrorKind::NotFound);
        if is_gone && let Err(error) = node.records.forget(&node.root, &target) {
            tracing::warn!(%error, "what was mounted for a pod that is gone is still kept");
        }
    }
}
