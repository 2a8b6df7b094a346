//! Pods that would wait at night whatever is proved: for a volume that no method covers, or since their policies have no method
//! in common. Counted at noon. Pure.

use std::collections::BTreeMap;

use crate::api::usage::PodView;

use super::decide::{Seen, effective};
use super::unattached;

/// Protected pods that would wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unmovable {
    /// How many, by the reason that their rows in a NodeFence would have.
    reasons: BTreeMap<&'static str, usize>,
    /// The first by namespace and name, and why it would.
    first: Option<(String, String)>,
    /// The first pod that would not, with a class of a policy that is of no use for a volume of its.
    useless_class: Option<(String, String)>,
}

impl Unmovable {
    /// Counts the pod, if it is one of them.
    pub(super) fn count(&mut self, seen: &Seen, pod: &PodView) {
        // One that has not started holds nothing yet, and may be seen before its claim is.
        if !pod.pod.is("Initialized") {
            return;
        }
        if let Some((reason, why)) = waits(seen, pod) {
            *self.reasons.entry(reason).or_default() += 1;
            note(&mut self.first, pod, why);
        } else if let Some((volume, why)) = unattached::useless_class(seen, pod) {
            note(&mut self.useless_class, pod, format!("volume {}: {why}", volume.name));
        }
    }

    /// What is told of pods that would not wait: which class is of no use, for the first of them.
    pub(super) fn warning(&self) -> Option<String> {
        let (first, why) = self.useless_class.as_ref()?;
        Some(format!("a NetworkFence that is listed is of no use: first {first}: {why}"))
    }

    /// How many they are, why, and which is the first; `None` when there are none.
    pub(super) fn describe(&self) -> Option<String> {
        let (first, why) = self.first.as_ref()?;
        let reasons: Vec<_> = self.reasons.iter().map(|(reason, pods)| format!("{reason} {pods}")).collect();
        let which = match self.reasons.values().sum::<usize>() {
            1 => "1 pod".to_owned(),
            pods => format!("{pods} pods"),
        };
        Some(format!("{which} would be held whatever is proved ({}): first {first}: {why}", reasons.join(", ")))
    }
}

/// Keeps the first pod by namespace and name.
fn note(first: &mut Option<(String, String)>, pod: &PodView, why: String) {
    let name = pod.display();
    if first.as_ref().is_none_or(|(first, _)| name < *first) {
        *first = Some((name, why));
    }
}

/// Why the pod would wait.
fn waits(seen: &Seen, pod: &PodView) -> Option<(&'static str, String)> {
    pod.unmovable().or_else(|| unattached::waits(seen, pod)).or_else(|| disputed(seen, pod))
}

/// What each policy could prove by itself is told of each: here is what they leave together.
fn disputed(seen: &Seen, pod: &PodView) -> Option<(&'static str, String)> {
    if seen.policies.len() < 2 {
        return None;
    }
    let together = effective(seen, pod).filter(|together| together.policies().len() > 1)?;
    let driver = pod.drivers().find(|driver| together.methods(driver).is_empty())?;
    let names = together.policies().iter().filter_map(|policy| policy.metadata.name.as_deref());
    let names = names.collect::<Vec<_>>().join(", ");
    let why = format!("policies {names} have no fence method in common that gives the proof they demand of {driver}");
    Some(("ProofTooWeak", why))
}
