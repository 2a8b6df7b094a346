//! `NodeFence`: the durable plan and the record of one failing node.

mod plan;
mod status;

pub use plan::*;
pub use status::*;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::cidr;
use super::conditions;
use super::fence_request::{FenceRequest, FenceResult};
use super::fencing::{FenceMethodType, NodeIdentity, PolicyMode};
use super::names;
use super::slim::Node;

/// Frozen identity and frozen plan, written by the controller only; approval and hold, written by people only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "bulkhead.dev",
    version = "v1alpha1",
    kind = "NodeFence",
    plural = "nodefences",
    shortname = "nf",
    category = "bulkhead",
    status = "NodeFenceStatus",
    doc = "NodeFence is the durable plan and the record of one failing node. Named after the node, written by Bulkhead, never kept in Git; people write only spec.approval and spec.hold.",
    derive = "PartialEq",
    selectable = ".status.phase",
    printcolumn(name = "PHASE", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "REASON", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "PODS", type_ = "string", json_path = ".status.progress.pods"),
    printcolumn(name = "VOLUMES", type_ = "string", json_path = ".status.progress.volumes"),
    printcolumn(name = "PROOF", type_ = "string", json_path = ".status.weakestProof"),
    printcolumn(name = "HELD", type_ = "string", json_path = r#".status.conditions[?(@.type=="Held")].status"#),
    printcolumn(name = "EPISODE", type_ = "integer", json_path = ".spec.episode"),
    printcolumn(name = "POLICIES", type_ = "string", json_path = ".spec.policies[*].name", priority = 1),
    printcolumn(name = "DIGEST", type_ = "string", json_path = ".spec.plan.digest", priority = 1),
    printcolumn(name = "DECIDED", type_ = "date", json_path = ".spec.plan.decidedAt"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.episode == oldSelf.episode || self.episode == oldSelf.episode + 1").message("episode only rises, by one").field_path(".episode"))]
#[x_kube(validation = Rule::new("self.episode > oldSelf.episode || self.node == oldSelf.node").message("the frozen identity is immutable within an episode").field_path(".node"))]
#[x_kube(validation = Rule::new("self.episode > oldSelf.episode || oldSelf.policies.all(o, self.policies.exists(p, p == o))").message("a recorded policy is immutable within an episode").field_path(".policies"))]
#[x_kube(validation = Rule::new("self.episode > oldSelf.episode || self.plan.decidedAt == oldSelf.plan.decidedAt").message("decidedAt is immutable within an episode").field_path(".plan.decidedAt"))]
#[x_kube(validation = Rule::new("self.episode > oldSelf.episode || oldSelf.plan.evidence.all(e, e in self.plan.evidence)").message("evidence is only added within an episode").field_path(".plan.evidence"))]
#[x_kube(validation = Rule::new("self.episode > oldSelf.episode || !has(oldSelf.plan.pods) || has(self.plan.pods) && size(self.plan.pods) >= size(oldSelf.plan.pods)").message("planned pods cannot be removed within an episode").field_path(".plan"))]
#[x_kube(validation = Rule::new("self.episode > oldSelf.episode || !has(oldSelf.plan.volumes) || has(self.plan.volumes) && size(self.plan.volumes) >= size(oldSelf.plan.volumes)").message("planned volumes cannot be removed within an episode").field_path(".plan"))]
pub struct NodeFenceSpec {
    /// Counts the incidents of this node; failing again before Recovered is the next episode of the same object.
    #[schemars(range(min = 1))]
    pub episode: i64,
    /// Identity of the failed node, frozen for the episode.
    pub node: NodeIdentity,
    /// Policies that select pods of the node, as they were when the episode began.
    #[schemars(length(min = 1, max = POLICIES_MAX))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub policies: Vec<PlannedPolicy>,
    /// The frozen decision. Entries are only added, never changed or removed, while the episode lasts.
    pub plan: Plan,
    /// Written by a person: this plan may be carried out. Asked for where a policy of the plan has mode RequireApproval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,
    /// Written by a person: stop before the next destructive step, until this is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
}

/// A person's word that a plan may be carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Approval {
    /// Digest of the plan that was read; it approves no other plan, so a plan that has grown needs a new approval.
    #[schemars(length(min = 8, max = 71), regex(pattern = r"^sha256:[0-9a-f]{8,64}$"))]
    pub plan_digest: String,
    /// Why; shown in status and Events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub reason: Option<String>,
}

/// A person's word that nothing more may be done for now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Hold {
    /// Why; shown in status and Events.
    #[schemars(length(min = 1, max = 512))]
    pub reason: String,
}

/// One policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedPolicy {
    /// ResiliencyPolicy name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Its uid.
    #[schemars(length(min = 1, max = 36))]
    pub uid: String,
    /// Its generation.
    #[schemars(range(min = 1))]
    pub generation: i64,
    /// Its mode.
    pub mode: PolicyMode,
}

impl NodeFence {
    /// The volumes that a fence call may have been sent for and that were not given back since: what the node must not
    /// hold any more. A row stays here when it is Clean, so that who looks for them looks on.
    pub fn volumes_to_clean(&self) -> impl Iterator<Item = &PlannedVolume> {
        let cut_off = |plan: &&PlannedVolume| {
            let row = self.recorded_volume(plan.episode, &plan.name);
            row.is_some_and(|row| row.committed_at.is_some() && row.state != VolumeStatusState::Undone)
        };
        self.spec.plan.volumes.iter().filter(cut_off)
    }

    /// The recorded rows that an external fencer has proved, each with its plan, and whose pods may have gone by force on that. One that
    /// another method has proved since is among them: which of its pods went before is not on record.
    pub fn proved_externally(&self) -> impl Iterator<Item = (&PlannedVolume, &VolumeStatus)> {
        let recorded = self.status.as_ref().map(|status| status.volumes.as_slice()).unwrap_or_default();
        let open = recorded.iter().filter(|row| row.is_proved_externally() && !row.has_ended());
        let planned = open.filter_map(move |row| {
            let mut plans = self.spec.plan.volumes.iter();
            let plan = plans.find(|plan| plan.episode == row.episode && plan.name == row.name)?;
            Some((plan, row))
        });
        planned.filter(move |(plan, _)| self.may_have_gone(plan))
    }

    /// Whether a pod of a row has gone, or was to: what deletes it by force may be on its way. Of an earlier episode's pods there is no
    /// record any more.
    pub fn may_have_gone(&self, plan: &PlannedVolume) -> bool {
        let recorded = self.status.as_ref().map(|status| status.pods.as_slice()).unwrap_or_default();
        let goes = |pod: &PlannedPod| {
            let row = recorded.iter().find(|row| row.episode == pod.episode && row.uid == pod.uid);
            row.is_some_and(|row| matches!(row.state, PodStatusState::Releasing | PodStatusState::Released))
        };
        let mut pods = self.spec.plan.pods.iter();
        plan.episode != self.spec.episode || pods.any(|pod| pod.volumes.contains(&plan.name) && goes(pod))
    }

    /// Whether an external fencer has begun by this request with a row that has not ended. It may have cut the machine off from all its
    /// volumes, whatever it has answered.
    pub fn is_begun_externally(&self, request: &FenceRequest) -> bool {
        let is_begun = |plan: &PlannedVolume| {
            let has_ended = self.recorded_volume(plan.episode, &plan.name).is_some_and(VolumeStatus::has_ended);
            let answer = request.result_of(plan.episode, &plan.name);
            !has_ended && answer.is_some_and(FenceResult::is_begun)
        };
        request.is_external() && self.spec.plan.volumes.iter().any(is_begun)
    }

    /// The volumes that a machine would write to again which an external fencer lets in: no other method has taken them, and nothing shows
    /// that its processes have ended. Those of the machine itself are nobody else's.
    pub fn exposed_volumes(&self) -> impl Iterator<Item = &PlannedVolume> {
        let is_of_storage = |plan: &&PlannedVolume| plan.driver.is_some() || plan.is_unattached();
        let is_exposed = |plan: &&PlannedVolume| {
            let row = self.recorded_volume(plan.episode, &plan.name);
            row.is_none_or(|row| !row.is_clean() && !row.is_proved_by_another() && !row.is_off())
        };
        self.spec.plan.volumes.iter().filter(is_of_storage).filter(is_exposed)
    }

    /// Whether an external fencer has proved in this episode, by whichever volume, that the machine lost its power: that ended the processes
    /// of all its volumes. Its answer will do where it came too late to be recorded. Not when it failed in a further boot of the episode:
    /// in which of them it was off is not on record.
    pub fn has_lost_its_power<'a>(&self, requests: impl IntoIterator<Item = &'a FenceRequest>) -> bool {
        let recorded = self.status.iter().flat_map(|status| &status.volumes);
        let mut recorded = recorded.filter(|row| row.episode == self.spec.episode);
        let statuses = requests.into_iter().filter_map(|request| request.status.as_ref());
        let answers = statuses.flat_map(|status| &status.volumes);
        let mut answers = answers.filter(|row| row.episode == self.spec.episode && row.is_begun());
        let is_off = recorded.any(VolumeStatus::is_proved_to_be_off) || answers.any(FenceResult::says_power_off);
        is_off && self.failed_boot_ids().is_empty()
    }

    /// How a planned volume is recorded.
    pub fn recorded_volume(&self, episode: i64, name: &str) -> Option<&VolumeStatus> {
        let mut rows = self.status.iter().flat_map(|status| &status.volumes);
        rows.find(|row| row.episode == episode && row.name == name)
    }

    /// Whether the Node tells another boot than that which was frozen. Where one of the two is not known it tells none: nothing
    /// is taken for booted that nobody has told of.
    pub fn is_another_boot(&self, node: &Node) -> bool {
        let frozen = self.spec.node.boot_id.as_deref();
        frozen.is_some() && node.boot_id().is_some_and(|boot_id| Some(boot_id) != frozen)
    }

    /// Whether the node failed in the boot that the Node tells, when the episode began or again since (`status.failedBootIDs`): what
    /// ran there may run still. In a boot that is not known it did not: nobody looks for what ran in that one.
    pub fn has_failed_in(&self, node: &Node) -> bool {
        node.boot_id().is_some_and(|boot_id| self.is_failed_boot(boot_id))
    }

    /// Whether that boot is on record as one in which the node failed. While the last of those is not known it may be any.
    pub fn is_failed_boot(&self, boot_id: &str) -> bool {
        let mut again = self.failed_boot_ids().iter();
        self.is_last_boot_unknown()
            || self.spec.node.boot_id.as_deref() == Some(boot_id)
            || boot_id != UNKNOWN_BOOT && again.any(|failed| failed == boot_id)
    }

    /// Whether the record says that the node was back, in whatever boot, since the episode began.
    pub fn was_back(&self) -> bool {
        self.status.as_ref().is_some_and(NodeFenceStatus::was_back)
    }

    /// Whether the node failed last in a boot that nobody has seen ([`UNKNOWN_BOOT`]).
    pub fn is_last_boot_unknown(&self) -> bool {
        self.failed_boot_ids().first().is_some_and(|boot_id| boot_id == UNKNOWN_BOOT)
    }

    /// Whether no process lives that ran where the node failed: it tells another boot, and has not failed in that one. A boot that is
    /// not known, before or now, shows nothing of the kind.
    pub fn is_rebooted(&self, node: &Node) -> bool {
        self.is_another_boot(node) && !self.has_failed_in(node)
    }

    /// Whether what is there by the name of the Node may be another machine than the one that was frozen: it has another boot, and
    /// none of the addresses. Spare hardware may join under that name while the old one is only cut off. A boot that is not known,
    /// before or now, may be another.
    pub fn may_be_another_machine(&self, node: &Node) -> bool {
        let frozen = &self.spec.node;
        let before = cidr::readable(&frozen.addresses);
        let now = cidr::readable(node.status.addresses.iter().map(|it| &it.address));
        let is_the_boot = node.boot_id().is_some_and(|boot_id| frozen.boot_id.as_deref() == Some(boot_id));
        !is_the_boot && !now.iter().any(|address| before.contains(address))
    }

    /// The same where there are frozen addresses to compare: without any, as where no agent reported them, each reboot may be another
    /// machine.
    pub fn has_other_addresses(&self, node: &Node) -> bool {
        !cidr::readable(&self.spec.node.addresses).is_empty() && self.may_be_another_machine(node)
    }

    /// Whether no kubelet that is there knows the processes of the machine that failed: its Node is deleted, and with it Kubernetes removes
    /// the pods by force; or another machine has its name, and its kubelet lets the pods go at once. Without frozen addresses a Node that was
    /// made anew in another boot may be another's. Only where it has a volume to write to when it is let in.
    pub fn is_beyond_its_kubelet(&self, node: Option<&Node>) -> bool {
        let is_unknown = node.is_none_or(|node| {
            let is_anew = node.metadata.uid.as_deref() != Some(&self.spec.node.uid);
            self.has_other_addresses(node) || is_anew && self.may_be_another_machine(node)
        });
        is_unknown && self.exposed_volumes().next().is_some()
    }

    /// Whether this method cuts off the machine that was frozen, and what is there by the name of the Node may be another one.
    pub fn may_miss(&self, method: FenceMethodType, node: &Node) -> bool {
        match method {
            FenceMethodType::NetworkFence => self.may_be_another_machine(node),
            FenceMethodType::External => self.has_other_addresses(node),
            FenceMethodType::Unpublish | FenceMethodType::Detach => false,
        }
    }

    /// Whether somebody who knows says that the machine of this episode is off, or exists no more, since it failed last.
    pub fn is_machine_said_to_be_off(&self) -> bool {
        let annotations = self.metadata.annotations.as_ref();
        let said = annotations.and_then(|annotations| annotations.get(names::MACHINE_OFF_ANNOTATION));
        said.is_some_and(|said| *said == self.machine_off_word())
    }

    /// What that annotation says then.
    pub fn machine_off_word(&self) -> String {
        machine_off_word(self.spec.episode, self.failed_boot_ids())
    }

    /// The command by which a person says so, once these boots are on record.
    pub fn machine_off_command(&self, failed_boot_ids: &[String]) -> String {
        let (name, annotation) = (self.metadata.name.as_deref().unwrap_or_default(), names::MACHINE_OFF_ANNOTATION);
        let word = machine_off_word(self.spec.episode, failed_boot_ids);
        format!("kubectl annotate --overwrite nodefence {name} {annotation}={word}")
    }

    /// The boots in which the node is on record as failed again in this episode, newest first.
    pub fn failed_boot_ids(&self) -> &[String] {
        self.status.as_ref().map_or(&[], |status| &status.failed_boot_ids)
    }

    /// Whether only who knows the machine can end the incident, in whichever phase that is: the word that it is off is waited for, also
    /// while a person holds it.
    pub fn waits_for_word_of_its_machine(&self) -> bool {
        self.condition("NodeClean").is_some_and(|clean| clean.reason == MACHINE_MAY_RUN)
    }

    /// Whether only the proof is waited for that the node reaches its storage again, in whichever phase that is.
    pub fn awaits_storage(&self) -> bool {
        self.condition("Ready").is_some_and(|ready| ready.reason == AWAITING_STORAGE)
    }

    fn condition(&self, type_: &str) -> Option<&Condition> {
        conditions::find(&self.status.as_ref()?.conditions, type_)
    }

    /// Digest of these volumes, in any order.
    pub fn cleanup_digest(&self) -> String {
        let mut rows: Vec<_> = self.volumes_to_clean().map(|plan| (plan.episode, &plan.name)).collect();
        rows.sort_unstable();
        let mut hash = Sha256::new();
        for (episode, name) in rows {
            hash.update(episode.to_be_bytes());
            hash.update(name);
            hash.update([0]);
        }
        format!("sha256:{}", names::hex(&hash.finalize(), 16))
    }
}

/// The episode, and where `status.failedBootIDs` has any, a digest of them: whoever saw the machine off before knows nothing of a later
/// failure. A digest, as people paste it into their shells, and boot ids are what a node says of itself.
fn machine_off_word(episode: i64, failed_boot_ids: &[String]) -> String {
    if failed_boot_ids.is_empty() {
        return episode.to_string();
    }
    format!("{episode}-{}", names::hex(&Sha256::digest(failed_boot_ids.join("\0")), 4))
}
