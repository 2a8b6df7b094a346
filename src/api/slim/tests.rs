use super::*;

#[test]
fn a_binding_denies_only_if_it_says_so() {
    for (actions, denies) in [
        (serde_json::json!(["Deny"]), true),
        (serde_json::json!(["Audit", "Deny"]), true),
        (serde_json::json!(["Warn", "Audit"]), false),
        (serde_json::json!([]), false),
        (serde_json::Value::Null, false),
    ] {
        let binding = serde_json::json!({ "metadata": {}, "spec": { "validationActions": actions } });
        let binding: AdmissionBinding = serde_json::from_value(binding).unwrap();
        assert_eq!(binding.denies(), denies, "{actions}");
    }
}

/// Large caches keep them as JSON.
#[test]
fn what_is_cached_by_the_ten_thousand_is_read_as_it_is_written() {
    fn again<K: Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug>(object: serde_json::Value) {
        let read: K = serde_json::from_value(object).unwrap();
        let written = serde_json::to_vec(&read).unwrap();
        assert_eq!(serde_json::from_slice::<K>(&written).unwrap(), read);
    }
    let metadata = serde_json::json!({
        "name": "a", "namespace": "b", "uid": "c", "resourceVersion": "1", "generation": 2,
        "creationTimestamp": "2026-01-02T03:04:05Z", "deletionTimestamp": "2026-01-02T03:04:05Z",
        "deletionGracePeriodSeconds": 30, "labels": { "l": "1" }, "annotations": { "a": "1" },
        "finalizers": ["f"], "generateName": "a-",
        "ownerReferences": [{ "apiVersion": "v1", "kind": "K", "name": "o", "uid": "u", "controller": true }],
    });
    again::<Pod>(serde_json::json!({
        "metadata": metadata,
        "spec": {
            "nodeName": "n", "priority": 7, "schedulingGates": [{ "name": "g" }], "securityContext": { "fsGroup": 5 },
            "tolerations": [{ "operator": "Exists" }],
            "volumes": [
                { "name": "a", "persistentVolumeClaim": { "claimName": "data" } }, { "name": "b", "ephemeral": {} },
                { "name": "c", "csi": { "driver": "d" } }, { "name": "d", "hostPath": { "path": "/x" } },
                { "name": "e", "emptyDir": {} }, { "name": "f", "nfs": { "server": "x" } },
            ],
            "affinity": { "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [{
                "labelSelector": { "matchLabels": { "a": "b" } }, "namespaces": ["x"], "topologyKey": "host",
            }] } },
        },
        "status": {
            "phase": "Running",
            "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z" }],
            "containerStatuses": [{ "name": "x", "state": { "waiting": { "reason": "CrashLoopBackOff" } } }],
            "initContainerStatuses": [{ "name": "y", "state": { "running": {} } }],
        },
    }));
    again::<PersistentVolumeClaim>(serde_json::json!({
        "metadata": metadata, "spec": { "volumeName": "v" }, "status": { "phase": "Bound" },
    }));
    again::<PersistentVolume>(serde_json::json!({
        "metadata": metadata, "status": { "phase": "Bound" },
        "spec": {
            "storageClassName": "s", "volumeMode": "Block", "accessModes": ["ReadWriteOnce"], "mountOptions": ["ro"],
            "capacity": { "storage": "1Gi" }, "claimRef": { "namespace": "n", "name": "c", "uid": "u" },
            "csi": { "driver": "d", "volumeHandle": "h", "fsType": "ext4", "readOnly": true,
                     "controllerPublishSecretRef": { "name": "s", "namespace": "n" }, "volumeAttributes": { "a": "b" } },
            "local": { "path": "/x" }, "nfs": { "server": "s", "path": "/" }, "hostPath": { "path": "/y" },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [
                { "key": "k", "operator": "In", "values": ["v"] },
            ] }] } },
        },
    }));
    again::<CsiNode>(serde_json::json!({
        "metadata": metadata, "spec": { "drivers": [{ "name": "d", "nodeID": "n" }] },
    }));
    again::<VolumeAttachment>(serde_json::json!({
        "metadata": metadata, "status": { "attached": true },
        "spec": { "attacher": "a", "nodeName": "n", "source": { "persistentVolumeName": "v" } },
    }));
}

#[test]
fn every_volume_source_is_told_apart() {
    let volumes: Vec<Volume> = serde_json::from_value(serde_json::json!([
        { "name": "a", "persistentVolumeClaim": { "claimName": "data" } },
        { "name": "b", "ephemeral": { "volumeClaimTemplate": {} } },
        { "name": "c", "csi": { "driver": "inline.example.com" } },
        { "name": "d", "hostPath": { "path": "/x" } },
        { "name": "e", "emptyDir": {} },
        { "name": "f", "nfs": { "server": "x" } },
    ]))
    .unwrap();
    let written = serde_json::to_value(&volumes).unwrap();
    assert_eq!(serde_json::from_value::<Vec<Volume>>(written).unwrap(), volumes, "they are written as they are read");
    let sources: Vec<_> = volumes.into_iter().map(|volume| volume.source).collect();
    assert_eq!(
        sources,
        [
            VolumeSource::Claim("data".into()),
            VolumeSource::Ephemeral,
            VolumeSource::InlineCsi("inline.example.com".into()),
            VolumeSource::HostPath("/x".into()),
            VolumeSource::PodLocal,
            VolumeSource::Other("nfs".into()),
        ]
    );
}

#[test]
fn what_tolerates_the_fence_may_be_bound_to_a_fenced_node() {
    for (tolerations, fence) in [
        (serde_json::json!([]), false),
        (serde_json::json!([{ "operator": "Exists" }]), true),
        (serde_json::json!([{ "operator": "Exists", "effect": "NoSchedule" }]), true),
        (serde_json::json!([{ "operator": "Exists", "effect": "NoExecute" }]), false),
        (serde_json::json!([{ "key": "bulkhead.dev/fenced", "operator": "Exists" }]), true),
        (serde_json::json!([{ "key": "bulkhead.dev/fenced", "operator": "Equal", "value": "1" }]), false),
        (serde_json::json!([{ "key": "bulkhead.dev/fenced", "value": "1" }]), false),
        (
            serde_json::json!([
                { "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute" },
                { "key": "bulkhead.dev/fenced", "operator": "Exists", "effect": "NoSchedule" },
            ]),
            true,
        ),
    ] {
        let scheduled = serde_json::json!([{ "type": "PodScheduled", "status": "True" }]);
        let pod = serde_json::json!({
            "metadata": {}, "spec": { "tolerations": tolerations }, "status": { "conditions": scheduled },
        });
        let mut pod: Pod = serde_json::from_value(pod).unwrap();
        assert_eq!(pod.spec.tolerations.fence, fence, "{tolerations}");
        assert_eq!(pod.was_bound_past_the_fence(), !fence, "{tolerations}");
        pod.status.conditions.clear();
        assert!(!pod.was_bound_past_the_fence(), "no scheduler did it: {tolerations}");
    }
}

#[test]
fn an_empty_list_that_is_written_as_null_is_read() {
    let node: CsiNode = serde_json::from_value(serde_json::json!({ "spec": { "drivers": null } })).unwrap();
    assert_eq!(node.spec.drivers, []);
}

#[test]
fn field_ownership_is_not_kept() {
    let pod: Pod = serde_json::from_value(serde_json::json!({
        "metadata": { "name": "p", "managedFields": [{ "manager": "m" }] },
        "spec": { "nodeName": "n", "unknown": 1 },
    }))
    .unwrap();
    assert_eq!(pod.metadata.managed_fields, None);
    assert_eq!(pod.spec.node_name.as_deref(), Some("n"));
}

/// A field of Kubernetes' metadata that is forgotten here would be missing without a word.
#[test]
fn all_else_of_metadata_is_kept() {
    let whole = serde_json::json!({
        "name": "p", "namespace": "b", "uid": "c", "resourceVersion": "1", "generation": 2, "generateName": "a-",
        "creationTimestamp": "2026-01-02T03:04:05Z", "deletionTimestamp": "2026-01-02T03:04:06Z",
        "deletionGracePeriodSeconds": 30, "labels": { "l": "1" }, "annotations": { "a": "1", LAST_APPLIED: "{}" },
        "finalizers": ["f"],
        "ownerReferences": [{ "apiVersion": "v1", "kind": "K", "name": "o", "uid": "u", "controller": true }],
        "managedFields": [{ "manager": "m", "operation": "Update", "fieldsV1": { "f:spec": { "f:a": {} } } }],
    });
    let mut expected: ObjectMeta = serde_json::from_value(whole.clone()).unwrap();
    expected.managed_fields = None;
    expected.annotations.as_mut().unwrap().insert(LAST_APPLIED.into(), String::new());
    let namespace: Namespace = serde_json::from_value(serde_json::json!({ "metadata": whole })).unwrap();
    assert_eq!(namespace.metadata, expected);
    let bare: Namespace = serde_json::from_value(serde_json::json!({ "metadata": { "labels": null } })).unwrap();
    assert_eq!(bare.metadata, ObjectMeta::default());
}

/// Else who writes the first annotation of ours beside it would make the map anew, and take the user's copy from the object.
#[test]
fn what_kubectl_apply_left_is_known_to_be_there() {
    let metadata = serde_json::json!({ "name": "v", "annotations": { LAST_APPLIED: "{\"a\":1}" } });
    let volume: PersistentVolume = serde_json::from_value(serde_json::json!({ "metadata": metadata })).unwrap();
    assert_eq!(volume.metadata.annotations, Some([(LAST_APPLIED.to_owned(), String::new())].into()));
}
