//! Where it plays: real nodes with disks, or simulated ones with an array.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bulkhead_testbed::array::Array;
use bulkhead_testbed::binaries::Binaries;
use bulkhead_testbed::cluster::real::{LocalVolume, RealCluster, RealClusterOptions};
use bulkhead_testbed::cluster::watched::{WatchedClaim, WatchedClass, create_writer, health, pod};
use bulkhead_testbed::cluster::{Cluster, ClusterOptions};
use bulkhead_testbed::ledger::Access;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;

use super::{ELSEWHERE, LIMIT, NEW_CLAIM, NEWCOMER, OTHER, POD, SPARE, USED, look};
use crate::Result;

/// The class of all volumes, and its policy.
const CLASS: &str = "enforced";
/// The node with the disk.
pub(super) const NODE: &str = "node-1";
const DISK: &str = "disk-1";

/// A cluster.
pub(super) enum Stage {
    Real(Box<RealCluster>),
    Simulated(Box<Cluster>, Arc<Array>),
}

impl Stage {
    pub async fn real(programs: &Path) -> Result<Self> {
        println!(
            "Starting: control plane, 2 real nodes with kubelets and containers, and Bulkhead from its manifests."
        );
        let options = RealClusterOptions { nodes: 2, ..RealClusterOptions::new(programs) };
        Ok(Self::Real(Box::new(RealCluster::start(options).await?)))
    }

    pub async fn simulated(programs: PathBuf) -> Result<Self> {
        println!("Nodes are simulated: there are no disks and no agents here. Local volumes on this machine are left");
        println!("out; the volumes are an array's, and its CSI driver with our sidecar says how they are.");
        tokio::task::spawn_blocking(|| Binaries::ensure(None)).await??;
        let cluster = Cluster::start(ClusterOptions { programs: Some(programs), ..ClusterOptions::default() }).await?;
        let array = cluster.arrays.first().cloned().ok_or("the cluster has no array")?;
        Ok(Self::Simulated(Box::new(cluster), array))
    }

    pub fn client(&self) -> &Client {
        match self {
            Self::Real(cluster) => &cluster.client,
            Self::Simulated(cluster, _) => &cluster.client,
        }
    }

    pub fn is_simulated(&self) -> bool {
        matches!(self, Self::Simulated(..))
    }

    pub async fn kubectl(&self, args: &[&str]) -> Result<String> {
        Ok(match self {
            Self::Real(cluster) => cluster.testbed.kubectl(args).await?,
            Self::Simulated(cluster, _) => cluster.testbed.kubectl(args).await?,
        })
    }

    /// Three volumes, all known to be good, and the pod that writes to one.
    pub async fn set_up(&self) -> Result<()> {
        let client = self.client();
        WatchedClass { name: CLASS, provisioner: None, spec: json!({}) }.create(client).await?;
        for (name, size, disk) in [(USED, "16Mi", DISK), (SPARE, "16Mi", DISK), (OTHER, "32Mi", "disk-2")] {
            self.add_volume(name, size, disk).await?;
        }
        claim(USED, Some(USED)).create(client).await?;
        create_writer(client, POD, USED, Some(NODE)).await?;
        pod(client, POD, "runs", LIMIT, look::is_running).await?;
        for name in [USED, SPARE, OTHER] {
            health(client, name, "Healthy", LIMIT, look::is_healthy).await?;
        }
        println!(
            "A VolumeHealthPolicy enforces taints on volumes of the class `{CLASS}`. {POD} writes to {USED} on {NODE}."
        );
        println!("\n$ kubectl get volumehealth\n{}", self.kubectl(&["get", "volumehealth"]).await?);
        Ok(())
    }

    async fn add_volume(&self, name: &str, size: &str, disk: &str) -> Result<()> {
        let array = match self {
            Self::Real(cluster) => {
                let volume = LocalVolume { name, node: NODE, disk, class: CLASS, size };
                return Ok(cluster.add_local_volume(&volume).await?);
            }
            Self::Simulated(_, array) => array,
        };
        let handle = array.create_volume(name, Access::SingleWriter, 1 << 24)?;
        let volume: PersistentVolume = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": size},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": CLASS,
                "csi": {"driver": array.driver_name(), "volumeHandle": handle},
            },
        }))?;
        Api::all(self.client().clone()).create(&PostParams::default(), &volume).await?;
        Ok(())
    }

    /// Breaks the disk: both of its volumes.
    pub async fn break_disk(&self) -> Result<()> {
        match self {
            Self::Real(cluster) => cluster.hide_disk(NODE, DISK).await?,
            Self::Simulated(_, array) => {
                for name in [USED, SPARE] {
                    array.lose_volume(&handle(name));
                }
            }
        }
        Ok(())
    }

    pub fn broken(&self) -> String {
        if self.is_simulated() {
            format!("Somebody deleted {USED} and {SPARE} in the array's own console.")
        } else {
            format!("The folder of a disk of {NODE} is gone, with it those of {USED} and {SPARE}.")
        }
    }

    /// Brings it back.
    pub async fn mend_disk(&self) -> Result<()> {
        match self {
            Self::Real(cluster) => cluster.show_disk(NODE, DISK).await?,
            Self::Simulated(_, array) => {
                for name in [USED, SPARE] {
                    array.find_volume(&handle(name))?;
                }
            }
        }
        Ok(())
    }

    pub fn mended(&self) -> &'static str {
        if self.is_simulated() { "The array has the volumes again." } else { "The disk is back." }
    }

    /// Who wants a volume while they are broken.
    pub async fn newcomers(&self) -> Result<()> {
        let client = self.client();
        create_writer(client, NEWCOMER, USED, Some(NODE)).await?;
        claim(NEW_CLAIM, None).create(client).await?;
        create_writer(client, ELSEWHERE, NEW_CLAIM, Some(NODE)).await?;
        Ok(())
    }
}

fn claim<'a>(name: &'a str, volume: Option<&'a str>) -> WatchedClaim<'a> {
    WatchedClaim { name, class: CLASS, size: "16Mi", volume, access: "ReadWriteOnce" }
}

/// As the array calls a volume.
fn handle(name: &str) -> String {
    format!("vol-{name}")
}
