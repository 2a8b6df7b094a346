//! A dual-stack control plane with the shipped controller under its shipped rights. Nodes and pods are objects only; NFS
//! servers are tasks of this process that answer on an address which is not loopback, as slices demand.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use bulkhead_testbed::cluster::{Cluster, ClusterOptions};
use bulkhead_testbed::nfs_server::reachable_address;
use bulkhead_testbed::{Component, Identity};
use kube::Client;
use libtest_mimic::Failed;

use super::union::Union;
use crate::failover::kept::Kept;
use crate::shared;

/// Long enough for a loaded machine; nothing waits this long when it works.
pub const SOON: Duration = Duration::from_secs(60);
/// What a watch wakes is done so soon even on a loaded machine; what waits for the next full look (a minute) is not.
/// `hack/bench shared-volume` measures the promise itself, which is a second.
pub const AT_ONCE: Duration = Duration::from_secs(10);

/// The cluster.
pub struct World {
    pub admin: Client,
    /// Watches all slices from the beginning on.
    pub union: Union,
    /// An address of this machine that is not loopback.
    pub here: IpAddr,
    kept: Option<Kept>,
    pub cluster: Cluster,
}

impl shared::World for World {
    async fn start_shared() -> Result<Self, Failed> {
        let mut world = Self::start(&[]).await?;
        world.cluster.start_controller().await?;
        world.kept = Some(Kept::new(world.cluster.controllers.remove(0)));
        Ok(world)
    }
}

impl World {
    /// Everything but the controller, which will have these arguments.
    pub async fn start(arguments: &[&str]) -> Result<Self, Failed> {
        let here = reachable_address()?;
        let cluster = Cluster::start(options(arguments)).await?;
        let admin = cluster.testbed.client(&Identity::Admin).await?;
        Ok(Self { union: Union::watch(admin.clone()), here, kept: None, admin, cluster })
    }
}

fn options(arguments: &[&str]) -> ClusterOptions {
    let controller = PathBuf::from(env!("CARGO_BIN_EXE_bulkhead-controller"));
    let controller_args = arguments.iter().map(ToString::to_string).collect();
    let programs = controller.parent().map(PathBuf::from);
    let mut options = ClusterOptions { controller_args, ..ClusterOptions::without_nodes(programs) };
    options.testbed.scheduler = false;
    // The last one counts.
    let families = vec!["--service-cluster-ip-range=10.0.0.0/16,fd00:96::/112".to_owned()];
    options.testbed.extra_args.insert(Component::ApiServer, families);
    options
}
