//! What the server was asked.

use std::sync::{Arc, Mutex};

use http::header::{AUTHORIZATION, USER_AGENT};
use http::request::Parts;
use http::{Method, StatusCode};

use crate::lock::lock;

/// One request that came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// HTTP method.
    pub method: Method,
    /// Bucket; empty where none is named.
    pub bucket: String,
    /// Key of the object as it was sent (percent-encoded); empty where the bucket itself is meant.
    pub key: String,
    /// Query as it was sent, without what signs it; empty without one.
    pub query: String,
    /// Access key that signed it; empty without one.
    pub access_key: String,
    /// Program that asked.
    pub user_agent: String,
    /// The answer; none while it is being worked on, or when the client gave up.
    pub status: Option<StatusCode>,
}

impl Request {
    pub(super) fn of(parts: &Parts) -> Self {
        let path = parts.uri.path().trim_start_matches('/');
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        let query = parts.uri.query().unwrap_or_default();
        let signs = |pair: &&str| !pair.starts_with("X-Amz-");
        let header = |name| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        Self {
            method: parts.method.clone(),
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            query: query.split('&').filter(signs).collect::<Vec<_>>().join("&"),
            access_key: signer(header(AUTHORIZATION)).unwrap_or_default().to_owned(),
            user_agent: header(USER_AGENT).to_owned(),
            status: None,
        }
    }
}

/// The key in `AWS4-HMAC-SHA256 Credential=KEY/20261122/region/s3/aws4_request, …`.
fn signer(authorization: &str) -> Option<&str> {
    let (_, credential) = authorization.split_once("Credential=")?;
    Some(credential.split_once('/')?.0)
}

/// All requests of one server. Cheap to clone; all clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Records(Arc<Mutex<Vec<Request>>>);

impl Records {
    /// Returns its place, for the answer.
    pub fn add(&self, request: Request) -> usize {
        let mut all = lock(&self.0);
        all.push(request);
        all.len() - 1
    }

    pub fn answered(&self, place: usize, status: StatusCode) {
        if let Some(request) = lock(&self.0).get_mut(place) {
            request.status = Some(status);
        }
    }

    pub fn all(&self) -> Vec<Request> {
        lock(&self.0).clone()
    }
}
