//! The JSON of the control plane: of each object the fields that are used.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use crate::api::provider_volume::ProviderVolume;

/// Labels that the CSI driver puts on volumes.
const VOLUME_LABEL: &str = "csi.storage.k8s.io/pv/name";
const CLAIM_LABEL: &str = "csi.storage.k8s.io/pvc/name";
const CLAIM_NAMESPACE_LABEL: &str = "csi.storage.k8s.io/pvc/namespace";
/// Where the control plane shows what was published. Two slashes: no key that Kubernetes would take.
const MOUNT_ENDPOINT_LABEL: &str = "storageos.com/nfs/mount-endpoint";
/// Attachment of a volume that an NFS server serves.
const SHARED: &str = "nfs";

/// A login.
#[derive(Serialize)]
pub struct Login<'a> {
    /// Who.
    pub username: &'a str,
    /// Proof of it.
    pub password: &'a str,
}

/// A namespace of the provider.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Namespace {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
}

/// A volume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Volume {
    id: String,
    version: String,
    attachment_type: String,
    #[serde(deserialize_with = "nullable")]
    labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "nullable")]
    nfs: Nfs,
    #[serde(deserialize_with = "nullable")]
    master: Master,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Nfs {
    service_endpoint: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Master {
    health: String,
}

/// A mount endpoint to publish, for exactly this version of the volume.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MountEndpoint<'a> {
    /// `<ip>:<port>`, or empty.
    pub mount_endpoint: &'a str,
    /// The version that was read.
    pub version: &'a str,
}

/// An error.
#[derive(Deserialize)]
pub struct Refusal {
    /// The server's words.
    pub error: String,
}

impl Volume {
    /// Whether an NFS server serves it, or shall.
    pub fn is_shared(&self) -> bool {
        self.attachment_type == SHARED || self.nfs.service_endpoint.is_some()
    }

    /// Its version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// What is published.
    pub fn mount_endpoint(&self) -> &str {
        self.label(MOUNT_ENDPOINT_LABEL)
    }

    /// The volume as we speak of it; `None` if it has no id.
    pub fn report(self, namespace: &Namespace) -> Option<ProviderVolume> {
        if self.id.is_empty() {
            return None;
        }
        Some(ProviderVolume {
            namespace_id: namespace.id.clone(),
            mount_endpoint: self.mount_endpoint().to_owned(),
            volume_name: self.label(VOLUME_LABEL).to_owned(),
            claim_name: self.label(CLAIM_LABEL).to_owned(),
            claim_namespace: self.label(CLAIM_NAMESPACE_LABEL).to_owned(),
            id: self.id,
            version: self.version,
            endpoint: self.nfs.service_endpoint,
            health: self.master.health,
        })
    }

    fn label(&self, key: &str) -> &str {
        self.labels.get(key).map(String::as_str).unwrap_or_default()
    }
}

/// Control planes of other versions write null where there is nothing.
fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_read_with_its_labels() {
        let volume: Volume = serde_json::from_str(
            r#"{"id":"v1","name":"pvc-1","attachedOn":"n1","nfs":{"exports":null,"serviceEndpoint":"10.0.0.1:4711"},
                "namespaceID":"ns1","attachmentType":"nfs","master":{"id":"m","nodeID":"n1","health":"online"},
                "replicas":null,"sizeBytes":1,"version":"Mg","labels":{"csi.storage.k8s.io/pv/name":"pvc-1",
                "csi.storage.k8s.io/pvc/name":"media","csi.storage.k8s.io/pvc/namespace":"web",
                "storageos.com/nfs/mount-endpoint":"10.96.0.9:2049"}}"#,
        )
        .unwrap();
        assert!(volume.is_shared());
        let report = volume.report(&Namespace { id: "ns1".into(), name: "web".into() }).unwrap();
        let expected = ProviderVolume {
            id: "v1".into(),
            namespace_id: "ns1".into(),
            version: "Mg".into(),
            endpoint: Some("10.0.0.1:4711".into()),
            mount_endpoint: "10.96.0.9:2049".into(),
            health: "online".into(),
            volume_name: "pvc-1".into(),
            claim_name: "media".into(),
            claim_namespace: "web".into(),
        };
        assert_eq!(report, expected);
    }

    #[test]
    fn what_is_missing_or_null_is_empty() {
        for text in [r#"{"id":"v"}"#, r#"{"id":"v","labels":null,"nfs":null,"master":null}"#] {
            let volume: Volume = serde_json::from_str(text).unwrap();
            assert!(!volume.is_shared());
            assert_eq!(
                volume.report(&Namespace::default()),
                Some(ProviderVolume { id: "v".into(), ..Default::default() })
            );
        }
    }
}
