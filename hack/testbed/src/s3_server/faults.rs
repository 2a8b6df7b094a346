//! What goes wrong in which requests.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use http::Method;
use s3s::S3ErrorCode;
use tokio::sync::watch;

use super::records::Request;
use crate::lock::lock;

/// What goes wrong.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Nothing is done and this error is answered, such as `SlowDown` (503) or `AccessDenied` (403).
    Fail(S3ErrorCode),
    /// The request waits until the fault is removed, and is then carried out.
    Hang,
    /// The request is carried out; the answer waits until the fault is removed.
    DoThenHang,
}

/// Which requests, what effect, how often.
#[derive(Clone, Debug)]
pub struct Fault {
    method: Option<Method>,
    bucket: Option<String>,
    access_key: Option<String>,
    left: Option<u32>,
    effect: Effect,
}

impl Fault {
    /// In all requests.
    pub fn everywhere(effect: Effect) -> Self {
        Self { method: None, bucket: None, access_key: None, left: None, effect }
    }

    /// Only in those with this method.
    #[must_use]
    pub fn on(self, method: Method) -> Self {
        Self { method: Some(method), ..self }
    }

    /// Only in those on this bucket.
    #[must_use]
    pub fn in_bucket(self, bucket: &str) -> Self {
        Self { bucket: Some(bucket.to_owned()), ..self }
    }

    /// Only in those that this key signed.
    #[must_use]
    pub fn signed_by(self, access_key: &str) -> Self {
        Self { access_key: Some(access_key.to_owned()), ..self }
    }

    /// Only so often.
    #[must_use]
    pub fn times(self, times: u32) -> Self {
        Self { left: Some(times), ..self }
    }

    fn fits(&self, request: &Request) -> bool {
        self.left != Some(0)
            && self.method.as_ref().is_none_or(|method| *method == request.method)
            && self.bucket.as_ref().is_none_or(|bucket| *bucket == request.bucket)
            && self.access_key.as_ref().is_none_or(|key| *key == request.access_key)
    }
}

/// Names a fault that was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FaultId(u64);

/// All faults of one server. Cheap to clone; all clones are the same.
#[derive(Clone, Debug)]
pub struct Faults(Arc<Script>);

#[derive(Debug)]
struct Script {
    faults: Mutex<Vec<(FaultId, Fault)>>,
    /// Those that were removed let go what hangs in them.
    removed: watch::Sender<BTreeSet<FaultId>>,
    next: Mutex<u64>,
}

impl Default for Faults {
    fn default() -> Self {
        let removed = watch::Sender::new(BTreeSet::new());
        Self(Arc::new(Script { faults: Mutex::default(), removed, next: Mutex::new(0) }))
    }
}

impl Faults {
    /// Adds a fault for requests that come in from now on. Of several that fit a request the first takes effect.
    pub fn add(&self, fault: Fault) -> FaultId {
        let id = {
            let mut next = lock(&self.0.next);
            *next += 1;
            FaultId(*next)
        };
        lock(&self.0.faults).push((id, fault));
        id
    }

    /// Takes a fault back, and lets the requests go that hang in it.
    pub fn remove(&self, fault: FaultId) {
        lock(&self.0.faults).retain(|(id, _)| *id != fault);
        self.0.removed.send_modify(|removed| {
            removed.insert(fault);
        });
    }

    /// What befalls this request; counts it.
    pub(super) fn befall(&self, request: &Request) -> Option<(FaultId, Effect)> {
        let mut faults = lock(&self.0.faults);
        let (id, fault) = faults.iter_mut().find(|(_, fault)| fault.fits(request))?;
        fault.left = fault.left.map(|left| left - 1);
        Some((*id, fault.effect.clone()))
    }

    /// Returns when the fault is removed.
    pub(super) async fn removed(&self, fault: FaultId) {
        let mut removed = self.0.removed.subscribe();
        // The sender lives in `self`, so this cannot fail.
        let _ = removed.wait_for(|all| all.contains(&fault)).await;
    }
}
