//! The Service, its EndpointSlices and its Endpoints: how they are to be, whose they are, and what is wrong with those that
//! are there. Pure.

use sha2::{Digest, Sha256};

use crate::api::names;
use crate::api::shared_volume::SharedVolume;

/// Longest name of a Service (a DNS-1035 label).
const LABEL_MAX: usize = 63;
/// Hexadecimal digits of the hash in a name are twice that many.
const HASH_BYTES: usize = 4;

/// Name of the Service. The recorded one stays whatever the spec says later: another Service would have another address.
pub fn service_name(shared_volume: &SharedVolume) -> String {
    let recorded = shared_volume.status.as_ref().and_then(|status| status.service.as_ref()).map(|it| it.name.clone());
    let wanted = recorded.or_else(|| shared_volume.spec.service.name.clone());
    wanted.unwrap_or_else(|| label(&shared_volume.spec.claim_name))
}

/// Whether the Service cannot have the claim's name.
pub fn is_hashed(shared_volume: &SharedVolume) -> bool {
    shared_volume.spec.service.name.is_none() && !is_label(&shared_volume.spec.claim_name)
}

/// The name if it is a DNS-1035 label; else its readable part, `-` and eight hexadecimal digits of its SHA-256.
fn label(name: &str) -> String {
    if is_label(name) {
        return name.to_owned();
    }
    let readable: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let readable = readable.trim_start_matches(|c: char| !c.is_ascii_lowercase());
    let length = readable.len().min(LABEL_MAX - 1 - 2 * HASH_BYTES);
    let readable = readable.get(..length).unwrap_or(readable).trim_end_matches('-');
    let readable = if readable.is_empty() { "volume" } else { readable };
    format!("{readable}-{}", names::hex(&Sha256::digest(name), HASH_BYTES))
}

fn is_label(name: &str) -> bool {
    let is_inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    name.len() <= LABEL_MAX
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && !name.ends_with('-')
        && name.chars().all(is_inside)
}
