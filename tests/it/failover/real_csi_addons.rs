//! Method NetworkFence by csi-addons itself: its controllers, and its sidecar beside the driver's controller and its plugins. What
//! the played one of [`network_fences`](super::network_fences) does by habit, this one must be seen to do.

use bulkhead::api::fencing::{FenceMethodType, Proof};
use bulkhead::api::network_fence::NetworkFence;
use bulkhead_testbed::array::Method;
use bulkhead_testbed::cluster::{Cluster, ClusterOptions};
use bulkhead_testbed::csi_addons::real::{self, RealCsiAddons};
use bulkhead_testbed::here;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use libtest_mimic::{Completion, Failed, Trial};
use serde_json::json;

use super::fleet::{Lane, LaneOptions, SOON, options};
use super::kept::Kept;
use super::look::volume_row;
use super::network_fences::{by, can_fence, has_addresses, is_on_record};

const NAME: &str = "netreal";
/// By what the array knows the victim: behind a NAT, so nobody but the driver tells it.
const VICTIM: &str = "192.0.2.1/32";

/// Left out, with the reason, where it cannot run or cannot be had. In CI nothing is left out.
pub fn trial() -> Trial {
    Trial::ignorable_test("failover::the_real_csi_addons_shuts_a_node_out", || {
        if !here::is_ci()
            && let Err(lacking) = real::ensure()
        {
            return Ok(Completion::ignored_with(lacking.to_string()));
        }
        tokio::runtime::Runtime::new()?.block_on(the_real_csi_addons_shuts_a_node_out())?;
        Ok(Completion::Completed)
    })
}

async fn the_real_csi_addons_shuts_a_node_out() -> Result<(), Failed> {
    let cluster = Cluster::start(ClusterOptions { arrays: Vec::new(), nodes: 2, ..options() }).await?;
    let mut lane =
        Lane::new(&cluster, NAME, LaneOptions { sidecar: false, policy: by(NAME), ..LaneOptions::default() }).await?;
    let mut csi_addons = RealCsiAddons::start(&cluster.testbed, cluster.client.clone(), lane.array(), NAME).await?;
    is_told(&cluster, &mut lane, &mut csi_addons).await.map_err(|error| with_logs(error, &csi_addons))?;

    let set = lane.workload("db");
    lane.run(&set).await?;
    lane.victim()?.kill().await;
    lane.moved(&set).await.map_err(|error| with_logs(error, &csi_addons))?;
    let fence = lane.detached().await?;
    let row = volume_row(&fence, &set.volume_name(0, 0)).ok_or("no row")?;
    assert_eq!((row.method, row.proof), (Some(FenceMethodType::NetworkFence), Proof::Acknowledged));
    assert_eq!(lane.array().shut_out(), [VICTIM]);
    let made = fences(&lane).await?;
    let [made] = made.as_slice() else { return Err(format!("{made:?}").into()) };
    assert_is_as_we_take_it(made);
    is_worked_on_again(&lane, &mut csi_addons).await.map_err(|error| with_logs(error, &csi_addons))?;
    let uids: Vec<_> = fences(&lane).await?.iter().map(ResourceExt::uid).collect();
    assert_eq!(uids, [made.uid()], "another one was made");

    lane.victim()?.reboot().await?;
    lane.recovered().await.map_err(|error| with_logs(error, &csi_addons))?;
    assert_eq!(lane.array().shut_out(), [] as [String; 0]);
    assert!(lane.array().calls().count(Method::UnfenceClusterNetwork) > 0, "nobody was asked to let it in");
    let gone = async || {
        let left = fences(&lane).await.map_err(|error| format!("{error:?}"));
        Ok(left.and_then(|left| if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }))
    };
    cluster.wait("the NetworkFence is gone", SOON, gone).await?;
    lane.end().await
}

/// csi-addons gets to know the driver, and tells our sidecar by what the array knows the nodes.
async fn is_told(cluster: &Cluster, lane: &mut Lane<'_>, csi_addons: &mut RealCsiAddons) -> Result<(), Failed> {
    csi_addons.beside_controller(lane.array(), "node-1").await?;
    for (number, node) in (1..).zip(&lane.nodes) {
        lane.array().set_client_address(node.csi_node_id(), &format!("192.0.2.{number}"))?;
        has_addresses(cluster, node.name(), &[]).await?;
        csi_addons.beside_plugin(lane.array(), node).await?;
    }
    lane.sidecar = Some(Kept::new(cluster.sidecar(lane.array())?));
    can_fence(cluster, lane.array().driver_name()).await?;
    is_on_record(cluster, lane.array().driver_name(), lane.victim()?.name(), VICTIM).await
}

/// All that our sidecar goes by (docs/adr/0027).
fn assert_is_as_we_take_it(made: &NetworkFence) {
    assert!(made.is_fenced(), "{:?}", made.status);
    let theirs = "csiaddons.openshift.io/network-fence";
    assert!(made.finalizers().iter().any(|finalizer| finalizer == theirs), "{:?}", made.finalizers());
    // With its finalizer it wrote the whole object, and called the driver only then.
    assert_eq!(made.metadata.generation, Some(2));
    assert_eq!(json!(made.spec.others), json!({ "driver": "", "secret": {} }));
}

/// After a restart it works on every object again, and that changes nothing.
async fn is_worked_on_again(lane: &Lane<'_>, csi_addons: &mut RealCsiAddons) -> Result<(), Failed> {
    let fenced = || lane.array().calls().count(Method::FenceClusterNetwork);
    // Once for each generation.
    let twice = async || Ok(if fenced() >= 2 { Ok(()) } else { Err(format!("{} calls", fenced())) });
    lane.cluster.wait("it is worked on for its new generation", SOON, twice).await?;
    csi_addons.kill_controllers().await;
    // The old ones tried again whatever had failed: that is no call of the new ones.
    let before = fenced();
    csi_addons.start_controllers()?;
    let again = async || Ok(if fenced() > before { Ok(()) } else { Err(format!("{before} calls")) });
    Ok(lane.cluster.wait("it is worked on again", SOON, again).await?)
}

async fn fences(lane: &Lane<'_>) -> Result<Vec<NetworkFence>, Failed> {
    Ok(Api::<NetworkFence>::all(lane.client()).list(&ListParams::default()).await?.items)
}

fn with_logs(error: Failed, csi_addons: &RealCsiAddons) -> Failed {
    format!("{error:?}\n{}", csi_addons.logs()).into()
}
