//! What this process knows of the paths: the answers about each node, counted. Pure, so that the simulator runs the same
//! code. After a restart it goes on from what our own report says, and believes none of it before it was told again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use chrono::{DateTime, Utc};

use crate::api::driver_report::{BackendState, DriverReportStatus, PathState};
use crate::api::time::{self, Now};

use super::decide::{Answer, Settings};
use super::status::{PathReport, Row};

/// A node that is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Uid of its CSINode: another one is another node.
    pub uid: String,
    /// Its CSI node id; nothing where that is in doubt, and then nobody is asked.
    pub node_id: Option<String>,
}

/// All nodes that are asked about, by name.
pub type Targets = BTreeMap<String, Target>;

/// Why a path that was disconnected is not known to be any more, though nobody failed to answer.
const RECOVERING: &str = "Recovering";
/// Why a path that the last leader reported is not known to this one yet.
const RESTARTED: &str = "SidecarRestarted";
/// Why of a path that was not asked about nothing is known either.
const NOT_REACHED: &str = "NotReached";
/// Why a node cannot be asked about.
const NO_NODE_ID: &str = "NodeIdUnknown";

/// What is known of one backend.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    paths: BTreeMap<String, Path>,
    silent: Option<DateTime<Utc>>,
    answering: Option<DateTime<Utc>>,
}

/// What is known of one node's path.
#[derive(Clone, Debug, Default)]
struct Path {
    uid: Option<String>,
    has_id: bool,
    /// The last answers that were alike: what they said, how many there were, and when the first came.
    run: Option<(Answer, u32, Now)>,
    /// When it was asked about last.
    asked: Option<Instant>,
    /// Answers since the last that said "disconnected".
    since_lost: Option<u32>,
    settled: Settled,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Settled {
    /// Nothing is known yet.
    #[default]
    New,
    Connected,
    Bad(PathState, &'static str, DateTime<Utc>),
}

impl Memory {
    /// Goes on where the report stands: what it lists stays until it is proved to be back.
    pub fn from_report(status: &DriverReportStatus, now: Now) -> Self {
        let since = time::stamp(now.wall);
        let settled = Settled::Bad(PathState::Unknown, RESTARTED, since);
        let path = || Path { settled, has_id: true, ..Path::default() };
        let backend = status.backends.first();
        let when = |state| backend.filter(|backend| backend.state == state).map(|backend| backend.since);
        Self {
            paths: status.unreachable.iter().map(|pair| (pair.node.clone(), path())).collect(),
            silent: when(BackendState::Silent),
            answering: when(BackendState::Answering),
        }
    }

    /// Nodes whose path is not known to be well: they are asked about until it is, whoever still runs there.
    pub fn lost(&self) -> BTreeSet<String> {
        let lost = self.paths.iter().filter(|(_, path)| matches!(path.settled, Settled::Bad(..)));
        lost.map(|(node, _)| node.clone()).collect()
    }

    /// Forgets nodes that are not asked about any more, and what was said of a predecessor of the same name.
    pub fn keep(&mut self, targets: &Targets, now: Now) {
        self.paths.retain(|node, path| {
            targets.get(node).is_some_and(|target| path.uid.as_ref().is_none_or(|uid| *uid == target.uid))
        });
        for (node, target) in targets {
            let path = self.paths.entry(node.clone()).or_default();
            path.uid = Some(target.uid.clone());
            path.has_id = target.node_id.is_some();
            if target.node_id.is_none() {
                path.doubt(NO_NODE_ID, now);
                path.run = None;
            }
        }
    }

    /// Forgets everything: nobody can be asked any more.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// When a node was asked about last: those that wait longest come first.
    pub fn asked(&self, node: &str) -> Option<Instant> {
        self.paths.get(node).and_then(|path| path.asked)
    }

    /// Counts an answer. `asked` is the moment before the question.
    pub fn add(&mut self, node: &str, answer: Answer, settings: &Settings, asked: Now) {
        if let Some(path) = self.paths.get_mut(node) {
            path.add(answer, settings, asked);
        }
    }

    /// Ends the questions of a cycle that began then. Where they brought no answer about anybody, those that it did not reach
    /// have none either: a backend that hangs for all takes so long over each that most are never asked.
    pub fn end(&mut self, settings: &Settings, began: Now) {
        let is_asked = |path: &Path| path.asked.is_some_and(|asked| asked >= began.mono);
        let asked = self.paths.values().filter(|path| is_asked(path));
        let unanswered = asked.clone().filter(|path| matches!(path.run, Some((Answer::Unknown(_), ..)))).count();
        if unanswered < 2 || unanswered < asked.count() {
            return;
        }
        for path in self.paths.values_mut().filter(|path| path.has_id && !is_asked(path)) {
            path.count(Answer::Unknown(NOT_REACHED), settings, began);
        }
    }

    /// Settles what the answers of a cycle have shown. A loss is settled only with a picture of all nodes that was taken
    /// after it began: when an array fails, not one node is to look lost before the others do.
    pub fn settle(&mut self, settings: &Settings, now: Now) {
        let nodes = self.paths.values().filter(|path| path.has_id);
        let (all, doubtful) = (nodes.clone().count(), nodes.clone().filter(|path| path.is_doubtful(settings)).count());
        let is_wide = doubtful >= 2 && doubtful * 2 > all;
        let wavers = nodes.clone().any(|path| path.wavers(settings));
        let oldest = nodes.clone().map(|path| path.asked).min().flatten();
        for path in self.paths.values_mut() {
            let Some((Answer::Disconnected(reason), run, began)) = path.run else { continue };
            if run < settings.loss || matches!(path.settled, Settled::Bad(PathState::Disconnected, ..)) {
                continue;
            }
            let all_asked_since = all == 1 || oldest.is_some_and(|oldest| oldest > began.mono);
            // What goes on wavering for as long again must not hide those that do not.
            let is_patient = run < settings.loss.saturating_mul(2);
            if all_asked_since && !(is_wide && wavers && is_patient) {
                path.settled = Settled::Bad(PathState::Disconnected, reason, time::stamp(began.wall));
            }
        }
        let unanswered = self.paths.values().filter(|path| path.has_id && path.is_unanswered(settings)).count();
        let changed = time::stamp(now.wall);
        if unanswered * 2 > all {
            self.silent.get_or_insert(changed);
            self.answering = None;
        } else {
            self.answering.get_or_insert(changed);
            self.silent = None;
        }
    }

    /// What there is to tell.
    pub fn report(&self, backend: &str) -> PathReport {
        let rows = self.paths.iter().filter_map(|(node, path)| match path.settled {
            Settled::Bad(state, reason, since) => Some(Row { node: node.clone(), state, reason, since }),
            Settled::New | Settled::Connected => None,
        });
        let nodes = self.paths.values().filter(|path| path.has_id).count();
        let state = match (self.silent, self.answering) {
            (Some(since), _) => Some((BackendState::Silent, since)),
            (None, Some(since)) => Some((BackendState::Answering, since)),
            (None, None) => None,
        };
        PathReport::new(backend, state.filter(|_| !self.paths.is_empty()), nodes, rows.collect())
    }
}

impl Path {
    fn add(&mut self, answer: Answer, settings: &Settings, asked: Now) {
        self.asked = Some(asked.mono);
        self.count(answer, settings, asked);
    }

    /// Counts what is known at that moment, whether it was asked about by itself or not.
    fn count(&mut self, answer: Answer, settings: &Settings, asked: Now) {
        let same = |before: &Answer| std::mem::discriminant(before) == std::mem::discriminant(&answer);
        let run = match self.run.take() {
            Some((before, count, began)) if same(&before) => (answer, count.saturating_add(1), began),
            _ => (answer, 1, asked),
        };
        let count = run.1;
        self.run = Some(run);
        self.since_lost = match answer {
            Answer::Disconnected(_) => Some(0),
            _ => self.since_lost.map(|answers| answers.saturating_add(1)),
        };
        match (answer, self.settled) {
            (Answer::Connected, Settled::New) => self.settled = Settled::Connected,
            (Answer::Connected, Settled::Bad(..)) if count >= settings.recovery => self.settled = Settled::Connected,
            (Answer::Connected, Settled::Bad(PathState::Disconnected, ..)) => self.doubt(RECOVERING, asked),
            (Answer::Unknown(reason), Settled::Bad(PathState::Disconnected, ..)) => self.doubt(reason, asked),
            (Answer::Unknown(reason), Settled::New | Settled::Connected) if count >= settings.loss => {
                self.doubt(reason, asked);
            }
            _ => {}
        }
    }

    /// Nobody can tell any more.
    fn doubt(&mut self, reason: &'static str, now: Now) {
        if !matches!(self.settled, Settled::Bad(PathState::Unknown, ..)) {
            self.settled = Settled::Bad(PathState::Unknown, reason, time::stamp(now.wall));
        }
    }

    /// Whether it was told lately that it is lost, or nobody tells.
    fn is_doubtful(&self, settings: &Settings) -> bool {
        let was_lost = self.since_lost.is_some_and(|answers| answers < settings.loss);
        was_lost || matches!(self.run, Some((Answer::Unknown(_), ..)))
    }

    /// Whether it may be settled as something else soon.
    fn wavers(&self, settings: &Settings) -> bool {
        match self.run {
            Some((Answer::Disconnected(_) | Answer::Unknown(_), count, _)) => count < settings.loss,
            Some((Answer::Connected, ..)) => self.is_doubtful(settings),
            None => false,
        }
    }

    fn is_unanswered(&self, settings: &Settings) -> bool {
        matches!(self.run, Some((Answer::Unknown(_), count, _)) if count >= settings.loss)
    }
}
