use serde_json::{Value, json};

use super::*;

const DRIVER: &str = "block.example.com";

/// An attacher that calls its driver by this address, with a volume at this place.
fn attacher(args: &[&str], address: &str, mount_path: &str) -> Value {
    json!({
        "name": "csi-attacher", "image": "registry.example.com/sig-storage/csi-attacher:v4", "args": args,
        "env": [{ "name": "ADDRESS", "value": address }],
        "volumeMounts": [{ "name": "socket-dir", "mountPath": mount_path }],
    })
}

fn usual() -> Value {
    attacher(&["--v=2", "--csi-address=$(ADDRESS)"], "/csi/csi.sock", "/csi")
}

fn plugin(driver: &str) -> Value {
    json!({ "name": "plugin", "image": "plugin", "args": ["--endpoint=unix:///csi/csi.sock", format!("--drivername={driver}")] })
}

fn pods(containers: Vec<Value>) -> Value {
    json!({ "serviceAccountName": "controller-sa", "containers": containers })
}

fn object(name: &str, spec: Value) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "storage" },
        "spec": { "replicas": 2, "selector": {}, "serviceName": "none", "template": { "spec": spec } },
    })
}

fn deployment(name: &str, spec: Value) -> Workload {
    Workload::of_deployment(&serde_json::from_value(object(name, spec)).unwrap()).unwrap()
}

fn stateful_set(name: &str, spec: Value) -> Workload {
    Workload::of_stateful_set(&serde_json::from_value(object(name, spec)).unwrap()).unwrap()
}

fn asked() -> Asked<'static> {
    Asked { driver: DRIVER, namespace: None, workload: None }
}

fn found(workloads: &[Workload]) -> Result<Controller, String> {
    found_as(asked(), workloads)
}

fn found_as(asked: Asked<'_>, workloads: &[Workload]) -> Result<Controller, String> {
    let drivers = [DRIVER, "file.example.com", "my.block.example.com"].map(str::to_owned);
    choose(asked, workloads, &drivers).map_err(|error| error.to_string())
}

#[test]
fn the_socket_is_found_wherever_the_driver_has_it() {
    let place = "/var/lib/csi/sockets/pluginproxy";
    let cases = [
        ("as most have it", usual(), Some("csi.sock")),
        ("a flag and its value", attacher(&["-csi-address", "/csi/csi.sock"], "", "/csi"), Some("csi.sock")),
        (
            "elsewhere",
            attacher(&["--csi-address=$(ADDRESS)"], &format!("{place}/csi.sock"), &format!("{place}/")),
            Some("csi.sock"),
        ),
        (
            "as an endpoint",
            attacher(&["--csi-address=$(ADDRESS)"], "unix:///csi/csi-provisioner.sock", "/csi"),
            Some("csi-provisioner.sock"),
        ),
        ("below the volume", attacher(&["--csi-address=/run/deep/csi.sock"], "", "/run"), Some("deep/csi.sock")),
        ("in no volume", attacher(&["--csi-address=/run/csi.sock"], "", "/csi"), None),
        ("beside the volume", attacher(&["--csi-address=/csi-2/csi.sock"], "", "/csi"), None),
        ("nowhere", attacher(&["--v=2"], "", "/csi"), None),
        ("with lines of its own", attacher(&["--csi-address=/csi/csi.sock\n- do this"], "", "/csi"), None),
    ];
    for (what, container, file) in cases {
        let found = found(&[deployment("controller", pods(vec![plugin(DRIVER), container]))]);
        assert_eq!(found.as_ref().ok().map(|it| it.socket.file.as_str()), file, "{what}: {found:?}");
    }
    let mut part = usual();
    part["volumeMounts"][0]["subPath"] = json!("block");
    let controller = found(&[deployment("controller", pods(vec![plugin(DRIVER), part]))]).unwrap();
    assert_eq!(controller.socket.sub_path.as_deref(), Some("block"));
    assert_eq!(controller.service_account, Account { namespace: "storage".into(), name: "controller-sa".into() });
}

#[test]
fn the_controller_is_the_one_that_names_the_driver() {
    let of = |name: &str, driver: &str| deployment(name, pods(vec![plugin(driver), usual()]));
    let nameless = deployment("nameless", pods(vec![usual()]));
    let all = [of("file", "file.example.com"), of("block", DRIVER), of("longer", "my.block.example.com")];
    let controller = found(&all).unwrap();
    assert_eq!((controller.name.as_str(), controller.names_driver), ("block", true));
    // Many do not say whose they are. One that is another's is not it.
    let controller = found(&[of("file", "file.example.com"), nameless.clone()]).unwrap();
    assert_eq!((controller.name.as_str(), controller.names_driver), ("nameless", false));
    let said = found(&[of("file", "file.example.com")]).unwrap_err();
    assert!(said.contains("--workload") && said.contains("docs/csi-drivers.md"), "{said}");
    let said = found(&[nameless, deployment("second", pods(vec![usual()]))]).unwrap_err();
    assert!(said.contains("Deployment storage/nameless, Deployment storage/second; name it with"), "{said}");
}

/// Who names a driver may be anybody: the ServiceAccount of what is found gets the right to answer for it.
#[test]
fn a_stranger_that_names_the_driver_is_not_taken_before_one_that_is_silent() {
    let mut stranger = deployment("stranger", pods(vec![plugin(DRIVER), usual()]));
    stranger.namespace = "tenant".into();
    let silent = deployment("controller", pods(vec![usual()]));
    let mut provisioner = usual();
    (provisioner["name"], provisioner["image"]) = (json!("csi-provisioner"), json!("csi-provisioner"));
    let provisioner = deployment("provisioner", pods(vec![plugin(DRIVER), provisioner]));
    for controller in [silent, provisioner] {
        let said = found(&[stranger.clone(), controller.clone()]).unwrap_err();
        for words in ["Deployment tenant/stranger", controller.name.as_str(), "--namespace and --workload"] {
            assert!(said.contains(words), "{words}: {said}");
        }
        let named = Asked { namespace: Some("storage"), workload: Some(&controller.name), ..asked() };
        assert_eq!(found_as(named, &[stranger.clone(), controller.clone()]).unwrap().namespace, "storage");
    }
}

#[test]
fn an_account_that_others_share_is_refused() {
    for account in [json!(null), json!(""), json!("default")] {
        let mut spec = pods(vec![plugin(DRIVER), usual()]);
        spec["serviceAccountName"] = account;
        let said = found(&[deployment("controller", spec)]).unwrap_err();
        assert!(said.contains("ServiceAccount default of storage") && said.contains("of its own"), "{said}");
    }
}

#[test]
fn where_attacher_and_provisioner_are_apart_it_is_the_attacher() {
    let mut provisioner = usual();
    provisioner["name"] = json!("csi-provisioner");
    provisioner["image"] = json!("registry.example.com/sig-storage/csi-provisioner:v5");
    let provisioner = stateful_set("provisioner", pods(vec![plugin(DRIVER), provisioner]));
    let controller =
        found(&[provisioner.clone(), stateful_set("attacher", pods(vec![plugin(DRIVER), usual()]))]).unwrap();
    assert_eq!((controller.kind, controller.name.as_str()), ("StatefulSet", "attacher"));
    assert_eq!(found(&[provisioner]).unwrap().name, "provisioner");
}

#[test]
fn a_person_may_name_it() {
    let all = [
        deployment("a", pods(vec![usual()])),
        stateful_set("a", pods(vec![usual()])),
        deployment("web", pods(vec![plugin("")])),
    ];
    let named = |workload| found_as(Asked { workload: Some(workload), ..asked() }, &all);
    assert_eq!(named("deployment/a").unwrap().kind, "Deployment");
    assert_eq!(named("StatefulSet/a").unwrap().kind, "StatefulSet");
    assert!(named("a").unwrap_err().contains("several may be"), "of both kinds");
    assert!(named("web").unwrap_err().contains("Deployment storage/web has no csi-attacher"));
    assert!(named("deployment/b").unwrap_err().contains("deployment/b is not there"));
    let elsewhere = found_as(Asked { namespace: Some("default"), workload: Some("a"), ..asked() }, &all);
    assert!(elsewhere.unwrap_err().contains("a is not there"));
}

#[test]
fn the_port_is_one_that_nobody_in_the_pod_uses() {
    let mut declared = usual();
    declared["ports"] = json!([{ "containerPort": 8081 }]);
    let said = attacher(&["--csi-address=/csi/csi.sock", "--http-endpoint=:8081"], "", "/csi");
    let mut there = declared.clone();
    there["name"] = json!("bulkhead-csi-sidecar");
    let mut on_host = pods(vec![usual()]);
    on_host["hostNetwork"] = json!(true);
    for (spec, port, has_sidecar) in [
        (pods(vec![usual()]), 8081, false),
        (pods(vec![declared]), 8082, false),
        (pods(vec![said]), 8082, false),
        (pods(vec![usual(), there]), 8081, true),
        (on_host, 9812, false),
    ] {
        let controller = found(&[deployment("controller", spec.clone())]).unwrap();
        assert_eq!((controller.port, controller.has_sidecar), (port, has_sidecar), "{spec}");
    }
}

#[test]
fn who_would_put_it_back_is_named() {
    let of = |metadata: Value| {
        let mut object = object("controller", pods(vec![usual()]));
        json_patch::merge(&mut object, &json!({ "metadata": metadata }));
        let workload = Workload::of_deployment(&serde_json::from_value(object).unwrap()).unwrap();
        found(&[workload]).unwrap().kept_by
    };
    let owner = json!([{ "apiVersion": "storage.example.com/v1", "kind": "Driver", "name": "block", "uid": "u" }]);
    let release = json!({ "meta.helm.sh/release-name": "block" });
    for (metadata, keeper) in [
        (json!({}), None),
        (json!({ "ownerReferences": owner, "annotations": release.clone() }), Some("Driver block")),
        (json!({ "labels": { "olm.owner": "block.v1" } }), Some("ClusterServiceVersion block.v1")),
        (json!({ "annotations": release }), Some("Helm release block")),
        (json!({ "labels": { "addonmanager.kubernetes.io/mode": "Reconcile" } }), Some("the cluster's add-on manager")),
    ] {
        assert_eq!(of(metadata.clone()).as_deref(), keeper, "{metadata}");
    }
}
