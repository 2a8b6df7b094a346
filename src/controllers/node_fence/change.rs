//! How rows differ from what is recorded, and what that means: whether something will rest on the record.

use crate::api::fencing::FenceMethodType;
use crate::api::node_fence::{NodeFenceStatus, PodStatus, PodStatusState, VolumeStatus, VolumeStatusState};

use super::rows::Rows;

/// How the rows differ from what is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// Not at all.
    None,
    /// Something is told that nothing rests on: what failed or is waited for, what has gone, and a fence that its
    /// FenceRequest records already.
    Progress,
    /// Something will rest on the record: a release, a detach, a row that is closed or opened again.
    Intent,
}

impl Change {
    fn new(is_same: bool, is_intent: bool) -> Self {
        match (is_same, is_intent) {
            (true, _) => Self::None,
            (false, true) => Self::Intent,
            (false, false) => Self::Progress,
        }
    }

    fn of_volume(row: &VolumeStatus, known: Option<&VolumeStatus>) -> Self {
        use VolumeStatusState::{Clean, Detached, Failed, Fenced, Fencing, Pending, Undone};
        let untouched = known.is_none() && row.state == Pending;
        let was_cut_off = known.is_some_and(|known| matches!(known.state, Fenced | Detached | Clean));
        // What goes from here on rests on another's proof.
        let is_by_another =
            known.is_some_and(|known| (known.method, known.external_proof) != (row.method, row.external_proof));
        let is_intent = match row.state {
            Fenced | Clean | Undone => true,
            // The record is method Detach's point of no return.
            Fencing => was_cut_off || row.method == Some(FenceMethodType::Detach),
            Failed => was_cut_off,
            Detached => is_by_another,
            Pending => false,
        };
        Self::new(known == Some(row) || untouched, is_intent)
    }

    fn of_pod(row: &PodStatus, known: Option<&PodStatus>) -> Self {
        use PodStatusState::{Kept, Pending, Releasing, Undone};
        let untouched = known.is_none() && matches!(row.state, Pending | Kept);
        Self::new(known == Some(row) || untouched, matches!(row.state, Releasing | Undone))
    }
}

impl Rows {
    /// What must be recorded. A row that nothing has happened to needs no record of its own.
    pub fn change_from(&self, recorded: &NodeFenceStatus) -> Change {
        let volumes = self.volumes.iter().map(|row| &row.status).map(|row| {
            let known = recorded.volumes.iter().find(|known| known.episode == row.episode && known.name == row.name);
            Change::of_volume(row, known)
        });
        let pods = self.pods.iter().map(|row| {
            let known = recorded.pods.iter().find(|known| known.episode == row.episode && known.uid == row.uid);
            Change::of_pod(row, known)
        });
        volumes.chain(pods).max().unwrap_or(Change::None)
    }
}
