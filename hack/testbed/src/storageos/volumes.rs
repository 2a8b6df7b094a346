//! The volumes of the control plane, and the rules by which they are attached, moved and published.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::lock::lock;

/// Where the control plane shows what was published.
const MOUNT_ENDPOINT: &str = "storageos.com/nfs/mount-endpoint";
/// How often [`Volumes::node_publish_soon`] looks.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// How a volume is attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attachment {
    /// Not at all.
    #[default]
    Detached,
    /// As a device of one node.
    Host,
    /// Through an NFS server.
    Nfs,
}

impl Attachment {
    fn as_str(self) -> &'static str {
        match self {
            Self::Detached => "detached",
            Self::Host => "host",
            Self::Nfs => "nfs",
        }
    }
}

/// What a CSI `ControllerPublishVolume` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMode {
    /// `SINGLE_NODE_WRITER`.
    SingleNodeWriter,
    /// `MULTI_NODE_MULTI_WRITER`: the only one that starts an NFS server.
    MultiNodeMultiWriter,
}

/// A rule that was to be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rule {
    /// There is no such volume.
    #[error("there is no such volume")]
    NotFound,
    /// It is attached in another way.
    #[error("the volume is attached in another way")]
    AttachedOtherwise,
    /// Only a volume that is attached as shared has an NFS server.
    #[error("the volume is not attached as shared")]
    NotShared,
    /// `NodePublishVolume` cannot mount before the mount endpoint is set.
    #[error("the volume has no mount endpoint yet")]
    NoMountEndpoint,
    /// The version is not that of the volume.
    #[error("stale write: the volume has another version")]
    StaleWrite,
}

/// A volume that is to be made, as the CSI driver labels it. What is empty gets no label.
#[derive(Clone, Debug, Default)]
pub struct NewVolume<'a> {
    /// PersistentVolume; also its name.
    pub volume_name: &'a str,
    /// Claim.
    pub claim_name: &'a str,
    /// Namespace of the claim.
    pub claim_namespace: &'a str,
}

/// A volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Id.
    pub id: String,
    /// Id of its namespace.
    pub namespace_id: String,
    /// Name: that of its PersistentVolume.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// How it is attached.
    pub attachment: Attachment,
    /// Node of its master.
    pub node: String,
    /// Where its NFS server is bound.
    pub endpoint: Option<String>,
    /// Health of its master.
    pub health: String,
    /// It grows with every write.
    pub version: u64,
}

impl Volume {
    /// What is published; empty if nothing is.
    pub fn mount_endpoint(&self) -> &str {
        self.labels.get(MOUNT_ENDPOINT).map(String::as_str).unwrap_or_default()
    }

    /// As the API spells versions: nothing to count with.
    pub(super) fn version_text(&self) -> String {
        format!("v{:x}", self.version)
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "id": self.id, "name": self.name, "description": "", "namespaceID": self.namespace_id,
            "attachedOn": if self.attachment == Attachment::Detached { "" } else { &self.node },
            "nfs": { "exports": null, "serviceEndpoint": self.endpoint }, "labels": self.labels, "fsType": "ext4",
            "attachmentType": self.attachment.as_str(), "replicas": null, "sizeBytes": 1_073_741_824_u64,
            "master": { "id": format!("{}-m", self.id), "nodeID": self.node, "promotable": true, "health": self.health },
            "createdAt": "2026-11-22T00:00:00Z", "updatedAt": "2026-11-22T00:00:00Z", "version": self.version_text(),
        })
    }
}

#[derive(Debug, Default)]
struct State {
    /// Name by id.
    namespaces: BTreeMap<String, String>,
    /// By id.
    volumes: BTreeMap<String, Volume>,
    made: u64,
}

/// All volumes. Cheap to clone; all clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Volumes(Arc<Mutex<State>>);

impl Volumes {
    /// Makes a namespace; returns its id.
    pub fn create_namespace(&self, name: &str) -> String {
        let mut state = lock(&self.0);
        if let Some((id, _)) = state.namespaces.iter().find(|(_, of)| *of == name) {
            return id.clone();
        }
        let id = format!("ns-{name}");
        state.namespaces.insert(id.clone(), name.to_owned());
        id
    }

    /// CSI `CreateVolume`: a volume like every other, whatever it will be used for. Returns its id.
    pub fn create(&self, namespace_id: &str, new: &NewVolume<'_>) -> String {
        let mut state = lock(&self.0);
        state.made += 1;
        let id = format!("vol-{:04}", state.made);
        let labels = [
            ("csi.storage.k8s.io/pv/name", new.volume_name),
            ("csi.storage.k8s.io/pvc/name", new.claim_name),
            ("csi.storage.k8s.io/pvc/namespace", new.claim_namespace),
        ];
        let labels = labels.into_iter().filter(|(_, value)| !value.is_empty());
        let volume = Volume {
            id: id.clone(),
            namespace_id: namespace_id.to_owned(),
            name: new.volume_name.to_owned(),
            labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
            health: "online".to_owned(),
            version: 1,
            ..Volume::default()
        };
        state.volumes.insert(id.clone(), volume);
        id
    }

    /// CSI `DeleteVolume`.
    pub fn delete(&self, id: &str) {
        lock(&self.0).volumes.remove(id);
    }

    /// The volume.
    pub fn get(&self, id: &str) -> Option<Volume> {
        lock(&self.0).volumes.get(id).cloned()
    }

    /// CSI `ControllerPublishVolume`. Only [`AccessMode::MultiNodeMultiWriter`] attaches as shared, with an NFS server bound to
    /// `endpoint` on the node of the master.
    ///
    /// # Errors
    /// When it is attached in another way.
    pub fn controller_publish(&self, id: &str, mode: AccessMode, node: &str, endpoint: &str) -> Result<(), Rule> {
        self.change(id, |volume| {
            let wanted = match mode {
                AccessMode::SingleNodeWriter => Attachment::Host,
                AccessMode::MultiNodeMultiWriter => Attachment::Nfs,
            };
            if volume.attachment != Attachment::Detached && volume.attachment != wanted {
                return Err(Rule::AttachedOtherwise);
            }
            if volume.attachment == Attachment::Detached {
                volume.attachment = wanted;
                volume.node = node.to_owned();
                volume.endpoint = (wanted == Attachment::Nfs).then(|| endpoint.to_owned());
            }
            Ok(())
        })
    }

    /// CSI `ControllerUnpublishVolume` of the last node.
    ///
    /// # Errors
    /// When there is no such volume.
    pub fn controller_unpublish(&self, id: &str) -> Result<(), Rule> {
        self.change(id, |volume| {
            volume.attachment = Attachment::Detached;
            volume.endpoint = None;
            Ok(())
        })
    }

    /// The master's node fails: the NFS server is gone, and the volume still shared.
    ///
    /// # Errors
    /// When it is not shared.
    pub fn lose_server(&self, id: &str) -> Result<(), Rule> {
        self.change(id, |volume| {
            shared(volume)?;
            volume.endpoint = None;
            Ok(())
        })
    }

    /// The NFS server starts on that node.
    ///
    /// # Errors
    /// When it is not shared.
    pub fn serve(&self, id: &str, node: &str, endpoint: &str) -> Result<(), Rule> {
        self.change(id, |volume| {
            shared(volume)?;
            volume.node = node.to_owned();
            volume.endpoint = Some(endpoint.to_owned());
            Ok(())
        })
    }

    /// A failover as it is seen from outside: no server for `window`, then one elsewhere.
    ///
    /// # Errors
    /// When it is not shared.
    pub async fn fail_over(&self, id: &str, node: &str, endpoint: &str, window: Duration) -> Result<(), Rule> {
        self.lose_server(id)?;
        tokio::time::sleep(window).await;
        self.serve(id, node, endpoint)
    }

    /// Sets a label, or takes it.
    ///
    /// # Errors
    /// When there is no such volume.
    pub fn label(&self, id: &str, key: &str, value: Option<&str>) -> Result<(), Rule> {
        self.change(id, |volume| {
            match value {
                Some(value) => volume.labels.insert(key.to_owned(), value.to_owned()),
                None => volume.labels.remove(key),
            };
            Ok(())
        })
    }

    /// CSI `NodePublishVolume` of a shared volume: what it would mount.
    ///
    /// # Errors
    /// Until the mount endpoint is set.
    pub fn node_publish(&self, id: &str) -> Result<String, Rule> {
        let volume = self.get(id).ok_or(Rule::NotFound)?;
        shared(&volume)?;
        let endpoint = volume.mount_endpoint();
        if endpoint.is_empty() { Err(Rule::NoMountEndpoint) } else { Ok(endpoint.to_owned()) }
    }

    /// Tries until it is mounted, as a kubelet does.
    ///
    /// # Errors
    /// The last one, when it is not mounted within `patience`.
    pub async fn node_publish_soon(&self, id: &str, patience: Duration) -> Result<String, Rule> {
        let trying = async {
            loop {
                if let Ok(endpoint) = self.node_publish(id) {
                    return endpoint;
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        match tokio::time::timeout(patience, trying).await {
            Ok(endpoint) => Ok(endpoint),
            Err(_) => self.node_publish(id),
        }
    }

    /// Publishes as the API does; any version will do without one.
    pub(super) fn publish(&self, id: &str, endpoint: &str, version: Option<&str>) -> Result<(), Rule> {
        self.change(id, |volume| {
            if version.is_some_and(|version| version != volume.version_text()) {
                return Err(Rule::StaleWrite);
            }
            volume.labels.insert(MOUNT_ENDPOINT.to_owned(), endpoint.to_owned());
            Ok(())
        })
    }

    pub(super) fn namespaces(&self) -> Vec<Value> {
        let state = lock(&self.0);
        let namespaces = state.namespaces.iter().map(|(id, name)| {
            json!({
                "id": id, "name": name, "labels": {}, "createdAt": "2026-11-22T00:00:00Z",
                "updatedAt": "2026-11-22T00:00:00Z", "version": "v1",
            })
        });
        namespaces.collect()
    }

    /// The volumes of a namespace; none if there is no such namespace.
    pub(super) fn of(&self, namespace_id: &str) -> Option<Vec<Volume>> {
        let state = lock(&self.0);
        state.namespaces.get(namespace_id)?;
        Some(state.volumes.values().filter(|volume| volume.namespace_id == namespace_id).cloned().collect())
    }

    /// Somebody else writes.
    pub(super) fn touch(&self, id: &str) {
        // One that is not there cannot be written to.
        let _ = self.change(id, |_| Ok(()));
    }

    /// Each write gives the volume another version.
    fn change(&self, id: &str, change: impl FnOnce(&mut Volume) -> Result<(), Rule>) -> Result<(), Rule> {
        let mut state = lock(&self.0);
        let volume = state.volumes.get_mut(id).ok_or(Rule::NotFound)?;
        change(volume)?;
        volume.version += 1;
        Ok(())
    }
}

fn shared(volume: &Volume) -> Result<(), Rule> {
    if volume.attachment == Attachment::Nfs { Ok(()) } else { Err(Rule::NotShared) }
}
