//! Simulated nodes on a real control plane with the real attacher.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test says what it expects by panicking")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead_testbed::array::{Array, ArrayOptions, Claim};
use bulkhead_testbed::nodes::{KwokHeartbeat, NodeOptions, SimulatedNode, SimulatedNodes};
use bulkhead_testbed::process::Process;
use bulkhead_testbed::{AttacherOptions, Identity, KwokOptions, Testbed, TestbedOptions, oracle};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(30);

struct Bed {
    client: Client,
    nodes: SimulatedNodes,
    array: Arc<Array>,
    testbed: Arc<Testbed>,
    _attacher: Process,
    _folder: TempDir,
}

impl Bed {
    async fn new() -> Self {
        let testbed = Arc::new(Testbed::start(TestbedOptions::fast_nodes()).await.unwrap());
        let folder = tempfile::tempdir().unwrap();
        let array = Arc::new(Array::start(folder.path(), ArrayOptions::default()).unwrap());
        let attacher = testbed.start_attacher("array", array.csi_socket(), &AttacherOptions::default()).unwrap();
        let client = testbed.client(&Identity::TestbedNodes).await.unwrap();
        array.install(&client).await.unwrap();
        let heartbeat = Arc::new(KwokHeartbeat::new(testbed.clone(), KwokOptions::fast()));
        let nodes = SimulatedNodes::new(client.clone(), [array.clone()], heartbeat, NodeOptions::default());
        Bed { client, nodes, array, testbed, _attacher: attacher, _folder: folder }
    }

    /// A pod on a node, with the volume of a claim if one is named.
    async fn pod(&self, name: &str, node: &SimulatedNode, claim: Option<&str>) {
        let volumes = claim.map(|claim| json!([{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }]));
        let pod = json!({
            "metadata": { "name": name },
            "spec": {
                "nodeName": node.name(),
                "automountServiceAccountToken": false,
                "containers": [{ "name": "main", "image": "app" }],
                "volumes": volumes,
            },
        });
        let pods: Api<Pod> = Api::default_namespaced(self.client.clone());
        let pod: Pod = serde_json::from_value(pod).unwrap();
        // The default ServiceAccount comes a moment after its namespace.
        let deadline = Instant::now() + SOON;
        while let Err(error) = pods.create(&PostParams::default(), &pod).await {
            assert!(Instant::now() < deadline, "{error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn get_pod(&self, name: &str) -> Option<Pod> {
        let pods: Api<Pod> = Api::default_namespaced(self.client.clone());
        pods.get_opt(name).await.unwrap()
    }

    async fn delete_pod(&self, name: &str, grace: Option<u32>) {
        let pods: Api<Pod> = Api::default_namespaced(self.client.clone());
        let params = DeleteParams { grace_period_seconds: grace, ..DeleteParams::default() };
        pods.delete(name, &params).await.unwrap();
    }

    async fn wait_ready(&self, name: &str) -> Pod {
        self.wait(&format!("pod {name} is Ready"), async || self.get_pod(name).await.filter(is_ready)).await
    }

    async fn wait_gone(&self, name: &str) {
        self.wait(&format!("pod {name} is gone"), async || self.get_pod(name).await.is_none().then_some(())).await;
    }

    async fn wait<T>(&self, what: &str, look: impl AsyncFn() -> Option<T>) -> T {
        let deadline = Instant::now() + SOON;
        loop {
            if let Some(found) = look().await {
                return found;
            }
            if Instant::now() >= deadline {
                let state = self.testbed.kubectl(&["get", "nodes,pods,pvc,volumeattachments", "-o", "wide"]);
                panic!("not within {SOON:?}: {what}\n{}", state.await.unwrap());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn node(&self, name: &str) -> Node {
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.get(name).await.unwrap()
    }

    async fn attachments(&self) -> usize {
        let attachments: Api<VolumeAttachment> = Api::all(self.client.clone());
        let all = attachments.list(&Default::default()).await.unwrap();
        all.items.len()
    }

    /// Waits for a write that is accepted from now on.
    async fn wait_write(&self, volume: &str, node: &SimulatedNode) {
        let ledger = self.array.ledger();
        let now = ledger.now();
        ledger.wait_for_write(volume, node.csi_node_id(), now, SOON).await.unwrap();
    }

    /// Waits until nobody even tries to write.
    async fn wait_no_writer(&self) {
        self.wait("the writers end", async || {
            let tries = || self.array.ledger().read(<[_]>::len);
            let before = tries();
            // Ten times the interval of a writer.
            tokio::time::sleep(Duration::from_millis(200)).await;
            (tries() == before).then_some(())
        })
        .await;
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    statuses.unwrap().iter().map(|status| status.restart_count).sum()
}

fn boot_id(node: &Node) -> String {
    let status = node.status.as_ref().unwrap();
    status.node_info.as_ref().unwrap().boot_id.clone()
}

fn in_use(node: &Node) -> Vec<String> {
    let status = node.status.as_ref().unwrap();
    status.volumes_in_use.clone().unwrap_or_default()
}

/// A dead node's writers go on until the array cuts them off; a node that returns ends what the API no longer has.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_node_writes_on_until_it_is_fenced_and_cleans_up_when_it_returns() {
    let bed = Bed::new().await;
    let node = bed.nodes.add("n1").await.unwrap();
    let volume = bed.array.claim(&bed.client, &Claim::new("default", "data-0")).await.unwrap();
    bed.pod("web-0", &node, Some("data-0")).await;
    bed.pod("plain", &node, None).await;
    let ready = bed.wait_ready("web-0").await;
    bed.wait_ready("plain").await;
    assert_eq!(ready.status.as_ref().unwrap().phase.as_deref(), Some("Running"));
    let unique = format!("kubernetes.io/csi/{}^{volume}", bed.array.driver_name());
    assert_eq!(in_use(&bed.node("n1").await), [unique]);
    bed.wait_write(&volume, &node).await;

    node.kill().await;
    bed.wait_write(&volume, &node).await;
    bed.wait("the node is Ready=Unknown", async || {
        let status = bed.node("n1").await.status?;
        let mut conditions = status.conditions?.into_iter();
        conditions.find(|condition| condition.type_ == "Ready" && condition.status == "Unknown")
    })
    .await;
    bed.wait_write(&volume, &node).await;

    // The fence, past the attacher: the writer tries on and is refused.
    let mut controller = bulkhead::csi::v1::controller_client::ControllerClient::new(
        bulkhead::csi::client::connect(bed.array.csi_socket().to_str().unwrap()).unwrap(),
    );
    let unpublish = bulkhead::csi::v1::ControllerUnpublishVolumeRequest {
        volume_id: volume.clone(),
        node_id: node.csi_node_id().to_owned(),
        ..Default::default()
    };
    controller.controller_unpublish_volume(unpublish).await.unwrap();
    let fenced = bed.array.ledger().now();
    bed.wait("a refused write", async || {
        let refused = bed.array.ledger().refused_writes(&volume, node.csi_node_id(), fenced);
        (refused > 0).then_some(())
    })
    .await;
    assert_eq!(bed.array.ledger().writes(&volume, node.csi_node_id(), fenced), 0);

    // Gone from the API only: the dead node does not know, and does nothing about it.
    bed.delete_pod("web-0", Some(0)).await;
    bed.delete_pod("plain", None).await;
    bed.wait_gone("web-0").await;
    let later = bed.array.ledger().now();
    bed.wait("the writer still tries", async || {
        let refused = bed.array.ledger().refused_writes(&volume, node.csi_node_id(), later);
        (refused > 0).then_some(())
    })
    .await;
    assert!(bed.get_pod("plain").await.is_some(), "only its kubelet ends a graceful delete");

    let boot = node.boot_id();
    node.revive().await.unwrap();
    bed.wait_no_writer().await;
    bed.wait_gone("plain").await;
    bed.wait("nothing in use", async || in_use(&bed.node("n1").await).is_empty().then_some(())).await;
    bed.wait("nothing attached", async || (bed.attachments().await == 0).then_some(())).await;
    assert_eq!(boot_id(&bed.node("n1").await), boot);
    assert!(oracle::judge(bed.array.ledger()).is_clean());
}

/// A pod that still exists survives its node's short absence, and starts anew after a reboot.
#[tokio::test(flavor = "multi_thread")]
async fn pods_survive_a_blip_move_gracefully_and_start_again_after_a_reboot() {
    let bed = Bed::new().await;
    let a = bed.nodes.add("a").await.unwrap();
    let b = bed.nodes.add("b").await.unwrap();
    let volume = bed.array.claim(&bed.client, &Claim::new("default", "data-0")).await.unwrap();
    bed.pod("web-0", &a, Some("data-0")).await;
    let first = bed.wait_ready("web-0").await;

    a.kill().await;
    a.revive().await.unwrap();
    bed.wait_write(&volume, &a).await;
    assert_eq!(bed.get_pod("web-0").await.unwrap().uid(), first.uid());

    let boot = a.boot_id();
    a.power_off().await;
    bed.wait_no_writer().await;
    a.revive().await.unwrap();
    assert_ne!(a.boot_id(), boot);
    bed.wait_write(&volume, &a).await;
    let again = bed
        .wait("it is Ready again", async || {
            bed.get_pod("web-0").await.filter(|pod| is_ready(pod) && restarts(pod) == 1)
        })
        .await;
    assert_eq!(again.uid(), first.uid());
    assert_eq!(boot_id(&bed.node("a").await), a.boot_id());

    bed.delete_pod("web-0", None).await;
    bed.wait_gone("web-0").await;
    bed.pod("web-0", &b, Some("data-0")).await;
    bed.wait_ready("web-0").await;
    bed.wait_write(&volume, &b).await;
    assert_eq!(bed.array.published_nodes(&volume), [b.csi_node_id()]);
    let verdict = oracle::judge(bed.array.ledger());
    assert!(verdict.is_clean() && verdict.overlaps.is_empty(), "{verdict}");

    b.freeze_writers();
    bed.wait_no_writer().await;
    b.thaw_writers();
    bed.wait_write(&volume, &b).await;
}
