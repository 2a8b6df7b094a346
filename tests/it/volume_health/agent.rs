//! The node agent with the token that a kubelet gives its pod, and a host of its own: a mount namespace in which this test
//! makes and takes away what local volumes are on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bulkhead::api::node_volume_report::{NodeVolumeReport, NodeVolumeReportStatus, ReportedVolume};
use bulkhead::api::volume::{Check, VolumeState};
use bulkhead_testbed::process::{Launch, Process};
use bulkhead_testbed::{Identity, Testbed, TestbedOptions, here};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, Pod, ServiceAccount};
use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use libtest_mimic::{Failed, Trial};
use serde_json::{Value, json};

/// The agent's ServiceAccount and its namespace, as shipped.
const AGENT: &str = "bulkhead-node-agent";
const NODE: &str = "worker-1";
/// From an act to the report. It is 5 s on a machine of its own; this one may be busy with other tests.
const SOON: Duration = Duration::from_secs(15);
/// Anything else.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn trial() -> Trial {
    let trial = Trial::test("volume_health::the_agent_tells_what_becomes_of_local_volumes", || {
        tokio::runtime::Runtime::new()?.block_on(the_agent_tells_what_becomes_of_local_volumes())
    });
    here::unless(here::lacks_root(), trial)
}

/// A process whose mounts are the node's.
struct Host {
    process: Child,
    folder: PathBuf,
}

impl Host {
    fn new(folder: &Path) -> Result<Self, Failed> {
        let folder = folder.canonicalize()?.join("host");
        fs::create_dir_all(folder.join("kubelet/pods"))?;
        fs::create_dir_all(folder.join("kubelet/plugins"))?;
        let process = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "--kill-child", "--", "sh", "-c", "echo ready; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut host = Self { process, folder };
        let mut ready = [0; 6];
        let stdout = host.process.stdout.as_mut().ok_or("no output")?;
        std::io::Read::read_exact(stdout, &mut ready)?;
        Ok(host)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Runs a command where the node's mounts are.
    fn run(&self, command: &[&str]) -> Result<(), Failed> {
        let space = format!("--mount=/proc/{}/ns/mnt", self.process.id());
        let status = Command::new("nsenter").arg(space).arg("--").args(command).status()?;
        if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}").into()) }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The namespace and its mounts go with its last process.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A kubeconfig with the token of the agent's pod on [`NODE`].
async fn kubeconfig(testbed: &Testbed, admin: &Client) -> Result<PathBuf, Failed> {
    let pods: Api<Pod> = Api::namespaced(admin.clone(), AGENT);
    let pod = json!({
        "metadata": {"name": "agent-x", "namespace": AGENT},
        "spec": {"serviceAccountName": AGENT, "nodeName": NODE, "containers": [{"name": "agent", "image": "agent"}]},
    });
    let pod = pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": pod.name_any(), "uid": pod.uid()});
    let request: TokenRequest = serde_json::from_value(json!({"spec": {"audiences": [], "boundObjectRef": bound}}))?;
    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), AGENT);
    let answer = accounts.create_token_request(AGENT, &PostParams::default(), &request).await?;
    let token = answer.status.ok_or("no token")?.token;
    let mut config: Value = serde_json::from_str(&fs::read_to_string(testbed.kubeconfig(&Identity::Admin)?)?)?;
    config["users"][0]["user"] = json!({"token": token});
    let path = testbed.folder().join("agent.kubeconfig");
    fs::write(&path, config.to_string())?;
    Ok(path)
}

fn local(name: &str, path: &Path, node: &str) -> Result<PersistentVolume, Failed> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "local",
            "local": {"path": path},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]}},
        },
    }))?)
}

/// What the agent says.
struct Reports(Api<NodeVolumeReport>);

impl Reports {
    async fn status(&self) -> Result<NodeVolumeReportStatus, Failed> {
        Ok(self.0.get(NODE).await?.status.unwrap_or_default())
    }

    async fn volume(&self, name: &str) -> Result<Option<ReportedVolume>, Failed> {
        Ok(self.status().await?.volumes.into_iter().find(|volume| volume.name == name))
    }

    /// Waits until it is told, and says how long that took.
    async fn until(
        &self,
        name: &str,
        within: Duration,
        holds: impl Fn(&ReportedVolume) -> bool,
    ) -> Result<Duration, Failed> {
        let began = Instant::now();
        while !self.volume(name).await?.is_some_and(|volume| holds(&volume)) {
            if began.elapsed() > within {
                return Err(format!("{name}: not within {within:?}: {:#?}", self.status().await?).into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(began.elapsed())
    }

    async fn until_healthy(&self, name: &str) -> Result<(), Failed> {
        self.until(name, PATIENCE, |volume| volume.state == VolumeState::Healthy).await.map(drop)
    }

    async fn until_found(&self, name: &str, check: Check, reason: &str) -> Result<(), Failed> {
        let found = |volume: &ReportedVolume| {
            volume.findings.iter().any(|finding| finding.check == check && finding.reason == reason)
        };
        let took = self.until(name, SOON, found).await?;
        println!("{name}: {check:?} {reason} after {took:?}");
        Ok(())
    }
}

async fn the_agent_tells_what_becomes_of_local_volumes() -> Result<(), Failed> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let testbed = Testbed::start(TestbedOptions::api_server_only()).await?;
    testbed.apply_dir(&root.join("config/default")).await?;
    let admin = testbed.client(&Identity::Admin).await?;
    let node = json!({"metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE}}});
    Api::<Node>::all(admin.clone()).create(&PostParams::default(), &serde_json::from_value(node)?).await?;
    for (kind, name, spec) in [
        ("NodeVolumeReport", NODE, None),
        ("VolumeHealthPolicy", "all", Some(json!({"selector": {}, "interval": "5s"}))),
    ] {
        let mut object = json!({"apiVersion": "bulkhead.dev/v1alpha1", "kind": kind, "metadata": {"name": name}});
        if let Some(spec) = spec {
            object["spec"] = spec;
        }
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("bulkhead.dev", "v1alpha1", kind));
        let objects: Api<DynamicObject> = Api::all_with(admin.clone(), &resource);
        objects.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    }
    let host = Host::new(testbed.folder())?;
    let volumes: Api<PersistentVolume> = Api::all(admin.clone());
    for (name, node) in [("folder", NODE), ("disk", NODE), ("another", "worker-2")] {
        fs::create_dir_all(host.path(name))?;
        volumes.create(&PostParams::default(), &local(name, &host.path(name), node)?).await?;
    }
    let disk = host.path("disk").display().to_string();
    host.run(&["mount", "-t", "tmpfs", "tmpfs", &disk])?;

    let launch = Launch {
        name: "agent".into(),
        program: env!("CARGO_BIN_EXE_bulkhead-node-agent").into(),
        args: vec![
            "--kubeconfig".into(),
            kubeconfig(&testbed, &admin).await?.into(),
            format!("--node-name={NODE}").into(),
            format!("--kubelet-root={}", host.path("kubelet").display()).into(),
            format!("--host-process=/proc/{}", host.process.id()).into(),
            "--listen=127.0.0.1:0".into(),
        ],
        env: Vec::new(),
        log: testbed.folder().join("agent.log"),
    };
    let agent = Process::spawn(launch.clone())?;
    let reports = Reports(Api::all(admin.clone()));
    let told = async {
        reports.until_healthy("folder").await?;
        reports.until_healthy("disk").await?;
        assert_eq!(reports.status().await?.checked, Some(2), "not those of other nodes");
        fs::remove_dir_all(host.path("folder"))?;
        reports.until_found("folder", Check::PathExists, "PathMissing").await?;
        host.run(&["umount", &disk])?;
        reports.until_found("disk", Check::MountPoint, "NotMountPoint").await?;
        at_rest(&testbed).await?;
        // Another process goes on from there.
        agent.kill().await;
        let agent = Process::spawn(launch)?;
        at_rest(&testbed).await?;
        assert_eq!(reports.status().await?.unhealthy, Some(2));
        fs::create_dir(host.path("folder"))?;
        reports.until_healthy("folder").await?;
        host.run(&["mount", "-t", "tmpfs", "tmpfs", &disk])?;
        reports.until_healthy("disk").await?;
        at_rest(&testbed).await?;
        agent.kill().await;
        Ok(())
    };
    told.await.map_err(|error: Failed| {
        let log = bulkhead_testbed::process::log_tail(&testbed.folder().join("agent.log"), 40);
        format!("{}\nthe agent's log:\n{log}", error.message().unwrap_or("?")).into()
    })
}

/// While nothing changes nothing is written, be it good or bad.
async fn at_rest(testbed: &Testbed) -> Result<(), Failed> {
    let writes = || -> Result<usize, Failed> {
        let of_agent = |record: &bulkhead_testbed::audit::Record| record.is_write() && record.user.ends_with(AGENT);
        Ok(testbed.audit().records()?.filter(of_agent).count())
    };
    // A write under way.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = writes()?;
    tokio::time::sleep(Duration::from_secs(12)).await;
    let after = writes()?;
    if before == after && before > 0 { Ok(()) } else { Err(format!("{before} writes, then {after}").into()) }
}
