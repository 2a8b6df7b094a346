//! I/O in progress (docs/adr/0026): where the fencers of an incident are to ask their driver before they begin, and what it
//! means that they do not begin. Nothing of an answer is kept: each attempt is a round of its own, and asks anew.

use std::time::Duration;

use crate::api::fence_request::{FenceResult, IO_IN_PROGRESS};
use crate::api::names;
use crate::api::node_fence::Channel;
use crate::api::resiliency_policy::{CheckSwitch, DecisiveChannel, ResiliencyPolicy, WhenIoInProgress};
use crate::api::slim::Node;
use crate::api::time::Now;

use super::decide::{PROOF_LIFETIME, Seen};
use super::fencers;
use super::held::Held;
use super::rows::{Rows, VolumeRow};
use super::volumes;

/// How long after a veto it is asked again at the latest.
const AGAIN: Duration = Duration::from_secs(10);

/// Whether the sidecar of a driver is to ask before it begins. A driver that cannot tell is not asked.
pub fn check(seen: &Seen, driver: &str, now: Now) -> CheckSwitch {
    let able = seen.reports.get(driver).is_some_and(|report| report.tells_io());
    if able && is_wanted(seen, now) { CheckSwitch::Enabled } else { CheckSwitch::Disabled }
}

/// Whether I/O in progress would stop the decision, by any of the policies as they are now. A person may turn it off while
/// an incident waits: it spares a needless move, and no proof rests on it.
fn is_wanted(seen: &Seen, now: Now) -> bool {
    let evidence = &seen.fence.spec.plan.evidence;
    let rests_on_it =
        evidence.iter().any(|it| matches!(it.channel, Channel::Storage | Channel::Agent | Channel::Power));
    seen.policies.iter().any(|policy| {
        let storage = &policy.spec.detection.storage;
        storage.io_in_progress_check == CheckSwitch::Enabled
            && match storage.when_io_in_progress {
                WhenIoInProgress::Veto => true,
                WhenIoInProgress::VetoUnlessNodeFailed => rests_on_it && !has_node_failed(seen, policy, now),
            }
    })
}

/// Whether the node is known to have failed by a channel that the policy calls decisive: when it was planned, or since.
fn has_node_failed(seen: &Seen, policy: &ResiliencyPolicy, now: Now) -> bool {
    let Some(node) = &seen.node else { return true };
    let detection = &policy.spec.detection;
    let is_decisive = |channel| detection.decisive_channels.contains(&channel);
    let lifecycle = || node.taints().iter().filter(|taint| taint.key == names::UNREACHABLE_TAINT);
    let counts = is_decisive(DecisiveChannel::Kubelet)
        || is_decisive(DecisiveChannel::Taint) && lifecycle().any(|taint| detection.counts_taint(taint));
    let is_silent = node.is_unreachable() && !volumes::may_renew(seen);
    let by_kubelet = counts && is_silent && is_long_enough(node, policy, now);
    let by_taint = seen.fence.spec.plan.evidence.iter().any(|it| it.channel == Channel::Taint);
    by_kubelet || by_taint && is_decisive(DecisiveChannel::Taint)
}

fn is_long_enough(node: &Node, policy: &ResiliencyPolicy, now: Now) -> bool {
    let passed =
        node.ready_since().and_then(|since| now.wall.signed_duration_since(since).to_std().ok()).unwrap_or_default();
    passed >= policy.spec.detection.kubelet.decisive_after.get()
}

/// Whether the answer is a veto.
pub fn is_veto(result: &FenceResult) -> bool {
    result.reason.as_deref() == Some(IO_IN_PROGRESS) && result.started_at.is_none()
}

/// Whether a row that was not begun for the I/O is asked for again: soon, and at once where nobody minds it any more. The
/// time is since it was asked for; nothing where another process did.
pub fn is_due(seen: &Seen, row: &VolumeRow, passed: Option<Duration>, backoff: Duration, now: Now) -> bool {
    let driver = row.plan.driver.as_deref().unwrap_or_default();
    let minded = check(seen, driver, now) == CheckSwitch::Enabled;
    !minded || passed.is_none_or(|passed| passed >= backoff.min(AGAIN))
}

/// The veto that holds the whole incident: nothing of it has begun, and the last answer that there is to wait for says that
/// there is I/O. One of a round before counts only until the next could be there.
pub fn held(seen: &Seen, rows: &Rows, now: Now) -> Option<Held> {
    if rows.is_committed() {
        return None;
    }
    let vetoed = rows.volumes.iter().filter(|row| row.needed).find(|row| is_vetoed(seen, row, now))?;
    let driver = vetoed.plan.driver.as_deref().unwrap_or_default();
    let message = format!(
        "driver {driver} says that the node is doing I/O on its volumes: nothing is cut off until it stops; it is asked again \
         every {} s",
        AGAIN.as_secs()
    );
    Some(Held { reason: IO_IN_PROGRESS, message })
}

fn is_vetoed(seen: &Seen, row: &VolumeRow, now: Now) -> bool {
    let driver = row.plan.driver.as_deref().unwrap_or_default();
    let Some(result) = fencers::result(seen, row, driver).filter(|result| is_veto(result)) else { return false };
    let Some(round) = seen.request(driver).and_then(|request| fencers::round(request, row)) else { return false };
    let asked = fencers::asked(seen, row, driver).filter(|asked| asked.round == round);
    let waits = asked.is_some_and(|asked| now.mono.saturating_duration_since(asked.at) <= PROOF_LIFETIME);
    result.round == round || waits
}
