//! Writes to the API. Each asks at its own moment whether we still lead, ends before leadership does, is
//! sent once, and says which version of the object it means wherever that matters.

use std::{future::Future, time::Duration};

use json_patch::Patch as JsonPatch;
use kube::{
    Client, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    core::{Request, object::HasStatus},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{leader::Leadership, store::ObjectKey};
use crate::error::{Error, Result};

/// Longest a write may take; less when less of our leadership remains.
const WRITE: Duration = Duration::from_secs(5);

/// A kind whose resource is known at compile time.
pub trait Kind: Resource<DynamicType = ()> {}
impl<K: Resource<DynamicType = ()>> Kind for K {}

/// Writes for one purpose, under one field manager.
///
/// An error of class `Deadline` or `Transport` means that the outcome is unknown: read before deciding again.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    leadership: Leadership,
    manager: &'static str,
}

impl Writer {
    /// `client` must not retry ([`Clients::writes`](super::client::Clients)): a retry may write after we
    /// stopped leading.
    pub fn new(client: Client, leadership: Leadership, manager: &'static str) -> Self {
        Self { client, leadership, manager }
    }

    /// The same for another purpose.
    pub fn under(&self, manager: &'static str) -> Self {
        Self { manager, ..self.clone() }
    }

    /// The leadership that guards these writes.
    pub fn leadership(&self) -> &Leadership {
        &self.leadership
    }

    /// Creates an object; [`Error::is_conflict`] if it exists already.
    pub async fn create<K: Kind + Serialize + DeserializeOwned>(&self, object: &K) -> Result<K> {
        let key = ObjectKey::from(object);
        let request = path::<K>(&key).create(&self.post(), body(object)?);
        self.send(self.client.request(build(request)?)).await
    }

    /// Replaces an object if it still has the resourceVersion that `object` carries; else
    /// [`Error::is_conflict`]. An object without one is refused, because it would overwrite anything.
    pub async fn replace<K: Kind + Serialize + DeserializeOwned>(&self, object: &K) -> Result<K> {
        let key = versioned(object)?;
        let request = path::<K>(&key).replace(&key.name, &self.post(), body(object)?);
        self.send(self.client.request(build(request)?)).await
    }

    /// Replaces the status, under the rules of [`Writer::replace`]. What `object` carries outside of status
    /// and metadata is ignored by the server.
    pub async fn replace_status<K: Kind + Serialize + DeserializeOwned>(&self, object: &K) -> Result<K> {
        let key = versioned(object)?;
        let request = path::<K>(&key).replace_subresource("status", &key.name, &self.post(), body(object)?);
        self.send(self.client.request(build(request)?)).await
    }

    /// Gives an object this status, if it is still as it was read, under the rules of [`Writer::replace`].
    pub async fn record<K>(&self, object: &K, status: K::Status) -> Result<K>
    where
        K: Kind + HasStatus + Clone + Serialize + DeserializeOwned,
    {
        let mut next = object.clone();
        *next.status_mut() = Some(status);
        self.replace_status(&next).await
    }

    /// Applies a JSON patch (see [`patch`](super::patch)); [`Error::Stale`], which
    /// [`Error::is_conflict`], if one of its tests fails.
    pub async fn json_patch<K: Kind + DeserializeOwned>(&self, key: &ObjectKey, patch: JsonPatch) -> Result<K> {
        let request = path::<K>(key).patch(&key.name, &self.patch_params(), &Patch::Json::<()>(patch));
        self.send(self.client.request(build(request)?)).await.map_err(stale)
    }

    /// Applies a JSON patch to this object, if there is one: `None` is returned where nothing was to change.
    pub async fn patch<K: Kind + DeserializeOwned>(&self, object: &K, patch: Option<JsonPatch>) -> Result<Option<K>> {
        match patch {
            Some(patch) => self.json_patch(&ObjectKey::from(object), patch).await.map(Some),
            None => Ok(None),
        }
    }

    /// Applies a JSON patch to the status subresource.
    pub async fn json_patch_status<K: Kind + DeserializeOwned>(&self, key: &ObjectKey, patch: JsonPatch) -> Result<K> {
        let patch = Patch::Json::<()>(patch);
        let request = path::<K>(key).patch_subresource("status", &key.name, &self.patch_params(), &patch);
        self.send(self.client.request(build(request)?)).await.map_err(stale)
    }

    /// Server-side apply of exactly the fields in `desired`, taking them from other managers.
    ///
    /// Apply creates what does not exist; give `desired` a uid if it must not come back.
    pub async fn apply<K: Kind + Serialize + DeserializeOwned>(&self, desired: &K) -> Result<K> {
        let key = ObjectKey::from(desired);
        let params = PatchParams { force: true, ..self.patch_params() };
        let request = path::<K>(&key).patch(&key.name, &params, &Patch::Apply(&intent(desired)?));
        self.send(self.client.request(build(request)?)).await
    }

    /// Deletes the object with this uid (and resourceVersion, if given). `Ok` if it is gone already;
    /// [`Error::is_conflict`] if the key now names another object or version. A grace of 0 removes
    /// a pod without waiting for its kubelet; `None` leaves it to the object.
    pub async fn delete<K: Kind>(
        &self,
        key: &ObjectKey,
        uid: &str,
        resource_version: Option<&str>,
        grace_seconds: Option<u32>,
    ) -> Result<()> {
        let preconditions =
            Preconditions { uid: Some(uid.to_owned()), resource_version: resource_version.map(str::to_owned) };
        let params = DeleteParams {
            grace_period_seconds: grace_seconds,
            preconditions: Some(preconditions),
            ..Default::default()
        };
        let request = build(path::<K>(key).delete(&key.name, &params))?;
        match self.send(self.client.request_text(request)).await {
            Err(error) if error.is_not_found() => Ok(()),
            answer => answer.map(drop),
        }
    }

    /// Sends one request while we lead. The future must not have started: that is what makes the question
    /// of leadership be asked before the request leaves.
    async fn send<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Result<T> {
        let limit = self.leadership.require()?.min(WRITE);
        Ok(tokio::time::timeout(limit, request).await.map_err(|_| Error::Deadline(limit))??)
    }

    fn post(&self) -> PostParams {
        PostParams { field_manager: Some(self.manager.to_owned()), ..Default::default() }
    }

    fn patch_params(&self) -> PatchParams {
        PatchParams { field_manager: Some(self.manager.to_owned()), ..Default::default() }
    }
}

/// A failed `test` is answered with 422 as is an invalid object, but only the latter is named.
fn stale(error: Error) -> Error {
    if let Error::Api(inner) = &error
        && let kube::Error::Api(status) = inner.as_ref()
        && status.code == 422
        && status.details.as_ref().is_none_or(|details| details.name.is_empty())
    {
        return Error::Stale;
    }
    error
}

/// Requests for the collection that holds `key`.
fn path<K: Kind>(key: &ObjectKey) -> Request {
    Request::new(K::url_path(&(), key.namespace.as_deref()))
}

fn build(request: Result<http::Request<Vec<u8>>, kube::core::request::Error>) -> Result<http::Request<Vec<u8>>> {
    request.map_err(|error| kube::Error::BuildRequest(error).into())
}

/// The object as the API wants it: slim types do not carry their own kind.
fn intent<K: Kind + Serialize>(object: &K) -> Result<Value> {
    let mut value = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
    if let Some(fields) = value.as_object_mut() {
        fields.insert("apiVersion".to_owned(), K::api_version(&()).into());
        fields.insert("kind".to_owned(), K::kind(&()).into());
    }
    Ok(value)
}

fn body<K: Kind + Serialize>(object: &K) -> Result<Vec<u8>> {
    serde_json::to_vec(&intent(object)?).map_err(|error| kube::Error::SerdeError(error).into())
}

/// The key of an object that says which version of itself it is.
fn versioned<K: Kind>(object: &K) -> Result<ObjectKey> {
    let key = ObjectKey::from(object);
    match object.meta().resource_version.as_deref() {
        Some(version) if !version.is_empty() => Ok(key),
        _ => Err(Error::Invalid(format!(
            "{} {key}: a replacement needs the resourceVersion that was read",
            K::kind(&())
        ))),
    }
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
