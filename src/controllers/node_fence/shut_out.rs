//! A node that is shut out of a storage by its addresses has to stay so for as long as its machine may write on, also when all has
//! moved: whoever lets the addresses in needs no publish. So what somebody lifted is asked for again, of a node that is back and
//! not clean, and of one whose Node was deleted. Of a node that is away `requests` asks. And it proves nothing of another machine that
//! has taken the name of the Node, and with it the pods that are bound there.

use std::sync::Arc;

use crate::api::fence_request::{Desired, FenceOutcome, FenceRequest, FenceResult};
use crate::api::fencing::FenceMethodType;
use crate::api::node_fence::ANOTHER_MACHINE;
use crate::api::time::Now;

use super::decide::{Effect, NodeState, Seen, Step, is_closed};
use super::rows::{Rows, VolumeRow};
use super::{again, clean, pods};

/// Asks again for the fences that do not hold any more. A person's hold stops that too: it may be that person who lifts.
pub fn again(seen: &Seen, rows: &Rows, now: Now) -> Option<Step> {
    if rows.node == NodeState::Away || rows.is_held() {
        return None;
    }
    let effects: Vec<_> = seen.requests.iter().filter_map(|request| raised(seen, rows, request, now)).collect();
    if effects.is_empty() { None } else { Step::new("Fencing", effects) }
}

/// The request with the next round for each row that does not hold; `None` where all hold, or were asked for just now.
fn raised(seen: &Seen, rows: &Rows, request: &Arc<FenceRequest>, now: Now) -> Option<Effect> {
    if request.spec.desired != Desired::Fenced || !request.shuts_out() {
        return None;
    }
    let is_lifted = |row: &VolumeRow, answer: &FenceResult| {
        let may_write_on = !is_closed(row.status.state) || clean::may_write_on(seen);
        answer.result == FenceOutcome::Failed && was_shut_out(row) && may_write_on
    };
    again::raised(seen, rows, request, is_lifted, now)
}

/// Whether a row is one for which its node is shut out already: to shut it out again takes nothing from who runs there.
pub fn is_shut_out(request: &FenceRequest, row: &VolumeRow) -> bool {
    request.spec.desired == Desired::Fenced && request.shuts_out() && was_shut_out(row)
}

/// A fence that never held, of a node that is back, is not tried any more: its kubelet ends the pods.
fn was_shut_out(row: &VolumeRow) -> bool {
    row.status.method == Some(FenceMethodType::NetworkFence) && row.status.proved_at.is_some()
}

/// Whether what cuts off the machine that failed proves nothing of who may write to the volume by the name of the Node. A Node that
/// was deleted since does not tell: then the record does. Nothing rests on it once no pod there wants the volume and nothing is attached.
pub fn is_of_another_machine(seen: &Seen, row: &VolumeRow) -> bool {
    let is_another = match &seen.node {
        Some(node) => seen.fence.may_be_another_machine(node),
        None => is_told(row),
    };
    is_another && (pods::is_wanted(seen, &row.plan.name) || seen.attachments_of(&row.plan.name).next().is_some())
}

/// Whether another machine was there when the row was recorded.
pub fn is_told(row: &VolumeRow) -> bool {
    row.status.reason.as_deref() == Some(ANOTHER_MACHINE)
}

/// What a row says where another machine may be there, as a reason and a sentence that says what to do.
pub fn another_machine(seen: &Seen) -> (&'static str, String) {
    let node = seen.fence.metadata.name.as_deref().unwrap_or_default();
    let message = format!(
        "what is there by the name {node} may be another machine than the one that failed, by its boot and its addresses: to cut \
         that one off proves nothing of it. Its pods go when it is Ready; should it be off for good, release them by hand \
         (docs/on-call.md)"
    );
    (ANOTHER_MACHINE, message)
}
