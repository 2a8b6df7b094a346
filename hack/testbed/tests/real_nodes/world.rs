//! A testbed with two real nodes, their pods, and what can be seen of them.

use std::fs;
use std::future::Future;
use std::process::Output;
use std::time::{Duration, Instant};

use bulkhead_testbed::binaries::Program;
use bulkhead_testbed::image::{ImageFile, ImageSpec};
use bulkhead_testbed::real_nodes::{NodeNetwork, RealNode, RealNodeOptions, RealNodes, busybox};
use bulkhead_testbed::{Identity, Testbed, TestbedOptions};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use serde_json::json;

const IMAGE: &str = "testbed-busybox:latest";
const KUBECTL_IMAGE: &str = "testbed-kubectl:latest";
/// A loaded machine needs more than the usual seconds.
const LIMIT: u64 = 120;

/// Polls until `check` says yes.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut check: impl FnMut() -> F) {
    let deadline = Instant::now() + Duration::from_secs(LIMIT);
    while !check().await {
        assert!(Instant::now() < deadline, "not within {LIMIT} s: {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A testbed with two real nodes.
pub struct World {
    // Dropped in this order.
    pub nodes: RealNodes,
    pub one: RealNode,
    pub two: RealNode,
    pub client: Client,
    pub testbed: Testbed,
}

impl World {
    pub async fn start() -> Self {
        let network = NodeNetwork::create().await.unwrap();
        let advertise_address = Some(network.host_control_address());
        let options = TestbedOptions { advertise_address, ..TestbedOptions::fast_nodes() };
        let testbed = Testbed::start(options).await.unwrap();
        let nodes = RealNodes::start(&testbed, network, RealNodeOptions::fast()).await.unwrap();
        let started = Instant::now();
        let (one, two) = tokio::join!(nodes.add(&testbed, "node-1"), nodes.add(&testbed, "node-2"));
        let (one, two) = (one.unwrap(), two.unwrap());
        assert!(started.elapsed() < Duration::from_secs(20), "two nodes were Ready after {:?}", started.elapsed());
        let plain = busybox(IMAGE, &["sleep", "infinity"]);
        let mut kubectl = ImageSpec { name: KUBECTL_IMAGE.to_owned(), ..plain.clone() };
        let program = testbed.binaries().path(Program::Kubectl);
        kubectl.files.push(ImageFile { source: program, path: "/kubectl".into(), mode: 0o755 });
        // The C library that kubectl needs is its node's.
        kubectl.links.extend(["lib", "lib64"].map(|name| (format!("/{name}"), format!("usr/{name}"))));
        for image in [plain, kubectl] {
            let archive = testbed.folder().join("image.tar");
            image.write(&archive).unwrap();
            one.import_image(&archive).await.unwrap();
            two.import_image(&archive).await.unwrap();
        }
        let client = testbed.client(&Identity::Admin).await.unwrap();
        Self { nodes, one, two, client, testbed }
    }

    /// A pod on this node that counts in `/data/NAME` of the node's disk and serves its own name on port 8080.
    pub async fn counting_pod(&self, node: &RealNode, name: &str) {
        let script = format!(
            "echo here is {name}; mkdir -p /www; echo {name} >/www/index.html; busybox httpd -p 8080 -h /www; \
             i=0; while :; do i=$((i + 1)); echo $i >/data/{name}; sleep 0.1; done"
        );
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {
                "nodeName": node.name(),
                "tolerations": [{"operator": "Exists"}],
                "containers": [{
                    "name": "counter", "image": IMAGE, "imagePullPolicy": "Never",
                    "command": ["/bin/sh", "-c", script],
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }],
                "volumes": [{"name": "data", "hostPath": {"path": "/data", "type": "DirectoryOrCreate"}}],
            },
        });
        self.apply(&pod).await;
        eventually(&format!("{name} counts"), || async { count(node, name) > 0 }).await;
    }

    /// A pod on this node that has kubectl and waits.
    pub async fn asking_pod(&self, node: &RealNode, name: &str) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "nodeName": node.name(),
                "containers": [{
                    "name": "kubectl", "image": KUBECTL_IMAGE, "imagePullPolicy": "Never",
                    "volumeMounts": [{"name": "usr", "mountPath": "/usr", "readOnly": true}],
                }],
                "volumes": [{"name": "usr", "hostPath": {"path": "/usr"}}],
            },
        });
        self.apply(&pod).await;
    }

    async fn apply(&self, object: &serde_json::Value) {
        let path = self.testbed.folder().join("apply.json");
        fs::write(&path, object.to_string()).unwrap();
        self.testbed.kubectl(&["apply", "-f", path.to_str().unwrap()]).await.unwrap();
    }

    pub async fn node(&self, node: &RealNode) -> Node {
        Api::all(self.client.clone()).get(node.name()).await.unwrap()
    }

    /// What a shell in a pod prints. While its kubelet is just starting, that is waited for.
    pub async fn shell(&self, pod: &str, script: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(LIMIT);
        loop {
            match self.testbed.kubectl(&["exec", pod, "--", "/bin/sh", "-c", script]).await {
                Ok(text) => return text,
                Err(error) => assert!(Instant::now() < deadline, "not within {LIMIT} s: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    pub async fn ready_is(&self, node: &RealNode, status: &str) {
        eventually(&format!("{} is Ready={status}", node.name()), || async {
            let conditions = self.node(node).await.status.unwrap_or_default().conditions.unwrap_or_default();
            conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == status)
        })
        .await;
    }
}

/// How far the pod has counted on its node's disk.
fn count(node: &RealNode, pod: &str) -> u64 {
    let text = fs::read_to_string(node.disk().join("data").join(pod)).unwrap_or_default();
    text.trim().parse().unwrap_or_default()
}

/// What a program that succeeded printed.
pub fn printed(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

pub async fn counts_on(node: &RealNode, pod: &str) {
    let before = count(node, pod);
    eventually(&format!("{pod} counts on"), || async { count(node, pod) > before }).await;
}

/// Whether the pod's count stands still for a second.
pub async fn stands_still(node: &RealNode, pod: &str) -> bool {
    let before = count(node, pod);
    tokio::time::sleep(Duration::from_secs(1)).await;
    count(node, pod) == before
}

pub async fn pings(node: &RealNode, address: std::net::Ipv4Addr) -> bool {
    let address = address.to_string();
    let argv = ["busybox", "ping", "-c", "1", "-W", "1", &address];
    node.exec(&argv).await.unwrap().status.success()
}
