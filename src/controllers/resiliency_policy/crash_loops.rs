//! Protected pods in CrashLoopBackOff on a node that is well: deleted gracefully, so that they may start on another
//! (docs/adr/0019). Each deletion is recorded in a policy's status first, with the owner of the pod, and what is recorded
//! counts: a program that fails everywhere is moved no more often than `maxDeletes` within `window`, whatever its pods are
//! called and however often the controller starts anew.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::api::fencing::PolicyMode;
use crate::api::names;
use crate::api::node_fence::{NodeFence, PodAction};
use crate::api::resiliency_policy::{CRASH_LOOP_DELETES_MAX, CrashLoopDelete, ResiliencyPolicy};
use crate::api::slim::{Node, Pod};
use crate::api::time::{self, Now};
use crate::api::usage::PodView;
use crate::mutants::{self, Mutant};

use super::brakes;
use super::candidates::Cause;
use super::decide::{self, Decision, Effect, Seen};
use super::policy_brakes::PolicyBrakes;
use super::select::Effective;
use super::volumes::{self, Stays, Unmoved};

/// How long after it was recorded a deletion may be sent. One that was held up for longer is decided, and counted, anew.
const SEND_WITHIN: TimeDelta = TimeDelta::seconds(30);
/// A deletion takes effect no later than this after it was recorded: by so much longer than the window is it counted.
const TAKES_EFFECT_WITHIN: TimeDelta = TimeDelta::seconds(60);
/// The pause after the first deletion; it doubles with each.
const FIRST_PAUSE: TimeDelta = TimeDelta::seconds(10);
/// The longest pause.
const LONGEST_PAUSE: TimeDelta = TimeDelta::minutes(5);

/// What a pass makes of crash loops.
#[derive(Debug, Default)]
pub struct CrashLoops {
    /// Deletions to record, by policy.
    pub recorded: BTreeMap<String, Vec<CrashLoopDelete>>,
    /// Pods that stay in their loop though a policy would move them.
    pub held: Vec<Unmoved>,
}

/// The next step with one pod.
enum Step {
    /// None.
    Leave,
    /// It stays, and that is told: the reason, in CamelCase and in words.
    Hold(&'static str, String),
    /// Its deletion is recorded.
    Record(CrashLoopDelete),
    /// Its deletion is recorded and may be sent; the number of those that count, for people.
    Delete(usize),
}

/// Records and sends what is due. `busy` are nodes that have failed, or lose pods for their volumes.
pub(super) fn reschedule(
    seen: &Seen,
    busy: &BTreeSet<String>,
    brakes: &BTreeMap<&str, PolicyBrakes>,
    decision: &mut Decision,
    now: Now,
) {
    for (stored, _) in &seen.nodes {
        let Some(name) = stored.metadata.name.as_deref() else { continue };
        let live = seen.live.get(name);
        let node = live.map_or(stored, |live| &live.node);
        let pods = live.map(|live| &live.pods).or_else(|| seen.pods.get(name));
        let in_trouble = busy.contains(name) || decision.suspected.contains(name);
        if in_trouble || !is_well(node) || decide::fence_of(seen, name).is_some_and(brakes::in_progress) {
            continue;
        }
        let is_paused = names::paused(&node.metadata).is_some();
        for pod in pods.into_iter().flatten().filter(|pod| is_looping(pod)) {
            let Some(policies) = decide::effective(seen, pod) else { continue };
            match next(seen, pod, &policies, brakes, &decision.crash_loops, now) {
                Step::Leave => {}
                Step::Record(_) | Step::Delete(_) if is_paused => {
                    let stays = ("Paused", "the node is paused: nothing is begun".into());
                    decision.crash_loops.held.extend(volumes::unmoved(pod, &policies, stays));
                }
                Step::Hold(reason, message) => {
                    decision.crash_loops.held.extend(volumes::unmoved(pod, &policies, (reason, message)));
                }
                Step::Record(row) => {
                    let policy = policies.policies().iter().find_map(|policy| policy.metadata.name.clone());
                    decision.crash_loops.recorded.entry(policy.unwrap_or_default()).or_default().push(row);
                }
                Step::Delete(_) if live.is_none() => decision.look(name),
                Step::Delete(counted) => {
                    let (max, window) = policies.crash_loop_budget();
                    let note = format!(
                        "in CrashLoopBackOff on node {name}: deleted so that it can start elsewhere, {counted} of {max} \
                         within {} s",
                        window.as_secs()
                    );
                    decision.effects.push(Effect::Reschedule { pod: pod.clone(), note });
                }
            }
        }
    }
}

/// The rows that the status of a policy should have: those of before, and those of this pass. Old ones go only when a new
/// one comes, so that time alone writes nothing.
pub(super) fn rows(seen: &Seen, policy: &ResiliencyPolicy, new: &[CrashLoopDelete], now: Now) -> Vec<CrashLoopDelete> {
    let known = policy.status.iter().flat_map(|status| &status.crash_loop_deletes).cloned();
    if new.is_empty() {
        return known.collect();
    }
    let longest = longest_window(seen);
    known.filter(|row| counts(row, longest, now.wall)).chain(new.iter().cloned()).collect()
}

fn longest_window(seen: &Seen) -> Duration {
    seen.policies.iter().map(|policy| policy.spec.triggers.crash_loop.window.get()).max().unwrap_or_default()
}

/// A clock that was set back makes nothing older.
fn counts(row: &CrashLoopDelete, window: Duration, now: DateTime<Utc>) -> bool {
    let window = TimeDelta::from_std(window).unwrap_or(TimeDelta::MAX);
    let window = window.checked_add(&TAKES_EFFECT_WITHIN).unwrap_or(TimeDelta::MAX);
    now.signed_duration_since(row.at) < window
}

fn is_well(node: &Node) -> bool {
    node.ready() == "True" && !node.is_unreachable() && node.metadata.deletion_timestamp.is_none()
}

fn is_looping(pod: &PodView) -> bool {
    let over = pod.pod.is_terminating() || pod.pod.is_finished();
    !over && !pod.volumes.is_empty() && !pod.pod.is("Ready") && pod.pod.crash_looping().is_some()
}

fn next(
    seen: &Seen,
    pod: &PodView,
    policies: &Effective,
    brakes: &BTreeMap<&str, PolicyBrakes>,
    this_pass: &CrashLoops,
    now: Now,
) -> Step {
    let belongs_to_node = pod.pod.is_static() || pod.pod.controller_kind() == Some("DaemonSet");
    if !policies.reschedules_crash_loops() || belongs_to_node {
        return Step::Leave;
    }
    let Some(owner) = pod.pod.controller() else {
        return Step::Hold("BarePod", "nothing would create it again".into());
    };
    let (max, window) = policies.crash_loop_budget();
    if policies.reschedules_after_incidents_only() && !follows_incident(seen, pod, window, now) {
        return Step::Leave;
    }
    if let Some((reason, message)) = held_by(policies, brakes) {
        return Step::Hold(reason, message);
    }
    let recorded = seen.policies.iter().flat_map(|it| &it.status).flat_map(|status| &status.crash_loop_deletes);
    let recorded = recorded.chain(this_pass.recorded.values().flatten());
    let is_ours = |row: &CrashLoopDelete| match mutants::is_on(Mutant::BudgetPerPod) {
        true => row.pod_uid == pod.uid(),
        false => row.owner_uid == owner.uid,
    };
    let counted: Vec<_> = recorded.filter(|row| is_ours(row) && counts(row, window, now.wall)).collect();
    let age = |row: &CrashLoopDelete| now.wall.signed_duration_since(row.at);
    let is_due = |row: &&CrashLoopDelete| row.pod_uid == pod.uid() && age(row) < SEND_WITHIN;
    if counted.iter().any(is_due) {
        return Step::Delete(counted.len());
    }
    let since = counted.iter().map(|row| age(row)).min();
    if counted.len() >= max {
        let what = format!("{} {} had {max} deletions within {} s", owner.kind, owner.name, window.as_secs());
        return Step::Hold("BudgetExhausted", format!("{what}: it fails wherever it runs"));
    }
    if since.is_some_and(|since| since < pause(counted.len())) {
        return Step::Leave;
    }
    if is_full(seen, policies, this_pass, now) {
        return Step::Hold("BudgetExhausted", format!("{CRASH_LOOP_DELETES_MAX} pods were deleted for crash loops"));
    }
    Step::Record(CrashLoopDelete {
        owner_uid: owner.uid.clone(),
        pod_uid: pod.uid().to_owned(),
        pod: pod.display(),
        at: time::stamp(now.wall),
    })
}

/// The pause after so many deletions.
fn pause(deletions: usize) -> TimeDelta {
    let doublings = u32::try_from(deletions.saturating_sub(1)).unwrap_or(u32::MAX).min(16);
    FIRST_PAUSE.checked_mul(1 << doublings).unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE)
}

/// Whether the policy that would keep the record has no room for it.
fn is_full(seen: &Seen, policies: &Effective, this_pass: &CrashLoops, now: Now) -> bool {
    let Some(policy) = policies.policies().first() else { return true };
    let longest = longest_window(seen);
    let known = policy.status.iter().flat_map(|status| &status.crash_loop_deletes);
    let new = policy.metadata.name.as_ref().and_then(|name| this_pass.recorded.get(name)).map_or(0, Vec::len);
    known.filter(|row| counts(row, longest, now.wall)).count() + new >= CRASH_LOOP_DELETES_MAX
}

/// The mode or the brake of a policy that holds whatever is no failed node's.
fn held_by(policies: &Effective, brakes: &BTreeMap<&str, PolicyBrakes>) -> Option<Stays> {
    if let Some(stays) = held_by_mode(policies).filter(|_| !mutants::is_on(Mutant::CrashLoopModeIgnored)) {
        return Some(stays);
    }
    let names = policies.policies().iter().filter_map(|policy| policy.metadata.name.as_deref());
    let mut brakes = names.filter_map(|name| brakes.get(name));
    // Programs fail when an array is away, and elsewhere no less.
    let restrained = |brake: &PolicyBrakes| {
        let array = (!brake.backends.is_empty()).then_some("ArrayOutage");
        brake.restrains(Cause::VolumeTaint).map(|(reason, _)| reason).or(array)
    };
    brakes.find_map(restrained).map(|brake| (brake, format!("{brake}: nothing is begun")))
}

/// Only `Enforce` moves programs. People approve of the plan of a NodeFence, and a crash loop has none: nobody is asked, and
/// nothing waits for an answer.
fn held_by_mode(policies: &Effective) -> Option<Stays> {
    match policies.mode() {
        PolicyMode::Enforce => None,
        PolicyMode::RequireApproval => {
            Some(("RequireApproval", "RequireApproval: people approve of plans for nodes, and here is none".into()))
        }
        PolicyMode::DryRun => Some(("DryRun", "DryRun: nothing is begun".into())),
    }
}

/// Whether the loop began while a NodeFence of the pod's node, or of one where its predecessor was, was open, or within
/// `window` after.
fn follows_incident(seen: &Seen, pod: &PodView, window: Duration, now: Now) -> bool {
    let Some(began) = loop_began(&pod.pod) else { return false };
    let window = TimeDelta::from_std(window).unwrap_or(TimeDelta::MAX);
    let follows = |(from, to): (DateTime<Utc>, Option<DateTime<Utc>>)| {
        let to = to.unwrap_or(now.wall).checked_add_signed(window).unwrap_or(DateTime::<Utc>::MAX_UTC);
        (from..=to).contains(&began)
    };
    seen.fences.iter().any(|fence| {
        let ours = fence.metadata.name == pod.pod.spec.node_name;
        let left = had_predecessor(fence, pod);
        (ours || left) && follows(last_episode(fence)) || ours && earlier_episodes(fence).any(follows)
    })
}

/// When the pod was last seen to become not Ready, as far as is known. One that is Ready for moments between its crashes
/// began later than it did: that errs on the side of leaving it.
fn loop_began(pod: &Pod) -> Option<DateTime<Utc>> {
    let ready = pod.condition("Ready").and_then(|ready| ready.last_transition_time.as_ref());
    ready.or(pod.metadata.creation_timestamp.as_ref()).map(time::from_k8s)
}

/// Whether the incident released a pod of which this one took the place: the same name, or one of its volumes.
fn had_predecessor(fence: &NodeFence, pod: &PodView) -> bool {
    let mut released = fence.spec.plan.pods.iter().filter(|row| row.action == PodAction::Release);
    released.any(|row| {
        let same_name = row.namespace == pod.namespace() && row.name == pod.name();
        same_name || pod.volumes.iter().any(|volume| row.volumes.contains(&volume.name))
    })
}

type Span = (DateTime<Utc>, Option<DateTime<Utc>>);

fn last_episode(fence: &NodeFence) -> Span {
    let over = !brakes::in_progress(fence);
    let timeline = fence.status.as_ref().and_then(|status| status.timeline.as_ref()).filter(|_| over);
    (fence.spec.plan.decided_at, timeline.and_then(|timeline| timeline.recovered_at))
}

fn earlier_episodes(fence: &NodeFence) -> impl Iterator<Item = Span> {
    let history = fence.status.iter().flat_map(|status| &status.history);
    history.map(|past| (past.decided_at, Some(past.recovered_at.unwrap_or(past.decided_at))))
}
