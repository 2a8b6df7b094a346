//! `DriverReport`: what one CSI driver can answer, told by its sidecar; and which nodes have no power, told by an external
//! fencer under its own name.

use chrono::{DateTime, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::conditions;
use super::fencing::Proof;
use super::schema;
use super::volume::VolumeState;

/// DriverReport has no spec.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "bulkhead.dev",
    version = "v1alpha1",
    kind = "DriverReport",
    plural = "driverreports",
    shortname = "dr",
    category = "bulkhead",
    status = "DriverReportStatus",
    doc = "DriverReport is what one CSI driver says about itself through its sidecar, or what an external fencer sees of nodes. Named after the driver or the fencer; it has no spec.",
    derive = "PartialEq",
    no_spec,
    printcolumn(name = "READY", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "REASON", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "CHECKED", type_ = "integer", json_path = ".status.checkedVolumes"),
    printcolumn(name = "ABNORMAL", type_ = "integer", json_path = ".status.abnormalVolumes"),
    printcolumn(name = "UNREACHABLE", type_ = "integer", json_path = ".status.unreachablePairs"),
    printcolumn(name = "COVERAGE", type_ = "string", json_path = ".status.coverage"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "CAPABILITIES", type_ = "string", json_path = ".status.capabilities", priority = 1),
    printcolumn(name = "SIDECAR", type_ = "string", json_path = ".status.sidecarVersion", priority = 1)
)]
pub struct DriverReportSpec {}

/// What the driver says through its sidecar, or an external fencer. Written on change only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.abnormal) || self.abnormal.map(g, size(g.volumeHandles)).sum() <= 5000").message("at most 5000 abnormal volumes may be listed").field_path(".abnormal"))]
pub struct DriverReportStatus {
    /// Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Version of the sidecar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub sidecar_version: Option<String>,
    /// What the driver can answer. An absent one is not supported.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub capabilities: Vec<Capability>,
    /// NetworkFenceClasses of the driver, by which csi-addons shuts addresses out of its storage.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 253)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub network_fence_classes: Vec<String>,
    /// Clusters that these classes name (parameter clusterID), or that they name none. Of a class that is not here that is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub network_fence_clusters: Vec<NetworkFenceCluster>,
    /// By what the storage behind a class knows its nodes, as the driver told csi-addons while they were well. Method NetworkFence
    /// goes by it, and fails for a node of which it was told and is not here. Of a node that fails the row stays as it is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2048))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub network_fence_clients: Vec<NetworkFenceClients>,
    /// Storage backends behind the driver: one, of the driver's name. Absent while nobody is asked about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub backends: Vec<Backend>,
    /// Node and backend pairs that are not connected. An absent pair is not known to be disconnected; a row goes only after
    /// recoveryThreshold answers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub unreachable: Vec<UnreachablePair>,
    /// Nodes without power, as an external fencer sees them. An absent node is not known to be off. Counts for pods whose
    /// policies name that fencer as a method, and only while the node itself is silent too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub powered_off: Vec<PoweredOffNode>,
    /// Volumes that are not Healthy, grouped by what is wrong with them. A selected volume that is checked and not here
    /// is Healthy for the driver, if coverage is Complete.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub abnormal: Vec<AbnormalVolumes>,
    /// Capped: more than 5,000 abnormal volumes, 64 groups, 1,024 pairs or 1 MiB; what is missing is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coverage: Option<Coverage>,
    /// Volumes asked about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub checked_volumes: Option<u32>,
    /// Abnormal, listed or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub abnormal_volumes: Option<u32>,
    /// Pairs not connected, listed or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub unreachable_pairs: Option<u32>,
}

/// Which cluster of the storage a class shuts addresses out of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkFenceCluster {
    /// NetworkFenceClass.
    #[schemars(length(min = 1, max = 253))]
    pub class_name: String,
    /// Its parameter clusterID; absent where it has none.
    #[serde(default, rename = "clusterID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub cluster_id: Option<String>,
}

/// By what the storage behind a class knows a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkFenceClients {
    /// NetworkFenceClass.
    #[schemars(length(min = 1, max = 253))]
    pub class_name: String,
    /// Node.
    #[schemars(length(min = 1, max = 253))]
    pub node: String,
    /// Its uid; of another Node of that name this says nothing.
    #[serde(rename = "nodeUID")]
    #[schemars(length(min = 1, max = 36))]
    pub node_uid: String,
    /// Its addresses, as the storage sees them. Absent: the driver does not tell them any more, or not in a way that can be used;
    /// nobody is shut out then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 2, max = 64)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub addresses: Vec<String>,
    /// What they are to the node. Once the storage knew it by one of its own this stays, as long as it is the same Node: an address
    /// that is none of its own is then one that it had before, and nobody is shut out by that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known_by: Option<KnownBy>,
}

/// What an address is to the node that a storage knows by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum KnownBy {
    /// An InternalIP of the Node, or one that its agent reports: there is no NAT before the storage.
    OwnAddress,
    /// None of the node's own as far as is known: that of a NAT, or one that it had before.
    OtherAddress,
}

/// One backend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Backend {
    /// Backend; the driver name when it tells none.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Whether its gateway answers at all.
    pub state: BackendState,
    /// Nodes asked about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub nodes: Option<u32>,
    /// When state changed.
    pub since: DateTime<Utc>,
}

/// Whether a backend answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum BackendState {
    /// It does.
    Answering,
    /// For more than half of the nodes nobody answers.
    Silent,
}

/// One pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnreachablePair {
    /// Node.
    #[schemars(length(min = 1, max = 253))]
    pub node: String,
    /// Backend.
    #[schemars(length(min = 1, max = 253))]
    pub backend: String,
    /// Disconnected: the last lossThreshold answers said so. Unknown never acts.
    pub state: PathState,
    /// CamelCase cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Z][A-Za-z0-9]{0,63}$"))]
    pub reason: Option<String>,
    /// When it began.
    pub since: DateTime<Utc>,
}

/// What is known of the path between a node and a backend that is not known to be connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum PathState {
    /// The array says that the node is not connected.
    Disconnected,
    /// Nobody can tell, or it is not proved yet that the path is back.
    Unknown,
}

/// A node without power. It says so of one boot: the row says nothing of a node that has booted since.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoweredOffNode {
    /// Node.
    #[schemars(length(min = 1, max = 253))]
    pub node: String,
    /// Uid of the Node, read before its power was looked at.
    #[schemars(length(min = 1, max = 36))]
    #[serde(rename = "nodeUID")]
    pub node_uid: String,
    /// Boot id of that Node (status.nodeInfo.bootID), read before its power was looked at.
    #[schemars(length(min = 1, max = 64))]
    #[serde(rename = "bootID")]
    pub boot_id: String,
    /// When it was first seen to be off.
    pub since: DateTime<Utc>,
    /// CamelCase cause, or how it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Z][A-Za-z0-9]{0,63}$"))]
    pub reason: Option<String>,
}

/// Volumes with which the same thing is wrong.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AbnormalVolumes {
    /// What was found; never Healthy.
    #[x_kube(validation = Rule::new("self != 'Healthy'").message("an abnormal volume is not Healthy: leave it out"))]
    pub state: VolumeState,
    /// CamelCase cause.
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Z][A-Za-z0-9]{0,63}$"))]
    pub reason: String,
    /// Node it holds for; absent: everywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node: Option<String>,
    /// When it began.
    pub since: DateTime<Utc>,
    /// Detail, cleaned of control characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub message: Option<String>,
    /// CSI enum value that we do not know; never treated as Healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_status: Option<i32>,
    /// CSI handles.
    #[schemars(length(min = 1, max = 5000), inner(length(min = 1, max = 1024)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub volume_handles: Vec<String>,
}

/// Whether a report lists everything that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Coverage {
    /// It does.
    Complete,
    /// More is wrong than it may list: what is missing is unknown.
    Capped,
}

/// What a driver can answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Capability {
    /// Takes a volume away from a node: ControllerUnpublishVolume.
    Unpublish,
    /// Lists all volumes with the nodes they are published to: ListVolumes.
    ListPublishedNodes,
    /// Tells the nodes one volume is published to: ControllerGetVolume.
    GetPublishedNodes,
    /// Tells with a volume whether it is abnormal (CSI 1.3 to 1.12).
    VolumeCondition,
    /// Tells the health of volumes by calls of its own (CSI 1.13).
    VolumeHealth,
    /// Tells whether a node reaches the array (podmon extension).
    Connectivity,
    /// Tells whether a node's volumes are doing I/O (podmon extension).
    #[serde(rename = "IOInProgress")]
    IoInProgress,
    /// Shuts addresses out of its storage: csi-addons has a NetworkFenceClass for it.
    NetworkFence,
}

impl DriverReport {
    /// Whether the driver answers its sidecar.
    pub fn is_ready(&self) -> bool {
        self.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, "Ready"))
    }

    /// Whether the driver can be asked which nodes reach its backends.
    pub fn tells_connectivity(&self) -> bool {
        let capabilities = self.status.as_ref().map(|status| status.capabilities.as_slice()).unwrap_or_default();
        self.is_ready() && capabilities.contains(&Capability::Connectivity)
    }

    /// Whether the driver can be asked for I/O in progress.
    pub fn tells_io(&self) -> bool {
        let capabilities = self.status.as_ref().map(|status| status.capabilities.as_slice()).unwrap_or_default();
        self.is_ready() && capabilities.contains(&Capability::IoInProgress)
    }

    /// The nodes that are told to have no power. Of a report that is not Ready nothing is believed.
    pub fn powered_off(&self) -> impl Iterator<Item = &PoweredOffNode> {
        self.status.iter().filter(|_| self.is_ready()).flat_map(|status| &status.powered_off)
    }

    /// The pairs of a node.
    pub fn paths_of<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a UnreachablePair> {
        self.status.iter().flat_map(|status| &status.unreachable).filter(move |pair| pair.node == node)
    }

    /// Whether a node whose path to a backend was lost is proved to reach it again: until then its row stays.
    pub fn is_back(&self, node: &str, backend: &str) -> bool {
        let backends = self.status.iter().flat_map(|status| &status.backends);
        let is_silent = backends.filter(|it| it.name == backend).any(|it| it.state == BackendState::Silent);
        let is_listed = self.paths_of(node).any(|pair| pair.backend == backend);
        self.tells_connectivity() && !self.is_cut() && !is_silent && !is_listed
    }

    /// Whether a backend is out for everyone: it is silent, or more than half of its nodes, and at least two, are
    /// disconnected. Of a report that lists not all pairs the worst is assumed.
    pub fn is_out(&self, backend: &str) -> bool {
        let Some(status) = &self.status else { return false };
        let Some(known) = status.backends.iter().find(|it| it.name == backend) else { return false };
        let lost = |pair: &&UnreachablePair| pair.backend == backend && pair.state == PathState::Disconnected;
        let lost = status.unreachable.iter().filter(lost).count();
        let nodes = known.nodes.and_then(|nodes| usize::try_from(nodes).ok()).unwrap_or(0);
        known.state == BackendState::Silent || self.is_cut() || lost >= 2 && lost * 2 > nodes
    }

    /// Whether there are more pairs than are listed.
    fn is_cut(&self) -> bool {
        let Some(status) = &self.status else { return false };
        let all = status.unreachable_pairs.and_then(|pairs| usize::try_from(pairs).ok()).unwrap_or(0);
        all > status.unreachable.len()
    }

    /// The strongest proof that method NetworkFence can give with this driver now, by the class of that name. Carried out by
    /// csi-addons: whether the driver answers its own socket is nothing to it.
    pub fn network_fence_proof(&self, class: &str) -> Proof {
        let mut classes = self.status.iter().flat_map(|status| &status.network_fence_classes);
        if classes.any(|known| known == class) { Proof::Acknowledged } else { Proof::None }
    }

    /// The cluster of the storage that a class shuts addresses out of, empty where it names none; `None` where nobody has said.
    pub fn cluster_of_class(&self, class: &str) -> Option<&str> {
        let mut clusters = self.status.iter().flat_map(|status| &status.network_fence_clusters);
        let told = clusters.find(|told| told.class_name == class)?;
        Some(told.cluster_id.as_deref().unwrap_or_default())
    }

    /// Whether there is such a class, and nobody has said of which cluster it is: the sidecar is of an earlier release.
    pub fn is_cluster_untold(&self, class: &str) -> bool {
        self.network_fence_proof(class) > Proof::None && self.cluster_of_class(class).is_none()
    }

    /// Whether a class is known to be of the cluster that a volume demands. One that demands nothing takes any.
    pub fn is_class_of_cluster(&self, class: &str, demanded: Option<&str>) -> bool {
        demanded.is_none_or(|demanded| self.cluster_of_class(class) == Some(demanded))
    }

    /// The strongest proof that method Unpublish can give with this driver now.
    pub fn unpublish_proof(&self) -> Proof {
        let Some(status) = &self.status else { return Proof::None };
        let has = |capability| status.capabilities.contains(&capability);
        if !self.is_ready() || !has(Capability::Unpublish) {
            return Proof::None;
        }
        let reads = has(Capability::ListPublishedNodes) || has(Capability::GetPublishedNodes);
        if reads { Proof::Verified } else { Proof::Acknowledged }
    }
}
