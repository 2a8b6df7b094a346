//! Which policies protect a pod, and what they demand together: the strictest value of each field.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::api::fencing::{FenceMethod, PolicyMode, Proof};
use crate::api::resiliency_policy::{
    BarePods, CheckSwitch, CrashLoopAction, CrashLoopWhen, DecisiveChannel, DetachMode, DriverPluginDown,
    NodeFailureAction, PodsWithoutVolumes, ResiliencyPolicy, ResiliencyPolicySpec, Sharers, StoragePathLossAction,
};
use crate::api::usage::{PodView, UnattachedVolume};

/// All policies that select a pod, in the order of their names.
#[derive(Clone, Debug)]
pub struct Effective<'a> {
    policies: Vec<&'a ResiliencyPolicy>,
}

impl<'a> Effective<'a> {
    /// The policies that select the pod; `None` when none does.
    pub fn of(
        pod: &PodView,
        namespace_labels: &BTreeMap<String, String>,
        policies: impl IntoIterator<Item = &'a ResiliencyPolicy>,
    ) -> Option<Self> {
        let mut policies: Vec<_> = policies.into_iter().filter(|p| selects(p, pod, namespace_labels)).collect();
        policies.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        (!policies.is_empty()).then_some(Self { policies })
    }

    /// A policy by itself.
    pub fn alone(policy: &'a ResiliencyPolicy) -> Self {
        Self { policies: vec![policy] }
    }

    /// The policies.
    pub fn policies(&self) -> &[&'a ResiliencyPolicy] {
        &self.policies
    }

    /// The policy whose name the plan shows: of several the one with the strictest proof, then the first by name.
    pub fn deciding(&self) -> &str {
        let strictest = self.specs().map(|spec| spec.fencing.minimum_proof).max();
        let decider = self.policies.iter().find(|policy| Some(policy.spec.fencing.minimum_proof) == strictest);
        decider.and_then(|policy| policy.metadata.name.as_deref()).unwrap_or_default()
    }

    /// What may be done for the pod.
    pub fn mode(&self) -> PolicyMode {
        self.specs().map(|spec| spec.mode).min().unwrap_or(PolicyMode::DryRun)
    }

    /// Whether a failed node releases the pod.
    pub fn releases_on_node_failure(&self) -> bool {
        self.specs().all(|spec| spec.triggers.node_failure == NodeFailureAction::Release)
    }

    /// Whether what the array says counts as evidence.
    pub fn counts_storage(&self) -> bool {
        self.specs().all(|spec| spec.detection.storage.connectivity_check == CheckSwitch::Enabled)
    }

    /// How long what the array says of a node may still be of the time before, when its driver could not see it: until all that
    /// makes a loss was asked anew, and one question more.
    pub fn storage_settles_after(&self) -> Duration {
        let storage = self.specs().map(|spec| &spec.detection.storage);
        let settles = storage.map(|it| {
            let answers = u32::try_from(it.loss_threshold).unwrap_or(1);
            it.period.get().saturating_mul(answers.saturating_add(1))
        });
        settles.max().unwrap_or(Duration::MAX)
    }

    /// Whether what that external fencer says counts as evidence: where every policy has it cut nodes off.
    pub fn names_fencer(&self, fencer: &str) -> bool {
        self.specs().all(|spec| spec.fencing.external_fencers().any(|it| it == fencer))
    }

    /// Whether a lost path to its storage releases the pod.
    pub fn releases_on_path_loss(&self) -> bool {
        self.counts_storage()
            && self.specs().all(|spec| spec.triggers.storage_path_loss == StoragePathLossAction::Release)
    }

    /// Keys of volume taints that release the pod: those that every policy lists.
    pub fn volume_taints(&self) -> Vec<String> {
        let mut lists = self.specs().map(|spec| &spec.triggers.volume_taints);
        let first = lists.next().cloned().unwrap_or_default();
        lists.fold(first, |common, list| common.into_iter().filter(|key| list.contains(key)).collect())
    }

    /// How long a pod that was moved for the sake of its volume is not moved again.
    pub fn cooldown(&self) -> Duration {
        self.specs().map(|spec| spec.limits.cooldown.get()).max().unwrap_or(Duration::MAX)
    }

    /// Whether one channel alone may declare the node.
    pub fn is_decisive(&self, channel: DecisiveChannel) -> bool {
        self.specs().all(|spec| spec.detection.decisive_channels.contains(&channel))
    }

    /// How many independent channels must agree where none is decisive.
    pub fn required_channels(&self) -> usize {
        let required = self.specs().map(|spec| spec.detection.required_channels).max().unwrap_or(i32::MAX);
        usize::try_from(required).unwrap_or(usize::MAX)
    }

    /// How long the kubelet must have been unreachable.
    pub fn decisive_after(&self) -> Duration {
        self.specs().map(|spec| spec.detection.kubelet.decisive_after.get()).max().unwrap_or(Duration::MAX)
    }

    /// After which silence of its agent a node is suspected.
    pub fn agent_suspect_after(&self) -> Duration {
        self.specs().map(|spec| spec.detection.agent.suspect_after.get()).max().unwrap_or(Duration::MAX)
    }

    /// After which loss the node's agent stops the pod itself; of several policies the first deadline.
    pub fn self_fencing_after(&self) -> Option<Duration> {
        self.specs().filter_map(|spec| spec.self_fencing.deadline()).min()
    }

    /// Whether every policy counts this taint. Cordons and our own taints never count.
    pub fn counts_taint(&self, taint: &k8s_openapi::api::core::v1::Taint) -> bool {
        self.specs().all(|spec| spec.detection.counts_taint(taint))
    }

    /// Weakest proof at which the pod may go, for a volume of that driver.
    pub fn minimum_proof(&self, driver: &str) -> Proof {
        self.specs().map(|spec| spec.fencing.minimum_proof_for(driver)).max().unwrap_or(Proof::Verified)
    }

    /// Methods for a volume of that driver that every policy lists and that can reach the minimum proof, in the
    /// first policy's order of preference.
    pub fn methods(&self, driver: &str) -> Vec<FenceMethod> {
        let minimum = self.minimum_proof(driver);
        let mut lists = self.specs().map(|spec| spec.fencing.methods_for(driver));
        let Some(first) = lists.next() else { return Vec::new() };
        let rest: Vec<_> = lists.collect();
        let common = first.iter().filter(|method| rest.iter().all(|list| list.contains(method)));
        common.filter(|method| method.type_.best_proof() >= minimum).cloned().collect()
    }

    /// The same for a volume that is mounted without being attached: those that cover it.
    pub fn unattached_methods(&self, volume: &UnattachedVolume) -> Vec<FenceMethod> {
        let mut methods = self.methods(volume.driver());
        methods.retain(|method| volume.is_covered_by(method.type_));
        methods
    }

    /// The weakest proof for such a volume. Time alone is none; and where nobody shuts the node out of its storage it is the node
    /// that must have no power.
    pub fn unattached_minimum(&self, volume: &UnattachedVolume) -> Proof {
        let least = if volume.csi.is_some() { Proof::Acknowledged } else { Proof::PowerOff };
        self.minimum_proof(volume.driver()).max(least)
    }

    /// Whether the out-of-service taint may be used.
    pub fn may_use_out_of_service(&self) -> bool {
        self.specs().all(|spec| spec.release.detach == DetachMode::Automatic)
    }

    /// These policies and others.
    pub fn and(mut self, others: Self) -> Self {
        self.policies.extend(others.policies);
        self.policies.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        self.policies.dedup_by(|a, b| a.metadata.name == b.metadata.name);
        self
    }

    /// Whether pods without a controller are deleted.
    pub fn deletes_bare_pods(&self) -> bool {
        self.specs().all(|spec| spec.release.bare_pods == BarePods::Delete)
    }

    /// Whether pods without volumes are released.
    pub fn releases_pods_without_volumes(&self) -> bool {
        self.specs().all(|spec| spec.release.pods_without_volumes == PodsWithoutVolumes::Release)
    }

    /// Whether pods that no policy selects go with those that they share volumes with.
    pub fn cleans_sharers(&self) -> bool {
        self.specs().all(|spec| spec.sharers == Sharers::CleanAll)
    }

    /// Whether the policies leave no pod of this kind where it is.
    pub fn releases(&self, pod: &PodView) -> bool {
        (pod.pod.controller().is_some() || self.deletes_bare_pods())
            && (!pod.volumes.is_empty() || self.releases_pods_without_volumes())
    }

    /// Whether nodes are tainted while a plugin of a driver of the pod is not ready there.
    pub fn taints_for_plugins(&self) -> bool {
        self.mode() != PolicyMode::DryRun
            && self.specs().all(|spec| spec.triggers.driver_plugin_down == DriverPluginDown::TaintNode)
    }

    /// Whether a pod in CrashLoopBackOff is deleted at all.
    pub fn reschedules_crash_loops(&self) -> bool {
        self.specs().all(|spec| spec.triggers.crash_loop.action == CrashLoopAction::Reschedule)
    }

    /// Whether that takes an incident before.
    pub fn reschedules_after_incidents_only(&self) -> bool {
        self.specs().any(|spec| spec.triggers.crash_loop.when == CrashLoopWhen::AfterIncident)
    }

    /// How many such deletions per owner, within which time: the fewest and the longest.
    pub fn crash_loop_budget(&self) -> (usize, Duration) {
        let loops = || self.specs().map(|spec| &spec.triggers.crash_loop);
        let max = loops().map(|it| usize::try_from(it.max_deletes).unwrap_or(0)).min().unwrap_or(0);
        (max, loops().map(|it| it.window.get()).max().unwrap_or(Duration::MAX))
    }

    fn specs(&self) -> impl Iterator<Item = &'a ResiliencyPolicySpec> {
        self.policies.iter().map(|policy| &policy.spec)
    }
}

/// Whether a policy by itself would release pods of this kind.
pub fn is_releasable(policy: &ResiliencyPolicy, pod: &PodView) -> bool {
    Effective::alone(policy).releases(pod)
}

/// Whether every part of the selector that is set matches the pod.
pub fn selects(policy: &ResiliencyPolicy, pod: &PodView, namespace_labels: &BTreeMap<String, String>) -> bool {
    let no_labels = BTreeMap::new();
    let labels = pod.pod.metadata.labels.as_ref().unwrap_or(&no_labels);
    policy.spec.selector.matches(labels, namespace_labels, |driver| pod.drivers().any(|used| used == driver))
}
