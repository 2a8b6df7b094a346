//! The next step of a network fence; [`lift`](super::lift) has those of its end, and `failures` why one waits or cannot be done. An
//! object of csi-addons tells how its last operation ended and not which one that was: so each is used once (docs/adr/0027).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use kube::ResourceExt as _;
use kube::api::ObjectMeta;

use super::super::decide::Failure;
use crate::api::cidr::{Cidr, readable};
use crate::api::fence_request::{Desired, FenceOutcome, FenceRequest, FencerMethodType};
use crate::api::names::{
    self, ANNOUNCED_ANNOTATION, EPISODE_LABEL, FENCE_OPEN_FINALIZER, FENCE_REQUEST_LABEL, FENCED_ADDRESSES_ANNOTATION,
    FENCED_CLASS_ANNOTATION, FENCED_CLUSTER_ANNOTATION, UNFENCING_LABEL,
};
use crate::api::network_fence::{CACHE_LAG, FenceState, NetworkFence, NetworkFenceClass, NetworkFenceSpec};
use crate::api::time;
use crate::mutants::{self, Mutant};

use super::addresses::{self, Around};
use super::failures::{being_lifted, changed, fencing, fencing_failed, lifted, lifting, stop, too_new};
use super::lift::{is_left, remove_lifted};

/// Clocks that differ by less than this cost no round.
const CLOCKS_DIFFER: TimeDelta = TimeDelta::seconds(10);

/// What a step is decided on.
pub struct Seen {
    /// What is asked.
    pub request: Arc<FenceRequest>,
    /// The driver.
    pub driver: String,
    /// The NetworkFenceClass; empty while a fence is lifted, which is of its own class.
    pub class: String,
    /// Its uid; empty where no cluster is demanded.
    pub class_uid: String,
    /// When it was made, by the API server's clock; `None` where no cluster is demanded.
    pub class_made: Option<DateTime<Utc>>,
    /// The cluster of the storage that the volumes demand; `None` where they are attached.
    pub cluster: Option<String>,
    /// The round that is asked for.
    pub round: i32,
    /// All NetworkFences, whoever made them.
    pub fences: Vec<NetworkFence>,
    /// All FenceRequests, as they were after the fences; while a fence is made or looked at, its own.
    pub requests: Vec<Arc<FenceRequest>>,
    /// All NetworkFenceClasses, while a fence is lifted.
    pub classes: Vec<NetworkFenceClass>,
    /// What addresses are whose, where somebody looked.
    pub around: Option<Around>,
    /// The time here.
    pub now: DateTime<Utc>,
}

/// What to do next.
#[derive(Debug, PartialEq)]
pub enum Step {
    /// Find out what addresses are whose, and decide again.
    LookAround,
    /// Record in the request that a fence is about to be made.
    Record,
    /// Create this.
    Create(Box<NetworkFence>),
    /// Replace this at the resourceVersion that it carries.
    Replace(Box<NetworkFence>),
    /// Delete this.
    Delete(Box<NetworkFence>),
    /// Look again soon; what is waited for.
    Wait(Failure),
    /// It cannot be done.
    Stop(Failure),
    /// It is done.
    Done,
}

/// The next step to shut the node out.
pub fn fence(seen: &Seen) -> Step {
    let Some(request) = seen.live().filter(|request| request.spec.desired == Desired::Fenced) else {
        return Step::Stop(stop("Withdrawn", "the FenceRequest does not ask for it any more".into()));
    };
    // What was to be lifted and is wanted again.
    if let Some(leaving) = seen.own().find(|fence| fence.is_wanted() && is_leaving(fence)) {
        return Step::Replace(Box::new(labelled(leaving, false)));
    }
    // A lift that was begun is brought to its end: csi-addons may carry it out again as long as the object is there.
    let is_lifting = |fence: &&NetworkFence| fence.spec.fence_state == FenceState::Unfenced && !is_left(fence);
    if let Some(being) = seen.own().find(is_lifting) {
        return match remove_lifted(being) {
            Step::Done => Step::Wait(lifting(being)),
            step => step,
        };
    }
    let episode = seen.request.spec.episode.to_string();
    let is_of_now = |fence: &&NetworkFence| {
        fence.spec.network_fence_class_name.as_ref() == Some(&seen.class)
            && fence.labels().get(EPISODE_LABEL) == Some(&episode)
            && is_of_cluster(fence, seen.cluster.as_deref())
            && is_as_made(fence)
    };
    let counts = |fence: &&NetworkFence| is_of_class(seen, fence) && fence.is_wanted() && !was_announced(fence);
    if let Some(ours) = seen.own().filter(is_of_now).find(counts) {
        return match seen.lifted_by(&addresses::of(ours)) {
            // When that one is gone, what was said of ours will still be there, and true no more.
            Some(_) => Step::Replace(Box::new(spent(ours))),
            None if ours.is_fenced() || mutants::is_on(Mutant::FenceUnawaited) => {
                // What counts for nothing must not be taken for one that holds, should ours be lifted: a later look asks for the
                // cluster alone.
                let mut voids = seen.own().filter(is_of_now).filter(|fence| !is_of_class(seen, fence));
                let void = voids.find(|fence| fence.is_wanted() && !was_announced(fence));
                void.map_or(Step::Done, |void| Step::Replace(Box::new(spent(void))))
            }
            None => match ours.failure() {
                Some(message) => Step::Stop(fencing_failed(ours, message)),
                None => Step::Wait(fencing(ours)),
            },
        };
    }
    if let Some(made) = seen.class_made.filter(|_| !is_settled(seen, seen.now)) {
        return Step::Wait(too_new(&seen.class, made, seen.now));
    }
    let Some(around) = &seen.around else { return Step::LookAround };
    let known = seen.own().find(is_of_now).map(addresses::of);
    let addresses = match addresses::to_fence(seen, around, known) {
        Ok(addresses) => addresses,
        Err(failure) => return Step::Stop(failure),
    };
    match seen.lifted_by(&addresses) {
        Some(rival) => Step::Wait(being_lifted(rival)),
        // Before, or who ends the request would not know that there is something to lift.
        None if !request.shuts_out() => Step::Record,
        None => create(seen, around, &addresses),
    }
}

/// Looks whether what was proved holds: for each class, and cluster that is demanded, an object of the row's episode, or of a later
/// one, says that it is fenced, and nobody lets its addresses in, or has. `before` are the fences of others that were there at the
/// last look: one that is gone may have been lifted first. What may have been lifted is marked, or it would be believed when that
/// other object is gone.
pub fn holds(seen: &Seen, before: &BTreeSet<String>) -> Step {
    let is_there = |uid: &String| seen.fences.iter().any(|fence| fence.metadata.uid.as_ref() == Some(uid));
    let is_one_gone = !before.iter().all(is_there);
    for ((class, cluster), episode) in seen.classes_that_hold() {
        let holds = |fence: &&NetworkFence| {
            fence.spec.network_fence_class_name.as_deref() == Some(class)
                && episode_of(fence).is_some_and(|made| made >= episode)
                && is_of_cluster(fence, cluster)
                && is_as_made(fence)
                && fence.is_wanted()
                && fence.is_fenced()
                && !was_announced(fence)
        };
        let Some(ours) = seen.own().find(holds) else {
            return Step::Stop(lifted(class));
        };
        if is_one_gone || seen.lifted_by(&addresses::of(ours)).is_some() {
            return Step::Replace(Box::new(spent(ours)));
        }
    }
    Step::Done
}

/// Whether it was made while its class named the cluster that is demanded. The class may have been made anew since, and what was
/// done in another cluster shuts nobody out of this one. Of a fence that does not say it nobody knows.
fn is_of_cluster(fence: &NetworkFence, demanded: Option<&str>) -> bool {
    let made = fence.annotations().get(FENCED_CLUSTER_ANNOTATION).map(String::as_str);
    demanded.is_none() || made == demanded || mutants::is_on(Mutant::ClusterIgnored)
}

/// Whether its class is there as it was when it was made, where a cluster is demanded: one that was deleted and made anew may have
/// been of another cluster in between, when csi-addons read it. Whether it was there long enough the API server's stamps tell; by our
/// clock we only waited.
fn is_of_class(seen: &Seen, fence: &NetworkFence) -> bool {
    let made = fence.creation_timestamp().map(|at| time::from_k8s(&at) + CLOCKS_DIFFER);
    let is_same = || fence.annotations().get(FENCED_CLASS_ANNOTATION) == Some(&seen.class_uid);
    seen.cluster.is_none() || is_same() && made.is_none_or(|at| is_settled(seen, at))
}

/// Whether csi-addons has seen the class by then, where a cluster is demanded.
fn is_settled(seen: &Seen, at: DateTime<Utc>) -> bool {
    seen.class_made.is_none_or(|made| at - made >= CACHE_LAG)
}

/// The episode that a fence of ours was made in.
fn episode_of(fence: &NetworkFence) -> Option<i64> {
    fence.labels().get(EPISODE_LABEL)?.parse().ok()
}

/// The fences of others that have an address in common with one of ours, by uid.
pub fn others(seen: &Seen) -> BTreeSet<String> {
    let ours: Vec<_> = seen.own().flat_map(addresses::of).collect();
    let others = seen.fences.iter().filter(|fence| !seen.is_own(fence));
    let near = others.filter(|fence| addresses::overlap(&addresses::of(fence), &ours));
    near.filter_map(|fence| fence.metadata.uid.clone()).collect()
}

/// Whether nobody has changed whom it shuts out: then its result is of what we asked for. The addresses tell an edit, the generation
/// one that was taken back. csi-addons counts it up once, when it writes fields that we leave out, and so does the deletion.
fn is_as_made(fence: &NetworkFence) -> bool {
    let most = if fence.metadata.deletion_timestamp.is_some() { 3 } else { 2 };
    let made = fence.annotations().get(FENCED_ADDRESSES_ANNOTATION);
    made.is_some_and(|made| *made == fence.spec.cidrs.join(","))
        && fence.metadata.generation.is_none_or(|generation| generation <= most)
}

pub(super) fn is_leaving(fence: &NetworkFence) -> bool {
    fence.labels().contains_key(UNFENCING_LABEL)
}

/// Whether its end was announced once, or somebody else lifted it: by then its addresses may have been let in, whatever is said of it.
pub(super) fn was_announced(fence: &NetworkFence) -> bool {
    is_leaving(fence) || fence.annotations().contains_key(ANNOUNCED_ANNOTATION)
}

/// The same with the word that what is said of it does not count any more.
pub(super) fn spent(fence: &NetworkFence) -> NetworkFence {
    let mut next = fence.clone();
    next.status = None;
    next.annotations_mut().insert(ANNOUNCED_ANNOTATION.into(), "true".into());
    next
}

/// The same with the label that announces its end, or without.
pub(super) fn labelled(fence: &NetworkFence, leaving: bool) -> NetworkFence {
    let mut next = fence.clone();
    next.status = None;
    if leaving {
        next = spent(&next);
        next.labels_mut().insert(UNFENCING_LABEL.into(), "true".into());
    } else {
        next.labels_mut().remove(UNFENCING_LABEL);
    }
    next
}

/// One for each round. What this one has made and somebody has deleted or changed since is still there, for it is to be lifted:
/// then the next round makes another, so that whoever deletes each of them fills no storage with objects.
fn create(seen: &Seen, around: &Around, addresses: &[Cidr]) -> Step {
    let fence = new_fence(seen, around, addresses);
    let name = fence.name_any();
    if seen.fences.iter().any(|it| it.name_any() == name) {
        return Step::Stop(changed(&name));
    }
    Step::Create(Box::new(fence))
}

fn new_fence(seen: &Seen, around: &Around, addresses: &[Cidr]) -> NetworkFence {
    let (uid, episode) = (seen.uid(), seen.request.spec.episode);
    let cidrs: Vec<_> = addresses.iter().map(Cidr::to_string).collect();
    let class_uid = around.class.as_ref().and_then(|class| class.metadata.uid.clone()).unwrap_or_default();
    let cluster = around.class.as_ref().and_then(NetworkFenceClass::cluster_id).unwrap_or_default();
    let annotations = [
        (names::FENCED_NODE_ANNOTATION.into(), seen.request.spec.node_name.clone()),
        (FENCED_ADDRESSES_ANNOTATION.into(), cidrs.join(",")),
        (FENCED_CLUSTER_ANNOTATION.into(), cluster.to_owned()),
        (FENCED_CLASS_ANNOTATION.into(), class_uid),
    ];
    let spec = NetworkFenceSpec {
        network_fence_class_name: Some(seen.class.clone()),
        fence_state: FenceState::Fenced,
        cidrs,
        others: BTreeMap::new(),
    };
    let mut fence = NetworkFence::new(&names::network_fence(uid, &seen.class, episode, seen.round), spec);
    let labels = [(FENCE_REQUEST_LABEL, uid.to_owned()), (EPISODE_LABEL, episode.to_string())];
    fence.metadata = ObjectMeta {
        labels: Some(labels.map(|(key, value)| (key.to_owned(), value)).into()),
        annotations: Some(annotations.into()),
        finalizers: Some(vec![FENCE_OPEN_FINALIZER.into()]),
        ..fence.metadata
    };
    fence
}

impl Seen {
    fn uid(&self) -> &str {
        self.request.metadata.uid.as_deref().unwrap_or_default()
    }

    /// The request as the API server has it.
    pub(super) fn live(&self) -> Option<&Arc<FenceRequest>> {
        self.requests.iter().find(|request| request.metadata.uid.as_deref() == Some(self.uid()))
    }

    /// The classes of the rows that were answered Fenced by method NetworkFence, with the cluster that those demand, each with the
    /// last episode of such a row. One that an incident carries over from an earlier one was shut out in that.
    fn classes_that_hold(&self) -> BTreeMap<(&str, Option<&str>), i64> {
        let rows = self.request.status.iter().flat_map(|status| &status.volumes);
        let fenced =
            rows.filter(|row| row.result == FenceOutcome::Fenced && row.method == Some(FencerMethodType::NetworkFence));
        let fenced: BTreeSet<_> = fenced.map(|row| (row.episode, row.name.as_str())).collect();
        let mut classes = BTreeMap::new();
        for volume in &self.request.spec.volumes {
            if fenced.contains(&(volume.episode, volume.name.as_str())) {
                for class in volume.methods.iter().filter_map(|method| method.class_name.as_deref()) {
                    let last = classes.entry((class, volume.demanded_cluster())).or_insert(volume.episode);
                    *last = volume.episode.max(*last);
                }
            }
        }
        classes
    }

    /// Those of this request.
    pub(super) fn own(&self) -> impl Iterator<Item = &NetworkFence> {
        self.fences.iter().filter(|fence| self.is_own(fence))
    }

    pub(super) fn is_own(&self, fence: &NetworkFence) -> bool {
        !self.uid().is_empty() && fence.labels().get(FENCE_REQUEST_LABEL).map(String::as_str) == Some(self.uid())
    }

    /// Somebody else's that lets one of these addresses in, or is about to.
    fn lifted_by(&self, addresses: &[Cidr]) -> Option<&NetworkFence> {
        let others = self.fences.iter().filter(|fence| !self.is_own(fence));
        let mut lifting = others.filter(|fence| fence.spec.fence_state == FenceState::Unfenced || is_leaving(fence));
        lifting.find(|fence| addresses::overlap(&addresses::of(fence), addresses))
    }

    /// The request that a fence of ours is for, if it is there.
    fn request_of(&self, fence: &NetworkFence) -> Option<&Arc<FenceRequest>> {
        let uid = fence.labels().get(FENCE_REQUEST_LABEL)?;
        self.requests.iter().find(|request| request.metadata.uid.as_ref() == Some(uid))
    }

    /// Whether a fence is of a request that wants nobody out any more.
    pub(super) fn is_turned_round(&self, fence: &NetworkFence) -> bool {
        self.request_of(fence).is_some_and(|request| request.spec.desired == Desired::Unfenced)
    }

    /// Whether a fence of ours is still there, but nobody wants its addresses out: its request is turned round, or gone.
    fn is_spent(&self, fence: &NetworkFence) -> bool {
        let is_ours = fence.labels().contains_key(FENCE_REQUEST_LABEL);
        is_ours && (self.request_of(fence).is_none() || self.is_turned_round(fence))
    }

    /// Whether a fence for a request of this driver is on record, and not there to tell by which addresses: behind a NAT its node may
    /// have one by now that was another's.
    fn is_about_to_be_made(&self, request: &FenceRequest) -> bool {
        let is_its = |fence: &NetworkFence| fence.labels().get(FENCE_REQUEST_LABEL) == request.metadata.uid.as_ref();
        let is_made = self.fences.iter().any(|fence| fence.is_wanted() && is_its(fence));
        request.spec.fencer_name == self.driver && request.shuts_out() && !is_made
    }

    /// Who else wants an address of this fence out: another fence, or somebody who is asked for one and may make it any
    /// moment.
    pub(super) fn wanted_by(&self, fence: &NetworkFence) -> Option<String> {
        let addresses = readable(addresses::as_made(fence));
        let others = self.fences.iter().filter(|it| !self.is_own(it) && it.is_wanted() && !is_leaving(it));
        let other =
            others.filter(|it| !self.is_spent(it)).find(|it| addresses::overlap(&addresses::of(it), &addresses));
        let of_network = |request: &FenceRequest| {
            let methods = request.spec.volumes.iter().flat_map(|volume| &volume.methods);
            methods.into_iter().any(|method| method.type_ == FencerMethodType::NetworkFence)
        };
        let is_near = |request: &FenceRequest| {
            request.spec.node_name == self.request.spec.node_name
                || addresses::overlap(&readable(&request.spec.node.addresses), &addresses)
        };
        let asked = self.requests.iter().find(|request| {
            request.metadata.uid.as_deref() != Some(self.uid())
                && request.spec.desired == Desired::Fenced
                && of_network(request)
                && (is_near(request) || self.is_about_to_be_made(request))
        });
        let of_fence = other.map(|it| format!("NetworkFence {}", it.name_any()));
        of_fence.or_else(|| asked.map(|it| format!("FenceRequest {}", it.name_any())))
    }
}
