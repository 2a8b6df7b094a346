//! What a pass sees: the request, the calls of this process, and, where it is needed, the driver's list.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::api::driver_report::Capability;
use crate::api::fence_request::FenceRequest;
use crate::runtime::lock::lock;

use super::connectivity::driver::Extension;
use super::decide::{Failure, FailureClass, Reading, Seen};
use super::io::{Busy, Question, Questions};
use super::metrics::Method;
use super::{Context, Shared};

/// What is known without asking anybody.
pub fn observe(request: Arc<FenceRequest>, memory: &Shared) -> Seen {
    let memory = lock(memory).clone();
    Seen { request, calls: memory.calls, reading: None, busy: None, let_in: None, holds: None, looked: memory.looked }
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
        Ok(able) if able.contains(&Capability::ListPublishedNodes) => {
            let asked = cx.clock.now().mono;
            let published = cx.driver.list(deadline).await;
            cx.called(Method::ListVolumes, asked, published.as_ref().err());
            published
        }
        Ok(able) if able.contains(&Capability::GetPublishedNodes) => {
            let asked = cx.clock.now().mono;
            let published = cx.driver.get(handles, deadline.min(GETS_DEADLINE)).await;
            let failed = published.values().find_map(|nodes| nodes.as_ref().err());
            cx.called(Method::ControllerGetVolume, asked, failed);
            Ok(published)
        }
        Ok(_) => Err(Failure {
            code: "Unimplemented",
            class: FailureClass::Stop,
            message: "the driver cannot tell which nodes a volume is published to".into(),
        }),
    };
    Reading { began, ended: cx.clock.now().wall, published }
}

/// What a driver is allowed for an answer about I/O (podmon's contract).
const IO_DEADLINE: Duration = Duration::from_secs(10);

/// Asks which of these nodes are doing I/O. An error, or no answer, says nothing about it.
pub async fn ask(cx: &Context, request: &FenceRequest, questions: Questions) -> Busy {
    let extension = Extension::new(cx.driver.clone());
    let deadline = request.spec.call_timeout.get().min(IO_DEADLINE);
    let mut busy = Busy::new();
    for (node_id, question) in questions {
        if is_busy(&extension, &node_id, &question, deadline).await {
            busy.insert(node_id);
        }
    }
    busy
}

async fn is_busy(extension: &Extension, node_id: &str, question: &Question, deadline: Duration) -> bool {
    if !question.own.is_empty() && says(extension, node_id, &question.own, deadline).await == Some(true) {
        return true;
    }
    let Some(control) = &question.control else { return false };
    // Per volume, from whichever node, is what most drivers count: one that says so of a node that does not have it does.
    says(extension, node_id, &question.shared, deadline).await == Some(true)
        && says(extension, control, &question.shared, deadline).await == Some(false)
}

async fn says(extension: &Extension, node_id: &str, handles: &BTreeSet<String>, deadline: Duration) -> Option<bool> {
    match extension.is_doing_io(node_id, handles, deadline).await {
        Ok(busy) => Some(busy),
        Err(failure) => {
            tracing::warn!(
                node_id,
                code = failure.code,
                failure.message,
                "the driver does not say whether there is I/O"
            );
            None
        }
    }
}
