//! The program, and calls of the kubelet.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use bulkhead::csi::client::connect;
use bulkhead::csi::v1::node_client::NodeClient;
use bulkhead::csi::v1::volume_capability::access_mode::Mode;
use bulkhead::csi::v1::volume_capability::{AccessMode, AccessType, MountVolume};
use bulkhead::csi::v1::*;
use rustix::process::{Pid, Signal, kill_process};
use tonic::Status;
use tonic::transport::Channel;

use super::world::{HANDLE, NAMESPACE, PATIENCE, VOLUME, World};

/// The plugin. Its end leaves all mounts where they are.
pub struct Plugin {
    pub calls: NodeClient<Channel>,
    pub socket: PathBuf,
    log: PathBuf,
    process: Child,
    kubelet: PathBuf,
}

impl Drop for Plugin {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("the plugin's log:\n{}", self.log());
        }
    }
}

/// A call to publish, to be changed.
pub struct Publish {
    pub request: NodePublishVolumeRequest,
    calls: NodeClient<Channel>,
}

impl Plugin {
    pub async fn start(world: &World, environment: &[(&str, &str)]) -> Self {
        Self::launch(world, environment, &[]).await
    }

    /// With flags that replace those that it usually has.
    pub async fn start_with(world: &World, flags: &[&str]) -> Self {
        Self::launch(world, &[], flags).await
    }

    async fn launch(world: &World, environment: &[(&str, &str)], flags: &[&str]) -> Self {
        let socket = world.kubelet.join("plugins/s3.csi.scality.com/csi.sock");
        let log = world.folder.path().join("plugin.log");
        let output = fs::OpenOptions::new().create(true).append(true).open(&log).unwrap();
        // What an earlier one left behind does not answer.
        let _ = fs::remove_file(&socket);
        let process = Command::new(env!("CARGO_BIN_EXE_bulkhead-s3-csi"))
            .args(["--mode=node", "--listen=127.0.0.1:0"])
            .args(flags)
            .arg(format!("--endpoint=unix://{}", socket.display()))
            .arg(format!("--node-id={}", world.node))
            .arg(format!("--kubelet-path={}", world.kubelet.display()))
            .arg(format!("--kubeconfig={}", world.kubeconfig.display()))
            .env("BULKHEAD_LOG", "info,bulkhead=debug")
            .env("MOUNTPOINT_NAMESPACE", NAMESPACE)
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ENDPOINT_URL", "http://s3.example.com:9000")
            .env("AWS_ACCESS_KEY_ID", "DRIVERKEY")
            .env("AWS_SECRET_ACCESS_KEY", "driversecret")
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        let calls = NodeClient::new(connect(socket.to_str().unwrap()).unwrap());
        let mut plugin = Self { calls, socket, log, process, kubelet: world.kubelet.clone() };
        let end = Instant::now() + PATIENCE;
        while plugin.calls.node_get_info(NodeGetInfoRequest {}).await.is_err() {
            assert!(Instant::now() < end, "the plugin does not serve");
            assert!(plugin.process.try_wait().unwrap().is_none(), "the plugin ended");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        plugin
    }

    /// Ends it as the kubelet does.
    pub fn stop(&mut self) {
        let id = Pid::from_raw(i32::try_from(self.process.id()).unwrap()).unwrap();
        kill_process(id, Signal::TERM).unwrap();
        assert!(self.process.wait().unwrap().success(), "the plugin did not end in order");
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Open descriptors.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.process.id())).unwrap().count()
    }

    /// How the kubelet asks for the volume in a pod.
    pub fn publish(&self, workload: &str) -> Publish {
        let target = self.kubelet.join(format!("pods/{workload}/volumes/kubernetes.io~csi/{VOLUME}/mount"));
        let context = [
            ("bucketName", "bucket"),
            ("csi.storage.k8s.io/pod.uid", workload),
            ("csi.storage.k8s.io/pod.name", "web"),
            ("csi.storage.k8s.io/pod.namespace", "shop"),
        ];
        let request = NodePublishVolumeRequest {
            volume_id: HANDLE.to_owned(),
            target_path: target.to_str().unwrap().to_owned(),
            volume_capability: Some(capability(Mode::MultiNodeMultiWriter, &["allow-delete"])),
            volume_context: context.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            ..NodePublishVolumeRequest::default()
        };
        Publish { request, calls: self.calls.clone() }
    }

    pub async fn unpublish(&self, workload: &str) -> Result<(), Status> {
        self.calls.clone().node_unpublish_volume(self.unpublish_request(workload)).await.map(drop)
    }

    pub fn unpublish_request(&self, workload: &str) -> NodeUnpublishVolumeRequest {
        let target_path = self.publish(workload).request.target_path;
        NodeUnpublishVolumeRequest { volume_id: HANDLE.to_owned(), target_path }
    }

    pub async fn stats(&self, path: &Path) -> Result<NodeGetVolumeStatsResponse, Status> {
        let request = NodeGetVolumeStatsRequest {
            volume_id: HANDLE.to_owned(),
            volume_path: path.to_str().unwrap().to_owned(),
            ..NodeGetVolumeStatsRequest::default()
        };
        self.calls.clone().node_get_volume_stats(request).await.map(|answer| answer.into_inner())
    }
}

pub fn capability(mode: Mode, options: &[&str]) -> VolumeCapability {
    let mount_flags = options.iter().map(|option| (*option).to_owned()).collect();
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Mount(MountVolume { mount_flags, ..MountVolume::default() })),
    }
}

impl Publish {
    pub fn with(mut self, change: impl FnOnce(&mut NodePublishVolumeRequest)) -> Self {
        change(&mut self.request);
        self
    }

    pub fn context(self, name: &str, value: &str) -> Self {
        self.with(|request| drop(request.volume_context.insert(name.to_owned(), value.to_owned())))
    }

    /// The volume has credentials of its own.
    pub fn secret(self, id: &str, key: &str) -> Self {
        let fields = [("access_key_id", id), ("secret_access_key", key)];
        let secrets: HashMap<_, _> = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        self.context("authenticationSource", "secret").with(|request| request.secrets = secrets)
    }

    pub async fn call(self) -> Result<(), Status> {
        let mut calls = self.calls;
        calls.node_publish_volume(self.request).await.map(drop)
    }

    pub fn bucket(self, name: &str) -> Self {
        self.context("bucketName", name)
    }
}
