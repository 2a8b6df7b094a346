//! From what is said to the taints: one entry per key, whoever says it. Pure.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};

use crate::api::conditions;
use crate::api::text::printable;
use crate::api::time;
use crate::api::volume::{Check, NOT_ATTACHED, NOT_MOUNTED, NOT_USABLE, Source, TaintEffect, TaintKey, VolumeState};
use crate::api::volume_health::{Observation, SuppressionInForce, TaintValue, VolumeHealthSpec, VolumeTaint};
use crate::api::volume_health_policy::VolumeHealthPolicySpec;

/// The longest that a suppression may last, from when it was first seen.
const SUPPRESSION_MAX: TimeDelta = TimeDelta::hours(168);
/// Nodes that a taint may name; of more it says nothing, which means everywhere.
const NODES: usize = 16;
/// The reason of a taint that a person set.
const MANUAL: &str = "ManualTaint";

/// The taint that an observation leads to.
pub fn key_of(observation: &Observation) -> Option<TaintKey> {
    match observation.state {
        VolumeState::DataLoss => Some(TaintKey::VolumeNotUsable),
        VolumeState::Inaccessible => Some(match observation.check {
            Check::PublishedNodes => TaintKey::VolumeNotAttached,
            Check::MountPoint | Check::Overmount | Check::CSIMounts | Check::FUSE => TaintKey::VolumeNotMounted,
            _ => TaintKey::VolumeNotUsable,
        }),
        VolumeState::Healthy | VolumeState::Degraded | VolumeState::Unknown => None,
    }
}

/// What the taints are merged from.
pub struct Sources<'a> {
    /// What a person wants.
    pub spec: &'a VolumeHealthSpec,
    /// The ruling policy; without one only people taint.
    pub policy: Option<&'a VolumeHealthPolicySpec>,
    /// What is said, the worst first.
    pub observations: &'a [Observation],
    /// What is lost was acknowledged.
    pub loss_is_acknowledged: bool,
    /// The taints of the record.
    pub before: &'a [VolumeTaint],
    /// The suppressions in force.
    pub suppressed: &'a BTreeSet<&'a str>,
}

/// Why a key is tainted, as one source sees it.
struct Cause {
    source: Source,
    effect: TaintEffect,
    reason: String,
    message: Option<String>,
    since: DateTime<Utc>,
    /// Empty: everywhere.
    nodes: BTreeSet<String>,
}

/// The taints that the volume should have. One that stays keeps its time; it changes hands when the source that set it
/// has taken its word back and another has not, or when a program says what only a person has said so far.
pub fn merge(sources: &Sources, now: DateTime<Utc>) -> Vec<VolumeTaint> {
    let mut causes: BTreeMap<(usize, String), Vec<Cause>> = BTreeMap::new();
    let mut add = |key: &str, cause| causes.entry((rank(key), key.to_owned())).or_default().push(cause);
    for (key, cause) in automatic(sources) {
        if !sources.suppressed.contains(key.as_str()) {
            add(key.as_str(), cause);
        }
    }
    for manual in &sources.spec.manual_taints {
        let cause = Cause {
            source: Source::Manual,
            effect: manual.effect.unwrap_or(TaintEffect::NoEffect),
            reason: MANUAL.into(),
            message: Some(printable(&manual.reason)),
            since: now,
            nodes: BTreeSet::new(),
        };
        add(&manual.key, cause);
    }
    causes.into_iter().filter_map(|((_, key), causes)| taint(key, &causes, sources.before, now)).collect()
}

/// The gravest first.
fn rank(key: &str) -> usize {
    [NOT_USABLE, NOT_MOUNTED, NOT_ATTACHED].iter().position(|it| *it == key).unwrap_or(usize::MAX)
}

fn automatic(sources: &Sources) -> Vec<(TaintKey, Cause)> {
    let mut found: Vec<(TaintKey, Cause)> = Vec::new();
    let Some(policy) = sources.policy else { return found };
    for said in sources.observations {
        let Some(key) = key_of(said) else { continue };
        if said.state == VolumeState::DataLoss && sources.loss_is_acknowledged {
            continue;
        }
        match found.iter_mut().find(|(of, cause)| (*of, cause.source) == (key, said.source)) {
            Some((_, cause)) => {
                cause.since = cause.since.min(said.first_seen);
                cause.nodes = joined(&cause.nodes, &nodes_of(said));
            }
            None => found.push((
                key,
                Cause {
                    source: said.source,
                    effect: policy.effect(key),
                    reason: said.reason.clone(),
                    message: said.message.clone(),
                    since: said.first_seen,
                    nodes: nodes_of(said),
                },
            )),
        }
    }
    found
}

fn nodes_of(said: &Observation) -> BTreeSet<String> {
    Some(said.node.clone()).filter(|node| !node.is_empty()).into_iter().collect()
}

/// Everywhere and somewhere is everywhere.
fn joined(a: &BTreeSet<String>, b: &BTreeSet<String>) -> BTreeSet<String> {
    if a.is_empty() || b.is_empty() { BTreeSet::new() } else { a | b }
}

fn taint(key: String, causes: &[Cause], before: &[VolumeTaint], now: DateTime<Utc>) -> Option<VolumeTaint> {
    let known = before.iter().find(|taint| taint.key == key);
    // A person's remark hides no real failure, nor spreads it to nodes that are well.
    let is_automatic = causes.iter().any(|cause| cause.source != Source::Manual);
    let speaking = || causes.iter().filter(|cause| !is_automatic || cause.source != Source::Manual);
    let holder = known.and_then(|known| speaking().find(|cause| cause.source == known.source));
    let cause = holder.or_else(|| speaking().min_by_key(|cause| (cause.since, cause.source)))?;
    let everywhere = speaking().any(|cause| cause.nodes.is_empty());
    let nodes: BTreeSet<_> = speaking().flat_map(|cause| &cause.nodes).cloned().collect();
    let mut message = cause.message.clone();
    message.iter_mut().for_each(|message| conditions::truncate(message, 1024));
    Some(VolumeTaint {
        key,
        value: TaintValue::True,
        // The strictest holds: a person's remark does not open what a dead disk has closed.
        effect: causes.iter().map(|cause| cause.effect).max(),
        source: cause.source,
        reason: cause.reason.clone(),
        message: message.filter(|message| !message.is_empty()),
        time_added: known.map_or(time::stamp(now), |known| known.time_added),
        nodes: if everywhere || nodes.len() > NODES { Vec::new() } else { nodes.into_iter().collect() },
    })
}

/// The suppressions of the spec with their ends. One that has ended stays listed while the spec names it, or it would
/// begin anew; nor does it grow while it is named: to prolong it is to take it out and put it in again.
pub fn suppressions(
    spec: &VolumeHealthSpec,
    before: &[SuppressionInForce],
    now: DateTime<Utc>,
) -> Vec<SuppressionInForce> {
    let latest = now.checked_add_signed(SUPPRESSION_MAX).unwrap_or(now);
    let end = |key: &str| before.iter().find(|it| it.key == key).map_or(latest, |known| known.effective_until);
    let listed = spec.suppress_taints.iter().map(|wanted| SuppressionInForce {
        key: wanted.key.clone(),
        effective_until: time::stamp(wanted.until.min(end(&wanted.key))),
    });
    let mut listed: Vec<_> = listed.collect();
    listed.sort_by(|a, b| a.key.cmp(&b.key));
    listed
}
