//! What is there of the failover at one moment, and when each thing was seen first.

use std::collections::BTreeMap;

use bulkhead::api::names::{ACTIVE_LABEL, UNREACHABLE_TAINT};
use bulkhead::api::node_fence::NodeFence;
use bulkhead::api::shared_volume::SharedVolume;
use bulkhead_testbed::cluster::real::PodPlace;
use chrono::Utc;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use crate::Result;
use crate::demo::all_proved;
use crate::incident::Moment;

/// What happens, about in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Kubernetes noticed that the node is silent.
    Noticed,
    /// Bulkhead decided that it has failed.
    Detected,
    /// The address leads to nobody any more.
    Withdrawn,
    /// The array said twice that the node is cut off.
    Fenced,
    /// The server's new pod has a node.
    Scheduled,
    /// Its container runs.
    Running,
    /// The address leads to it.
    Switched,
    /// It answered through its address, by the SharedVolume's status.
    Serving,
}

impl Phase {
    pub const ALL: [Self; 8] = [
        Self::Noticed,
        Self::Detected,
        Self::Withdrawn,
        Self::Fenced,
        Self::Scheduled,
        Self::Running,
        Self::Switched,
        Self::Serving,
    ];

    /// For the table.
    pub fn title(self) -> &'static str {
        match self {
            Self::Noticed => "Kubernetes notices: taint unreachable",
            Self::Detected => "detected: NodeFence decided",
            Self::Withdrawn => "withdrawn: no endpoint on the dead node",
            Self::Fenced => "fenced: the array confirmed it",
            Self::Scheduled => "the server's pod has a new node",
            Self::Running => "the server's container runs",
            Self::Switched => "switched: the slice has the new server",
            Self::Serving => "serving: it answers, says the status",
        }
    }

    /// For the moment that it is seen.
    pub fn text(self, from: &str, to: Option<&str>) -> String {
        let to = to.unwrap_or("another node");
        match self {
            Self::Noticed => format!("Kubernetes notices: taint {UNREACHABLE_TAINT} on {from}"),
            Self::Detected => format!("Bulkhead decides: NodeFence {from} holds the plan"),
            Self::Withdrawn => "the address leads to nobody: the slice is empty".to_owned(),
            Self::Fenced => format!("the array cut {from} off, and a second look proves it"),
            Self::Scheduled => format!("the server's new pod is for {to}"),
            Self::Running => format!("nfs-ganesha runs on {to}"),
            Self::Switched => "the address leads to the new server".to_owned(),
            Self::Serving => "the SharedVolume says that it serves".to_owned(),
        }
    }
}

/// When each phase was reached: as its object says, where one does, else when it was seen.
#[derive(Debug, Default)]
pub struct Seen {
    at: BTreeMap<Phase, Moment>,
    to: Option<String>,
}

impl Seen {
    /// Takes note of what is new, and returns it.
    pub fn note(&mut self, look: &Look) -> Vec<(Phase, Moment)> {
        self.to = self.to.take().or_else(|| look.to().map(str::to_owned));
        let new: Vec<_> = look.reached().into_iter().filter(|(phase, _)| !self.at.contains_key(phase)).collect();
        self.at.extend(new.iter().copied());
        new
    }

    pub fn at(&self, phase: Phase) -> Option<Moment> {
        self.at.get(&phase).copied()
    }

    /// The server's new node.
    pub fn to(&self) -> Option<&str> {
        self.to.as_deref()
    }
}

/// What is there at one moment.
pub struct Look {
    at: Moment,
    node: Option<Node>,
    /// Of an incident that goes on.
    fence: Option<NodeFence>,
    /// The server's pod on another node.
    pod: Option<Pod>,
    /// Whom the address leads to.
    endpoints: Vec<String>,
    shared: Option<SharedVolume>,
}

impl Look {
    /// Of the server `name`, whose pod was `old`.
    pub async fn now(client: &Client, name: &str, old: &PodPlace) -> Result<Self> {
        let pods: Api<Pod> = Api::default_namespaced(client.clone());
        let slices: Api<EndpointSlice> = Api::default_namespaced(client.clone());
        let pods = pods.list(&ListParams::default().labels(&format!("app={name}"))).await?;
        let elsewhere = |pod: &Pod| {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            pod.uid().as_deref() != Some(&old.uid) && node.is_some_and(|node| node != old.node)
        };
        let of_it = ListParams::default().labels(&format!("kubernetes.io/service-name={name}"));
        let slices = slices.list(&of_it).await?;
        let endpoints = slices.into_iter().flat_map(|slice| slice.endpoints);
        let fence: Option<NodeFence> = Api::all(client.clone()).get_opt(&old.node).await?;
        Ok(Self {
            node: Api::all(client.clone()).get_opt(&old.node).await?,
            fence: fence.filter(|fence| fence.labels().contains_key(ACTIVE_LABEL)),
            pod: pods.into_iter().find(elsewhere),
            endpoints: endpoints.flat_map(|endpoint| endpoint.addresses).collect(),
            shared: Api::default_namespaced(client.clone()).get_opt(name).await?,
            at: Utc::now(),
        })
    }

    /// The server's new node.
    pub fn to(&self) -> Option<&str> {
        self.pod.as_ref()?.spec.as_ref()?.node_name.as_deref()
    }

    fn reached(&self) -> Vec<(Phase, Moment)> {
        let taints =
            self.node.iter().filter_map(|node| node.spec.as_ref()).flat_map(|spec| spec.taints.iter().flatten());
        let noticed = taints.into_iter().any(|taint| taint.key == UNREACHABLE_TAINT).then_some(self.at);
        let fence = self.fence.as_ref();
        let proved = fence.and_then(|fence| fence.status.as_ref()).filter(|status| !status.volumes.is_empty());
        let address = self.pod.as_ref().and_then(|pod| pod.status.as_ref()?.pod_ip.as_ref());
        let leads_there = address.is_some_and(|address| self.endpoints.contains(address));
        let all = [
            (Phase::Noticed, noticed),
            (Phase::Detected, fence.map(|fence| fence.spec.plan.decided_at)),
            (Phase::Withdrawn, self.endpoints.is_empty().then_some(self.at)),
            (Phase::Fenced, proved.and_then(all_proved)),
            (Phase::Scheduled, self.pod.as_ref().map(|_| self.at)),
            (Phase::Running, self.runs().then_some(self.at)),
            (Phase::Switched, leads_there.then_some(self.at)),
            (Phase::Serving, leads_there.then(|| self.serving()).flatten()),
        ];
        all.into_iter().filter_map(|(phase, at)| Some((phase, at?))).collect()
    }

    fn runs(&self) -> bool {
        let statuses = self.pod.iter().filter_map(|pod| pod.status.as_ref());
        let mut states = statuses.flat_map(|status| status.container_statuses.iter().flatten());
        states.any(|status| status.state.as_ref().is_some_and(|state| state.running.is_some()))
    }

    fn serving(&self) -> Option<Moment> {
        self.shared.as_ref()?.status.as_ref()?.last_failover.as_ref()?.serving_at
    }
}
