//! Which volumes a change is worth a look at. Most changes are worth none: what does not bear on health queues nothing.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::ResourceExt;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::api::names;
use crate::api::slim::{AdmissionBinding, Node, Pod};
use crate::api::volume_health_policy::VolumeHealthPolicy;
use crate::controllers::{ANY_HOST, BY_DRIVER, BY_HANDLE, BY_HOST, BY_NODE, Context, Stores, indexes, reference};
use crate::runtime::events::EventType;
use crate::runtime::lock::lock;
use crate::runtime::queue::Queue;
use crate::runtime::store::{Change, ObjectKey};

use super::beats::{Beats, SILENT_AFTER};
use super::changes::{self, Handles};
use super::{nodes, projection};

/// Changes that are taken at once.
const BATCH: usize = 1024;
/// How often silence is looked for.
const BEAT: Duration = Duration::from_secs(5);

/// What feeds the queue.
#[derive(Clone)]
pub struct Feed {
    pub cx: Context,
    pub queue: Queue<String>,
    pub beats: Arc<Mutex<Beats>>,
}

impl Feed {
    /// Starts to listen, until `cancel`.
    pub fn start(self, cancel: &CancellationToken) {
        let stores = self.cx.stores.clone();
        self.clone().on_first_lists();
        self.on(stores.volumes.subscribe(), |stores, change| {
            let is_marked = || change.new.as_ref().is_some_and(projection::is_marked);
            if is_asked(stores) || is_marked() { vec![change.key.name.clone()] } else { Vec::new() }
        });
        self.on(stores.healths.subscribe(), |_, change| vec![change.key.name.clone()]);
        self.on(stores.health_policies.subscribe(), |stores, change| {
            let view = |policy: &VolumeHealthPolicy| {
                (policy.metadata.generation, policy.metadata.deletion_timestamp.is_some(), policy.uid())
            };
            if change.differs(view) { all(stores) } else { Vec::new() }
        });
        self.on(stores.admission_bindings.subscribe(), |stores, change| {
            let counts = names::ENFORCING_POLICIES.contains(&change.key.name.as_str());
            let denies = |binding: &Option<Arc<AdmissionBinding>>| binding.as_ref().is_some_and(|it| it.denies());
            let is_same = denies(&change.old) == denies(&change.new);
            if counts && !is_same { all(stores) } else { Vec::new() }
        });
        self.on_asked(stores.node_reports.subscribe(), |_, change| {
            changes::of_node_report(change.old.as_deref(), change.new.as_deref()).into_iter().collect()
        });
        self.on_asked(stores.reports.subscribe(), |stores, change| {
            of_driver(stores, &change.key.name, changes::of_driver_report(change.old.as_deref(), change.new.as_deref()))
        });
        self.on_asked(stores.claims.subscribe(), |_, change| {
            let volume = |claim: &Arc<crate::api::slim::PersistentVolumeClaim>| claim.spec.volume_name.clone();
            let (old, new) = (change.old.as_ref().and_then(volume), change.new.as_ref().and_then(volume));
            if old == new { Vec::new() } else { old.into_iter().chain(new).collect() }
        });
        self.on_asked(stores.attachments.subscribe(), |_, change| {
            let view = |it: &Arc<crate::api::slim::VolumeAttachment>| (it.volume().to_owned(), it.status.attached);
            let (old, new) = (change.old.as_ref().map(view), change.new.as_ref().map(view));
            if old == new { Vec::new() } else { old.into_iter().chain(new).map(|(volume, _)| volume).collect() }
        });
        self.on_asked(stores.pods.subscribe(), |stores, change| {
            let view = |pod: &Pod| (pod.uid(), pod.spec.node_name.clone(), pod.is_finished(), pod.is_held());
            if !change.differs(view) {
                return Vec::new();
            }
            change.both().flat_map(|pod| of_pod(stores, pod)).collect()
        });
        self.clone().on_agents();
        self.clone().on_nodes();
        self.clone().on_leases(cancel.clone());
    }

    fn on<K: Send + Sync + 'static>(
        &self,
        changes: mpsc::UnboundedReceiver<Change<K>>,
        volumes: impl Fn(&Stores, &Change<K>) -> Vec<String> + Send + 'static,
    ) {
        let stores = self.cx.stores.clone();
        self.queue.follow(changes, None, move |change| volumes(&stores, change));
    }

    /// The same where anybody asks.
    fn on_asked<K: Send + Sync + 'static>(
        &self,
        changes: mpsc::UnboundedReceiver<Change<K>>,
        volumes: impl Fn(&Stores, &Change<K>) -> Vec<String> + Send + 'static,
    ) {
        self.on(changes, move |stores, change| if is_asked(stores) { volumes(stores, change) } else { Vec::new() });
    }

    /// Until it is known whether anybody asks, nothing is queued: what came before is made good for then.
    fn on_first_lists(self) {
        tokio::spawn(async move {
            let stores = &self.cx.stores;
            stores.wait_health_synced().await;
            if is_asked(stores) {
                all(stores).into_iter().for_each(|volume| self.queue.add(volume));
            }
        });
    }

    /// An agent that is replaced is given time: of each volume of its node it would be told that it is silent, and that it
    /// is not any more.
    fn on_agents(self) {
        let mut changes = self.cx.stores.agents.subscribe();
        tokio::spawn(async move {
            while let Some(change) = changes.recv().await {
                let view = |pod: &Pod| (pod.spec.node_name.clone(), pod.is("Ready"), pod.is_terminating());
                if !is_asked(&self.cx.stores) || !change.differs(view) {
                    continue;
                }
                let is_ready = change.new.as_ref().is_some_and(|pod| pod.is("Ready") && !pod.is_terminating());
                let nodes: BTreeSet<_> = change.both().filter_map(|pod| pod.spec.node_name.clone()).collect();
                for volume in nodes.iter().flat_map(|node| of_node(&self.cx.stores, node)) {
                    if is_ready {
                        self.queue.add(volume);
                    } else {
                        self.queue.add_after(volume, SILENT_AFTER);
                    }
                }
            }
        });
    }

    /// Nodes come by the hundred when a network parts: they are taken together.
    fn on_nodes(self) {
        let mut changes = self.cx.stores.nodes.subscribe();
        tokio::spawn(async move {
            let (mut batch, mut held) = (Vec::new(), false);
            while changes.recv_many(&mut batch, BATCH).await > 0 {
                let touched = self.touched_by(&batch);
                batch.clear();
                if !touched.is_empty() {
                    held = self.tell_of_storm(held);
                }
                touched.into_iter().for_each(|volume| self.queue.add(volume));
            }
        });
    }

    fn touched_by(&self, batch: &[Change<Node>]) -> BTreeSet<String> {
        let stores = &self.cx.stores;
        if !is_asked(stores) {
            return BTreeSet::new();
        }
        let view = |node: &Node| (node.uid(), nodes::failing_since(node), node.metadata.labels.clone());
        let changed = batch.iter().filter(|change| change.differs(view));
        let mut touched: BTreeSet<_> = changed.flat_map(|change| of_node_change(stores, change)).collect();
        if !touched.is_empty() {
            // How many fail together decides about each of them.
            let failing = stores.nodes.list().into_iter().filter(|node| nodes::failing_since(node).is_some());
            touched.extend(failing.flat_map(|node| local_on(stores, &node)));
        }
        touched
    }

    /// Tells once that nothing follows from so many failures. Returns whether it holds.
    fn tell_of_storm(&self, was: bool) -> bool {
        let stores = &self.cx.stores;
        let is = nodes::storm_since(stores.nodes.list().iter().map(Arc::as_ref)).is_some();
        let told = stores.health_policies.list().into_iter().min_by_key(|policy| policy.name_any());
        if let Some(policy) = told.filter(|_| is && !was) {
            let note = "more than 30 % of the nodes are not ready: for 5 minutes no new taint follows from it";
            tracing::warn!(note, "a partition is suspected");
            let kind = EventType::Warning;
            self.cx.events.publish(reference(policy.as_ref()), kind, "NodeTaintsHeld", "Watch", note.into());
        }
        is
    }

    /// A Lease moves every few seconds; worth a look is only that it began to, or ceased.
    fn on_leases(self, cancel: CancellationToken) {
        let mut changes = self.cx.stores.fencer_leases.subscribe();
        tokio::spawn(async move {
            let mut pulse = tokio::time::interval(BEAT);
            loop {
                tokio::select! {
                    () = cancel.cancelled() => break,
                    change = changes.recv() => match change {
                        None => break,
                        Some(change) => {
                            let now = self.cx.clock.now();
                            self.beats().note(&change.key.name, change.new.as_deref(), now);
                        }
                    },
                    _ = pulse.tick() => {}
                }
                let turned = self.beats().turned(self.cx.clock.now());
                self.queue_drivers(&turned);
            }
        });
    }

    fn beats(&self) -> std::sync::MutexGuard<'_, Beats> {
        lock(&self.beats)
    }

    fn queue_drivers(&self, leases: &[String]) {
        let stores = &self.cx.stores;
        if leases.is_empty() || !is_asked(stores) {
            return;
        }
        let drivers = stores.reports.list().into_iter().map(|report| report.name_any());
        for driver in drivers.filter(|driver| leases.contains(&names::fencer_lease(driver))) {
            of_driver(stores, &driver, Handles::All).into_iter().for_each(|volume| self.queue.add(volume));
        }
    }
}

/// Whether anybody wants to know of volumes. Where there is no policy, and no VolumeHealth that one has left behind, each change of
/// a large cluster would be looked at for nothing.
fn is_asked(stores: &Stores) -> bool {
    let is_known = stores.health_policies.synced() && stores.healths.synced();
    is_known && !(stores.health_policies.is_empty() && stores.healths.is_empty())
}

fn all(stores: &Stores) -> Vec<String> {
    let volumes = stores.volumes.list().into_iter().map(|volume| volume.name_any());
    volumes.chain(stores.healths.list().into_iter().map(|health| health.name_any())).collect()
}

fn of_driver(stores: &Stores, driver: &str, handles: Handles) -> Vec<String> {
    let volumes = match handles {
        Handles::All => stores.volumes.by_index(BY_DRIVER, driver),
        Handles::These(handles) => {
            let of_handle = |handle: &String| stores.volumes.by_index(BY_HANDLE, &indexes::handle(driver, handle));
            handles.iter().flat_map(of_handle).collect()
        }
    };
    volumes.into_iter().map(|volume| volume.name_any()).collect()
}

fn of_pod(stores: &Stores, pod: &Pod) -> Vec<String> {
    let claims = indexes::claims_of_pod(pod).into_iter().filter_map(|claim| {
        let (namespace, name) = claim.split_once('/')?;
        stores.claims.get(&ObjectKey::namespaced(namespace, name))?.spec.volume_name.clone()
    });
    claims.collect()
}

fn local_on(stores: &Stores, node: &Node) -> Vec<String> {
    let hosts = indexes::hosts_of_node(node);
    let hosts = hosts.iter().map(String::as_str).chain([ANY_HOST]);
    hosts.flat_map(|host| stores.volumes.by_index(BY_HOST, host)).map(|volume| volume.name_any()).collect()
}

fn of_node_change(stores: &Stores, change: &Change<Node>) -> Vec<String> {
    let mut volumes: Vec<_> = change.both().flat_map(|node| local_on(stores, node)).collect();
    let uid = |node: &Option<Arc<Node>>| node.as_ref().and_then(|node| node.uid());
    if uid(&change.old) != uid(&change.new) {
        volumes.extend(reported_by(stores, &change.key.name));
    }
    volumes
}

fn reported_by(stores: &Stores, node: &str) -> Vec<String> {
    let report = stores.node_reports.get(&ObjectKey::cluster(node));
    let status = report.as_ref().and_then(|report| report.status.as_ref());
    status.into_iter().flat_map(|status| &status.volumes).map(|volume| volume.name.clone()).collect()
}

/// Every volume that has to do with a node.
fn of_node(stores: &Stores, node: &str) -> Vec<String> {
    let mut volumes = reported_by(stores, node);
    volumes.extend(stores.nodes.get(&ObjectKey::cluster(node)).iter().flat_map(|node| local_on(stores, node)));
    volumes.extend(stores.attachments.by_index(BY_NODE, node).iter().map(|it| it.volume().to_owned()));
    volumes.extend(stores.pods.by_index(BY_NODE, node).iter().flat_map(|pod| of_pod(stores, pod)));
    volumes
}
