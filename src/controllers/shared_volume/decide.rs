//! The next step for one SharedVolume: a chain of named checks, first match wins. Pure.
//!
//! What is written is read back before anything follows from it: a Service is seen before endpoints name it, endpoints are
//! seen before the status tells of them, and the status has the address before anybody is told it. So a crash between any
//! two writes converges.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;
use kube::ResourceExt;

use crate::api::provider_volume::Observation;
use crate::api::shared_volume::{ProbeType, SharedVolume, SharedVolumeMode, SharedVolumePhase, SharedVolumeStatus};
use crate::api::slim::PersistentVolumeClaim;
use crate::api::slim::network::{EndpointSlice, Endpoints, ServerPod, Service};
use crate::api::time::Now;

pub use super::memory::{Acknowledged, Leaving, Memory, PublishFailure, Refusal, Refused};
use super::status::{self, Finding, Report};
use super::{claim, deletion, endpoints, objects, serve, slices};

/// What a pass sees.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The SharedVolume.
    pub shared_volume: Arc<SharedVolume>,
    /// Others of the same namespace with the same claim, or the same [`service_name`](super::objects::service_name).
    pub rivals: Vec<Arc<SharedVolume>>,
    /// The claim of that name.
    pub claim: Option<Arc<PersistentVolumeClaim>>,
    /// The Service of that name, whoever made it.
    pub service: Option<Arc<Service>>,
    /// All slices that name the Service, ours and others, and all that carry our label with our name.
    pub slices: Vec<Arc<EndpointSlice>>,
    /// The Endpoints of the Service's name, whoever made them.
    pub endpoints: Option<Arc<Endpoints>>,
    /// With `backend.pods`: those that its labels select.
    pub pods: Vec<Arc<ServerPod>>,
    /// With `backend.provider`: what the provider says.
    pub observation: Option<Observation>,
    /// Nodes with an active NodeFence.
    pub fenced_nodes: BTreeSet<String>,
    /// Those of them that are not proved to be cut off from all that the plan names.
    pub unproved_nodes: BTreeSet<String>,
    /// What the prober knows.
    pub answers: BTreeMap<Target, Answer>,
    /// What this process remembers: [`Decision::memory`] of the pass before.
    pub memory: Memory,
    /// The provider's times, or those of the flags.
    pub intervals: Intervals,
    /// Domain of the cluster's DNS.
    pub cluster_domain: String,
}

/// Where a server is asked, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// Address.
    pub address: IpAddr,
    /// Port.
    pub port: u16,
    /// How.
    pub probe: ProbeType,
}

/// What a server answered so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing yet.
    Pending {
        /// When it was asked first.
        since: Instant,
    },
    /// It serves.
    Serving {
        /// Since its first answer of this series.
        since: Instant,
        /// The same on the wall clock.
        at: DateTime<Utc>,
    },
    /// It does not.
    Failing {
        /// Since the first failure of this series.
        since: Instant,
        /// Failures in a row.
        failures: u32,
        /// What went wrong last.
        error: String,
    },
}

/// Times of a pass.
#[derive(Clone, Copy, Debug)]
pub struct Intervals {
    /// Age at which the state of a volume of a provider is verified anew.
    pub cache_expiry: Duration,
    /// Pace at which what was created is looked for.
    pub create_poll: Duration,
    /// Time after which not finding it is an error.
    pub create_wait: Duration,
}

impl Default for Intervals {
    /// As the flags have it.
    fn default() -> Self {
        Self {
            cache_expiry: Duration::from_secs(60),
            create_poll: Duration::from_secs(1),
            create_wait: Duration::from_secs(20),
        }
    }
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Write the status at the resourceVersion that was seen.
    Record {
        /// As it was seen.
        before: Arc<SharedVolume>,
        /// The status that it should have.
        status: Box<SharedVolumeStatus>,
    },
    /// Give the SharedVolume our finalizer.
    AddFinalizer,
    /// Take it.
    RemoveFinalizer,
    /// Create the Service (POST, never an apply: one that is there must be a conflict), or apply these fields of it by
    /// force. The desired Service carries the uid of the one that was seen.
    ApplyService {
        /// The fields that we want.
        service: Box<core::Service>,
        /// Whether there is none.
        create: bool,
    },
    /// Take what apply cannot take: replace `spec.ports` and remove `spec.selector`, at the resourceVersion that was seen.
    RepairService {
        /// As it was seen.
        before: Arc<Service>,
        /// Its ports.
        ports: Vec<core::ServicePort>,
    },
    /// Delete the Service with this uid.
    DeleteService(Arc<Service>),
    /// Take our label from the Service, at the resourceVersion that was seen.
    DisownService(Arc<Service>),
    /// Create a slice, or replace it: then it carries the uid and resourceVersion that were seen.
    WriteSlice {
        /// How it is to be.
        slice: Box<discovery::EndpointSlice>,
        /// As it was seen.
        before: Option<Arc<EndpointSlice>>,
    },
    /// Delete the slice with this uid and resourceVersion.
    DeleteSlice(Arc<EndpointSlice>),
    /// Create the Endpoints, or replace them: then they carry the uid and resourceVersion that were seen.
    WriteEndpoints {
        /// How they are to be.
        endpoints: Box<core::Endpoints>,
        /// As they were seen.
        before: Option<Arc<Endpoints>>,
    },
    /// Delete the Endpoints with this uid and resourceVersion.
    DeleteEndpoints(Arc<Endpoints>),
    /// Tell the provider the mount endpoint.
    Publish {
        /// SharedVolumeProvider.
        provider: String,
        /// Id of the volume's namespace there.
        namespace: String,
        /// Id of the volume there.
        volume: String,
        /// The mount endpoint; empty un-publishes.
        endpoint: String,
    },
    /// Give the claim its mount endpoint, or take it, at the resourceVersion that was seen.
    AnnotateClaim {
        /// As it was seen.
        claim: Arc<PersistentVolumeClaim>,
        /// The mount endpoint.
        endpoint: Option<String>,
    },
    /// Read Service, slices and Endpoints live: the next pass must see what is there, also if a watch lags.
    Verify,
}

/// Something that people are told, once the effects of the decision have succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// In a word.
    pub reason: &'static str,
    /// Whether something is wrong.
    pub is_warning: bool,
    /// In a sentence.
    pub text: String,
}

/// What to do next, and why.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// Which check decided.
    pub reason: &'static str,
    /// What to do, in order; after one that fails nothing more is done.
    pub effects: Vec<Effect>,
    /// Servers that are to be asked until the next pass.
    pub probes: Vec<Target>,
    /// When time alone may change the decision.
    pub look_again: Option<Duration>,
    /// What is to be remembered.
    pub memory: Memory,
    /// What people are told.
    pub notes: Vec<Note>,
    /// Whether there is nothing left to do: for the provider's own measure of a pass.
    pub is_settled: bool,
}

impl Seen {
    /// What is recorded.
    pub fn status(&self) -> Option<&SharedVolumeStatus> {
        self.shared_volume.status.as_ref()
    }
}

impl Note {
    /// Something was done.
    pub fn normal(reason: &'static str, text: String) -> Self {
        Self { reason, is_warning: false, text }
    }

    /// Something is wrong.
    pub fn warning(reason: &'static str, text: String) -> Self {
        Self { reason, is_warning: true, text }
    }
}

impl Decision {
    /// These effects, and nothing else to remember.
    pub fn new(reason: &'static str, seen: &Seen, effects: Vec<Effect>) -> Self {
        Self { reason, effects, memory: seen.memory.clone(), ..Self::default() }
    }

    /// A status, if it would say anything new.
    pub fn record(reason: &'static str, seen: &Seen, report: &Report<'_>, now: Now) -> Self {
        let status = status::compute(seen, report, now);
        if status::is_same(seen.status(), &status) {
            return Self::new(reason, seen, Vec::new());
        }
        let notes = status::notes(seen.status(), &status);
        let effect = Effect::Record { before: seen.shared_volume.clone(), status: Box::new(status) };
        Self { notes, ..Self::new(reason, seen, vec![effect]) }
    }

    fn touches_slices(&self) -> bool {
        self.effects.iter().any(|effect| matches!(effect, Effect::WriteSlice { .. } | Effect::DeleteSlice(_)))
    }

    /// Looks again after this time, if not sooner.
    pub fn look_again(mut self, after: Option<Duration>) -> Self {
        self.look_again = self.look_again.into_iter().chain(after).min();
        self
    }
}

/// Says the next step.
pub fn decide(seen: &Seen, now: Now) -> Decision {
    let spec = &seen.shared_volume.spec;
    let is_deleted = seen.shared_volume.metadata.deletion_timestamp.is_some();
    if !is_deleted && spec.mode == SharedVolumeMode::Suspended {
        let report = Report { phase: Some(SharedVolumePhase::Suspended), ..Report::default() };
        // The one write there is then: data come before a person's wish for silence.
        return cut_off(seen).unwrap_or_else(|| Decision::record("Suspended", seen, &report, now));
    }
    let decision = if is_deleted { deletion::step(seen, now) } else { of_living(seen, now) };
    cut_off(seen).filter(|_| !decision.touches_slices()).unwrap_or(decision)
}

fn of_living(seen: &Seen, now: Now) -> Decision {
    if !deletion::is_guarded(seen) {
        return Decision::new("NotGuarded", seen, vec![Effect::AddFinalizer]);
    }
    if let Some(rival) = claim::rival(seen) {
        return Decision::record("Rival", seen, &rivalry(seen, rival), now);
    }
    match claim::check(seen) {
        Ok(identity) => serve::of_claim(seen, &identity, now),
        Err(finding) => {
            let report = Report { claim: Some(finding), claim_identity: claim::first_sight(seen), ..Report::default() };
            Decision::record("ClaimNotReady", seen, &report, now)
        }
    }
}

/// Whatever else is wrong or waited for: nothing of ours leads to a node that is being fenced.
fn cut_off(seen: &Seen) -> Option<Decision> {
    let node = slices::written(seen)?.node?;
    let service = seen.service.as_ref().filter(|_| seen.fenced_nodes.contains(&node))?;
    let effects = endpoints::withdraw(seen, service);
    (!effects.is_empty()).then(|| Decision::new("CutOff", seen, effects))
}

fn rivalry<'a>(seen: &Seen, rival: &SharedVolume) -> Report<'a> {
    let (claim, name) = (&seen.shared_volume.spec.claim_name, rival.name_any());
    if rival.spec.claim_name == *claim {
        let message = format!("SharedVolume {name} is older and has claim {claim}: delete one of them");
        return Report { duplicate: Some(Finding::no("DuplicateClaim", message)), ..Report::default() };
    }
    let service = objects::service_name(&seen.shared_volume);
    let message = format!("SharedVolume {name} is older and has Service {service}: set another service.name");
    Report { service: Some(Finding::no("ServiceConflict", message)), ..Report::default() }
}
