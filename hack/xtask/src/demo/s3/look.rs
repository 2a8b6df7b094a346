//! What is there at one moment, and how it is told.

use std::collections::BTreeMap;

use bulkhead::api::mountpoint_s3_pod_attachment::MountpointS3PodAttachment;
use bulkhead_testbed::cluster::real::RealCluster;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{ListParams, ObjectList};
use kube::{Api, ResourceExt};

use crate::Result;

/// What is there.
pub(super) struct Look {
    attachments: Vec<MountpointS3PodAttachment>,
    mountpoint_pods: Vec<Pod>,
    workloads: ObjectList<Pod>,
    events: ObjectList<Event>,
}

impl Look {
    pub async fn now(cluster: &RealCluster, volume: &str) -> Result<Self> {
        let all = ListParams::default();
        Ok(Self {
            attachments: cluster.attachments(volume).await?,
            mountpoint_pods: cluster.mountpoint_pods().await?,
            workloads: Api::default_namespaced(cluster.client.clone()).list(&all).await?,
            events: Api::default_namespaced(cluster.client.clone()).list(&all).await?,
        })
    }

    pub fn runs(&self, name: &str) -> bool {
        self.workloads.iter().any(|pod| pod.name_any() == name && is_ready(pod))
    }

    /// The Mountpoint Pod of a workload.
    pub fn serving(&self, name: &str) -> Option<&str> {
        let uid = self.workloads.iter().find(|pod| pod.name_any() == name)?.uid()?;
        self.attachments.iter().find_map(|attachment| attachment.spec.mountpoint_pod_of(&uid))
    }

    pub fn is_told(&self, name: &str) -> bool {
        let of_it = |event: &&Event| event.involved_object.name.as_deref() == Some(name);
        self.events.iter().filter(of_it).any(|event| event.reason.as_deref() == Some("MountDead"))
    }

    /// All that there is to tell, a line each.
    pub fn told(&self) -> Vec<String> {
        let mut told: Vec<_> = self.attachments.iter().flat_map(|attachment| self.assignments(attachment)).collect();
        told.extend(self.mountpoint_pods.iter().map(|pod| format!("Mountpoint Pod {}: {}", short(pod), state(pod))));
        let running = self.workloads.iter().filter(|pod| is_ready(pod));
        told.extend(running.map(|pod| format!("{} runs", pod.name_any())));
        let ours =
            |event: &&Event| event.reason.as_deref().is_some_and(|it| it.starts_with("Mount") || it == "FailedMount");
        told.extend(self.events.iter().filter(ours).map(event));
        told
    }

    /// Who is served by which Mountpoint Pod, a line each.
    fn assignments(&self, attachment: &MountpointS3PodAttachment) -> Vec<String> {
        let names: BTreeMap<_, _> =
            self.workloads.iter().map(|pod| (pod.uid().unwrap_or_default(), pod.name_any())).collect();
        let served = attachment.spec.mountpoint_s3_pod_attachments.iter();
        let line = |(pod, workload): (&String, &str)| {
            format!("{}: {workload} is served by {}", attachment.name_any(), shorter(pod))
        };
        served
            .flat_map(|(pod, workloads)| {
                workloads.iter().filter_map(|it| Some(line((pod, names.get(&it.workload_pod_uid)?))))
            })
            .collect()
    }
}

fn event(event: &Event) -> String {
    let name = event.involved_object.name.as_deref().unwrap_or_default();
    let reason = event.reason.as_deref().unwrap_or_default();
    format!("Event on {name}: {reason}: {}", event.message.as_deref().unwrap_or_default())
}

fn short(pod: &Pod) -> String {
    shorter(&pod.name_any()).to_owned()
}

/// Names of Mountpoint Pods have 59 letters, of which the first few tell them apart.
fn shorter(name: &str) -> &str {
    name.get(..11).unwrap_or(name)
}

fn state(pod: &Pod) -> String {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let restarts: i32 = statuses.map(|status| status.restart_count).sum();
    let unmount = if pod.annotations().contains_key(bulkhead::api::s3::NEEDS_UNMOUNT) { ", to unmount" } else { "" };
    match restarts {
        0 => format!("{phase}{unmount}"),
        restarts => format!("{phase}, {restarts} restarts{unmount}"),
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.into_iter().any(|it| it.type_ == "Ready" && it.status == "True");
    ready && pod.metadata.deletion_timestamp.is_none()
}
