//! The cluster that is measured: volumes of the S3 driver with their claims, workloads on played nodes.

use std::path::Path;
use std::time::{Duration, Instant};

use bulkhead::api::mountpoint_s3_pod_attachment::MountpointS3PodAttachment;
use bulkhead::api::{names, s3};
use bulkhead_testbed::Identity;
use bulkhead_testbed::cluster::{Cluster, ClusterOptions};
use bulkhead_testbed::mount_nodes::{self, ENDS_AFTER, MountNodes};
use bulkhead_testbed::process::Process;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::Result;

use super::super::objects::{AT_ONCE, at_once, claims_are_bound, create};
use super::super::watched;
use super::Options;

/// Where the workloads are.
pub const NAMESPACE: &str = "default";
/// The time by which anything must be done. How long it took is measured; a loaded machine must not end a run.
pub const LIMIT: Duration = Duration::from_secs(900);

/// Nodes that are not played.
const ELSEWHERE: usize = 100;

/// A workload that is to be made.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// The number of its node.
    pub node: usize,
    /// Its claim.
    pub claim: String,
    /// How long it goes on after it was deleted.
    pub ends_after: Duration,
}

/// The cluster.
pub struct World {
    /// Its nodes.
    pub nodes: MountNodes,
    /// A client that may do everything.
    pub admin: Client,
    /// Our controller.
    pub controller: Option<Process>,
    /// The rest.
    pub cluster: Cluster,
}

impl World {
    /// Starts everything.
    pub async fn start(programs: &Path, options: &Options) -> Result<Self> {
        let cluster = Cluster::start(ClusterOptions {
            controller_args: vec!["--mountpoint-image=mounter:bench".to_owned()],
            ..ClusterOptions::without_nodes(Some(programs.to_owned()))
        })
        .await?;
        mount_nodes::install(&cluster.testbed, s3::MOUNTPOINT_NAMESPACE).await?;
        let admin = cluster.testbed.client(&Identity::Admin).await?;
        let nodes = MountNodes::new(cluster.testbed.client(&Identity::TestbedNodes).await?, s3::MOUNTPOINT_NAMESPACE);
        for number in 0..options.nodes {
            nodes.add(&node(number), 2 * (options.workloads + options.keys + options.cycles)).await?;
        }
        let mut world = Self { nodes, admin, controller: None, cluster };
        world.start_controller().await?;
        Ok(world)
    }

    /// Starts the controller and waits until it is ready.
    pub async fn start_controller(&mut self) -> Result<()> {
        let controller = self.controller.insert(self.cluster.controller("bulkhead-controller-0")?);
        watched::ready(controller, LIMIT).await
    }

    /// Kills a controller and starts the next. Who is killed gives nothing back, and is dead for certain: so the next one leads
    /// at once, not when the Lease has run out.
    pub async fn replace_killed(&self, controller: Process) -> Result<Process> {
        controller.kill().await;
        let leases: Api<Lease> = Api::namespaced(self.admin.clone(), names::OPERATOR_NAMESPACE);
        match leases.delete("bulkhead-controller", &DeleteParams::default()).await {
            Err(kube::Error::Api(error)) if error.code == 404 => {}
            deleted => drop(deleted?),
        }
        let mut next = self.cluster.controller("bulkhead-controller-0")?;
        watched::ready(&mut next, LIMIT).await?;
        Ok(next)
    }

    /// Our controller.
    pub fn controller(&self) -> Result<&Process> {
        Ok(self.controller.as_ref().ok_or("the controller does not run")?)
    }

    /// Creates volumes with their claims and waits until they are bound.
    pub async fn add_volumes(&self, names: &[String]) -> Result<()> {
        let creations = names.iter().map(|name| async move {
            create::<PersistentVolume>(&self.admin, None, volume(name)).await?;
            create::<PersistentVolumeClaim>(&self.admin, Some(NAMESPACE), claim(name)).await?;
            Ok::<_, Box<dyn std::error::Error>>(())
        });
        at_once(creations).await?;
        claims_are_bound(&self.admin, NAMESPACE, LIMIT).await
    }

    /// Creates workloads in this order; returns their uids.
    pub async fn add_workloads(&self, workloads: &[Workload]) -> Result<Vec<String>> {
        let creations = workloads.iter().map(|it| create::<Pod>(&self.admin, Some(NAMESPACE), workload(it)));
        let pods: Vec<Pod> = stream::iter(creations.collect::<Vec<_>>()).buffered(AT_ONCE).try_collect().await?;
        Ok(pods.iter().map(|pod| pod.uid().unwrap_or_default()).collect())
    }

    /// Creates pods that have nothing to do with S3, on nodes that are not played.
    pub async fn add_others(&self, count: usize) -> Result<()> {
        for number in 0..ELSEWHERE {
            create::<Node>(&self.admin, None, elsewhere(number)).await?;
        }
        let creations = (0..count).map(|number| create::<Pod>(&self.admin, Some(NAMESPACE), other(number)));
        at_once(creations).await
    }

    /// Deletes workloads.
    pub async fn delete(&self, workloads: &[Workload]) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.admin.clone(), NAMESPACE);
        let deletions = workloads.iter().map(|workload| {
            let pods = pods.clone();
            async move { Ok(pods.delete(&workload.name, &DeleteParams::default()).await.map(drop)?) }
        });
        at_once(deletions).await
    }

    /// Waits until there is neither an attachment nor a Mountpoint Pod.
    pub async fn clean(&self) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        let pods: Api<Pod> = Api::namespaced(self.admin.clone(), s3::MOUNTPOINT_NAMESPACE);
        let attachments: Api<MountpointS3PodAttachment> = Api::all(self.admin.clone());
        loop {
            let params = ListParams::default();
            let left =
                (attachments.list_metadata(&params).await?.items.len(), pods.list_metadata(&params).await?.items.len());
            if left == (0, 0) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("LEAKED: {} attachments, {} Mountpoint Pods", left.0, left.1).into());
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    /// How many Mountpoint Pods there are.
    pub async fn mountpoint_pods(&self) -> Result<usize> {
        let pods: Api<Pod> = Api::namespaced(self.admin.clone(), s3::MOUNTPOINT_NAMESPACE);
        Ok(pods.list_metadata(&ListParams::default()).await?.items.len())
    }
}

/// The name of a node.
pub fn node(number: usize) -> String {
    format!("bench-{number:03}")
}

fn volume(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteMany"], "storageClassName": "",
            "persistentVolumeReclaimPolicy": "Retain", "mountOptions": ["allow-delete"],
            "claimRef": { "kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": NAMESPACE, "name": name },
            "csi": { "driver": s3::DRIVER, "volumeHandle": name, "volumeAttributes": { "bucketName": "bucket" } },
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

fn workload(workload: &Workload) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": workload.name, "namespace": NAMESPACE,
            "annotations": { ENDS_AFTER: workload.ends_after.as_millis().to_string() },
        },
        "spec": {
            "nodeName": node(workload.node), "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": workload.ends_after.as_secs() + 30,
            "containers": [{ "name": "main", "image": "app" }],
            "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": workload.claim } }],
        },
    })
}

/// Pods on nodes that do not exist are deleted by Kubernetes.
fn elsewhere(number: usize) -> Value {
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": elsewhere_name(number) } })
}

fn elsewhere_name(number: usize) -> String {
    format!("elsewhere-{number:03}")
}

/// About as large as pods are.
fn other(number: usize) -> Value {
    let environment: Vec<_> =
        (0..10).map(|it| json!({ "name": format!("VARIABLE_{it}"), "value": "some value" })).collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("other-{number}"), "namespace": NAMESPACE,
            "labels": { "app.kubernetes.io/name": "other", "pod-template-hash": "5d4f8c7b9" },
        },
        "spec": {
            "nodeName": elsewhere_name(number % ELSEWHERE), "automountServiceAccountToken": false,
            "containers": [{
                "name": "main", "image": "registry.example.com/team/app:1.2.3", "env": environment,
                "resources": { "requests": { "cpu": "100m", "memory": "128Mi" } },
            }],
            "volumes": [{ "name": "scratch", "emptyDir": {} }],
        },
    })
}
