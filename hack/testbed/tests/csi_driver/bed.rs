//! An array over TCP, and node plugins beside each other in a mount namespace of the test's own thread: what is mounted
//! there ends with the test, however it ends.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bulkhead::csi::client;
use bulkhead::csi::v1::controller_client::ControllerClient;
use bulkhead::csi::v1::identity_client::IdentityClient;
use bulkhead::csi::v1::node_client::NodeClient;
use bulkhead::csi::v1::volume_capability::access_mode::Mode;
use bulkhead::csi::v1::volume_capability::{AccessMode, AccessType, BlockVolume};
use bulkhead::csi::v1::*;
use bulkhead_testbed::array::{Array, ArrayOptions};
use bulkhead_testbed::ledger::Access;
use bulkhead_testbed::process::{Launch, Process, Signal};
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::thread::UnshareFlags;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tonic::transport::Channel;
use tonic::{Code, Status};

/// Longer than anything here takes on a busy machine.
pub const SOON: Duration = Duration::from_secs(60);
pub const DRIVER: &str = env!("CARGO_BIN_EXE_testbed-csi-driver");
pub const WRITER: &str = env!("CARGO_BIN_EXE_testbed-writer");
pub const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

pub struct Bed {
    pub runtime: Runtime,
    pub array: Array,
    pub management: SocketAddr,
    pub io: SocketAddr,
    folder: TempDir,
}

impl Bed {
    /// In a mount namespace of the thread's own.
    pub fn new() -> Self {
        own_mount_namespace();
        let runtime = Runtime::new().expect("runtime");
        let folder = tempfile::tempdir().expect("folder");
        let entered = runtime.enter();
        let array = Array::start(folder.path(), ArrayOptions::default()).expect("array");
        let management = array.serve_management(ANY_PORT).expect("port");
        let io = array.serve_io(ANY_PORT).expect("port");
        drop(entered);
        for node in ["a", "b"] {
            array.add_node(node);
        }
        Bed { runtime, array, management, io, folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        // The mount table knows no symbolic links.
        fs::canonicalize(self.folder.path()).expect("folder").join(name)
    }

    /// Starts a program whose output is in the log that comes with it.
    pub fn start(&self, name: &str, program: &str, args: &[&str]) -> Process {
        Process::spawn(Launch {
            name: name.to_owned(),
            program: program.into(),
            args: args.iter().map(Into::into).collect(),
            env: Vec::new(),
            log: self.path(&format!("{name}.log")),
        })
        .expect("program")
    }

    /// The node plugin of `node`, ready.
    pub fn plugin(&self, node: &str) -> Plugin<'_> {
        self.plugin_that_tells(node, "none")
    }

    /// The same; of its volumes' health it says what this generation of CSI does: `none`, `condition` or `health`.
    pub fn plugin_that_tells(&self, node: &str, health: &str) -> Plugin<'_> {
        let socket = self.path(&format!("plugin-{node}.sock"));
        let io = self.io.to_string();
        let process = self.start(
            &format!("plugin-{node}"),
            DRIVER,
            &[
                "--mode=node",
                "--csi-address",
                socket.to_str().expect("path"),
                "--array-io",
                &io,
                "--node-id",
                node,
                "--io-timeout=2",
                "--health",
                health,
                "--plugins-registry",
                self.path("registry").to_str().expect("path"),
            ],
        );
        let plugin = Plugin { bed: self, process, socket };
        self.ready(&plugin.socket);
        plugin
    }

    /// The driver's controller, ready.
    pub fn controller(&self) -> (Process, PathBuf) {
        let socket = self.path("controller.sock");
        let management = self.management.to_string();
        let args =
            ["--mode=controller", "--csi-address", socket.to_str().expect("path"), "--array-management", &management];
        let process = self.start("controller", DRIVER, &args);
        self.ready(&socket);
        (process, socket)
    }

    fn ready(&self, socket: &Path) {
        let mut identity = IdentityClient::new(channel(&self.runtime, socket));
        wait("the driver's socket", || self.runtime.block_on(identity.probe(ProbeRequest {})).is_ok());
    }

    pub fn volume(&self, name: &str) -> String {
        self.array.create_volume(name, Access::SingleWriter, 16 << 20).expect("volume")
    }

    fn array_controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(channel(&self.runtime, self.array.csi_socket()))
    }

    pub fn attach(&self, volume: &str, node: &str) {
        let request = ControllerPublishVolumeRequest {
            volume_id: volume.to_owned(),
            node_id: node.to_owned(),
            volume_capability: Some(capability(false)),
            ..Default::default()
        };
        self.runtime.block_on(self.array_controller().controller_publish_volume(request)).expect("attached");
    }

    pub fn detach(&self, volume: &str, node: &str) {
        let request = ControllerUnpublishVolumeRequest {
            volume_id: volume.to_owned(),
            node_id: node.to_owned(),
            ..Default::default()
        };
        self.runtime.block_on(self.array_controller().controller_unpublish_volume(request)).expect("detached");
    }

    /// The mount points below the bed's folder.
    pub fn mounts(&self) -> Vec<PathBuf> {
        let table = fs::read_to_string("/proc/thread-self/mountinfo").expect("mount table");
        let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
        let folder = self.path("");
        points.filter(|point| point.starts_with(&folder)).collect()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for point in self.mounts().iter().rev() {
            let _ = rustix::mount::unmount(point, UnmountFlags::DETACH);
        }
    }
}

/// A node plugin that runs.
pub struct Plugin<'a> {
    bed: &'a Bed,
    process: Process,
    socket: PathBuf,
}

impl Plugin<'_> {
    pub fn client(&self) -> NodeClient<Channel> {
        NodeClient::new(channel(&self.bed.runtime, &self.socket))
    }

    pub fn kill(mut self) {
        self.process.signal(Signal::Kill).expect("it runs");
        wait("the plugin's end", || self.process.exit_status().is_some());
    }

    pub fn log(&self) -> String {
        self.process.log_tail()
    }

    pub fn stage(&self, volume: &str, staging: &Path, block: bool) -> Result<(), Status> {
        fs::create_dir_all(staging.parent().expect("folder")).expect("folder");
        let request = NodeStageVolumeRequest {
            volume_id: volume.to_owned(),
            staging_target_path: staging.display().to_string(),
            volume_capability: Some(capability(block)),
            ..Default::default()
        };
        self.bed.runtime.block_on(self.client().node_stage_volume(request)).map(drop)
    }

    pub fn publish(
        &self,
        volume: &str,
        staging: &Path,
        target: &Path,
        block: bool,
        readonly: bool,
    ) -> Result<(), Status> {
        let request = NodePublishVolumeRequest {
            volume_id: volume.to_owned(),
            staging_target_path: staging.display().to_string(),
            target_path: target.display().to_string(),
            volume_capability: Some(capability(block)),
            readonly,
            ..Default::default()
        };
        self.bed.runtime.block_on(self.client().node_publish_volume(request)).map(drop)
    }

    pub fn unpublish(&self, volume: &str, target: &Path) -> Result<(), Status> {
        let target_path = target.display().to_string();
        let request = NodeUnpublishVolumeRequest { volume_id: volume.to_owned(), target_path };
        self.bed.runtime.block_on(self.client().node_unpublish_volume(request)).map(drop)
    }

    pub fn unstage(&self, volume: &str, staging: &Path) -> Result<(), Status> {
        let staging_target_path = staging.display().to_string();
        let request = NodeUnstageVolumeRequest { volume_id: volume.to_owned(), staging_target_path };
        self.bed.runtime.block_on(self.client().node_unstage_volume(request)).map(drop)
    }

    pub fn stats(&self, volume: &str, path: &Path) -> Result<VolumeUsage, Status> {
        let request = NodeGetVolumeStatsRequest {
            volume_id: volume.to_owned(),
            volume_path: path.display().to_string(),
            ..Default::default()
        };
        let answer = self.bed.runtime.block_on(self.client().node_get_volume_stats(request))?;
        Ok(answer.into_inner().usage.pop().expect("usage"))
    }

    /// Attaches, stages and publishes the volume, and returns where.
    pub fn mounted(&self, volume: &str, node: &str, block: bool) -> Mounted {
        self.bed.attach(volume, node);
        let staging = self.bed.path(&format!("{node}/staging/{volume}"));
        let target = self.bed.path(&format!("{node}/pods/{volume}"));
        self.stage(volume, &staging, block).expect("staged");
        self.publish(volume, &staging, &target, block, false).expect("published");
        Mounted { staging, target }
    }
}

pub struct Mounted {
    pub staging: PathBuf,
    pub target: PathBuf,
}

pub fn channel(runtime: &Runtime, socket: &Path) -> Channel {
    let _entered = runtime.enter();
    client::connect(socket.to_str().expect("path")).expect("address")
}

pub fn code<T>(answer: Result<T, Status>) -> Code {
    answer.err().map_or(Code::Ok, |status| status.code())
}

pub fn capability(block: bool) -> VolumeCapability {
    let access_type = if block { AccessType::Block(BlockVolume {}) } else { AccessType::Mount(Default::default()) };
    VolumeCapability {
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
        access_type: Some(access_type),
    }
}

/// Polls `look` until it is true.
pub fn wait(what: &str, mut look: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !look() {
        assert!(Instant::now() < deadline, "not seen in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs a command that must succeed.
pub fn run(program: &Path, args: &[&str]) {
    let output = Command::new(program).args(args).output().expect("program");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

#[expect(unsafe_code, reason = "the call is unsafe for the sake of another flag")]
fn own_mount_namespace() {
    // SAFETY: file descriptors stay shared; only mounts, root and working directory become the thread's own.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::FS) }.expect("root");
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).expect("root");
}
