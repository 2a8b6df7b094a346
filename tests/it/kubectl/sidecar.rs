//! `sidecar`: the real server takes what is printed, whoever may look needs no further right, and looking writes nothing.

use bulkhead::api::names;
use bulkhead_testbed::Identity;
use bulkhead_testbed::cluster::Cluster;
use kube::api::DynamicObject;
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::{plugin, rights, simulate};
use crate::api::rights::may;
use crate::failover::fleet::SOON;

const DRIVER: &str = "sidecar.example.com";
const NAMESPACE: &str = "sidecar-try";

/// The controller of the driver, without a pod. Its provisioner tells where the socket is: who looks for attachers sees none.
fn controller() -> Value {
    let containers = json!([
        { "name": "plugin", "image": "plugin", "args": [format!("--drivername={DRIVER}")] },
        {
            "name": "csi-provisioner", "image": "csi-provisioner", "args": ["--csi-address=/run/csi/block.sock"],
            "volumeMounts": [{ "name": "sockets", "mountPath": "/run/csi" }],
        },
    ]);
    let pods = json!({
        "serviceAccountName": "block", "containers": containers, "volumes": [{ "name": "sockets", "emptyDir": {} }],
    });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "block", "namespace": NAMESPACE },
        "spec": {
            "replicas": 0, "selector": { "matchLabels": { "app": "block" } },
            "template": { "metadata": { "labels": { "app": "block" } }, "spec": pods },
        },
    })
}

async fn install(cluster: &Cluster) -> Result<(), Failed> {
    let objects = [
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } }),
        json!({ "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": { "name": DRIVER }, "spec": {} }),
        controller(),
    ];
    let objects: Vec<DynamicObject> = objects.into_iter().map(serde_json::from_value).collect::<Result<_, _>>()?;
    Ok(cluster.testbed.apply(objects).await?)
}

pub async fn what_is_printed_adds_a_sidecar(cluster: &Cluster) -> Result<(), Failed> {
    install(cluster).await?;
    let viewer = rights::person("sidecar-viewer");
    rights::bind(cluster, "sidecar-viewer", "bulkhead-viewer").await?;
    rights::may_read(cluster, &viewer).await?;
    let printed = async |more: &[&str]| {
        let arguments = [&["sidecar", "--driver", DRIVER][..], more].concat();
        let said = plugin::run(cluster, &viewer, &arguments).await?;
        if said.code == 0 { Ok(said.out) } else { Err(Failed::from(format!("{arguments:?}: {}", said.error))) }
    };
    let told = printed(&[]).await?;
    let named = ["-n", NAMESPACE, "--workload", "deployment/block"];
    assert!(
        told.contains(&format!("Deployment {NAMESPACE}/block")) && told.contains("block.sock in volume sockets"),
        "{told}"
    );
    let account = Identity::User {
        name: format!("system:serviceaccount:{NAMESPACE}:block"),
        groups: vec!["system:serviceaccounts".into()],
    };
    let account = cluster.testbed.client(&account).await?;
    assert!(!may(&account, "attest", "bulkhead.dev/fencers", "", DRIVER).await?, "looking wrote something");
    let rights: Vec<DynamicObject> =
        serde_saphyr::from_multiple(&printed(&[&named[..], &["--only", "rights"][..]].concat()).await?)?;
    cluster.testbed.apply(rights).await?;
    let lease = names::fencer_lease(DRIVER);
    let has_them = async || {
        let attests = may(&account, "attest", "bulkhead.dev/fencers", "", DRIVER).await.map_err(simulate::told)?;
        let leads = may(&account, "update", "coordination.k8s.io/leases", "bulkhead-system", &lease).await;
        let leads = leads.map_err(simulate::told)?;
        Ok(if attests && leads { Ok(()) } else { Err(format!("attests: {attests}, leads: {leads}")) })
    };
    cluster.wait("the sidecar has its rights", SOON, has_them).await?;
    assert!(
        !may(&account, "attest", "bulkhead.dev/fencers", "", "csi.example.com").await?,
        "it may answer for another"
    );
    let more = ["--only", "patch", "--image", "registry.example.com/sidecar:1", "-o", "json"];
    let patch = printed(&[&named[..], &more[..]].concat()).await?;
    let arguments =
        ["patch", "deployment", "block", "-n", NAMESPACE, "--patch", &patch, "--dry-run=server", "-o", "json"];
    let patched: Value = serde_json::from_str(&cluster.testbed.kubectl(&arguments).await?)?;
    let containers = patched["spec"]["template"]["spec"]["containers"].as_array().ok_or("no containers")?;
    let sidecar = containers.iter().find(|it| it["name"] == "bulkhead-csi-sidecar").ok_or("no sidecar")?;
    assert_eq!(containers.len(), 3, "{patched}");
    assert_eq!(sidecar["args"], json!(["--csi-address=/csi/block.sock", "--listen=0.0.0.0:8081"]));
    assert_eq!(sidecar["volumeMounts"][0], json!({ "name": "sockets", "mountPath": "/csi" }));
    Ok(())
}

pub async fn a_driver_without_a_controller_gets_no_sidecar(cluster: &Cluster) -> Result<(), Failed> {
    install(cluster).await?;
    let cases: [(&[&str], &str); 5] = [
        // Whoever may make a workload could be what is found.
        (&["--driver", DRIVER, "--only", "rights"], "--only needs --namespace and --workload"),
        (&["--driver", DRIVER, "--only", "patch", "-n", NAMESPACE], "--workload Deployment/block"),
        (&["--driver", "nobody.example.com"], "csidriver nobody.example.com is not there; kubectl get csidrivers"),
        (&["--driver", DRIVER, "-n", "kube-node-lease"], "Name it with --namespace and --workload"),
        (&["--driver", DRIVER, "--workload", "statefulset/block"], "statefulset/block is not there"),
    ];
    for (arguments, words) in cases {
        let arguments = [&["sidecar"][..], arguments].concat();
        let said = plugin::run(cluster, &plugin::ADMIN, &arguments).await?;
        assert_eq!((said.code, said.out.as_str()), (2, ""), "{arguments:?}: {}", said.error);
        assert!(said.error.contains(words), "{arguments:?}: {}", said.error);
    }
    Ok(())
}
