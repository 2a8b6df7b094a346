//! What the driver says of its volumes' health, in both generations of CSI. It is what tests set it to: the array itself
//! never fails.

use std::collections::BTreeMap;

use bulkhead::csi::v1::volume_health::VolumeHealthEntry;
use bulkhead::csi::v1::*;
use serde::{Deserialize, Serialize};
use tonic::Status;

use super::ArrayOptions;
use super::listing::Token;
use super::state::State;

/// Something that is wrong with a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ailment {
    /// CSI's number of the status; one that CSI does not have is passed on, too.
    pub status: i32,
    /// In CamelCase, if the driver keeps to CSI.
    pub reason: String,
    /// For people.
    pub message: String,
}

impl Ailment {
    /// One with the status that CSI calls so.
    pub fn new(status: VolumeHealthErrorType, reason: &str, message: &str) -> Self {
        Ailment { status: status.into(), reason: reason.to_owned(), message: message.to_owned() }
    }
}

/// Health of all volumes: what is not here is well.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// By volume, as the driver's controller says it.
    volumes: BTreeMap<String, Vec<Ailment>>,
    /// By volume and node, as the node's plugin says it.
    nodes: BTreeMap<(String, String), Vec<Ailment>>,
}

impl Health {
    pub fn set(&mut self, volume: &str, ailments: Vec<Ailment>) {
        if ailments.is_empty() {
            self.volumes.remove(volume);
        } else {
            self.volumes.insert(volume.to_owned(), ailments);
        }
    }

    pub fn set_on_node(&mut self, volume: &str, node: &str, ailments: Vec<Ailment>) {
        self.nodes.insert((volume.to_owned(), node.to_owned()), ailments);
    }

    pub fn of(&self, volume: &str) -> &[Ailment] {
        self.volumes.get(volume).map(Vec::as_slice).unwrap_or_default()
    }

    pub fn on_node(&self, volume: &str, node: &str) -> &[Ailment] {
        let key = (volume.to_owned(), node.to_owned());
        self.nodes.get(&key).map(Vec::as_slice).unwrap_or_default()
    }
}

/// As CSI 1.3 to 1.12 have it.
pub(crate) fn condition(ailments: &[Ailment]) -> VolumeCondition {
    let messages: Vec<_> = ailments.iter().map(|ailment| ailment.message.as_str()).collect();
    VolumeCondition { abnormal: !ailments.is_empty(), message: messages.join("; ") }
}

/// As CSI 1.13 has it.
pub(crate) fn health(volume: &str, ailments: &[Ailment]) -> VolumeHealth {
    let entries = ailments.iter().cloned().map(|Ailment { status, reason, message }| VolumeHealthEntry {
        status,
        reason,
        message,
    });
    VolumeHealth { volume_id: volume.to_owned(), health_statuses: entries.collect() }
}

/// One page of the volumes that are not well.
pub(super) fn page(
    state: &State,
    options: &ArrayOptions,
    request: &ControllerListVolumeHealthRequest,
) -> Result<ControllerListVolumeHealthResponse, Status> {
    let asked =
        usize::try_from(request.max_entries).map_err(|_| Status::invalid_argument("max_entries is negative"))?;
    let size = [asked, options.page_size].into_iter().filter(|size| *size > 0).min().unwrap_or(usize::MAX);
    let token = Token::parse(&request.starting_token)?;
    let there = |volume: &str| state.volume(volume).is_ok();
    let rest = state.health.volumes.iter().filter(|(volume, _)| **volume > token.after && there(volume));
    let mut rest = rest.peekable();
    let entries: Vec<_> = rest.by_ref().take(size).map(|(volume, ailments)| health(volume, ailments)).collect();
    let next_token = match (entries.last(), rest.peek()) {
        (Some(last), Some(_)) => token.next(&last.volume_id).to_string(),
        _ => String::new(),
    };
    Ok(ControllerListVolumeHealthResponse { entries, next_token })
}
