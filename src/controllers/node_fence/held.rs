//! What stops the whole incident before its next destructive step: a person's hold, a pause, and a mode that does not let
//! the plan be carried out. Nothing that was begun is undone for it; a request that no fencer has begun with is taken
//! back, and a node that returns is given back all the same.

use crate::api::fencing::PolicyMode;
use crate::api::names;
use crate::api::resiliency_policy::RestraintType;
use crate::api::text::printable;
use crate::mutants::{self, Mutant};

use super::decide::{NodeState, Seen, Step};
use super::requests;
use super::rows::Rows;

/// Why nothing more is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The reason of condition Held.
    pub reason: &'static str,
    /// What it waits for, and what to do.
    pub message: String,
}

/// Why nothing more may be done now; `None` when nothing holds. Of a node that is back nothing new is begun: there a mode
/// holds nothing, and what was cut off is brought to its end.
pub fn held(seen: &Seen, node: NodeState) -> Option<Held> {
    if mutants::is_on(Mutant::HoldIgnored) {
        return None;
    }
    let back = node == NodeState::Back;
    rehearsed(seen)
        .filter(|_| !back)
        .or_else(|| by_person(seen))
        .or_else(|| paused(seen))
        .or_else(|| unapproved(seen).filter(|_| !back))
        .or_else(|| in_window(seen).filter(|_| !back))
}

/// Takes back what was asked of a fencer that has not begun with any of it: it may be silent for hours, and must not begin
/// when nobody wants it any more; nor when so many nodes are suspected that the observer must be at fault.
pub fn take_back(seen: &Seen, rows: &Rows) -> Option<Step> {
    if rows.held.is_none() && rows.outage.is_none() {
        return None;
    }
    let effects = requests::turn_round(seen, rows, |request| requests::is_taken_back(seen, rows, request));
    if effects.is_empty() { None } else { Step::new("Holding", effects) }
}

/// The strictest mode of the plan and of the policies as they are now: a later edit may only make a running incident
/// stricter.
fn mode(seen: &Seen) -> PolicyMode {
    let planned = seen.fence.spec.policies.iter().map(|policy| policy.mode);
    let live = seen.policies.iter().map(|policy| policy.spec.mode);
    planned.chain(live).min().unwrap_or(PolicyMode::DryRun)
}

fn rehearsed(seen: &Seen) -> Option<Held> {
    let message = "this is the plan that would be carried out: mode DryRun records it and does nothing";
    (mode(seen) == PolicyMode::DryRun).then(|| Held { reason: "DryRun", message: message.into() })
}

fn by_person(seen: &Seen) -> Option<Held> {
    let hold = seen.fence.spec.hold.as_ref()?;
    let message = format!("spec.hold: {}; nothing more is done until it is removed", printable(&hold.reason));
    Some(Held { reason: "HeldByPerson", message })
}

fn paused(seen: &Seen) -> Option<Held> {
    let policies = seen.policies.iter().filter_map(|policy| {
        let name = policy.metadata.name.as_deref().unwrap_or_default();
        Some((format!("policy {name}"), names::paused(&policy.metadata)?))
    });
    let node = seen.node.as_ref().and_then(|node| Some(("the node".to_owned(), names::paused(&node.metadata)?)));
    let (what, reason) = node.into_iter().chain(policies).next()?;
    let remedy = format!("nothing more is done until its annotation {} is removed", names::PAUSED_ANNOTATION);
    Some(Held { reason: "Paused", message: format!("{what} is paused: {}; {remedy}", printable(reason)) })
}

/// What has begun before a window opened is carried through it; what waited for a person waits for its end too.
fn in_window(seen: &Seen) -> Option<Held> {
    let open = seen.policies.iter().flat_map(|policy| &policy.status).flat_map(|status| &status.restraints);
    let window = open.into_iter().find(|restraint| restraint.type_ == RestraintType::MaintenanceWindow)?;
    let name = window.name.as_deref().unwrap_or_default();
    let until = window.until.map(|until| format!(" until {}", until.to_rfc3339())).unwrap_or_default();
    let message = format!("maintenance window {name} is open{until}: nothing new is begun");
    (!seen.is_active()).then_some(Held { reason: "MaintenanceWindow", message })
}

fn unapproved(seen: &Seen) -> Option<Held> {
    if mode(seen) != PolicyMode::RequireApproval {
        return None;
    }
    let spec = &seen.fence.spec;
    let node = seen.fence.metadata.name.as_deref().unwrap_or_default();
    let remedy = format!("to carry it out: kubectl bulkhead approve node {node}");
    match &spec.approval {
        Some(approval) if approval.plan_digest == spec.plan.digest => None,
        Some(approval) => {
            let message =
                format!("the plan is {} now, {} was approved; {remedy}", spec.plan.digest, approval.plan_digest);
            Some(Held { reason: "ApprovalOutdated", message })
        }
        None => {
            let message = format!("plan {} waits for spec.approval; {remedy}", spec.plan.digest);
            Some(Held { reason: "AwaitingApproval", message })
        }
    }
}
