//! What the control plane was asked.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, StatusCode};
use tokio::time::Instant;

use crate::lock::lock;

/// One request that came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// HTTP method.
    pub method: Method,
    /// Path, such as `/v2/namespaces`.
    pub path: String,
    /// When it came in, since the server began.
    pub at: Duration,
    /// The answer; none while it is being worked on, or when the client gave up.
    pub status: Option<StatusCode>,
}

/// All requests of one server. Cheap to clone; all clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Records {
    began: Instant,
    all: Arc<Mutex<Vec<Request>>>,
}

impl Default for Records {
    fn default() -> Self {
        Self { began: Instant::now(), all: Arc::default() }
    }
}

impl Records {
    /// Returns its place, for the answer.
    pub fn add(&self, method: Method, path: String) -> usize {
        let at = self.began.elapsed();
        let mut all = lock(&self.all);
        all.push(Request { method, path, at, status: None });
        all.len() - 1
    }

    pub fn answered(&self, place: usize, status: StatusCode) {
        if let Some(request) = lock(&self.all).get_mut(place) {
            request.status = Some(status);
        }
    }

    pub fn all(&self) -> Vec<Request> {
        lock(&self.all).clone()
    }
}
