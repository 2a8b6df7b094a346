//! The pods of a certification: what they say, and what they wait for.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{AsyncBufReadExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{Event, Pod, PodStatus};
use kube::api::{ListParams, LogParams};
use kube::{Api, Client};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::kubectl::error::{Error, Result};

use super::log::WriterLog;
use super::scratch::Role;

/// Between two tries to follow a log: until the container runs there is none, and the way to it may break.
const RETRY: Duration = Duration::from_millis(200);

/// Follows the writer's log until the handle is dropped.
pub fn listen(client: &Client, namespace: &str, began: Instant, log: Arc<Mutex<WriterLog>>) -> AbortOnDropHandle<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    AbortOnDropHandle::new(tokio::spawn(async move {
        let follow = LogParams { follow: true, ..LogParams::default() };
        loop {
            if let Ok(stream) = pods.log_stream(Role::Writer.pod(), &follow).await {
                let mut lines = stream.lines();
                // What came is kept, however the stream ends; what comes twice is no news.
                while let Ok(Some(line)) = lines.try_next().await {
                    log.lock().unwrap_or_else(PoisonError::into_inner).hear(&line, began.elapsed());
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    }))
}

/// What the reader found, when it has ended.
pub async fn found(pods: &Api<Pod>) -> Result<Option<u64>> {
    let name = Role::Reader.pod();
    let phase = pods.get(name).await?.status.and_then(|status| status.phase).unwrap_or_default();
    if phase != "Succeeded" && phase != "Failed" {
        return Ok(None);
    }
    let text = pods.logs(name, &LogParams::default()).await?;
    let number = text.lines().find_map(|line| line.strip_prefix("found ")?.trim().parse().ok());
    number.map(Some).ok_or_else(|| Error::Refused(format!("the reader could not read the counter: {}", text.trim())))
}

/// What a pod waits for: its conditions, its container, and what Kubernetes warned of.
pub async fn trouble(reads: &Client, namespace: &str, role: Role) -> String {
    let pods: Api<Pod> = Api::namespaced(reads.clone(), namespace);
    let status = pods.get_opt(role.pod()).await.ok().flatten().and_then(|pod| pod.status);
    let events: Api<Event> = Api::namespaced(reads.clone(), namespace);
    let warnings = events.list(&ListParams::default().fields("type=Warning")).await.map(|it| it.items);
    let mut told = status.as_ref().map(waiting).unwrap_or_else(|| vec![format!("there is no pod {}", role.pod())]);
    told.extend(warnings.unwrap_or_default().into_iter().filter_map(|event| event.message).next_back());
    told.join("; ")
}

fn waiting(status: &PodStatus) -> Vec<String> {
    let conditions = status.conditions.iter().flatten().filter(|it| it.status != "True");
    let mut told: Vec<_> = conditions.filter_map(|it| it.message.clone()).collect();
    told.dedup();
    for container in status.container_statuses.iter().flatten() {
        let state = container.state.as_ref();
        if let Some(waiting) = state.and_then(|state| state.waiting.as_ref()) {
            told.push(format!(
                "{} {}",
                waiting.reason.as_deref().unwrap_or_default(),
                waiting.message.as_deref().unwrap_or_default()
            ));
        }
        if let Some(ended) = state.and_then(|state| state.terminated.as_ref()) {
            told.push(format!("its program ended with {}", ended.exit_code));
        }
    }
    if told.is_empty() { vec![format!("phase {}", status.phase.as_deref().unwrap_or("unknown"))] } else { told }
}
