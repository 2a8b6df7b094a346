//! The manifests on a real API server, and attacher and provisioner with no more rights than these give.

use std::time::Duration;

use bulkhead_testbed::array::{Array, ArrayOptions};
use bulkhead_testbed::binaries::{Binaries, Program};
use bulkhead_testbed::csi_driver::manifests::Deployment;
use bulkhead_testbed::process::{Launch, Process};
use bulkhead_testbed::{Identity, Testbed, TestbedOptions};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::api::{Api, DeleteParams, PostParams};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::bed::{ANY_PORT, DRIVER, SOON};

const DRIVER_NAME: &str = "other.testbed.bulkhead.dev";

pub async fn the_manifests_are_accepted_and_give_attacher_and_provisioner_what_they_need() {
    let programs = Binaries::ensure_all(None, &[Program::CsiAttacher, Program::CsiProvisioner]).expect("programs");
    let testbed = Testbed::start(TestbedOptions { scheduler: false, ..Default::default() }).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let array = Array::start(folder.path(), ArrayOptions { driver_name: DRIVER_NAME.into(), ..Default::default() });
    let array = array.unwrap();
    array.add_node("a");
    let deployment = Deployment {
        driver_name: DRIVER_NAME.to_owned(),
        namespace: "csi-other".to_owned(),
        ..Deployment::new(array.serve_management(ANY_PORT).unwrap(), array.serve_io(ANY_PORT).unwrap())
    };
    testbed.kubectl(&["create", "namespace", "bulkhead-system"]).await.unwrap();
    let files = testbed.kubectl(&["kustomize", &Deployment::folder().to_string_lossy()]).await.unwrap();
    let rendered = folder.path().join("manifests");
    std::fs::create_dir(&rendered).unwrap();
    std::fs::write(rendered.join("all.yaml"), deployment.render(&files)).unwrap();
    testbed.apply_dir(&rendered).await.unwrap();

    let start = |name: &str, program: &std::path::Path, args: Vec<String>| start(&folder, name, program, args);
    let socket = folder.path().join("driver.sock").display().to_string();
    let management = format!("--array-management={}", deployment.management);
    let _driver = start(
        "driver",
        DRIVER.as_ref(),
        vec!["--mode=controller".to_owned(), format!("--csi-address={socket}"), management],
    );
    let user = "system:serviceaccount:csi-other:csi-controller".to_owned();
    let account = Identity::User { name: user, groups: vec!["system:serviceaccounts".to_owned()] };
    let kubeconfig = testbed.kubeconfig(&account).unwrap();
    let as_deployed = |program: Program| {
        let args = vec![
            format!("--csi-address={socket}"),
            format!("--kubeconfig={}", kubeconfig.display()),
            "--leader-election".to_owned(),
            "--leader-election-namespace=csi-other".to_owned(),
        ];
        start(program.name(), &programs.path(program), args)
    };
    let (_attacher, _provisioner) = (as_deployed(Program::CsiAttacher), as_deployed(Program::CsiProvisioner));

    let client = testbed.client(&Identity::Admin).await.unwrap();
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(client.clone());
    create(&claims, claim()).await;
    let log = |program: Program| folder.path().join(format!("{}.log", program.name()));
    let claim = until(&claims, "data", &log(Program::CsiProvisioner), |claim: &PersistentVolumeClaim| {
        claim.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Bound"))
    })
    .await;
    let volume = claim.spec.unwrap().volume_name.unwrap();
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let source = volumes.get(&volume).await.unwrap().spec.unwrap().csi.unwrap();
    assert_eq!(source.driver, DRIVER_NAME);

    create(&Api::<Node>::all(client.clone()), json!({ "metadata": { "name": "a" } })).await;
    let drivers = json!([{ "name": DRIVER_NAME, "nodeID": "a", "topologyKeys": null }]);
    create(
        &Api::<CSINode>::all(client.clone()),
        json!({ "metadata": { "name": "a" }, "spec": { "drivers": drivers } }),
    )
    .await;
    let attachments: Api<VolumeAttachment> = Api::all(client.clone());
    let spec = json!({ "attacher": DRIVER_NAME, "nodeName": "a", "source": { "persistentVolumeName": volume } });
    create(&attachments, json!({ "metadata": { "name": "attached" }, "spec": spec })).await;
    until(&attachments, "attached", &log(Program::CsiAttacher), |attachment: &VolumeAttachment| {
        attachment.status.as_ref().is_some_and(|status| status.attached)
    })
    .await;
    assert_eq!(array.published_nodes(&source.volume_handle), ["a"]);

    attachments.delete("attached", &DeleteParams::default()).await.unwrap();
    claims.delete("data", &DeleteParams::default()).await.unwrap();
    let deleted = array.ledger().wait_for("the volume's end", SOON, |entries| {
        let mut deleted = entries.iter().filter(|entry| entry.event == bulkhead_testbed::ledger::Event::Deleted);
        deleted.next().map(|entry| entry.volume.clone())
    });
    assert_eq!(&*deleted.await.unwrap(), source.volume_handle);
    for program in [Program::CsiAttacher, Program::CsiProvisioner] {
        let text = std::fs::read_to_string(log(program)).unwrap();
        assert!(!text.contains("forbidden"), "{text}");
    }
}

fn start(folder: &TempDir, name: &str, program: &std::path::Path, args: Vec<String>) -> Process {
    Process::spawn(Launch {
        name: name.to_owned(),
        program: program.to_owned(),
        args: args.into_iter().map(Into::into).collect(),
        env: Vec::new(),
        log: folder.path().join(format!("{name}.log")),
    })
    .unwrap()
}

fn claim() -> Value {
    json!({
        "metadata": { "name": "data" },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": DRIVER_NAME,
            "resources": { "requests": { "storage": "16Mi" } },
        },
    })
}

async fn create<K>(api: &Api<K>, object: Value)
where
    K: kube::Resource + Clone + std::fmt::Debug + DeserializeOwned + serde::Serialize,
{
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

/// Polls the object until it is as it shall be; shows the log of who should do it, else.
async fn until<K>(api: &Api<K>, name: &str, log: &std::path::Path, wanted: impl Fn(&K) -> bool) -> K
where
    K: kube::Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    let deadline = tokio::time::Instant::now() + SOON;
    loop {
        let object = api.get(name).await.unwrap();
        if wanted(&object) {
            return object;
        }
        let tail = || bulkhead_testbed::process::log_tail(log, 20);
        assert!(tokio::time::Instant::now() < deadline, "{object:?}\n{}", tail());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
