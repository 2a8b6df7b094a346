//! Which nodes are asked about: those with pods that a policy selects and that use volumes of this driver, and those whose
//! path was lost until it is proved to be back.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use kube::{Api, ResourceExt};
use tokio_util::sync::CancellationToken;

use crate::api::resiliency_policy::{CheckSwitch, ResiliencyPolicy, StorageDetection};
use crate::api::slim::{Namespace, Pod, VolumeSource, protobuf};
use crate::api::usage::{claim_of_volume, claims_of_pod};
use crate::runtime::informer::Informer;
use crate::runtime::store::{ObjectKey, Store};

use super::super::Context;
use super::super::health::observe::Stores as Volumes;
use super::decide::Settings;
use super::memory::{Target, Targets};

/// What is read of the cluster.
#[derive(Clone)]
pub struct Stores {
    /// The driver's volumes, attachments and nodes, which others look at too.
    pub volumes: Volumes,
    /// Pods with claims.
    pub pods: Store<Pod>,
    /// Namespaces.
    pub namespaces: Store<Namespace>,
    /// ResiliencyPolicies.
    pub policies: Store<ResiliencyPolicy>,
}

/// Who is to be asked about, and how.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wanted {
    /// How; nothing while nobody wants to know.
    pub settings: Option<Settings>,
    /// The nodes.
    pub nodes: Targets,
}

impl Stores {
    /// Empty ones, for tests.
    pub fn new_detached() -> Self {
        Self {
            volumes: Volumes::new_detached(),
            pods: Store::new_detached(Vec::new()),
            namespaces: Store::new_detached(Vec::new()),
            policies: Store::new_detached(Vec::new()),
        }
    }

    /// Begins to watch, until `cancel`.
    pub fn spawn(cx: &Context, volumes: Volumes, cancel: &CancellationToken) -> Self {
        let client = &cx.clients.watches;
        let has_claims = |pod: &Pod| {
            let mut volumes = pod.spec.volumes.iter();
            volumes.any(|volume| matches!(volume.source, VolumeSource::Claim(_) | VolumeSource::Ephemeral))
        };
        Self {
            volumes,
            pods: Informer::new(Api::all(client.clone()), "pods")
                .protobuf(&protobuf::POD)
                .keep(has_claims)
                .spawn(cancel.clone(), &cx.telemetry),
            namespaces: Informer::new(Api::all(client.clone()), "namespaces").spawn(cancel.clone(), &cx.telemetry),
            policies: Informer::new(Api::all(client.clone()), "resiliencypolicies")
                .spawn(cancel.clone(), &cx.telemetry),
        }
    }

    /// Returns when all were read once.
    pub async fn synced(&self) {
        self.volumes.synced().await;
        self.pods.wait_synced().await;
        self.namespaces.wait_synced().await;
        self.policies.wait_synced().await;
    }

    /// Who is to be asked about now. `lost` are the nodes whose path is not known to be well.
    pub fn wanted(&self, driver: &str, lost: &BTreeSet<String>) -> Wanted {
        let mut policies = self.policies.list();
        policies.retain(|policy| policy.metadata.deletion_timestamp.is_none());
        let asks = |policy: &&Arc<ResiliencyPolicy>| {
            let drivers = &policy.spec.selector.drivers;
            is_on(&policy.spec.detection.storage) && (drivers.is_empty() || drivers.iter().any(|it| it == driver))
        };
        if !policies.iter().any(|policy| asks(&policy)) {
            return Wanted::default();
        }
        let (mut nodes, asking) = self.protected(driver, &policies);
        nodes.extend(lost.iter().cloned());
        // Of nodes whose pods have gone everybody wants to know.
        let everybody = || policies.iter().filter(asks).map(|policy| &policy.spec.detection.storage).collect();
        let details: Vec<_> = if asking.is_empty() && !nodes.is_empty() { everybody() } else { asking };
        Wanted { settings: Settings::of(details.iter().copied()), nodes: self.targets(driver, nodes) }
    }

    /// Nodes with protected pods that use volumes of the driver, and what the policies of these pods say of storage.
    fn protected<'p>(
        &self,
        driver: &str,
        policies: &'p [Arc<ResiliencyPolicy>],
    ) -> (BTreeSet<String>, Vec<&'p StorageDetection>) {
        let volumes = self.volumes.volumes.list();
        let ours: HashSet<_> = volumes.iter().filter_map(|volume| claim_of_volume(volume)).collect();
        let none = BTreeMap::new();
        let (mut nodes, mut asking) = (BTreeSet::new(), BTreeSet::new());
        for pod in self.pods.list() {
            let Some(node) = pod.spec.node_name.clone().filter(|_| is_protectable(&pod)) else { continue };
            let claims = claims_of_pod(&pod);
            if !claims.iter().any(|claim| ours.contains(claim)) {
                continue;
            }
            let namespace = self.namespaces.get(&ObjectKey::cluster(pod.namespace().unwrap_or_default()));
            let namespace_labels = namespace.as_ref().and_then(|it| it.metadata.labels.as_ref()).unwrap_or(&none);
            let labels = pod.metadata.labels.as_ref().unwrap_or(&none);
            // A volume that is not ours may be of any other driver: one question too many does no harm.
            let uses = |other: &str| other == driver || claims.iter().any(|claim| !ours.contains(claim));
            let selecting = policies.iter().enumerate();
            let selecting: Vec<_> =
                selecting.filter(|(_, policy)| policy.spec.selector.matches(labels, namespace_labels, uses)).collect();
            // The strictest of all policies holds: where one does not want the question, it is not asked for this pod.
            if !selecting.is_empty() && selecting.iter().all(|(_, policy)| is_on(&policy.spec.detection.storage)) {
                nodes.insert(node);
                asking.extend(selecting.iter().map(|(index, _)| *index));
            }
        }
        let asking = asking.into_iter().filter_map(|index| policies.get(index));
        (nodes, asking.map(|policy| &policy.spec.detection.storage).collect())
    }

    /// Nodes as the driver knows them. One without a CSINode is gone.
    fn targets(&self, driver: &str, nodes: BTreeSet<String>) -> Targets {
        let mut published: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for attachment in self.volumes.attachments.list() {
            if let Some(id) = attachment.node_id().filter(|id| !id.is_empty()) {
                published.entry(attachment.spec.node_name.clone()).or_default().insert(id.to_owned());
            }
        }
        let target = |name: String| {
            let node = self.volumes.nodes.get(&ObjectKey::cluster(name.as_str()))?;
            let mut ids = published.remove(&name).unwrap_or_default();
            let registered = node.spec.drivers.iter().find(|there| there.name == driver);
            ids.extend(registered.map(|there| there.node_id.clone()).filter(|id| !id.is_empty()));
            // Two ids for one node: whom an answer would be about is in doubt.
            let node_id = if ids.len() == 1 { ids.pop_first() } else { None };
            Some((name, Target { uid: node.metadata.uid.clone().unwrap_or_default(), node_id }))
        };
        nodes.into_iter().filter_map(target).collect()
    }
}

fn is_on(storage: &StorageDetection) -> bool {
    storage.connectivity_check == CheckSwitch::Enabled
}

fn is_protectable(pod: &Pod) -> bool {
    !pod.is_finished() && !pod.is_static() && pod.controller_kind() != Some("DaemonSet")
}
