//! `VolumeHealthPolicy`: which PersistentVolumes are watched, how, and whether a taint is enforced.

use std::collections::BTreeMap;
use std::ops::Deref;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema::{self, empty_default};
use super::selector::LabelSelector;
use super::slim::PersistentVolume;
use super::time::Duration;
use super::volume::{Check, CheckMode, TaintEffect, TaintKey, VolumeState};

/// Which volumes are watched, how, and what a taint does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "bulkhead.dev",
    version = "v1alpha1",
    kind = "VolumeHealthPolicy",
    plural = "volumehealthpolicies",
    shortname = "vhp",
    category = "bulkhead",
    status = "VolumeHealthPolicyStatus",
    doc = "VolumeHealthPolicy says which PersistentVolumes are watched, how, and whether a taint is enforced.",
    derive = "PartialEq",
    printcolumn(name = "PRIORITY", type_ = "integer", json_path = ".spec.priority"),
    printcolumn(name = "ENFORCEMENT", type_ = "string", json_path = ".spec.enforcement"),
    printcolumn(name = "READY", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "REASON", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "VOLUMES", type_ = "integer", json_path = ".status.volumes"),
    printcolumn(name = "UNHEALTHY", type_ = "integer", json_path = ".status.unhealthy"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "INTERVAL", type_ = "string", json_path = ".spec.interval", priority = 1),
    printcolumn(name = "OVERRULED", type_ = "integer", json_path = ".status.overruled", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct VolumeHealthPolicySpec {
    /// Which PersistentVolumes. A volume is selected when every part that is set matches it; {} selects all.
    pub selector: VolumeSelection,
    /// Of several policies that select a volume the one with the highest priority rules it alone; among equals the first
    /// name in byte order.
    #[serde(default)]
    #[schemars(range(min = -1_000_000, max = 1_000_000))]
    pub priority: i32,
    /// Observe only reports; Enforce keeps new claims, attachments and pods off tainted volumes.
    #[serde(default)]
    pub enforcement: Enforcement,
    /// Time between two polled checks of a volume, from 5s to 1h. What the kernel announces is seen at once.
    #[serde(default = "VolumeHealthPolicySpec::default_interval")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('5s') && duration(self) <= duration('1h')").message("must be between 5s and 1h"))]
    pub interval: Duration,
    /// Hysteresis, applied where the samples are taken: reports carry settled states.
    #[serde(default)]
    #[schemars(transform = empty_default)]
    pub thresholds: Thresholds,
    /// Check overrides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 24))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_string()]))]
    pub checks: Vec<CheckOverride>,
    /// Effect per automatic taint key instead of the built-in one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["key".to_string()]))]
    pub effects: Vec<EffectOverride>,
    /// State per reason that a CSI driver gives, instead of the driver's own: for drivers that make too much of something,
    /// or too little.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["driver".to_string(), "reason".to_string()]))]
    pub states: Vec<StateOverride>,
}

/// Which PersistentVolumes. A volume is selected when every part that is set matches it; {} selects all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSelection {
    /// Labels of the PersistentVolume. Absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(merge_strategy = MapMerge::Atomic)]
    pub volume_selector: Option<LabelSelector>,
    /// StorageClass names. Empty: any, also none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 253)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub storage_classes: Vec<String>,
    /// CSI drivers. Empty: any volume, also local and NFS.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 32),
        inner(length(min = 1, max = 63), regex(pattern = r"^[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?$"))
    )]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub drivers: Vec<String>,
}

/// Whether taints do anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Enforcement {
    /// They only report.
    #[default]
    Observe,
    /// They keep new claims, attachments and pods off.
    Enforce,
}

impl Enforcement {
    /// As the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Observe => "Observe",
            Self::Enforce => "Enforce",
        }
    }
}

/// Hysteresis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Thresholds {
    /// Consecutive failed samples before a taint.
    #[serde(default = "Thresholds::default_failure")]
    #[schemars(range(min = 1, max = 10))]
    pub failure: u32,
    /// Consecutive good samples before a taint goes.
    #[serde(default = "Thresholds::default_success")]
    #[schemars(range(min = 1, max = 20))]
    pub success: u32,
    /// Time without any answer before VolumeNotUsable, from 10s to 24h.
    #[serde(default = "Thresholds::default_unreachable_after")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('10s') && duration(self) <= duration('24h')").message("must be between 10s and 24h"))]
    pub unreachable_after: Duration,
    /// Extra time for self-healing before VolumeNotAttached, up to 24h.
    #[serde(default = "Thresholds::default_attach_grace")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('0s') && duration(self) <= duration('24h')").message("must be between 0s and 24h"))]
    pub attach_grace: Duration,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(self.name in ['WriteProbe','Scrub']) || self.mode != 'Passive'").message("WriteProbe and Scrub do I/O: use Active or Disabled").field_path(".mode"))]
pub struct CheckOverride {
    /// Check.
    pub name: Check,
    /// Disabled, Passive (reads state only) or Active (does I/O).
    pub mode: CheckMode,
}

/// One override.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct EffectOverride {
    /// Taint key.
    pub key: TaintKey,
    /// Effect.
    pub effect: TaintEffect,
}

/// Another state for what a driver says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct StateOverride {
    /// CSI driver name.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?$"))]
    pub driver: String,
    /// Reason of check ControllerHealth, as status.observations of a VolumeHealth has it.
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Z][A-Za-z0-9]{0,63}$"))]
    pub reason: String,
    /// Degraded (no taint), Inaccessible or DataLoss. A loss that is recorded stays until a person acknowledges it.
    #[x_kube(validation = Rule::new("self in ['Degraded', 'Inaccessible', 'DataLoss']").message("must be Degraded, Inaccessible or DataLoss: what a driver complains of is not Healthy"))]
    pub state: VolumeState,
}

/// What the policy rules. Written by the controller, on change, counts at most once a minute.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeHealthPolicyStatus {
    /// Generation of spec this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// Ready and, while it holds, Conflict.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Volumes it rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<u32>,
    /// Of these, Unhealthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unhealthy: Option<u32>,
    /// Volumes it selects but another policy rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overruled: Option<u32>,
}

impl VolumeHealthPolicySpec {
    fn default_interval() -> Duration {
        Duration::seconds(60)
    }

    /// How a check runs under this policy.
    pub fn mode(&self, check: Check) -> CheckMode {
        let named = self.checks.iter().find(|named| named.name == check);
        named.map_or(check.default_mode(), |named| named.mode)
    }

    /// What a taint does under this policy.
    pub fn effect(&self, key: TaintKey) -> TaintEffect {
        let named = self.effects.iter().find(|named| named.key == key);
        named.map_or(key.default_effect(), |named| named.effect)
    }

    /// The state that a driver's reason has under this policy, if not the one that the driver says.
    pub fn state(&self, driver: &str, reason: &str) -> Option<VolumeState> {
        let named = self.states.iter().find(|named| named.driver == driver && named.reason == reason);
        named.map(|named| named.state)
    }
}

impl Thresholds {
    fn default_failure() -> u32 {
        2
    }

    fn default_success() -> u32 {
        3
    }

    fn default_unreachable_after() -> Duration {
        Duration::minutes(2)
    }

    fn default_attach_grace() -> Duration {
        Duration::seconds(0)
    }
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            failure: Self::default_failure(),
            success: Self::default_success(),
            unreachable_after: Self::default_unreachable_after(),
            attach_grace: Self::default_attach_grace(),
        }
    }
}

impl VolumeSelection {
    /// Whether every part that is set matches the volume.
    pub fn matches(&self, volume: &PersistentVolume) -> bool {
        let empty = BTreeMap::new();
        let labels = volume.metadata.labels.as_ref().unwrap_or(&empty);
        let class = volume.spec.storage_class_name.as_deref().unwrap_or_default();
        let driver = volume.spec.csi.as_ref().map(|csi| csi.driver.as_str());
        self.volume_selector.as_ref().is_none_or(|selector| selector.matches(labels))
            && (self.storage_classes.is_empty() || self.storage_classes.iter().any(|name| name == class))
            && (self.drivers.is_empty() || driver.is_some_and(|driver| self.drivers.iter().any(|name| name == driver)))
    }
}

/// The policy that rules a volume alone: of those that select it the one with the highest priority, among equals the
/// first name in byte order. One that is being deleted rules nothing. Controller, agents and sidecars all ask here.
/// They are given by reference or shared, and it is returned as it was given.
pub fn ruling<P: Deref<Target = VolumeHealthPolicy>>(
    policies: impl IntoIterator<Item = P>,
    volume: &PersistentVolume,
) -> Option<P> {
    let selecting = policies
        .into_iter()
        .filter(|policy| policy.metadata.deletion_timestamp.is_none() && policy.spec.selector.matches(volume));
    selecting.min_by_key(|policy| (std::cmp::Reverse(policy.spec.priority), policy.name_any()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn policy(name: &str, spec: serde_json::Value) -> VolumeHealthPolicy {
        VolumeHealthPolicy::new(name, serde_json::from_value(spec).unwrap())
    }

    fn volume() -> PersistentVolume {
        serde_json::from_value(json!({
            "metadata": { "name": "v", "labels": { "tier": "1" } },
            "spec": { "storageClassName": "fast", "csi": { "driver": "d", "volumeHandle": "h" } },
        }))
        .unwrap()
    }

    #[test]
    fn every_part_that_is_set_must_match() {
        for (selector, matches) in [
            (json!({}), true),
            (
                json!({ "drivers": ["d"], "storageClasses": ["fast"], "volumeSelector": { "matchLabels": { "tier": "1" } } }),
                true,
            ),
            (json!({ "drivers": ["d"], "storageClasses": ["slow"] }), false),
            (json!({ "drivers": ["e"] }), false),
            (json!({ "volumeSelector": { "matchLabels": { "tier": "2" } } }), false),
        ] {
            let selection: VolumeSelection = serde_json::from_value(selector.clone()).unwrap();
            assert_eq!(selection.matches(&volume()), matches, "{selector}");
        }
        let local: PersistentVolume = serde_json::from_value(json!({ "spec": { "local": { "path": "/x" } } })).unwrap();
        assert!(VolumeSelection::default().matches(&local), "{{}} selects all");
    }

    #[test]
    fn the_highest_priority_rules_alone_and_among_equals_the_first_name() {
        let policies = [
            policy("default", json!({ "selector": {} })),
            policy("b", json!({ "selector": {}, "priority": 5 })),
            policy("a", json!({ "selector": {}, "priority": 5 })),
            policy("none", json!({ "selector": { "drivers": ["e"] }, "priority": 9 })),
        ];
        assert_eq!(ruling(&policies, &volume()).unwrap().name_any(), "a");
        assert!(ruling(&policies[3..], &volume()).is_none());
    }

    #[test]
    fn unless_it_is_said_a_volume_is_looked_at_once_a_minute() {
        assert_eq!(policy("p", json!({ "selector": {} })).spec.interval, Duration::seconds(60));
    }

    #[test]
    fn overrides_hold_and_the_rest_is_built_in() {
        let policy = policy(
            "p",
            json!({
                "selector": {},
                "checks": [{ "name": "ReadProbe", "mode": "Active" }],
                "effects": [{ "key": "VolumeNotAttached", "effect": "NoAttachOrMount" }],
                "states": [{ "driver": "d", "reason": "Slow", "state": "Inaccessible" }],
            }),
        );
        assert_eq!(policy.spec.mode(Check::ReadProbe), CheckMode::Active);
        assert_eq!(policy.spec.mode(Check::Scrub), CheckMode::Disabled);
        assert_eq!(policy.spec.mode(Check::MountPoint), CheckMode::Passive);
        assert_eq!(policy.spec.effect(TaintKey::VolumeNotAttached), TaintEffect::NoAttachOrMount);
        assert_eq!(policy.spec.effect(TaintKey::VolumeNotMounted), TaintEffect::NoEffect);
        assert_eq!(policy.spec.effect(TaintKey::VolumeNotUsable), TaintEffect::NoAttachOrMount);
        assert_eq!(policy.spec.state("d", "Slow"), Some(VolumeState::Inaccessible));
        assert_eq!((policy.spec.state("e", "Slow"), policy.spec.state("d", "Slower")), (None, None));
    }
}
