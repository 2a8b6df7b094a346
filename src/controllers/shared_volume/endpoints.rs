//! The order of a switch. Pure.
//!
//! Never do our slices lead to two servers. A new one that answers takes the place of the old one in one write; one that
//! does not answer soon is written later, and the old one is withdrawn first. With two families one slice is emptied before
//! the other one changes.

use std::time::{Duration, Instant};

use crate::api::shared_volume::{ClaimIdentity, EndpointObjects, IpFamily, OnBackendLost};
use crate::api::slim::network::{Endpoints, Service};
use crate::api::time::Now;

use super::choose::{self, Choice};
use super::decide::{Effect, Seen};
use super::objects;
use super::servers::Server;
use super::service;
use super::slices::{self, Content, FAMILIES};

/// How long a new server may take to answer before the old one is withdrawn.
pub const GRACE: Duration = Duration::from_millis(100);

/// Where the slices are to lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Where they lead.
    Leave,
    /// Nowhere.
    Empty,
    /// To this server.
    Serve(Box<Server>),
}

/// A goal, and what follows from time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The goal.
    pub goal: Goal,
    /// The server that is to take over, and since when it is.
    pub target_since: Option<(String, Instant)>,
    /// When to look again.
    pub look_again: Option<Duration>,
}

/// Where the slices are to lead now.
pub fn plan(seen: &Seen, choice: &Choice, is_known: bool, now: Now) -> Plan {
    let at = |goal| Plan { goal, target_since: None, look_again: None };
    let keeps = seen.shared_volume.spec.failover.on_backend_lost == OnBackendLost::Keep;
    // A fenced node may hold a server that runs on: nothing may lead there, whatever else is wanted.
    let lost = || if keeps && !choice.is_fenced { Goal::Leave } else { Goal::Empty };
    if !is_known {
        return at(if choice.is_fenced { Goal::Empty } else { Goal::Leave });
    }
    let Some(wanted) = &choice.wanted else { return at(lost()) };
    if choice.active.as_ref() == Some(wanted) {
        return at(if choice.is_lost { lost() } else { Goal::Serve(Box::new(wanted.clone())) });
    }
    if choose::is_accepted(seen, wanted) {
        return at(Goal::Serve(Box::new(wanted.clone())));
    }
    let is_empty = slices::written(seen).is_none();
    if choice.is_lost || is_empty {
        return at(lost());
    }
    wait(seen, wanted, keeps, now)
}

/// The old one is well as far as is known, and the new one has not answered yet.
fn wait(seen: &Seen, wanted: &Server, keeps: bool, now: Now) -> Plan {
    let name = wanted.told();
    let since = match &seen.memory.target_since {
        Some((target, since)) if *target == name => *since,
        _ => now.mono,
    };
    let left = GRACE.checked_sub(now.mono.saturating_duration_since(since)).filter(|left| !left.is_zero());
    let goal = if keeps || left.is_some() { Goal::Leave } else { Goal::Empty };
    Plan { goal, target_since: Some((name, since)), look_again: left }
}

/// The next writes on the way to a goal, in order.
pub fn writes(seen: &Seen, service: &Service, claim: &ClaimIdentity, goal: &Goal) -> Vec<Effect> {
    let strays = slices::strays(seen);
    if !strays.is_empty() {
        return strays.into_iter().map(Effect::DeleteSlice).collect();
    }
    let mut writes = match goal {
        Goal::Serve(server) => switch(seen, service, server),
        Goal::Empty => each(seen, service, |_| Content::default()),
        Goal::Leave => each(seen, service, |family| {
            slices::slice(seen, family).map(|slice| Content::in_slice(slice)).unwrap_or_default()
        }),
    };
    writes.extend(legacy(seen, service, goal));
    if let Goal::Serve(server) = goal {
        writes.extend(service::retarget(seen, service, claim, server));
    }
    writes
}

/// Empties all slices and Endpoints of ours.
pub fn withdraw(seen: &Seen, service: &Service) -> Vec<Effect> {
    each(seen, service, |_| Content::default()).into_iter().chain(legacy(seen, service, &Goal::Empty)).collect()
}

fn each(seen: &Seen, service: &Service, content: impl Fn(IpFamily) -> Content) -> Vec<Effect> {
    FAMILIES.into_iter().filter_map(|family| slices::write(seen, service, family, &content(family))).collect()
}

/// First all slices but one that lead elsewhere are emptied, then that one leads to the new server, then those follow that
/// led nowhere. The emptied ones are filled in the next pass.
fn switch(seen: &Seen, service: &Service, server: &Server) -> Vec<Effect> {
    let spec = &seen.shared_volume.spec;
    let content = |family| Content::of(spec, server, family);
    let stale = |family: &IpFamily| {
        slices::slice(seen, *family).is_some_and(|slice| slices::leads_elsewhere(seen, slice, server))
    };
    let (stale, rest): (Vec<_>, Vec<_>) = FAMILIES.into_iter().partition(stale);
    let turned = stale.iter().copied().find(|family| !content(*family).endpoints.is_empty());
    let emptied = stale.iter().copied().filter(|family| Some(*family) != turned);
    let emptied = emptied.filter_map(|family| slices::write(seen, service, family, &Content::default()));
    let filled = turned.into_iter().chain(rest);
    let filled = filled.filter_map(|family| slices::write(seen, service, family, &content(family)));
    emptied.chain(filled).collect()
}

/// The Endpoints follow the slices.
fn legacy(seen: &Seen, service: &Service, goal: &Goal) -> Option<Effect> {
    let spec = &seen.shared_volume.spec;
    let present = seen.endpoints.as_ref();
    if spec.service.endpoints == EndpointObjects::EndpointSlice {
        let goes = |meta| objects::is_ours(meta, &seen.shared_volume) || objects::may_be_adopted(meta);
        return present.filter(|it| goes(&it.metadata)).cloned().map(Effect::DeleteEndpoints);
    }
    if present.is_some_and(|it| is_foreign(seen, it)) {
        return None;
    }
    let families = service::families(service);
    let subsets = match goal {
        Goal::Serve(server) => slices::subsets(spec, server, &families),
        Goal::Empty if present.is_none() => return None,
        Goal::Empty => Vec::new(),
        Goal::Leave => present?.subsets.clone(),
    };
    slices::write_endpoints(seen, service, &subsets)
}

/// Endpoints that others fill, under our Service's name.
pub fn foreign(seen: &Seen) -> Vec<String> {
    let mut foreign: Vec<_> = slices::foreign(seen).into_iter().map(|name| format!("EndpointSlice {name}")).collect();
    let is_wanted = seen.shared_volume.spec.service.endpoints == EndpointObjects::EndpointSliceAndEndpoints;
    if seen.endpoints.as_ref().is_some_and(|endpoints| is_wanted && is_foreign(seen, endpoints)) {
        foreign.push(format!("Endpoints {}", objects::service_name(&seen.shared_volume)));
    }
    foreign
}

fn is_foreign(seen: &Seen, endpoints: &Endpoints) -> bool {
    let meta = &endpoints.metadata;
    let is_left = objects::owner_label(meta).is_none() && slices::is_not_mirrored(endpoints);
    !objects::is_ours(meta, &seen.shared_volume) && !objects::may_be_adopted(meta) && !is_left
}
