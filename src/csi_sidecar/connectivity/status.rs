//! What the DriverReport says of backends and paths, within the limits of one object; and what there is to tell people of a
//! change.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};

use crate::api::driver_report::{
    Backend, BackendState, Capability, Coverage, DriverReportStatus, PathState, UnreachablePair,
};

/// Pairs that a report may list.
const PAIRS_MAX: usize = 1024;
/// Nodes that an Event names.
const NAMED_MAX: usize = 5;

/// A path that is not known to be well.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The node.
    pub node: String,
    /// What is known.
    pub state: PathState,
    /// Why, in CamelCase.
    pub reason: &'static str,
    /// Since when.
    pub since: DateTime<Utc>,
}

/// The part of a DriverReport that is about paths.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PathReport {
    is_supported: bool,
    backends: Vec<Backend>,
    unreachable: Vec<UnreachablePair>,
    pairs: u32,
}

impl PathReport {
    /// The driver has no extension: nothing is known of its paths.
    pub fn unsupported() -> Self {
        Self::default()
    }

    /// What is known of a backend, about which so many nodes are asked; no state: nobody is.
    pub fn new(backend: &str, state: Option<(BackendState, DateTime<Utc>)>, nodes: usize, mut rows: Vec<Row>) -> Self {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let pairs = count(rows.len());
        // What counts is listed first.
        rows.sort_by(|a, b| (a.state, &a.node).cmp(&(b.state, &b.node)));
        rows.truncate(PAIRS_MAX);
        let pair = |row: Row| UnreachablePair {
            node: row.node,
            backend: backend.to_owned(),
            state: row.state,
            reason: Some(row.reason.to_owned()),
            since: row.since,
        };
        let known =
            state.map(|(state, since)| Backend { name: backend.to_owned(), state, nodes: Some(count(nodes)), since });
        Self {
            is_supported: true,
            backends: known.into_iter().collect(),
            unreachable: rows.into_iter().map(pair).collect(),
            pairs,
        }
    }

    /// Nodes that are disconnected.
    pub fn disconnected(&self) -> usize {
        self.unreachable.iter().filter(|pair| pair.state == PathState::Disconnected).count()
    }

    /// Backends that do not answer.
    pub fn silent(&self) -> usize {
        self.backends.iter().filter(|backend| backend.state == BackendState::Silent).count()
    }

    /// Puts it into a report.
    pub fn write(&self, status: &mut DriverReportStatus) {
        let mut capabilities: BTreeSet<_> = status.capabilities.iter().copied().collect();
        // One call of the extension answers both.
        for it in [Capability::Connectivity, Capability::IoInProgress] {
            if self.is_supported {
                capabilities.insert(it);
            } else {
                capabilities.remove(&it);
            }
        }
        status.capabilities = capabilities.into_iter().collect();
        status.backends.clone_from(&self.backends);
        status.unreachable.clone_from(&self.unreachable);
        status.unreachable_pairs = (self.is_supported && !self.backends.is_empty()).then_some(self.pairs);
        if self.pairs as usize > self.unreachable.len() {
            status.coverage = Some(Coverage::Capped);
        }
    }
}

/// One thing to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// Reason of the Event.
    pub reason: &'static str,
    /// Whether it is a Warning.
    pub is_warning: bool,
    /// The text.
    pub note: String,
}

/// What changed from one report to the next, one Event per kind of news, not per node.
pub fn news(before: &DriverReportStatus, after: &DriverReportStatus) -> Vec<News> {
    let mut news = Vec::new();
    for backend in &after.backends {
        let was = before.backends.iter().find(|it| it.name == backend.name).map(|it| it.state);
        match (was, backend.state) {
            (None | Some(BackendState::Answering), BackendState::Silent) => news.push(News {
                reason: "BackendSilent",
                is_warning: true,
                note: format!("backend {} does not say which nodes reach it: no decision rests on it", backend.name),
            }),
            (Some(BackendState::Silent), BackendState::Answering) => news.push(News {
                reason: "BackendAnswering",
                is_warning: false,
                note: format!("backend {} says again which nodes reach it", backend.name),
            }),
            _ => {}
        }
    }
    let state = |status: &DriverReportStatus| -> BTreeMap<(String, String), PathState> {
        status.unreachable.iter().map(|pair| ((pair.node.clone(), pair.backend.clone()), pair.state)).collect()
    };
    let (old, new) = (state(before), state(after));
    let is_new = |pair: &&(String, String)| old.get(*pair) != Some(&PathState::Disconnected);
    let lost: Vec<_> = new
        .iter()
        .filter(|(_, state)| **state == PathState::Disconnected)
        .map(|(pair, _)| pair)
        .filter(is_new)
        .collect();
    // A node that is asked about no more has not been proved to be back.
    let told = after.unreachable.len() < PAIRS_MAX && !after.backends.is_empty();
    let back: Vec<_> = old.keys().filter(|pair| told && !new.contains_key(*pair)).collect();
    if !lost.is_empty() {
        let note = format!("the path of {} to its storage is lost", named(&lost));
        news.push(News { reason: "PathLost", is_warning: true, note });
    }
    if !back.is_empty() {
        let note = format!("the path of {} to its storage is known again", named(&back));
        news.push(News { reason: "PathRestored", is_warning: false, note });
    }
    news
}

fn named(pairs: &[&(String, String)]) -> String {
    let names: Vec<_> = pairs.iter().take(NAMED_MAX).map(|(node, _)| node.as_str()).collect();
    let more = pairs.len().saturating_sub(names.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", names.join(", "))
}
