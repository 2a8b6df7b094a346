//! What is played, and what is expected of it. The tests are made of this table; `docs/testbed.md` shows it.

use std::fmt::Write;

use bulkhead_testbed::cluster::real::Kind;
use bulkhead_testbed::real_nodes::{Fault, NodeProgram};

/// Clean by the agent: nothing left, seen twice.
pub const BY_AGENT: &str = "TwoCleanPasses";
/// Clean by a new boot id.
pub const BY_REBOOT: &str = "Rebooted";

/// A failure of a node.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    pub name: &'static str,
    pub faults: &'static [Fault],
    pub ends: Ends,
}

/// How a failure ends, as long as nobody heals it before.
#[derive(Clone, Copy, Debug)]
pub enum Ends {
    /// The pod is replaced on another node.
    Moved {
        /// The old container goes on writing, and is refused.
        writes: bool,
        /// Why the node is clean in the end.
        clean: &'static str,
    },
    /// Nothing is done.
    LeftAlone,
}

const ZOMBIE: Ends = Ends::Moved { writes: true, clean: BY_AGENT };
const SILENT: Ends = Ends::Moved { writes: false, clean: BY_AGENT };

/// Every failure.
pub const FAILURES: [Failure; 8] = [
    Failure { name: "cut_control", faults: &[Fault::CutControl], ends: ZOMBIE },
    Failure { name: "freeze_kubelet", faults: &[Fault::Freeze(NodeProgram::Kubelet)], ends: ZOMBIE },
    Failure { name: "kill_kubelet", faults: &[Fault::Kill(NodeProgram::Kubelet)], ends: ZOMBIE },
    Failure { name: "freeze_everything", faults: &[Fault::FreezeEverything], ends: SILENT },
    Failure { name: "cut_both", faults: &[Fault::CutControl, Fault::CutStorage], ends: SILENT },
    Failure {
        name: "kill_everything",
        faults: &[Fault::KillEverything],
        ends: Ends::Moved { writes: false, clean: BY_REBOOT },
    },
    Failure { name: "kill_containerd", faults: &[Fault::Kill(NodeProgram::Containerd)], ends: Ends::LeftAlone },
    Failure { name: "freeze_containerd", faults: &[Fault::Freeze(NodeProgram::Containerd)], ends: Ends::LeftAlone },
];

/// Those that are played in every run, of each thing one.
const ORDINARY: [(&str, Kind); 3] =
    [("cut_control", Kind::StatefulSet), ("freeze_kubelet", Kind::Deployment), ("kill_everything", Kind::StatefulSet)];

/// When the node is healed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Healed {
    /// Before the first fence call.
    BeforeRelease,
    /// When the replacement writes.
    AfterRelease,
}

/// A failure, of whose node, healed when.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    pub failure: Failure,
    pub kind: Kind,
    pub healed: Healed,
}

impl Cell {
    pub fn name(&self) -> String {
        let kind = match self.kind {
            Kind::StatefulSet => "set",
            Kind::Deployment => "deployment",
        };
        let healed = match (self.failure.ends, self.healed) {
            (Ends::LeftAlone, _) => "",
            (_, Healed::BeforeRelease) => "::healed_before",
            (_, Healed::AfterRelease) => "::healed_after",
        };
        format!("{}::{kind}{healed}", self.failure.name)
    }

    /// Whether it is played in every run.
    pub fn is_ordinary(&self) -> bool {
        self.healed == Healed::AfterRelease && ORDINARY.contains(&(self.failure.name, self.kind))
    }
}

/// All cells.
pub fn cells() -> Vec<Cell> {
    let healings = |ends: &Ends| match ends {
        Ends::LeftAlone => &[Healed::AfterRelease][..],
        Ends::Moved { .. } => &[Healed::BeforeRelease, Healed::AfterRelease],
    };
    let of = |failure: Failure| {
        let kinds = [Kind::StatefulSet, Kind::Deployment].into_iter();
        kinds.flat_map(move |kind| healings(&failure.ends).iter().map(move |&healed| Cell { failure, kind, healed }))
    };
    FAILURES.into_iter().flat_map(of).collect()
}

/// What else is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scene {
    LeaderOnTheFailingNode,
    StorageLinkAlone,
    FiftyMounts,
    AgentMissing,
    ProcessHoldsMount,
    RebootWhileCleaning,
    AgentKilledInInventory,
    AgentKilledWhileCleaning,
    AgentKilledAfterOnePass,
    AgentPodDeletedWhileCleaning,
    ControllerKilledWhileCleaning,
    BlockVolume,
    NodeMadeAnew,
    TwoOfThree,
    TwoOfThreeWithBrakes,
    SelfFencing,
    DeadFileServer,
    LocalFolderGone,
    DeadFileServerMoves,
    DeletedInTheBackend,
    UnpublishedBehind,
    DriverCertified,
    DriverLies,
    SharedVolume,
    NodeWithLocalVolumes,
    SharedMountpointPod,
    ReadOnlyBuckets,
    MountProgramKilled,
    MountpointPodDeleted,
    MountpointPodFailed,
    MountpointContainerKilled,
    CsiServiceRestarted,
    KubeletRestarted,
    ControllerKilledInTheMiddle,
    NodeDrained,
    CredentialsRotated,
    CredentialsIsolated,
    BucketPerClaim,
    NfsServerMoves,
}

/// A scene, its name, whether it is played in every run, and what is expected.
pub struct Row {
    pub scene: Scene,
    pub name: &'static str,
    pub ordinary: bool,
    pub expected: &'static str,
}

const fn row(scene: Scene, name: &'static str, ordinary: bool, expected: &'static str) -> Row {
    Row { scene, name, ordinary, expected }
}

/// All scenes.
pub const SCENES: [Row; 39] = [
    row(
        Scene::LeaderOnTheFailingNode,
        "leader_on_the_failing_node",
        true,
        "another replica leads; moved, refused, cleaned by the agent",
    ),
    row(Scene::StorageLinkAlone, "storage_link_alone", true, "kubelet Ready: 0 actions; writes again when healed"),
    row(
        Scene::FiftyMounts,
        "fifty_mounts",
        false,
        "5 pods with 10 volumes each: clean-up starts 2 s after the node is Ready, and 10 s after it the taint is gone",
    ),
    row(
        Scene::AgentMissing,
        "agent_missing",
        false,
        "without an agent the taint stays, NodeClean says `AgentMissing`; the agent back: cleaned",
    ),
    row(
        Scene::ProcessHoldsMount,
        "process_holds_mount",
        false,
        "the API is back, the kubelet is frozen: `Blocked` with `ProcessHoldsMount`, the taint stays; thawed: cleaned",
    ),
    row(Scene::RebootWhileCleaning, "reboot_while_cleaning", false, "clean by the reboot"),
    row(Scene::AgentKilledInInventory, "agent_killed_in_inventory", false, "the next agent cleans"),
    row(Scene::AgentKilledWhileCleaning, "agent_killed_while_cleaning", false, "the next agent cleans"),
    row(Scene::AgentKilledAfterOnePass, "agent_killed_after_one_pass", false, "the next agent makes two passes"),
    row(Scene::AgentPodDeletedWhileCleaning, "agent_pod_deleted_while_cleaning", false, "the next agent cleans"),
    row(Scene::ControllerKilledWhileCleaning, "controller_killed_while_cleaning", false, "the next leader untaints"),
    row(Scene::BlockVolume, "block_volume", false, "moved, refused, cleaned by the agent: no loop device is left"),
    row(
        Scene::NodeMadeAnew,
        "node_made_anew",
        false,
        "deleted and registered again with the old containers: tainted again, cleaned by the agent, given back",
    ),
    row(Scene::TwoOfThree, "two_of_three_nodes", false, "without brakes both move to the third, and both are cleaned"),
    row(
        Scene::TwoOfThreeWithBrakes,
        "two_of_three_nodes_with_brakes",
        false,
        "default limits, a shorter cooldown: no NodeFence, 0 deletes; healed: both write on",
    ),
    row(
        Scene::SelfFencing,
        "self_fencing_ends_before_the_fence",
        true,
        "cut off from API and neighbours, storage up, the fence held up: the node stops its own writer, and nothing that its kubelet starts anew writes; moved, cleaned by the agent",
    ),
    row(
        Scene::DeadFileServer,
        "dead_file_server",
        true,
        "`VolumeNotMounted`, Events on claim and pod; a new pod mounts anew, and the taint goes",
    ),
    row(
        Scene::LocalFolderGone,
        "local_folder_gone",
        true,
        "`VolumeNotUsable`: a second pod is held, a new claim is bound elsewhere, the first pod is left alone; back: all is undone",
    ),
    row(
        Scene::DeadFileServerMoves,
        "dead_file_server_moves_the_pod",
        true,
        "the policy's `triggers.volumeTaints`: the old node is cut off from the volume, the pod writes on another",
    ),
    row(
        Scene::DeletedInTheBackend,
        "deleted_in_the_backend",
        false,
        "`VolumeNotUsable` by the driver's sidecar; found again: writes on",
    ),
    row(
        Scene::UnpublishedBehind,
        "unpublished_behind",
        false,
        "`VolumeNotAttached`; the attacher publishes again unhindered, the same pod writes on",
    ),
    row(
        Scene::SharedVolume,
        "shared_volume",
        false,
        "broken on one node: a pod for another is held, the one that has it is left alone; that one gone: it runs",
    ),
    row(
        Scene::NodeWithLocalVolumes,
        "node_with_local_volumes",
        false,
        "node off: `NodeDown` on its local volumes; on again: the taint goes",
    ),
    row(
        Scene::SharedMountpointPod,
        "s3_shared_mountpoint_pod",
        true,
        "two workloads share a Mountpoint Pod, one with another fsGroup has its own; what one writes the others read, and is \
         in the bucket; all gone: no s3pa, pod, mount or folder is left",
    ),
    row(
        Scene::ReadOnlyBuckets,
        "s3_read_only",
        true,
        "`ReadOnlyMany`, and a claim used read-only beside a writer: reads, writes are refused",
    ),
    row(
        Scene::MountProgramKilled,
        "s3_mount_program_killed",
        true,
        "mounted and bound anew; with `HostToContainer` the same container reads again, the other has the Event `MountDead`",
    ),
    row(
        Scene::MountpointPodDeleted,
        "s3_mountpoint_pod_deleted",
        false,
        "by eviction: another serves the same workload, `MountpointPodReplaced`; the old one ends with the workload",
    ),
    row(
        Scene::MountpointPodFailed,
        "s3_mountpoint_pod_failed",
        false,
        "ended by the kubelet, Failed: another serves the same workload",
    ),
    row(
        Scene::MountpointContainerKilled,
        "s3_mountpoint_container_killed",
        false,
        "mounter and mount-s3 killed at once, as out of memory: mounted and bound anew",
    ),
    row(
        Scene::CsiServiceRestarted,
        "s3_csi_service_restarted",
        false,
        "mounts go on; a workload that ends while it is away is cleaned up after, and the bucket's mount goes too",
    ),
    row(Scene::KubeletRestarted, "s3_kubelet_restarted", false, "mounts go on; cleaned up after"),
    row(
        Scene::ControllerKilledInTheMiddle,
        "s3_controller_killed_in_the_middle",
        false,
        "twice, as workloads come and as they go: all run, and nothing is left",
    ),
    row(
        Scene::NodeDrained,
        "s3_node_drained",
        false,
        "a workload writes until it ends, though its Mountpoint Pod is evicted with it; it is all in the bucket",
    ),
    row(
        Scene::CredentialsRotated,
        "s3_credentials_rotated",
        false,
        "another key in the Secret is in the Mountpoint Pod without anybody's doing; the old one revoked, mount-s3 that starts \
         anew uses it",
    ),
    row(
        Scene::CredentialsIsolated,
        "s3_credentials_isolated",
        false,
        "each bucket is asked for with its own Secret's key only; a key for another bucket is refused, and an Event says why",
    ),
    row(
        Scene::BucketPerClaim,
        "s3_bucket_per_claim",
        false,
        "the StorageClass makes a bucket for a claim and deletes it with the claim",
    ),
    row(
        Scene::DriverCertified,
        "driver_certified",
        true,
        "`kubectl bulkhead doctor --certify`: `Certified`; an unpublish that says OK and does nothing: `NotCertified`; nothing \
         is left",
    ),
    row(
        Scene::DriverLies,
        "driver_lies",
        false,
        "the list leaves the node out too: `NotCertified` by the writes that arrive; interrupted: nothing is left",
    ),
    row(
        Scene::NfsServerMoves,
        "nfs_server_moves",
        true,
        "the node of an NFS server dies; the server moves with its volume, the address stays, a client that has a file open \
         goes on with the same handle, and finds every record that was safe",
    ),
];

/// What is played on a cluster of its own, with `BULKHEAD_WIDE=1` only: its name, and what is expected.
pub const ALONE: (&str, &str) = (
    "upgraded_in_the_middle",
    "on a cluster of its own, by helm: installed beside a driver that runs; the fence hangs while controllers, agents, sidecars and \
     the S3 driver are replaced; then moved, refused, cleaned by the agent, the bucket mounted throughout; uninstalled as the page \
     says: no object of any kind names us, the same pod writes on",
);

/// Both tables as in `docs/testbed.md`.
pub fn markdown() -> String {
    let mut text = "| failure | as long as it lasts | healed after the release |\n|---|---|---|\n".to_owned();
    for Failure { name, ends, .. } in FAILURES {
        let (lasts, healed) = match ends {
            Ends::Moved { writes: true, clean } => ("the old container goes on, and is refused; the pod moves", clean),
            Ends::Moved { writes: false, clean } => ("no write of the old container; the pod moves", clean),
            Ends::LeftAlone => ("the kubelet says NotReady: 0 actions, the container writes on", "–"),
        };
        let _ = writeln!(text, "| `{name}` | {lasts} | {healed} |");
    }
    text += "\n| trial | expected | runs |\n|---|---|---|\n";
    for Row { name, expected, ordinary, .. } in SCENES {
        let _ = writeln!(text, "| `{name}` | {expected} | {} |", if ordinary { "always" } else { "wide" });
    }
    let (name, expected) = ALONE;
    let _ = writeln!(text, "| `{name}` | {expected} | wide |");
    text
}
