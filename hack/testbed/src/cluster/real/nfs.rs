//! A volume that an NFS server exports on real nodes: nfs-ganesha in a pod with a claim, and pods with a client that keeps a
//! file of it open.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::{DateTime, Utc};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::{PodPlace, RealCluster, protected, workload};
use crate::cluster::{ClusterError, wait};
use crate::ganesha::{self, EXPORT, EXPORTED, Ganesha, IMAGE, READER, RECOVERY};
use crate::images::{self, ImagesError};
use crate::journal::{RECORD, number};

/// The namespace of servers and clients.
const NAMESPACE: &str = "default";
/// The one container of a client.
const CLIENT: &str = "client";

/// A server of one volume: a Deployment of one pod, and a claim, both of one name. Its pods have the label `app` with that
/// name, and are protected.
#[derive(Clone, Debug)]
pub struct NfsExport {
    /// The name.
    pub name: String,
    /// The nodes that may run it; the first of them that can does.
    pub nodes: Vec<String>,
}

/// What a client said, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// By the machine's clock.
    pub at: DateTime<Utc>,
    /// The rest of the line.
    pub what: String,
}

impl NfsExport {
    fn claim(&self, class: &str) -> Result<PersistentVolumeClaim, serde_json::Error> {
        serde_json::from_value(json!({
            "metadata": {"name": self.name},
            "spec": {
                "storageClassName": class,
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "64Mi"}},
            },
        }))
    }

    fn deployment(&self) -> Result<Deployment, serde_json::Error> {
        let mut labels = protected();
        labels.insert("app".to_owned(), self.name.clone());
        let nodes = |names: &[String]| json!([{"key": "kubernetes.io/hostname", "operator": "In", "values": names}]);
        let first = self.nodes.get(..1).unwrap_or_default();
        serde_json::from_value(json!({
            "metadata": {"name": self.name},
            "spec": {
                "replicas": 1,
                "strategy": {"type": "Recreate"},
                "selector": {"matchLabels": {"app": self.name}},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "automountServiceAccountToken": false,
                        "terminationGracePeriodSeconds": 5,
                        "affinity": {"nodeAffinity": {
                            "requiredDuringSchedulingIgnoredDuringExecution": {
                                "nodeSelectorTerms": [{"matchExpressions": nodes(&self.nodes)}],
                            },
                            "preferredDuringSchedulingIgnoredDuringExecution": [
                                {"weight": 100, "preference": {"matchExpressions": nodes(first)}},
                            ],
                        }},
                        "containers": [{
                            "name": "nfs",
                            "image": IMAGE,
                            "imagePullPolicy": "Never",
                            "ports": [{"name": "nfs", "containerPort": ganesha::PORT}],
                            "readinessProbe": {"tcpSocket": {"port": "nfs"}, "periodSeconds": 1},
                            // It opens files by their handles.
                            "securityContext": {"capabilities": {"add": ["DAC_READ_SEARCH"]}},
                            "volumeMounts": [
                                {"name": "data", "mountPath": EXPORTED, "subPath": "exported"},
                                {"name": "data", "mountPath": RECOVERY, "subPath": "recovery"},
                                {"name": "scratch", "mountPath": "/tmp"},
                            ],
                        }],
                        "volumes": [
                            {"name": "data", "persistentVolumeClaim": {"claimName": self.name}},
                            // Where it tries which locks there are.
                            {"name": "scratch", "emptyDir": {}},
                        ],
                    },
                },
            },
        }))
    }
}

/// A client: a pod on `node` that keeps a file of the server open and does not come back when it ends.
fn client(name: &str, node: &str, server: SocketAddr) -> Result<Pod, serde_json::Error> {
    let path = format!("{EXPORT}/{name}");
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "restartPolicy": "Never",
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [{
                "name": CLIENT,
                "image": IMAGE,
                "imagePullPolicy": "Never",
                "command": [ganesha::CLIENT],
                "args": [format!("--server={server}"), format!("--path={path}"), format!("--name={name}")],
            }],
        },
    }))
}

/// The archive of the image of servers and clients.
pub(super) fn archive(programs: &Path, folder: &Path) -> Result<PathBuf, ClusterError> {
    let archive = folder.join("testbed-nfs.tar");
    let client = folder.join("testbed-nfs-client");
    images::strip(&programs.join("testbed-nfs-client"), &client)?;
    let server = Ganesha::find()?;
    let settings = folder.join("testbed-nfs.conf");
    std::fs::write(&settings, server.settings_of_image())
        .map_err(|source| ClusterError::File { path: settings.clone(), source })?;
    let image = server.image(&settings, &client)?;
    image.write(&archive).map_err(ImagesError::from)?;
    Ok(archive)
}

impl RealCluster {
    /// Creates a server with its claim; it does not run yet.
    ///
    /// # Errors
    /// When the API server refuses them.
    pub async fn create_nfs_export(&self, export: &NfsExport) -> Result<(), ClusterError> {
        let create = PostParams::default();
        let claim = export.claim(self.array.driver_name())?;
        Api::namespaced(self.client.clone(), NAMESPACE).create(&create, &claim).await?;
        Api::namespaced(self.client.clone(), NAMESPACE).create(&create, &export.deployment()?).await?;
        Ok(())
    }

    /// Waits until the server runs and can be connected to, in another pod than `but`.
    ///
    /// # Errors
    /// When it does not in time; the error says what it waits for.
    pub async fn nfs_export_runs(
        &self,
        export: &NfsExport,
        but: Option<&PodPlace>,
        limit: Duration,
    ) -> Result<PodPlace, ClusterError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let selected = ListParams::default().labels(&format!("app={}", export.name));
        wait::until(&format!("the server {} is Ready", export.name), limit, async || {
            let all = pods.list(&selected).await?;
            let place = all.iter().filter_map(workload::place_of).find(|place| Some(place) != but);
            let Some(place) = place else { return Ok(Err(self.waiting().await?.join("; "))) };
            Ok(Ok(place))
        })
        .await
    }

    /// Deletes a server, and its volume with it, and waits until its pods are gone.
    ///
    /// # Errors
    /// When they are not gone in time.
    pub async fn end_nfs_export(&self, export: &NfsExport, limit: Duration) -> Result<(), ClusterError> {
        let (client, name, delete) = (self.client.clone(), &export.name, DeleteParams::background());
        Api::<Deployment>::namespaced(client.clone(), NAMESPACE).delete(name, &delete).await?;
        Api::<PersistentVolumeClaim>::namespaced(client.clone(), NAMESPACE).delete(name, &delete).await?;
        let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
        let selected = ListParams::default().labels(&format!("app={name}"));
        wait::until(&format!("the pods of {name} are gone"), limit, async || {
            let left: Vec<_> = pods.list(&selected).await?.iter().map(ResourceExt::name_any).collect();
            Ok(if left.is_empty() { Ok(()) } else { Err(left.join(", ")) })
        })
        .await
    }

    /// Runs a client of the server at this address, and waits until the server said that a record of it is safe.
    ///
    /// # Errors
    /// When there is none in time; the error has what the client said.
    pub async fn run_nfs_client(
        &self,
        name: &str,
        node: &str,
        server: SocketAddr,
        limit: Duration,
    ) -> Result<PodPlace, ClusterError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        pods.create(&PostParams::default(), &client(name, node, server)?).await?;
        let place = self.shell_runs(name, limit).await?;
        wait::until(&format!("a record of {name}"), limit, async || {
            let said = self.said(&place)?;
            let wrote = said.iter().any(|line| line.what.starts_with("wrote "));
            Ok(if wrote { Ok(()) } else { Err(format!("{said:?}")) })
        })
        .await?;
        Ok(place)
    }

    /// How many records without a gap libnfs reads from a client's file, in the client's pod: another program than the one
    /// that wrote them. A server that has just started lets nobody open anything anew for some seconds.
    ///
    /// # Errors
    /// When it cannot be read in time.
    pub async fn read_by_libnfs(
        &self,
        client: &PodPlace,
        server: SocketAddr,
        limit: Duration,
    ) -> Result<u64, ClusterError> {
        let (host, port) = (server.ip(), server.port());
        let url = format!("nfs://{host}{EXPORT}/{}?version=4&nfsport={port}", client.name);
        let exec = ["exec", "--namespace", NAMESPACE, &client.name, "--", READER, &url];
        let text = wait::until("libnfs reads the file", limit, async || {
            Ok(self.testbed.kubectl(&exec).await.map_err(|error| error.to_string()))
        })
        .await?;
        let records = text.as_bytes().chunks_exact(RECORD).map(number);
        let whole = (1..).zip(records).take_while(|(expected, found)| *found == Some(*expected));
        Ok(whole.map(|(number, _)| number).last().unwrap_or(0))
    }

    /// What a client said so far, read from the disk of its node.
    ///
    /// # Errors
    /// When there is no log.
    pub fn said(&self, client: &PodPlace) -> Result<Vec<Said>, ClusterError> {
        let folder = format!("var/log/pods/{NAMESPACE}_{}_{}/{CLIENT}/0.log", client.name, client.uid);
        let path = self.node(&client.node)?.disk().join(folder);
        let log = std::fs::read_to_string(&path).map_err(|source| ClusterError::File { path, source })?;
        Ok(said(&log))
    }
}

/// The lines of a container's log: before what was printed come the runtime's own stamp, the stream's name and a flag.
fn said(log: &str) -> Vec<Said> {
    let line = |line: &str| {
        let (at, what) = line.splitn(4, ' ').nth(3)?.split_once(' ')?;
        let at = DateTime::parse_from_rfc3339(at).ok()?.with_timezone(&Utc);
        Some(Said { at, what: what.to_owned() })
    };
    log.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_said_has_its_own_time() {
        let log = "2026-11-22T18:00:00.200000001Z stdout F 2026-11-22T18:00:00.100Z wrote 7\n\
                   2026-11-22T18:00:00.300000001Z stderr F thread panicked\n\
                   2026-11-22T18:00:00.400000001Z stdout F 2026-11-22T18:0";
        let [line] = <[Said; 1]>::try_from(said(log)).expect("one whole line");
        assert_eq!(line.what, "wrote 7");
        assert_eq!(line.at.timestamp_subsec_millis(), 100);
    }
}
