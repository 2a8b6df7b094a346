//! Carries out what a pass decided: answers, written at the resourceVersion that was read, and calls to the driver,
//! each in a task of its own so that one that hangs delays no other.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::api::GetParams;
use kube::{Api, Resource};
use tracing::Instrument as _;

use crate::api::fence_request::{Desired, FenceOutcome, FenceRequest, FenceResult, GOOD_REASONS, RequestedVolume};
use crate::api::slim::PersistentVolume;
use crate::csi::v1::ControllerUnpublishVolumeRequest;
use crate::error::{Error, Result};
use crate::runtime::events::EventType;
use crate::runtime::lock::lock;

use super::decide::{Effect, Failure, FailureClass};
use super::metrics::Method;
use super::{Context, Shared, network_fence, status};

/// Carries out the effects. Returns the request as it was written, if it was. `wake` is called when a call ends.
pub async fn act(
    cx: &Context,
    request: &FenceRequest,
    memory: &Shared,
    effects: Vec<Effect>,
    wake: impl Fn() + Clone + Send + 'static,
) -> Result<Option<FenceRequest>> {
    let mut written = None;
    for effect in effects {
        match effect {
            Effect::Unpublish(volumes) => {
                for volume in volumes {
                    send(cx, request, memory, volume, wake.clone());
                }
            }
            Effect::NetworkFence { class, volumes } => shut_out(cx, request, memory, class, volumes, wake.clone()),
            Effect::Answer(rows) => written = Some(answer(cx, request, memory, rows).await?),
        }
    }
    Ok(written)
}

async fn answer(cx: &Context, request: &FenceRequest, memory: &Shared, rows: Vec<FenceResult>) -> Result<FenceRequest> {
    let status = status::compute(request, rows.clone(), cx.clock.now());
    let written = cx.writer.record(request, status).await?;
    lock(memory).answered(&rows);
    rows.iter().for_each(|row| tell(cx, &written, row));
    Ok(written)
}

fn tell(cx: &Context, request: &FenceRequest, row: &FenceResult) {
    let node = &request.spec.node_name;
    let reason = row.reason.as_deref().unwrap_or_default();
    let message = row.message.as_deref().unwrap_or_default();
    tracing::info!(node, volume = row.name, round = row.round, result = ?row.result, proof = ?row.proof, reason, message, "answered");
    let (kind, event) = match row.result {
        FenceOutcome::Fenced if request.spec.desired == Desired::Unfenced => (EventType::Warning, "FenceFailed"),
        FenceOutcome::Started if row.reason.is_none() => (EventType::Normal, "FenceStarted"),
        FenceOutcome::Fenced if GOOD_REASONS.contains(&reason) => (EventType::Normal, "Fenced"),
        FenceOutcome::Fenced => (EventType::Warning, "ProofTooWeak"),
        FenceOutcome::Unfenced => (EventType::Normal, "Unfenced"),
        FenceOutcome::Started | FenceOutcome::Failed => (EventType::Warning, "FenceFailed"),
    };
    // One Event per kind of news, not per volume: the rows say the rest.
    let note = match kind {
        EventType::Warning => format!("volume {}: {reason}: {message}", row.name),
        EventType::Normal => format!("node {node}: see status.volumes"),
    };
    cx.events.publish(request.object_ref(&()), kind, event, "Fence", note);
}

fn send(
    cx: &Context,
    request: &FenceRequest,
    memory: &Shared,
    volume: RequestedVolume,
    wake: impl Fn() + Send + 'static,
) {
    let attempts = lock(memory).begins(&volume);
    let (cx, memory, timeout) = (cx.clone(), memory.clone(), request.spec.call_timeout.get());
    let span = tracing::Span::current();
    cx.calls.clone().spawn(async move {
        // The task that ends without an answer (a panic) must not leave the row running for ever.
        let called = tokio::spawn(unpublish(cx.clone(), volume.clone(), timeout).instrument(span)).await;
        let outcome = called.unwrap_or_else(|panic| Err(internal(panic.to_string())));
        lock(&memory).ended(&volume, attempts, outcome, cx.clock.now().mono);
        wake();
    });
}

/// One fence for all rows of a class: they begin and end together.
fn shut_out(
    cx: &Context,
    request: &FenceRequest,
    memory: &Shared,
    class: String,
    volumes: Vec<RequestedVolume>,
    wake: impl Fn() + Send + 'static,
) {
    let attempts: Vec<_> = volumes.iter().map(|volume| lock(memory).begins(volume)).collect();
    let (cx, memory, request) = (cx.clone(), memory.clone(), Arc::new(request.clone()));
    let span = tracing::Span::current();
    let began = cx.clock.now().mono;
    cx.calls.clone().spawn(async move {
        let (context, asked, rows) = (cx.clone(), request.clone(), volumes.clone());
        let timeout = request.spec.call_timeout.get();
        let fence = async move { network_fence::fence(&context, &asked, &class, &rows, timeout).await };
        let outcome = tokio::spawn(fence.instrument(span)).await;
        let outcome = outcome.unwrap_or_else(|panic| Err(internal(panic.to_string())));
        cx.called(Method::NetworkFence, began, outcome.as_ref().err());
        let now = cx.clock.now().mono;
        for (volume, attempts) in volumes.iter().zip(attempts) {
            lock(&memory).ended(volume, attempts, outcome.clone(), now);
        }
        wake();
    });
}

async fn unpublish(cx: Context, volume: RequestedVolume, timeout: Duration) -> Result<(), Failure> {
    let secrets = secrets(&cx, &volume).await?;
    // Waiting for a turn costs the call nothing of its deadline; leadership may end meanwhile and is asked after it.
    let _turn = cx.driver.turn().await?;
    // Two sidecars must not both fence, or one could do so after the other gave access back.
    let left = cx.writer.leadership().require().map_err(|error| internal(error.to_string()))?;
    let call = ControllerUnpublishVolumeRequest { volume_id: volume.volume_handle, node_id: volume.node_id, secrets };
    let began = cx.clock.now().mono;
    let answer = cx.driver.unpublish(call, timeout.min(left)).await;
    cx.called(Method::ControllerUnpublishVolume, began, answer.as_ref().err());
    answer
}

/// The controller-publish secrets of the volume, as the attacher would pass them. Never logged, never stored.
async fn secrets(cx: &Context, volume: &RequestedVolume) -> Result<HashMap<String, String>, Failure> {
    let volumes: Api<PersistentVolume> = Api::all(cx.clients.reads.clone());
    let same = |pv: &PersistentVolume| volume.uid.is_none() || pv.metadata.uid == volume.uid;
    // What the API server has in memory will do: a volume's secrets do not change, and a hundred of these reads come at
    // once. One that it does not have there, or another of that name, is
    // asked for again.
    let found = match volumes.get_with(&volume.name, &GetParams::any()).await {
        Ok(found) if same(&found) => Some(found),
        _ => volumes.get_opt(&volume.name).await.map_err(unreadable)?,
    };
    let csi = found.filter(same).and_then(|pv| pv.spec.csi);
    let Some(reference) = csi.and_then(|csi| csi.controller_publish_secret_ref) else { return Ok(HashMap::new()) };
    let (Some(namespace), Some(name)) = (reference.namespace, reference.name) else { return Ok(HashMap::new()) };
    let secrets: Api<Secret> = Api::namespaced(cx.clients.reads.clone(), &namespace);
    let secret = secrets.get(&name).await.map_err(unreadable)?;
    let data = secret.data.unwrap_or_default().into_iter();
    let entries = data.map(|(key, value)| match String::from_utf8(value.0) {
        Ok(value) => Ok((key, value)),
        Err(_) => Err(internal(format!(
            "key {key} of secret {namespace}/{} is no text",
            secret.metadata.name.as_deref().unwrap_or_default()
        ))),
    });
    entries.collect()
}

fn unreadable(error: kube::Error) -> Failure {
    let error = Error::from(error);
    Failure {
        code: "SecretUnreadable",
        class: FailureClass::Retry,
        message: format!("controller-publish secret: {error}"),
    }
}

fn internal(message: String) -> Failure {
    Failure { code: "Internal", class: FailureClass::Retry, message }
}

#[cfg(test)]
#[path = "act_tests.rs"]
pub(super) mod tests;
