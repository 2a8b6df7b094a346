//! Events of a transition from one record to the next: on the VolumeHealth and its volume what was done, on the claim
//! and its pods what it means for them. What is told follows from the records alone, so a restart tells nothing twice.

use kube::ResourceExt;

use crate::api::slim::{PersistentVolume, Pod};
use crate::api::volume::Source;
use crate::api::volume_health::{Phase, VolumeHealth, VolumeHealthStatus, VolumeTaint};
use crate::controllers::{BY_VOLUME, Context, reference};
use crate::runtime::events::EventType;
use crate::runtime::store::ObjectKey;

use super::decide::Seen;
use super::projection::Marks;
use super::report_conditions::told;
use super::reservation::{self, ClaimRef};
use super::status;

/// Pods that are told, at most.
const PODS: usize = 16;

/// Tells what changed.
pub fn transitions(cx: &Context, seen: &Seen, before: &VolumeHealthStatus, after: &VolumeHealth) {
    let Some(status) = &after.status else { return };
    let teller = Teller { cx, seen, health: after };
    let is_new = |taint: &&VolumeTaint, among: &[VolumeTaint]| !among.iter().any(|it| it.key == taint.key);
    for taint in status.taints.iter().filter(|taint| is_new(taint, &before.taints)) {
        teller.operators(EventType::Warning, "VolumeTainted", told(taint));
    }
    for taint in before.taints.iter().filter(|taint| is_new(taint, &status.taints)) {
        teller.operators(EventType::Normal, "VolumeTaintRemoved", format!("{} ({})", taint.key, taint.reason));
    }
    for new in &status.suppressions {
        if !before.suppressions.iter().any(|it| it.key == new.key) {
            let until = new.effective_until.to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
            teller.operators(EventType::Normal, "TaintSuppressed", format!("{} until {until}", new.key));
        }
    }
    // What is no longer looked at is neither bad nor good.
    if status.policy.is_none() {
        return;
    }
    nodes(&teller, before, status);
    condition(&teller, before, status);
}

/// What a volume shows was changed.
pub fn shown(cx: &Context, seen: &Seen, volume: &PersistentVolume, marks: &Marks) {
    let (reason, action, note) = match marks.claim_ref {
        ClaimRef::Keep => return,
        ClaimRef::Reserve => ("BindReserved", "Reserve", "no claim is bound to it while it is tainted"),
        ClaimRef::Release => ("BindReleased", "Release", "claims may be bound to it again"),
    };
    tracing::info!(volume = seen.name, reason, "projected");
    cx.events.publish(reference(volume), EventType::Normal, reason, action, note.into());
    if let Some(health) = &seen.health {
        cx.events.publish(reference(health.as_ref()), EventType::Normal, reason, action, note.into());
    }
}

/// Claims that name the tainted volume themselves: the binder only says that another claim has it.
pub fn waiting(cx: &Context, seen: &Seen) {
    let Some(volume) = seen.volume.as_deref().filter(|volume| reservation::is_reserved(volume)) else { return };
    let taints = seen.status().and_then(|status| status.taint_summary.clone()).unwrap_or_default();
    let note = format!(
        "the claim names volume {}, which is tainted ({taints}) and is bound to no claim until it is healthy: wait, or \
         make the claim again without volumeName",
        seen.name
    );
    for claim in cx.stores.claims.by_index(BY_VOLUME, &volume.name_any()) {
        let kind = EventType::Warning;
        cx.events.publish(reference(claim.as_ref()), kind, "VolumeConditionAbnormal", "Bind", note.clone());
    }
}

/// A node that took the volume with it, or brought it back.
fn nodes(teller: &Teller, before: &VolumeHealthStatus, after: &VolumeHealthStatus) {
    let failed = |status: &VolumeHealthStatus| {
        let of_node = status.observations.iter().find(|it| it.source == Source::NodeLifecycle);
        of_node.map(|it| format!("node {}: {}", it.node, it.message.as_deref().unwrap_or_default()))
    };
    match (failed(before), failed(after)) {
        (None, Some(note)) => teller.users(EventType::Warning, "NodeFailed", note),
        (Some(note), None) => {
            teller.users(EventType::Normal, "NodeRecovered", note.replace(": ", " is back; it was: "))
        }
        _ => {}
    }
}

/// The volume itself, under the names of the upstream monitor.
fn condition(teller: &Teller, before: &VolumeHealthStatus, after: &VolumeHealthStatus) {
    let of_volume = |taint: &&VolumeTaint| !matches!(taint.source, Source::Manual | Source::NodeLifecycle);
    let is_known = |taint: &&VolumeTaint| before.taints.iter().filter(of_volume).any(|it| it.key == taint.key);
    let new: Vec<_> = after.taints.iter().filter(of_volume).filter(|taint| !is_known(taint)).map(told).collect();
    let is_abnormal = |status: &VolumeHealthStatus| {
        status.phase == Some(Phase::Degraded) || status.taints.iter().any(|taint| of_volume(&taint))
    };
    if !new.is_empty() {
        teller.users(EventType::Warning, "VolumeConditionAbnormal", new.join("; "));
    } else if is_abnormal(after) && !is_abnormal(before) {
        let usable = crate::api::conditions::find(&after.conditions, "Usable");
        let note = usable.map(|usable| usable.message.clone()).unwrap_or_default();
        teller.users(EventType::Warning, "VolumeConditionAbnormal", note);
    } else if is_abnormal(before) && !is_abnormal(after) {
        teller.users(EventType::Normal, "VolumeConditionNormal", "the volume is healthy again".into());
    }
}

struct Teller<'a> {
    cx: &'a Context,
    seen: &'a Seen,
    health: &'a VolumeHealth,
}

impl Teller<'_> {
    /// Whoever runs the cluster.
    fn operators(&self, kind: EventType, reason: &'static str, note: String) {
        self.cx.events.publish(reference(self.health), kind, reason, "Taint", note.clone());
        if let Some(volume) = &self.seen.volume {
            self.cx.events.publish(reference(volume.as_ref()), kind, reason, "Taint", note);
        }
    }

    /// Whoever uses the volume.
    fn users(&self, kind: EventType, reason: &'static str, note: String) {
        let claim = self.seen.volume.as_deref().and_then(status::claim);
        let key = claim.as_deref().and_then(|claim| claim.split_once('/'));
        let key = key.map(|(namespace, name)| ObjectKey::namespaced(namespace, name));
        let Some(claim) = key.and_then(|key| self.cx.stores.claims.get(&key)) else { return };
        self.cx.events.publish(reference(claim.as_ref()), kind, reason, "Watch", note.clone());
        let using = |pod: &&std::sync::Arc<Pod>| pod.spec.node_name.is_some() && !pod.is_finished();
        for pod in self.seen.pods.iter().filter(using).take(PODS) {
            self.cx.events.publish(reference(pod.as_ref()), kind, reason, "Watch", note.clone());
        }
    }
}
