//! Who can cut a volume off: the methods of its plan in their order, which of them are tried now, and what their fencers have
//! answered (docs/adr/0025).

use std::sync::Arc;
use std::time::Duration;

use crate::api::fence_request::{Desired, FenceOutcome, FenceRequest, FenceResult, RequestedVolume};
use crate::api::fencing::{FenceMethodType, PlannedMethod, Proof};
use crate::api::network_fence::CACHE_LAG;
use crate::api::node_fence::VolumeStatusState;
use crate::api::proof::{CLASS_NOT_FOUND, CLASS_OF_ANOTHER_CLUSTER, class_of_other_cluster};
use crate::api::time::{self, Now};
use crate::mutants::{self, Mutant};

use super::decide::{AskKey, Asked, Seen};
use super::rows::VolumeRow;
use super::{io, shut_out};

/// What a fencer has answered for a row.
pub struct Answer<'a> {
    /// Who.
    pub fencer: &'a str,
    /// What was asked.
    pub request: &'a FenceRequest,
    /// What it says.
    pub result: &'a FenceResult,
}

/// The fencers of a row by the methods of its plan, each once.
pub fn all(row: &VolumeRow) -> Vec<&str> {
    let driver = row.plan.driver.as_deref().unwrap_or_default();
    let mut fencers = Vec::new();
    for fencer in row.plan.methods.iter().filter_map(|method| method.fencer(driver)) {
        if !fencers.contains(&fencer) {
            fencers.push(fencer);
        }
    }
    fencers
}

/// The methods of a row that this fencer carries out.
pub fn methods_of<'a>(row: &'a VolumeRow, fencer: &str) -> impl Iterator<Item = &'a PlannedMethod> {
    let driver = row.plan.driver.as_deref().unwrap_or_default();
    row.plan.methods.iter().filter(move |method| method.fencer(driver) == Some(fencer))
}

/// When this process asked a fencer for a row last.
pub fn asked(seen: &Seen, row: &VolumeRow, fencer: &str) -> Option<Asked> {
    seen.asked.get(&key(row, fencer)).copied()
}

/// When this process asked anybody for a row last.
pub fn asked_last(seen: &Seen, row: &VolumeRow) -> Option<Asked> {
    all(row).into_iter().filter_map(|fencer| asked(seen, row, fencer)).max_by_key(|asked| asked.at)
}

fn key(row: &VolumeRow, fencer: &str) -> AskKey {
    (fencer.to_owned(), row.plan.episode, row.plan.name.clone())
}

/// The methods that are tried for a volume now, in the order of the plan: the first that is available and can reach the
/// minimum proof, and each further one as soon as those before it have given way. One that was begun is gone on with. The
/// deletion of an attachment is a fence call that cannot be taken back: it is made where nobody else can be asked.
pub fn tried<'a>(seen: &Seen, row: &'a VolumeRow, now: Now) -> Vec<&'a PlannedMethod> {
    let methods = row.plan.methods.iter();
    if has_begun_detach(row) {
        return methods.filter(|method| method.type_ == FenceMethodType::Detach).collect();
    }
    let mut tried: Vec<&PlannedMethod> = Vec::new();
    let mut detach = None;
    let mut gave_way = true;
    for method in methods.filter(|method| is_usable(seen, row, method, now)) {
        let Some(fencer) = method.fencer(row.plan.driver.as_deref().unwrap_or_default()) else {
            detach = detach.or(Some(method));
            continue;
        };
        let waits = row.power_waits.is_some() && method.type_ == FenceMethodType::External;
        if gave_way && !waits || is_open(seen, row, fencer) {
            tried.push(method);
        }
        gave_way &= has_given_way(seen, row, fencer, now);
    }
    if tried.is_empty() { detach.into_iter().collect() } else { tried }
}

/// The fencers that are asked for a row now.
pub fn to_ask<'a>(seen: &Seen, row: &'a VolumeRow, now: Now) -> Vec<&'a str> {
    let driver = row.plan.driver.as_deref().unwrap_or_default();
    let mut fencers: Vec<&str> = Vec::new();
    for fencer in tried(seen, row, now).into_iter().filter_map(|method| method.fencer(driver)) {
        if !fencers.contains(&fencer) {
            fencers.push(fencer);
        }
    }
    fencers
}

/// The methods that a fencer is asked for: it is asked once, for all that may be of use in this incident. A network fence for which
/// there is no class would cost every second round; and a sidecar of the release before does not know the word, and would not
/// read what it is asked.
pub fn to_request<'a>(seen: &Seen, row: &'a VolumeRow, fencer: &str) -> impl Iterator<Item = &'a PlannedMethod> {
    let of_node = is_of_node(seen);
    let is_of_use = move |method: &&PlannedMethod| {
        let is_known = method.type_ != FenceMethodType::NetworkFence
            || network_proof(seen, row, method) > Proof::None && !shut_out::is_of_another_machine(seen, row);
        is_known && (of_node || !method.type_.is_of_node())
    };
    let reaches = |method: &&PlannedMethod| method.type_.best_proof() >= row.minimum;
    methods_of(row, fencer).filter(is_of_use).filter(reaches)
}

/// Whether the deletion of the attachment is recorded as the fence call, and may still be it: a policy that was made
/// stricter meanwhile leaves the method too weak.
pub fn has_begun_detach(row: &VolumeRow) -> bool {
    row.status.method == Some(FenceMethodType::Detach) && FenceMethodType::Detach.best_proof() >= row.minimum
}

/// The proof that a fencer is asked for. No publish stands between a node and a volume that is not attached: of an external fencer
/// only the word that the node has no power counts for it (docs/adr/0029).
pub fn minimum(row: &VolumeRow, fencer: &str) -> Proof {
    let is_external = methods_of(row, fencer).all(|method| method.type_ == FenceMethodType::External);
    if is_external && row.plan.is_unattached() { Proof::PowerOff } else { row.minimum }
}

/// Whether a method of a row may be tried at all.
pub(super) fn is_usable(seen: &Seen, row: &VolumeRow, method: &PlannedMethod, now: Now) -> bool {
    let fencer = method.fencer(row.plan.driver.as_deref().unwrap_or_default());
    let is_refused = fencer.is_some_and(|fencer| is_refused(seen, row, fencer, method.type_));
    // A driver that is restarted has not given way: what was asked of it may be answered yet, or was not begun for its I/O.
    let is_waited_for =
        fencer.is_some_and(|fencer| is_open(seen, row, fencer) && !has_given_way(seen, row, fencer, now));
    method.type_.best_proof() >= row.minimum && !is_refused && (is_waited_for || is_available(seen, row, method))
}

fn is_available(seen: &Seen, row: &VolumeRow, method: &PlannedMethod) -> bool {
    match method.type_ {
        FenceMethodType::Unpublish => {
            let report = row.plan.driver.as_ref().and_then(|driver| seen.reports.get(driver));
            report.is_some_and(|report| report.unpublish_proof() >= row.minimum.max(Proof::Acknowledged))
        }
        FenceMethodType::Detach => {
            // The attacher goes by who has the name now, and leaves the machine that failed as it is.
            let is_in_doubt = row.plan.methods.iter().any(|method| is_in_doubt(seen, row, method.type_));
            let mut attachments = seen.attachments_of(&row.plan.name);
            !is_in_doubt && attachments.any(|a| a.status.attached && a.has_attacher_finalizer())
        }
        FenceMethodType::NetworkFence => {
            let minimum = row.minimum.max(Proof::Acknowledged);
            let request = row.plan.driver.as_deref().and_then(|driver| seen.request(driver));
            let is_shut_out = request.is_some_and(|request| shut_out::is_shut_out(request, row));
            let may_begin = is_of_node(seen) && !shut_out::is_of_another_machine(seen, row);
            (may_begin || is_shut_out) && network_proof(seen, row, method) >= minimum
        }
        FenceMethodType::External => is_of_node(seen) && !is_in_doubt(seen, row, method.type_),
    }
}

/// The proof that csi-addons can give for the driver of a row now.
fn network_proof(seen: &Seen, row: &VolumeRow, method: &PlannedMethod) -> Proof {
    let report = row.plan.driver.as_ref().and_then(|driver| seen.reports.get(driver));
    let demanded = row.plan.demanded_cluster().filter(|_| !mutants::is_on(Mutant::ClusterIgnored));
    let report = report.filter(|it| it.is_class_of_cluster(method.class(), demanded));
    report.map_or(Proof::None, |report| report.network_fence_proof(method.class()))
}

/// Whether the incident is of the node as a whole. One that is well is not switched off for the sake of some volumes: others
/// run there, and nobody has asked for their end.
fn is_of_node(seen: &Seen) -> bool {
    seen.fence.spec.plan.is_of_node() || mutants::is_on(Mutant::WholeNodeForVolumes)
}

fn is_refused(seen: &Seen, row: &VolumeRow, fencer: &str, method: FenceMethodType) -> bool {
    let of_network = |method: FenceMethodType| method == FenceMethodType::NetworkFence;
    result(seen, row, fencer).is_some_and(|result| {
        let by_network = result.method.map(FenceMethodType::from).is_some_and(of_network);
        result.reason.as_deref() == Some("Unimplemented") && by_network == of_network(method)
    })
}

/// Whether a fencer has the row among what it is to cut off now.
fn is_open(seen: &Seen, row: &VolumeRow, fencer: &str) -> bool {
    let open = |request: &&Arc<FenceRequest>| {
        request.spec.desired == Desired::Fenced && request.spec.episode == seen.fence.spec.episode
    };
    seen.request(fencer).filter(open).is_some_and(|request| round(request, row).is_some())
}

/// Whether a fencer leaves the row to others: it says that it cannot give the proof now, or has said nothing for longer than
/// one call may take. It is asked again all the same.
pub(super) fn has_given_way(seen: &Seen, row: &VolumeRow, fencer: &str, now: Now) -> bool {
    let Some(request) = seen.request(fencer) else { return false };
    let answer = result(seen, row, fencer).filter(|result| round(request, row) == Some(result.round));
    // One that was not begun for the I/O is not left to another who does not ask about that.
    if answer.is_some_and(io::is_veto) {
        return false;
    }
    // One that proves nothing of who is there now is not waited for either.
    if answer.is_some_and(|result| result.result == FenceOutcome::Fenced && is_of_another_machine(seen, row, result)) {
        return true;
    }
    match answer.map(|result| (result.result, result.proof)) {
        Some((FenceOutcome::Failed, _)) => true,
        Some((FenceOutcome::Fenced, proof)) => proof < minimum(row, fencer),
        Some((FenceOutcome::Started | FenceOutcome::Unfenced, _)) | None => {
            // What another process asked for has waited for at least as long as this one looks.
            let asked = asked(seen, row, fencer).filter(|asked| Some(asked.round) == round(request, row));
            let passed = asked.map(|asked| now.mono.saturating_duration_since(asked.at));
            passed.unwrap_or(seen.watched_for) > patience(request, row, answer)
        }
    }
}

/// Whether an answer is of the machine that failed, and not of whoever is there now: another round would say the same. A network fence
/// is of the addresses that were frozen, and an external fencer is asked for the machine that was.
pub fn is_of_another_machine(seen: &Seen, row: &VolumeRow, result: &FenceResult) -> bool {
    result.method.is_some_and(|method| is_in_doubt(seen, row, method.into()))
}

/// Whether a method cuts off the machine that failed alone, and another may have its name by now. Of a Node that is gone the record tells.
fn is_in_doubt(seen: &Seen, row: &VolumeRow, method: FenceMethodType) -> bool {
    let may_miss = seen.node.as_ref().is_none_or(|node| seen.fence.may_miss(method, node));
    method.is_of_node() && may_miss && shut_out::is_of_another_machine(seen, row)
}

/// How long a fencer may take for an answer: the deadline of its call, and some time to write it. One that has begun with a volume
/// that demands a cluster may have to wait until the class is old enough, and makes its call after that; the reason of its row does
/// not tell, since it changes when the call begins, and when another sidecar goes on.
fn patience(request: &FenceRequest, row: &VolumeRow, answer: Option<&FenceResult>) -> Duration {
    const TO_WRITE: Duration = Duration::from_secs(2);
    let may_wait = answer.is_some() && row.plan.demanded_cluster().is_some();
    let lag = if may_wait { CACHE_LAG.to_std().unwrap_or_default() } else { Duration::ZERO };
    request.spec.call_timeout.get() + TO_WRITE + lag
}

/// The round that a request asks for now.
pub fn round(request: &FenceRequest, row: &VolumeRow) -> Option<i32> {
    let is_it = |asked: &&RequestedVolume| asked.episode == row.plan.episode && asked.name == row.plan.name;
    request.spec.volumes.iter().find(is_it).map(|asked| asked.round)
}

/// A fencer's answer for a row.
pub fn result<'a>(seen: &'a Seen, row: &VolumeRow, fencer: &str) -> Option<&'a FenceResult> {
    seen.request(fencer)?.result_of(row.plan.episode, &row.plan.name)
}

/// A fencer's answer for this round of a row, or for a later one.
pub fn result_in<'a>(seen: &'a Seen, row: &VolumeRow, fencer: &str, round: i32) -> Option<&'a FenceResult> {
    result(seen, row, fencer).filter(|result| result.round >= round)
}

/// How long ago this process asked a fencer for this round of a row; `None` where it did not.
pub fn asked_since(seen: &Seen, row: &VolumeRow, fencer: &str, round: i32, now: Now) -> Option<Duration> {
    let asked = asked(seen, row, fencer).filter(|asked| asked.round == round);
    asked.map(|asked| now.mono.saturating_duration_since(asked.at))
}

/// Whether a fencer has begun with the row.
pub fn has_begun(seen: &Seen, row: &VolumeRow, fencer: &str) -> bool {
    result(seen, row, fencer).is_some_and(FenceResult::is_begun)
}

/// All answers for a row, in the order of its methods.
pub fn answers<'a>(seen: &'a Seen, row: &'a VolumeRow) -> Vec<Answer<'a>> {
    let answer = |fencer: &'a str| {
        let request = seen.request(fencer)?;
        Some(Answer { fencer, request, result: result(seen, row, fencer)? })
    };
    all(row).into_iter().filter_map(answer).collect()
}

/// Whether somebody was asked for a row and nobody has answered: the first of them.
pub fn silent<'a>(seen: &Seen, row: &'a VolumeRow) -> Option<&'a str> {
    let open = all(row).into_iter().find(|fencer| seen.request(fencer).is_some())?;
    answers(seen, row).is_empty().then_some(open)
}

/// Whether a fencer may yet begin with a row. A request that this process sent and cannot see yet is on its way: the write
/// may take as long as the API server gives it.
pub fn may_be_started(seen: &Seen, row: &VolumeRow, now: Now) -> bool {
    const ON_ITS_WAY: Duration = Duration::from_secs(60);
    all(row).into_iter().any(|fencer| {
        let Some(request) = seen.request(fencer) else {
            let asked = asked(seen, row, fencer);
            return asked.is_some_and(|asked| now.mono.saturating_duration_since(asked.at) < ON_ITS_WAY);
        };
        let answered = result(seen, row, fencer).is_some_and(|result| result.result != FenceOutcome::Started);
        request.spec.desired == Desired::Fenced && round(request, row).is_some() && !answered
    })
}

/// Method Detach passes its point of no return by this record, before the attachment is deleted.
pub fn commit_detach(seen: &Seen, row: &mut VolumeRow, back: bool, now: Now) {
    let tainted = seen.our_taint().is_some() || seen.node.is_none();
    let begins = row.needed && !row.is_cut_off() && !has_begun_detach(row) && tainted && !back;
    if begins && tried(seen, row, now).iter().any(|method| method.type_ == FenceMethodType::Detach) {
        row.status.state = VolumeStatusState::Fencing;
        row.status.method = Some(FenceMethodType::Detach);
        row.status.committed_at.get_or_insert(time::stamp(now.wall));
    }
}

/// Why no method can be tried for a volume, as a reason and a sentence that says what to do.
pub fn unavailable(seen: &Seen, row: &VolumeRow) -> (&'static str, String) {
    let driver = row.plan.driver.as_deref().unwrap_or_default();
    let reaches = |method: &&PlannedMethod| method.type_.best_proof() >= row.minimum;
    let listed: Vec<_> = row.plan.methods.iter().filter(reaches).filter(|it| it.fencer(driver).is_some()).collect();
    if is_of_node(seen) && listed.iter().any(|method| is_in_doubt(seen, row, method.type_)) {
        return shut_out::another_machine(seen);
    }
    let refused = listed.iter().filter_map(|method| Some((method.fencer(driver)?, method.type_)));
    let refused =
        refused.map(|(it, type_)| (it, is_refused(seen, row, it, type_))).find(|(_, is)| *is).map(|(it, _)| it);
    if let Some(refused) = refused {
        let who =
            if refused == driver { format!("the sidecar of driver {driver}") } else { format!("fencer {refused}") };
        return ("Unimplemented", format!("{who} refused for good"));
    }
    if !listed.iter().any(|method| method.type_ == FenceMethodType::Unpublish) {
        return unavailable_but_unpublish(seen, row, &listed);
    }
    match seen.reports.get(driver) {
        None => ("FencerMissing", format!("run bulkhead-csi-sidecar beside the controller of driver {driver}")),
        Some(report) if !report.is_ready() => (
            "DriverUnavailable",
            format!("driver {driver} does not answer its sidecar; see kubectl describe driverreport"),
        ),
        Some(report) if report.unpublish_proof() == Proof::None => {
            ("Unimplemented", format!("driver {driver} does not unpublish; see kubectl get driverreport {driver}"))
        }
        Some(_) => ("ProofTooWeak", format!("driver {driver} cannot tell which nodes a volume is published to")),
    }
}

fn unavailable_but_unpublish(seen: &Seen, row: &VolumeRow, listed: &[&PlannedMethod]) -> (&'static str, String) {
    let (driver, minimum) = (row.plan.driver.as_deref().unwrap_or_default(), row.minimum);
    if !is_of_node(seen) && !listed.is_empty() {
        let message = "a network fence or an external fencer cuts off the whole node, which is well: none is asked for the \
                       sake of volumes";
        return ("ProofTooWeak", message.into());
    }
    let Some(network) = listed.iter().find(|method| method.type_ == FenceMethodType::NetworkFence) else {
        let whom =
            row.plan.driver.as_ref().map_or_else(|| "nfs volumes".to_owned(), |driver| format!("driver {driver}"));
        return ("ProofTooWeak", format!("no method of the policy can give {whom} proof {minimum:?}"));
    };
    if let Some(report) = seen.reports.get(driver) {
        let class = network.class();
        let demanded = row.plan.demanded_cluster().filter(|_| report.network_fence_proof(class) > Proof::None);
        if let Some(demanded) = demanded.filter(|it| !report.is_class_of_cluster(class, Some(*it))) {
            return (CLASS_OF_ANOTHER_CLUSTER, class_of_other_cluster(report, driver, class, demanded));
        }
        let message = format!("csi-addons has no NetworkFenceClass {class} of driver {driver}, or is not installed");
        return (CLASS_NOT_FOUND, message);
    }
    ("FencerMissing", format!("run bulkhead-csi-sidecar beside the controller of driver {driver}"))
}
