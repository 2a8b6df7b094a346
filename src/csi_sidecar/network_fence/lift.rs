//! The end of a network fence: it is announced, then lifted, and removed when csi-addons says so. What one object lifts is lifted
//! for all: so who lifts first says so, and then looks whether somebody else wants the address out (docs/adr/0027).

use kube::ResourceExt as _;

use crate::api::cidr::readable;
use crate::api::fence_request::Desired;
use crate::api::names::{FENCE_OPEN_FINALIZER, FENCED_CLASS_ANNOTATION, FENCED_CLUSTER_ANNOTATION};
use crate::api::network_fence::{CACHE_LAG, FenceState, NetworkFence, NetworkFenceClass, NetworkFenceSpec};
use crate::api::proof::{CLASS_NOT_FOUND, CLASS_OF_ANOTHER_CLUSTER, CLASS_OF_ANOTHER_DRIVER};
use crate::api::time;
use crate::mutants::{self, Mutant};

use super::super::decide::Failure;
use super::addresses;
use super::decide::{Seen, Step, is_leaving, labelled, spent, was_announced};
use super::failures::{lifting, stop, too_new, wait};

/// The next step to let the node in again.
pub fn give_back(seen: &Seen) -> Step {
    if seen.live().is_some_and(|request| request.spec.desired == Desired::Fenced) {
        return Step::Stop(stop("Withdrawn", "the FenceRequest asks for the fence again".into()));
    }
    let steps = seen.own().map(|fence| lift(seen, fence));
    let mut waits = Step::Done;
    for step in steps {
        match step {
            Step::Done => {}
            Step::Wait(_) => waits = step,
            step => return step,
        }
    }
    waits
}

fn lift(seen: &Seen, fence: &NetworkFence) -> Step {
    if fence.metadata.deletion_timestamp.is_some() {
        return lift_deleted(seen, fence);
    }
    if fence.spec.fence_state == FenceState::Unfenced {
        let is_needed = seen.own().any(|other| is_deleted_fence(other) && stand_in(other) == fence.name_any());
        return if is_needed && is_lifted(fence) { Step::Done } else { remove_lifted(fence) };
    }
    match (held(seen, fence), is_leaving(fence)) {
        // Who holds us up may itself wait until nobody is about to lift.
        (Some(_), true) => Step::Replace(Box::new(labelled(fence, false))),
        (Some(why), false) => Step::Wait(why),
        (None, false) => Step::Replace(Box::new(labelled(fence, true))),
        (None, true) => warn(seen, fence).unwrap_or_else(|| {
            let mut next = fence.clone();
            next.spec = unfenced(fence);
            next.status = None;
            Step::Replace(Box::new(next))
        }),
    }
}

/// Why it is not lifted now.
fn held(seen: &Seen, fence: &NetworkFence) -> Option<Failure> {
    let shared = |who: String| wait("AddressShared", format!("{who} wants the same addresses out"));
    seen.wanted_by(fence).map(shared).or_else(|| unfit_class(seen, fence))
}

/// csi-addons lifts by the class as it is when it comes to that: by one of another driver or another cluster it would let the node
/// in there, and say that it is lifted. Where the class is gone it tries again, by one that is made meanwhile. Who knows better
/// takes the annotation of the cluster off.
fn unfit_class(seen: &Seen, fence: &NetworkFence) -> Option<Failure> {
    let cluster = fence.annotations().get(FENCED_CLUSTER_ANNOTATION)?;
    let name = fence.spec.network_fence_class_name.as_ref()?;
    let would = format!("csi-addons would lift NetworkFence {} elsewhere, or not at all", fence.name_any());
    let Some(class) = seen.classes.iter().find(|class| class.name_any() == *name) else {
        return Some(wait(
            CLASS_NOT_FOUND,
            format!(
                "NetworkFenceClass {name} is gone: {would}. Make it as it was; where nobody can, let the node in by hand, and take \
             annotation {FENCED_CLUSTER_ANNOTATION} off the NetworkFence"
            ),
        ));
    };
    let provisioner = &class.spec.provisioner;
    if *provisioner != seen.driver {
        let message = format!("NetworkFenceClass {name} is of driver {provisioner} now: {would}. Make it as it was");
        return Some(wait(CLASS_OF_ANOTHER_DRIVER, message));
    }
    let named = |cluster: &str| if cluster.is_empty() { "no cluster".to_owned() } else { format!("cluster {cluster}") };
    let now = class.cluster_id().unwrap_or_default();
    if cluster != now {
        let (now, then) = (named(now), named(cluster));
        let message =
            format!("NetworkFenceClass {name} names {now} now, and named {then} before: {would}. Make it as it was");
        return Some(wait(CLASS_OF_ANOTHER_CLUSTER, message));
    }
    young(seen, fence, class)
}

/// One that was made anew is right by now, but csi-addons may still go by what was there in between.
fn young(seen: &Seen, fence: &NetworkFence, class: &NetworkFenceClass) -> Option<Failure> {
    let is_same = fence.annotations().get(FENCED_CLASS_ANNOTATION) == class.metadata.uid.as_ref();
    let made = class.creation_timestamp().map(|at| time::from_k8s(&at)).filter(|_| !is_same)?;
    (seen.now - made < CACHE_LAG).then(|| too_new(&class.name_any(), made, seen.now))
}

/// What is lifted for one is lifted for all: the fences of other requests, which want nobody out any more, are marked first. So
/// none of them is taken for one that holds, should its request want the node out again.
fn warn(seen: &Seen, fence: &NetworkFence) -> Option<Step> {
    let lifted = readable(addresses::as_made(fence));
    let mut others = seen.fences.iter().filter(|it| !seen.is_own(it) && it.is_wanted() && !was_announced(it));
    let other = others.find(|it| seen.is_turned_round(it) && addresses::overlap(&addresses::of(it), &lifted))?;
    Some(Step::Replace(Box::new(spent(other))))
}

/// Somebody deleted it, which lifts nothing; csi-addons does nothing more with it. Another object lifts what it fenced.
fn lift_deleted(seen: &Seen, fence: &NetworkFence) -> Step {
    if !is_deleted_fence(fence) {
        return release(fence);
    }
    let name = stand_in(fence);
    match seen.own().find(|other| other.name_any() == name) {
        Some(other) if is_lifted(other) => release(fence),
        Some(other) => Step::Wait(lifting(other)),
        None => match held(seen, fence) {
            Some(why) => Step::Wait(why),
            None => warn(seen, fence).unwrap_or_else(|| {
                let mut next = NetworkFence::new(&name, unfenced(fence));
                next.metadata.labels.clone_from(&fence.metadata.labels);
                next.metadata.annotations.clone_from(&fence.metadata.annotations);
                next.metadata.finalizers = Some(vec![FENCE_OPEN_FINALIZER.into()]);
                Step::Create(Box::new(labelled(&next, true)))
            }),
        },
    }
}

/// What lets in whom it was made to shut out, whatever somebody has written into it since.
fn unfenced(fence: &NetworkFence) -> NetworkFenceSpec {
    let cidrs = addresses::as_made(fence);
    NetworkFenceSpec { fence_state: FenceState::Unfenced, cidrs, ..fence.spec.clone() }
}

/// Whether csi-addons says that all that it was made to shut out is let in again.
fn is_lifted(fence: &NetworkFence) -> bool {
    is_said_to_be_lifted(fence) && !is_edited(fence)
}

fn is_said_to_be_lifted(fence: &NetworkFence) -> bool {
    let is_asked_for = fence.spec.fence_state == FenceState::Unfenced;
    fence.is_unfenced() || is_asked_for && mutants::is_on(Mutant::LiftUnawaited)
}

fn is_edited(fence: &NetworkFence) -> bool {
    fence.spec.cidrs != addresses::as_made(fence)
}

/// A fence that was deleted before it was lifted.
fn is_deleted_fence(fence: &NetworkFence) -> bool {
    fence.metadata.deletion_timestamp.is_some() && !is_lifted(fence) && has_finalizer(fence)
}

/// Whether it is a lift that somebody deleted before it was carried out, or one of other addresses than ours, and csi-addons is done
/// with it: it is there for its end, and whoever forgot it would leave the node shut out.
pub(super) fn is_left(fence: &NetworkFence) -> bool {
    let is_ours_alone = fence.finalizers().iter().all(|finalizer| finalizer == FENCE_OPEN_FINALIZER);
    is_deleted_fence(fence) && is_ours_alone
}

fn stand_in(fence: &NetworkFence) -> String {
    format!("{}-lift", fence.name_any())
}

/// A lift that was carried out is removed, and waited for before. One of other addresses is removed at once: another object lifts
/// ours, since its result would not tell of which of the two it is.
pub(super) fn remove_lifted(fence: &NetworkFence) -> Step {
    match (fence.metadata.deletion_timestamp.is_some(), is_edited(fence)) {
        (true, false) if is_said_to_be_lifted(fence) => release(fence),
        (true, _) => Step::Wait(lifting(fence)),
        (false, edited) if edited || is_said_to_be_lifted(fence) => Step::Delete(Box::new(fence.clone())),
        (false, _) => Step::Wait(lifting(fence)),
    }
}

/// Takes our finalizer off.
fn release(fence: &NetworkFence) -> Step {
    if !has_finalizer(fence) {
        return Step::Done;
    }
    let mut next = fence.clone();
    if let Some(finalizers) = &mut next.metadata.finalizers {
        finalizers.retain(|finalizer| finalizer != FENCE_OPEN_FINALIZER);
    }
    next.status = None;
    Step::Replace(Box::new(next))
}

fn has_finalizer(fence: &NetworkFence) -> bool {
    fence.finalizers().iter().any(|finalizer| finalizer == FENCE_OPEN_FINALIZER)
}
