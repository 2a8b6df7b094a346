//! Pods that are to move off a node that is well, as one with those that they hang together with: who shares a volume, and,
//! where a policy says so, who must run on the same node. All of them go or none, and nothing is begun for those of whom one
//! stays (docs/adr/0014): node_fence would hold them, and the node would be marked for nothing.

use std::collections::BTreeSet;

use crate::api::fencing::PolicyMode;
use crate::api::pod_affinity;
use crate::api::usage::PodView;

use super::decide::{Seen, effective, may_be_released};
use super::plan::PodDecision;
use super::select::Effective;
use super::sharers::{self, Decided};
use super::volumes::{Mover, OnNode, Stays, unmoved};

/// What is asked about pods that have no trouble of their own.
pub(super) struct Trouble<'f> {
    /// Reason of the rows of all that go.
    pub(super) reason: &'static str,
    /// Whether these policies would move the pod for the trouble of its storage.
    pub(super) moves: &'f dyn Fn(&PodView, &Effective) -> bool,
    /// Whether nothing keeps the pod where it is, and all its volumes can be cut off with proof.
    pub(super) may_go: &'f dyn Fn(&PodView, &Effective) -> bool,
}

/// A pod in trouble that stays.
pub(super) type Held<'p> = (&'p PodView, Effective<'p>, Stays);

/// Adds those that go along to the pods in trouble, and takes out whoever is tied to one that stays, and with it whoever is
/// tied to that. All pods in trouble that stay are told. Who is taken out may be why another goes along, or must: each time all is
/// decided anew.
pub(super) fn settle<'p>(
    seen: &'p Seen,
    trouble: &Trouble,
    mut movers: Vec<Mover<'p>>,
    mut held: Vec<Held<'p>>,
    pods: &'p [PodView],
) -> OnNode<'p> {
    let mut staying = BTreeSet::new();
    let movers = loop {
        let going = with_all_along(seen, trouble, &movers, &held, &staying, pods);
        let Some((tied, tie)) = next_held(seen, &going, pods).map(|(mover, tie)| (mover.pod, tie)) else { break going };
        match movers.iter().position(|mover| mover.pod.uid() == tied.uid()) {
            Some(place) => {
                let mover = movers.remove(place);
                held.push((mover.pod, mover.policies, ("SharerHeld", format!("{tie}, which stays"))));
            }
            // One that would only have gone along has no trouble: nobody waits for it.
            None => drop(staying.insert(tied.uid())),
        }
    };
    let unmoved = held.into_iter().filter_map(|(pod, policies, stays)| unmoved(pod, &policies, stays));
    OnNode { unmoved: unmoved.collect(), movers }
}

/// The pods in trouble, and all that go along with them.
fn with_all_along<'p>(
    seen: &'p Seen,
    trouble: &Trouble,
    movers: &[Mover<'p>],
    held: &[Held],
    staying: &BTreeSet<&str>,
    pods: &'p [PodView],
) -> Vec<Mover<'p>> {
    let mut going = movers.to_vec();
    while !going.is_empty() {
        let mut along = going_along(seen, trouble, &going, held, pods);
        along.retain(|mover| !staying.contains(mover.pod.uid()));
        if along.is_empty() {
            break;
        }
        going.extend(along);
    }
    going
}

/// Pods without trouble of their own that go with one that does, and that nothing keeps.
fn going_along<'p>(
    seen: &'p Seen,
    trouble: &Trouble,
    movers: &[Mover<'p>],
    held: &[Held],
    pods: &'p [PodView],
) -> Vec<Mover<'p>> {
    let cleaned = cleaned(seen, trouble, movers, pods);
    let is_known = |pod: &PodView| {
        let mut known = movers.iter().map(|it| it.pod).chain(held.iter().map(|(pod, ..)| *pod));
        known.any(|it| it.uid() == pod.uid())
    };
    let others = pods.iter().filter(|pod| may_be_released(pod) && !is_known(pod));
    let along = others.filter_map(|pod| {
        let (mover, policies) = match effective(seen, pod) {
            Some(own) => (movers.iter().find(|mover| takes_along(seen, trouble, movers, mover, pod, &own))?, own),
            None => {
                let (_, theirs) = cleaned.iter().find(|(it, _)| it.uid() == pod.uid())?;
                (movers.iter().find(|mover| share(mover.pod, pod))?, theirs.clone())
            }
        };
        let has_proof_or_needs_none = !pod.volumes.is_empty() || policies.releases_pods_without_volumes();
        let goes = has_proof_or_needs_none && (trouble.may_go)(pod, &policies);
        goes.then(|| Mover { pod, policies, evidence: mover.evidence.clone(), sake: mover.sake })
    });
    along.collect()
}

/// Whether a pod that policies select goes with one that it must run beside: where its own policies would have that one moved
/// too, and in earnest only with one that goes in earnest. One that shares a volume and is well is kept by its policies, and holds.
fn takes_along(
    seen: &Seen,
    trouble: &Trouble,
    movers: &[Mover],
    mover: &Mover,
    pod: &PodView,
    own: &Effective,
) -> bool {
    let all_ask = || {
        let all = effective(seen, mover.sake).map(|theirs| theirs.and(own.clone()));
        all.is_some_and(|all| (trouble.moves)(mover.sake, &all))
    };
    let is_as_earnest = rehearses(own) || !rehearses(&mover.policies);
    is_as_earnest && are_kept_together(seen, movers, mover, pod) && all_ask()
}

/// Pods outside every policy that go with those that they share volumes with, by the rule of failed nodes; with the policies
/// that say so.
fn cleaned<'p>(
    seen: &'p Seen,
    trouble: &Trouble,
    movers: &[Mover<'p>],
    pods: &'p [PodView],
) -> Vec<(&'p PodView, Effective<'p>)> {
    let decided = pods.iter().map(|pod| match movers.iter().find(|mover| mover.pod.uid() == pod.uid()) {
        Some(mover) => {
            let decision = PodDecision::Move(trouble.reason);
            Decided { pod, policies: Some(mover.policies.clone()), decision }
        }
        None => {
            let policies = effective(seen, pod);
            let is_outside = policies.is_none() && may_be_released(pod);
            Decided { pod, policies, decision: PodDecision::Keep(if is_outside { "NoPolicy" } else { "NoTrouble" }) }
        }
    });
    let mut decided: Vec<_> = decided.collect();
    sharers::settle(&mut decided);
    let cleaned = decided.into_iter().filter(|it| matches!(it.decision, PodDecision::Clean));
    cleaned.filter_map(|it| Some((it.pod, it.policies?))).collect()
}

/// The next pod that is tied to one that stays, and how. Those that share volumes come first: who is kept together rests on the
/// policies of all that go.
fn next_held<'m, 'p>(seen: &Seen, movers: &'m [Mover<'p>], pods: &[PodView]) -> Option<(&'m Mover<'p>, String)> {
    let staying = |mover: &Mover| {
        let going: BTreeSet<_> = beside(movers, mover).map(|other| other.pod.uid()).collect();
        pods.iter().filter(move |pod| !pod.pod.is_finished() && !going.contains(pod.uid()))
    };
    let sharing = movers.iter().find_map(|mover| {
        let holder = staying(mover).find(|pod| share(pod, mover.pod))?;
        Some((mover, format!("shares a volume with {}", holder.display())))
    });
    sharing.or_else(|| {
        movers.iter().find_map(|mover| {
            let holder = staying(mover).find(|pod| are_kept_together(seen, movers, mover, pod))?;
            Some((mover, format!("must run beside {}", holder.display())))
        })
    })
}

/// Whether one may run only where the other does, and a policy keeps them together: of the plan, where one is enough for
/// node_fence, or of the other pod.
fn are_kept_together(seen: &Seen, movers: &[Mover], mover: &Mover, other: &PodView) -> bool {
    let of_other = || effective(seen, other).filter(|own| rehearses(&mover.policies) || !rehearses(own));
    pod_affinity::are_bound(&mover.pod.pod, &other.pod)
        && (beside(movers, mover).any(|it| it.policies.keeps_groups_together())
            || of_other().is_some_and(|own| own.keeps_groups_together()))
}

/// Those that go when that one does: of a pod that goes in earnest not those that only rehearse it, which are kept then.
fn beside<'m, 'p>(movers: &'m [Mover<'p>], mover: &Mover) -> impl Iterator<Item = &'m Mover<'p>> {
    let is_rehearsal = rehearses(&mover.policies);
    movers.iter().filter(move |other| is_rehearsal || !rehearses(&other.policies))
}

fn rehearses(policies: &Effective) -> bool {
    policies.mode() == PolicyMode::DryRun
}

fn share(one: &PodView, other: &PodView) -> bool {
    one.volumes.iter().any(|volume| other.volumes.iter().any(|it| it.name == volume.name))
}
