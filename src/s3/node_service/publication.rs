//! A volume in a pod: all that is needed to mount it, and to mount it again without the kubelet. Without secrets, because it
//! is kept as a file. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::api::names;
use crate::api::s3::DRIVER;
use crate::s3::mount_options::{Mounting, Setting, Unusable, mounting};

/// The longest name of an object.
const NAME_MAX: usize = 253;

/// Whose credentials are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CredentialSource {
    /// The driver's own.
    #[default]
    Driver,
    /// Those of the volume's nodePublishSecretRef.
    Secret,
}

impl CredentialSource {
    /// As volume attributes have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Secret => "secret",
        }
    }
}

/// A Mountpoint Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MountpointPod {
    /// Its name: that of its source too.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// What a source is made from, beside what an s3pa says: it must be the same for all who share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Bucket.
    pub bucket: String,
    /// Whose credentials are used.
    pub credentials: CredentialSource,
}

/// A volume in a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Publication {
    /// Handle of the volume.
    pub volume_id: String,
    /// PersistentVolume.
    pub volume: String,
    /// Uid of the pod.
    pub pod_uid: String,
    /// Its namespace, where the kubelet told it.
    pub pod_namespace: String,
    /// Its name, where the kubelet told it.
    pub pod_name: String,
    /// Bucket.
    pub bucket: String,
    /// Mount options of the PersistentVolume.
    pub options: Vec<String>,
    /// Whether the volume is for reading only, whoever mounts it.
    pub volume_read_only: bool,
    /// Whether this pod may only read it.
    pub read_only: bool,
    /// Whose credentials are used.
    pub credentials: CredentialSource,
    /// The most that its cache may hold, in MiB, where that has a volume with a limit.
    #[serde(default)]
    pub cache_max: Option<u64>,
    /// The Mountpoint Pod that served it last.
    #[serde(default)]
    pub served_by: Option<MountpointPod>,
}

impl Publication {
    /// Where it is mounted, below the kubelet's root folder.
    pub fn target(&self) -> String {
        target(&self.pod_uid, &self.volume)
    }

    /// Name of the file that keeps it: a digest, for the names of pod and volume together may be longer than that of a file.
    pub fn file(&self) -> String {
        format!("{}.json", names::hex(&Sha256::digest(self.target()), 20))
    }

    /// What its source is made from.
    pub fn origin(&self) -> Origin {
        Origin { bucket: self.bucket.clone(), credentials: self.credentials }
    }

    /// Its pod in words.
    pub fn pod(&self) -> String {
        match self.pod_name.as_str() {
            "" => format!("pod {}", self.pod_uid),
            name => format!("pod {}/{name}", self.pod_namespace),
        }
    }

    /// How it is mounted, for a workload with this fsGroup.
    pub fn mounting(&self, group: &str, kubernetes: Option<&str>) -> Result<Mounting, Unusable> {
        let setting = Setting {
            read_only: self.volume_read_only,
            group: (!group.is_empty()).then(|| group.to_owned()),
            cache_max: self.cache_max,
            user_agent: user_agent(self.credentials, kubernetes),
        };
        mounting(self.options.iter().map(String::as_str), &setting)
    }
}

/// Where a pod's volume is mounted, below the kubelet's root folder.
pub fn target(pod_uid: &str, volume: &str) -> String {
    format!("pods/{pod_uid}/volumes/kubernetes.io~csi/{volume}/mount")
}

/// Pod and volume of a target path; none if it is no place of a pod's volume.
pub fn parse_target<'a>(kubelet_root: &str, path: &'a str) -> Option<(&'a str, &'a str)> {
    let below = path.strip_prefix(kubelet_root.trim_end_matches('/'))?.strip_prefix('/')?;
    match below.split('/').collect::<Vec<_>>().as_slice() {
        ["pods", pod, "volumes", "kubernetes.io~csi", volume, "mount"] if is_name(pod) && is_name(volume) => {
            Some((pod, volume))
        }
        _ => None,
    }
}

/// Where the source of a Mountpoint Pod is, below the kubelet's root folder.
pub fn source(mountpoint_pod: &str) -> String {
    format!("plugins/{DRIVER}/mnt/{mountpoint_pod}")
}

/// Whether a text can be the name of one folder: what Kubernetes allows for objects and uids.
pub fn is_name(text: &str) -> bool {
    let kept = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    !text.is_empty()
        && text.len() <= NAME_MAX
        && text.chars().all(kept)
        && text.chars().any(|c| c.is_ascii_alphanumeric())
}

fn user_agent(source: CredentialSource, kubernetes: Option<&str>) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let kubernetes = kubernetes.map(|version| format!(" k8s/{version}")).unwrap_or_default();
    format!("s3-csi-driver/{version} credential-source#{}{kubernetes}", source.name())
}

/// Environment as a message has it, sorted.
pub fn environment(variables: &BTreeMap<String, String>) -> Vec<String> {
    variables.iter().map(|(name, value)| format!("{name}={value}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_pods_own_folder_is_a_target() {
        let root = "/var/lib/kubelet";
        let good = "/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~csi/pv/mount";
        assert_eq!(parse_target(root, good), Some(("u-1", "pv")));
        assert_eq!(parse_target("/var/lib/kubelet/", good), Some(("u-1", "pv")));
        for bad in [
            "",
            "/",
            "/etc",
            "pods/u-1/volumes/kubernetes.io~csi/pv/mount",
            "/var/lib/kubelet2/pods/u-1/volumes/kubernetes.io~csi/pv/mount",
            "/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~csi/pv/mount/",
            "/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~csi/pv/mount/x",
            "/var/lib/kubelet/pods/../volumes/kubernetes.io~csi/pv/mount",
            "/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~csi/../mount",
            "/var/lib/kubelet/x/../pods/u-1/volumes/kubernetes.io~csi/pv/mount",
            "/var/lib/kubelet/pods//volumes/kubernetes.io~csi/pv/mount",
            "/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~empty-dir/comm/mount",
        ] {
            assert_eq!(parse_target(root, bad), None, "{bad}");
        }
    }

    #[test]
    fn the_longest_name_of_a_volume_has_a_file() {
        let volume = "v".repeat(NAME_MAX);
        let long = |pod: &str| Publication { volume: volume.clone(), pod_uid: pod.into(), ..Publication::default() };
        let path = format!("/k/{}", long("u-1").target());
        assert_eq!(parse_target("/k", &path), Some(("u-1", volume.as_str())));
        assert_eq!(parse_target("/k", &format!("/k/{}", target("u-1", &format!("{volume}v")))), None);
        assert!(long("u-1").file().len() < 100 && long("u-1").file() != long("u-2").file());
    }

    #[test]
    fn the_user_agent_is_upstreams() {
        let agent = user_agent(CredentialSource::Secret, Some("v1.36.3"));
        assert!(
            agent.starts_with("s3-csi-driver/") && agent.ends_with(" credential-source#secret k8s/v1.36.3"),
            "{agent}"
        );
        assert!(user_agent(CredentialSource::Driver, None).ends_with("credential-source#driver"));
    }

    #[test]
    fn what_is_kept_is_read_again() {
        let kept = Publication {
            volume: "pv".into(),
            pod_uid: "u".into(),
            options: vec!["a=b".into()],
            ..Publication::default()
        };
        let text = serde_json::to_string(&kept).unwrap();
        assert_eq!(serde_json::from_str::<Publication>(&text).unwrap(), kept);
    }
}
