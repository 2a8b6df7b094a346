//! The product as it is shipped on real nodes: kubelets, containers, mounts, and a zombie that really writes. One cluster for
//! all tests but one, one test after the other. Needs Linux and root. A few run always, all with `BULKHEAD_WIDE=1`.

mod bed;
mod bundle;
mod certify;
mod cleaning;
mod failures;
mod health;
mod helm;
mod metrics;
mod remains;
mod s3;
mod s3_faults;
mod scenes;
mod self_fencing;
mod shared_volume;
mod story;
mod table;

use std::sync::Arc;

use bulkhead_testbed::cluster::real::RealCluster;
use bulkhead_testbed::ganesha::Ganesha;
use bulkhead_testbed::{here, real_nodes};
use libtest_mimic::{Arguments, Failed, Trial};

use bed::Bed;
use cleaning::{At, Strike, struck};
use table::Scene;

/// Why a test failed.
type Outcome = Result<(), Failed>;

fn main() {
    let mut arguments = Arguments::from_args();
    // Each breaks the nodes that all share.
    arguments.test_threads = Some(1);
    let bed = Arc::new(Bed::new());
    let wide = std::env::var_os("BULKHEAD_WIDE").is_some();
    let cells = table::cells().into_iter().filter(|cell| wide || cell.is_ordinary());
    let cells = cells.map(|cell| trial(&bed, &cell.name(), async move |cluster| failures::play(cluster, cell).await));
    let scenes = table::SCENES.iter().filter(|row| wide || row.ordinary);
    let scenes = scenes.map(|row| trial(&bed, row.name, async |cluster| play(cluster, row.scene).await));
    // Before the others have a cluster, which would slow it down.
    let alone = wide.then(|| {
        let bed = bed.clone();
        Trial::test(table::ALONE.0, move || bed.alone(helm::upgraded_in_the_middle()))
    });
    let mut trials: Vec<_> = alone.into_iter().chain(cells).chain(scenes).collect();
    trials.push(trial(&bed, "metrics_are_named_well", async |cluster| metrics::are_named_well(cluster).await));
    let bundled = "a_bundle_has_logs_and_metrics";
    trials.push(trial(&bed, bundled, async |cluster| bundle::has_logs_and_metrics(cluster).await));
    if let Some(lacking) = here::lacking(arguments.list, || match real_nodes::check() {
        Ok(()) => Ganesha::find().map(drop).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    }) {
        trials = trials.into_iter().map(|trial| here::unless(Some(&lacking), trial)).collect();
    }
    trials.push(Trial::test("the_docs_have_the_table", the_docs_have_the_table));
    let conclusion = libtest_mimic::run(&arguments, trials);
    // The nodes end before this process does.
    drop(bed);
    conclusion.exit();
}

async fn play(cluster: &RealCluster, scene: Scene) -> Outcome {
    match scene {
        Scene::LeaderOnTheFailingNode => scenes::leader_on_the_failing_node(cluster).await,
        Scene::StorageLinkAlone => scenes::storage_link_alone(cluster).await,
        Scene::FiftyMounts => cleaning::fifty_mounts(cluster).await,
        Scene::AgentMissing => cleaning::agent_missing(cluster).await,
        Scene::ProcessHoldsMount => cleaning::process_holds_mount(cluster).await,
        Scene::RebootWhileCleaning => struck(cluster, At::Cleaning, Strike::Reboot).await,
        Scene::AgentKilledInInventory => struck(cluster, At::Inventory, Strike::KillAgent).await,
        Scene::AgentKilledWhileCleaning => struck(cluster, At::Cleaning, Strike::KillAgent).await,
        Scene::AgentKilledAfterOnePass => struck(cluster, At::OnePass, Strike::KillAgent).await,
        Scene::AgentPodDeletedWhileCleaning => struck(cluster, At::Cleaning, Strike::DeleteAgentPod).await,
        Scene::ControllerKilledWhileCleaning => struck(cluster, At::Cleaning, Strike::KillLeader).await,
        Scene::BlockVolume => scenes::block_volume(cluster).await,
        Scene::NodeMadeAnew => scenes::node_made_anew(cluster).await,
        Scene::TwoOfThree => scenes::two_of_three(cluster).await,
        Scene::TwoOfThreeWithBrakes => scenes::two_of_three_with_brakes(cluster).await,
        Scene::SelfFencing => self_fencing::ends_before_the_fence(cluster).await,
        Scene::DeadFileServer => health::dead_file_server(cluster).await,
        Scene::LocalFolderGone => health::local_folder_gone(cluster).await,
        Scene::DeadFileServerMoves => health::dead_file_server_moves_the_pod(cluster).await,
        Scene::DeletedInTheBackend => health::deleted_in_the_backend(cluster).await,
        Scene::UnpublishedBehind => health::unpublished_behind(cluster).await,
        Scene::SharedVolume => health::shared_volume(cluster).await,
        Scene::NodeWithLocalVolumes => health::node_with_local_volumes(cluster).await,
        Scene::SharedMountpointPod => s3::shared_mountpoint_pod(cluster).await,
        Scene::ReadOnlyBuckets => s3::read_only(cluster).await,
        Scene::MountProgramKilled => s3::mount_program_killed(cluster).await,
        Scene::MountpointPodDeleted => s3_faults::mountpoint_pod_deleted(cluster).await,
        Scene::MountpointPodFailed => s3_faults::mountpoint_pod_failed(cluster).await,
        Scene::MountpointContainerKilled => s3_faults::mountpoint_container_killed(cluster).await,
        Scene::CsiServiceRestarted => s3_faults::csi_service_restarted(cluster).await,
        Scene::KubeletRestarted => s3_faults::kubelet_restarted(cluster).await,
        Scene::ControllerKilledInTheMiddle => s3_faults::controller_killed_in_the_middle(cluster).await,
        Scene::NodeDrained => s3_faults::node_drained(cluster).await,
        Scene::CredentialsRotated => s3_faults::credentials_rotated(cluster).await,
        Scene::CredentialsIsolated => s3_faults::credentials_isolated(cluster).await,
        Scene::BucketPerClaim => s3_faults::bucket_per_claim(cluster).await,
        Scene::DriverCertified => certify::driver_certified(cluster).await,
        Scene::DriverLies => certify::driver_lies(cluster).await,
        Scene::NfsServerMoves => shared_volume::nfs_server_moves(cluster).await,
    }
}

/// What is expected is written where people read it, as the tests have it.
fn the_docs_have_the_table() -> Outcome {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/testbed.md");
    let table = table::markdown();
    let has = std::fs::read_to_string(path)?.contains(&table);
    if has { Ok(()) } else { Err(format!("docs/testbed.md lacks these tables:\n\n{table}").into()) }
}

fn trial<T>(bed: &Arc<Bed>, name: &str, test: T) -> Trial
where
    T: AsyncFn(&RealCluster) -> Outcome + Send + 'static,
{
    let bed = bed.clone();
    Trial::test(name, move || bed.run(test))
}
