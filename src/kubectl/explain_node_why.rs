//! Why something is done about a node, and why not, in sentences.

use crate::api::names;
use crate::api::node_fence::{Evidence, MACHINE_MAY_RUN};
use crate::api::resiliency_policy::DecisiveChannel;
use crate::api::slim::{Lease, Node};
use crate::api::time::Now;
use crate::api::usage::PodView;
use crate::controllers::resiliency_policy::decide::effective;

use super::super::print::{ago, span};
use super::super::words;
use super::Facts;

/// Whether Kubernetes has given the node up and its kubelet may be renewing its Lease as ever, by the controller's own rule and the
/// kubelet's clock.
pub fn is_renewing(facts: &Facts) -> bool {
    let live = facts.present.live.as_ref();
    live.is_some_and(|live| live.node.is_unreachable() && live.silence.may_renew())
}

/// About each channel, and what keeps them from being enough.
pub fn sentences(facts: &Facts, evidence: &[Evidence], now: Now) -> Vec<String> {
    let Some(node) = facts.node else { return Vec::new() };
    let mut why = vec![condition(facts, node, now)];
    if let Some(renewed) = facts.lease.and_then(Lease::renewed_at) {
        let age = now.wall.signed_duration_since(renewed);
        why.push(format!(
            "its Lease was renewed {} ago, by the kubelet's clock; the controller watches it by its own",
            span(age)
        ));
    }
    for told in facts.present.seen.off.get(facts.name).into_iter().flatten() {
        why.push(format!(
            "channel Power: fencer {} says that it has had no power for {}; that counts while the node itself is silent too, for \
             pods whose policies name that fencer",
            told.fencer,
            ago(told.row.since, now.wall)
        ));
    }
    let is_protected = |pod| effective(&facts.present.seen, pod).is_some_and(|it| it.releases_on_node_failure());
    let pods = facts.present.live.iter().flat_map(|live| &live.pods);
    let protected: Vec<_> = pods.filter(|pod| is_protected(pod)).collect();
    if protected.is_empty() {
        why.push("no pod on it is selected by a policy that releases on node failures".into());
    }
    if node.is_unreachable() && evidence.is_empty() {
        why.extend(missing(facts, &protected));
    }
    // It is about another machine than the incident that is open, which says nothing of it.
    let restrained = facts.present.decision.restrained.iter();
    for held in restrained.filter(|held| held.node == facts.name && held.brake == MACHINE_MAY_RUN) {
        let about = held.about.as_deref().unwrap_or_default();
        why.push(format!("{MACHINE_MAY_RUN} holds policy {} back: {about}", held.policy));
    }
    let says = |it: &Evidence| format!("{:?} says failed: {}", it.channel, it.message.as_deref().unwrap_or(&it.reason));
    why.extend(evidence.iter().map(says));
    let unread = facts.present.unread.union(&facts.failure.unread).cloned().collect();
    why.extend(words::unread(&unread));
    why
}

/// What its Ready condition says, and what that is worth.
fn condition(facts: &Facts, node: &Node, now: Now) -> String {
    let since = node.ready_since().map(|at| format!(" for {}", ago(at, now.wall))).unwrap_or_default();
    let ready = format!("channel Kubelet: Ready={}{since}", node.ready());
    match node.ready() {
        "True" => format!("{ready}: the kubelet reports"),
        _ if node.is_unreachable() && is_renewing(facts) => format!(
            "{ready}, taint unreachable, although the kubelet renews its Lease, by its own clock: most often the node lifecycle controller \
             lags behind after an outage of the API server. It counts for nothing until the next renewal is overdue"
        ),
        _ if node.is_unreachable() => format!("{ready}, taint unreachable: the kubelet is silent"),
        "Unknown" => format!("{ready}, and no taint {}:NoSchedule yet: both are needed", names::UNREACHABLE_TAINT),
        _ => format!("{ready}: the kubelet still reports, so it can stop pods itself; that never counts as failed"),
    }
}

/// What the policy that decides for the first of these pods lacks to hold the node for failed, beside a kubelet that is silent.
fn missing(facts: &Facts, protected: &[&PodView]) -> Option<String> {
    let policies = protected.iter().find_map(|pod| effective(&facts.present.seen, pod))?;
    let decider = policies.deciding();
    if !policies.is_decisive(DecisiveChannel::Kubelet) {
        return Some(format!("policy {decider} does not act on the kubelet alone (detection.decisiveChannels)"));
    }
    (!is_renewing(facts)).then(|| {
        format!(
            "policy {decider} waits until it has been so for {:?} (detection.kubelet.decisiveAfter)",
            policies.decisive_after()
        )
    })
}
