//! A driver's node plugin is not ready: the node takes no new pods until it is, and nobody leaves it.

use bulkhead::api::names;
use bulkhead::api::node_fence::NodeFence;
use bulkhead_testbed::cluster::Cluster;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::fleet::{Lane, LaneOptions, SOON};
use super::look::event;

/// The node plugin of the lane's driver, as they all are; with this image.
fn plugin(lane: &Lane<'_>, image: &str) -> Value {
    let nodes: Vec<_> = lane.nodes.iter().map(|node| node.name()).collect();
    let host_path = |name: &str, path: String| json!({ "name": name, "hostPath": { "path": path } });
    let folder = "/var/lib/kubelet";
    let labels = json!({ "plugin": lane.name });
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": { "name": format!("{}-plugin", lane.name), "namespace": "default" },
        "spec": {
            "selector": { "matchLabels": labels },
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": 1 } },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "automountServiceAccountToken": false,
                    "tolerations": [{ "operator": "Exists" }],
                    "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{ "matchExpressions":
                            [{ "key": "kubernetes.io/hostname", "operator": "In", "values": nodes }] }],
                    } } },
                    "containers": [{ "name": "driver", "image": image }],
                    "volumes": [
                        host_path("registration", format!("{folder}/plugins_registry")),
                        host_path("socket", format!("{folder}/plugins/{}", lane.array().driver_name())),
                    ],
                },
            },
        },
    })
}

/// Waits until exactly these nodes of the lane have the taint.
async fn tainted(lane: &Lane<'_>, expected: &[&str]) -> Result<(), Failed> {
    let api: Api<Node> = Api::all(lane.client());
    let key = names::driver_down_taint(lane.array().driver_name());
    let look = async || {
        let mut found = Vec::new();
        for node in &lane.nodes {
            let taints = api.get(node.name()).await?.spec.and_then(|spec| spec.taints).unwrap_or_default();
            if taints.iter().any(|taint| taint.key == key && taint.effect == "NoSchedule") {
                found.push(node.name().to_owned());
            }
        }
        Ok(if found == expected { Ok(()) } else { Err(format!("{found:?}")) })
    };
    Ok(lane.cluster.wait(&format!("{key} on {expected:?}"), SOON, look).await?)
}

pub async fn new_pods_stay_away_while_it_is_down_and_nobody_leaves(cluster: &Cluster) -> Result<(), Failed> {
    // Podmon's own rule: any taint counts, and a plugin's would too.
    let policy =
        json!({ "triggers": { "driverPluginDown": "TaintNode" }, "detection": { "taints": [{ "key": "*" }] } });
    let lane = Lane::new(cluster, "plugged", LaneOptions { policy, ..LaneOptions::default() }).await?;
    let victim = lane.victim()?.name().to_owned();
    let set = lane.workload("db");
    lane.run(&set).await?;
    let before = lane.before(&set).await?;
    let down = plugin(&lane, &format!("crash-on/{victim}"));
    cluster.testbed.apply(vec![serde_json::from_value(down)?]).await?;
    tainted(&lane, &[&victim]).await?;
    event(cluster, "Node", &victim, "NodeTainted", "node plugin").await?;
    // It would rather be on the victim.
    let next = lane.workload("next");
    cluster.stateful_set_on(&[lane.array()], &next).await?;
    lane.moved(&next).await?;

    // A rolling upgrade to one that works.
    let api: Api<DaemonSet> = Api::default_namespaced(lane.client());
    let name = format!("{}-plugin", lane.name);
    let works =
        json!({ "spec": { "template": { "spec": { "containers": [{ "name": "driver", "image": "works" }] } } } });
    api.patch(&name, &PatchParams::default(), &Patch::Strategic(works)).await?;
    tainted(&lane, &[]).await?;
    event(cluster, "Node", &victim, "NodeUntainted", "taken back").await?;

    // And to one that fails, which is then removed for good.
    let fails = json!([{ "name": "driver", "image": format!("crash-on/{victim}") }]);
    let fails = json!({ "spec": { "template": { "spec": { "containers": fails } } } });
    api.patch(&name, &PatchParams::default(), &Patch::Strategic(fails)).await?;
    tainted(&lane, &[&victim]).await?;
    api.delete(&name, &DeleteParams::default()).await?;
    tainted(&lane, &[]).await?;
    let fences: Api<NodeFence> = Api::all(lane.client());
    assert!(fences.get_opt(&victim).await?.is_none(), "an incident was opened");
    lane.assert_untouched(&set, &before).await?;
    lane.end().await
}
