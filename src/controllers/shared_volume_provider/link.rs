//! What the poll of a provider has brought so far. Written by the poll, read by everybody else.

use std::collections::{BTreeMap, BTreeSet};

/// What went wrong: a bounded CamelCase reason, and words for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Reason, as in conditions.
    pub reason: &'static str,
    /// Words.
    pub message: String,
}

/// How the last call for the namespaces went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// There was none yet.
    #[default]
    Pending,
    /// It was answered.
    Up,
    /// It was not.
    Down(Failure),
}

/// A namespace of the provider whose volumes cannot be listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    /// Its name.
    pub name: String,
    /// Why.
    pub failure: Failure,
}

/// The state of the poll.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Whether the provider answers.
    pub state: State,
    /// Whether everything came back that the last poll asked for.
    pub is_done: bool,
    /// URL in use.
    pub endpoint: Option<String>,
    /// How many namespaces are listed.
    pub namespaces: usize,
    /// By id.
    pub failing: BTreeMap<String, Failing>,
    /// Ids of the volumes that are attached as shared, by id of their namespace.
    pub shared: BTreeMap<String, BTreeSet<String>>,
}

impl Link {
    /// Takes in the ids of all namespaces: what is not among them is no more.
    pub fn keep(&mut self, ids: &BTreeSet<String>) {
        self.namespaces = ids.len();
        self.failing.retain(|id, _| ids.contains(id));
        self.shared.retain(|id, _| ids.contains(id));
    }

    /// Whether every namespace was listed, or failed, at least once.
    pub fn is_complete(&self) -> bool {
        let known = self.shared.len() + self.failing.keys().filter(|id| !self.shared.contains_key(*id)).count();
        known >= self.namespaces
    }
}
