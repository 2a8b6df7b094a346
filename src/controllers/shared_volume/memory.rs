//! The memory of one SharedVolume: what only this process knows of it. Pure.

use std::time::Instant;

use chrono::{DateTime, Utc};

/// Losing it costs nothing but a stamp, or a call that is made twice.
///
/// [`Decision::memory`](super::decide::Decision::memory) replaces it once all effects of the decision have succeeded; after a failure the one before stays,
/// with what `act` notes in it: [`Memory::refused`] and [`Memory::publish_failed`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The Service was created and has not been seen since.
    pub created: Option<Instant>,
    /// The API server refused to create the Service or to apply it. Noted by `act`.
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
