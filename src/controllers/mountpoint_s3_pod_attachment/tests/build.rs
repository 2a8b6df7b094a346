//! The shape of Mountpoint Pods.

use serde_json::{Value, json};

use crate::api::mountpoint_pod::MountpointPod;
use crate::api::s3::VOLUME_NAME;
use crate::api::slim::PersistentVolume;

use super::super::mountpoint_pod::{Certificates, NodeBinding, Purpose, Settings, build};
use super::world::{World, volume};

fn built(settings: &Settings, attributes: &[(&str, &str)]) -> Value {
    let world = World::new();
    let mut volume = volume("uid-pv");
    let given = &mut volume.spec.csi.as_mut().unwrap().volume_attributes;
    given.extend(attributes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    serde_json::to_value(build("mp-x", purpose(&world, &volume), settings).unwrap()).unwrap()
}

fn purpose<'a>(world: &'a World, volume: &'a PersistentVolume) -> Purpose<'a> {
    let (workload_uid, hostname) = ("uid-workload", Some("host"));
    Purpose { mount: &world.mount, volume, workload_uid, hostname, failures: 0 }
}

fn settings() -> Settings {
    Settings { image: "mounter:1".into(), driver_version: "1.0.0".into(), ..Settings::default() }
}

/// Upstream's programs and people's policies rest on this.
#[test]
fn the_pod_is_as_recorded() {
    insta::assert_snapshot!(serde_json::to_string_pretty(&built(&settings(), &[])).unwrap());
}

#[test]
fn what_we_make_we_know() {
    let pod: MountpointPod = serde_json::from_value(built(&settings(), &[])).unwrap();
    assert!(pod.is_one() && !pod.has_run());
    assert_eq!(pod.mount(), Some(World::new().mount));
    assert!(pod.takes_workloads("1.0.0", "uid-pv"));
    assert!(!pod.takes_workloads("1.0.0", "uid-other") && !pod.takes_workloads("1.0.1", "uid-pv"));
}

#[test]
fn a_long_name_of_a_volume_is_an_annotation_only() {
    let mut world = World::new();
    world.mount.persistent_volume_name = "p".repeat(253);
    let volume = volume("uid-pv");
    let pod = build("mp-x", purpose(&world, &volume), &settings()).unwrap();
    assert!(!pod.metadata.labels.unwrap().contains_key(VOLUME_NAME));
    assert_eq!(pod.metadata.annotations.unwrap()[VOLUME_NAME].len(), 253);
}

#[test]
fn a_volume_says_what_its_pod_needs() {
    let attributes = [
        ("mountpointPodServiceAccountName", "reader"),
        ("mountpointContainerResourcesRequestsMemory", "2Gi"),
        ("cache", "emptyDir"),
    ];
    let resources = json!({ "requests": { "cpu": "1", "memory": "1Gi" }, "limits": { "memory": "1Gi" } });
    let pod = built(&Settings { resources, ..settings() }, &attributes);
    assert_eq!(pod["spec"]["serviceAccountName"], "reader");
    assert_eq!(pod["spec"]["automountServiceAccountToken"], Value::Null);
    let container = &pod["spec"]["containers"][0];
    // Of memory the volume says something, of CPU it does not.
    assert_eq!(container["resources"], json!({ "requests": { "cpu": "1", "memory": "2Gi" } }));
    let mounts = container["volumeMounts"].as_array().unwrap();
    assert!(mounts.contains(&json!({ "name": "local-cache", "mountPath": "/local-cache" })));
    let defaults = built(&Settings { resources: json!({ "requests": { "cpu": "1" } }), ..settings() }, &[]);
    assert_eq!(defaults["spec"]["containers"][0]["resources"], json!({ "requests": { "cpu": "1" } }));
}

#[test]
fn it_is_bound_to_its_node_as_people_want() {
    let bound = |node_binding| built(&Settings { node_binding, ..settings() }, &[])["spec"].clone();
    let term = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0";
    let hostname = bound(NodeBinding::Hostname);
    // Not the node's name, which need not be the label's value.
    let expression = json!([{ "key": "kubernetes.io/hostname", "operator": "In", "values": ["host"] }]);
    assert_eq!(hostname.pointer(term).unwrap()["matchExpressions"], expression);
    let direct = bound(NodeBinding::Direct);
    assert_eq!((&direct["nodeName"], &direct["affinity"]), (&json!("node"), &Value::Null));
    let (world, volume) = (World::new(), volume("uid-pv"));
    let unlabelled = Purpose { hostname: None, ..purpose(&world, &volume) };
    let by_label = Settings { node_binding: NodeBinding::Hostname, ..settings() };
    let error = build("mp-x", unlabelled, &by_label).unwrap_err();
    assert!(error.contains("Node node has no label kubernetes.io/hostname"), "{error}");
    assert!(build("mp-x", unlabelled, &settings()).is_ok());
}

#[test]
fn certificates_are_joined_by_a_first_container() {
    let resources = ["10m".to_owned(), "16Mi".to_owned(), "64Mi".to_owned()];
    let certificates =
        Certificates { config_map: "ca".into(), image: "alpine".into(), image_pull_policy: "Always".into(), resources };
    let pod = built(&Settings { certificates: Some(certificates), ..settings() }, &[]);
    let first = &pod["spec"]["initContainers"][0];
    assert_eq!((&first["name"], &first["image"]), (&json!("install-ca-cert"), &json!("alpine")));
    assert_eq!(first["securityContext"]["allowPrivilegeEscalation"], false);
    let mounts = pod["spec"]["containers"][0]["volumeMounts"].as_array().unwrap();
    let certificates = json!({ "name": "etc-ssl-certs", "mountPath": "/etc/ssl/certs", "readOnly": true });
    assert!(mounts.contains(&certificates));
}

#[test]
fn a_platform_may_choose_the_user() {
    let pod = built(&Settings { platform_chooses_user: true, ..settings() }, &[]);
    assert_eq!(pod["spec"]["securityContext"]["fsGroup"], Value::Null);
    assert_eq!(pod["spec"]["containers"][0]["securityContext"]["runAsUser"], Value::Null);
    assert_eq!(pod["spec"]["containers"][0]["securityContext"]["runAsNonRoot"], true);
}

/// People add what they need; what makes it a Mountpoint Pod stays.
#[test]
fn a_template_cannot_take_away_what_it_is() {
    let template = json!({
        "metadata": { "name": "x", "labels": { "team": "storage", "bulkhead.dev/mountpoint-pod": "false" },
            "annotations": { "a": "b" } },
        "spec": { "restartPolicy": "Never", "affinity": { "nodeAffinity": null }, "runtimeClassName": "gvisor",
            "tolerations": [] },
    });
    let pod = built(&Settings { template, ..settings() }, &[]);
    let labels = &pod["metadata"]["labels"];
    assert_eq!((&labels["team"], &labels["bulkhead.dev/mountpoint-pod"]), (&json!("storage"), &json!("true")));
    assert_eq!((&pod["metadata"]["name"], &pod["metadata"]["annotations"]["a"]), (&json!("mp-x"), &json!("b")));
    let spec = &pod["spec"];
    assert_eq!((&spec["restartPolicy"], &spec["runtimeClassName"]), (&json!("OnFailure"), &json!("gvisor")));
    assert!(spec["affinity"]["nodeAffinity"].is_object() && spec["tolerations"].as_array().is_none_or(Vec::is_empty));
    let world = World::new();
    let volume = volume("uid");
    let bad = Settings { template: json!({ "spec": { "tolerations": "all" } }), ..settings() };
    assert!(build("mp-x", purpose(&world, &volume), &bad).unwrap_err().contains("template"));
}
