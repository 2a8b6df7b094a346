//! A node with the plugin on it, and the Mountpoint Pods that a controller and a kubelet would make.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bulkhead::api::mountpoint_s3_pod_attachment::MountpointS3PodAttachment;
use bulkhead::api::s3::{Mount, communication_folder, sources_folder};
use bulkhead::node_agent::mounts::mountinfo::{self, Mount as Mounted};
use bulkhead_testbed::{Identity, Testbed, TestbedOptions};
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use libtest_mimic::{Failed, Trial};
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

use super::engine;
use super::plugin::Plugin;

/// How long anything may take on a machine that is busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Namespace of Mountpoint Pods: another than the default, which the nodes of `tests/real` have.
pub const NAMESPACE: &str = "other-mounts";
pub const VOLUME: &str = "pv-1";
pub const HANDLE: &str = "models/2026";

/// Whether this is the long run, for which the machine is to have nothing else to do.
pub fn is_wide() -> bool {
    std::env::var_os("BULKHEAD_WIDE").is_some()
}

/// What all tests share.
pub struct Shared {
    // Dropped before the runtime that its tasks run on.
    base: OnceCell<Base>,
    runtime: Runtime,
}

struct Base {
    testbed: Testbed,
    admin: Client,
    engine: TempDir,
}

impl Shared {
    pub fn new() -> Self {
        Self { base: OnceCell::new(), runtime: Runtime::new().unwrap() }
    }

    async fn base(&self) -> &Base {
        self.base.get_or_init(Base::start).await
    }
}

impl Base {
    async fn start() -> Self {
        let engine = tempfile::tempdir().unwrap();
        engine::install(engine.path());
        let testbed = Testbed::start(TestbedOptions::api_server_only()).await.unwrap();
        testbed.apply_dir(&Path::new(env!("CARGO_MANIFEST_DIR")).join("config/crd")).await.unwrap();
        let admin = testbed.client(&Identity::Admin).await.unwrap();
        let base = Self { testbed, admin, engine };
        for namespace in [NAMESPACE, "shop"] {
            let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
            base.testbed.apply(vec![serde_json::from_value(namespace).unwrap()]).await.unwrap();
        }
        base
    }
}

/// A test on a node of its own.
pub fn trial<F, W>(shared: &Arc<Shared>, name: &str, test: F) -> Trial
where
    F: FnOnce(World) -> W + Send + 'static,
    W: Future<Output = ()>,
{
    let shared = shared.clone();
    Trial::test(name, move || {
        shared.runtime.block_on(async {
            let world = World::new(shared.base().await);
            test(world).await;
            Ok::<_, Failed>(())
        })
    })
}

/// A test that changes what others share: it has a control plane of its own.
pub fn alone<F, W>(shared: &Arc<Shared>, name: &str, test: F) -> Trial
where
    F: FnOnce(World, Api<CustomResourceDefinition>) -> W + Send + 'static,
    W: Future<Output = ()>,
{
    let shared = shared.clone();
    Trial::test(name, move || {
        shared.runtime.block_on(async {
            let base = Base::start().await;
            test(World::new(&base), Api::all(base.admin.clone())).await;
            Ok::<_, Failed>(())
        })
    })
}

/// A node. Its mounts and its programs go with it.
pub struct World {
    pub node: String,
    pub kubelet: PathBuf,
    pub admin: Client,
    pub kubeconfig: PathBuf,
    pub engine: PathBuf,
    pub folder: TempDir,
}

/// A Mountpoint Pod.
pub struct MountpointPod {
    pub name: String,
    pub uid: String,
    pub communication: PathBuf,
    mounter: Option<Child>,
    engine: PathBuf,
}

impl Drop for MountpointPod {
    fn drop(&mut self) {
        self.kill();
    }
}

fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A uid for a workload.
pub fn uid() -> String {
    format!("a1f0c1e2-0001-4000-8000-{:012}", number())
}

impl World {
    fn new(base: &Base) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let kubelet = folder.path().canonicalize().unwrap().join("kubelet");
        fs::create_dir_all(kubelet.join("pods")).unwrap();
        fs::create_dir_all(kubelet.join("plugins_registry")).unwrap();
        // As on a node: what is mounted here is mounted for containers that follow.
        rustix::mount::mount_bind(&kubelet, &kubelet).unwrap();
        rustix::mount::mount_change(&kubelet, MountPropagationFlags::SHARED).unwrap();
        Self {
            node: format!("worker-{}", number()),
            kubelet,
            admin: base.admin.clone(),
            kubeconfig: base.testbed.kubeconfig(&Identity::Admin).unwrap(),
            engine: base.engine.path().to_owned(),
            folder,
        }
    }

    /// Starts the plugin and waits until it serves.
    pub async fn plugin(&self) -> Plugin {
        Plugin::start(self, &[]).await
    }

    pub fn target(&self, workload: &str) -> PathBuf {
        self.target_of(workload, VOLUME)
    }

    pub fn target_of(&self, workload: &str, volume: &str) -> PathBuf {
        self.kubelet.join(format!("pods/{workload}/volumes/kubernetes.io~csi/{volume}/mount"))
    }

    pub fn source(&self, pod: &MountpointPod) -> PathBuf {
        sources_folder(&self.kubelet).join(&pod.name)
    }

    /// What the kubelet makes before it calls.
    pub fn make_folder(&self, workload: &str) {
        fs::create_dir_all(self.target(workload).parent().unwrap()).unwrap();
    }

    /// A Mountpoint Pod that the kubelet has not started.
    pub async fn pending_pod(&self, name: &str) -> MountpointPod {
        let pods = self.pods();
        let pod = json!({
            "metadata": { "name": name, "annotations": { bulkhead::api::s3::VOLUME_ID: HANDLE } },
            "spec": {
                "nodeName": self.node, "restartPolicy": "OnFailure",
                "containers": [{ "name": "mountpoint", "image": "mounter" }],
            },
        });
        let made = pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
        let uid = made.metadata.uid.unwrap();
        let communication = communication_folder(&self.kubelet, &uid);
        MountpointPod { name: name.into(), uid, communication, mounter: None, engine: self.engine.clone() }
    }

    /// The kubelet starts it.
    pub async fn run(&self, pod: &mut MountpointPod) {
        pod.start();
        self.set_phase(pod, json!({ "phase": "Running" })).await;
    }

    /// A Mountpoint Pod that runs.
    pub async fn running_pod(&self) -> MountpointPod {
        let mut pod = self.pending_pod(&format!("mp-{}", number())).await;
        self.run(&mut pod).await;
        pod
    }

    pub async fn set_phase(&self, pod: &MountpointPod, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        self.pods().patch_status(&pod.name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// The controller says that no workload uses it any more.
    pub async fn needs_unmount(&self, pod: &MountpointPod) {
        let patch = json!({ "metadata": { "annotations": { bulkhead::api::s3::NEEDS_UNMOUNT: "true" } } });
        self.pods().patch(&pod.name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    /// Its node is drained: it is to end, and has time.
    pub async fn evict(&self, pod: &MountpointPod) {
        self.pods().delete(&pod.name, &DeleteParams::default().grace_period(600)).await.unwrap();
    }

    /// It is gone from the API.
    pub async fn delete_pod(&self, pod: &MountpointPod) {
        self.pods().delete(&pod.name, &DeleteParams::default().grace_period(0)).await.unwrap();
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.admin.clone(), NAMESPACE)
    }

    fn mount(&self, volume: &str, group: &str) -> Mount {
        Mount {
            node_name: self.node.clone(),
            persistent_volume_name: volume.into(),
            volume_id: HANDLE.into(),
            mount_options: String::new(),
            workload_fs_group: group.into(),
        }
    }

    /// The controller assigns workloads to Mountpoint Pods: the s3pa as it is from now on.
    pub async fn attach(&self, group: &str, entries: &[(&MountpointPod, &[&str])]) {
        self.attach_volume(VOLUME, group, entries).await;
    }

    pub async fn attach_volume(&self, volume: &str, group: &str, entries: &[(&MountpointPod, &[&str])]) {
        let mount = self.mount(volume, group);
        let name = mount.attachment_name();
        let workload = |uid: &&str| json!({ "workloadPodUID": uid, "attachmentTime": "2026-11-21T02:00:01Z" });
        let entries =
            entries.iter().map(|(pod, uids)| (pod.name.clone(), uids.iter().map(workload).collect::<Vec<_>>().into()));
        let entries: serde_json::Map<String, Value> = entries.collect();
        let mut object = json!({
            "apiVersion": "s3.csi.scality.com/v2", "kind": "MountpointS3PodAttachment", "metadata": { "name": name },
            "spec": serde_json::to_value(&mount).unwrap(),
        });
        object["spec"]["mountpointS3PodAttachments"] = entries.into();
        let all: Api<MountpointS3PodAttachment> = Api::all(self.admin.clone());
        // Not a merge: entries go too.
        match all.get_opt(&name).await.unwrap() {
            Some(present) => {
                object["metadata"]["resourceVersion"] = json!(present.metadata.resource_version);
                let object = serde_json::from_value(object).unwrap();
                all.replace(&name, &PostParams::default(), &object).await.unwrap();
            }
            None => {
                let object = serde_json::from_value(object).unwrap();
                all.create(&PostParams::default(), &object).await.unwrap();
            }
        }
    }

    /// A workload that is attached, with its folder; its uid.
    pub async fn workload(&self, pod: &MountpointPod) -> String {
        let uid = uid();
        self.make_folder(&uid);
        self.attach("", &[(pod, &[&uid])]).await;
        uid
    }

    /// Mounts below the node's folder, but for itself.
    pub fn mounts(&self) -> Vec<Mounted> {
        let mounts = mountinfo::parse(&fs::read("/proc/self/mountinfo").unwrap()).unwrap();
        let root = self.kubelet.to_str().unwrap();
        mounts.into_iter().filter(|mount| mountinfo::is_within(&mount.path, root) && mount.path != root).collect()
    }

    pub fn is_mounted(&self, path: &Path) -> bool {
        self.mounts().iter().any(|mount| Path::new(&mount.path) == path)
    }

    /// Waits until it holds.
    pub async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !holds() {
            assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}\nmounts: {:#?}", self.mounts());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The Event by which a workload is told so.
    pub async fn until_told(&self, workload: &str, words: &str) -> Event {
        let events: Api<Event> = Api::namespaced(self.admin.clone(), "shop");
        let fields = format!("involvedObject.uid={workload}");
        let end = Instant::now() + PATIENCE;
        loop {
            let listed = events.list(&ListParams::default().fields(&fields)).await.unwrap();
            let says_so = |event: &&Event| event.message.as_ref().is_some_and(|note| note.contains(words));
            if let Some(event) = listed.items.iter().find(says_so) {
                return event.clone();
            }
            assert!(Instant::now() < end, "no Event with {words:?}: {listed:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for mount in self.mounts().iter().rev() {
            let _ = rustix::mount::unmount(mount.path.as_str(), UnmountFlags::DETACH | UnmountFlags::FORCE);
        }
        let _ = rustix::mount::unmount(&self.kubelet, UnmountFlags::DETACH);
    }
}

impl MountpointPod {
    /// Starts its container, or starts it again.
    pub fn start(&mut self) {
        self.kill();
        fs::create_dir_all(&self.communication).unwrap();
        let log = fs::File::create(self.communication.parent().unwrap().join("mounter.log")).unwrap();
        let mounter = Command::new(env!("CARGO_BIN_EXE_bulkhead-s3-mounter"))
            .arg("--communication-folder")
            .arg(&self.communication)
            .arg("--mountpoint-bin-dir")
            .arg(&self.engine)
            .current_dir(&self.communication)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.mounter = Some(mounter);
    }

    /// The container ends, and mount-s3 with it.
    pub fn kill(&mut self) {
        if let Some(mut mounter) = self.mounter.take() {
            // Its children are of another process group, but end with it: of nobody else they are children.
            let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", mounter.id())).unwrap_or_default();
            for child in children.split_whitespace() {
                let process = child.parse().ok().and_then(rustix::process::Pid::from_raw).unwrap();
                let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
            }
            let _ = mounter.kill();
            let _ = mounter.wait();
        }
    }

    /// How its container ended.
    pub async fn exit_code(&mut self) -> Option<i32> {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.mounter.as_mut().unwrap().try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < end, "the mounter has not ended");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
