//! The driver from its manifests and images on real nodes: registered by real kubelets, mounted into real containers.

use std::path::Path;
use std::time::{Duration, Instant};

use bulkhead_testbed::array::{Array, ArrayOptions};
use bulkhead_testbed::csi_driver::manifests::Deployment;
use bulkhead_testbed::images;
use bulkhead_testbed::ledger::{Event, Stamp};
use bulkhead_testbed::real_nodes::{NodeNetwork, RealNode, RealNodeOptions, RealNodes};
use bulkhead_testbed::{Identity, Testbed, TestbedOptions, oracle};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::bed::DRIVER;

/// Longer than two nodes of a busy machine need to start all of the driver.
const LIMIT: Duration = Duration::from_secs(180);

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

struct World {
    // Dropped in this order.
    nodes: RealNodes,
    array: Array,
    client: Client,
    testbed: Testbed,
    _folder: TempDir,
}

impl World {
    async fn start() -> Self {
        let programs = Path::new(DRIVER).parent().unwrap();
        let built = tokio::task::spawn_blocking(move || images::ensure(programs, &images::folder(programs)));
        let archives = built.await.unwrap().unwrap();
        let network = NodeNetwork::create().await.unwrap();
        let advertise_address = Some(network.host_control_address());
        let options = TestbedOptions { advertise_address, ..TestbedOptions::fast_nodes() };
        let testbed = Testbed::start(options).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let array = Array::start(folder.path(), ArrayOptions::default()).unwrap();
        let management = array.serve_management((network.host_control_address(), 0).into()).unwrap();
        let io = array.serve_io((network.host_storage_address(), 0).into()).unwrap();
        let nodes = RealNodes::start(&testbed, network, RealNodeOptions::fast()).await.unwrap();
        let (one, two) = tokio::join!(nodes.add(&testbed, "node-1"), nodes.add(&testbed, "node-2"));
        for node in [one.unwrap(), two.unwrap()] {
            array.add_node(node.name());
            for archive in &archives {
                node.import_image(archive).await.unwrap();
            }
        }
        let client = testbed.client(&Identity::Admin).await.unwrap();
        let world = World { nodes, array, client, testbed, _folder: folder };
        world.deploy(&Deployment::new(management, io)).await;
        world
    }

    async fn deploy(&self, deployment: &Deployment) {
        for folder in ["config/crd", "config/policies"] {
            self.testbed.apply_dir(&Path::new(ROOT).join(folder)).await.unwrap();
        }
        self.testbed.kubectl(&["create", "namespace", "bulkhead-system"]).await.unwrap();
        let files = self.testbed.kubectl(&["kustomize", &Deployment::folder().to_string_lossy()]).await.unwrap();
        let rendered = self._folder.path().join("manifests");
        std::fs::create_dir(&rendered).unwrap();
        std::fs::write(rendered.join("all.yaml"), deployment.render(&files)).unwrap();
        self.testbed.apply_dir(&rendered).await.unwrap();
    }

    fn node(&self, name: &str) -> RealNode {
        self.nodes.node(name).unwrap()
    }

    fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }

    /// Starts two writers on the node, one with a file system and one with a raw block device, and returns their uids.
    async fn writers(&self, node: &str) -> [String; 2] {
        let mut uids = Vec::new();
        for pod in [writer("files", node), writer("block", node)] {
            let pod = self.pods().create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
            uids.push(pod.metadata.uid.unwrap());
        }
        uids.try_into().unwrap()
    }

    async fn handle(&self, claim: &str) -> String {
        let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(self.client.clone());
        let volume = claims.get(claim).await.unwrap().spec.unwrap().volume_name.unwrap();
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        volumes.get(&volume).await.unwrap().spec.unwrap().csi.unwrap().volume_handle
    }

    /// Polls until `look` is true; shows what the cluster looks like, else.
    async fn eventually<F: Future<Output = bool>>(&self, what: &str, mut look: impl FnMut() -> F) {
        let deadline = Instant::now() + LIMIT;
        while !look().await {
            if Instant::now() > deadline {
                for args in [&["get", "pods,pvc,volumeattachments,events", "-A"][..], &["describe", "pods", "-A"]] {
                    eprintln!("{}", self.testbed.kubectl(args).await.unwrap());
                }
                panic!("not within {LIMIT:?}: {what}");
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn has_log(&self, pod: &str, text: &str) -> bool {
        self.testbed.kubectl(&["logs", pod]).await.is_ok_and(|log| log.contains(text))
    }

    /// Deletes the writers and waits until they are gone and nothing of them is attached, or left on the node: a
    /// volume is detached before its pod's object goes, and the next writers have the same names.
    async fn cleaned(&self, node: &str) {
        for pod in ["files", "block"] {
            self.pods().delete(pod, &DeleteParams::default()).await.unwrap();
        }
        let attachments: Api<VolumeAttachment> = Api::all(self.client.clone());
        self.eventually("nothing is left, mounted or attached any more", || async {
            let pods = self.pods().list(&ListParams::default()).await.unwrap().items;
            let attached = attachments.list(&ListParams::default()).await.unwrap().items;
            pods.is_empty() && attached.is_empty() && self.mounts(node).await.is_empty()
        })
        .await;
    }

    /// What of the driver's is mounted on the node.
    async fn mounts(&self, node: &str) -> String {
        let table = self.node(node).exec(&["cat", "/proc/mounts"]).await.unwrap();
        let table = String::from_utf8_lossy(&table.stdout).into_owned();
        let ours = |line: &&str| line.contains("fuse.bulkhead-testbed") || line.contains("volumeDevices");
        table.lines().filter(ours).collect::<Vec<_>>().join("\n")
    }
}

fn claim(name: &str, mode: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "array.testbed.bulkhead.dev",
            "volumeMode": mode,
            "resources": { "requests": { "storage": "16Mi" } },
        },
    })
}

fn writer(claim: &str, node: &str) -> Value {
    let mut container = json!({ "name": "writer", "image": "testbed-writer:latest", "imagePullPolicy": "Never" });
    let (kind, place, arg) = match claim {
        "block" => ("volumeDevices", json!([{ "name": "data", "devicePath": "/disk" }]), "--device=/disk"),
        _ => ("volumeMounts", json!([{ "name": "data", "mountPath": "/data" }]), "--journal=/data/journal"),
    };
    container[kind] = place;
    container["args"] = json!([arg, "--every=100ms"]);
    json!({
        "metadata": { "name": claim },
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 5,
            "containers": [container],
            "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }],
        },
    })
}

pub async fn containers_of_real_nodes_write_move_and_are_cut_off() {
    let world = World::start().await;
    let csi_nodes: Api<CSINode> = Api::all(world.client.clone());
    for node in ["node-1", "node-2"] {
        world
            .eventually("the driver is registered", || async {
                csi_nodes.get(node).await.is_ok_and(|node| !node.spec.drivers.is_empty())
            })
            .await;
    }
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(world.client.clone());
    for claim in [claim("files", "Filesystem"), claim("block", "Block")] {
        claims.create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
    }
    let [files_uid, _] = world.writers("node-1").await;
    for pod in ["files", "block"] {
        world.eventually("a writer writes", || world.has_log(pod, "wrote 5")).await;
    }
    let ledger = world.array.ledger();
    let (files, block) = (world.handle("files").await, world.handle("block").await);
    let tagged = |volume: &str, wanted: &str| {
        ledger.read(|entries| {
            let writes = entries.iter().filter(|entry| &*entry.volume == volume && &*entry.node == "node-1");
            writes.filter(|entry| matches!(&entry.event, Event::Wrote { tag, .. } if &**tag == wanted)).count()
        })
    };
    assert!(tagged(&files, &files_uid) >= 5, "{:?}", ledger.entries());
    assert!(tagged(&block, "kernel") > 0, "{:?}", ledger.entries());

    // As an attacher does on a detach: the containers go on, and are refused.
    let csi = bulkhead::csi::client::connect(world.array.csi_socket().to_str().unwrap()).unwrap();
    let mut controller = bulkhead::csi::v1::controller_client::ControllerClient::new(csi);
    for volume in [&files, &block] {
        let request = bulkhead::csi::v1::ControllerUnpublishVolumeRequest {
            volume_id: volume.clone(),
            node_id: "node-1".to_owned(),
            ..Default::default()
        };
        controller.controller_unpublish_volume(request).await.unwrap();
    }
    for pod in ["files", "block"] {
        world.eventually("a writer is refused", || world.has_log(pod, "refused")).await;
    }

    world.cleaned("node-1").await;
    world.writers("node-2").await;
    for pod in ["files", "block"] {
        world.eventually("its data is found", || world.has_log(pod, "opened records=")).await;
        assert!(!world.has_log(pod, "opened records=0").await);
    }
    world.eventually("it is written to", || async { ledger.writes(&files, "node-2", Stamp::START) > 5 }).await;
    let verdict = oracle::judge(ledger);
    assert!(verdict.is_clean(), "{verdict}");
    world.cleaned("node-2").await;
}
