//! What the programs under test record, as it is taken in: what is proved from now on, and what is counted and told.

use bulkhead::api::fence_request::{FenceOutcome, FenceRequest, FencerMethodType};
use bulkhead::api::fencing::Proof;
use bulkhead::api::node_fence::{NodeFence, Phase};
use kube::ResourceExt;

use crate::world::World;

impl World {
    pub(super) fn notice_record(&mut self, fence: &NodeFence) {
        let Some(status) = &fence.status else { return };
        self.counts.recovered += u64::from(status.phase == Some(Phase::Recovered));
        self.counts.refenced += u64::from(status.volumes.iter().any(|row| row.refences.unwrap_or(0) > 0));
        self.judge_cleaned(fence);
        let says = |reason: &str| status.volumes.iter().any(|row| row.reason.as_deref() == Some(reason));
        self.counts.of_another_cluster += u64::from(says("ClassOfAnotherCluster"));
        self.counts.power_waits += u64::from(says("PowerWaits"));
        let by_others = status.pods.iter().any(|row| row.reason.as_deref() == Some("ReleasedByOthers"));
        self.counts.released_by_others += u64::from(by_others);
        self.tell(|| {
            let volumes: Vec<_> = status
                .volumes
                .iter()
                .map(|row| {
                    format!(
                        "{}/{} {:?} {:?} {}",
                        row.episode,
                        row.name,
                        row.state,
                        row.proof,
                        row.reason.as_deref().unwrap_or("")
                    )
                })
                .collect();
            let pods: Vec<_> = status
                .pods
                .iter()
                .map(|row| format!("{} {:?} {}", row.uid, row.state, row.reason.as_deref().unwrap_or("")))
                .collect();
            format!("    record {} {:?}: {}; {}", fence.name_any(), status.phase, volumes.join(", "), pods.join(", "))
        });
    }

    pub(crate) fn notice_answer(&mut self, request: &FenceRequest) {
        for row in request.status.iter().flat_map(|status| &status.volumes) {
            let asked = request.spec.volumes.iter().find(|it| (it.episode, &it.name) == (row.episode, &row.name));
            let Some(asked) = asked.filter(|asked| asked.round == row.round) else { continue };
            // An answer that is only written once more, beside others, says nothing new.
            let known = (request.uid().unwrap_or_default(), row.episode, row.name.clone());
            if self.oracle.answers.insert(known, row.clone()).as_ref() == Some(row) {
                continue;
            }
            match (row.result, row.proof) {
                // No array has taken anything: what is so is looked at, and judged when it is given back.
                (FenceOutcome::Fenced, Proof::Verified) if row.method == Some(FencerMethodType::External) => {
                    self.counts.kept_out += 1;
                }
                (FenceOutcome::Fenced, proof) if proof >= asked.minimum_proof => {
                    let read = self.listed.get(&request.spec.fencer_name).copied();
                    let is_read = proof == Proof::Verified;
                    let (at, of) = if is_read { read.unwrap_or_default() } else { (self.now, self.now) };
                    self.oracle.prove(&row.name, &asked.node_id, (at, of), proof);
                    self.counts.verified += u64::from(proof == Proof::Verified);
                    self.counts.acknowledged += u64::from(proof == Proof::Acknowledged);
                    self.counts.powered_off += u64::from(proof == Proof::PowerOff);
                }
                (FenceOutcome::Failed, _) => {
                    let reason = row.reason.as_deref();
                    self.counts.still_published += u64::from(reason == Some("StillPublished"));
                }
                _ => {}
            }
            self.counts.not_listed += u64::from(row.reason.as_deref() == Some("NotListed"));
        }
    }
}
