//! The cluster that is measured: bound claims, and two servers that stand for all servers of all volumes.

use std::path::Path;
use std::time::{Duration, Instant};

use bulkhead::api::shared_volume::SharedVolume;
use bulkhead_testbed::cluster::{Cluster, ClusterOptions};
use bulkhead_testbed::nfs_server::{Mode, Server, reachable_address};
use bulkhead_testbed::process::Process;
use bulkhead_testbed::{Identity, TestbedOptions};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::Result;

use super::super::health::watched;

/// Where everything is.
pub const NAMESPACE: &str = "default";
/// The time by which anything must be done. How long it took is measured; a loaded machine must not end a run.
pub const LIMIT: Duration = Duration::from_secs(300);
/// Requests at once.
const AT_ONCE: usize = 32;

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
        let testbed = TestbedOptions {
            scheduler: false,
            node_monitor_grace_period: Duration::from_secs(86400),
            // Binding all those claims is not what is measured.
            controller_manager_qps: 2000,
            controller_manager_burst: 4000,
            ..TestbedOptions::default()
        };
        let cluster = Cluster::start(ClusterOptions {
            testbed,
            programs: Some(programs.to_owned()),
            arrays: Vec::new(),
            nodes: 0,
            controller: false,
            ..ClusterOptions::default()
        })
        .await?;
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
            self.create::<PersistentVolume>(None, volume(name)).await?;
            self.create::<PersistentVolumeClaim>(Some(NAMESPACE), claim(name)).await
        });
        self.at_once(creations).await?;
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.admin.clone(), NAMESPACE);
        let is_bound = |claim: &PersistentVolumeClaim| {
            claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
        };
        let deadline = Instant::now() + LIMIT;
        loop {
            let open = claims.list(&ListParams::default()).await?.items.iter().filter(|it| !is_bound(it)).count();
            if open == 0 {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("{open} claims are not bound").into());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
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
        let creations = names.iter().map(|name| self.create::<SharedVolume>(Some(NAMESPACE), volume(name)));
        self.at_once(creations).await
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
        self.at_once(names.iter().map(|name| self.switch(name, to))).await
    }

    async fn at_once<T>(&self, work: impl Iterator<Item = impl Future<Output = Result<T>>>) -> Result<()> {
        stream::iter(work.collect::<Vec<_>>()).buffer_unordered(AT_ONCE).try_collect::<Vec<T>>().await?;
        Ok(())
    }

    async fn create<K>(&self, namespace: Option<&str>, object: Value) -> Result<K>
    where
        K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Serialize,
    {
        let url = K::url_path(&(), namespace);
        let request = kube::core::Request::new(url).create(&PostParams::default(), serde_json::to_vec(&object)?)?;
        Ok(self.admin.request(request).await?)
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
