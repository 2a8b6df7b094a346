//! The S3 driver's manifests on a server: taken as they are, and what they let nobody do.

use bulkhead::api::s3::{AGENT_NOT_READY_TAINT, MOUNTPOINT_NAMESPACE};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::Outcome;
use super::admission::{comes_to_deny, denied};
use super::agent::with_token_of;
use super::rights::may;
use super::world::{World, root};

/// The node service's ServiceAccount, and the provisioner's.
const NODE_SERVICE: (&str, &str) = ("kube-system", "s3-csi-driver-sa");
const PROVISIONER: (&str, &str) = ("kube-system", "s3-csi-driver-controller-sa");

/// Who, a verb, a resource, a namespace, and whether it may.
type Right = ((&'static str, &'static str), &'static str, &'static str, &'static str, bool);

const RIGHTS: [Right; 14] = [
    (NODE_SERVICE, "watch", "s3.csi.scality.com/mountpoints3podattachments", "", true),
    (NODE_SERVICE, "update", "s3.csi.scality.com/mountpoints3podattachments", "", false),
    (NODE_SERVICE, "patch", "s3.csi.scality.com/mountpoints3podattachments", "", false),
    (NODE_SERVICE, "create", "s3.csi.scality.com/mountpoints3podattachments", "", false),
    (NODE_SERVICE, "delete", "s3.csi.scality.com/mountpoints3podattachments", "", false),
    (NODE_SERVICE, "watch", "/pods", MOUNTPOINT_NAMESPACE, true),
    (NODE_SERVICE, "create", "/pods", MOUNTPOINT_NAMESPACE, false),
    (NODE_SERVICE, "patch", "/pods", MOUNTPOINT_NAMESPACE, false),
    (NODE_SERVICE, "delete", "/pods", MOUNTPOINT_NAMESPACE, false),
    (NODE_SERVICE, "list", "/pods", "", false),
    (NODE_SERVICE, "get", "/secrets", "kube-system", false),
    (PROVISIONER, "create", "/persistentvolumes", "", true),
    (PROVISIONER, "list", "/secrets", "kube-system", false),
    (PROVISIONER, "create", "/pods", MOUNTPOINT_NAMESPACE, false),
];

pub async fn manifests_and_samples_are_taken(world: &World) -> Outcome {
    world.testbed.apply_dir(&root().join("config/with-s3")).await?;
    let pods: Api<Pod> = Api::namespaced(world.admin.clone(), MOUNTPOINT_NAMESPACE);
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    for (context, refused) in
        [(json!({"privileged": true}), true), (json!({"allowPrivilegeEscalation": true}), true), (restricted(), false)]
    {
        let answer = pods.create(&dry, &serde_json::from_value(pod(&context))?).await;
        assert_eq!(denied(&answer, "violates PodSecurity \"restricted"), refused, "{context}: {answer:?}");
    }
    let node_services: Api<DaemonSet> = Api::namespaced(world.admin.clone(), NODE_SERVICE.0);
    let template = node_services.get("s3-csi-node").await?.spec.map(|spec| spec.template.spec);
    let sees_callers = template.flatten().and_then(|spec| spec.host_pid);
    assert_eq!(sees_callers, Some(true), "mount-s3 tells processes apart by what the mount's PID namespace knows");
    for (account, verb, resource, namespace, expected) in RIGHTS {
        let client = with_token_of(&world.testbed, &world.admin, account, Value::Null).await?;
        assert_eq!(may(&client, verb, resource, namespace, "").await?, expected, "{account:?} {verb} {resource}");
    }
    // Twice: they can be applied again.
    for _ in 0..2 {
        world.testbed.apply_dir(&root().join("config/samples/s3")).await?;
    }
    Ok(())
}

pub async fn the_node_service_takes_its_taint_off_its_node_and_no_more(world: &World) -> Outcome {
    for folder in ["node_rbac.yaml", "node_policy.yaml"] {
        let file = root().join("config/s3").join(folder);
        world.testbed.apply_file(&root().join("config/s3/mount_namespace.yaml")).await?;
        world.testbed.apply_file(&file).await?;
    }
    let nodes: Api<Node> = Api::all(world.admin.clone());
    for name in ["s3-worker-1", "s3-worker-2"] {
        let taints = json!([taint(AGENT_NOT_READY_TAINT), taint("example.com/other")]);
        let node: Node = serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"taints": taints}}))?;
        nodes.create(&PostParams::default(), &node).await?;
    }
    let own = nodes.get("s3-worker-1").await?;
    let bound = json!({"kind": "Node", "apiVersion": "v1", "name": own.name_any(), "uid": own.uid()});
    let client = with_token_of(&world.testbed, &world.admin, NODE_SERVICE, bound).await?;
    let service: Api<Node> = Api::all(client);
    let dry = PatchParams { dry_run: true, ..PatchParams::default() };
    // The server has added one of its own.
    let taints = own.spec.and_then(|spec| spec.taints).unwrap_or_default();
    let without = |keys: &[&str]| {
        let kept: Vec<_> = taints.iter().filter(|taint| !keys.contains(&taint.key.as_str())).collect();
        Patch::Merge(json!({"spec": {"taints": kept}}))
    };
    let own_taint = without(&[AGENT_NOT_READY_TAINT]);
    let text = "this token is bound to node \"s3-worker-1\", not s3-worker-2";
    comes_to_deny(text, async || service.patch("s3-worker-2", &dry, &own_taint).await).await?;
    for (change, refused) in [
        (without(&["example.com/other"]), true),
        (without(&["example.com/other", AGENT_NOT_READY_TAINT]), true),
        (Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}})), true),
        (Patch::Merge(json!({"spec": {"unschedulable": true}})), true),
        (own_taint, false),
    ] {
        let answer = service.patch("s3-worker-1", &dry, &change).await;
        assert_eq!(denied(&answer, "changes nothing else of a Node"), refused, "{change:?}: {answer:?}");
        assert!(refused || answer.is_ok(), "{answer:?}");
    }
    Ok(())
}

fn taint(key: &str) -> Value {
    json!({"key": key, "effect": "NoExecute"})
}

/// The security context of Mountpoint Pods.
fn restricted() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": true,
        "runAsUser": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    })
}

fn pod(context: &Value) -> Value {
    let container = json!({"name": "mountpoint", "image": "mounter", "securityContext": context});
    json!({
        "metadata": {"name": "mp-1"},
        "spec": {"priorityClassName": "mount-s3-critical", "containers": [container]},
    })
}
