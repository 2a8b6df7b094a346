//! What this process knows of the volumes: the samples of each, counted. After a restart it goes on from what our own
//! report says.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::api::driver_report::DriverReportStatus;
use crate::api::hysteresis::{Sample, Settled, Streak, Trouble};
use crate::api::time::Now;
use crate::api::volume_health_policy::Thresholds;

use super::decide::{BACKEND_DELETED, Cause, Problem, Subject, Watched};

/// All volumes that a policy selects, by handle.
pub type Volumes = BTreeMap<String, Watched>;

/// What is known.
#[derive(Debug, Default)]
pub struct Memory {
    volumes: BTreeMap<String, Volume>,
}

#[derive(Debug, Default)]
struct Volume {
    streaks: BTreeMap<Subject, Streak<Cause>>,
    /// When it was asked about last.
    asked: Option<Instant>,
    /// When something was told of it last.
    told: Option<Instant>,
    /// The last time nobody answered.
    silent: bool,
}

/// Something that is wrong, settled.
#[derive(Clone, Debug, PartialEq)]
pub struct Row<'a> {
    /// The volume.
    pub handle: &'a str,
    /// Node it holds for; absent: everywhere.
    pub node: Option<&'a str>,
    /// What, and since when.
    pub settled: &'a Settled<Problem>,
}

impl Memory {
    /// Goes on where the report stands.
    pub fn from_report(status: &DriverReportStatus) -> Self {
        let mut memory = Self::default();
        for group in &status.abnormal {
            let cause = Cause { reason: group.reason.clone(), raw_status: group.raw_status };
            let message = group.message.clone().unwrap_or_default();
            let trouble = Trouble { state: group.state, reason: cause, message };
            let subject = group.node.clone().map_or(Subject::Health, Subject::Published);
            for handle in &group.volume_handles {
                let settled = Settled { trouble: trouble.clone(), since: group.since };
                let volume = memory.volumes.entry(handle.clone()).or_default();
                volume.streaks.insert(subject.clone(), Streak::from_report(settled));
            }
        }
        memory
    }

    /// Forgets what is not watched any more.
    pub fn keep(&mut self, volumes: &Volumes) {
        self.volumes.retain(|handle, _| volumes.contains_key(handle));
        for (handle, watched) in volumes {
            let volume = self.volumes.entry(handle.clone()).or_default();
            volume.streaks.retain(|subject, _| match subject {
                Subject::Health => watched.health,
                Subject::Published(node) => watched.attached.contains_key(node),
            });
        }
    }

    /// A volume was asked about: counts what that gave. Returns whether what is settled changed.
    pub fn add(
        &mut self,
        handle: &str,
        thresholds: &Thresholds,
        samples: Vec<(Subject, Sample<Cause>)>,
        now: Now,
    ) -> bool {
        let volume = self.volumes.entry(handle.to_owned()).or_default();
        volume.asked = Some(now.mono);
        volume.silent = samples.iter().any(|(_, sample)| matches!(sample, Sample::NoAnswer(_)));
        if samples.iter().any(|(_, sample)| matches!(sample, Sample::Good | Sample::Bad(_))) {
            volume.told = Some(now.mono);
        }
        let mut changed = false;
        for (subject, sample) in samples {
            let streak = volume.streaks.entry(subject).or_default();
            changed |= streak.add(sample.clone(), &stricter(thresholds, &sample), now.wall);
        }
        changed
    }

    /// Whether something is wrong with its health, or may be.
    pub fn suspects(&self, handle: &str) -> bool {
        let streak = self.volumes.get(handle).and_then(|volume| volume.streaks.get(&Subject::Health));
        streak.is_some_and(|streak| streak.settled().is_some() || streak.is_wavering())
    }

    /// The order in which volumes are asked about: those that are silent last, of these the longest waiting first.
    pub fn order(&self, handle: &str) -> (bool, Option<Instant>) {
        let volume = self.volumes.get(handle);
        volume.map_or((false, None), |volume| (volume.silent, volume.asked))
    }

    /// When something was told of the volume about which that is longest ago.
    pub fn oldest(&self) -> Option<Instant> {
        self.volumes.values().filter_map(|volume| volume.told).min()
    }

    /// What is wrong now.
    pub fn rows<'a>(&'a self, volumes: &'a Volumes, now: Now) -> impl Iterator<Item = Row<'a>> {
        self.volumes.iter().flat_map(move |(handle, volume)| {
            let grace = volumes.get(handle).map(|watched| watched.thresholds.attach_grace.get()).unwrap_or_default();
            volume.streaks.iter().filter_map(move |(subject, streak)| {
                let settled = streak.settled()?;
                let node = match subject {
                    Subject::Health => None,
                    Subject::Published(node) => Some(node.as_str()),
                };
                let healing = node.is_some() && now.wall - settled.since < chrono::TimeDelta::from_std(grace).ok()?;
                (!healing).then_some(Row { handle, node, settled })
            })
        })
    }
}

/// That a volume is gone for ever is not believed at once, whatever the policy says.
fn stricter(thresholds: &Thresholds, sample: &Sample<Cause>) -> Thresholds {
    let gone = matches!(sample, Sample::Bad(trouble) if trouble.reason.reason == BACKEND_DELETED);
    let failure = if gone { thresholds.failure.max(2) } else { thresholds.failure };
    Thresholds { failure, ..thresholds.clone() }
}
