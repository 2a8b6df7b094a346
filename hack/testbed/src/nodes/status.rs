//! A pod's status in its kubelet's words.

use std::net::Ipv4Addr;

use chrono::{SecondsFormat, Utc};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodCondition};
use kube::ResourceExt;
use serde_json::{Value, json};

/// Where a pod is in its life.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its volumes or containers are not there yet.
    Creating,
    /// It runs and is ready.
    Running,
    /// One of its containers fails again and again.
    Crashing,
    /// Its containers ended because it was deleted.
    Ended,
}

/// The patch that reports a stage. It names the uid, so that a new pod of the same name refuses it.
pub(crate) fn patch(pod: &Pod, stage: Stage, host_ip: &str, pod_ip: Ipv4Addr, at_least: i32) -> Value {
    let now = Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true);
    let (ready, reason) = match stage {
        Stage::Creating => ("False", Some("ContainersNotReady")),
        Stage::Running => ("True", None),
        Stage::Crashing => ("False", Some("ContainersNotReady")),
        Stage::Ended => ("False", Some("PodCompleted")),
    };
    let condition = |kind: &str, status: &str, reason: Option<&str>| {
        let since = unchanged_since(pod, kind, status).unwrap_or_else(|| json!(now));
        json!({ "type": kind, "status": status, "reason": reason, "lastTransitionTime": since })
    };
    let started = match pod.status.as_ref().and_then(|status| status.start_time.as_ref()) {
        Some(time) => json!(time),
        None => json!(now),
    };
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let containers = containers.map(|container| container_status(pod, container, stage, &now, at_least));
    let init_statuses = init_containers(pod).map(|container| container_status(pod, container, stage, &now, at_least));
    let initialized =
        if init_containers(pod).any(|it| stage == Stage::Crashing && crashes(pod, it)) { "False" } else { "True" };
    let mut status = json!({
        "phase": match stage {
            Stage::Creating if !ran_before(pod) => "Pending",
            Stage::Creating => "Running",
            Stage::Running | Stage::Crashing => "Running",
            Stage::Ended => "Succeeded",
        },
        "conditions": [
            condition("PodScheduled", "True", None),
            condition("Initialized", initialized, None),
            condition("ContainersReady", ready, reason),
            condition("Ready", ready, reason),
        ],
        "hostIP": host_ip,
        "hostIPs": [{ "ip": host_ip }],
        "startTime": started,
        "containerStatuses": containers.collect::<Vec<_>>(),
        "initContainerStatuses": init_statuses.collect::<Vec<_>>(),
    });
    if let (Stage::Running, Some(status)) = (stage, status.as_object_mut()) {
        // The API merges addresses, so a pod that had one keeps it.
        let had = pod.status.as_ref().and_then(|status| status.pod_ip.clone());
        let pod_ip = had.unwrap_or_else(|| pod_ip.to_string());
        status.insert("podIP".to_owned(), json!(pod_ip));
        status.insert("podIPs".to_owned(), json!([{ "ip": pod_ip }]));
    }
    json!({ "metadata": { "uid": pod.uid() }, "status": status })
}

fn container_status(pod: &Pod, container: &Container, stage: Stage, now: &str, at_least: i32) -> Value {
    let restarts = before(pod, &container.name).map_or(0, |before| before.restart_count).max(at_least);
    let state = match stage {
        Stage::Creating => json!({ "waiting": { "reason": "ContainerCreating" } }),
        Stage::Crashing if crashes(pod, container) => json!({ "waiting": { "reason": "CrashLoopBackOff" } }),
        Stage::Running | Stage::Crashing => json!({ "running": { "startedAt": now } }),
        Stage::Ended => json!({
            "terminated": { "exitCode": 0, "reason": "Completed", "finishedAt": now }
        }),
    };
    let runs = stage == Stage::Running || stage == Stage::Crashing && !crashes(pod, container);
    // A strategic merge keeps what is not named: the other states are taken out by name.
    let mut all = json!({ "waiting": null, "running": null, "terminated": null });
    if let (Some(all), Value::Object(state)) = (all.as_object_mut(), state) {
        all.extend(state);
    }
    json!({
        "name": container.name,
        "image": container.image,
        "imageID": container.image,
        "containerID": format!("simulated://{}-{}-{restarts}", pod.uid().unwrap_or_default(), container.name),
        "ready": runs,
        "started": runs,
        "restartCount": restarts,
        "state": all,
    })
}

fn init_containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten())
}

/// The image `crash` fails wherever it runs; `crash-on/NODE` on that node.
fn crashes(pod: &Pod, container: &Container) -> bool {
    let image = container.image.as_deref().unwrap_or_default();
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    image == "crash" || image.strip_prefix("crash-on/").is_some_and(|on| Some(on) == node)
}

/// What it does once its volumes are there.
pub(crate) fn stage_of(pod: &Pod) -> Stage {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers).chain(init_containers(pod));
    let fails = containers.into_iter().any(|container| crashes(pod, container));
    if fails { Stage::Crashing } else { Stage::Running }
}

fn unchanged_since(pod: &Pod, kind: &str, status: &str) -> Option<Value> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let same = |now: &&PodCondition| now.type_ == kind && now.status == status;
    let now = conditions.iter().find(same)?;
    now.last_transition_time.as_ref().map(|time| json!(time))
}

/// How often its containers were started again, as far as the API knows.
pub(crate) fn restarts(pod: &Pod) -> i32 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let counts = containers.filter_map(|container| before(pod, &container.name)).map(|before| before.restart_count);
    counts.max().unwrap_or(0)
}

/// The container ran before, as far as the API knows.
pub(crate) fn ran_before(pod: &Pod) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers.filter_map(|container| before(pod, &container.name)).any(|before| before.started == Some(true))
}

fn before<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStatus> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.iter().find(|status| status.name == container)
}

/// It is reported as Ready.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Its containers must not run (any more): deleted, or somebody set it to a final phase.
pub(crate) fn must_end(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some() || is_final(pod)
}

/// It reached a final phase.
pub(crate) fn is_final(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}
