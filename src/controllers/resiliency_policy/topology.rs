//! `limits.topology`: how many nodes may be acted on within one domain, such as a zone.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

use crate::api::limits::IntOrPercent;
use crate::api::node_fence::NodeFence;
use crate::api::resiliency_policy::ResiliencyPolicy;
use crate::api::slim::Node;

use super::brakes;

/// The budgets of a policy for the domains of each topology key that it limits.
#[derive(Debug, Default)]
pub struct Budgets<'a> {
    keys: Vec<Budget<'a>>,
}

/// The budget of one topology key.
#[derive(Debug)]
struct Budget<'a> {
    key: &'a str,
    max_nodes: &'a IntOrPercent,
    /// Domain by node. Nodes without the label are one domain.
    domains: BTreeMap<&'a str, &'a str>,
    /// Nodes in each domain.
    sizes: BTreeMap<&'a str, usize>,
    /// Nodes that count in each domain.
    acted_on: BTreeMap<&'a str, usize>,
    /// Nodes that count and are gone: nobody knows any more where they were, so they count in every domain.
    gone: usize,
}

impl<'a> Budgets<'a> {
    /// The budgets as they are used up by these NodeFences.
    pub fn new(
        policy: &'a ResiliencyPolicy,
        nodes: impl Iterator<Item = &'a Node> + Clone,
        fences: impl Iterator<Item = &'a NodeFence> + Clone,
        now: DateTime<Utc>,
    ) -> Self {
        let keys = policy.spec.limits.topology.iter().map(|limit| {
            let mut budget = Budget::new(&limit.topology_key, &limit.max_nodes, nodes.clone());
            for fence in fences.clone().filter(|fence| brakes::counts(policy, fence, now)) {
                budget.count(fence.metadata.name.as_deref().unwrap_or_default());
            }
            budget
        });
        Self { keys: keys.collect() }
    }

    /// The domain of the node that may have no further one acted on, as `key=value`.
    pub fn exhausted(&self, node: &str) -> Option<String> {
        self.keys.iter().find_map(|budget| budget.exhausted(node))
    }

    /// Counts a node that does not count yet.
    pub fn count(&mut self, node: &str) {
        self.keys.iter_mut().for_each(|budget| budget.count(node));
    }
}

impl<'a> Budget<'a> {
    fn new(key: &'a str, max_nodes: &'a IntOrPercent, nodes: impl Iterator<Item = &'a Node>) -> Self {
        let labelled = nodes.filter_map(|node| {
            let label = node.metadata.labels.as_ref().and_then(|labels| labels.get(key));
            Some((node.metadata.name.as_deref()?, label.map(String::as_str).unwrap_or_default()))
        });
        let domains: BTreeMap<_, _> = labelled.collect();
        let mut sizes = BTreeMap::new();
        for domain in domains.values() {
            *sizes.entry(*domain).or_default() += 1;
        }
        Self { key, max_nodes, domains, sizes, acted_on: BTreeMap::new(), gone: 0 }
    }

    fn exhausted(&self, node: &str) -> Option<String> {
        let domain = self.domains.get(node)?;
        let number = |of: &BTreeMap<&str, usize>| of.get(domain).copied().unwrap_or_default();
        let limit = self.max_nodes.resolve(number(&self.sizes)).max(1);
        (number(&self.acted_on) + self.gone >= limit).then(|| format!("{}={domain}", self.key))
    }

    fn count(&mut self, node: &str) {
        match self.domains.get(node) {
            Some(domain) => *self.acted_on.entry(domain).or_default() += 1,
            None => self.gone += 1,
        }
    }
}
