//! The array behind a driver: which node may use which volume, how long calls take, how they fail, and how it lies.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead::api::cidr::Cidr;
use bulkhead::csi_sidecar::decide::{Failure, FailureClass};
use bulkhead::csi_sidecar::driver::{Published, classify};

use crate::chance::{Chance, Choice};
use crate::others::CALL;
use crate::time::{Millis, SECOND};

/// Published node ids by volume handle.
pub type Map = BTreeMap<String, BTreeSet<String>>;

/// The array of one driver.
#[derive(Clone, Debug, Default)]
pub struct Array {
    /// Who may use what, as it is enforced.
    pub published: Map,
    /// How long an unpublish takes.
    pub latency: Millis,
    /// How it misbehaves now.
    pub mood: Mood,
    /// Addresses that it shuts out.
    pub shut_out: BTreeSet<Cidr>,
    /// It gives access by its network only: an unpublish revokes nothing.
    pub is_by_network: bool,
    /// When a node last lost its access to a volume.
    pub revoked: BTreeMap<(String, String), Millis>,
    /// What the last list would have shown: a cache that is one list old.
    cached: Option<Map>,
}

/// How an array misbehaves, to the sidecar's calls. 0 and `None` are good behaviour.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mood {
    /// It answers nothing, to anybody.
    pub is_down: bool,
    /// One unpublish in so many says OK and does nothing.
    pub ok_but_nothing: u64,
    /// One unpublish in so many fails with this gRPC code.
    pub fails: Option<(u64, i32)>,
    /// It fails although it did what it was asked.
    pub fails_after_effect: bool,
    /// One unpublish in so many hangs; what it does takes effect at some time, or never.
    pub hangs: u64,
    /// One call in so many takes seconds.
    pub slow: u64,
    /// One list in so many is the one before.
    pub stale_list: u64,
    /// One list in so many misses a page and says so, by repeating a token.
    pub incomplete: u64,
    /// One list in so many leaves volumes out.
    pub omits: u64,
    /// One list in so many leaves published nodes out: only of an array that does what it says.
    pub omits_nodes: u64,
    /// Calls for this volume never end.
    pub stuck: Option<String>,
}

/// What a list shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum List {
    /// Every page was read.
    Whole(Map),
    /// It failed, with this code.
    Failed(&'static str),
}

/// A list, and how it comes.
#[derive(Clone, Debug)]
pub struct Listing {
    /// What it shows.
    pub list: List,
    /// How long it takes.
    pub takes: Millis,
    /// It shows what is remembered of the list before.
    pub is_old: bool,
}

/// How an unpublish goes.
#[derive(Clone, Debug)]
pub struct Course {
    /// When it takes effect, if it does.
    pub effect_after: Option<Millis>,
    /// When it is answered.
    pub answer_after: Millis,
    /// The answer.
    pub answer: Result<(), Failure>,
}

impl List {
    /// As the sidecar's driver hands it on.
    pub fn published(self) -> Result<Published, Failure> {
        match self {
            Self::Whole(map) => Ok(map.into_iter().map(|(handle, nodes)| (handle, Ok(nodes))).collect()),
            Self::Failed(code) => Err(failure(code)),
        }
    }
}

/// A failure that may pass.
pub fn failure(code: &'static str) -> Failure {
    Failure { code, class: FailureClass::Retry, message: "the simulated driver says so".into() }
}

impl Array {
    /// An array whose unpublish takes so long.
    pub fn new(latency: Millis) -> Self {
        Self { latency, ..Self::default() }
    }

    /// Gives a node access.
    pub fn publish(&mut self, handle: &str, node: &str) {
        self.published.entry(handle.to_owned()).or_default().insert(node.to_owned());
    }

    /// Takes a node's access away.
    pub fn unpublish(&mut self, handle: &str, node: &str, at: Millis) {
        if self.is_by_network {
            return;
        }
        if self.published.entry(handle.to_owned()).or_default().remove(node) {
            self.revoked.insert((handle.to_owned(), node.to_owned()), at);
        }
    }

    /// Whether writes of that node to that volume are accepted.
    pub fn accepts(&self, handle: &str, node: &str) -> bool {
        self.published.get(handle).is_some_and(|nodes| nodes.contains(node))
    }

    /// How an unpublish of the sidecar will go.
    pub fn unpublish_course(&mut self, handle: &str, node: &str, chance: &mut dyn Chance) -> Course {
        let mood = self.mood.clone();
        let c = Choice::Call;
        let jitter = chance.between(c, 0, self.latency / 2);
        let slow = if chance.one_in(c, mood.slow) { chance.between(c, 2 * SECOND, 90 * SECOND) } else { 0 };
        // What is cut off already is answered soon.
        let nothing_to_do = !self.accepts(handle, node);
        let takes = if nothing_to_do { jitter.min(5) + 1 } else { self.latency + jitter } + slow;
        let answer_after = takes + chance.between(c, 0, 5);
        if mood.is_down {
            return Course { effect_after: None, answer_after: 5, answer: Err(failure("Unavailable")) };
        }
        if mood.stuck.as_deref() == Some(handle) {
            return Course { effect_after: None, answer_after: Millis::MAX, answer: Ok(()) };
        }
        if chance.one_in(c, mood.hangs) {
            let effect_after = chance.one_in(c, 2).then(|| chance.between(c, SECOND, 100 * SECOND));
            return Course { effect_after, answer_after: Millis::MAX, answer: Ok(()) };
        }
        if let Some((many, code)) = mood.fails
            && chance.one_in(c, many)
        {
            let effect_after = mood.fails_after_effect.then_some(takes);
            let answer = Err(classify(&bulkhead_status(code)));
            return Course { effect_after, answer_after, answer };
        }
        if chance.one_in(c, mood.ok_but_nothing) {
            return Course { effect_after: None, answer_after, answer: Ok(()) };
        }
        Course { effect_after: Some(takes), answer_after, answer: Ok(()) }
    }

    /// How a fence, or a lift, of csi-addons will go. One that says OK and does nothing is not among its moods: what a NetworkFence
    /// proves does not exclude it (docs/safety.md).
    pub fn network_course(&self, chance: &mut dyn Chance) -> Course {
        let (mood, c) = (&self.mood, Choice::Network);
        if mood.is_down {
            return Course { effect_after: None, answer_after: 5, answer: Err(failure("Unavailable")) };
        }
        let slow = if chance.one_in(c, mood.slow) { chance.between(c, 2 * SECOND, 90 * SECOND) } else { 0 };
        let takes = chance.between(c, 1, 50) + slow;
        if chance.one_in(c, mood.hangs) {
            let late = if chance.one_in(c, 2) { CALL } else { 0 };
            let effect_after = chance.one_in(c, 2).then(|| late + chance.between(c, SECOND, 60 * SECOND));
            return Course { effect_after, answer_after: Millis::MAX, answer: Ok(()) };
        }
        if let Some((many, _)) = mood.fails
            && chance.one_in(c, many)
        {
            let effect_after = mood.fails_after_effect.then_some(takes);
            return Course { effect_after, answer_after: takes, answer: Err(failure("Internal")) };
        }
        Course { effect_after: Some(takes), answer_after: takes, answer: Ok(()) }
    }

    /// What a list of the sidecar shows, and how it comes.
    pub fn list(&mut self, chance: &mut dyn Chance) -> Listing {
        let c = Choice::List;
        let mood = &self.mood;
        let slow = if chance.one_in(c, mood.slow) { chance.between(c, 2 * SECOND, 40 * SECOND) } else { 0 };
        let takes = chance.between(c, 2, 20) + slow;
        if mood.is_down {
            return Listing { list: List::Failed("Unavailable"), takes: 5, is_old: false };
        }
        if chance.one_in(c, mood.incomplete) {
            return Listing { list: List::Failed("IncompleteList"), takes, is_old: false };
        }
        let (mut is_old, mut shown) = (false, self.published.clone());
        if chance.one_in(c, mood.stale_list)
            && let Some(cached) = &self.cached
        {
            is_old = true;
            shown.clone_from(cached);
        }
        if chance.one_in(c, mood.omits) {
            let left_out = chance.pick(c, shown.len() as u64);
            let name = shown.keys().nth(usize::try_from(left_out).unwrap_or(0)).cloned();
            name.iter().for_each(|name| drop(shown.remove(name)));
        }
        if chance.one_in(c, mood.omits_nodes) {
            shown.values_mut().for_each(BTreeSet::clear);
        }
        self.cached = Some(self.published.clone());
        Listing { list: List::Whole(shown), takes, is_old }
    }
}

fn bulkhead_status(code: i32) -> tonic::Status {
    tonic::Status::new(tonic::Code::from_i32(code), "the simulated driver says so")
}
