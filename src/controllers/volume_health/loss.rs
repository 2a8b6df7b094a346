//! Data loss: it stays until a person has seen it. Which loss was seen is told by a token, so that a later one counts
//! again. Pure.

use chrono::{DateTime, SecondsFormat, Utc};
use sha2::{Digest, Sha256};

use crate::api::names;
use crate::api::volume::VolumeState;
use crate::api::volume_health::Observation;

use super::decide::Seen;

/// The token of what is lost, by volume and by the latest loss; nothing where nothing is.
pub fn token(uid: &str, observations: &[Observation]) -> Option<String> {
    let lost = observations.iter().filter(|it| it.state == VolumeState::DataLoss);
    lost.map(|it| it.first_seen).max().map(|since| token_of(uid, since))
}

fn token_of(uid: &str, since: DateTime<Utc>) -> String {
    let mut hash = Sha256::new();
    hash.update(uid);
    hash.update([0]);
    hash.update(since.to_rfc3339_opts(SecondsFormat::Micros, true));
    names::hex(&hash.finalize(), 8)
}

/// Whether a person has acknowledged what the record says is lost.
pub fn is_record_acknowledged(seen: &Seen) -> bool {
    let wanted = seen.status().and_then(|status| status.data_loss_token.as_deref());
    wanted.is_some_and(|token| seen.acknowledged() == Some(token))
}
