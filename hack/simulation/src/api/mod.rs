//! The API server: objects with uid, resourceVersion, generation, finalizers; compare-and-swap; watches. What the
//! programs under test write goes through [`Op`]; Kubernetes' own parts use the typed functions here.

mod op;
mod rules;
mod table;

pub use op::{Op, Written};
pub use table::{Change, Table, View};

use std::collections::BTreeMap;
use std::sync::Arc;

use bulkhead::api::driver_report::DriverReport;
use bulkhead::api::fence_request::FenceRequest;
use bulkhead::api::names;
use bulkhead::api::node_fence::NodeFence;
use bulkhead::api::node_volume_report::NodeVolumeReport;
use bulkhead::api::resiliency_policy::ResiliencyPolicy;
use bulkhead::api::slim::{CsiNode, Lease, Node, Pod, VolumeAttachment};
use bulkhead::api::volume_health::VolumeHealth;
use kube::Resource;

use crate::time::{Millis, stamp};

/// A kind of object that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Nodes.
    Nodes,
    /// Leases of kubelets.
    Leases,
    /// Leases of leaders.
    LeaderLeases,
    /// Pods.
    Pods,
    /// VolumeAttachments.
    Attachments,
    /// CSINodes.
    CsiNodes,
    /// ResiliencyPolicies.
    Policies,
    /// NodeFences.
    Fences,
    /// FenceRequests.
    Requests,
    /// DriverReports.
    Reports,
    /// NodeVolumeReports.
    NodeReports,
    /// VolumeHealths.
    Healths,
}

/// Why a request is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// 409, or a JSON patch whose test failed.
    Conflict,
    /// 404.
    NotFound,
    /// 403.
    Forbidden,
    /// 422: against a rule of the schema. Never expected of the programs under test.
    Invalid(String),
    /// 429.
    Throttled,
    /// No answer, or 5xx: the outcome is unknown.
    Unknown,
    /// Nothing was sent: we do not lead.
    NotLeader,
}

/// What the server keeps.
pub trait Stored: Resource<DynamicType = ()> + Clone + PartialEq + Sized {
    /// Its kind.
    const KIND: Kind;
    /// Its objects.
    fn table(api: &Api) -> &Table<Self>;
    /// Its objects.
    fn table_mut(api: &mut Api) -> &mut Table<Self>;
    /// Whether nothing holds it any more once it is being deleted.
    fn may_go(&self) -> bool {
        true
    }
}

macro_rules! stored {
    ($type:ty, $kind:ident, $field:ident) => {
        impl Stored for $type {
            const KIND: Kind = Kind::$kind;
            fn table(api: &Api) -> &Table<Self> {
                &api.$field
            }
            fn table_mut(api: &mut Api) -> &mut Table<Self> {
                &mut api.$field
            }
        }
    };
}

stored!(Node, Nodes, nodes);
stored!(Lease, Leases, leases);
stored!(VolumeAttachment, Attachments, attachments);
stored!(CsiNode, CsiNodes, csi_nodes);
stored!(ResiliencyPolicy, Policies, policies);
stored!(NodeFence, Fences, fences);
stored!(FenceRequest, Requests, requests);
stored!(DriverReport, Reports, reports);
stored!(NodeVolumeReport, NodeReports, node_reports);
stored!(VolumeHealth, Healths, healths);

impl Stored for Pod {
    const KIND: Kind = Kind::Pods;
    fn table(api: &Api) -> &Table<Self> {
        &api.pods
    }
    fn table_mut(api: &mut Api) -> &mut Table<Self> {
        &mut api.pods
    }
    fn may_go(&self) -> bool {
        self.metadata.deletion_grace_period_seconds == Some(0)
    }
}

/// A Lease of a leader: the slim type lacks the holder.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeaderLease {
    /// What a watcher sees of it.
    pub lease: Lease,
    /// Who holds it.
    pub holder: Option<String>,
}

/// The server.
#[derive(Clone, Debug, Default)]
pub struct Api {
    /// Nodes.
    pub nodes: Table<Node>,
    /// Leases of kubelets.
    pub leases: Table<Lease>,
    /// Leases of leaders.
    pub leader_leases: Table<LeaderLease>,
    /// Pods.
    pub pods: Table<Pod>,
    /// Attachments.
    pub attachments: Table<VolumeAttachment>,
    /// CSINodes.
    pub csi_nodes: Table<CsiNode>,
    /// Policies.
    pub policies: Table<ResiliencyPolicy>,
    /// NodeFences.
    pub fences: Table<NodeFence>,
    /// FenceRequests.
    pub requests: Table<FenceRequest>,
    /// DriverReports.
    pub reports: Table<DriverReport>,
    /// NodeVolumeReports.
    pub node_reports: Table<NodeVolumeReport>,
    /// VolumeHealths.
    pub healths: Table<VolumeHealth>,
    /// It answers nobody.
    pub down: bool,
    /// The shipped admission policy for attachments is missing.
    pub admission_missing: bool,
    revision: u64,
    uids: u64,
    changed: Vec<(Kind, String)>,
}

impl Api {
    /// An empty server.
    pub fn new(admission_missing: bool) -> Self {
        Self { admission_missing, ..Self::default() }
    }

    /// The object of that name.
    pub fn get<K: Stored>(&self, name: &str) -> Option<Arc<K>> {
        K::table(self).get(name).cloned()
    }

    /// What has changed since it was asked last.
    pub fn take_changes(&mut self) -> Vec<(Kind, String)> {
        std::mem::take(&mut self.changed)
    }

    /// All objects as text.
    pub fn objects(&self) -> String {
        fn all<K: std::fmt::Debug>(table: &Table<K>) -> String {
            table.iter().map(|(name, object)| format!("{name}={object:?};")).collect()
        }
        [
            all(&self.nodes),
            all(&self.leases),
            all(&self.leader_leases),
            all(&self.pods),
            all(&self.attachments),
            all(&self.csi_nodes),
            all(&self.policies),
            all(&self.fences),
            all(&self.requests),
            all(&self.reports),
            all(&self.node_reports),
            all(&self.healths),
        ]
        .concat()
    }

    /// The number of the next change of a kind.
    pub fn changes(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Nodes => self.nodes.next(),
            Kind::Leases => self.leases.next(),
            Kind::LeaderLeases => self.leader_leases.next(),
            Kind::Pods => self.pods.next(),
            Kind::Attachments => self.attachments.next(),
            Kind::CsiNodes => self.csi_nodes.next(),
            Kind::Policies => self.policies.next(),
            Kind::Fences => self.fences.next(),
            Kind::Requests => self.requests.next(),
            Kind::Reports => self.reports.next(),
            Kind::NodeReports => self.node_reports.next(),
            Kind::Healths => self.healths.next(),
        }
    }

    /// Creates an object.
    pub fn create<K: Stored>(&mut self, mut object: K, at: Millis) -> Result<Arc<K>, Refusal> {
        let name = object.meta().name.clone().unwrap_or_default();
        if K::table(self).get(&name).is_some() {
            return Err(Refusal::Conflict);
        }
        self.uids += 1;
        let uid = format!("u{}", self.uids);
        let meta = object.meta_mut();
        meta.uid = Some(uid);
        meta.creation_timestamp = Some(stamp(at));
        meta.generation = Some(1);
        Ok(self.set(&name, object))
    }

    /// Changes an object, if there is one. Returns it as it is then; one that is being deleted and that nothing holds
    /// any more goes.
    pub fn update<K: Stored>(&mut self, name: &str, change: impl FnOnce(&mut K)) -> Option<Arc<K>> {
        let known = K::table(self).get(name)?.clone();
        let mut object = K::clone(&known);
        change(&mut object);
        if object == *known {
            return Some(known);
        }
        if object.meta().deletion_timestamp.is_some() && is_free(&object) {
            self.remove::<K>(name);
            return Some(Arc::new(object));
        }
        Some(self.set(name, object))
    }

    /// Marks an object for deletion, if it is still that one; it goes when nothing holds it.
    pub fn delete<K: Stored>(&mut self, name: &str, uid: &str, at: Millis) {
        if self.get::<K>(name).is_some_and(|object| object.meta().uid.as_deref() == Some(uid)) {
            self.update::<K>(name, |object| {
                object.meta_mut().deletion_timestamp.get_or_insert(stamp(at));
            });
        }
    }

    /// Takes an object away, whatever holds it.
    pub fn remove<K: Stored>(&mut self, name: &str) {
        self.revision += 1;
        K::table_mut(self).set(name, None);
        self.changed.push((K::KIND, name.to_owned()));
    }

    /// Deletes a pod as the server does: gone at once without a grace period and without finalizers.
    pub fn delete_pod(&mut self, name: &str, grace_seconds: Option<u32>, at: Millis) -> Option<Arc<Pod>> {
        self.update::<Pod>(name, |pod| {
            let unbound = pod.spec.node_name.is_none() || pod.is_finished();
            let grace = if unbound { 0 } else { grace_seconds.map_or(30, i64::from) };
            let known = pod.metadata.deletion_grace_period_seconds.unwrap_or(i64::MAX);
            pod.metadata.deletion_timestamp.get_or_insert(stamp(at));
            pod.metadata.deletion_grace_period_seconds = Some(known.min(grace));
        })
    }

    /// Whether admission lets a VolumeAttachment be created for the node.
    pub fn admits_attachment(&self, node: &str) -> bool {
        self.admission_missing || !self.is_fenced(node)
    }

    /// Whether admission lets a FenceRequest be created: for an open incident only. `admission_missing` is about
    /// attachments; this one fails closed.
    pub fn admits_request(&self, request: &FenceRequest) -> bool {
        let node = &request.spec.node_name;
        self.fences.get(node).is_none_or(|fence| self.is_fenced(node) && fence.spec.episode == request.spec.episode)
    }

    /// Whether there is an active NodeFence of that node.
    pub fn is_fenced(&self, node: &str) -> bool {
        let active = |fence: &Arc<NodeFence>| {
            fence.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(names::ACTIVE_LABEL))
        };
        self.fences.get(node).is_some_and(active)
    }

    /// The holder of a leader's Lease and its version; `None` when there is no Lease.
    pub fn leader_lease(&self, name: &str) -> Option<(Option<String>, String)> {
        let lease = self.leader_leases.get(name)?;
        Some((lease.holder.clone(), lease.lease.metadata.resource_version.clone().unwrap_or_default()))
    }

    fn set<K: Stored>(&mut self, name: &str, mut object: K) -> Arc<K> {
        self.revision += 1;
        object.meta_mut().resource_version = Some(self.revision.to_string());
        let object = Arc::new(object);
        K::table_mut(self).set(name, Some(object.clone()));
        self.changed.push((K::KIND, name.to_owned()));
        object
    }

    fn claim(
        &mut self,
        name: &str,
        version: Option<&str>,
        holder: Option<&str>,
        at: Millis,
    ) -> Result<String, Refusal> {
        let known = self.leader_lease(name);
        if known.as_ref().map(|(_, version)| version.as_str()) != version {
            return Err(Refusal::Conflict);
        }
        self.revision += 1;
        let mut lease = LeaderLease { holder: holder.map(str::to_owned), ..LeaderLease::default() };
        lease.lease.metadata.name = Some(name.to_owned());
        lease.lease.metadata.resource_version = Some(self.revision.to_string());
        lease.lease.spec.renew_time = Some(crate::time::micro(at));
        self.leader_leases.set(name, Some(Arc::new(lease)));
        self.changed.push((Kind::LeaderLeases, name.to_owned()));
        Ok(self.revision.to_string())
    }
}

fn is_free<K: Stored>(object: &K) -> bool {
    object.meta().finalizers.as_ref().is_none_or(Vec::is_empty) && object.may_go()
}

/// The labels of an object with one set or removed.
fn with_label(
    labels: Option<BTreeMap<String, String>>,
    key: &str,
    value: Option<&str>,
) -> Option<BTreeMap<String, String>> {
    let mut labels = labels.unwrap_or_default();
    match value {
        Some(value) => labels.insert(key.to_owned(), value.to_owned()),
        None => labels.remove(key),
    };
    (!labels.is_empty()).then_some(labels)
}
