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

/// Why and since when the active server is to be left: remembered until the switch is recorded.
pub fn leaving(seen: &Seen, choice: &Choice, now: Now) -> Option<Leaving> {
    let remembered = seen.memory.leaving.as_ref();
    match choice.leaving {
        Some(reason) => {
            let known = remembered.filter(|leaving| leaving.reason == reason).cloned();
            known.or(Some(Leaving { reason, at: now.wall }))
        }
        // The slices lead to the new server, and the status still tells of the old one.
        None => remembered.filter(|_| is_unrecorded(seen, choice)).cloned(),
    }
}

fn is_unrecorded(seen: &Seen, choice: &Choice) -> bool {
    let recorded = seen.status().and_then(|status| status.active.as_ref());
    recorded.is_some_and(|recorded| choice.active.as_ref().is_none_or(|active| !active.is(recorded)))
}

/// Writes into the status who serves, and how it came to that.
pub fn record(status: &mut SharedVolumeStatus, seen: &Seen, served: &Served, leaving: Option<&Leaving>, now: Now) {
    let before = status.active.take();
    match served {
        Served::Nobody => {
            if let Some(before) = before {
                status.last_failover = Some(opened(seen, &before, leaving, now));
            }
        }
        Served::By(server) if before.as_ref().is_some_and(|before| server.is(before)) => {
            status.active = before.map(|before| ActiveServer { node_name: server.node.clone(), ..before });
            answered(status, seen, server);
        }
        Served::By(server) => {
            let open = before.map(|before| opened(seen, &before, leaving, now));
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

fn opened(seen: &Seen, before: &ActiveServer, leaving: Option<&Leaving>, now: Now) -> LastFailover {
    LastFailover {
        from: Some(choose::recorded_label(&seen.shared_volume.spec.backend, before)),
        to: None,
        // Another process may have seen why.
        reason: leaving.map_or("BackendChanged", |leaving| leaving.reason).to_owned(),
        detected_at: time::stamp(leaving.map_or(now.wall, |leaving| leaving.at)),
        switched_at: None,
        serving_at: None,
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
