//! The writes of a person: sent once, under the field manager that is the person's.

use json_patch::Patch as JsonPatch;
use kube::api::{Patch, PatchParams};
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::error::ErrorClass;
use crate::runtime::leader::Leadership;
use crate::runtime::store::ObjectKey;
use crate::runtime::writer::Writer;

use super::error::{Error, Result};
use super::gather::Cluster;

/// Field manager of people. GitOps tools leave what is under it alone.
pub const MANAGER: &str = "kubectl-bulkhead";

/// A JSON patch of a cluster-scoped object.
pub async fn patch<K>(cluster: &Cluster, name: &str, patch: JsonPatch, resource: &'static str) -> Result<K>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let writer = Writer::new(cluster.clients.writes.clone(), Leadership::always(), MANAGER);
    writer.json_patch::<K>(&ObjectKey::cluster(name), patch).await.map_err(|error| match error.class() {
        ErrorClass::Forbidden => Error::Forbidden { verb: "patch", resource, source: Box::new(error) },
        _ => Error::Other(error),
    })
}

/// Server-side apply of exactly these annotations on an object that was read; those that were applied before and are not
/// named any more are taken away.
pub async fn annotate<K>(
    cluster: &Cluster,
    object: &K,
    annotations: serde_json::Value,
    resource: &'static str,
) -> Result<K>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let name = object.name_any();
    let api: Api<K> = Api::all(cluster.clients.writes.clone());
    // With the uid nothing is created in its place if it went meanwhile.
    let intent = json!({
        "apiVersion": K::api_version(&()), "kind": K::kind(&()),
        "metadata": { "name": name, "uid": object.meta().uid, "annotations": annotations },
    });
    let params = PatchParams::apply(MANAGER).force();
    api.patch(&name, &params, &Patch::Apply(&intent)).await.map_err(Error::of_write("patch", resource))
}
