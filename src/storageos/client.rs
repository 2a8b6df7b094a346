//! The calls that are made to a control plane.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use futures::FutureExt as _;
use futures::future::{BoxFuture, try_join_all};
use http::Method;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::runtime::clock::monotonic;

use super::error::CallError;
use super::metrics::Metrics;
use super::providers::{ControlPlane, PublishError};
use super::session::{Credentials, Session, Settings, since};
use super::transport::Call;
use super::wire::{MountEndpoint, Namespace, Volume};

/// A client of one control plane. Clones share the login.
#[derive(Clone)]
pub struct Client {
    session: Arc<Session>,
    metrics: Metrics,
}

impl Client {
    /// Nothing is asked yet.
    ///
    /// # Errors
    /// When the settings cannot be used; the text says what to do.
    pub fn new(settings: &Settings, credentials: Credentials, metrics: Metrics) -> Result<Self, CallError> {
        let session = Session::new(settings, credentials, metrics.clone())?;
        Ok(Self { session: Arc::new(session), metrics })
    }

    /// The endpoint in use.
    pub fn endpoint(&self) -> Option<String> {
        self.session.endpoint()
    }

    /// When the login has to be refreshed.
    pub fn refresh_in(&self) -> Duration {
        self.session.refresh_in()
    }

    /// Refreshes the login, or logs in anew if that is refused.
    ///
    /// # Errors
    /// When both fail.
    pub async fn refresh(&self) -> Result<(), CallError> {
        self.session.refresh().await
    }

    /// All namespaces.
    ///
    /// # Errors
    /// When there is no such answer.
    pub async fn namespaces(&self) -> Result<Vec<Namespace>, CallError> {
        let listed = self.get("list_namespaces", "list namespaces", "/v2/namespaces".to_owned());
        Ok(readable(listed.await?))
    }

    /// All volumes of a namespace.
    ///
    /// # Errors
    /// When there is no such answer.
    pub async fn volumes(&self, namespace: &Namespace) -> Result<Vec<Volume>, CallError> {
        let path = format!("/v2/namespaces/{}/volumes", segment("list volumes", &namespace.id)?);
        Ok(readable(self.get("list_volumes", "list volumes", path).await?))
    }

    /// Those of these volumes of a namespace that there are, each read for itself: nothing is listed.
    ///
    /// # Errors
    /// When there is no such answer for one of them.
    pub async fn named_volumes(&self, namespace: &Namespace, ids: &BTreeSet<String>) -> Result<Vec<Volume>, CallError> {
        let mut reads = Vec::with_capacity(ids.len());
        for id in ids {
            reads.push(self.volume_if_any(&namespace.id, id));
        }
        Ok(try_join_all(reads).await?.into_iter().flatten().collect())
    }

    async fn volume_if_any(&self, namespace_id: &str, volume_id: &str) -> Result<Option<Volume>, CallError> {
        let volume = async {
            let path = volume_path("get volume", namespace_id, volume_id)?;
            self.volume(&path).await
        };
        match volume.await {
            Err(error) if error.status() == Some(404) => Ok(None),
            answer => answer.map(Some),
        }
    }

    async fn volume(&self, path: &str) -> Result<Volume, CallError> {
        self.get("get_volume", "get volume", path.to_owned()).await
    }

    /// Reads the version, and publishes for exactly that; if somebody else wrote in between, once more.
    async fn set_mount_endpoint(&self, namespace_id: &str, volume_id: &str, endpoint: &str) -> Result<(), CallError> {
        const CALL: &str = "publish mount endpoint";
        let path = volume_path(CALL, namespace_id, volume_id)?;
        let mut is_last = false;
        loop {
            let volume = self.volume(&path).await?;
            if volume.mount_endpoint() == endpoint {
                return Ok(());
            }
            let body = serde_json::to_vec(&MountEndpoint { mount_endpoint: endpoint, version: volume.version() });
            let body = body.map_err(|error| malformed(CALL, &error))?;
            let call = Call { name: CALL, method: Method::PUT, path: &format!("{path}/nfs/mount-endpoint"), body };
            match self.session.call(&call).await {
                Err(error) if matches!(error.status(), Some(409 | 412)) && !is_last => is_last = true,
                answer => return answer.map(drop),
            }
        }
    }

    async fn get<T: DeserializeOwned>(
        &self,
        function: &'static str,
        name: &'static str,
        path: String,
    ) -> Result<T, CallError> {
        let read = |body: Bytes| serde_json::from_slice(&body).map_err(|error| malformed(name, &error));
        let call = Call { name, method: Method::GET, path: &path, body: Vec::new() };
        self.measured(function, async { self.session.call(&call).await.and_then(read) }).await
    }

    async fn measured<T>(
        &self,
        function: &'static str,
        helper: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, CallError> {
        let begun = monotonic();
        let done = helper.await;
        let error = done.as_ref().err().map(CallError::reason).unwrap_or_default();
        self.metrics.helped(function, error, since(begun));
        done
    }
}

impl ControlPlane for Client {
    fn publish<'a>(
        &'a self,
        namespace_id: &'a str,
        volume_id: &'a str,
        endpoint: &'a str,
    ) -> BoxFuture<'a, Result<(), PublishError>> {
        let publish = self.set_mount_endpoint(namespace_id, volume_id, endpoint);
        async { Ok(self.measured("set_external_endpoint", publish).await?) }.boxed()
    }
}

/// One object that cannot be read does not hide the others.
fn readable<T: DeserializeOwned>(objects: Vec<Value>) -> Vec<T> {
    let read = |object: Value| {
        serde_json::from_value(object).inspect_err(|error| tracing::debug!(%error, "an object cannot be read")).ok()
    };
    objects.into_iter().filter_map(read).collect()
}

fn volume_path(call: &'static str, namespace_id: &str, volume_id: &str) -> Result<String, CallError> {
    Ok(format!("/v2/namespaces/{}/volumes/{}", segment(call, namespace_id)?, segment(call, volume_id)?))
}

/// An id as part of a path. Ids come from specs too, and must not lead to another object.
fn segment<'a>(call: &'static str, id: &'a str) -> Result<&'a str, CallError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if id.is_empty() || id == "." || id == ".." || !id.bytes().all(is_plain) {
        return Err(CallError::Status { call, status: 404, words: "no object has such an id".to_owned() });
    }
    Ok(id)
}

fn malformed(call: &'static str, error: &serde_json::Error) -> CallError {
    CallError::Malformed { call, why: error.to_string() }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
