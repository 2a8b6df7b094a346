//! The plan of a NodeFence: every pod of the node with the decision, every volume of those pods, every attachment of
//! the node, with the identity that was really published.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::api::fence_request::FenceRequest;
use crate::api::fencing::{PlannedMethod, PolicyMode, Proof};
use crate::api::names;
use crate::api::node_fence::{
    COMPLETED, DRY_RUN, Evidence, NODE_FAILURE, PODS_MAX, Plan, PlannedPod, PlannedPolicy, PlannedVolume, PodAction,
};
use crate::api::node_volume_report::NodeVolumeReport;
use crate::api::resiliency_policy::ResiliencyPolicy;
use crate::api::slim::{CsiNode, Node, VolumeAttachment};
use crate::api::time::{self, Now};
use crate::api::usage::{CsiVolume, Lookup, PodView, VolumeKind, VolumeUse};
use crate::mutants::{self, Mutant};

use super::evidence::{self, Silence};
pub use super::identity::identity;
use super::select::Effective;
use super::sharers::{self, Decided};
use super::storage::{Paths, Reports};
use super::unattached;

/// A node as it was read from the API for this decision.
#[derive(Clone, Debug)]
pub struct LiveNode {
    /// The Node.
    pub node: Arc<Node>,
    /// What is known of its kubelet.
    pub silence: Silence,
    /// Whether its Lease has not moved since the pass saw it.
    pub lease_is_still: bool,
    /// Every pod bound to it, in any phase.
    pub pods: Vec<PodView>,
    /// Its VolumeAttachments.
    pub attachments: Vec<Arc<VolumeAttachment>>,
    /// The volumes behind those attachments, by PersistentVolume name.
    pub attached_volumes: BTreeMap<String, CsiVolume>,
    /// Its CSINode, if there is one.
    pub csi_node: Option<Arc<CsiNode>>,
    /// Uids of pods into which a virtual machine is being migrated.
    pub migration_targets: BTreeSet<String>,
    /// What the drivers of its pods say, and who sees its power.
    pub reports: Reports,
    /// What its agent says.
    pub node_report: Option<Arc<NodeVolumeReport>>,
    /// What fencers are asked for it.
    pub requests: Vec<Arc<FenceRequest>>,
}

/// The volumes behind attachments, by PersistentVolume name.
pub fn attached_volumes(attachments: &[Arc<VolumeAttachment>], lookup: &dyn Lookup) -> BTreeMap<String, CsiVolume> {
    let csi_volume = |name: &str| {
        let volume = lookup.volume(name)?;
        let csi = volume.spec.csi.as_ref()?;
        let uid = volume.metadata.uid.clone().unwrap_or_default();
        Some((name.to_owned(), CsiVolume { uid, driver: csi.driver.clone(), handle: csi.volume_handle.clone() }))
    };
    attachments.iter().filter_map(|attachment| csi_volume(attachment.volume())).collect()
}

/// What a node's failure asks for.
pub struct Draft {
    /// The plan.
    pub plan: Plan,
    /// Policies that select its pods.
    pub policies: Vec<PlannedPolicy>,
}

/// Labels of each namespace.
pub type NamespaceLabels = BTreeMap<String, BTreeMap<String, String>>;

/// The plan for a node; `None` when nothing declares it failed for any pod that may be released.
pub fn draft<'a>(
    live: &LiveNode,
    policies: impl IntoIterator<Item = &'a ResiliencyPolicy> + Clone,
    namespaces: &NamespaceLabels,
    paths: &Paths,
    episode: i64,
    now: Now,
) -> Option<Draft> {
    let no_labels = BTreeMap::new();
    let decided = live.pods.iter().map(|pod| {
        let labels = namespaces.get(pod.namespace()).unwrap_or(&no_labels);
        let policies = Effective::of(pod, labels, policies.clone());
        Decided { pod, decision: decide_pod(live, pod, policies.as_ref(), paths, now), policies }
    });
    let mut decided: Vec<_> = decided.collect();
    sharers::settle(&mut decided);
    let evidence = decided.iter().find_map(|it| match &it.decision {
        PodDecision::Release(evidence) => Some(evidence.clone()),
        _ => None,
    })?;
    let mut drafting = Drafting::new(live, episode);
    for it in &decided {
        drafting.add_pod(it.pod, it.policies.as_ref(), &it.decision);
    }
    drafting.add_attachments();
    Some(drafting.finish(evidence, now))
}

/// Digest of pods and volumes, which an approval refers to, and of whether the node has failed as a whole: its power may be
/// cut then, so that who approved of moving some pods off it has not approved of this.
pub fn digest(plan: &Plan) -> String {
    let text = serde_json::to_vec(&(&plan.pods, &plan.volumes, plan.is_of_node())).unwrap_or_default();
    format!("sha256:{}", names::hex(&Sha256::digest(text), 16))
}

/// What is decided about a pod.
pub enum PodDecision {
    /// It goes, since its node has failed.
    Release(Vec<Evidence>),
    /// It goes with protected pods that it shares volumes with.
    Clean,
    /// It goes off a node that is well, for this reason of its storage.
    Move(&'static str),
    /// It stays, for this reason.
    Keep(&'static str),
    /// Its policies do not hold the node for failed yet: no row, the plan may grow.
    NotYet,
}

fn decide_pod(live: &LiveNode, pod: &PodView, effective: Option<&Effective>, paths: &Paths, now: Now) -> PodDecision {
    if pod.pod.controller_kind() == Some("DaemonSet") {
        return PodDecision::Keep("DaemonSet");
    }
    if pod.pod.is_static() {
        return PodDecision::Keep("StaticPod");
    }
    if pod.pod.is_finished() {
        return PodDecision::Keep(COMPLETED);
    }
    let Some(effective) = effective.filter(|effective| effective.releases_on_node_failure()) else {
        return PodDecision::Keep("NoPolicy");
    };
    if live.migration_targets.contains(pod.uid()) {
        return PodDecision::Keep("MigrationTarget");
    }
    if pod.pod.controller_kind().is_none() && !effective.deletes_bare_pods() {
        return PodDecision::Keep("BarePod");
    }
    if pod.volumes.is_empty() && !effective.releases_pods_without_volumes() {
        return PodDecision::Keep("NoVolumes");
    }
    let outside = paths.outside(&live.node, live.silence, &live.reports, pod, effective);
    match evidence::declares(&live.node, live.silence, &pod.pod, effective, outside, now) {
        Some(evidence) => PodDecision::Release(evidence),
        None => PodDecision::NotYet,
    }
}

fn planned_policy(policy: &ResiliencyPolicy) -> Option<PlannedPolicy> {
    Some(PlannedPolicy {
        name: policy.metadata.name.clone()?,
        uid: policy.metadata.uid.clone()?,
        generation: policy.metadata.generation?,
        mode: policy.spec.mode,
    })
}

/// A finished pod without a volume is nobody's concern. A node of batch jobs has hundreds of them, which must not make
/// the plan larger than its definition allows.
pub(super) fn is_spare(row: &PlannedPod) -> bool {
    row.reason == COMPLETED && row.volumes.is_empty()
}

/// A plan that is being drawn up: rows of pods, and of the volumes that they bring.
pub struct Drafting<'a> {
    live: &'a LiveNode,
    episode: i64,
    pods: Vec<PlannedPod>,
    volumes: BTreeMap<String, PlannedVolume>,
    policies: BTreeMap<String, PlannedPolicy>,
    rehearsed: Rehearsed,
}

/// The pods that would go if their policies did not only rehearse it.
#[derive(Default)]
struct Rehearsed {
    pods: BTreeSet<String>,
    policies: BTreeMap<String, PlannedPolicy>,
}

impl<'a> Drafting<'a> {
    /// An empty one.
    pub fn new(live: &'a LiveNode, episode: i64) -> Self {
        let (volumes, policies) = (BTreeMap::new(), BTreeMap::new());
        Self { live, episode, pods: Vec::new(), volumes, policies, rehearsed: Rehearsed::default() }
    }

    /// Adds a pod as it was decided, with its volumes and, where it goes, its policies.
    pub fn add_pod(&mut self, pod: &PodView, effective: Option<&Effective>, decision: &PodDecision) {
        // A pod that is not declared yet brings its volumes already: rows never change, so they must be right now.
        let goes = matches!(decision, PodDecision::Release(_) | PodDecision::Clean | PodDecision::Move(_));
        if let Some(effective) = effective.filter(|_| goes) {
            let planned = effective.policies().iter().filter_map(|policy| planned_policy(policy));
            let planned = planned.map(|policy| (policy.name.clone(), policy));
            if effective.mode() == PolicyMode::DryRun {
                self.rehearsed.pods.insert(pod.uid().to_owned());
                self.rehearsed.policies.extend(planned);
            } else {
                self.policies.extend(planned);
            }
        }
        if let Some(effective) = effective.filter(|_| goes || matches!(decision, PodDecision::NotYet)) {
            for volume in &pod.volumes {
                self.add_volume(volume, pod, effective);
            }
        }
        let (action, reason) = match decision {
            PodDecision::Release(_) => (PodAction::Release, NODE_FAILURE),
            PodDecision::Clean => (PodAction::Release, "UnselectedSharer"),
            PodDecision::Move(reason) => (PodAction::Release, *reason),
            PodDecision::Keep(reason) => (PodAction::Keep, *reason),
            PodDecision::NotYet => return,
        };
        self.pods.push(PlannedPod {
            episode: self.episode,
            uid: pod.uid().to_owned(),
            namespace: pod.namespace().to_owned(),
            name: pod.name().to_owned(),
            policy: effective.map(|effective| effective.deciding().to_owned()),
            action,
            reason: reason.into(),
            priority: pod.pod.spec.priority,
            returns: None,
            volumes: pod.volumes.iter().map(|volume| volume.name.clone()).collect(),
        });
    }

    fn add_volume(&mut self, volume: &VolumeUse, pod: &PodView, effective: &Effective) {
        let trusted = is_younger(&pod.pod.metadata, &self.live.node.metadata);
        let row = match &volume.kind {
            VolumeKind::Csi(csi) => {
                let methods = effective.methods(&csi.driver).into_iter().map(PlannedMethod::from).collect();
                let minimum_proof = effective.minimum_proof(&csi.driver);
                let row = csi_row(self.live, self.episode, &volume.name, csi, trusted);
                PlannedVolume { minimum_proof, methods, ..row }
            }
            VolumeKind::Unattached(kind) => {
                unattached::row(self.live, self.episode, &volume.name, kind, effective, trusted)
            }
            VolumeKind::Local | VolumeKind::Unknown(_) => {
                let row = unfenceable(self.episode, &volume.name, effective.minimum_proof(""));
                self.volumes.entry(volume.name.clone()).or_insert(row);
                return;
            }
        };
        let (minimum, methods) = (row.minimum_proof, row.methods.clone());
        match self.volumes.entry(volume.name.clone()) {
            Entry::Vacant(vacant) => {
                vacant.insert(row);
            }
            Entry::Occupied(mut occupied) => {
                let row = occupied.get_mut();
                row.minimum_proof = row.minimum_proof.max(minimum);
                let strongest = row.minimum_proof;
                row.methods.retain(|method| methods.contains(method) && method.type_.best_proof() >= strongest);
                row.node_id = row.node_id.take().filter(|_| trusted);
            }
        }
    }

    /// Attachments of the node that no released pod uses: recorded, not fenced (no method).
    fn add_attachments(&mut self) {
        for attachment in &self.live.attachments {
            let name = attachment.volume().to_owned();
            let Some(csi) = self.live.attached_volumes.get(&name) else { continue };
            if !self.volumes.contains_key(&name) {
                let row = csi_row(self.live, self.episode, &name, csi, true);
                self.volumes.insert(name, row);
            }
        }
    }

    /// The plan. Beside pods that go in earnest, those that only rehearse it are kept.
    pub fn finish(self, evidence: Vec<Evidence>, now: Now) -> Draft {
        let (mut pods, mut policies) = (self.pods, self.policies);
        if policies.is_empty() {
            policies = self.rehearsed.policies;
        } else {
            for row in pods.iter_mut().filter(|row| self.rehearsed.pods.contains(&row.uid)) {
                row.action = PodAction::Keep;
                row.reason = DRY_RUN.into();
            }
        }
        let order = |row: &PlannedPod| (is_spare(row), row.namespace.clone(), row.name.clone(), row.uid.clone());
        pods.sort_by_cached_key(order);
        while pods.len() > PODS_MAX && pods.last().is_some_and(is_spare) {
            pods.pop();
        }
        let volumes: Vec<_> = self.volumes.into_values().collect();
        let mut plan = Plan { decided_at: time::stamp(now.wall), digest: String::new(), evidence, pods, volumes };
        plan.digest = digest(&plan);
        Draft { plan, policies: policies.into_values().collect() }
    }
}

/// A row of a kind that no method of the policies covers.
pub(super) fn unfenceable(episode: i64, name: &str, minimum_proof: Proof) -> PlannedVolume {
    PlannedVolume {
        episode,
        name: name.into(),
        uid: None,
        driver: None,
        volume_handle: None,
        node_id: None,
        attachment_uid: None,
        attach_required: None,
        cluster_id: None,
        minimum_proof,
        methods: Vec::new(),
    }
}

/// A row with the node id that was really published. It stays empty, and the incident is held, where that identity
/// is in doubt: rook#14832 fenced the replacement of the failed node.
fn csi_row(live: &LiveNode, episode: i64, name: &str, csi: &CsiVolume, trusted: bool) -> PlannedVolume {
    let attachment = live.attachments.iter().find(|attachment| attachment.volume() == name);
    let published =
        attachment.filter(|a| trusted && is_younger(&a.metadata, &live.node.metadata)).and_then(|a| a.node_id());
    let registered = registered(live, &csi.driver);
    let node_id = match (published, registered) {
        (_, Some(registered)) if mutants::is_on(Mutant::WrongNodeId) => Some(registered),
        (Some(published), Some(registered)) if published != registered => None,
        (Some(published), _) => Some(published),
        // The attacher notes the node id before it publishes: without the note nothing was published through this
        // object, and what the driver registered is whom a read-back looks for.
        (None, registered) if trusted && attachment.is_none_or(|attachment| !attachment.status.attached) => registered,
        (None, _) => None,
    };
    PlannedVolume {
        episode,
        name: name.into(),
        uid: Some(csi.uid.clone()).filter(|uid| !uid.is_empty()),
        driver: Some(csi.driver.clone()),
        volume_handle: Some(csi.handle.clone()),
        node_id: node_id.map(str::to_owned),
        attachment_uid: attachment.and_then(|attachment| attachment.metadata.uid.clone()),
        attach_required: None,
        cluster_id: None,
        minimum_proof: Proof::Verified,
        methods: Vec::new(),
    }
}

/// By what the driver is registered on the node.
pub(super) fn registered<'a>(live: &'a LiveNode, driver: &str) -> Option<&'a str> {
    let drivers = &live.csi_node.as_ref()?.spec.drivers;
    drivers.iter().find(|it| it.name == driver).map(|it| it.node_id.as_str())
}

/// Whether an object was created with or after the node, and so cannot belong to a predecessor of its name.
fn is_younger(
    object: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
    node: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
) -> bool {
    match (&object.creation_timestamp, &node.creation_timestamp) {
        (Some(object), Some(node)) => object.0 >= node.0,
        _ => false,
    }
}
