//! All brakes of one policy in one pass, and which of them holds a node.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::api::resiliency_policy::{ResiliencyPolicy, Restraint};
use crate::api::time::Now;
use crate::mutants::{self, Mutant};

use super::candidates::Cause;
use super::decide::Seen;
use super::topology::Budgets;
use super::{brakes, pauses, status, storage};

/// The brakes of a policy in a pass.
pub(super) struct PolicyBrakes<'a> {
    /// A pause, and maintenance windows.
    pub(super) people: Vec<Restraint>,
    /// Too many nodes are suspected, or were lately.
    pub(super) outage: Option<Restraint>,
    /// Volumes of too many nodes are tainted, or paths lost, or were lately. Not set before the others are.
    pub(super) array: Option<Restraint>,
    /// Storage backends that are out for everyone, or were lately.
    pub(super) backends: Vec<Restraint>,
    /// Nodes that count.
    pub(super) acted_on: usize,
    /// How many may.
    pub(super) limit: usize,
    /// The same for topology domains.
    pub(super) topology: Budgets<'a>,
    /// The budgets that have held a node back: the policy's own, or those of domains.
    pub(super) exhausted: BTreeSet<Option<String>>,
}

/// A brake, and what it is about.
pub(super) type Holding = (&'static str, Option<String>);

impl<'a> PolicyBrakes<'a> {
    pub(super) fn new(policy: &'a ResiliencyPolicy, seen: &'a Seen, outage: Option<Restraint>, now: Now) -> Self {
        let nodes = seen.nodes.iter().map(|(node, _)| node.as_ref());
        Self {
            people: pauses::restraints(policy, now.wall),
            topology: Budgets::new(policy, nodes, seen.fences.iter().map(Arc::as_ref), now.wall),
            outage,
            array: None,
            backends: storage::restraints(policy, seen, now.wall),
            acted_on: if mutants::is_on(Mutant::BrakeCountedPerPass) {
                0
            } else {
                brakes::acted_on(policy, &seen.fences, now.wall)
            },
            limit: brakes::limit(&policy.spec.limits, seen.nodes.len()),
            exhausted: BTreeSet::new(),
        }
    }

    /// The brake that holds whatever is begun for that cause.
    pub(super) fn restrains(&self, cause: Cause) -> Option<Holding> {
        let of_storage = cause != Cause::NodeFailure && !mutants::is_on(Mutant::ArrayOutageIgnored);
        let array = self.array.as_ref().filter(|_| of_storage);
        let restraint = self.people.iter().chain(&self.outage).chain(array).next()?;
        Some((status::reason_of(restraint.type_), restraint.name.clone()))
    }

    /// The brake that holds a node; one that counts already needs no further budget.
    pub(super) fn held_by(&self, node: &str, cause: Cause, is_counted: bool) -> Option<Holding> {
        let restraint = self.restrains(cause);
        if restraint.is_some() {
            return restraint;
        }
        if is_counted {
            return None;
        }
        let whole = (self.acted_on >= self.limit).then_some(None);
        let domain = || self.topology.exhausted(node).map(Some);
        whole.or_else(domain).map(|domain| ("BudgetExhausted", domain))
    }
}
