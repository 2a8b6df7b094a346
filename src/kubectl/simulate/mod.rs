//! `kubectl bulkhead simulate node`: the plan that would be carried out if the node failed now, and what would hold it.
//! `report` is what is said of it.

pub mod report;

use std::sync::Arc;

use kube::ResourceExt;

use crate::api::fence_request::FenceRequest;
use crate::api::fencing::Proof;
use crate::api::node_fence::{NodeFence, PlannedPod, PlannedVolume, PodAction, PodStatusState};
use crate::api::resiliency_policy::ResiliencyPolicy;
use crate::api::time::Now;
use crate::controllers::node_fence::decide::{Seen as NodeSeen, Settings};
use crate::controllers::node_fence::memory::{Found as NodeFound, Incident, Live};
use crate::controllers::node_fence::rows::{Rows, VolumeRow};
use crate::controllers::node_fence::status;
use crate::controllers::resiliency_policy::decide::{self, Seen};
use crate::controllers::resiliency_policy::plan::{self, LiveNode};
use crate::controllers::resiliency_policy::status::reason_of;
use crate::controllers::resiliency_policy::storage::Paths;
use crate::controllers::resiliency_policy::volumes::{self, Troubles};

use self::report::{Brake, Outcome, PodRow, Said, Simulation, Step, VolumeForeseen};
use super::foresee::Foreseen;
use super::words;

/// What an incident would make of its plan at first, by the controller's own rows.
struct Prospect {
    rows: Rows,
    held: Option<Said>,
}

/// Tells what was foreseen of a node. `requests` are the FenceRequests of the node that exist.
pub fn node(
    name: &str,
    foreseen: &Foreseen,
    before: Option<&NodeFence>,
    requests: &[Arc<FenceRequest>],
    now: Now,
) -> Simulation {
    let seen = &foreseen.seen;
    let held_by = foreseen.decision.restrained.iter().find(|held| held.node == name);
    let written = foreseen.written.last().map(|(_, fence)| fence);
    let outcome = match (written, held_by, before) {
        (Some(_), _, None) => Outcome::Opens,
        (Some(fence), _, Some(before)) if fence.spec.episode > before.spec.episode => Outcome::NextEpisode,
        (Some(_), ..) => Outcome::Grows,
        (None, Some(_), _) => Outcome::Restrained,
        (None, None, Some(before)) if crate::controllers::resiliency_policy::brakes::in_progress(before) => {
            Outcome::IsOpen
        }
        (None, None, _) => Outcome::Nothing,
    };
    let fence = match outcome {
        Outcome::Restrained => drafted(name, foreseen, before, now),
        Outcome::Nothing => None,
        _ => foreseen.fence.clone(),
    };
    let brakes = brakes(name, foreseen);
    let prospect =
        fence.as_ref().zip(foreseen.live.as_ref()).map(|(fence, live)| prospect(seen, fence, live, requests, now));
    let (pods, volumes) = rows(fence.as_deref(), prospect.as_ref(), seen);
    let spec = fence.as_ref().map(|fence| &fence.spec).filter(|_| outcome != Outcome::Restrained);
    // A brake that holds the node back has let go by the time that there is a plan.
    let lets_go = |held: &Said| brakes.iter().any(|brake| brake.holds && brake.type_ == held.reason);
    let held = prospect.and_then(|prospect| prospect.held).filter(|held| spec.is_some() || !lets_go(held));
    Simulation {
        node: name.to_owned(),
        outcome,
        message: message(name, outcome, &pods, &volumes, &brakes),
        episode: spec.map(|spec| spec.episode),
        digest: spec.map(|spec| spec.plan.digest.clone()),
        steps: foreseen
            .written
            .iter()
            .map(|(after, fence)| Step { after_seconds: after.as_secs(), digest: fence.spec.plan.digest.clone() })
            .collect(),
        held,
        brakes,
        unread: foreseen.unread.clone(),
        policies: fence.as_ref().map(|fence| fence.spec.policies.clone()).unwrap_or_default(),
        pods,
        volumes,
    }
}

/// The plan that would come if the brake let go.
pub fn drafted(name: &str, foreseen: &Foreseen, before: Option<&NodeFence>, now: Now) -> Option<Arc<NodeFence>> {
    let live = foreseen.live.as_ref()?;
    let policies = decide::live_policies(&foreseen.seen);
    let episode = before.map_or(1, |before| before.spec.episode + 1);
    let paths = Paths::unrestrained(&foreseen.seen, now);
    let draft = plan::draft(live, policies, &foreseen.seen.namespaces, &paths, episode, now);
    // Policies that leave it there when it fails may move pods for a lost path, or off a node that is well for a tainted volume.
    let by_path = || paths.draft(live, episode, now);
    let by_volume = || Troubles::new(&foreseen.seen).draft(live, volumes::running(before), episode, now);
    let draft = draft.or_else(by_path).or_else(by_volume)?;
    let mut fence = before.cloned().unwrap_or_else(|| {
        let spec = crate::api::node_fence::NodeFenceSpec {
            episode,
            node: plan::identity(live),
            policies: draft.policies.clone(),
            plan: draft.plan.clone(),
            approval: None,
            hold: None,
        };
        NodeFence::new(name, spec)
    });
    fence.spec.episode = episode;
    fence.spec.plan = draft.plan;
    fence.spec.policies = draft.policies;
    Some(Arc::new(fence))
}

/// A brake, with what it means and what to do.
pub fn brake(policy: &str, type_: &str, holds: bool) -> Brake {
    let words = words::of_incident(type_).map(|words| format!("{}; {}", words.means, words.next));
    Brake { policy: policy.to_owned(), type_: type_.to_owned(), holds, message: words.unwrap_or_default() }
}

/// Brakes that hold the node now, then what the policies of its pods report.
fn brakes(name: &str, foreseen: &Foreseen) -> Vec<Brake> {
    let holding = foreseen.decision.restrained.iter().filter(|held| held.node == name);
    let mut brakes: Vec<_> = holding.map(|held| brake(&held.policy, held.brake, true)).collect();
    let pods = foreseen.live.iter().flat_map(|live| &live.pods);
    let mut policies: Vec<&ResiliencyPolicy> = pods
        .filter_map(|pod| decide::effective(&foreseen.seen, pod))
        .flat_map(|effective| effective.policies().to_vec())
        .collect();
    policies.sort_by_key(|policy| policy.name_any());
    policies.dedup_by_key(|policy| policy.name_any());
    for policy in policies {
        for restraint in policy.status.iter().flat_map(|status| &status.restraints) {
            let reported = brake(&policy.name_any(), reason_of(restraint.type_), false);
            if !brakes.iter().any(|known| known.policy == reported.policy && known.type_ == reported.type_) {
                brakes.push(reported);
            }
        }
    }
    brakes
}

/// The first pass of `node_fence` over the plan.
fn prospect(
    seen: &Seen,
    fence: &Arc<NodeFence>,
    live: &LiveNode,
    requests: &[Arc<FenceRequest>],
    now: Now,
) -> Prospect {
    let mut incident = Incident::default();
    let named = |policy: &&Arc<ResiliencyPolicy>| fence.spec.policies.iter().any(|it| it.name == policy.name_any());
    let found = NodeFound {
        fence: fence.clone(),
        node: Some(live.node.clone()),
        lease: None,
        pods: live.pods.clone(),
        attachments: live.attachments.clone(),
        requests: requests.to_vec(),
        reports: seen.reports.clone(),
        node_report: None,
        healths: Some(seen.healths.clone()),
        policies: seen.policies.iter().filter(named).cloned().collect(),
    };
    let stored = incident.look(found, Settings::default(), now);
    let live = Live {
        fence: Some(fence.clone()),
        node: Some(live.node.clone()),
        lease: None,
        pods: live.pods.clone(),
        attachments: live.attachments.clone(),
        node_report: None,
    };
    let seen: NodeSeen = incident.look_live(stored, live, now);
    let rows = Rows::advance(&seen, now);
    let status = status::compute(&seen, &rows, None, now);
    let held = crate::api::conditions::find(&status.conditions, "Held").filter(|held| held.status == "True");
    let held = held.map(|held| Said { reason: held.reason.clone(), message: held.message.clone() });
    Prospect { rows, held }
}

fn rows(fence: Option<&NodeFence>, prospect: Option<&Prospect>, seen: &Seen) -> (Vec<PodRow>, Vec<VolumeForeseen>) {
    let Some(plan) = fence.map(|fence| &fence.spec.plan) else { return Default::default() };
    let pod = |plan: &PlannedPod| {
        let row = prospect.and_then(|it| it.rows.pods.iter().find(|row| row.uid == plan.uid));
        let waits = row.filter(|row| plan.action == PodAction::Release && row.state == PodStatusState::Waiting);
        let waits = waits.map(|row| Said {
            reason: row.reason.clone().unwrap_or_default(),
            message: row.message.clone().unwrap_or_default(),
        });
        PodRow { plan: plan.clone(), waits }
    };
    let volume = |plan: &PlannedVolume| {
        let row = prospect.and_then(|it| it.rows.volumes.iter().find(|row| row.plan == *plan));
        let driver = plan.driver.as_deref().unwrap_or_default();
        let best = seen.fencers(driver).best_proof(plan.methods.iter().cloned());
        let needed = row.is_some_and(|row| row.needed);
        VolumeForeseen {
            plan: plan.clone(),
            needed,
            best_proof: best.proof,
            method: best.method,
            waits: row.filter(|row| row.needed).and_then(|row| weakness(row, best.proof)),
        }
    };
    (plan.pods.iter().map(pod).collect(), plan.volumes.iter().map(volume).collect())
}

fn weakness(row: &VolumeRow, best: Proof) -> Option<Said> {
    let said = row
        .status
        .reason
        .clone()
        .map(|reason| Said { reason, message: row.status.message.clone().unwrap_or_default() });
    said.or_else(|| {
        (best < row.minimum).then(|| Said {
            reason: "ProofTooWeak".into(),
            message: format!("best proof {best:?}, {:?} is required", row.minimum),
        })
    })
}

fn message(name: &str, outcome: Outcome, pods: &[PodRow], volumes: &[VolumeForeseen], brakes: &[Brake]) -> String {
    let going: Vec<_> = pods.iter().filter(|pod| pod.plan.action == PodAction::Release).collect();
    let waiting = going.iter().filter(|pod| pod.waits.is_some()).count();
    let wait = if waiting > 0 { format!(", of which {waiting} would wait") } else { String::new() };
    let cut_off = volumes.iter().filter(|volume| volume.needed).count();
    let plan = format!("{} of {} pods released{wait}, {cut_off} volumes cut off", going.len(), pods.len());
    match outcome {
        Outcome::Opens => format!("if node {name} failed now, its NodeFence would be opened: {plan}"),
        Outcome::NextEpisode => {
            format!("if node {name} failed now, its NodeFence would begin the next episode: {plan}")
        }
        Outcome::Grows => format!("if node {name} failed now, the plan of its open incident would grow: {plan}"),
        Outcome::IsOpen => format!("node {name} has an open incident, and its plan lacks nothing: {plan}"),
        Outcome::Restrained => {
            let held: Vec<_> = brakes
                .iter()
                .filter(|brake| brake.holds)
                .map(|it| format!("{} of policy {}", it.type_, it.policy))
                .collect();
            format!("if node {name} failed now, nothing would be begun: {}. When it lets go: {plan}", held.join(", "))
        }
        Outcome::Nothing => format!(
            "if node {name} failed now, nothing would be done: no pod there is protected against the failure of its node"
        ),
    }
}
