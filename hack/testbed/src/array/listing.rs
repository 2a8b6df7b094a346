//! `ListVolumes` and `ControllerGetVolume`: pages, and the ways in which a list can lie.

use bulkhead::csi::v1::list_volumes_response::{Entry, VolumeStatus};
use bulkhead::csi::v1::*;
use tonic::Status;

use super::ArrayOptions;
use super::faults::Effect;
use super::health;
use super::state::{Listed, State};
use crate::ledger::Stamp;

/// One page of the list.
pub(super) fn page(
    state: &State,
    effects: &[Effect],
    options: &ArrayOptions,
    request: &ListVolumesRequest,
) -> Result<ListVolumesResponse, Status> {
    let asked =
        usize::try_from(request.max_entries).map_err(|_| Status::invalid_argument("max_entries is negative"))?;
    let sizes = [asked, options.page_size].into_iter().filter(|size| *size > 0);
    let size = sizes.min().unwrap_or(usize::MAX);
    let token = Token::parse(&request.starting_token)?;

    let rest = volumes(state, effects)
        .into_iter()
        .filter(|listed| *listed.volume > *token.after)
        .filter(|listed| !is_omitted(effects, listed));
    let mut rest = rest.peekable();
    let listed: Vec<Listed> = rest.by_ref().take(size).collect();

    let next_token = match (listed.last(), rest.peek()) {
        _ if effects.contains(&Effect::RepeatToken) => match token.page {
            0 => Token::start().to_string(),
            _ => request.starting_token.clone(),
        },
        (Some(last), Some(_)) => token.next(&last.volume).to_string(),
        _ => String::new(),
    };
    let next_token = if effects.contains(&Effect::NoToken) { String::new() } else { next_token };
    let omitted = effects.contains(&Effect::OmitPage(token.page));
    let entries = listed.into_iter().filter(|_| !omitted).map(|listed| Entry {
        status: status(state, options, effects, &listed)
            .map(|(published_node_ids, volume_condition)| VolumeStatus { published_node_ids, volume_condition }),
        volume: Some(volume(&listed)),
    });
    Ok(ListVolumesResponse { entries: entries.collect(), next_token })
}

/// One volume.
pub(super) fn one(
    state: &State,
    effects: &[Effect],
    options: &ArrayOptions,
    id: &str,
) -> Result<ControllerGetVolumeResponse, Status> {
    let found = match then(state, effects) {
        Some(then) => state.list_at(then).into_iter().find(|listed| &*listed.volume == id),
        None => state.list_one(id),
    };
    let listed = found.ok_or_else(|| Status::not_found(format!("volume {id} does not exist")))?;
    let shown = volume(&listed);
    let status = status(state, options, effects, &listed);
    let status = status.map(|(published_node_ids, volume_condition)| controller_get_volume_response::VolumeStatus {
        published_node_ids,
        volume_condition,
    });
    // CSI wants a status here, whatever there is to say.
    Ok(ControllerGetVolumeResponse { volume: Some(shown), status: Some(status.unwrap_or_default()) })
}

/// Published nodes and condition of a volume, as far as the driver tells either.
fn status(
    state: &State,
    options: &ArrayOptions,
    effects: &[Effect],
    listed: &Listed,
) -> Option<(Vec<String>, Option<VolumeCondition>)> {
    let condition = options.tells_condition.then(|| health::condition(state.health.of(&listed.volume)));
    let shows_nodes = options.lists_published_nodes && !effects.contains(&Effect::OmitNodes);
    let mut nodes = if shows_nodes { listed.nodes.clone() } else { Vec::new() };
    if nodes.is_empty() && effects.contains(&Effect::EmptyNodeId) {
        nodes.push(String::new());
    }
    (options.lists_published_nodes || options.tells_condition).then_some((nodes, condition))
}

fn volumes(state: &State, effects: &[Effect]) -> Vec<Listed> {
    then(state, effects).map_or_else(|| state.list(), |then| state.list_at(then))
}

/// The moment that is shown, unless it is now.
fn then(state: &State, effects: &[Effect]) -> Option<Stamp> {
    effects.iter().find_map(|effect| match effect {
        Effect::StaleSince(then) => Some(*then),
        Effect::StaleBy(age) => {
            let now = state.ledger.now().since_start();
            Some(Stamp::new(now.saturating_sub(*age)))
        }
        _ => None,
    })
}

fn is_omitted(effects: &[Effect], listed: &Listed) -> bool {
    effects.iter().any(|effect| match effect {
        Effect::OmitVolumes(volumes) => volumes.contains(&*listed.volume),
        _ => false,
    })
}

fn volume(listed: &Listed) -> Volume {
    Volume { volume_id: listed.volume.to_string(), capacity_bytes: listed.capacity_bytes, ..Volume::default() }
}

/// Where a page begins: `<page>:<the last volume of the page before>`. It holds while volumes come and go.
pub(super) struct Token {
    page: usize,
    pub after: String,
}

impl Token {
    fn start() -> Self {
        Token { page: 0, after: String::new() }
    }

    pub fn parse(text: &str) -> Result<Self, Status> {
        if text.is_empty() {
            return Ok(Token::start());
        }
        let parsed = text
            .split_once(':')
            .and_then(|(page, after)| Some(Token { page: page.parse().ok()?, after: after.to_owned() }));
        // CSI wants Aborted here: begin again without a token.
        parsed.ok_or_else(|| Status::aborted(format!("{text:?} is not a token of this list")))
    }

    pub fn next(&self, last: &str) -> Self {
        Token { page: self.page + 1, after: last.to_owned() }
    }
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.page, self.after)
    }
}
