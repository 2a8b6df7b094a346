//! What is there at one moment, and how it is told.

use bulkhead::api::driver_report::DriverReport;
use bulkhead::api::names::{OPERATOR_NAMESPACE, TAINTED_LABEL};
use bulkhead::api::node_volume_report::NodeVolumeReport;
use bulkhead::api::volume::NOT_USABLE;
use bulkhead::api::volume_health::{Phase, VolumeHealth};
use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{ListParams, ObjectList};
use kube::{Api, Resource, ResourceExt};

use super::stage::{NODE, Stage};
use super::{ELSEWHERE, NEW_CLAIM, NEWCOMER, OTHER, POD, SPARE, Said, USED};
use crate::Result;

/// What is there.
pub(super) struct Look {
    /// What the node's agent or the driver's sidecar reports of the volume.
    report: Option<String>,
    healths: ObjectList<VolumeHealth>,
    volumes: ObjectList<PersistentVolume>,
    claims: ObjectList<PersistentVolumeClaim>,
    pods: ObjectList<Pod>,
    /// On the claim and on the pod: the volume's condition.
    pub events: Vec<String>,
}

impl Look {
    pub async fn now(stage: &Stage) -> Result<Self> {
        let (client, all) = (stage.client(), ListParams::default());
        let events: ObjectList<Event> = Api::default_namespaced(client.clone()).list(&all).await?;
        Ok(Self {
            report: report(stage).await?,
            healths: Api::all(client.clone()).list(&all).await?,
            volumes: Api::all(client.clone()).list(&all).await?,
            claims: Api::default_namespaced(client.clone()).list(&all).await?,
            pods: Api::default_namespaced(client.clone()).list(&all).await?,
            events: events.iter().filter_map(told).collect(),
        })
    }

    fn health(&self, name: &str) -> Option<&VolumeHealth> {
        find(&self.healths, name)
    }

    pub fn is_tainted(&self, name: &str) -> bool {
        self.health(name).is_some_and(|health| health.taints().iter().any(|taint| taint.key == NOT_USABLE))
    }

    /// Kept for a claim that never is.
    pub fn is_reserved(&self, name: &str) -> bool {
        let spec = find(&self.volumes, name).and_then(|volume| volume.spec.as_ref());
        let claim = spec.and_then(|spec| spec.claim_ref.as_ref());
        claim.is_some_and(|claim| claim.namespace.as_deref() == Some(OPERATOR_NAMESPACE))
    }

    pub fn is_held(&self, pod: &str) -> bool {
        let pod = find(&self.pods, pod).and_then(|pod| pod.spec.as_ref());
        pod.is_some_and(|spec| spec.node_name.is_none() && !spec.scheduling_gates.iter().flatten().count().eq(&0))
    }

    pub fn runs(&self, pod: &str) -> bool {
        find(&self.pods, pod).is_some_and(is_running)
    }

    /// Nothing of ours is left on any volume.
    pub fn is_whole(&self) -> bool {
        let marked = |volume: &PersistentVolume| volume.labels().contains_key(TAINTED_LABEL);
        [USED, SPARE, OTHER].iter().all(|name| self.health(name).is_some_and(is_healthy) && !self.is_reserved(name))
            && !self.volumes.iter().any(marked)
    }

    pub fn claim_volume(&self, name: &str) -> Option<String> {
        find(&self.claims, name)?.spec.as_ref()?.volume_name.clone()
    }

    /// The pod on the volume is the same, and its container too.
    pub fn same_pod(&self, before: &Self) -> bool {
        let life = |look: &Self| find(&look.pods, POD).map(|pod| (pod.uid(), is_running(pod), restarts(pod)));
        life(self).is_some() && life(self) == life(before)
    }

    /// All volumes and claims that were there are there.
    pub fn same_volumes(&self, before: &Self) -> bool {
        let kept = |before: Option<String>, after: Vec<Option<String>>| after.contains(&before);
        before.volumes.iter().all(|it| kept(it.uid(), self.volumes.iter().map(ResourceExt::uid).collect()))
            && before.claims.iter().all(|it| kept(it.uid(), self.claims.iter().map(ResourceExt::uid).collect()))
    }

    /// Tells what is new.
    pub fn tell(&self, stage: &Stage, said: &mut Said) {
        if let Some(report) = &self.report {
            let who =
                if stage.is_simulated() { "the driver's sidecar".to_owned() } else { format!("the agent of {NODE}") };
            said.say(format!("{who} reports {USED}: {report}"));
        }
        for name in [USED, SPARE] {
            let Some(health) = self.health(name) else { continue };
            for taint in health.taints() {
                said.say(format!("VolumeHealth {name}: taint {}, {}", taint.key, taint.reason));
            }
            if is_healthy(health) && said.from == "mended" {
                said.say(format!("VolumeHealth {name}: no taint any more, {:?}", Phase::Healthy));
            }
        }
        if self.is_reserved(SPARE) {
            said.say(format!("{SPARE}, which nobody has yet, is reserved: no claim is bound to it"));
        } else if said.from == "mended" {
            said.say(format!("{SPARE} may be bound again"));
        }
        self.events.iter().for_each(|event| said.say(event.clone()));
        if self.is_held(NEWCOMER) {
            said.say(format!("{NEWCOMER} is held: {}", self.why_held()));
        }
        if let Some(volume) = self.claim_volume(NEW_CLAIM) {
            said.say(format!("claim {NEW_CLAIM} is bound to {volume}"));
        }
        for pod in [NEWCOMER, ELSEWHERE] {
            if self.runs(pod) {
                said.say(format!("{pod} runs"));
            }
        }
    }

    fn why_held(&self) -> String {
        let status = find(&self.pods, NEWCOMER).and_then(|pod| pod.status.as_ref());
        let mut conditions = status.into_iter().flat_map(|status| status.conditions.iter().flatten());
        let gated = conditions.find_map(|it| it.reason.clone().filter(|reason| reason == "SchedulingGated"));
        gated.unwrap_or_else(|| "scheduling gate".to_owned())
    }
}

async fn report(stage: &Stage) -> Result<Option<String>> {
    let client = stage.client().clone();
    Ok(match stage {
        Stage::Real(_) => {
            let report: Option<NodeVolumeReport> = Api::all(client).get_opt(NODE).await?;
            let volumes = report.and_then(|report| report.status).map(|status| status.volumes).unwrap_or_default();
            let of_it = volumes.into_iter().find(|volume| volume.name == USED);
            of_it
                .and_then(|volume| volume.findings.into_iter().next())
                .map(|it| format!("{:?}, {}", it.check, it.reason))
        }
        Stage::Simulated(_, array) => {
            let report: Option<DriverReport> = Api::all(client).get_opt(array.driver_name()).await?;
            let abnormal = report.and_then(|report| report.status).map(|status| status.abnormal).unwrap_or_default();
            let of_it = abnormal.into_iter().find(|group| group.volume_handles.iter().any(|it| it.ends_with(USED)));
            of_it.map(|group| format!("{:?}, {}", group.state, group.reason))
        }
    })
}

/// An Event of a volume's condition on the claim or the pod that have it.
fn told(event: &Event) -> Option<String> {
    let reason = event.reason.as_deref().filter(|reason| reason.starts_with("VolumeCondition"))?;
    let (kind, name) = (event.involved_object.kind.as_deref()?, event.involved_object.name.as_deref()?);
    let kind = if kind == "PersistentVolumeClaim" { "claim" } else { "pod" };
    let note = event.message.as_deref().unwrap_or_default();
    Some(format!("Event on {kind} {name}: {reason}: {note}"))
}

fn find<'a, K: Resource + Clone>(list: &'a ObjectList<K>, name: &str) -> Option<&'a K> {
    list.iter().find(|object| object.meta().name.as_deref() == Some(name))
}

pub(super) fn is_healthy(health: &VolumeHealth) -> bool {
    let phase = health.status.as_ref().and_then(|status| status.phase);
    phase == Some(Phase::Healthy) && health.taints().is_empty()
}

pub(super) fn is_running(pod: &Pod) -> bool {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let ready: Vec<_> = statuses.map(|status| status.ready).collect();
    !ready.is_empty() && ready.iter().all(|ready| *ready)
}

fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    statuses.map(|status| status.restart_count).sum()
}
