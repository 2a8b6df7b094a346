//! What the controller may change of Nodes and PersistentVolumes, tried with its identity: RBAC gives it the whole object.

use k8s_openapi::api::core::v1::{Node, PersistentVolume, Taint};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::Outcome;
use super::admission::{comes_to_deny, denied};
use super::volumes::{dry_merge, volume};
use super::world::World;

const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

fn taint(key: &str, value: &str, effect: &str) -> Taint {
    let value = (!value.is_empty()).then(|| value.to_owned());
    Taint { key: key.to_owned(), value, effect: effect.to_owned(), time_added: None }
}

fn ours() -> [Taint; 3] {
    [
        taint("bulkhead.dev/fenced", "1", "NoSchedule"),
        taint("driver-down.bulkhead.dev/csi.example.com", "", "NoSchedule"),
        taint(OUT_OF_SERVICE, "bulkhead-1", "NoSchedule"),
    ]
}

fn taints(taints: &[Taint]) -> Value {
    json!({"spec": {"taints": taints}})
}

pub async fn the_controller_taints_nodes_and_no_more(world: &World) -> Outcome {
    let name = "tainted-by-us";
    let theirs = [taint("example.com/other", "", "NoSchedule"), taint(OUT_OF_SERVICE, "nodeshutdown", "NoExecute")];
    let node = json!({
        "metadata": {
            "name": name, "labels": {"tier": "1"}, "annotations": {"bulkhead.dev/paused": "ticket 4711"},
            "finalizers": ["example.com/held"],
        },
        "spec": {"taints": theirs},
    });
    let node: Node = serde_json::from_value(node)?;
    let stored = Api::<Node>::all(world.admin.clone()).create(&PostParams::default(), &node).await?;
    // The server has added one of its own.
    let there = stored.spec.and_then(|spec| spec.taints).unwrap_or_default();
    let without = |key: &str| there.iter().filter(|it| it.key != key).cloned().collect::<Vec<_>>();
    let and = |more: &[Taint]| [&there[..], more].concat();
    let nodes: Api<Node> = Api::all(world.controller.clone());
    let dry = dry_merge();
    let text = "changes nothing of a Node but its own taints";
    let cordon = Patch::Merge(json!({"spec": {"unschedulable": true}}));
    comes_to_deny(text, async || nodes.patch(name, &dry, &cordon).await).await?;
    for change in [
        json!({"spec": {"providerID": "example://another"}}),
        json!({"spec": {"podCIDR": "10.99.0.0/24", "podCIDRs": ["10.99.0.0/24"]}}),
        json!({"metadata": {"labels": {"tier": "2"}}}),
        json!({"metadata": {"labels": {"bulkhead.dev/ours": "1"}}}),
        json!({"metadata": {"annotations": {"bulkhead.dev/paused": null}}}),
        json!({"metadata": {"annotations": {"bulkhead.dev/paused": "another"}}}),
        json!({"metadata": {"labels": {"tier": null}}}),
        json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}),
        json!({"metadata": {"labels": {"kubernetes.io/role": "x"}}}),
        json!({"metadata": {"annotations": {"cluster.x-k8s.io/paused": "x"}}}),
        json!({"metadata": {"finalizers": null}}),
        taints(&[]),
        taints(&without("example.com/other")),
        taints(&without(OUT_OF_SERVICE)),
        taints(&and(&[taint("example.com/another", "", "NoSchedule")])),
        taints(&and(&[taint(OUT_OF_SERVICE, "nodeshutdown", "NoSchedule")])),
        taints(&[without(OUT_OF_SERVICE), vec![taint(OUT_OF_SERVICE, "bulkhead-1", "NoExecute")]].concat()),
    ] {
        let answer = nodes.patch(name, &dry, &Patch::Merge(&change)).await;
        assert!(denied(&answer, text), "{change}: {answer:?}");
    }
    for key in ["bulkhead.dev/fenced", "driver-down.bulkhead.dev/csi.example.com"] {
        let change = taints(&and(&[taint(key, "1", "NoExecute")]));
        let answer = nodes.patch(name, &dry, &Patch::Merge(&change)).await;
        assert!(denied(&answer, "sets no taint but with the effect NoSchedule"), "{change}: {answer:?}");
    }
    // Admission of others may add to what it writes: refused for that, nothing would be fenced.
    let mut added = taints(&and(&ours()));
    added["metadata"] = json!({
        "labels": {"example.com/team": "a", "plain": "a"}, "annotations": {"policies.example.io/by": "x", "not-kubernetes.io/x": "x"},
    });
    nodes.patch(name, &dry, &Patch::Merge(&added)).await?;
    // Set, replaced by that of the next episode, and taken back.
    let episodes = [ours().to_vec(), vec![taint("bulkhead.dev/fenced", "2", "NoSchedule")], Vec::new()];
    for mine in episodes {
        nodes.patch(name, &PatchParams::default(), &Patch::Merge(taints(&and(&mine)))).await?;
    }
    Ok(())
}

pub async fn the_controller_marks_volumes_and_no_more(world: &World) -> Outcome {
    let volumes: Api<PersistentVolume> = Api::all(world.controller.clone());
    let (free, bound) = ("marked", "marked-and-bound");
    volume(&world.admin, free, None).await?;
    volume(&world.admin, bound, None).await?;
    let of_claim = json!({"namespace": "default", "name": "data", "uid": "1"});
    let by_the_binder = Patch::Merge(json!({"spec": {"claimRef": of_claim}}));
    let admin: Api<PersistentVolume> = Api::all(world.admin.clone());
    admin.patch(bound, &PatchParams::default(), &by_the_binder).await?;
    let dry = dry_merge();
    let text = "changes nothing of a PersistentVolume but the marks of a taint and its own reservation";
    let reclaimed = Patch::Merge(json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}}));
    comes_to_deny(text, async || volumes.patch(free, &dry, &reclaimed).await).await?;
    for change in [
        json!({"spec": {"capacity": {"storage": "2Gi"}}}),
        json!({"spec": {"accessModes": ["ReadWriteMany"]}}),
        json!({"spec": {"mountOptions": ["suid"]}}),
        json!({"spec": {"storageClassName": "another"}}),
        json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "a"}}}),
        json!({"metadata": {"labels": {"bulkhead.dev/tainted": "Observe", "bulkhead.dev/another": "1"}}}),
        json!({"metadata": {"annotations": {"pv.kubernetes.io/provisioned-by": "another"}}}),
        json!({"metadata": {"finalizers": ["example.com/held"]}}),
    ] {
        let answer = volumes.patch(free, &dry, &Patch::Merge(&change)).await;
        assert!(denied(&answer, text), "{change}: {answer:?}");
    }
    let reserved = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "bulkhead-system", "name": "reserved-by-bulkhead",
    });
    let text = "reserves volumes that no claim has, without a uid, and takes its own reservation back";
    let with_uid = json!({"namespace": "bulkhead-system", "name": "reserved-by-bulkhead", "uid": "1"});
    for (name, claim) in [
        (free, with_uid),
        (free, of_claim),
        (bound, Value::Null),
        (bound, json!({"uid": null})),
        (bound, reserved.clone()),
    ] {
        let change = json!({"spec": {"claimRef": claim}});
        let answer = volumes.patch(name, &dry, &Patch::Merge(&change)).await;
        assert!(denied(&answer, text), "{name}: {change}: {answer:?}");
    }
    // What it does: all marks in one write, and back.
    let mark = |level: Value, taints: Value, claim: Value| {
        let labels = json!({"bulkhead.dev/tainted": level, "bulkhead.dev/no-attach-or-mount": level});
        let metadata = json!({"labels": labels, "annotations": {"bulkhead.dev/volume-taints": taints}});
        Patch::Merge(json!({"metadata": metadata, "spec": {"claimRef": claim}}))
    };
    for change in [mark(json!("Enforce"), json!("[]"), reserved), mark(Value::Null, Value::Null, Value::Null)] {
        volumes.patch(free, &PatchParams::default(), &change).await?;
    }
    // What the admission of others may add to it.
    let (labels, annotations) =
        (json!({"bulkhead.dev/tainted": "Observe", "team": "a"}), json!({"example.com/by": "x"}));
    let added = Patch::Merge(json!({"metadata": {"labels": labels, "annotations": annotations}}));
    volumes.patch(free, &dry, &added).await?;
    let change = Patch::Merge(json!({"metadata": {"labels": {"bulkhead.dev/tainted": "Observe"}}}));
    volumes.patch(bound, &dry, &change).await?;
    Ok(())
}
