//! What samples become: a streak per volume and check, counted against the thresholds of the policy, and the finding
//! that the report carries. Pure. A restart goes on from the report: what it says stays until enough good samples.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use super::super::probes::Seen;
use crate::api::conditions;
use crate::api::hysteresis::{Sample, Settled, Streak, Trouble};
use crate::api::node_volume_report::ReportedVolume;
use crate::api::text::printable;
use crate::api::time::{self, Now};
use crate::api::volume::{Check, Finding, VolumeState};
use crate::api::volume_health_policy::Thresholds;

/// Samples that say the same are counted this far apart: many looks in a moment are one.
pub const APART: Duration = Duration::from_secs(1);
/// Limits of the API.
const MESSAGE_MAX: usize = 512;
const PODS_MAX: usize = 16;

/// What takes the samples of a check. Two may make the same check: each counts for itself, and what one of them found the
/// other cannot take back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// What can be read without waiting.
    Passive,
    /// What a child process found out.
    Child,
    /// What the node plugin of the CSI driver says.
    Plugin,
}

/// One look at one check of a volume. Causes may be a driver's own words.
#[derive(Clone, Debug)]
pub struct Look {
    /// What was looked at.
    pub check: Check,
    /// What it gave.
    pub sample: Sample<String>,
    /// Uids of the pods it touches.
    pub pods: Vec<String>,
}

impl From<Seen> for Look {
    fn from(Seen { check, sample, pods }: Seen) -> Self {
        let named = |Trouble { state, reason, message }: Trouble| Trouble { state, reason: reason.to_owned(), message };
        let sample = match sample {
            Sample::Good => Sample::Good,
            Sample::Bad(trouble) => Sample::Bad(named(trouble)),
            Sample::NoAnswer(trouble) => Sample::NoAnswer(named(trouble)),
            Sample::Unknown => Sample::Unknown,
        };
        Self { check, sample, pods }
    }
}

/// All volumes.
#[derive(Clone, Debug, Default)]
pub struct Settling {
    volumes: BTreeMap<String, Volume>,
    /// What an earlier process said of volumes that this one has not seen yet.
    told: BTreeMap<String, ReportedVolume>,
}

#[derive(Clone, Debug, Default)]
struct Volume {
    uid: String,
    /// Whether anything was ever known of it, also to an earlier process: else it is neither good nor bad.
    known: bool,
    checks: BTreeMap<(Check, Origin), Tally>,
}

#[derive(Clone, Debug, Default)]
struct Tally {
    streak: Streak<String>,
    /// The last sample that was counted: when, and whether it was good.
    counted: Option<(Instant, bool)>,
    /// Whether the last look told nothing: another one soon would neither.
    untold: bool,
    /// Uids of the pods that what is settled touches.
    pods: Vec<String>,
}

impl Settling {
    /// Goes on where the report of an earlier process stands.
    pub fn from_report(volumes: &[ReportedVolume]) -> Self {
        let told = volumes.iter().map(|volume| (volume.name.clone(), volume.clone())).collect();
        Self { told, ..Self::default() }
    }

    /// A volume is here. Another one of the same name begins anew; what was said before it was made is not about it.
    /// `makers` tells who makes a check: until each of them has seen enough good, what was said stays.
    pub fn enter(
        &mut self,
        name: &str,
        uid: &str,
        made: Option<DateTime<Utc>>,
        makers: impl Fn(Check) -> &'static [Origin],
    ) {
        if self.volumes.get(name).is_some_and(|volume| volume.uid == uid) {
            return;
        }
        let told = self.told.remove(name);
        let findings = told.iter().flat_map(|told| &told.findings);
        let of_it = findings.filter(|finding| made.is_none_or(|made| finding.since >= made));
        let tallies = |finding: &Finding| {
            let (check, tally) = (finding.check, Tally::from_report(finding));
            makers(check).iter().map(move |origin| ((check, *origin), tally.clone()))
        };
        let checks = of_it.flat_map(tallies).collect();
        let known = told.is_some_and(|told| told.state != VolumeState::Unknown);
        self.volumes.insert(name.to_owned(), Volume { uid: uid.to_owned(), known, checks });
    }

    /// Forgets all volumes but these, those of earlier processes too.
    pub fn keep(&mut self, is_here: impl Fn(&str) -> bool) {
        self.volumes.retain(|name, _| is_here(name));
        self.told.clear();
    }

    /// Forgets the checks of a volume that are not made any more.
    pub fn keep_checks(&mut self, name: &str, is_made: impl Fn(Check) -> bool) {
        if let Some(volume) = self.volumes.get_mut(name) {
            volume.checks.retain(|(check, _), _| is_made(*check));
        }
    }

    /// Counts what one origin found out about a volume now. Where it has nothing to look at any more all is well: `all`
    /// says that it told of everything that it looks at.
    pub fn add(&mut self, name: &str, origin: Origin, looks: Vec<Look>, all: bool, thresholds: &Thresholds, now: Now) {
        let Some(volume) = self.volumes.get_mut(name) else { return };
        let named: Vec<_> = looks.iter().map(|look| look.check).collect();
        for ((check, _), tally) in volume.checks.iter_mut().filter(|((_, its), _)| all && *its == origin) {
            if !named.contains(check) {
                let gone = Look { check: *check, sample: Sample::Good, pods: Vec::new() };
                tally.add(gone, thresholds, now);
            }
        }
        for look in looks {
            let tally = volume.checks.entry((look.check, origin)).or_default();
            tally.add(look, thresholds, now);
            volume.known |= tally.streak.is_known();
        }
    }

    /// Whether the next samples of that origin may change what is settled about a volume. Silence is waited out, and so is
    /// what cannot be told.
    pub fn is_wavering(&self, name: &str, origin: Origin) -> bool {
        let checks = self.volumes.get(name).into_iter().flat_map(|volume| &volume.checks);
        checks
            .filter(|((_, its), _)| *its == origin)
            .any(|(_, tally)| tally.counted.is_some() && !tally.untold && tally.streak.is_wavering())
    }

    /// What is settled about a volume, in the order of the checks: of each the worst, and the first of equals.
    pub fn findings(&self, name: &str) -> Vec<Finding> {
        let mut worst = BTreeMap::<Check, Finding>::new();
        let checks = self.volumes.get(name).into_iter().flat_map(|volume| &volume.checks);
        for finding in checks.filter_map(|((check, _), tally)| tally.finding(*check)) {
            let other = worst.get(&finding.check).map(|other| (other.state, std::cmp::Reverse(other.since)));
            if other.is_none_or(|other| (finding.state, std::cmp::Reverse(finding.since)) > other) {
                worst.insert(finding.check, finding);
            }
        }
        worst.into_values().collect()
    }

    /// Whether anything was ever known of it: else it is neither good nor bad.
    pub fn is_known(&self, name: &str) -> bool {
        self.volumes.get(name).is_some_and(|volume| volume.known)
    }
}

impl Tally {
    fn from_report(finding: &Finding) -> Self {
        let (reason, message) = (finding.reason.clone(), finding.message.clone().unwrap_or_default());
        let trouble = Trouble { state: finding.state, reason, message };
        let streak = Streak::from_report(Settled { trouble, since: finding.since });
        Self { streak, pods: finding.pod_uids.clone(), ..Self::default() }
    }

    fn add(&mut self, look: Look, thresholds: &Thresholds, now: Now) {
        self.untold = look.sample == Sample::Unknown;
        let direction = match &look.sample {
            Sample::Good => Some(true),
            Sample::Bad(_) => Some(false),
            Sample::NoAnswer(_) => None,
            Sample::Unknown => return,
        };
        let too_soon = |(at, was): (Instant, bool)| Some(was) == direction && now.mono < at + APART;
        if !self.counted.is_some_and(too_soon) {
            self.streak.add(look.sample, thresholds, now.wall);
            self.counted = direction.map(|direction| (now.mono, direction));
        }
        // While it gets better, those that it touched are still told.
        if direction != Some(true) {
            self.pods = look.pods;
            self.pods.sort();
            self.pods.dedup();
            self.pods.truncate(PODS_MAX);
        }
    }

    fn finding(&self, check: Check) -> Option<Finding> {
        let Settled { trouble: Trouble { state, reason, message }, since } = self.streak.settled()?;
        let mut message = printable(message);
        conditions::truncate(&mut message, MESSAGE_MAX);
        Some(Finding {
            check,
            state: *state,
            reason: reason.clone(),
            message: Some(message).filter(|message| !message.is_empty()),
            since: time::stamp(*since),
            pod_uids: self.pods.clone(),
        })
    }
}

#[cfg(test)]
#[path = "settle_tests.rs"]
mod tests;
