//! The next step of one node's incident. A chain of named checks, the first that has something to do decides; every
//! step is recorded in the status before it is destructive. Why in this order:
//! docs/safety.md#the-order-of-a-failover-and-why.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::Taint;

use crate::api::driver_report::DriverReport;
use crate::api::fence_request::{Desired, FenceRequest};
use crate::api::names;
use crate::api::node_fence::{NodeFence, NodeFenceStatus, Phase, PodStatusState, VolumeStatusState};
use crate::api::node_volume_report::NodeVolumeReport;
use crate::api::resiliency_policy::ResiliencyPolicy;
use crate::api::slim::{Node, VolumeAttachment};
use crate::api::time::{self, Now};
use crate::api::usage::PodView;
use crate::api::volume_health::VolumeHealth;
use crate::mutants::{self, Mutant};

use super::change::Change;
use super::rows::Rows;
use super::{detach, external, guard, held, pace, recovery, requests, shut_out, status, volumes};

/// A row of the plan: episode and volume name.
pub type RowKey = (i64, String);

/// What was asked of whom: fencer, episode and volume name.
pub type AskKey = (String, i64, String);

/// When a round was asked for, by this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The round.
    pub round: i32,
    /// The moment before it was asked for.
    pub at: Instant,
    /// The same by the wall clock, which goes on while the machine sleeps.
    pub wall: DateTime<Utc>,
}

/// How long after the asking a proof counts.
pub const PROOF_LIFETIME: Duration = Duration::from_secs(10);
/// How long progress may go unrecorded while there is something to do.
const RECORD_AT_LAST: Duration = Duration::from_secs(5);

/// What a pass sees.
#[derive(Clone)]
pub struct Seen {
    /// The NodeFence.
    pub fence: Arc<NodeFence>,
    /// The node of that name, if there is one.
    pub node: Option<Arc<Node>>,
    /// The boot that a Node of that name told last, as this process saw it in this episode.
    pub last_boot: Option<String>,
    /// Its Lease did not move since the incident was decided, as far as could be seen.
    pub lease_is_still: bool,
    /// It was seen to be renewed, or was first seen by this process, so lately that the next renewal is not overdue.
    pub renewed_lately: bool,
    /// When that was renewed last, by the clock of the node.
    pub renewed_at: Option<DateTime<Utc>>,
    /// Pods bound to the node: those that use volumes, or, in a live pass, all.
    pub pods: Vec<PodView>,
    /// VolumeAttachments of the node.
    pub attachments: Vec<Arc<VolumeAttachment>>,
    /// When each of them was first seen attached.
    pub attached_since: BTreeMap<String, Instant>,
    /// FenceRequests of the node.
    pub requests: Vec<Arc<FenceRequest>>,
    /// What the drivers can answer.
    pub reports: BTreeMap<String, Arc<DriverReport>>,
    /// What the agent of the node says.
    pub node_report: Option<Arc<NodeVolumeReport>>,
    /// Health of the volumes of the plan, by name; `None` while it is not known.
    pub healths: Option<BTreeMap<String, Arc<VolumeHealth>>>,
    /// The policies that the plan names, where they still exist.
    pub policies: Vec<Arc<ResiliencyPolicy>>,
    /// Rounds that this process asked for.
    pub asked: BTreeMap<AskKey, Asked>,
    /// When this process last saw the node as another than before: another object, another boot, or back. A machine that
    /// was off has power again by then.
    pub node_changed_at: Option<Instant>,
    /// Whether node, Lease, pods and attachments were read from the API for this pass.
    pub live: bool,
    /// Our out-of-service taint was there as long as it may be, in this episode.
    pub out_of_service_spent: bool,
    /// Time since this process last wrote the status, or began with the incident.
    pub recorded_for: Duration,
    /// Time since this process began with the episode.
    pub watched_for: Duration,
    /// Settings.
    pub settings: Settings,
}

/// Settings of the controller.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long to watch after the last detach: the attacher's re-sync period, `--attacher-resync-period`.
    pub resync: Duration,
    /// How long the out-of-service taint may stay, `--out-of-service-max`.
    pub out_of_service_max: Duration,
    /// Pods of the first wave, where there are more than twice as many. A request of a hundred rows takes the API server ten
    /// times as long as one of few, at each of the writes that lead to the first release.
    pub first_wave: usize,
    /// Up to so many attachments are left to the out-of-service taint. Attach/detach takes one after the other, each with a
    /// write of the Node; of more, those that it has not come to are deleted beside it, and the attacher begins with all.
    pub detach_by_taint_only: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            resync: Duration::from_secs(60),
            out_of_service_max: Duration::from_secs(60),
            first_wave: 8,
            detach_by_taint_only: 16,
        }
    }
}

/// What to do. Each carries uid and resourceVersion where being late or wrong would do harm.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Write the status at the NodeFence's resourceVersion.
    Record(Box<NodeFenceStatus>),
    /// Set or remove the active label, which admission reads.
    SetActive(bool),
    /// Add a taint to the node with this uid and boot id.
    AddTaint {
        /// The taint.
        taint: Taint,
        /// The node as it was seen.
        node: Arc<Node>,
    },
    /// Remove a taint, by key and value.
    RemoveTaint {
        /// The taint.
        taint: Taint,
        /// The node as it was seen.
        node: Arc<Node>,
    },
    /// Create a FenceRequest.
    Ask(Box<FenceRequest>),
    /// Replace a FenceRequest's spec at the resourceVersion it carries.
    AskAgain(Box<FenceRequest>),
    /// Take the finalizer off a FenceRequest and delete it.
    Withdraw(Arc<FenceRequest>),
    /// Mark a pod with finalizers as Failed, so that who holds it lets go.
    FailPod {
        /// The pod.
        pod: PodView,
        /// When the proof is too old to act on, by either clock.
        not_after: Option<Now>,
    },
    /// Delete a pod of this uid at this resourceVersion, or a later one by which it is only not ready any more.
    DeletePod {
        /// The pod.
        pod: PodView,
        /// 0 when nobody is there to stop it; the pod's own period when its kubelet is back.
        grace_seconds: Option<u32>,
        /// When the proof is too old to delete on, by either clock.
        not_after: Option<Now>,
    },
    /// Delete a VolumeAttachment of this uid.
    DeleteAttachment(Arc<VolumeAttachment>),
    /// Take the finalizer off the NodeFence.
    RemoveFinalizer,
    /// Delete the NodeFence, whose record is old enough.
    Forget,
}

/// What a pass decided.
#[derive(Debug, Default)]
pub struct Decision {
    /// The check that decided.
    pub reason: &'static str,
    /// Read the node, its Lease, pods and attachments from the API, and decide again with them.
    pub look_live: bool,
    /// What to do, in order.
    pub effects: Vec<Effect>,
    /// When to look again though nothing changed.
    pub look_again: Option<Duration>,
}

/// What is known of the node as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// It is failed, as far as can be seen.
    Away,
    /// It is back.
    Back,
    /// Its object is gone.
    Gone,
}

/// A step: its name and what it does.
pub struct Step {
    /// Its name.
    pub reason: &'static str,
    /// It may rest only on what was read from the API in this pass.
    pub live: bool,
    /// What it does.
    pub effects: Vec<Effect>,
    /// When to look again.
    pub look_again: Option<Duration>,
}

impl Step {
    /// A step on what the stores show.
    pub fn new(reason: &'static str, effects: Vec<Effect>) -> Option<Self> {
        Some(Self { reason, live: false, effects, look_again: None })
    }

    /// A step that may be taken only on what was read from the API in this pass.
    pub fn live(reason: &'static str, effects: Vec<Effect>) -> Option<Self> {
        Some(Self { reason, live: true, effects, look_again: None })
    }

    /// Nothing to do but to look again.
    pub fn wait(reason: &'static str, look_again: Duration) -> Option<Self> {
        Some(Self { reason, live: false, effects: Vec::new(), look_again: Some(look_again) })
    }
}

/// Decides the next step.
pub fn decide(seen: &Seen, now: Now) -> Decision {
    if let Some(step) = recovery::after_recovery(seen, now) {
        return finish(seen, step);
    }
    let rows = Rows::advance(seen, now);
    let step = next(seen, &rows, now);
    let recorded = seen.fence.status.clone().unwrap_or_default();
    let changes = rows.change_from(&recorded) != Change::None || step.is_some();
    // That a node is back is believed of the API only; while nothing depends on it nobody asks.
    if !seen.is_live() && (rows.need_live || rows.node == NodeState::Back && changes) {
        return Decision { reason: "Looking", look_live: true, ..Decision::default() };
    }
    // It acts on the whole node: no record is worth a moment more of it.
    if let Some(step) = guard::take_out_of_service_back(seen, &rows, now) {
        return finish(seen, step);
    }
    let wanted = status::compute(seen, &rows, step.as_ref(), now);
    let change = rows.change_from(&recorded);
    // That a kubelet was back is remembered, for it may have started pods; but the fencer is stopped first. Not so of the boots in
    // which it failed since: what was said of the machine before counts no more then, and it is not let in on that.
    let returned = |status: &NodeFenceStatus| status.timeline.as_ref().and_then(|timeline| timeline.returned_at);
    let stops = step.as_ref().is_some_and(|step| step.reason == recovery::UNDOING);
    let is_another_failure = wanted.failed_boot_ids != recorded.failed_boot_ids;
    let is_news = change == Change::Intent || returned(&wanted) != returned(&recorded);
    if is_another_failure || is_news && !stops {
        // What is asked for rests on no record, and the fencer works on it while this one is written.
        let asks = step.filter(|step| step.effects.iter().all(is_ask)).map(|step| step.effects).unwrap_or_default();
        return record(asks, wanted);
    }
    // What rests on no record goes first: a status of a hundred pods takes the API server a quarter of a second. But
    // not for ever: a step that is refused again and again must not hide what has happened before it.
    let overdue = change == Change::Progress && seen.recorded_for >= RECORD_AT_LAST;
    let is_there_a_step = step.is_some();
    if let Some(step) = step
        .filter(|_| !overdue)
        .filter(|step| !step.effects.is_empty() || step.look_again.is_some() && wanted == recorded)
    {
        let mut decision = finish(seen, step);
        decision.look_again = decision.look_again.or_else(|| look_again(seen, &rows));
        return decision;
    }
    let wait = pace::pace(seen, &rows, is_there_a_step, &recorded, &wanted);
    if wanted != recorded && wait.is_none() {
        return record(Vec::new(), wanted);
    }
    // A record that waits keeps nobody from looking: times pass, such as that of the out-of-service taint.
    let look_again = wait.into_iter().chain(look_again(seen, &rows)).min();
    Decision { reason: "Waiting", look_again, ..Decision::default() }
}

fn is_ask(effect: &Effect) -> bool {
    match effect {
        Effect::Ask(request) | Effect::AskAgain(request) => request.spec.desired == Desired::Fenced,
        _ => false,
    }
}

fn record(mut effects: Vec<Effect>, wanted: NodeFenceStatus) -> Decision {
    effects.push(Effect::Record(Box::new(wanted)));
    Decision { reason: "Recording", effects, look_again: Some(Duration::from_millis(100)), ..Decision::default() }
}

fn finish(seen: &Seen, step: Step) -> Decision {
    if step.live && !seen.is_live() {
        return Decision { reason: step.reason, look_live: true, ..Decision::default() };
    }
    Decision { reason: step.reason, look_live: false, effects: step.effects, look_again: step.look_again }
}

fn look_again(seen: &Seen, rows: &Rows) -> Option<Duration> {
    let watches_only = matches!(seen.phase(), Some(Phase::Detached | Phase::Cleaning)) && !rows.is_over();
    // In a moment its kubelet has renewed its Lease, or is believed to be silent.
    let is_doubted = seen.node.as_ref().is_some_and(|node| node.ready() == "Unknown") && volumes::may_renew(seen);
    Some(if watches_only && !is_doubted { Duration::from_secs(30) } else { Duration::from_secs(1) })
}

fn next(seen: &Seen, rows: &Rows, now: Now) -> Option<Step> {
    let taken_back = recovery::undo(seen, rows)
        .or_else(|| shut_out::again(seen, rows, now))
        .or_else(|| external::again(seen, rows, now))
        .or_else(|| recovery::give_back(seen, rows))
        .or_else(|| held::take_back(seen, rows));
    if taken_back.is_some() || rows.is_held() {
        return taken_back;
    }
    mark_active(seen, rows)
        .or_else(|| taint(seen, rows, now))
        .or_else(|| requests::ask(seen, rows, now))
        .or_else(|| detach::let_go(seen, rows, now))
        .or_else(|| requests::give_power_back(seen, rows, now))
}

fn mark_active(seen: &Seen, rows: &Rows) -> Option<Step> {
    if seen.is_active() || rows.is_over() { None } else { Step::new("Tainting", vec![Effect::SetActive(true)]) }
}

/// Our taint comes before the first fence call: an untainted dead node that still reads Ready is where the scheduler
/// could put the replacement.
fn taint(seen: &Seen, rows: &Rows, now: Now) -> Option<Step> {
    let node = seen.node.as_ref()?;
    let value = Some(seen.fence.spec.episode.to_string());
    // One of an earlier episode is replaced: the key is the same, the value tells which incident it is.
    if rows.is_over() || seen.our_taint().is_some_and(|taint| taint.value == value) {
        return None;
    }
    let time_added = Some(time::to_k8s(now.wall));
    let taint = Taint { key: names::FENCED_TAINT.into(), value, effect: "NoSchedule".into(), time_added };
    Step::new("Tainting", vec![Effect::AddTaint { taint, node: node.clone() }])
}

impl Seen {
    /// Whether node, Lease, pods and attachments may be believed as they are.
    pub fn is_live(&self) -> bool {
        self.live || mutants::is_on(Mutant::NoLiveReread)
    }

    /// The recorded phase.
    pub fn phase(&self) -> Option<Phase> {
        self.fence.status.as_ref().and_then(|status| status.phase)
    }

    /// Whether the active label is set.
    pub fn is_active(&self) -> bool {
        self.fence.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(names::ACTIVE_LABEL))
    }

    /// Our own taint on the node.
    pub fn our_taint(&self) -> Option<&Taint> {
        self.node.as_ref()?.taints().iter().find(|taint| taint.key == names::FENCED_TAINT)
    }

    /// The out-of-service taint that we set; one of somebody else is never touched.
    pub fn our_out_of_service(&self) -> Option<&Taint> {
        let ours = |taint: &&Taint| taint.value.as_deref().is_some_and(|value| value.starts_with("bulkhead-"));
        self.node.as_ref()?.taints().iter().filter(|taint| taint.key == names::OUT_OF_SERVICE_TAINT).find(ours)
    }

    /// The FenceRequest for a fencer.
    pub fn request(&self, fencer: &str) -> Option<&Arc<FenceRequest>> {
        self.requests.iter().find(|request| request.spec.fencer_name == fencer)
    }

    /// Attachments of a volume to this node.
    pub fn attachments_of(&self, volume: &str) -> impl Iterator<Item = &Arc<VolumeAttachment>> {
        self.attachments.iter().filter(move |attachment| attachment.volume() == volume)
    }
}

/// Whether a pod row needs nothing more.
pub fn is_settled(state: PodStatusState) -> bool {
    matches!(state, PodStatusState::Released | PodStatusState::Kept | PodStatusState::Undone)
}

/// Whether a volume row needs nothing more.
pub fn is_closed(state: VolumeStatusState) -> bool {
    matches!(state, VolumeStatusState::Clean | VolumeStatusState::Undone)
}
