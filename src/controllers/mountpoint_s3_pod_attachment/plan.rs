//! Which Mountpoint Pod serves which workload, once all that is to be done is done. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::mountpoint_pod::MountpointPod;
use crate::api::mountpoint_s3_pod_attachment::{MountpointS3PodAttachment, WorkloadAttachment};
use crate::api::s3::{self, POD_UID_LABEL, VOLUME_UID_ANNOTATION};
use crate::api::time::{self, Now};

use super::attributes::Attributes;
use super::backoff;
use super::decide::{Patience, Seen, Workload};
use super::mountpoint_pod::Settings;

/// Mountpoint Pod to those it serves, as in the attachment.
pub type Entries = BTreeMap<String, Vec<WorkloadAttachment>>;

/// How it is to be.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The attachment that stays, if there is one: all others are merged into it.
    pub keeper: Option<Arc<MountpointS3PodAttachment>>,
    /// Who serves whom.
    pub entries: Entries,
    /// Why nobody new can be served.
    pub complaint: Option<String>,
    /// Attached workloads that are taken out for their age alone.
    pub stale: BTreeSet<String>,
    /// When to look again though nothing changes.
    pub look_again: Option<Duration>,
}

/// Plans.
pub fn plan(seen: &Seen, settings: &Settings, patience: Patience, now: Now) -> Plan {
    let ordered = in_order(seen);
    let keeper = ordered.iter().find(|it| it.metadata.deletion_timestamp.is_none()).cloned();
    let mut planner = Planner { seen, settings, now, plan: Plan { keeper, ..Plan::default() }, waiting: Vec::new() };
    for (uid, homes) in homes(&ordered) {
        planner.keep_or_move(uid, &homes, patience);
    }
    planner.adopt();
    planner.invite();
    planner.place();
    // Whoever writes them, in whatever order they came: the same list, so that nothing is written for its order.
    for workloads in planner.plan.entries.values_mut() {
        workloads
            .sort_by(|a, b| (a.attachment_time, &a.workload_pod_uid).cmp(&(b.attachment_time, &b.workload_pod_uid)));
    }
    planner.plan
}

/// The oldest with a Mountpoint Pod that is there comes first.
fn in_order(seen: &Seen) -> Vec<Arc<MountpointS3PodAttachment>> {
    let mut ordered = seen.attachments.clone();
    let serves = |it: &MountpointS3PodAttachment| {
        let alive = |name: &String| seen.pods.get(name).is_some_and(|pod| !pod.has_ended() && !pod.is_terminating());
        it.spec.mountpoint_s3_pod_attachments.keys().any(alive)
    };
    ordered.sort_by_cached_key(|it| {
        let created = it.metadata.creation_timestamp.as_ref().map(time::from_k8s);
        (!serves(it), created, it.metadata.name.clone())
    });
    ordered
}

/// Where a workload is named.
#[derive(Clone, Copy)]
struct Home<'a> {
    pod: &'a str,
    since: DateTime<Utc>,
}

fn homes(ordered: &[Arc<MountpointS3PodAttachment>]) -> BTreeMap<&str, Vec<Home<'_>>> {
    let mut homes: BTreeMap<&str, Vec<Home<'_>>> = BTreeMap::new();
    for attachment in ordered {
        for (pod, workloads) in &attachment.spec.mountpoint_s3_pod_attachments {
            for workload in workloads {
                let home = Home { pod, since: workload.attachment_time };
                homes.entry(&workload.workload_pod_uid).or_default().push(home);
            }
        }
    }
    homes
}

/// Whether a workload can stay with a Mountpoint Pod. Better comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    /// It serves, or will.
    Serves,
    /// It is named and not there: it is made, under that name.
    Missing,
    /// It serves nobody any more.
    Lost,
}

/// Someone who needs a Mountpoint Pod.
struct Waiting<'a> {
    uid: &'a str,
    workload: &'a Workload,
    /// The Mountpoint Pod that served it until now.
    instead_of: Option<&'a str>,
}

struct Planner<'a> {
    seen: &'a Seen,
    settings: &'a Settings,
    now: Now,
    plan: Plan,
    waiting: Vec<Waiting<'a>>,
}

impl<'a> Planner<'a> {
    fn keep_or_move(&mut self, uid: &'a str, homes: &[Home<'a>], patience: Patience) {
        let Some(first) = homes.first().copied() else { return };
        let Some(workload) = self.seen.workloads.get(uid) else {
            return self.keep_until_stale(uid, first, patience);
        };
        if !workload.is_live() {
            return;
        }
        let best = homes.iter().copied().min_by_key(|home| self.fit(home.pod, workload)).unwrap_or(first);
        match self.fit(best.pod, workload) {
            Fit::Serves | Fit::Missing => self.enter(best.pod.to_owned(), uid, best.since),
            // It ends anyhow; no Mountpoint Pod is made for that.
            Fit::Lost if workload.pod.is_terminating() => self.enter(best.pod.to_owned(), uid, best.since),
            Fit::Lost if !self.seen.may_move(best.pod, best.since, workload) => {
                self.enter(best.pod.to_owned(), uid, best.since);
            }
            Fit::Lost => {
                let instead_of = self.seen.pods.get(best.pod).map(|pod| pod.uid());
                self.waiting.push(Waiting { uid, workload, instead_of });
            }
        }
    }

    /// A workload that is not there and was not seen to go may be one that is not known here yet.
    fn keep_until_stale(&mut self, uid: &str, home: Home<'_>, patience: Patience) {
        if self.seen.departed.contains(uid) {
            return;
        }
        let age = (self.now.wall - home.since).to_std().unwrap_or_default();
        if age >= patience.stale_after {
            self.plan.stale.insert(uid.to_owned());
            return;
        }
        self.look_again(patience.stale_after - age);
        self.enter(home.pod.to_owned(), uid, home.since);
    }

    fn fit(&self, pod: &str, workload: &Workload) -> Fit {
        let Some(pod) = self.seen.pods.get(pod) else { return Fit::Missing };
        let is_lost = pod.has_ended()
            || pod.is_terminating() && !workload.pod.is_terminating()
            // One that runs holds what is mounted until it ends; one that starts would find nothing, or an older volume.
            || workload.is_starting() && (pod.needs_unmount() || self.is_of_older(pod));
        if is_lost { Fit::Lost } else { Fit::Serves }
    }

    /// Whether it mounts a volume of this name that was before.
    fn is_of_older(&self, pod: &MountpointPod) -> bool {
        let (made_for, now) = (pod.annotation(VOLUME_UID_ANNOTATION), self.seen.volume_uid());
        made_for.is_some() && now.is_some() && made_for != now
    }

    fn look_again(&mut self, after: Duration) {
        self.plan.look_again = Some(self.plan.look_again.map_or(after, |before| before.min(after)));
    }

    fn enter(&mut self, pod: String, uid: &str, since: DateTime<Utc>) {
        let workloads = self.plan.entries.entry(pod).or_default();
        workloads.push(WorkloadAttachment { workload_pod_uid: uid.to_owned(), attachment_time: since });
    }

    fn is_settled(&self, uid: &str) -> bool {
        let is_in = |workloads: &Vec<WorkloadAttachment>| workloads.iter().any(|it| it.workload_pod_uid == uid);
        self.waiting.iter().any(|it| it.uid == uid) || self.plan.entries.values().any(is_in)
    }

    /// Workloads that run and that nothing names use a Mountpoint Pod of ours, if one can have mounted them; else they have a
    /// mount of version 1, which goes on beside those that come.
    fn adopt(&mut self) {
        let seen = self.seen;
        let runs = |workload: &Workload| workload.wants && workload.is_live() && !workload.is_starting();
        for (uid, workload) in seen.workloads.iter().filter(|(_, workload)| runs(workload)) {
            if let Some(pod) = self.adopter(uid, workload).filter(|_| !self.is_settled(uid)) {
                self.enter(pod, uid, self.second());
            }
        }
    }

    /// The pod that was made for it; else the newest that was there before it began.
    fn adopter(&self, uid: &str, workload: &Workload) -> Option<String> {
        let is_alive = |pod: &&Arc<MountpointPod>| {
            pod.mount().as_ref() == Some(&self.seen.mount)
                && pod.annotation(VOLUME_UID_ANNOTATION) == self.seen.volume_uid()
                && !pod.has_ended()
                && !pod.is_terminating()
                && !pod.needs_unmount()
        };
        let began = workload.began();
        let created = |pod: &MountpointPod| pod.metadata.creation_timestamp.as_ref().map(time::from_k8s);
        let is_its_own = |pod: &MountpointPod| pod.label(POD_UID_LABEL) == Some(uid);
        let can_serve =
            |pod: &&Arc<MountpointPod>| is_its_own(pod) || began.is_some_and(|began| created(pod) <= Some(began));
        let rank = |pod: &&Arc<MountpointPod>| (is_its_own(pod), created(pod), pod.name().to_owned());
        let able = self.seen.pods.values().filter(is_alive).filter(can_serve);
        able.max_by_key(rank).map(|pod| pod.name().to_owned())
    }

    /// Workloads that start and that nothing names.
    fn invite(&mut self) {
        let seen = self.seen;
        for (uid, workload) in &seen.workloads {
            if workload.wants && workload.is_starting() && !self.is_settled(uid) {
                self.waiting.push(Waiting { uid, workload, instead_of: None });
            }
        }
    }

    /// All who wait get the same Mountpoint Pod, if need be a new one.
    fn place(&mut self) {
        let mut waiting = std::mem::take(&mut self.waiting);
        if waiting.is_empty() {
            return;
        }
        waiting.sort_by_cached_key(|it| {
            (it.workload.pod.metadata.creation_timestamp.as_ref().map(time::from_k8s), it.uid)
        });
        let host = match self.host() {
            Some(host) => host,
            None if !backoff::pause(self.seen, self.now).is_zero() => {
                self.look_again(backoff::pause(self.seen, self.now));
                return self.stay(&waiting);
            }
            None => match self.new_name(&waiting) {
                Ok(name) => name,
                Err(complaint) => {
                    self.plan.complaint = Some(complaint);
                    return self.stay(&waiting);
                }
            },
        };
        for it in waiting {
            self.enter(host.clone(), it.uid, self.second());
        }
    }

    /// The oldest Mountpoint Pod that takes workloads; else one that is about to be made.
    fn host(&self) -> Option<String> {
        let version = &self.settings.driver_version;
        let volume = self.seen.volume_uid()?;
        let takes = |pod: &&Arc<MountpointPod>| pod.takes_workloads(version, volume) && self.is_known(pod);
        let age = |pod: &&Arc<MountpointPod>| {
            (pod.metadata.creation_timestamp.as_ref().map(time::from_k8s), pod.name().to_owned())
        };
        let present = self.seen.pods.values().filter(takes).min_by_key(age).map(|pod| pod.name().to_owned());
        present.or_else(|| {
            let is_coming = |(name, workloads): &(&String, &Vec<WorkloadAttachment>)| {
                let lives = |it: &WorkloadAttachment| {
                    self.seen.workloads.get(&it.workload_pod_uid).is_some_and(|workload| {
                        !workload.pod.is_terminating() && self.seen.may_move(name, it.attachment_time, workload)
                    })
                };
                !self.seen.pods.contains_key(*name) && workloads.iter().any(lives)
            };
            self.plan.entries.iter().find(is_coming).map(|(name, _)| name.clone())
        })
    }

    /// Whether it is of this mount: a name alone may be anyone's.
    fn is_known(&self, pod: &MountpointPod) -> bool {
        pod.mount().as_ref() == Some(&self.seen.mount)
    }

    /// A name that no pod has. The same from whoever asks in the same state.
    fn new_name(&self, waiting: &[Waiting<'_>]) -> Result<String, String> {
        let volume = self.seen.volume.as_ref().ok_or("the PersistentVolume is gone: make it again")?;
        Attributes::of(volume)?;
        let uid = waiting.first().map(|it| it.uid).unwrap_or_default();
        let name = |instead_of| s3::mountpoint_pod_name(uid, &self.seen.mount.persistent_volume_name, instead_of);
        let mut found = name(waiting.iter().find_map(|it| it.instead_of));
        for _ in 0..=self.seen.pods.len() {
            match self.seen.pods.get(&found) {
                Some(taken) => found = name(Some(taken.uid())),
                None => break,
            }
        }
        Ok(found)
    }

    /// None is made now: those that are attached stay where they were.
    fn stay(&mut self, waiting: &[Waiting<'a>]) {
        for it in waiting {
            let home = self.seen.attachments.iter().find_map(|attachment| {
                let pods = attachment.spec.mountpoint_s3_pod_attachments.iter();
                pods.flat_map(|(pod, all)| all.iter().map(move |one| (pod, one)))
                    .find(|(_, one)| one.workload_pod_uid == it.uid)
            });
            if let Some((pod, one)) = home {
                self.enter(pod.clone(), it.uid, one.attachment_time);
            }
        }
    }

    /// Upstream's programs write no fractions.
    fn second(&self) -> DateTime<Utc> {
        use chrono::SubsecRound as _;
        self.now.wall.trunc_subsecs(0)
    }
}

/// How old an object is.
pub fn age(created: Option<&Time>, now: Now) -> Duration {
    created.and_then(|created| (now.wall - time::from_k8s(created)).to_std().ok()).unwrap_or_default()
}
