//! Takes our scheduling gate from pods that wait for nothing any more. Keyed by pod.

use std::sync::Arc;

use kube::ResourceExt;
use tokio_util::sync::CancellationToken;

use crate::api::names;
use crate::api::slim::Pod;
use crate::api::volume::TaintEffect;
use crate::api::volume_health::VolumeHealth;
use crate::controllers::{BY_CLAIM, Context, indexes, reference};
use crate::error::Result;
use crate::runtime::events::EventType;
use crate::runtime::patch::Edit;
use crate::runtime::queue::{self, Next, Queue, QueueConfig, UNSEEN_PACE};
use crate::runtime::store::ObjectKey;
use crate::runtime::writer::Writer;

use super::gates;
use super::report_conditions::told;

/// Pods worked on at once.
const CONCURRENCY: usize = 16;

/// Runs until `cancel`.
pub async fn run(cx: Context, cancel: CancellationToken) {
    let (queue, receiver) = queue::queue();
    feed(&cx, &queue);
    let (leadership, telemetry) = (cx.writer.leadership().clone(), cx.telemetry.clone());
    let receiver = receiver.after(cx.stores.wait_health_synced());
    let config = QueueConfig::new("volume_gates", "Pod", CONCURRENCY);
    let reconcile = move |pod: ObjectKey| {
        let cx = cx.clone();
        async move { reconcile(&cx, &pod).await }
    };
    queue::run(config, receiver, &telemetry, cancel, Some(leadership), reconcile).await;
}

fn feed(cx: &Context, queue: &Queue<ObjectKey>) {
    queue.follow(cx.stores.pods.subscribe(), None, |change| {
        let is_held = change.new.as_ref().is_some_and(|pod| pod.is_held());
        is_held.then(|| change.key.clone())
    });
    let stores = cx.stores.clone();
    queue.follow(cx.stores.healths.subscribe(), None, move |change| {
        let claims = change.both().flat_map(|health| indexes::claims_of_health(health));
        let pods = claims.flat_map(|claim| stores.pods.by_index(BY_CLAIM, &claim)).filter(|pod| pod.is_held());
        pods.map(|pod| ObjectKey::from(pod.as_ref())).collect::<Vec<_>>()
    });
}

async fn reconcile(cx: &Context, key: &ObjectKey) -> Result<Next> {
    let Some(pod) = cx.stores.pods.get(key) else { return Ok(Next::Await) };
    let claims = indexes::claims_of_pod(&pod);
    let healths: Vec<Arc<VolumeHealth>> =
        claims.iter().flat_map(|claim| cx.stores.healths.by_index(BY_CLAIM, claim)).collect();
    if !gates::may_go(&pod, healths.iter().map(Arc::as_ref)) {
        tell(cx, &pod, &healths);
        return Ok(Next::Await);
    }
    match ungate(&cx.writer, &pod).await {
        Ok(_) => {
            tracing::info!(pod = %key, "the pod may be scheduled");
            let note = "its volumes take new pods again".to_owned();
            cx.events.publish(reference(pod.as_ref()), EventType::Normal, "VolumeConditionNormal", "Release", note);
            Ok(Next::Await)
        }
        Err(error) if error.is_not_found() => Ok(Next::Await),
        Err(error) if error.is_conflict() => Ok(Next::After(UNSEEN_PACE)),
        Err(error) => Err(error),
    }
}

/// Kubernetes itself only says `SchedulingGated`. What is told already is not repeated by the Events.
fn tell(cx: &Context, pod: &Pod, healths: &[Arc<VolumeHealth>]) {
    let waits = pod.is_held() && !pod.is_terminating();
    for health in healths.iter().filter(|health| waits && gates::holds(health)) {
        let keeping = health.taints().iter().filter(|taint| taint.effect() == TaintEffect::NoAttachOrMount);
        let taints: Vec<_> = keeping.map(told).collect();
        let note =
            format!("waits: volume {} takes no new pod until it is healthy: {}", health.name_any(), taints.join("; "));
        cx.events.publish(reference(pod), EventType::Warning, "VolumeConditionAbnormal", "Hold", note);
    }
}

/// Takes our gate from exactly this version of the pod. Returns whether it had one.
pub(super) async fn ungate(writer: &Writer, pod: &Pod) -> Result<bool> {
    let mut gates = pod.spec.scheduling_gates.iter();
    let Some(index) = gates.position(|gate| gate.name == names::VOLUME_TAINTED_GATE) else { return Ok(false) };
    let edit = Edit::of(&pod.metadata).take(&["spec", "schedulingGates", &index.to_string()]);
    Ok(writer.patch(pod, edit.patch()).await?.is_some())
}
