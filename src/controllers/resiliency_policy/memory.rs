//! What this process remembers between passes over the cluster. Pure, so that the simulator runs the same code: no
//! client, no clock. All of it may be lost at any moment: it only delays.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::ResourceExt;

use crate::api::driver_report::DriverReport;
use crate::api::fence_request::FenceRequest;
use crate::api::names;
use crate::api::node_fence::NodeFence;
use crate::api::resiliency_policy::ResiliencyPolicy;
use crate::api::slim::{Lease, Namespace, Node};
use crate::api::time::Now;
use crate::api::usage::PodView;
use crate::api::volume_health::VolumeHealth;

use super::decide::{Decision, Restrained, Seen};
use super::evidence::Silence;
use super::heartbeat::{Hearing, Heartbeat};
use super::lately::Lately;
use super::power::PowerTracker;
use super::scope::{self, Counts, Scope};
use super::silence::{FencerTracker, SilenceTracker};
use super::storage::{self, PluginsAway};
use super::volumes::Unmoved;

/// Counts of pods are written at most this often.
const COUNTS_PACE: Duration = Duration::from_secs(60);

/// A failed node is looked at for pods without volumes at most this often.
pub const VOLUMELESS_PACE: Duration = Duration::from_secs(10);

/// Of so many nodes is remembered that they could not be read: all of them are tried again in each pass.
const UNREAD_MOST: usize = 32;

/// What this process remembers between passes.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    silence: SilenceTracker,
    fencers: FencerTracker,
    hearing: Hearing,
    power: PowerTracker,
    outage_seen: BTreeMap<String, Instant>,
    array_outage_seen: BTreeMap<String, Instant>,
    backend_outage_seen: BTreeMap<String, Instant>,
    plugins_away: PluginsAway,
    /// Nodes that were suspected in the last pass.
    pub suspected: BTreeSet<String>,
    /// Nodes that a brake held back in the last pass.
    pub restrained: BTreeSet<Restrained>,
    /// Pods that stayed in the last pass though their volumes were tainted.
    pub unmoved: BTreeSet<Unmoved>,
    /// Pods that stayed in their crash loop in the last pass.
    pub crash_loops_held: BTreeSet<Unmoved>,
    /// Nodes that a fencer called off in the last pass and that were heard, each with the fencer.
    pub contradicted: BTreeSet<(String, String)>,
    looked_for_volumeless: BTreeMap<String, Instant>,
    /// What looks have shown lately that no store has, with the moment of the look.
    lately: BTreeMap<String, (Instant, Lately)>,
    /// Nodes that could not be read for the last pass.
    unread: BTreeSet<String>,
    /// NodeFences that exist but are not seen in the store yet, by generation.
    unseen: BTreeMap<String, i64>,
    /// The leadership term that `unseen` was begun in.
    term: Option<u64>,
    counts: Counts,
    counted_at: Option<Instant>,
    /// [`Found::changes`] at that time.
    counted_changes: Option<u64>,
    /// Fencers that were there then, and whether they were silent.
    counted_fencers: BTreeMap<String, bool>,
}

/// What the stores show.
#[derive(Clone, Default)]
pub struct Found {
    /// All policies.
    pub policies: Vec<Arc<ResiliencyPolicy>>,
    /// All nodes.
    pub nodes: Vec<Arc<Node>>,
    /// Leases of the kubelets.
    pub leases: Vec<Arc<Lease>>,
    /// What is heard of the agents, by node name.
    pub heartbeats: BTreeMap<String, Heartbeat>,
    /// Leases of the sidecars.
    pub fencer_leases: Vec<Arc<Lease>>,
    /// Whose pods are looked at.
    pub scope: Scope,
    /// Pods in scope that use volumes.
    pub pods: Vec<PodView>,
    /// A number that stays while nothing changes that is counted; where there is none, it may have.
    pub changes: Option<u64>,
    /// All namespaces.
    pub namespaces: Vec<Arc<Namespace>>,
    /// All NodeFences.
    pub fences: Vec<Arc<NodeFence>>,
    /// All FenceRequests.
    pub requests: Vec<Arc<FenceRequest>>,
    /// What the drivers can answer, and external fencers see.
    pub reports: Vec<Arc<DriverReport>>,
    /// Health of the volumes; none before all of it is known.
    pub healths: Vec<Arc<VolumeHealth>>,
}

impl Memory {
    /// Whose pods the next look needs, by what the stores show but for the pods.
    pub fn scope(&mut self, found: &Found, epoch: (u64, u64), now: Now) -> Scope {
        self.listen(found, epoch, now);
        if self.is_counting_due(found, now) || scope::is_whole(found, &self.counts) {
            return Scope::All;
        }
        self.nodes(found, now)
    }

    /// The nodes of which there may be something to say, as [`Memory::scope`] has just taken them in.
    pub fn nodes(&self, found: &Found, now: Now) -> Scope {
        let believed = |node| (node, self.believed(node, &found.heartbeats, now));
        Scope::Nodes(scope::nodes(found, found.nodes.iter().map(Arc::as_ref).map(believed)))
    }

    /// Takes in who has been heard.
    fn listen(&mut self, found: &Found, epoch: (u64, u64), now: Now) {
        let nodes = found.nodes.iter().map(Arc::as_ref);
        self.silence.update(named(&found.leases), nodes.clone(), epoch, now.mono);
        self.fencers.update(named(&found.fencer_leases), epoch.1, now.mono);
        let silence = |node: &Node| self.silence.of(node, now.mono);
        self.hearing.listen(nodes, silence, &found.heartbeats, &found.policies, now.mono);
    }

    /// What is known of a node's silence, and believed.
    fn believed(&self, node: &Node, heard: &BTreeMap<String, Heartbeat>, now: Now) -> Silence {
        let heartbeat = self.hearing.believed(heard, node, now.mono);
        Silence { heartbeat, ..self.silence.of(node, now.mono) }
    }

    fn is_counting_due(&self, found: &Found, now: Now) -> bool {
        let is_time = self.counted_at.is_none_or(|at| now.mono.saturating_duration_since(at) >= COUNTS_PACE);
        let is_new = found.changes.is_none() || found.changes != self.counted_changes;
        is_time && (is_new || self.fencers.heard(now.mono) != self.counted_fencers)
    }

    /// Takes in what the stores show. `epoch` is relists and leadership term.
    pub fn look(&mut self, found: Found, epoch: (u64, u64), now: Now) -> Seen {
        self.listen(&found, epoch, now);
        let counts_due = self.is_counting_due(&found, now);
        if counts_due {
            self.counted_at = Some(now.mono);
            self.counted_changes = found.changes;
            self.counted_fencers = self.fencers.heard(now.mono);
        }
        let mut pods: BTreeMap<String, Vec<PodView>> = BTreeMap::new();
        for pod in found.pods {
            if let Some(node) = pod.pod.spec.node_name.clone() {
                pods.entry(node).or_default().push(pod);
            }
        }
        let reports: BTreeMap<_, _> = found.reports.into_iter().map(|report| (report.name_any(), report)).collect();
        self.plugins_away = storage::plugins_away(&self.plugins_away, &reports, &pods, now.mono);
        let external = found.policies.iter().flat_map(|policy| policy.spec.fencing.external_fencers());
        let external: BTreeSet<String> = external.map(str::to_owned).collect();
        let is_silent = |fencer: &&String| self.fencers.is_silent(&names::fencer_lease(fencer), now.mono);
        let silent_fencers = reports.keys().chain(&external).filter(is_silent).cloned().collect();
        let is_missing = |fencer: &&String| !self.fencers.knows(&names::fencer_lease(fencer));
        let missing_fencers = external.iter().filter(is_missing).cloned().collect();
        let is_unproved = |fencer: &&String| !self.fencers.has_moved(&names::fencer_lease(fencer));
        let unproved_fencers = external.iter().filter(is_unproved).cloned().collect();
        let labels = |ns: Arc<Namespace>| (ns.name_any(), ns.metadata.labels.clone().unwrap_or_default());
        let mut requests: BTreeMap<String, Vec<Arc<FenceRequest>>> = BTreeMap::new();
        for request in found.requests {
            requests.entry(request.spec.node_name.clone()).or_default().push(request);
        }
        let passed = |at: &Instant| now.mono.saturating_duration_since(*at);
        let believed = |node: &Node| self.believed(node, &found.heartbeats, now);
        let nodes: Vec<_> = found.nodes.iter().map(|node| (node.clone(), believed(node))).collect();
        // Whoever is heard is heard, whether or not silence is believed now.
        let off = self.power.update(&reports, &nodes, &found.heartbeats, epoch.1, now.mono);
        Seen {
            policies: found.policies,
            nodes,
            scope: found.scope,
            pods,
            counts: self.counts.clone(),
            conflicts: None,
            namespaces: found.namespaces.into_iter().map(labels).collect(),
            requests,
            fences: found.fences,
            silent_fencers,
            missing_fencers,
            unproved_fencers,
            off,
            reports,
            live: BTreeMap::new(),
            gone: BTreeSet::new(),
            unread: self.unread.clone(),
            lately: self
                .lately
                .iter()
                .map(|(node, (at, it))| (node.clone(), Lately { age: passed(at), ..it.clone() }))
                .collect(),
            healths: found.healths.into_iter().map(|health| (health.name_any(), health)).collect(),
            outage_seen: self.outage_seen.iter().map(|(policy, at)| (policy.clone(), passed(at))).collect(),
            array_outage_seen: self.array_outage_seen.iter().map(|(policy, at)| (policy.clone(), passed(at))).collect(),
            looked_for_volumeless: self
                .looked_for_volumeless
                .iter()
                .filter(|(_, at)| passed(at) < VOLUMELESS_PACE)
                .map(|(node, _)| node.clone())
                .collect(),
            plugins_away: self.plugins_away.clone(),
            backend_outage_seen: self.backend_outage_seen.iter().map(|(it, at)| (it.clone(), passed(at))).collect(),
            counts_due,
        }
    }

    /// Whether NodeFences must be listed before this term decides anything: those that the last leader opened while our
    /// watch may have lagged count for the brakes too.
    pub fn is_new_term(&self, term: u64) -> bool {
        self.term != Some(term)
    }

    /// A term begins with these NodeFences.
    pub fn begin_term(&mut self, term: u64, listed: &[NodeFence]) {
        self.unseen.clear();
        // Another process may have led meanwhile. So that what is forgotten is asked about again, the looks for it are forgotten too.
        self.lately.clear();
        self.looked_for_volumeless.clear();
        self.unread.clear();
        listed.iter().for_each(|fence| self.wrote(fence));
        self.term = Some(term);
    }

    /// A NodeFence was written, or read from the API: no pass before the store shows it.
    pub fn wrote(&mut self, fence: &NodeFence) {
        self.unseen.insert(fence.name_any(), fence.metadata.generation.unwrap_or_default());
    }

    /// The NodeFences that the store does not show yet.
    pub fn unseen(&mut self, stored: impl Fn(&str) -> Option<Arc<NodeFence>>) -> Vec<String> {
        self.unseen.retain(|name, generation| {
            stored(name).is_none_or(|fence| fence.metadata.generation.unwrap_or_default() < *generation)
        });
        self.unseen.keys().cloned().collect()
    }

    /// A NodeFence that was removed meanwhile will never be seen.
    pub fn is_gone(&mut self, name: &str) {
        self.unseen.remove(name);
    }

    /// Whether the store shows every NodeFence that is known of.
    pub fn sees_every_fence(&self) -> bool {
        self.unseen.is_empty()
    }

    /// Keeps what the next pass needs of a decision.
    pub fn note(&mut self, decision: &Decision, now: Now) {
        for policy in &decision.outage {
            self.outage_seen.insert(policy.clone(), now.mono);
        }
        for policy in &decision.array_outage {
            self.array_outage_seen.insert(policy.clone(), now.mono);
        }
        self.looked_for_volumeless.retain(|_, at| now.mono.saturating_duration_since(*at) < VOLUMELESS_PACE);
        let looked = decision.looked_for_volumeless.iter().filter(|node| !decision.unread.contains(*node));
        self.looked_for_volumeless.extend(looked.map(|node| (node.clone(), now.mono)));
        let looked_at = |it: &Lately| now.mono.checked_sub(it.age).unwrap_or(now.mono);
        let kept = |it: &Lately| (looked_at(it), Lately { age: Duration::ZERO, ..it.clone() });
        self.lately = decision.lately.iter().map(|(node, it)| (node.clone(), kept(it))).collect();
        // Where it was the API that did not answer they are read before anybody is acted on, and keep their places by that.
        self.unread = decision.unread.iter().take(UNREAD_MOST).cloned().collect();
        for backend in &decision.backend_outage {
            self.backend_outage_seen.insert(backend.clone(), now.mono);
        }
        self.counts.clone_from(&decision.counts);
        self.suspected.clone_from(&decision.suspected);
        self.unmoved = decision.unmoved.iter().cloned().collect();
        self.crash_loops_held = decision.crash_loops.held.iter().cloned().collect();
        self.contradicted = decision.contradicted.keys().cloned().collect();
        self.restrained = decision.restrained.iter().cloned().collect();
    }
}

fn named(leases: &[Arc<Lease>]) -> impl Iterator<Item = (&str, &Lease)> {
    leases.iter().filter_map(|lease| Some((lease.metadata.name.as_deref()?, lease.as_ref())))
}
