//! Pods outside every policy that share a volume with a protected pod of the node that is to go. Access is revoked per node, so whoever
//! shares a volume loses it too: such pods form one unit, over any number of pods and volumes between them.

use crate::api::units;
use crate::api::usage::PodView;

use super::plan::PodDecision;
use super::select::Effective;

/// A pod of the node, under which policies it is, and what was decided about it.
pub(super) struct Decided<'p, 'a> {
    /// The pod.
    pub(super) pod: &'p PodView,
    /// The policies that select it; of one that is cleaned with others, theirs.
    pub(super) policies: Option<Effective<'a>>,
    /// The decision.
    pub(super) decision: PodDecision,
}

/// Decides about the pods that no policy selects and that share volumes with pods that go: they hold them, by name, or go
/// with them where every policy of the unit says so. They go only where all others of the unit do.
pub(super) fn settle(decided: &mut [Decided]) {
    let uses = |(index, it): (usize, &Decided)| -> Vec<(usize, String)> {
        let open = !it.pod.pod.is_finished();
        it.pod.volumes.iter().filter(|_| open).map(|volume| (index, volume.name.clone())).collect()
    };
    let links = units::by_name(decided.iter().enumerate().flat_map(uses));
    let units = units::units(decided.len(), links);
    let is_outside = |it: &Decided| it.policies.is_none() && matches!(it.decision, PodDecision::Keep("NoPolicy"));
    for index in 0..decided.len() {
        let Some(unit) = units.get(index) else { continue };
        let members = || decided.iter().zip(&units).filter(|(_, other)| *other == unit).map(|(member, _)| member);
        let goes = |it: &&Decided| matches!(it.decision, PodDecision::Release(_) | PodDecision::Move(_));
        let protected = members().filter(goes).filter_map(|member| member.policies.clone());
        let Some(policies) = protected.reduce(Effective::and) else { continue };
        let Some(sharer) = decided.get(index).filter(|it| is_outside(it)) else { continue };
        let waits = members().any(|it| matches!(it.decision, PodDecision::NotYet));
        let stays = members().any(|it| matches!(it.decision, PodDecision::Keep(_)) && !is_outside(it));
        let decision = match () {
            () if !policies.cleans_sharers() || stays => PodDecision::Keep("UnselectedSharer"),
            () if sharer.pod.pod.controller().is_none() && !policies.deletes_bare_pods() => {
                PodDecision::Keep("BarePod")
            }
            // Its row comes with that of the one that is not declared yet: rows never change.
            () if waits => PodDecision::NotYet,
            () => PodDecision::Clean,
        };
        let policies = Some(policies).filter(|_| !matches!(decision, PodDecision::Keep(_)));
        if let Some(sharer) = decided.get_mut(index) {
            *sharer = Decided { pod: sharer.pod, policies, decision };
        }
    }
}
