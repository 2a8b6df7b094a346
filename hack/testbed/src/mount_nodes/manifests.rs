//! What we ship for S3, on a server whose nodes are played.

use std::path::Path;

use bulkhead::api::s3::MOUNTPOINT_NAMESPACE;
use kube::ResourceExt;
use kube::api::DynamicObject;

use crate::{Testbed, TestbedError};

/// Applies `config/with-s3`, but what would make pods, with this namespace for Mountpoint Pods.
///
/// # Errors
/// When it cannot be rendered or an object is refused.
pub async fn install(testbed: &Testbed, namespace: &str) -> Result<(), TestbedError> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/with-s3");
    let text = testbed.kubectl(&["kustomize", &folder.to_string_lossy()]).await?;
    let mut objects: Vec<DynamicObject> = crate::apply::parse(&folder, &text)?;
    let makes_pods = |kind: &str| matches!(kind, "Deployment" | "DaemonSet");
    objects.retain(|object| !object.types.as_ref().is_some_and(|types| makes_pods(&types.kind)));
    for object in &mut objects {
        if object.namespace().as_deref() == Some(MOUNTPOINT_NAMESPACE) {
            object.metadata.namespace = Some(namespace.to_owned());
        }
        if object.types.as_ref().is_some_and(|types| types.kind == "Namespace")
            && object.name_any() == MOUNTPOINT_NAMESPACE
        {
            object.metadata.name = Some(namespace.to_owned());
        }
    }
    testbed.apply(objects).await
}
