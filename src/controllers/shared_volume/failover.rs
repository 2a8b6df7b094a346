//! Which server the status tells of, and what it tells of the last switch. Pure.
//!
//! A loss opens a record; the server that takes over closes it. One that changes in a single write does both at once.

use chrono::{DateTime, Utc};

use crate::api::shared_volume::{ActiveServer, LastFailover, ProbeType, SharedVolumeStatus};
use crate::api::time::{self, Now};

use super::choose::{self, Choice};
use super::decide::{Answer, Leaving, Seen};
use super::servers::Server;
use super::slices::{self, Written};

/// The server that the slices lead to, as far as it can be named.
pub enum Served {
    /// None.
    Nobody,
    /// This one.
    By(Box<Server>),
    /// One that the backend does not name any more, or cannot tell now.
    Other(Written),
}

impl Served {
    /// What the slices show.
    pub fn of(seen: &Seen, choice: &Choice) -> Self {
        let Some(written) = slices::written(seen) else { return Self::Nobody };
        match [&choice.active, &choice.wanted].into_iter().flatten().find(|server| slices::leads_to(&written, server)) {
            Some(server) => Self::By(Box::new(server.clone())),
            None => Self::Other(written),
        }
    }
}

/// Why and since when the active server is to be left, or was: remembered until the switch is recorded.
pub fn leaving(seen: &Seen, choice: &Choice, now: Now) -> Option<Leaving> {
    let remembered = seen.memory.leaving.as_ref();
    let Some(reason) = choice.leaving else {
        let recorded = seen.status()?.active.as_ref()?;
        let is_recorded = choice.active.as_ref().is_none_or(|active| active.is(recorded));
        return remembered.filter(|_| !is_recorded).cloned();
    };
    let same = remembered.filter(|leaving| leaving.reason == reason).cloned();
    Some(same.unwrap_or(Leaving { reason, at: now.wall }))
}

/// Writes into the status who serves, and how it came to that.
pub fn record(status: &mut SharedVolumeStatus, seen: &Seen, served: &Served, leaving: Option<&Leaving>, now: Now) {
    let before = status.active.take();
    match served {
        Served::Nobody => {
            if let Some(before) = before {
                status.last_failover = Some(opened(seen, &before, None, leaving, now));
            }
        }
        Served::By(server) if before.as_ref().is_some_and(|before| server.is(before)) => {
            status.active = before.map(|before| ActiveServer { node_name: server.node.clone(), ..before });
            answered(status, seen, server);
        }
        Served::By(server) => {
            let open = before.map(|before| opened(seen, &before, Some(server), leaving, now));
            let open = open.or_else(|| status.last_failover.take_if(|last| last.switched_at.is_none()));
            if let Some(open) = open {
                let is_switch = open.from.as_ref() != Some(&server.label) || open.to.is_some();
                status.failovers = Some(status.failovers.unwrap_or_default() + i64::from(is_switch));
                let closed =
                    LastFailover { to: Some(server.label.clone()), switched_at: Some(time::stamp(now.wall)), ..open };
                status.last_failover = Some(closed);
            }
            status.active = Some(active(server, now));
            answered(status, seen, server);
        }
        Served::Other(written) => {
            let is_same = |before: &ActiveServer| before.port == written.port && before.addresses == written.addresses;
            status.active = before.filter(is_same).or_else(|| unnamed(written, now));
        }
    }
}

fn opened(
    seen: &Seen,
    before: &ActiveServer,
    after: Option<&Server>,
    leaving: Option<&Leaving>,
    now: Now,
) -> LastFailover {
    LastFailover {
        from: Some(choose::recorded_label(&seen.shared_volume.spec.backend, before)),
        to: None,
        reason: leaving.map_or_else(|| guessed(seen, before, after), |leaving| leaving.reason).to_owned(),
        detected_at: time::stamp(leaving.map_or(now.wall, |leaving| leaving.at)),
        switched_at: None,
        serving_at: None,
    }
}

/// Why another process made the switch, as far as that can still be seen.
fn guessed(seen: &Seen, before: &ActiveServer, after: Option<&Server>) -> &'static str {
    let spec = &seen.shared_volume.spec;
    let is_fenced = before.node_name.as_ref().is_some_and(|node| seen.fenced_nodes.contains(node));
    match after {
        _ if is_fenced => choose::NODE_FENCED,
        Some(_) if spec.backend.provider.is_some() => choose::ENDPOINT_CHANGED,
        Some(server) if spec.failover.active_candidate.as_ref() == Some(&server.name) => choose::USER_REQUESTED,
        _ => "BackendChanged",
    }
}

/// Clients are served from when the new server answers and the slices lead there, whichever comes later.
fn answered(status: &mut SharedVolumeStatus, seen: &Seen, server: &Server) {
    let Some(last) = status.last_failover.as_mut().filter(|last| last.serving_at.is_none()) else { return };
    let (Some(switched), true) = (last.switched_at, last.to.as_ref() == Some(&server.label)) else { return };
    last.serving_at = first_answer(seen, server, switched).map(|at| time::stamp(at).max(switched));
}

fn first_answer(seen: &Seen, server: &Server, switched: DateTime<Utc>) -> Option<DateTime<Utc>> {
    match seen.answers.get(&server.target) {
        _ if server.target.probe == ProbeType::None => Some(switched),
        Some(Answer::Serving { at, .. }) => Some(*at),
        _ => None,
    }
}

fn active(server: &Server, now: Now) -> ActiveServer {
    ActiveServer {
        name: server.name.clone(),
        addresses: server.addresses.clone(),
        port: server.target.port,
        node_name: server.node.clone(),
        since: time::stamp(now.wall),
    }
}

fn unnamed(written: &Written, now: Now) -> Option<ActiveServer> {
    Some(ActiveServer {
        name: written.addresses.first()?.to_string(),
        addresses: written.addresses.clone(),
        port: written.port,
        node_name: written.node.clone(),
        since: time::stamp(now.wall),
    })
}
