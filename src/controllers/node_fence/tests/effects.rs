//! What effects do to the [`World`]: refused as an API server refuses them, and noted.

use std::sync::Arc;

use kube::ResourceExt;

use crate::api::fence_request::FenceRequest;
use crate::api::names;
use crate::api::node_fence::{NodeFenceStatus, VolumeStatusState};
use crate::api::slim::Node;
use crate::api::usage::PodView;

use super::super::decide::{Asked, Effect};
use super::checks;
use super::fencer::check_request;
use super::world::{World, stamp};

impl World {
    /// Carries an effect out.
    pub(super) fn apply(&mut self, effect: Effect) {
        checks::allowed(&self.seen, self.now, &effect, &self.log);
        match effect {
            Effect::Record(status) => self.record(*status),
            Effect::SetActive(active) => {
                self.log.push(if active { "active" } else { "inactive" }.into());
                let labels = Arc::make_mut(&mut self.seen.fence).labels_mut();
                if active {
                    labels.insert(names::ACTIVE_LABEL.into(), "true".into());
                } else {
                    labels.remove(names::ACTIVE_LABEL);
                }
            }
            Effect::AddTaint { taint, node } => {
                self.log.push(format!("taint {}", short(&taint.key)));
                let taints = self.node_as(&node).spec.taints.get_or_insert_default();
                taints.retain(|it| (&it.key, &it.effect) != (&taint.key, &taint.effect));
                taints.push(taint);
            }
            Effect::RemoveTaint { taint, node } => {
                self.log.push(format!("untaint {}", short(&taint.key)));
                self.seen.out_of_service_spent |= taint.key == names::OUT_OF_SERVICE_TAINT;
                self.node_as(&node).spec.taints.get_or_insert_default().retain(|t| t.key != taint.key);
            }
            Effect::Ask(request) => {
                assert!(self.seen.request(&request.spec.fencer_name).is_none(), "asked twice");
                self.note_asked(None, &request);
                self.seen.requests.push(Arc::new(*request));
            }
            Effect::AskAgain(request) => {
                let place = self.seen.requests.iter().position(|it| it.spec.fencer_name == request.spec.fencer_name);
                let before = self.seen.requests[place.expect("a request that is replaced exists")].clone();
                check_request(&before, &request);
                self.note_asked(Some(&before), &request);
                let status = before.status.clone();
                self.seen.requests[place.unwrap()] = Arc::new(FenceRequest { status, ..*request });
            }
            Effect::Withdraw(request) => {
                self.log.push(format!("withdraw {}", request.spec.fencer_name));
                self.seen.requests.retain(|it| it.spec.fencer_name != request.spec.fencer_name);
            }
            Effect::FailPod { pod, .. } => {
                self.log.push(format!("fail {}", pod.name()));
                self.change_pod(pod.name(), |pod| pod.status.phase = Some("Failed".into()));
            }
            Effect::DeletePod { pod, grace_seconds, .. } => self.delete_pod(&pod, grace_seconds),
            Effect::DeleteAttachment(attachment) => {
                self.log.push(format!("detach {}", attachment.volume()));
                let uid = attachment.metadata.uid.clone();
                let held =
                    self.seen.attachments.iter_mut().find(|it| it.metadata.uid == uid).expect("uid precondition");
                Arc::make_mut(held).metadata.deletion_timestamp = Some(stamp(self.now));
            }
            Effect::RemoveFinalizer => self.log.push("unguard".into()),
            Effect::Forget => self.log.push("forget".into()),
        }
    }

    fn record(&mut self, status: NodeFenceStatus) {
        for row in &status.volumes {
            let cut_off = matches!(row.state, VolumeStatusState::Fenced | VolumeStatusState::Detached);
            let whole = row.proved_at.is_some() && row.method.is_some() && row.committed_at.is_some();
            assert!(!cut_off || whole, "a fenced volume needs committedAt, provedAt and method: {row:?}");
        }
        let old = self.seen.fence.status.clone().unwrap_or_default();
        for row in &status.volumes {
            let was = old.volumes.iter().find(|was| (was.episode, &was.name) == (row.episode, &row.name));
            if was.map(|was| was.state) != Some(row.state) {
                self.log.push(format!("{} is {:?}", row.name, row.state));
            }
        }
        for row in &status.pods {
            let was = old.pods.iter().find(|was| was.uid == row.uid);
            if was.map(|was| was.state) != Some(row.state) {
                self.log.push(format!("{} is {:?}", row.uid.trim_start_matches("uid-"), row.state));
            }
        }
        if old.phase != status.phase {
            self.log.push(format!("phase {:?}", status.phase.unwrap()));
        }
        Arc::make_mut(&mut self.seen.fence).status = Some(status);
    }

    fn delete_pod(&mut self, pod: &PodView, grace_seconds: Option<u32>) {
        let grace = grace_seconds.map_or("graceful".to_owned(), |seconds| format!("grace {seconds}"));
        self.log.push(format!("delete {} {grace}", pod.name()));
        let held = self.seen.pods.iter().find(|it| it.uid() == pod.uid()).expect("uid precondition");
        let (known, sent) = (&held.pod.metadata.resource_version, &pod.pod.metadata.resource_version);
        assert_eq!(known, sent, "resourceVersion precondition");
        if grace_seconds == Some(0) && held.pod.finalizers().is_empty() {
            self.remove_pod(pod.name());
            return;
        }
        let at = stamp(self.now);
        self.change_pod(pod.name(), |pod| {
            pod.metadata.deletion_timestamp.get_or_insert(at);
            pod.metadata.deletion_grace_period_seconds = Some(grace_seconds.map_or(30, i64::from));
        });
    }

    fn node_as(&mut self, seen: &Arc<Node>) -> &mut Node {
        let node = Arc::make_mut(self.seen.node.as_mut().expect("a node that is tainted exists"));
        assert_eq!(node.metadata.uid, seen.metadata.uid, "uid precondition");
        assert_eq!(node.status.node_info, seen.status.node_info, "boot id precondition");
        node
    }

    fn note_asked(&mut self, before: Option<&FenceRequest>, request: &FenceRequest) {
        let known = before.map(|it| it.spec.volumes.clone()).unwrap_or_default();
        let new: Vec<_> = request.spec.volumes.iter().filter(|volume| !known.contains(volume)).collect();
        for volume in &new {
            let asked = Asked { round: volume.round, at: self.now.mono, wall: self.now.wall };
            let key = (request.spec.fencer_name.clone(), volume.episode, volume.name.clone());
            self.seen.asked.insert(key, asked);
        }
        let rounds: Vec<_> = new.iter().map(|volume| format!("{} round {}", volume.name, volume.round)).collect();
        self.log.push(format!("ask {:?} {}", request.spec.desired, rounds.join(", ")).trim_end().to_owned());
    }
}

fn short(key: &str) -> &str {
    key.split('/').next_back().unwrap_or(key)
}
