//! The health of the volumes of this node: which there are, when they are looked at, and what becomes of the samples. The
//! probes themselves are in `probes`; what is settled goes into the agent's one report.

mod baselines;
pub mod driver;
mod observe;
pub mod report;
mod schedule;
pub mod settle;
mod subjects;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Resource;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::probes::blocking::{ASK, Prober};
use super::probes::gather::Gatherer;
use super::probes::{HostView, Subject};
use super::reads::Reads;
use super::{Context, Stores, probes};
use crate::api::affinity::Host;
use crate::api::slim::{Node, PersistentVolume, Pod, VolumeSource};
use crate::api::time;
use crate::api::volume::{Check, CheckMode};
use crate::api::volume_health_policy::{self, VolumeHealthPolicy};
use crate::runtime::random_unit;
use crate::runtime::store::{Change, ObjectKey, Store};

use baselines::Baselines;
use observe::Answer;
use report::{Entry, NodeHealth};
use schedule::{LOCAL, LONGEST, Looks, Rounds, pause};
use settle::{Look, Origin, Settling};
use subjects::Found;

/// Whether a PersistentVolume may be one of this node's: a local one that no change of labels brings here is not kept.
pub fn may_be_here(volume: &PersistentVolume, node: Option<&Node>) -> bool {
    let (Some(node), Some(_)) = (node, &volume.spec.local) else { return true };
    Host::of(node).may_be_selected(volume)
}

/// A volume that a policy selects.
struct Watched {
    found: Found,
    policy: Arc<VolumeHealthPolicy>,
    /// Its block device.
    device: Option<String>,
    /// Whether self-fencing has covered a mount of it: until that is gone nothing tells how it is.
    is_covered: bool,
}

impl Watched {
    fn uid(&self) -> &str {
        self.found.volume.metadata.uid.as_deref().unwrap_or_default()
    }

    fn mode(&self, check: Check) -> CheckMode {
        self.policy.spec.mode(check)
    }

    fn interval(&self) -> Duration {
        self.policy.spec.interval.get()
    }
}

struct Watcher {
    cx: Context,
    stores: Stores,
    gatherer: Gatherer,
    reads: Reads,
    prober: Prober,
    kubelet_root: String,
    /// What was gathered last.
    view: Arc<HostView>,
    settling: Settling,
    baselines: Baselines,
    /// Where volumes are staged, by uid: what was there once is missed as long as the volume is used.
    staged: BTreeMap<String, String>,
    watched: BTreeMap<String, Watched>,
    looks: Looks,
    children: Rounds,
    plugins: Rounds,
    /// Whether there may be something else to report.
    is_news: bool,
    answers: mpsc::UnboundedSender<Answer>,
}

/// Looks after the volumes until `cancel`. `changed` is called when there is something else to report.
pub async fn watch(cx: Context, stores: Stores, cancel: CancellationToken, changed: impl Fn() + Send + 'static) {
    let signs = Arc::new(Notify::new());
    let gatherer = Gatherer::new(cx.children.clone(), cx.settings.host.clone());
    wake_on_changes(&stores, &signs);
    observe::wake_on_signs(&cx, &gatherer, &signs, &cancel);
    // An agent that may not read these yet (its role is older than it is) cleans up all the same.
    let known = async { tokio::join!(stores.volumes.wait_synced(), stores.policies.wait_synced()) };
    if cancel.run_until_cancelled(known).await.is_none() {
        return;
    }
    let (answers, mut answered) = mpsc::unbounded_channel();
    let mut watcher = Watcher::new(cx, stores, gatherer, answers).await;
    let work = async {
        loop {
            let next = watcher.next();
            tokio::select! {
                biased;
                Some(answer) = answered.recv() => watcher.take(answer),
                () = signs.notified() => watcher.looks.something_happened(watcher.now()),
                () = tokio::time::sleep_until(next.into()) => {}
            }
            if watcher.now() >= watcher.looks.next() {
                watcher.look().await;
            }
            watcher.ask();
            if watcher.tell() {
                changed();
            }
        }
    };
    cancel.run_until_cancelled(work).await;
}

/// What happens to objects is a sign, if it may be about a volume of this node.
fn wake_on_changes(stores: &Stores, signs: &Arc<Notify>) {
    let has_claim = |pod: &Pod| {
        let claims = |source: &VolumeSource| matches!(source, VolumeSource::Claim(_) | VolumeSource::Ephemeral);
        pod.spec.volumes.iter().any(|volume| claims(&volume.source))
    };
    on_change(&stores.pods, signs, move |pod| has_claim(pod));
    on_change(&stores.volumes, signs, |volume| volume.spec.local.is_some());
    on_change(&stores.policies, signs, |_| true);
}

fn on_change<K: Resource + Send + Sync + 'static>(
    store: &Store<K>,
    signs: &Arc<Notify>,
    matters: impl Fn(&K) -> bool + Send + 'static,
) {
    let (mut changes, signs) = (store.subscribe(), signs.clone());
    tokio::spawn(async move {
        while let Some(Change { old, new, .. }) = changes.recv().await {
            if new.or(old).is_some_and(|object| matters(&object)) {
                signs.notify_one();
            }
        }
    });
}

impl Watcher {
    async fn new(cx: Context, stores: Stores, gatherer: Gatherer, answers: mpsc::UnboundedSender<Answer>) -> Self {
        let key = ObjectKey::cluster(&cx.settings.node_name);
        let node_uid = stores.nodes.get(&key).and_then(|node| node.metadata.uid.clone());
        let status = stores.reports.get(&key).and_then(|report| report.status.clone()).unwrap_or_default();
        // What was said of another machine of that name is nothing to go on from.
        let told = if status.node_uid == node_uid { status.volumes } else { Vec::new() };
        let now = cx.clock.now().mono;
        Self {
            kubelet_root: observe::kubelet_root(&cx.settings).await,
            baselines: Baselines::read(&cx.settings).await,
            prober: Prober::new(cx.children.clone(), cx.settings.node_name.clone(), ASK),
            cx,
            stores,
            gatherer,
            reads: Reads::new("volumes of this node"),
            view: Arc::default(),
            settling: Settling::from_report(&told),
            staged: BTreeMap::new(),
            watched: BTreeMap::new(),
            looks: Looks::new(now),
            children: Rounds::default(),
            plugins: Rounds::default(),
            is_news: false,
            answers,
        }
    }

    fn now(&self) -> Instant {
        self.cx.clock.now().mono
    }

    /// When something is due.
    fn next(&self) -> Instant {
        let rounds = self.children.next().into_iter().chain(self.plugins.next());
        rounds.chain([self.looks.next()]).min().unwrap_or_else(|| self.now())
    }

    /// How often everything is looked at. Nothing announces that a plain folder or a device node is gone.
    fn every(&self) -> Duration {
        let intervals = self.watched.values().map(Watched::interval);
        let is_mount_point = |subject: &Subject| subject.baseline.as_ref().is_some_and(|first| first.mount_point);
        let is_silent = |subject: &Subject| subject.local_path().is_some() && !is_mount_point(subject);
        let any_silent = self.watched.values().any(|watched| is_silent(&watched.found.subject));
        let longest = if any_silent { LOCAL } else { LONGEST };
        intervals.min().unwrap_or(longest).min(longest)
    }

    /// Looks at everything that can be told without waiting.
    async fn look(&mut self) {
        let began = self.cx.clock.now();
        let late = began.mono.saturating_duration_since(self.looks.next());
        if let Some(found) = observe::find(&self.cx, &self.stores, &self.reads, &self.kubelet_root).await {
            self.choose(found);
            let watched = self.watched.values_mut();
            let view = observe::gather(&self.gatherer, watched, &mut self.baselines, &mut self.staged).await;
            if let Some(view) = view {
                self.judge(&view);
                self.is_news = true;
                self.view = Arc::new(view);
            }
            self.baselines.write(&self.cx.settings).await;
        }
        let wavers = self.watched.keys().any(|name| self.settling.is_wavering(name, Origin::Passive));
        self.looks.looked(began.mono, self.every(), wavers);
        self.cx.metrics.passed(late, self.now().saturating_duration_since(began.mono));
    }

    /// Counts what can be told without waiting.
    fn judge(&mut self, view: &HostView) {
        let now = self.cx.clock.now();
        let mut devices = BTreeSet::new();
        for (name, watched) in &mut self.watched {
            let subject = &watched.found.subject;
            watched.is_covered = view.is_covered(subject);
            if watched.is_covered {
                devices.extend(subject.baseline.as_ref().and_then(|first| first.device));
                continue;
            }
            let device = view.device_of(subject);
            devices.extend(device.or_else(|| view.main_mount(subject).map(|mount| mount.device)));
            watched.device = device.map(|device| device.to_string());
            let seen = probes::passive(view, subject).into_iter();
            let made = seen.filter(|seen| watched.mode(seen.check) != CheckMode::Disabled);
            let looks: Vec<Look> = made.map(Look::from).collect();
            self.cx.metrics.looked(&looks);
            self.settling.add(name, Origin::Passive, looks, true, &watched.policy.spec.thresholds, now);
        }
        self.prober.retain(&devices);
    }

    /// Takes the volumes that a policy selects, and forgets all others.
    fn choose(&mut self, found: Vec<Found>) {
        let policies = self.stores.policies.list();
        let mut before = std::mem::take(&mut self.watched);
        for found in found {
            let ruling = volume_health_policy::ruling(policies.iter().cloned(), &found.volume);
            let Some(policy) = ruling else { continue };
            let name = found.subject.name.clone();
            let meta = &found.volume.metadata;
            let made = meta.creation_timestamp.as_ref().map(time::from_k8s);
            self.settling.enter(&name, meta.uid.as_deref().unwrap_or_default(), made, observe::makers);
            let is_made = |check| policy.spec.mode(check) != CheckMode::Disabled && observe::applies(check, &found);
            self.settling.keep_checks(&name, is_made);
            let before = before.remove(&name).map(|watched| (watched.device, watched.is_covered));
            let (device, is_covered) = before.unwrap_or_default();
            self.watched.insert(name, Watched { found, policy, device, is_covered });
        }
        self.settling.keep(|name| self.watched.contains_key(name));
        let uids: BTreeSet<_> = self.watched.values().map(Watched::uid).collect();
        self.baselines.keep(|uid| uids.contains(uid));
        self.staged.retain(|uid, _| uids.contains(uid.as_str()));
    }

    /// Asks what may keep us waiting, where it is time.
    fn ask(&mut self) {
        let now = self.now();
        let by_child = observe::asked_by_children(&self.watched);
        for name in self.children.start(&by_child, now, random_unit) {
            if let Some(watched) = self.watched.get(&name) {
                observe::ask_child(&self.prober, &self.view, watched, self.answers.clone());
            }
        }
        let by_driver = observe::asked_of_plugins(&self.watched);
        for driver in self.plugins.start(&by_driver, now, random_unit) {
            let interval = by_driver.get(&driver).copied().unwrap_or(LONGEST);
            observe::ask_plugin(&self.cx, &driver, interval, &self.watched, self.answers.clone());
        }
    }

    /// Takes an answer. What it is about may be gone, or another volume by now.
    fn take(&mut self, answer: Answer) {
        let now = self.cx.clock.now();
        let mut wavers = false;
        for (name, uid, looks) in answer.looks {
            let is_of = |watched: &&Watched| watched.uid() == uid && !watched.is_covered;
            let Some(watched) = self.watched.get(&name).filter(is_of) else { continue };
            self.cx.metrics.looked(&looks);
            let thresholds = &watched.policy.spec.thresholds;
            // A child that waits for one thing is not sent for another; only who says nothing at all has nothing to say.
            let all = looks.is_empty() || answer.origin == Origin::Plugin;
            let before = self.settling.findings(&name);
            self.settling.add(&name, answer.origin, looks, all, thresholds, now);
            self.is_news |= before != self.settling.findings(&name);
            wavers |= self.settling.is_wavering(&name, answer.origin);
        }
        let rounds = if answer.origin == Origin::Plugin { &mut self.plugins } else { &mut self.children };
        rounds.answered(&answer.key, now.mono + pause(answer.interval, wavers, answer.silent, random_unit()));
    }

    /// Hands over what is to be reported, if it is something else than before. The first time all must have been looked at.
    fn tell(&mut self) -> bool {
        if self.view.mounts.is_none() || !std::mem::take(&mut self.is_news) {
            return false;
        }
        let entry = |(name, watched): (&String, &Watched)| Entry {
            name: name.clone(),
            csi: watched.found.volume.spec.csi.as_ref().map(|csi| (csi.driver.clone(), csi.volume_handle.clone())),
            device: watched.device.clone(),
            mounts: watched.found.mounts.clone(),
            findings: self.settling.findings(name),
            known: self.settling.is_known(name),
        };
        let health: NodeHealth = report::health(self.watched.iter().map(entry).collect());
        self.cx.metrics.volumes(&health);
        self.cx.health.send_if_modified(|told| {
            let changes = told.as_deref() != Some(&health);
            if changes {
                *told = Some(Arc::new(health));
            }
            changes
        })
    }
}
