//! What the kubelet asks for: checked, and named by field where it cannot be used.

use std::collections::HashMap;

use tonic::Status;

use crate::api::s3_cache;
use crate::csi::v1::NodePublishVolumeRequest;
use crate::csi::v1::VolumeCapability;
use crate::csi::v1::volume_capability::AccessType;
use crate::csi::v1::volume_capability::access_mode::Mode;
use crate::s3::keys::Keys;

use super::publication::{CredentialSource, Publication, parse_target};

const POD_UID: &str = "csi.storage.k8s.io/pod.uid";
const POD_NAME: &str = "csi.storage.k8s.io/pod.name";
const POD_NAMESPACE: &str = "csi.storage.k8s.io/pod.namespace";
const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";
const BUCKET: &str = "bucketName";
const AUTHENTICATION: &str = "authenticationSource";
/// The longest path of a file.
const PATH_MAX: usize = 4096;

/// Reads a request to publish.
pub fn publication(
    request: &NodePublishVolumeRequest,
    kubelet_root: &str,
) -> Result<(Publication, Option<Keys>), Status> {
    volume_id(&request.volume_id)?;
    let (pod_uid, volume) = target(&request.target_path, kubelet_root)?;
    let capability = capability(request.volume_capability.as_ref())?;
    let context = &request.volume_context;
    let text = |key: &str| context.get(key).cloned().unwrap_or_default();
    if text(EPHEMERAL) == "true" {
        return Err(Status::invalid_argument(format!(
            "volume_context[{EPHEMERAL}]: this driver has no inline volumes; use a PersistentVolumeClaim"
        )));
    }
    if text(POD_UID) != pod_uid && context.contains_key(POD_UID) {
        return Err(invalid(&format!("volume_context[{POD_UID}]"), "is not the pod of target_path"));
    }
    let bucket = bucket(context)?;
    let credentials = source(context)?;
    let keys = match credentials {
        CredentialSource::Driver => None,
        CredentialSource::Secret => Some(Keys::of_secret(&request.secrets).map_err(|wrong| {
            let whose = "nodePublishSecretRef of a volume with authenticationSource: secret";
            Status::invalid_argument(format!("secrets: {wrong} ({whose})"))
        })?),
    };
    let publication = Publication {
        volume_id: request.volume_id.clone(),
        volume: volume.to_owned(),
        pod_uid: pod_uid.to_owned(),
        pod_namespace: text(POD_NAMESPACE),
        pod_name: text(POD_NAME),
        bucket,
        options: capability.options,
        volume_read_only: capability.read_only,
        read_only: request.readonly || capability.read_only,
        credentials,
        cache_max: s3_cache::most(|name| context.get(name).map(String::as_str))
            .map_err(|why| Status::invalid_argument(format!("volume_context: {why}")))?,
        served_by: None,
    };
    // Said now, not when there is a Mountpoint Pod.
    publication.mounting("", None).map_err(|error| Status::invalid_argument(format!("volume_capability: {error}")))?;
    Ok((publication, keys))
}

/// The volume's id, checked.
pub fn volume_id(id: &str) -> Result<(), Status> {
    if id.is_empty() {
        return Err(invalid("volume_id", "is missing"));
    }
    if id.len() > PATH_MAX || id.chars().any(char::is_control) {
        return Err(invalid("volume_id", "is too long or has control characters"));
    }
    Ok(())
}

/// Pod and PersistentVolume of a target path.
pub fn target<'a>(path: &'a str, kubelet_root: &str) -> Result<(&'a str, &'a str), Status> {
    if path.is_empty() {
        return Err(invalid("target_path", "is missing"));
    }
    parse_target(kubelet_root, path).filter(|_| path.len() < PATH_MAX).ok_or_else(|| {
        let wanted = format!("{kubelet_root}/pods/<uid>/volumes/kubernetes.io~csi/<volume>/mount");
        invalid("target_path", &format!("{path:?} is not {wanted}; is --kubelet-path what the kubelet was told?"))
    })
}

struct Capability {
    options: Vec<String>,
    read_only: bool,
}

fn capability(capability: Option<&VolumeCapability>) -> Result<Capability, Status> {
    let capability = capability.ok_or_else(|| invalid("volume_capability", "is missing"))?;
    let options = match &capability.access_type {
        Some(AccessType::Mount(mount)) => mount.mount_flags.clone(),
        Some(AccessType::Block(_)) => {
            return Err(invalid(
                "volume_capability.access_type",
                "is block: a bucket is only mounted, use volumeMode: Filesystem",
            ));
        }
        None => return Err(invalid("volume_capability.access_type", "is missing")),
    };
    let mode = capability.access_mode.as_ref().map(|mode| mode.mode());
    let read_only = match mode {
        Some(Mode::MultiNodeMultiWriter) => false,
        Some(Mode::MultiNodeReaderOnly) => true,
        Some(mode) => {
            let why = format!("is {}: use ReadWriteMany or ReadOnlyMany", mode.as_str_name());
            return Err(invalid("volume_capability.access_mode", &why));
        }
        None => return Err(invalid("volume_capability.access_mode", "is missing")),
    };
    Ok(Capability { options, read_only })
}

fn bucket(context: &HashMap<String, String>) -> Result<String, Status> {
    let field = format!("volume_context[{BUCKET}]");
    match context.get(BUCKET).map(String::as_str) {
        None | Some("") => Err(invalid(&field, "is missing: set it in the PersistentVolume's csi.volumeAttributes")),
        // It stands in front of the options.
        Some(name) if name.starts_with('-') || name.chars().any(|c| c.is_control() || c.is_whitespace()) => {
            Err(invalid(&field, "is not the name of a bucket"))
        }
        Some(name) => Ok(name.to_owned()),
    }
}

fn source(context: &HashMap<String, String>) -> Result<CredentialSource, Status> {
    match context.get(AUTHENTICATION).map(String::as_str) {
        None | Some("" | "driver") => Ok(CredentialSource::Driver),
        Some("secret") => Ok(CredentialSource::Secret),
        Some(other) => {
            Err(invalid(&format!("volume_context[{AUTHENTICATION}]"), &format!("is {other:?}: use driver or secret")))
        }
    }
}

fn invalid(field: &str, why: &str) -> Status {
    Status::invalid_argument(format!("{field} {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csi::v1::volume_capability::{AccessMode, BlockVolume, MountVolume};
    use proptest::prelude::*;

    fn capable(mode: Mode) -> VolumeCapability {
        let mount = MountVolume { mount_flags: vec!["allow-delete".into()], ..MountVolume::default() };
        VolumeCapability {
            access_mode: Some(AccessMode { mode: mode.into() }),
            access_type: Some(AccessType::Mount(mount)),
        }
    }

    fn request() -> NodePublishVolumeRequest {
        NodePublishVolumeRequest {
            volume_id: "handle".into(),
            target_path: "/k/pods/u-1/volumes/kubernetes.io~csi/pv/mount".into(),
            volume_capability: Some(capable(Mode::MultiNodeMultiWriter)),
            volume_context: [(BUCKET.to_owned(), "bucket".to_owned())].into(),
            ..NodePublishVolumeRequest::default()
        }
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        type Change = fn(&mut NodePublishVolumeRequest);
        let changes: [(Change, &str); 14] = [
            (|r| r.volume_id.clear(), "volume_id"),
            (|r| r.target_path.clear(), "target_path"),
            (|r| r.target_path = "/etc".into(), "target_path"),
            (|r| r.volume_capability = None, "volume_capability"),
            (|r| r.volume_capability.as_mut().unwrap().access_mode = None, "access_mode"),
            (|r| r.volume_capability = Some(capable(Mode::SingleNodeWriter)), "access_mode"),
            (|r| r.volume_capability.as_mut().unwrap().access_type = None, "access_type"),
            (
                |r| r.volume_capability.as_mut().unwrap().access_type = Some(AccessType::Block(BlockVolume {})),
                "access_type",
            ),
            (|r| r.volume_context.clear(), "bucketName"),
            (|r| drop(r.volume_context.insert(BUCKET.into(), "--help".into())), "bucketName"),
            (|r| drop(r.volume_context.insert(AUTHENTICATION.into(), "pod".into())), "authenticationSource"),
            (|r| drop(r.volume_context.insert(AUTHENTICATION.into(), "secret".into())), "access_key_id"),
            (|r| drop(r.volume_context.insert(POD_UID.into(), "u-2".into())), POD_UID),
            (|r| drop(r.volume_context.insert(EPHEMERAL.into(), "true".into())), EPHEMERAL),
        ];
        for (change, field) in changes {
            let mut request = request();
            change(&mut request);
            let status = publication(&request, "/k").unwrap_err();
            assert_eq!(status.code(), tonic::Code::InvalidArgument);
            assert!(status.message().contains(field), "{field}: {}", status.message());
        }
    }

    #[test]
    fn reading_only_is_of_the_volume_or_of_the_pod() {
        let (both, _) = publication(&request(), "/k").unwrap();
        assert!(!both.read_only && !both.volume_read_only);
        let (pod, _) = publication(&NodePublishVolumeRequest { readonly: true, ..request() }, "/k").unwrap();
        assert!(pod.read_only && !pod.volume_read_only);
        let capability = Some(capable(Mode::MultiNodeReaderOnly));
        let (volume, _) =
            publication(&NodePublishVolumeRequest { volume_capability: capability, ..request() }, "/k").unwrap();
        assert!(volume.read_only && volume.volume_read_only);
    }

    #[test]
    fn a_cache_has_the_limit_of_its_volume() {
        let mut limited = request();
        limited.volume_context.insert("cache".into(), "emptyDir".into());
        limited.volume_context.insert("cacheEmptyDirSizeLimit".into(), "100Mi".into());
        assert_eq!(publication(&limited, "/k").unwrap().0.cache_max, Some(95));
        limited.volume_context.insert("cacheEmptyDirSizeLimit".into(), "much".into());
        assert!(publication(&limited, "/k").unwrap_err().message().contains("cacheEmptyDirSizeLimit"));
        assert_eq!(publication(&request(), "/k").unwrap().0.cache_max, None);
    }

    proptest! {
        #[test]
        fn nothing_panics(id in "\\PC{0,20}", path in "\\PC{0,60}", key in "\\PC{0,20}", value in "\\PC{0,20}") {
            let mut request = request();
            request.volume_id = id;
            request.target_path = path;
            request.volume_context.insert(key, value);
            let _ = publication(&request, "/k");
        }
    }
}
