//! What a network fence does next.

mod edited;
mod holding;
mod identity;
mod left;
mod lifting;
mod making;
mod round;
mod sharing;

use std::collections::BTreeSet;
use std::sync::Arc;

use chrono::DateTime;
use serde_json::{Value, json};

use crate::api::driver_report::{KnownBy, NetworkFenceClients};
use crate::api::fence_request::{FenceRequest, SHUT_OUT};
use crate::api::names;
use crate::api::network_fence::{CsiAddonsNode, FenceState, NetworkFence, NetworkFenceClass};
use crate::api::slim::network::{NodeAddresses, ReportedAddresses};

use super::addresses::Around;
use super::decide::{Seen, Step, fence, holds, others};
use super::lift::give_back;

const DRIVER: &str = "csi.file.example.com";
const CLASS: &str = "file-fence";
const NAMESPACE: &str = "csi-file";

fn request(uid: &str, node: &str, desired: &str, addresses: &[&str]) -> FenceRequest {
    let mut request: FenceRequest = serde_json::from_value(json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "FenceRequest",
        "metadata": { "name": format!("{node}-1"), "uid": uid },
        "spec": {
            "fencerName": DRIVER, "nodeName": node, "episode": 1, "desired": desired, "callTimeout": "5s",
            "node": { "uid": format!("uid-{node}"), "bootID": "boot-1", "addresses": addresses },
            "volumes": [{
                "episode": 1, "name": "v", "round": 1, "volumeHandle": "h", "nodeID": format!("id-{node}"),
                "minimumProof": "Acknowledged", "methods": [{ "type": "NetworkFence", "className": CLASS }],
            }],
        },
        "status": {
            "conditions": [{
                "type": SHUT_OUT, "status": "True", "reason": "NetworkFence", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
            "volumes": [{
                "episode": 1, "name": "v", "round": 1, "result": "Fenced", "proof": "Acknowledged",
                "method": "NetworkFence", "startedAt": "2026-01-01T00:00:00Z",
            }],
        },
    }))
    .unwrap();
    request.metadata.resource_version = Some("1".into());
    request
}

fn node(name: &str, uid: &str, address: &str) -> NodeAddresses {
    serde_json::from_value(json!({
        "metadata": { "name": name, "uid": uid },
        "status": { "addresses": [{ "type": "InternalIP", "address": address }], "nodeInfo": { "bootID": "boot-1" } },
    }))
    .unwrap()
}

fn report(name: &str, addresses: &[&str]) -> ReportedAddresses {
    let status = json!({ "nodeUID": format!("uid-{name}"), "addresses": addresses });
    serde_json::from_value(json!({ "metadata": { "name": name }, "status": status })).unwrap()
}

fn client(node: &str, cidrs: &[&str]) -> CsiAddonsNode {
    serde_json::from_value(json!({
        "metadata": { "name": node, "namespace": NAMESPACE },
        "spec": { "driver": { "name": DRIVER, "nodeID": node } },
        "status": { "networkFenceClientStatus": [
            { "networkFenceClassName": CLASS, "ClientDetails": [{ "id": node, "cidrs": cidrs }] },
        ] },
    }))
    .unwrap()
}

/// What the driver said of a node while it was well.
fn on_record(node: &str, uid: &str, addresses: &[&str]) -> NetworkFenceClients {
    let addresses = addresses.iter().map(|address| (*address).to_owned()).collect();
    let known_by = Some(KnownBy::OtherAddress);
    NetworkFenceClients { class_name: CLASS.into(), node: node.into(), node_uid: uid.into(), addresses, known_by }
}

/// A fence of somebody with these labels.
fn of(name: &str, state: &str, cidr: &str, labels: Value) -> NetworkFence {
    serde_json::from_value(json!({
        "apiVersion": "csiaddons.openshift.io/v1alpha1", "kind": "NetworkFence",
        "metadata": { "name": name, "uid": name, "resourceVersion": "1", "labels": labels },
        "spec": { "networkFenceClassName": CLASS, "fenceState": state, "cidrs": [cidr] },
    }))
    .unwrap()
}

/// The class, with this parameter clusterID.
fn class_of(cluster: Option<&str>) -> Option<NetworkFenceClass> {
    let parameters = cluster.map(|id| json!({ "clusterID": id }));
    let spec = json!({ "provisioner": DRIVER, "parameters": parameters });
    serde_json::from_value(json!({ "metadata": { "name": CLASS }, "spec": spec })).ok()
}

fn foreign(state: &str, cidr: &str) -> NetworkFence {
    of("foreign", state, cidr, json!({}))
}

fn with_result(mut fence: NetworkFence, result: &str, message: &str) -> NetworkFence {
    fence.status = serde_json::from_value(json!({ "result": result, "message": message })).unwrap();
    fence
}

struct World(Seen);

impl World {
    fn new(desired: &str) -> Self {
        let around = Around {
            class: class_of(None),
            nodes: vec![node("n1", "uid-n1", "10.0.0.1"), node("n2", "uid-n2", "10.0.0.2")],
            reports: vec![report("n1", &["10.0.0.1", "10.9.0.1"]), report("n2", &["10.0.0.2"])],
            record: Vec::new(),
            clients: Vec::new(),
            namespace: NAMESPACE.into(),
        };
        let request = Arc::new(request("r1", "n1", desired, &["10.0.0.1", "10.9.0.1"]));
        Self(Seen {
            request: request.clone(),
            driver: DRIVER.into(),
            class: CLASS.into(),
            class_uid: String::new(),
            class_made: None,
            cluster: None,
            round: 3,
            fences: Vec::new(),
            requests: vec![request],
            classes: class_of(None).into_iter().collect(),
            around: Some(around),
            now: DateTime::from_timestamp(1_800_000_000, 0).unwrap(),
        })
    }

    fn around(&mut self) -> &mut Around {
        self.0.around.as_mut().unwrap()
    }

    /// The fence that is made, as csi-addons would see it.
    fn made(&self) -> NetworkFence {
        let Step::Create(mut made) = fence(&self.0) else { panic!("{:?}", fence(&self.0)) };
        made.metadata.uid = Some("made".into());
        made.metadata.resource_version = Some("1".into());
        *made
    }

    /// The first of the fences is marked as one whose result does not count any more.
    fn marks(&mut self) {
        let Step::Replace(marked) = fence(&self.0) else { panic!("{:?}", fence(&self.0)) };
        assert!(marked.metadata.annotations.as_ref().unwrap().contains_key(names::ANNOUNCED_ANNOTATION));
        let status = self.0.fences[0].status.take();
        self.0.fences[0] = NetworkFence { status, ..*marked };
    }

    /// Why it is waited for, or cannot be.
    fn code(&self, step: fn(&Seen) -> Step) -> &'static str {
        match step(&self.0) {
            Step::Wait(failure) | Step::Stop(failure) => failure.code,
            other => panic!("{other:?}"),
        }
    }
}

/// A fence of the request that holds.
fn holding() -> NetworkFence {
    with_result(World::new("Fenced").made(), "Succeeded", "fencing operation successful")
}
