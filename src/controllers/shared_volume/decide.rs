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

use crate::api::provider_volume::Observation;
use crate::api::shared_volume::{ProbeType, SharedVolume, SharedVolumeStatus};
use crate::api::slim::PersistentVolumeClaim;
use crate::api::slim_network::{EndpointSlice, Endpoints, ServerPod, Service};
use crate::api::time::Now;

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

/// What only this process knows of a SharedVolume. Losing it costs nothing but a stamp, or a call that is made twice.
///
/// [`Decision::memory`] replaces it once all effects of the decision have succeeded; after a failure the one before stays,
/// with what `act` notes in it: [`Memory::refused`] and [`Memory::publish_failed`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The Service was created and has not been seen since.
    pub created: Option<Instant>,
    /// The API server refused to create the Service with [`Effect::ApplyService`]. Noted by `act`.
    pub refused: Option<Refusal>,
    /// The server that is to take over, and since when it is.
    pub target_since: Option<(String, Instant)>,
    /// Why and since when the active server is to be left.
    pub leaving: Option<Leaving>,
    /// The last automatic switch.
    pub last_switch: Option<Instant>,
    /// What the provider took, until a later report shows it.
    pub published: Option<Acknowledged>,
    /// What the provider did not take. Noted by `act`.
    pub publish_failed: Option<PublishFailure>,
    /// Since when it is tried to un-publish.
    pub releasing_since: Option<Instant>,
    /// When everything was last found as it is to be.
    pub verified: Option<Instant>,
}

/// Why a server is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// In a word.
    pub reason: &'static str,
    /// When that was seen.
    pub at: DateTime<Utc>,
}

/// A Service that the API server refused with 422.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What it refused: see [`Refused::of`].
    pub what: Refused,
    /// Its words.
    pub error: String,
    /// When.
    pub at: Instant,
}

/// What an API server did not like about a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The addresses that it was to have.
    Addresses,
    /// The families.
    Families,
}

impl Refused {
    /// By the fields that the answer's causes name (`details.causes[].field`). Nothing when it is about something else.
    pub fn of<'a>(fields: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        fields.into_iter().find_map(|field| match field {
            _ if field.starts_with("spec.clusterIP") => Some(Self::Addresses),
            _ if field.starts_with("spec.ipFamil") => Some(Self::Families),
            _ => None,
        })
    }
}

/// What a provider took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// The mount endpoint.
    pub endpoint: String,
    /// Version of the volume that was reported then: that report is outdated.
    pub over: String,
}

/// What a provider did not take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishFailure {
    /// The mount endpoint.
    pub endpoint: String,
    /// Whether others keep writing to the volume.
    pub is_conflict: bool,
    /// For people.
    pub error: String,
    /// Failures in a row.
    pub failures: u32,
    /// When it failed last.
    pub at: Instant,
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
    /// Give the SharedVolume our finalizer, or take it.
    Finalizer {
        /// Whether it is to be there.
        wanted: bool,
    },
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

/// Says the next step.
pub fn decide(seen: &Seen, _now: Now) -> Decision {
    Decision { reason: "Settled", memory: seen.memory.clone(), ..Decision::default() }
}
