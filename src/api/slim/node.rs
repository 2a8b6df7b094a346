//! Nodes, their Leases, and the drivers that are registered on them.

use std::time::Duration;

use chrono::{DateTime, Utc};
use k8s_openapi::api::coordination::v1 as coordination;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::storage::v1 as storage;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Resource;
use serde::{Deserialize, Serialize};

use super::{StatusCondition, metadata, nullable, part, slim};
use crate::api::time;

slim! {
    /// A Node.
    Node: core::Node {
        /// Spec.
        spec: NodeSpec,
        /// Status.
        status: NodeStatus,
    }
}

part! {
    /// Spec of a Node.
    NodeSpec {
        /// Its taints.
        taints: Option<Vec<core::Taint>>,
        /// What the cloud or the machine's provider calls it.
        #[serde(rename = "providerID")]
        provider_id: Option<String>,
    }
}

part! {
    /// Status of a Node.
    NodeStatus {
        /// Its conditions.
        conditions: Vec<StatusCondition>,
        /// Addresses and names.
        addresses: Vec<NodeAddress>,
        /// What the kubelet tells about the machine.
        node_info: NodeInfo,
        /// Volumes that attach/detach holds for attached.
        volumes_attached: Vec<AttachedVolume>,
        /// Volumes that the kubelet says it uses.
        volumes_in_use: Vec<String>,
    }
}

part! {
    /// An address of a Node, or a name.
    NodeAddress {
        /// InternalIP, Hostname or another.
        #[serde(rename = "type")]
        type_: String,
        /// As text.
        address: String,
    }
}

part! {
    /// What the kubelet tells about the machine.
    NodeInfo {
        /// Boot id of the kernel.
        #[serde(rename = "bootID")]
        boot_id: String,
    }
}

part! {
    /// A volume that is attached to a node.
    AttachedVolume {
        /// Unique name, `kubernetes.io/csi/<driver>^<handle>` for CSI.
        name: String,
    }
}

impl Node {
    /// Status of the Ready condition; a node without one is Unknown, as for the node lifecycle controller.
    pub fn ready(&self) -> &str {
        let ready = self.status.conditions.iter().find(|condition| condition.type_ == "Ready");
        ready.map_or("Unknown", |condition| condition.status.as_str())
    }

    /// Since when the Ready condition has its status; not known of a node without one.
    pub fn ready_since(&self) -> Option<DateTime<Utc>> {
        let ready = self.status.conditions.iter().find(|condition| condition.type_ == "Ready")?;
        ready.last_transition_time.as_ref().map(time::from_k8s)
    }

    /// The boot that it tells; `None` before its kubelet has told any.
    pub fn boot_id(&self) -> Option<&str> {
        Some(self.status.node_info.boot_id.as_str()).filter(|boot_id| !boot_id.is_empty())
    }

    /// Its taints.
    pub fn taints(&self) -> &[core::Taint] {
        self.spec.taints.as_deref().unwrap_or_default()
    }

    /// The taint with that key and effect.
    pub fn taint(&self, key: &str, effect: &str) -> Option<&core::Taint> {
        self.taints().iter().find(|taint| taint.key == key && taint.effect == effect)
    }

    /// Whether the kubelet is silent, as the node lifecycle controller tells: Ready is Unknown and the node carries
    /// the `unreachable` NoSchedule taint. (Not the NoExecute one: it is rate-limited and stops in bad zones.)
    pub fn is_unreachable(&self) -> bool {
        self.ready() == "Unknown" && self.taint(crate::api::names::UNREACHABLE_TAINT, "NoSchedule").is_some()
    }
}

slim! {
    /// A Lease.
    Lease: coordination::Lease {
        /// Spec.
        spec: LeaseSpec,
    }
}

part! {
    /// Spec of a Lease.
    LeaseSpec {
        /// When its holder renewed it last, by the holder's clock.
        renew_time: Option<MicroTime>,
        /// How long after that it is good for.
        lease_duration_seconds: Option<i32>,
    }
}

/// How long a kubelet's Lease is good for where it does not say so itself: the default of `nodeLeaseDurationSeconds`.
pub const KUBELET_LEASE: Duration = Duration::from_secs(40);

impl Lease {
    /// When it was renewed last, by the clock of its holder.
    pub fn renewed_at(&self) -> Option<DateTime<Utc>> {
        self.spec.renew_time.as_ref().map(time::from_micro)
    }

    /// How long after one renewal by a kubelet the next would have been seen: it renews each quarter of the duration; half as much again
    /// for who is late. However long that is, nobody waits for it longer than a minute.
    pub fn next_renewal(&self) -> Duration {
        const LONGEST: Duration = Duration::from_secs(60);
        let told = self.spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let told = told.filter(|seconds| *seconds > 0);
        (told.map_or(KUBELET_LEASE, Duration::from_secs) * 3 / 8).min(LONGEST)
    }
}

slim! {
    /// A CSINode.
    CsiNode: storage::CSINode {
        /// Spec.
        spec: CsiNodeSpec,
    }
}

part! {
    /// Spec of a CSINode.
    CsiNodeSpec {
        /// Drivers registered on the node.
        drivers: Vec<CsiNodeDriver>,
    }
}

part! {
    /// A driver on a node.
    CsiNodeDriver {
        /// Driver name.
        name: String,
        /// CSI node id.
        #[serde(rename = "nodeID")]
        node_id: String,
    }
}
