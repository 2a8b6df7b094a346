//! A control plane with scheduler, the shipped controller under its shipped rights, the namespace of Mountpoint Pods as it is
//! shipped, with a ResourceQuota, and nodes whose kubelet and node service are played.

use std::path::PathBuf;
use std::time::Duration;

use bulkhead::api::s3;
use bulkhead_testbed::Identity;
use bulkhead_testbed::cluster::{Cluster, ClusterOptions};
use bulkhead_testbed::mount_nodes::{self, MountNodes};
use kube::Client;
use libtest_mimic::Failed;
use serde_json::json;

use crate::failover::kept::Kept;
use crate::shared;

/// Long enough for a loaded machine; nothing waits this long when it works. Shorter than the stale sweep takes (2 minutes),
/// so that nothing passes only because of it.
pub const SOON: Duration = Duration::from_secs(100);

/// Arguments of every controller here.
const ALWAYS: [&str; 2] = ["--mountpoint-image=mounter:test", "--mountpoint-version=1.2.3"];

/// The cluster.
pub struct World {
    pub nodes: MountNodes,
    /// Where Mountpoint Pods are.
    pub namespace: &'static str,
    pub admin: Client,
    kept: Option<Kept>,
    pub cluster: Cluster,
}

impl shared::World for World {
    async fn start_shared() -> Result<Self, Failed> {
        let mut world = Self::start(&["--s3-orphan-after=10s"]).await?;
        world.cluster.start_controller().await?;
        world.kept = Some(Kept::new(world.cluster.controllers.remove(0)));
        Ok(world)
    }
}

impl World {
    /// Everything but the controller, which will have these arguments.
    pub async fn start(arguments: &[&str]) -> Result<Self, Failed> {
        Self::start_in(s3::MOUNTPOINT_NAMESPACE, arguments).await
    }

    /// The same with another namespace for Mountpoint Pods, which the arguments name too.
    pub async fn start_in(namespace: &'static str, arguments: &[&str]) -> Result<Self, Failed> {
        let cluster = Cluster::start(options(arguments)).await?;
        mount_nodes::install(&cluster.testbed, namespace).await?;
        limit(&cluster, namespace).await?;
        let admin = cluster.testbed.client(&Identity::Admin).await?;
        let nodes = MountNodes::new(cluster.testbed.client(&Identity::TestbedNodes).await?, namespace);
        Ok(Self { nodes, namespace, admin, kept: None, cluster })
    }
}

fn options(arguments: &[&str]) -> ClusterOptions {
    let controller = PathBuf::from(env!("CARGO_BIN_EXE_bulkhead-controller"));
    let controller_args = ALWAYS.iter().chain(arguments).map(ToString::to_string).collect();
    let programs = controller.parent().map(PathBuf::from);
    ClusterOptions { controller_args, ..ClusterOptions::without_nodes(programs) }
}

/// A quota under which each Mountpoint Pod has to say what it needs.
async fn limit(cluster: &Cluster, namespace: &str) -> Result<(), Failed> {
    let amounts = ["requests.cpu", "requests.memory", "limits.memory"];
    let hard: serde_json::Map<_, _> = amounts.into_iter().map(|amount| (amount.to_owned(), json!("1Ti"))).collect();
    let quota = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": { "name": "all", "namespace": namespace }, "spec": { "hard": hard },
    }))?;
    Ok(cluster.testbed.apply(vec![quota]).await?)
}
