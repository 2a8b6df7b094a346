//! The cluster that is measured: bound claims, and two servers that stand for all servers of all volumes.

use std::path::Path;
use std::time::Duration;

use bulkhead::api::shared_volume::SharedVolume;
use bulkhead_testbed::Identity;
use bulkhead_testbed::cluster::{Cluster, ClusterOptions};
use bulkhead_testbed::nfs_server::{Mode, Server, reachable_address};
use bulkhead_testbed::process::Process;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::Result;

use super::super::objects::{at_once, claims_are_bound, create};
use super::super::watched;

/// Where everything is.
pub const NAMESPACE: &str = "default";
/// The time by which anything must be done. How long it took is measured; a loaded machine must not end a run.
pub const LIMIT: Duration = Duration::from_secs(300);

/// The cluster.
pub struct World {
    /// A client that may do everything.
    pub admin: Client,
    /// Candidates `a` and `b` of all volumes.
    pub servers: [Server; 2],
    /// Our controller.
    pub controller: Process,
    /// The rest.
    pub cluster: Cluster,
}

impl World {
    /// Starts everything.
    pub async fn start(programs: &Path) -> Result<Self> {
        let mut options = ClusterOptions::without_nodes(Some(programs.to_owned()));
        options.testbed.scheduler = false;
        // Binding all those claims is not what is measured.
        options.testbed.controller_manager_qps = 2000;
        options.testbed.controller_manager_burst = 4000;
        let cluster = Cluster::start(options).await?;
        let admin = cluster.testbed.client(&Identity::Admin).await?;
        let here = reachable_address()?;
        let servers = [Server::start(here, Mode::Serves).await?, Server::start(here, Mode::Serves).await?];
        let mut controller = cluster.controller("bulkhead-controller-0")?;
        watched::ready(&mut controller, LIMIT).await?;
        Ok(Self { admin, servers, controller, cluster })
    }

    /// Creates volumes with their claims and waits until they are bound.
    pub async fn add_claims(&self, names: &[String]) -> Result<()> {
        let creations = names.iter().map(|name| async move {
            create::<PersistentVolume>(&self.admin, None, volume(name)).await?;
            create::<PersistentVolumeClaim>(&self.admin, Some(NAMESPACE), claim(name)).await
        });
        at_once(creations).await?;
        claims_are_bound(&self.admin, NAMESPACE, LIMIT).await
    }

    /// Creates SharedVolumes for claims of their names, with server `a` active.
    pub async fn add_shared_volumes(&self, names: &[String], endpoints: &str) -> Result<()> {
        let server = |(name, server): (&str, &Server)| {
            json!({
                "name": name, "addresses": [server.address.ip()], "ports": [{ "name": "nfs", "port": server.port() }],
            })
        };
        let candidates: Vec<_> = ["a", "b"].into_iter().zip(&self.servers).map(server).collect();
        let volume = |name: &String| {
            json!({
                "apiVersion": "bulkhead.dev/v1alpha1", "kind": "SharedVolume",
                "metadata": { "name": name, "namespace": NAMESPACE },
                "spec": {
                    "claimName": name, "service": { "endpoints": endpoints },
                    "backend": { "static": { "candidates": candidates } },
                    "failover": { "mode": "Manual", "activeCandidate": "a" },
                },
            })
        };
        let creations = names.iter().map(|name| create::<SharedVolume>(&self.admin, Some(NAMESPACE), volume(name)));
        at_once(creations).await
    }

    /// Says which server shall be active.
    pub async fn switch(&self, name: &str, to: &str) -> Result<()> {
        let api: Api<SharedVolume> = Api::namespaced(self.admin.clone(), NAMESPACE);
        let patch = Patch::Merge(json!({ "spec": { "failover": { "activeCandidate": to } } }));
        api.patch(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// The same of many.
    pub async fn switch_all(&self, names: &[String], to: &str) -> Result<()> {
        at_once(names.iter().map(|name| self.switch(name, to))).await
    }
}

fn volume(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteMany"], "storageClassName": "",
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": { "kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": NAMESPACE, "name": name },
            "csi": { "driver": "csi.storage.example.com", "volumeHandle": name },
        },
    })
}

fn claim(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": name,
            "resources": { "requests": { "storage": "1Gi" } },
        },
    })
}
