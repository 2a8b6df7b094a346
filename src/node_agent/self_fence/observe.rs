//! Whom to stop: from policies, pods and namespaces as they are watched, and from the kubelet's folders.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::api::names;
use crate::api::resiliency_policy::ResiliencyPolicy;
use crate::api::slim::{Namespace, Node, Pod};
use crate::runtime::clock::monotonic;
use crate::runtime::store::{ObjectKey, Store};

use super::cut::{Done, Order};
use super::decide::{self, Known};
use super::{SelfFence, record};

/// What the child that looks at volumes is about: no name of a volume.
const LOOKING: &str = "volumes for self-fencing";

/// What the agent watches for it.
#[derive(Clone)]
pub struct Sources {
    /// The Node.
    pub nodes: Store<Node>,
    /// Policies.
    pub policies: Store<ResiliencyPolicy>,
    /// Pods bound to the node.
    pub pods: Store<Pod>,
    /// Namespaces.
    pub namespaces: Namespaces,
}

/// Namespaces, which are watched once a policy asks for their labels, and not before.
#[derive(Clone)]
pub struct Namespaces {
    begin: Arc<dyn Fn() -> Store<Namespace> + Send + Sync>,
    store: Arc<OnceLock<Store<Namespace>>>,
}

impl Namespaces {
    /// `begin` begins to watch.
    pub fn new(begin: impl Fn() -> Store<Namespace> + Send + Sync + 'static) -> Self {
        Self { begin: Arc::new(begin), store: Arc::default() }
    }

    fn store(&self) -> &Store<Namespace> {
        self.store.get_or_init(|| (self.begin)())
    }
}

impl SelfFence {
    /// Whom to stop, from what is watched; while that has not been heard of yet, from what an earlier process knew.
    pub(super) async fn learn(&mut self) {
        let Some(sources) = self.watching.as_ref().map(|watching| watching.sources.clone()) else { return };
        if !sources.nodes.synced() || !sources.policies.synced() || !sources.pods.synced() {
            return;
        }
        // A watch that has fallen silent still counts as listed. The kubelet renews its Node every few minutes.
        let (nodes, pods) = (sources.nodes.last_progress(), sources.pods.last_progress());
        let heard = sources.policies.last_progress().max(nodes).max(pods);
        let policies = sources.policies.list();
        let is_on = policies.iter().any(|policy| policy.spec.self_fencing.deadline().is_some());
        let node = sources.nodes.get(&ObjectKey::cluster(&self.cx.settings.node_name));
        // Written down as well: who paused the node before it was cut off is obeyed by the next process too.
        if !is_on || node.is_some_and(|node| names::paused(&node.metadata).is_some()) {
            self.record.protected.clear();
            self.has_learnt(heard);
            return;
        }
        let namespaces = sources.namespaces.store();
        if !namespaces.synced() {
            return;
        }
        self.look_at_volumes().await;
        let labels = namespaces.list().into_iter().filter_map(|namespace| {
            Some((namespace.metadata.name.clone()?, namespace.metadata.labels.clone().unwrap_or_default()))
        });
        let known = Known { policies, pods: sources.pods.list(), namespaces: labels.collect::<BTreeMap<_, _>>() };
        self.record.protected = decide::protected(&known, &self.volumes);
        self.has_learnt(heard);
    }

    fn has_learnt(&mut self, heard: Instant) {
        if self.heard.is_none_or(|before| heard > before)
            && let Ok(now) = record::uptime()
        {
            (self.heard, self.learnt) = (Some(heard), now);
        }
    }

    /// Where a child of an earlier look hangs, no second one is begun.
    async fn look_at_volumes(&mut self) {
        if !self.looks.is_due(monotonic()) {
            return;
        }
        let looked = match self.cx.children.hung_of(LOOKING) {
            0 => self.child(LOOKING, Order::Volumes(self.cx.settings.kubelet_root.clone())).await,
            _ => Err("a child of an earlier look has not ended".to_owned()),
        };
        let has_told = match looked {
            Ok(Done::Volumes(volumes)) => {
                self.volumes = volumes;
                true
            }
            other => {
                tracing::warn!(?other, "which volumes pods have cannot be told; what was known counts");
                false
            }
        };
        self.looks.ended(has_told, monotonic());
    }
}
