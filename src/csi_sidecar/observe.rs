//! What a pass sees: the request, the calls of this process, and, where it is needed, the driver's list.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::api::driver_report::Capability;
use crate::api::fence_request::FenceRequest;

use super::decide::{Failure, FailureClass, Reading, Seen};
use super::{Context, Shared, lock};

/// What is known without asking anybody.
pub fn observe(request: Arc<FenceRequest>, memory: &Shared) -> Seen {
    Seen { request, calls: lock(memory).calls.clone(), reading: None }
}

/// A single volume that does not answer holds up the others of its request no longer than this: their proof counts
/// only shortly after it was asked for.
const GETS_DEADLINE: Duration = Duration::from_secs(5);

/// Reads the published nodes: all volumes in one list, or, where the driver cannot list, those with these handles.
pub async fn read(cx: &Context, request: &FenceRequest, handles: BTreeSet<String>) -> Reading {
    let deadline = request.spec.call_timeout.get();
    let began = cx.clock.now().mono;
    let published = match cx.driver.capabilities(deadline).await {
        Err(failure) => Err(failure),
        Ok(able) if able.contains(&Capability::ListPublishedNodes) => cx.driver.list(deadline).await,
        Ok(able) if able.contains(&Capability::GetPublishedNodes) => {
            Ok(cx.driver.get(handles, deadline.min(GETS_DEADLINE)).await)
        }
        Ok(_) => Err(Failure {
            code: "Unimplemented",
            class: FailureClass::Stop,
            message: "the driver cannot tell which nodes a volume is published to".into(),
        }),
    };
    Reading { began, ended: cx.clock.now().wall, published }
}
