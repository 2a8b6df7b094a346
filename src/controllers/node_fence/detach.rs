//! What is proved is let go: pods are released, and what they had attached is detached, by the out-of-service taint where
//! everything on the node is proved. With method Detach a deletion of an attachment comes first: there it is the fence call.

use std::sync::Arc;
use std::time::Duration;

use crate::api::resiliency_policy::DetachMode;
use crate::api::slim::VolumeAttachment;
use crate::api::time::Now;

use super::decide::{Effect, NodeState, Seen, Step};
use super::rows::Rows;
use super::{boots, guard, pods, requests};

/// How long released volumes wait for the last proofs, so that one taint can detach all of them.
const DETACH_PATIENCE: Duration = Duration::from_secs(2);

/// What may go now. From a kubelet that has only just begun with a boot nothing is taken before it is back, or silent again.
pub fn let_go(seen: &Seen, rows: &Rows, now: Now) -> Option<Step> {
    if boots::has_just_begun(seen, rows.node) {
        return None;
    }
    requests::detach_as_fence(seen, rows).or_else(|| release(seen, rows, now)).or_else(|| detach(seen, rows, now))
}

/// Pods that are proved go. Where all that the node holds is proved, the out-of-service taint comes with the first
/// deletion: attach/detach then detaches beside the deletions, not after the last.
fn release(seen: &Seen, rows: &Rows, now: Now) -> Option<Step> {
    let mut step = pods::release(seen, rows, now)?;
    step.effects.splice(0..0, add_out_of_service(seen, rows, now));
    Some(step)
}

/// The out-of-service taint, unless something forbids it.
fn add_out_of_service(seen: &Seen, rows: &Rows, now: Now) -> Option<Effect> {
    let node = seen.node.as_ref().filter(|_| may_use_out_of_service(seen, rows))?;
    guard::may_add_out_of_service(seen, rows).ok()?;
    Some(Effect::AddTaint { taint: guard::out_of_service(seen, now), node: node.clone() })
}

/// Whether the policies and this episode leave the out-of-service taint open at all.
fn may_use_out_of_service(seen: &Seen, rows: &Rows) -> bool {
    let automatic = seen.policies.iter().all(|policy| policy.spec.release.detach == DetachMode::Automatic);
    automatic && !seen.out_of_service_spent && rows.node == NodeState::Away && !seen.attachments.is_empty()
}

/// Detach what was fenced and released: by the out-of-service taint when everything on the node is proved, else one
/// attachment at a time.
fn detach(seen: &Seen, rows: &Rows, now: Now) -> Option<Step> {
    let mut left = rows.attachments_to_remove(seen);
    left.retain(|attachment| attachment.metadata.deletion_timestamp.is_none());
    // A kubelet that is back unmounts first; then attach/detach detaches. Ours would cut off what it still flushes.
    if rows.node == NodeState::Back || left.is_empty() {
        return None;
    }
    if seen.our_out_of_service().is_some() {
        // Nor does it detach what a pod wants that its owner has put back on the node.
        if left.len() <= seen.settings.detach_by_taint_only {
            left.retain(|attachment| pods::is_wanted(seen, attachment.volume()));
        }
        return if left.is_empty() { None } else { delete_attachments(left) };
    }
    if let Some(taint) = add_out_of_service(seen, rows, now) {
        return Step::live("Detaching", vec![taint]);
    }
    if may_use_out_of_service(seen, rows) && rows.proofs_are_near(seen, now, DETACH_PATIENCE) {
        return Step::wait("Detaching", Duration::from_millis(200));
    }
    delete_attachments(left)
}

/// Why attachments are deleted one by one though the policies leave the out-of-service taint open, for people: attach/detach finds out
/// about them only when it looks again.
pub fn why_one_by_one(seen: &Seen, now: Now) -> Option<String> {
    let rows = Rows::advance(seen, now);
    if seen.our_out_of_service().is_some() || !may_use_out_of_service(seen, &rows) {
        return None;
    }
    guard::may_add_out_of_service(seen, &rows).err()
}

fn delete_attachments(attachments: Vec<Arc<VolumeAttachment>>) -> Option<Step> {
    Step::live("Detaching", attachments.into_iter().map(Effect::DeleteAttachment).collect())
}
