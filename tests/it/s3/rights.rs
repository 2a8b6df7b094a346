//! What the controller may do, asked under its own identity: Mountpoint Pods in their namespace, and no pods elsewhere.

use bulkhead::api::s3;
use bulkhead_testbed::Identity;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use libtest_mimic::Failed;
use serde_json::json;

use super::world::World;
use crate::api::rights::may;

pub async fn the_controllers_rights_are_narrow(world: &World) -> Result<(), Failed> {
    let us = world.cluster.testbed.client(&Identity::OperatorController).await?;
    let here = s3::MOUNTPOINT_NAMESPACE;
    let mut wrong = Vec::new();
    for (verb, resource, namespace, expected) in [
        ("create", "/pods", here, true),
        ("patch", "/pods", here, true),
        ("delete", "/pods", here, true),
        ("create", "/pods", "default", false),
        ("create", "/pods", "kube-system", false),
        ("create", "/pods", "", false),
        ("update", "/pods", "default", false),
        ("create", "/pods/exec", here, false),
        ("create", "/pods/eviction", here, false),
        ("get", "/secrets", here, false),
        ("list", "/secrets", "", false),
        ("create", "/serviceaccounts/token", here, false),
        ("patch", "/serviceaccounts", here, false),
        ("update", "/persistentvolumes", "", false),
        ("create", "s3.csi.scality.com/mountpoints3podattachments", "", true),
        ("update", "s3.csi.scality.com/mountpoints3podattachments", "", true),
        ("delete", "s3.csi.scality.com/mountpoints3podattachments", "", true),
        ("update", "s3.csi.scality.com/mountpoints3podattachments/status", "", true),
        ("deletecollection", "s3.csi.scality.com/mountpoints3podattachments", "", false),
    ] {
        if may(&us, verb, resource, namespace, "").await? != expected {
            wrong.push(format!("{verb} {resource} in {namespace:?}: not {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    tried(&us).await
}

/// Asked for and refused.
async fn tried(us: &Client) -> Result<(), Failed> {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": "not-ours" }, "spec": { "containers": [{ "name": "main", "image": "app" }] },
    }))?;
    for namespace in ["default", "kube-system", "bulkhead-system"] {
        let pods: Api<Pod> = Api::namespaced(us.clone(), namespace);
        refused(pods.create(&PostParams::default(), &pod).await)?;
        let secrets: Api<Secret> = Api::namespaced(us.clone(), namespace);
        refused(secrets.list(&ListParams::default()).await)?;
        refused(secrets.delete("s3-secret", &DeleteParams::default()).await)?;
    }
    refused(Api::<Secret>::namespaced(us.clone(), s3::MOUNTPOINT_NAMESPACE).get("s3-secret").await)
}

fn refused<T>(answer: Result<T, kube::Error>) -> Result<(), Failed> {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(()),
        Err(error) => Err(format!("refused for another reason: {error}").into()),
        Ok(_) => Err("it was allowed".into()),
    }
}
