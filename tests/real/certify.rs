//! `kubectl bulkhead doctor --certify` as a person runs it: the driver of the test array revokes, or says so only.
#![allow(clippy::indexing_slicing, reason = "of a JSON value, which is null where it is missing")]

use std::path::Path;
use std::process::{Output, Stdio};

use bulkhead::api::fence_request::FenceRequest;
use bulkhead_testbed::Identity;
use bulkhead_testbed::array::{Effect, Fault, Method};
use bulkhead_testbed::cluster::real::RealCluster;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolume, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::process::{Child, Command};

use super::Outcome;
use super::bed::SOON;

/// Begins to certify the array's driver.
fn begin(cluster: &RealCluster) -> Result<Child, Failed> {
    let program = Path::new(env!("CARGO_BIN_EXE_kubectl-bulkhead"));
    let kubeconfig = cluster.testbed.kubeconfig(&Identity::Admin)?;
    let class = cluster.array.driver_name();
    Ok(Command::new(program)
        .args(["doctor", "--certify", "--yes", "-o", "json", "--size", "16Mi", "--watch", "5s"])
        .args(["--storage-class", class, "--node", "node-1", "--kubeconfig"])
        .arg(kubeconfig)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?)
}

/// What it said, and with which exit code. Whatever that was, nothing is left.
async fn certificate(cluster: &RealCluster, child: Child) -> Result<(Value, i32), Failed> {
    let Output { status, stdout, stderr } = child.wait_with_output().await?;
    let told = String::from_utf8_lossy(&stderr);
    let certificate: Value = serde_json::from_slice(&stdout).map_err(|error| format!("{error}: {told}"))?;
    assert_eq!(certificate["left"], serde_json::json!([]), "{certificate:#}");
    let client = || cluster.client.clone();
    let all = ListParams::default();
    let is_ours = |name: &String| name.starts_with("bulkhead-certify-");
    let namespaces = Api::<Namespace>::all(client()).list(&all).await?;
    let requests = Api::<FenceRequest>::all(client()).list(&all).await?;
    let names = namespaces.iter().map(ResourceExt::name_any).chain(requests.iter().map(ResourceExt::name_any));
    assert_eq!(names.filter(is_ours).collect::<Vec<_>>(), Vec::<String>::new());
    let volumes = Api::<PersistentVolume>::all(client()).list(&all).await?;
    let claim = |it: &PersistentVolume| it.spec.as_ref()?.claim_ref.as_ref()?.namespace.clone();
    assert_eq!(volumes.iter().filter_map(claim).filter(is_ours).collect::<Vec<_>>(), Vec::<String>::new());
    Ok((certificate, status.code().unwrap_or(-1)))
}

/// The driver revokes. Then one of its calls says OK and does nothing.
pub async fn driver_certified(cluster: &RealCluster) -> Outcome {
    let (mut found, mut code) = certificate(cluster, begin(cluster)?).await?;
    // The attacher looks once a minute: it may publish the volume again meanwhile, and then the page says: once more.
    if found["reason"] == "PublishedAgain" {
        (found, code) = certificate(cluster, begin(cluster)?).await?;
    }
    let certificate = found;
    assert_eq!((&certificate["verdict"], code), (&Value::from("Certified"), 0), "{certificate:#}");
    let steps = certificate["steps"].as_array().map(Vec::as_slice).unwrap_or_default();
    assert!(steps.len() == 5 && steps.iter().all(|step| step["done"] == true), "{certificate:#}");
    assert!(cluster.array.calls().count(Method::ControllerUnpublishVolume) > 0);
    let nothing = Fault::on(Method::ControllerUnpublishVolume, Effect::DoNothing).times(1);
    cluster.array.faults().add(nothing);
    lists_still(cluster).await
}

async fn lists_still(cluster: &RealCluster) -> Outcome {
    let (certificate, code) = certificate(cluster, begin(cluster)?).await?;
    let (verdict, reason) = (&certificate["verdict"], &certificate["reason"]);
    assert_eq!(
        (verdict, reason, code),
        (&Value::from("NotCertified"), &Value::from("StillPublished"), 1),
        "{certificate:#}"
    );
    Ok(())
}

/// The driver says OK, does nothing, and leaves the node out of its list: only the writes tell. Then somebody interrupts.
pub async fn driver_lies(cluster: &RealCluster) -> Outcome {
    let before = cluster.array.calls().count(Method::ControllerUnpublishVolume);
    cluster.array.faults().add(Fault::on(Method::ControllerUnpublishVolume, Effect::DoNothing).times(1));
    let child = begin(cluster)?;
    // The list that is read back comes after the answer, which waits for this.
    let hang = cluster.array.faults().add(Fault::on(Method::ControllerUnpublishVolume, Effect::Hang));
    cluster
        .wait("the unpublish is called", SOON, async || {
            let count = cluster.array.calls().count(Method::ControllerUnpublishVolume);
            Ok(if count > before { Ok(()) } else { Err("it is not".to_owned()) })
        })
        .await?;
    cluster.array.faults().add(Fault::on(Method::ListVolumes, Effect::OmitNodes));
    cluster.array.faults().remove(hang);
    let (found, code) = certificate(cluster, child).await?;
    let (verdict, reason) = (&found["verdict"], &found["reason"]);
    assert_eq!((verdict, reason, code), (&Value::from("NotCertified"), &Value::from("WritesArrive"), 1), "{found:#}");
    cluster.array.faults().clear();
    interrupted(cluster).await
}

async fn interrupted(cluster: &RealCluster) -> Outcome {
    let child = begin(cluster)?;
    let pods = Api::<Pod>::all(cluster.client.clone());
    cluster
        .wait("its writer runs", SOON, async || {
            let pods = pods.list(&ListParams::default().fields("metadata.name=writer")).await?;
            let runs = |pod: &Pod| pod.status.as_ref().is_some_and(|it| it.phase.as_deref() == Some("Running"));
            Ok(if pods.iter().any(runs) { Ok(()) } else { Err("it does not".to_owned()) })
        })
        .await?;
    let id = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)).ok_or("it has ended")?;
    kill_process(id, Signal::INT)?;
    let (certificate, code) = certificate(cluster, child).await?;
    let (verdict, reason) = (&certificate["verdict"], &certificate["reason"]);
    assert_eq!(
        (verdict, reason, code),
        (&Value::from("Inconclusive"), &Value::from("Interrupted"), 2),
        "{certificate:#}"
    );
    Ok(())
}
