//! The call log: every gRPC call the array's driver got, so that tests can count them.

use std::sync::{Arc, Mutex};

use tonic::Code;

use crate::ledger::{Ledger, Stamp};
use crate::lock::lock;

/// The calls the driver answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "named as in CSI, and as csi-addons names its own")]
pub enum Method {
    GetPluginInfo,
    GetPluginCapabilities,
    Probe,
    ControllerGetCapabilities,
    CreateVolume,
    DeleteVolume,
    ControllerPublishVolume,
    ControllerUnpublishVolume,
    ValidateVolumeCapabilities,
    ListVolumes,
    ControllerGetVolume,
    ControllerListVolumeHealth,
    ControllerGetVolumeHealth,
    NodeGetInfo,
    NodeGetCapabilities,
    NodeStageVolume,
    NodeUnstageVolume,
    NodePublishVolume,
    NodeUnpublishVolume,
    NodeGetVolumeHealth,
    ValidateVolumeHostConnectivity,
    FenceClusterNetwork,
    UnfenceClusterNetwork,
    GetFenceClients,
}

impl Method {
    /// The driver asks the array's management to answer it.
    pub(super) fn needs_gateway(self) -> bool {
        matches!(
            self,
            Method::CreateVolume
                | Method::DeleteVolume
                | Method::ControllerPublishVolume
                | Method::ControllerUnpublishVolume
                | Method::ValidateVolumeCapabilities
                | Method::ListVolumes
                | Method::ControllerGetVolume
                | Method::ControllerListVolumeHealth
                | Method::ControllerGetVolumeHealth
                | Method::ValidateVolumeHostConnectivity
                | Method::FenceClusterNetwork
                | Method::UnfenceClusterNetwork
                | Method::GetFenceClients
        )
    }

    /// It changes the volume: two at once are not allowed.
    pub(super) fn is_exclusive(self) -> bool {
        matches!(
            self,
            Method::CreateVolume
                | Method::DeleteVolume
                | Method::ControllerPublishVolume
                | Method::ControllerUnpublishVolume
        )
    }
}

/// One call.
#[derive(Clone, Debug)]
pub struct Call {
    /// What was called.
    pub method: Method,
    /// The volume it is about; empty if none. The name for `CreateVolume`.
    pub volume: String,
    /// The CSI node id it is about; empty if none.
    pub node: String,
    /// When it came.
    pub at: Stamp,
    /// When it was answered, and how. `None` while it is under way, and for ever if the driver crashed.
    pub answer: Option<(Stamp, Code)>,
}

/// All calls of one array. Cheap to clone; all clones are the same log.
#[derive(Clone, Debug)]
pub struct CallLog {
    ledger: Ledger,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl CallLog {
    pub(super) fn new(ledger: Ledger) -> Self {
        let calls = Arc::default();
        CallLog { ledger, calls }
    }

    pub(super) fn begin(&self, method: Method, volume: &str, node: &str) -> usize {
        let mut calls = lock(&self.calls);
        calls.push(Call {
            method,
            volume: volume.to_owned(),
            node: node.to_owned(),
            at: self.ledger.now(),
            answer: None,
        });
        calls.len() - 1
    }

    pub(super) fn end(&self, call: usize, code: Code) {
        let now = self.ledger.now();
        if let Some(call) = lock(&self.calls).get_mut(call) {
            call.answer = Some((now, code));
        }
    }

    /// A copy of all calls, in the order in which they came.
    pub fn all(&self) -> Vec<Call> {
        lock(&self.calls).clone()
    }

    /// How many calls of `method` came.
    pub fn count(&self, method: Method) -> usize {
        let calls = lock(&self.calls);
        calls.iter().filter(|call| call.method == method).count()
    }
}
