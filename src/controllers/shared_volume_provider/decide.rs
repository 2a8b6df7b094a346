//! The next step for one provider: connect to it, write what it has and we do not, report.

use std::sync::Arc;

use crate::api::shared_volume_provider::{DiscoveryMode, SharedVolumeProvider, SharedVolumeProviderStatus};
use crate::api::time::Now;

use super::discovery::{self, Candidate, Draft};
use super::link::Link;
use super::status;

/// What a pass sees.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The provider, if there is one.
    pub provider: Option<Arc<SharedVolumeProvider>>,
    /// Its Secret.
    pub secret: Secret,
    /// Its poll, if one runs.
    pub poll: Option<Poll>,
    /// Its volumes.
    pub candidates: Vec<Candidate>,
    /// How many SharedVolumes name it as their backend and a volume that it has.
    pub fed: usize,
}

/// The credentials, as far as a decision rests on them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Secret {
    /// There is no such Secret, or it may not be read.
    #[default]
    Absent,
    /// The same, and why.
    Unreadable(String),
    /// A key is missing or empty.
    Incomplete(&'static str),
    /// Both are there, in this version.
    Usable(String),
}

/// A poll that runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Poll {
    /// Generation of the provider that it follows.
    pub generation: i64,
    /// Uid of that provider.
    pub uid: String,
    /// Version of the Secret that it logs in with.
    pub secret: String,
    /// What it has brought.
    pub link: Link,
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Forget all that it reported.
    Forget,
    /// End the poll: there is nothing to log in with.
    Disconnect,
    /// Poll it from now on, by the spec and the Secret that are seen.
    Connect,
    /// Write a SharedVolume.
    Create {
        /// The SharedVolume.
        draft: Box<Draft>,
        /// Id of its volume.
        volume_id: String,
        /// Its name is not that of the claim, or of the volume.
        is_hashed: bool,
    },
    /// Write the status at the resourceVersion of the provider.
    Record {
        /// The provider as it was seen.
        provider: Arc<SharedVolumeProvider>,
        /// The status that it should have.
        status: Box<SharedVolumeProviderStatus>,
    },
}

/// What to do next.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// In a word.
    pub reason: &'static str,
    /// What to do, in order.
    pub effects: Vec<Effect>,
}

/// Says what is to be done.
pub fn decide(seen: &Seen, now: Now) -> Decision {
    let Some(provider) = &seen.provider else {
        return Decision { reason: "gone", effects: vec![Effect::Forget] };
    };
    let (reason, effects) =
        connection(provider, seen).or_else(|| discover(provider, seen)).unwrap_or_else(|| ("settled", Vec::new()));
    let created = effects.iter().filter(|effect| matches!(effect, Effect::Create { .. })).count();
    let record = record(provider, seen, created, now);
    Decision { reason, effects: effects.into_iter().chain(record).collect() }
}

type Step = (&'static str, Vec<Effect>);

fn connection(provider: &SharedVolumeProvider, seen: &Seen) -> Option<Step> {
    let Secret::Usable(version) = &seen.secret else {
        let effects = if seen.poll.is_some() { vec![Effect::Disconnect] } else { Vec::new() };
        return Some(("no credentials", effects));
    };
    let wanted = (provider.metadata.generation.unwrap_or_default(), provider.metadata.uid.as_deref(), version);
    let is_current = |poll: &Poll| (poll.generation, Some(poll.uid.as_str()), &poll.secret) == wanted;
    match &seen.poll {
        Some(poll) if is_current(poll) => None,
        _ => Some(("connect", vec![Effect::Connect])),
    }
}

fn discover(provider: &SharedVolumeProvider, seen: &Seen) -> Option<Step> {
    let create = |candidate: &Candidate| {
        let draft = discovery::draft(provider, candidate)?;
        let is_hashed = discovery::is_hashed(provider, &candidate.volume);
        Some(Effect::Create { draft: Box::new(draft), volume_id: candidate.volume.id.clone(), is_hashed })
    };
    let effects: Vec<_> = seen.candidates.iter().filter_map(create).collect();
    (!effects.is_empty()).then_some(("discovered", effects))
}

/// The status, if it is another than the one that is there. It counts what is being written as written.
fn record(provider: &Arc<SharedVolumeProvider>, seen: &Seen, created: usize, now: Now) -> Option<Effect> {
    let is_fed = provider.spec.discovery.mode != DiscoveryMode::Disabled;
    let fed = if is_fed { seen.fed + created } else { 0 };
    let status = status::compute(provider, seen, fed, now)?;
    let is_new = provider.status.as_ref() != Some(&status);
    is_new.then(|| Effect::Record { provider: provider.clone(), status: Box::new(status) })
}
