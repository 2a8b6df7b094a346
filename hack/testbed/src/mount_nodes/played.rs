//! What workloads and Mountpoint Pods have in common: a view of the pod, its node, and the kubelet's words about it.

use std::net::Ipv4Addr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, ResourceExt};

use super::views::{PodView, State, until};
use crate::nodes::status::{self, Stage};

/// Nobody calls these addresses.
const HOST: &str = "172.16.0.1";
const POD: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 1);

/// A pod on a played node.
pub(super) struct Played {
    pub state: Arc<State>,
    pub view: PodView,
    pub node: String,
    pub name: String,
    pub uid: String,
    pods: Api<Pod>,
}

impl Played {
    pub fn new(state: Arc<State>, pod: &Pod, node: String, view: PodView) -> Self {
        let pods = Api::namespaced(state.client.clone(), &pod.namespace().unwrap_or_default());
        Self { pods, name: pod.name_any(), uid: pod.uid().unwrap_or_default(), state, view, node }
    }

    /// The pod as the API has it; `None` when it is gone.
    pub fn pod(&self) -> Option<Arc<Pod>> {
        self.view.borrow().clone()
    }

    /// Waits until the API shows this.
    pub async fn wait_for(&self, holds: impl Fn(Option<&Pod>) -> bool) {
        until(self.view.clone(), |pod| holds(pod.as_deref())).await;
    }

    /// Waits until its containers must not run any more.
    pub async fn must_end(&self) {
        self.wait_for(|pod| pod.is_none_or(status::must_end)).await;
    }

    pub fn is_final(&self) -> bool {
        self.pod().as_deref().is_none_or(status::is_final)
    }

    pub async fn report(&self, stage: Stage) {
        let Some(pod) = self.pod() else { return };
        let patch = status::patch(&pod, stage, HOST, POD, 0);
        let reported = self.pods.patch_status(&self.name, &PatchParams::default(), &Patch::Strategic(&patch)).await;
        match reported {
            // It is gone, or another one has its name: the watch will tell.
            Err(kube::Error::Api(gone)) if matches!(gone.code, 404 | 409) => {}
            Err(error) => tracing::error!(%error, pod = self.name, "its status is refused"),
            Ok(_) => {}
        }
    }

    /// The last thing that a kubelet does with a pod that was deleted.
    pub async fn delete(&self) {
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: Some(self.uid.clone()), ..Preconditions::default() }),
            ..DeleteParams::default()
        };
        if let Err(error) = self.pods.delete(&self.name, &params).await {
            tracing::debug!(%error, pod = self.name, "it is gone already");
        }
    }
}
