//! Nodes as the controller of S3 mounts sees them: kubelet and node service of many nodes, played. Nothing is mounted, but
//! who may end before whom is kept as on real nodes.
//!
//! A Mountpoint Pod that is bound to such a node runs. A workload turns Running when the `s3pa` name a running Mountpoint Pod
//! for each of its volumes; it follows them to another one. A Mountpoint Pod that needs to unmount, or is deleted, ends when
//! no workload is mounted on it any more.

mod claims;
mod manifests;
mod mountpoint;
mod played;
mod views;
mod workload;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::task::JoinSet;

pub use self::manifests::install;

use self::views::State;
use crate::lock::lock;

/// Annotation of a workload: for so many milliseconds it goes on after it was deleted. At once without it.
pub const ENDS_AFTER: &str = "testbed.bulkhead.dev/ends-after";

/// How many pods fit on a node that is as large as any.
pub const MAX_PODS: usize = 1000;

/// The nodes of one cluster. Dropping it ends them; the objects stay.
pub struct MountNodes {
    state: Arc<State>,
    _watches: JoinSet<()>,
}

impl MountNodes {
    /// None yet. Mountpoint Pods live in `namespace`.
    pub fn new(client: Client, namespace: &str) -> Self {
        let state = Arc::new(State::new(client, namespace));
        let mut watches = JoinSet::new();
        watches.spawn(views::watch_pods(state.clone()));
        watches.spawn(views::watch_attachments(state.clone()));
        claims::watch(&state, &mut watches);
        Self { state, _watches: watches }
    }

    /// Adds a Ready node with room for so many pods. No heartbeat keeps it Ready: the control plane must be patient.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn add(&self, name: &str, pods: usize) -> kube::Result<()> {
        let room = json!({ "cpu": "512", "memory": "2Ti", "ephemeral-storage": "8Ti", "pods": pods.to_string() });
        let labels = json!({ "kubernetes.io/hostname": name, "kubernetes.io/os": "linux" });
        let node = json!({ "metadata": { "name": name, "labels": labels } });
        let node = serde_json::from_value(node).map_err(kube::Error::SerdeError)?;
        let nodes: Api<Node> = Api::all(self.state.client.clone());
        lock(&self.state.nodes).insert(name.to_owned());
        nodes.create(&PostParams::default(), &node).await?;
        let ready = json!({ "type": "Ready", "status": "True", "lastTransitionTime": chrono::Utc::now().to_rfc3339() });
        let status = json!({ "status": { "conditions": [ready], "capacity": room, "allocatable": room } });
        nodes.patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await?;
        Ok(())
    }

    /// From now on no pod of this node starts or ends.
    pub fn hold(&self, node: &str) {
        self.state.held.send_if_modified(|held| held.insert(node.to_owned()));
    }

    /// What was held goes on.
    pub fn release(&self, node: &str) {
        self.state.held.send_if_modified(|held| held.remove(node));
    }

    /// On which Mountpoint Pod each volume of a workload is mounted.
    pub fn mounts_of(&self, workload_uid: &str) -> BTreeMap<String, String> {
        lock(&self.state.mounts).of_workload(workload_uid)
    }
}

impl Drop for MountNodes {
    fn drop(&mut self) {
        // The tasks hold the state, and the state holds the tasks.
        lock(&self.state.tasks).abort_all();
    }
}
