//! What of Bulkhead there is in a cluster: every object of every kind that says its names, and what is on the nodes.

use bulkhead_testbed::cluster::ClusterError;
use bulkhead_testbed::cluster::real::RealCluster;
use kube::api::{DynamicObject, ListParams};
use kube::discovery::{ApiGroup, Discovery, verbs};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

/// What names of ours have in them, those of the S3 driver too.
const OURS: [&str; 4] = ["bulkhead", "s3.csi.scality.com", "mount-s3", "s3-csi"];

/// The kubelet's folders of plugins, and where something is mounted.
const ON_NODE: &str =
    "ls -d /var/lib/kubelet/plugins/* /var/lib/kubelet/plugins_registry/*; cut -d' ' -f5 /proc/self/mountinfo";

/// The objects that are ours or say anything of ours: in a name, a label, an annotation, a finalizer, a taint, a reference.
pub async fn in_the_api(cluster: &RealCluster) -> Result<Vec<String>, ClusterError> {
    let discovery = Discovery::new(cluster.client.clone()).run().await?;
    let mut found = Vec::new();
    for (resource, capabilities) in discovery.groups().flat_map(ApiGroup::recommended_resources) {
        // An Event tells of what was, and goes by itself.
        if resource.kind == "Event" || !capabilities.supports_operation(verbs::LIST) {
            continue;
        }
        let api: Api<DynamicObject> = Api::all_with(cluster.client.clone(), &resource);
        for object in api.list(&ListParams::default()).await? {
            // So does an earlier state of a Deployment that had our sidecar, when there are enough later ones.
            if resource.kind == "ReplicaSet" && object.data.pointer("/spec/replicas") == Some(&json!(0)) {
                continue;
            }
            let name = format!("{} {}/{}", resource.kind, object.namespace().unwrap_or_default(), object.name_any());
            found.extend(names_us(cluster, &said(object)?).then_some(name));
        }
    }
    Ok(found)
}

/// An object without what the API server and the kubelet note in it: who wrote it, and which images a node has.
fn said(mut object: DynamicObject) -> Result<String, serde_json::Error> {
    object.metadata.managed_fields = None;
    if let Some(status) = object.data.pointer_mut("/status").and_then(Value::as_object_mut) {
        status.remove("images");
    }
    serde_json::to_string(&object)
}

/// The paths on a node with our names.
pub async fn on_node(cluster: &RealCluster, node: &str) -> Result<Vec<String>, ClusterError> {
    let output = cluster.node(node)?.exec(&["sh", "-c", ON_NODE]).await?;
    let paths = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(paths.lines().filter(|path| names_us(cluster, path)).map(str::to_owned).collect())
}

/// The array's driver, which is not ours, has a name that looks like it.
fn names_us(cluster: &RealCluster, text: &str) -> bool {
    let driver = cluster.array.driver_name();
    let text = text.replace(driver, "").replace(&driver.replace('.', "-"), "");
    OURS.iter().any(|name| text.contains(name))
}
