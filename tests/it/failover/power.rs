//! The power fencer that we ship as an example, as it is, against BMCs of simulated nodes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bulkhead::api::fence_request::FenceOutcome;
use bulkhead::api::fencing::{FenceMethodType, Proof};
use bulkhead::api::node_fence::NodeFence;
use bulkhead_testbed::Identity;
use bulkhead_testbed::cluster::Cluster;
use bulkhead_testbed::process::{Launch, Process};
use bulkhead_testbed::redfish::{Faults, PASSWORD, Redfish, USER};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use libtest_mimic::{Failed, Trial};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::fleet::{Lane, LaneOptions};
use super::look::{answer, volume_row};

const SHIPPED: &str = "redfish.example.com";
const NAMESPACE: &str = "bulkhead-redfish";
/// Where it is.
const EXAMPLE: &str = "config/samples/fencers/redfish";

/// The example with its rights as shipped, for another name, so that tests run side by side.
pub struct Shipped {
    _program: Process,
    _folder: TempDir,
}

impl Shipped {
    pub async fn start(cluster: &Cluster, name: &str) -> Result<Self, Failed> {
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join(EXAMPLE);
        let lease = bulkhead::api::names::fencer_lease;
        let text = std::fs::read_to_string(example.join("rbac.yaml"))?;
        assert!(text.contains(&lease(SHIPPED)), "the example's Lease has another name");
        let text = text.replace(&lease(SHIPPED), &lease(name)).replace(SHIPPED, name);
        let text = text.replace("name: redfish-fencer", &format!("name: {name}"));
        let text = text.replace("name: bulkhead-redfish-fencer", &format!("name: {name}"));
        let folder = tempfile::tempdir()?;
        let rights = folder.path().join("rbac.yaml");
        std::fs::write(&rights, text)?;
        cluster.testbed.apply_file(&rights).await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), NAMESPACE);
        let token = accounts.create_token_request(name, &PostParams::default(), &TokenRequest::default()).await?;
        let token_file = folder.path().join("token");
        std::fs::write(&token_file, token.status.ok_or("no token")?.token)?;
        let kubeconfig = std::fs::read_to_string(cluster.testbed.kubeconfig(&Identity::Admin)?)?;
        let kubeconfig: Value = serde_json::from_str(&kubeconfig)?;
        let server = |key: &str| kubeconfig["clusters"][0]["cluster"][key].as_str().unwrap_or_default().to_owned();
        let env = [
            ("FENCER_NAME", name.to_owned()),
            ("FENCER_IDENTITY", format!("{name}-0")),
            ("SECRET_NAMESPACE", NAMESPACE.to_owned()),
            ("POWER_ON", "true".to_owned()),
            ("WATCH_SECONDS", "1".to_owned()),
            ("KUBERNETES_SERVER", server("server")),
            ("CA_FILE", server("certificate-authority")),
            ("TOKEN_FILE", token_file.to_string_lossy().into_owned()),
        ];
        let program = Process::spawn(Launch {
            name: name.to_owned(),
            program: PathBuf::from("python3"),
            args: vec![example.join("fencer.py").into()],
            env: env.map(|(key, value)| (key.to_owned(), value)).into(),
            log: cluster.testbed.folder().join(format!("{name}.log")),
        })?;
        Ok(Self { _program: program, _folder: folder })
    }
}

/// What the example makes of UUIDs, and of a report that it found. No control plane.
pub fn whose_machine_a_bmc_is() -> Trial {
    Trial::test("failover::a_bmc_is_that_of_the_node_or_says_nothing", a_bmc_is_that_of_the_node_or_says_nothing)
}

fn a_bmc_is_that_of_the_node_or_says_nothing() -> Result<(), Failed> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut python = Command::new("python3");
    python.arg("-B").arg(root.join("tests/it/failover/redfish_test.py")).env("PYTHONPATH", root.join(EXAMPLE));
    let ran = python.output()?;
    let told = String::from_utf8_lossy(&ran.stderr);
    // Without this a file that has lost its tests would pass.
    assert!(ran.status.success() && told.contains("Ran 6 tests"), "{told}");
    Ok(())
}

/// What the example knows of a node's BMC.
pub async fn tell_bmc(cluster: &Cluster, node: &str, url: &str) -> Result<(), Failed> {
    let name = format!("bmc-{node}");
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
        "stringData": { "url": url, "username": USER, "password": PASSWORD },
    });
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    secrets.patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(&secret)).await?;
    Ok(())
}

pub fn by(fencer: &str, timeout: &str) -> Value {
    let method = json!({ "type": "External", "external": { "fencerName": fencer } });
    json!({ "fencing": { "minimumProof": "PowerOff", "methods": [method], "callTimeout": timeout } })
}

pub async fn a_machine_is_switched_off_and_on_again_by_its_bmc(cluster: &Cluster) -> Result<(), Failed> {
    let fencer = "redfish.whole.test";
    let _program = Shipped::start(cluster, fencer).await?;
    let options = LaneOptions { sidecar: false, policy: by(fencer, "10s"), ..LaneOptions::default() };
    let lane = Lane::new(cluster, "bmc", options).await?;
    let set = lane.workload("db");
    lane.run(&set).await?;
    let victim = lane.victim()?;
    let bmcs = Redfish::start().await?;
    // The machine of a simulated node calls itself by the node's name.
    tell_bmc(cluster, victim.name(), &bmcs.add(victim.clone(), victim.name())).await?;
    bmcs.set_faults(victim.name(), Faults { delay: Duration::from_millis(1500), ..Faults::default() });
    let boot_id = victim.boot_id();
    victim.kill().await;
    lane.moved(&set).await?;
    let is_detached = |fence: &NodeFence| {
        let timeline = fence.status.as_ref().and_then(|status| status.timeline.as_ref());
        timeline.is_some_and(|timeline| timeline.detached_at.is_some())
    };
    let fence = lane.fence("Detached or later", is_detached).await?;
    let row = volume_row(&fence, &set.volume_name(0, 0)).ok_or("no row")?;
    assert_eq!((row.method, row.proof), (Some(FenceMethodType::External), Proof::PowerOff));
    // Nobody else brings it back.
    lane.recovered().await?;
    assert_ne!(victim.boot_id(), boot_id, "it was not off");
    assert_eq!(bmcs.resets(victim.name()), ["ForceOff", "On"]);
    lane.end().await
}

/// Whatever is wrong with the BMC, no pod goes before the machine is off.
pub async fn a_bmc_that_is_broken_holds_the_pods(cluster: &Cluster) -> Result<(), Failed> {
    let fencer = "redfish.broken.test";
    let _program = Shipped::start(cluster, fencer).await?;
    let options = LaneOptions { sidecar: false, policy: by(fencer, "3s"), ..LaneOptions::default() };
    let (lane, set, before) = Lane::open(cluster, "broken", options).await?;
    let (volume, victim) = (set.volume_name(0, 0), lane.victim()?);
    let answered = async |reason: &str| {
        lane.request_of(fencer, reason, |request| {
            answer(request, &volume)
                .is_some_and(|row| row.result == FenceOutcome::Failed && row.reason.as_deref() == Some(reason))
        })
        .await
    };
    victim.kill().await;
    let request = answered("NotConfigured").await?;
    assert_eq!(answer(&request, &volume).and_then(|row| row.started_at), None, "nothing was sent");
    let bmcs = Redfish::start().await?;
    tell_bmc(cluster, victim.name(), &bmcs.add(victim.clone(), "another-machine")).await?;
    let request = answered("WrongMachine").await?;
    assert_eq!(answer(&request, &volume).and_then(|row| row.started_at), None, "nothing was sent");
    assert!(bmcs.resets(victim.name()).is_empty(), "another machine was switched off");
    // It says yes and does nothing.
    bmcs.add(victim.clone(), victim.name());
    bmcs.set_faults(victim.name(), Faults { deaf: true, ..Faults::default() });
    answered("DeadlineExceeded").await?;
    lane.assert_untouched(&set, &before).await?;
    bmcs.set_faults(victim.name(), Faults { refuse: 2, ..Faults::default() });
    lane.moved(&set).await?;
    lane.end().await
}
