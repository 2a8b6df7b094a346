use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use k8s_openapi::api::apps::v1::Deployment;
use serde_json::{Value, json};

use super::find::{Account, Asked, Controller, Workload, choose};
use super::manifests::Secrets;
use super::{Again, Part, Plan, Sidecar, about_secrets, alone, manifests, notes, secrets};
use crate::api::names;
use crate::api::slim::PersistentVolume;
use crate::kubectl::print::{Output, Report};

const DRIVER: &str = "block.example.com";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn documents(file: PathBuf) -> Vec<Value> {
    serde_saphyr::from_multiple(&std::fs::read_to_string(file).unwrap()).unwrap()
}

/// The Deployments of common drivers, each with its driver.
fn common() -> Vec<(String, Deployment)> {
    let objects = documents(root().join("tests/it/chart/drivers/deployments.yaml")).into_iter();
    let objects = objects.filter(|it| !it.is_null());
    let with_driver = |object: Value| {
        let driver = object["metadata"]["annotations"]["driver"].as_str().unwrap().to_owned();
        let deployment: Deployment = serde_json::from_value(object).unwrap();
        (driver, deployment)
    };
    objects.map(with_driver).collect()
}

fn controller_of(driver: &str, deployment: &Deployment) -> Controller {
    let asked = Asked { driver, namespace: None, workload: None };
    choose(asked, &[Workload::of_deployment(deployment).unwrap()], &[]).unwrap()
}

fn account() -> Account {
    Account { namespace: "storage".into(), name: "controller-sa".into() }
}

/// That the rights are those of config/ too: `chart::each_driver_has_its_own_sidecar`.
#[test]
fn for_common_drivers_the_patch_is_the_one_of_config() {
    let folder = root().join("config/sidecar/drivers");
    let components: Vec<_> = std::fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()).collect();
    let mut patches: Vec<Value> =
        components.into_iter().flat_map(|it| documents(it.join("sidecar_patch.yaml"))).collect();
    for (driver, deployment) in common() {
        let made = manifests::patch(&controller_of(&driver, &deployment), manifests::IMAGE).unwrap();
        let same = patches.iter().position(|it| *it == made);
        patches.swap_remove(same.unwrap_or_else(|| panic!("{driver}: {made} is in no component")));
    }
    assert!(patches.is_empty(), "no Deployment for {patches:?}");
}

#[test]
fn a_patch_is_for_the_kind_the_image_and_the_part_of_the_volume_that_are_asked_for() {
    let (driver, deployment) = common().remove(0);
    let mut controller = controller_of(&driver, &deployment);
    controller.kind = "StatefulSet";
    controller.socket.sub_path = Some("block".into());
    let made = manifests::patch(&controller, "registry.example.com/sidecar:1").unwrap();
    let container = &made["spec"]["template"]["spec"]["containers"][0];
    assert_eq!((&made["kind"], &container["image"]), (&json!("StatefulSet"), &json!("registry.example.com/sidecar:1")));
    let mount = json!({ "name": "socket-dir", "mountPath": "/csi", "subPath": "block" });
    assert_eq!(container["volumeMounts"], json!([mount]));
}

#[test]
fn every_right_is_for_this_driver_and_its_account() {
    // One is called as the account of the template is.
    let array = BTreeSet::from(["array", "csi-controller"].map(str::to_owned));
    let places = Secrets::from([("tenant-a".to_owned(), Some(array.clone())), ("tenant-b".to_owned(), None)]);
    let rights = manifests::rights(DRIVER, &account(), &places).unwrap();
    let readers: Vec<_> = rights.iter().filter(|it| it["rules"][0]["resources"] == json!(["secrets"])).collect();
    assert_eq!(
        readers.iter().map(|it| &it["rules"][0]["resourceNames"]).collect::<Vec<_>>(),
        [&json!(array), &json!(null)]
    );
    let text = serde_json::to_string(&rights).unwrap();
    let text = text.replacen("\"csi-controller\"", "", 1);
    for word in ["csi.example.com", "csi-example", "\"csi-controller\"", "bulkhead-fencer-3d4a7488"] {
        assert!(!text.contains(word), "{word} of the template is left: {text}");
    }
    assert!(text.contains(&names::fencer_lease(DRIVER)), "{text}");
    for object in &rights {
        let name = object["metadata"]["name"].as_str().unwrap();
        assert!(name.starts_with("bulkhead-fencer") && name.ends_with(&format!("-{DRIVER}")), "{name}");
        if let Some(subject) = object.pointer("/subjects/0") {
            assert_eq!(*subject, json!({ "kind": "ServiceAccount", "name": "controller-sa", "namespace": "storage" }));
            assert_eq!(object["roleRef"]["name"], name);
        }
    }
    let places = |rights: &[Value], kind: &str| {
        let of_kind = rights.iter().filter(|it| it["kind"] == kind);
        of_kind.map(|it| it["metadata"]["namespace"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(places(&rights, "Role"), ["bulkhead-system", "tenant-a", "tenant-b"]);
    assert_eq!(places(&rights, "RoleBinding"), ["bulkhead-system", "tenant-a", "tenant-b"]);
    // Without such volumes it may read no Secret.
    let rights = manifests::rights(DRIVER, &account(), &Secrets::new()).unwrap();
    assert_eq!(places(&rights, "Role"), ["bulkhead-system"]);
}

#[test]
fn secrets_are_read_where_volumes_of_the_driver_name_them() {
    let volume = |driver: &str, namespace: &str| -> PersistentVolume {
        let secret = json!({ "name": "array", "namespace": namespace });
        let source = json!({ "driver": driver, "volumeHandle": "1", "controllerPublishSecretRef": secret });
        serde_json::from_value(json!({ "spec": { "csi": source } })).unwrap()
    };
    let volumes = [volume(DRIVER, "b"), volume("file.example.com", "c"), volume(DRIVER, "b"), volume(DRIVER, "a")];
    let found = secrets(DRIVER, &volumes, &["a".to_owned()]);
    let names = BTreeSet::from(["array".to_owned()]);
    assert_eq!(found, Secrets::from([("a".to_owned(), None), ("b".to_owned(), Some(names))]));
    let said = about_secrets(&found).unwrap();
    assert!(said.contains("these Secrets: all of a, b/array. "), "{said}");
    assert_eq!(about_secrets(&Secrets::new()), None);
}

#[test]
fn what_is_printed_is_what_kubectl_takes() {
    let (driver, deployment) = common().remove(0);
    let controller = controller_of(&driver, &deployment);
    let rights = manifests::rights(&driver, &controller.service_account, &Secrets::new()).unwrap();
    for output in [Output::Table, Output::Yaml] {
        let read: Vec<Value> = serde_saphyr::from_multiple(&alone(&rights, output).unwrap()).unwrap();
        assert_eq!(read, rights, "the same objects, with the same types");
    }
    let list: Value = serde_json::from_str(&alone(&rights, Output::Json).unwrap()).unwrap();
    assert_eq!((&list["kind"], &list["items"]), (&json!("List"), &json!(rights)));
    let patch = manifests::patch(&controller, manifests::IMAGE).unwrap();
    for output in [Output::Table, Output::Yaml, Output::Json] {
        let text = alone(std::slice::from_ref(&patch), output).unwrap();
        assert_eq!(serde_saphyr::from_str::<Value>(&text).unwrap(), patch);
    }
    let notes = notes(&controller, true, manifests::IMAGE);
    let again = asking(&driver, &[]).again(&controller, &[("--kubeconfig", None), ("--context", None)]);
    insta::assert_snapshot!(Plan { driver, controller, notes, patch, rights, again }.text());
}

/// A question with these flags.
fn asking(driver: &str, flags: &[&str]) -> Sidecar {
    use clap::Parser;
    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        sidecar: Sidecar,
    }
    Cli::parse_from([&["x", "--driver", driver][..], flags].concat()).sidecar
}

/// Who looked with an image and in another cluster goes on with both.
#[test]
fn the_next_steps_ask_for_the_same() {
    let (driver, deployment) = common().remove(0);
    let controller = controller_of(&driver, &deployment);
    let reached = [("--kubeconfig", Some("/home/o'neil/my config".to_owned())), ("--context", Some("prod".to_owned()))];
    let flags = ["--image", "registry.example.com/sidecar:1", "--secrets-in", "a", "--secrets-in", "b"];
    let Again { sidecar, kubectl } = asking(&driver, &flags).again(&controller, &reached);
    let cluster = r"--kubeconfig '/home/o'\''neil/my config' --context prod";
    let named = "-n kube-system --workload Deployment/ebs-csi-controller";
    let wanted = "--image registry.example.com/sidecar:1 --secrets-in a --secrets-in b";
    assert_eq!(sidecar, format!("kubectl bulkhead sidecar --driver {driver} {named} {wanted} {cluster}"));
    assert_eq!(kubectl, format!("kubectl {cluster}"));
}

#[test]
fn what_must_be_known_before_is_said() {
    let (driver, deployment) = common().remove(0);
    let mut controller = controller_of(&driver, &deployment);
    controller.names_driver = true;
    controller.replicas = 2;
    assert_eq!(notes(&controller, true, "registry.example.com/sidecar:1"), Vec::<String>::new());
    controller.has_sidecar = true;
    controller.host_network = true;
    controller.kept_by = Some("Helm release block".into());
    let said = notes(&controller, false, "registry.example.com/sidecar:1").join("\n");
    for words in ["there already", "attachRequired: false", "Helm release block made it", "must be free on the hosts"] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn the_flags_are_read() {
    let flags = ["--secrets-in", "a", "--secrets-in", "b", "--only", "rights"];
    let Sidecar { driver, workload, image, secrets, only } = asking(DRIVER, &flags);
    assert_eq!((driver.as_str(), workload, image.as_str()), (DRIVER, None, manifests::IMAGE));
    assert_eq!((secrets, only), (vec!["a".to_owned(), "b".to_owned()], Some(Part::Rights)));
}
