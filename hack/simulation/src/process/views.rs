//! What the watches of a controller have brought, and what its passes see of it.

use std::sync::Arc;

use bulkhead::api::driver_report::DriverReport;
use bulkhead::api::fence_request::FenceRequest;
use bulkhead::api::names;
use bulkhead::api::node_fence::NodeFence;
use bulkhead::api::node_volume_report::NodeVolumeReport;
use bulkhead::api::resiliency_policy::ResiliencyPolicy;
use bulkhead::api::slim::{CsiNode, Lease, Node, Pod, VolumeAttachment};
use bulkhead::api::usage::PodView;
use bulkhead::api::volume_health::VolumeHealth;
use bulkhead::controllers::node_fence::memory::Found as NodeFound;
use bulkhead::controllers::resiliency_policy::memory::Found as ClusterFound;

use crate::api::{Api, Change, Kind, LeaderLease, View};
use crate::shape::Shape;

use super::queue::Key;

/// What the watches of a controller have brought.
#[derive(Clone, Debug, Default)]
pub struct Views {
    /// Nodes.
    pub nodes: View<Node>,
    /// Leases of kubelets.
    pub leases: View<Lease>,
    /// Leases of leaders.
    pub leader_leases: View<LeaderLease>,
    /// Pods.
    pub pods: View<Pod>,
    /// Attachments.
    pub attachments: View<VolumeAttachment>,
    /// CSINodes.
    pub csi_nodes: View<CsiNode>,
    /// Policies.
    pub policies: View<ResiliencyPolicy>,
    /// NodeFences.
    pub fences: View<NodeFence>,
    /// FenceRequests.
    pub requests: View<FenceRequest>,
    /// DriverReports.
    pub reports: View<DriverReport>,
    /// NodeVolumeReports.
    pub node_reports: View<NodeVolumeReport>,
    /// VolumeHealths.
    pub healths: View<VolumeHealth>,
}

impl Views {
    /// Delivers changes of a kind up to a number, or lists again. Returns the keys that must look, and how soon, in
    /// milliseconds: the `feed` functions of the product.
    pub fn deliver(&mut self, api: &Api, kind: Kind, upto: Option<u64>, first: bool) -> Vec<(Key, u64)> {
        fn go<K>(view: &mut View<K>, table: &crate::api::Table<K>, upto: Option<u64>, first: bool) -> Vec<Change<K>> {
            match upto {
                Some(upto) if !view.is_gone(table) => view.catch_up(table, upto),
                Some(_) => view.relist(table, false),
                None => view.relist(table, first),
            }
        }
        let mut wanted = Vec::new();
        let node = |name: &str, pace| (Key::Node(name.to_owned()), pace);
        match kind {
            Kind::Nodes => {
                for change in go(&mut self.nodes, &api.nodes, upto, first) {
                    wanted.push(node(&change.name, 0));
                    if seen_of(change.old.as_deref()) != seen_of(change.new.as_deref()) {
                        wanted.push((Key::Cluster, 0));
                    }
                }
            }
            Kind::Leases => drop(go(&mut self.leases, &api.leases, upto, first)),
            Kind::LeaderLeases => drop(go(&mut self.leader_leases, &api.leader_leases, upto, first)),
            Kind::CsiNodes => drop(go(&mut self.csi_nodes, &api.csi_nodes, upto, first)),
            Kind::Pods => {
                for change in go(&mut self.pods, &api.pods, upto, first) {
                    let both = change.old.iter().chain(&change.new);
                    wanted.extend(both.filter_map(|pod| Some(node(pod.spec.node_name.as_deref()?, 50))));
                    wanted.push((Key::Cluster, 500));
                }
            }
            Kind::Attachments => {
                for change in go(&mut self.attachments, &api.attachments, upto, first) {
                    let both = change.old.iter().chain(&change.new);
                    wanted.extend(both.map(|attachment| node(&attachment.spec.node_name, 50)));
                }
            }
            Kind::Policies => {
                let changes = go(&mut self.policies, &api.policies, upto, first);
                wanted.extend(changes.iter().map(|_| (Key::Cluster, 0)));
            }
            Kind::Fences => {
                for change in go(&mut self.fences, &api.fences, upto, first) {
                    wanted.push(node(&change.name, 0));
                    wanted.push((Key::Cluster, 0));
                }
            }
            Kind::Requests => {
                for change in go(&mut self.requests, &api.requests, upto, first) {
                    let both = change.old.iter().chain(&change.new);
                    wanted.extend(both.map(|request| node(&request.spec.node_name, 0)));
                }
            }
            Kind::Reports => {
                for change in go(&mut self.reports, &api.reports, upto, first) {
                    let statuses = change.old.iter().chain(&change.new).filter_map(|report| report.status.as_ref());
                    wanted.extend(statuses.flat_map(|it| &it.unreachable).map(|pair| node(&pair.node, 0)));
                    wanted.push((Key::Cluster, 0));
                }
            }
            Kind::NodeReports => {
                let changes = go(&mut self.node_reports, &api.node_reports, upto, first);
                wanted.extend(changes.iter().map(|change| node(&change.name, 0)));
            }
            Kind::Healths => {
                let changes = go(&mut self.healths, &api.healths, upto, first);
                wanted.extend(changes.iter().map(|_| (Key::Cluster, 500)));
            }
        }
        // Only nodes with a NodeFence are queued, and those whose NodeFence has gone, to be forgotten.
        wanted.retain(|(key, _)| match key {
            Key::Node(name) => kind == Kind::Fences || self.fences.objects.contains_key(name),
            _ => true,
        });
        wanted
    }

    /// What `resiliency_policy` sees.
    pub fn cluster(&self, shape: &Shape) -> ClusterFound {
        ClusterFound {
            policies: self.policies.list(),
            nodes: self.nodes.list(),
            leases: self.leases.list(),
            fencer_leases: self.leader_leases.objects.values().map(|it| Arc::new(it.lease.clone())).collect(),
            pods: self.with_volumes().map(|pod| PodView::new(pod.clone(), shape)).collect(),
            namespaces: shape.namespaces(),
            fences: self.fences.list(),
            requests: self.requests.list(),
            reports: self.reports.list(),
            healths: self.healths.list(),
            ..ClusterFound::default()
        }
    }

    /// What `node_fence` sees of a node; `None` without a NodeFence.
    pub fn node(&self, shape: &Shape, name: &str) -> Option<NodeFound> {
        let fence = self.fences.get(name)?;
        let bound = self.with_volumes().filter(|pod| pod.spec.node_name.as_deref() == Some(name));
        let report = |driver: &str| Some((driver.to_owned(), self.reports.get(driver)?));
        let volumes = fence.spec.plan.volumes.iter().map(|volume| &volume.name);
        Some(NodeFound {
            node: self.nodes.get(name),
            lease: self.leases.get(name),
            pods: bound.map(|pod| PodView::new(pod.clone(), shape)).collect(),
            attachments: self.attachments.objects.values().filter(|it| it.spec.node_name == name).cloned().collect(),
            requests: self.requests.objects.values().filter(|it| it.spec.node_name == name).cloned().collect(),
            reports: fence.spec.plan.drivers().into_iter().filter_map(report).collect(),
            node_report: self.node_reports.get(name),
            healths: Some(volumes.filter_map(|it| Some((it.clone(), self.healths.get(it)?))).collect()),
            policies: fence.spec.policies.iter().filter_map(|policy| self.policies.get(&policy.name)).collect(),
            fence,
        })
    }

    /// The store keeps only pods that use volumes.
    fn with_volumes(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.objects.values().filter(|pod| !pod.spec.volumes.is_empty())
    }
}

/// What of a Node is worth a pass over the cluster.
fn seen_of(node: Option<&Node>) -> Option<SeenOfNode<'_>> {
    let node = node?;
    let paused = names::paused(&node.metadata);
    Some((node.metadata.uid.as_deref(), node.ready(), node.taints(), &node.status.node_info.boot_id, paused))
}

/// Uid, Ready, taints, boot id and pause.
type SeenOfNode<'a> = (Option<&'a str>, &'a str, &'a [k8s_openapi::api::core::v1::Taint], &'a str, Option<&'a str>);
