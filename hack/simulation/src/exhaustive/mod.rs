//! Every schedule of a small world, under a model checker: the same `World`, driven by the same decisions. A state is
//! the world after something was written or called; from each, it goes on as it would, or one of a few faults happens,
//! as often as the bounds allow. What is not chosen is prompt and always the same.

mod identity;
mod small;

pub use small::Small;

use std::time::{Duration, Instant};

use bulkhead::api::node_fence::Phase;
use bulkhead::mutants::{Mutant, throw};
use stateright::{Checker, HasDiscoveries, Model, Path, Property};

use self::identity::History;
use crate::chance::{Chance, Choice};
use crate::faults::Fault;
use crate::time::{Millis, SECOND};
use crate::world::{Task, World};

/// A step in which nothing is written is this long at most.
const STEP: Millis = 10 * SECOND;

/// How far to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Faults beside the one that the world begins with.
    pub faults: u32,
    /// For how long after the first failure is noticed.
    pub horizon: Millis,
    /// And for how long after the last fault.
    pub aftermath: Millis,
    /// When to give up.
    pub timeout: Duration,
}

/// In which order states are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The shortest schedules first: what is found is a shortest one.
    Breadth,
    /// One schedule to its end after the other: in much less memory.
    Depth,
}

/// The small worlds and how far to look.
#[derive(Clone, Debug)]
pub struct Exhaustive {
    /// How far to look.
    pub bounds: Bounds,
    /// What is taken out.
    pub mutant: Option<Mutant>,
    /// The worlds that it begins with.
    pub worlds: Vec<Small>,
}

/// What happens next.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// What would happen anyway, up to the next write or call of a program under test; to the end, if no fault is left.
    GoOn,
    /// A fault.
    Fault(Fault),
}

/// A world and what may yet go wrong in it. Two are the same if they go on alike.
#[derive(Clone)]
pub struct State {
    small: Small,
    world: World,
    faults_left: u32,
    ends: Millis,
    history: History,
    identity: u64,
}

/// What the search came to.
#[derive(Clone, Debug)]
pub struct Report {
    /// Steps taken.
    pub steps: usize,
    /// Different states reached.
    pub states: usize,
    /// Steps of the longest schedule.
    pub depth: usize,
    /// How long it took.
    pub took: Duration,
    /// Every schedule within the bounds was looked at.
    pub is_complete: bool,
    /// What was reached: that the search is about something.
    pub reached: Vec<&'static str>,
    /// What is broken, with the schedule that breaks it.
    pub broken: Vec<(&'static str, String)>,
}

/// Nothing is late but a watch that is slow, and that brings nothing for a minute and a half.
struct Steady;

impl Chance for Steady {
    fn pick(&mut self, choice: Choice, options: u64) -> u64 {
        if choice == Choice::Watch && options > SECOND { 90 * SECOND } else { 0 }
    }
}

impl State {
    fn new(small: Small, bounds: Bounds) -> Self {
        let world = small.begin(&mut Steady);
        let ends = world.now + bounds.horizon;
        let mut state =
            Self { small, world, faults_left: bounds.faults, ends, history: History::default(), identity: 0 };
        state.identify();
        state
    }

    fn identify(&mut self) {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        self.history.read(&self.world.api);
        let world = identity::identity(&self.world, self.history);
        (world, self.small, self.faults_left, self.ends).hash(&mut hasher);
        self.identity = hasher.finish();
    }

    fn is_over(&self) -> bool {
        self.world.now >= self.ends || !self.world.oracle.is_clean()
    }

    /// To the next point where a fault may come; where none is left, to the end.
    fn go_on(&mut self) {
        let (sent, until) = (self.world.counts.writes, self.world.now + STEP);
        if self.faults_left == 0 {
            self.world.run_until(self.ends, &mut Steady);
            return;
        }
        while self.world.now < until && self.world.counts.writes == sent && self.world.step(&mut Steady) {}
    }

    fn befall(&mut self, fault: Fault, aftermath: Millis) {
        self.world.perform(Task::Fault(Box::new(fault)), &mut Steady);
        self.faults_left -= 1;
        self.ends = self.ends.max(self.world.now + aftermath);
    }

    fn holds(&self, invariant: &str) -> bool {
        self.world.oracle.violations.iter().all(|violation| violation.invariant != invariant)
    }

    fn has_reached(&self, phase: Phase) -> bool {
        let phases = self.world.api.fences.values().filter_map(|fence| fence.status.as_ref()?.phase);
        phases.into_iter().any(|it| it == phase)
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.identity == other.identity
    }
}

impl std::hash::Hash for State {
    fn hash<H: std::hash::Hasher>(&self, hasher: &mut H) {
        self.identity.hash(hasher);
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} at {:.3} s", self.small, self.world.now as f64 / 1000.0)
    }
}

impl Model for Exhaustive {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let _thrown = throw(self.mutant);
        self.worlds.iter().map(|small| State::new(*small, self.bounds)).collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.is_over() {
            return;
        }
        actions.push(Action::GoOn);
        if state.faults_left > 0 {
            actions.extend(small::faults(&state.world).into_iter().map(Action::Fault));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let _thrown = throw(self.mutant);
        let mut next = last.clone();
        match action {
            Action::GoOn => next.go_on(),
            Action::Fault(fault) => next.befall(fault, self.bounds.aftermath),
        }
        next.identify();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("I1", |_, state: &State| state.holds("I1")),
            Property::always("I2", |_, state: &State| state.holds("I2")),
            Property::always("I3", |_, state: &State| state.holds("I3")),
            Property::always("I4", |_, state: &State| state.holds("I4")),
            Property::always("I5", |_, state: &State| state.holds("I5")),
            Property::always("schema", |_, state: &State| state.holds("schema")),
            // In the end everything that can be released is.
            Property::always("I7", |_, state: &State| !state.is_over() || small::is_released(&state.world)),
            Property::sometimes("a pod is released", |_, state: &State| state.world.counts.released > 0),
            Property::sometimes("an incident is undone", |_, state: &State| state.world.counts.undone > 0),
            Property::sometimes("a node is given back", |_, state: &State| state.has_reached(Phase::Recovered)),
            Property::sometimes("a lie is caught", |_, state: &State| state.world.counts.still_published > 0),
            Property::sometimes("a second leader", |_, state: &State| state.world.counts.terms_lost > 0),
            Property::sometimes("a brake holds", |_, state: &State| state.world.counts.restrained > 0),
        ]
    }
}

impl Exhaustive {
    /// Looks at every schedule within the bounds, or until one breaks something.
    pub fn search(self, order: Order, threads: usize) -> Report {
        let begun = Instant::now();
        let bounds = self.bounds;
        let checker = self.checker().threads(threads).timeout(bounds.timeout);
        let checker = checker.finish_when(HasDiscoveries::AnyFailures);
        match order {
            Order::Breadth => Report::of(&checker.spawn_bfs().join(), begun, bounds),
            Order::Depth => Report::of(&checker.spawn_dfs().join(), begun, bounds),
        }
    }

    /// A schedule in words.
    fn tell(&self, path: Path<State, Action>) -> String {
        let _thrown = throw(self.mutant);
        let steps = path.into_vec();
        let Some((first, _)) = steps.first() else { return String::new() };
        let mut state = first.clone();
        state.world.trace = Some(Vec::new());
        for action in steps.into_iter().filter_map(|(_, action)| action) {
            match action {
                Action::GoOn => state.go_on(),
                Action::Fault(fault) => state.befall(fault, self.bounds.aftermath),
            }
        }
        let broken = state.world.oracle.violations.iter().map(ToString::to_string);
        let told = state.world.trace.clone().unwrap_or_default().into_iter().chain(broken);
        format!("{:?}\n{}", state.small, told.collect::<Vec<_>>().join("\n"))
    }
}

impl Report {
    fn of(checker: &impl Checker<Exhaustive>, begun: Instant, bounds: Bounds) -> Self {
        let took = begun.elapsed();
        let (mut reached, mut broken) = (Vec::new(), Vec::new());
        for (name, path) in checker.discoveries() {
            match checker.model().property(name).expectation {
                stateright::Expectation::Sometimes => reached.push(name),
                _ => broken.push((name, checker.model().tell(path))),
            }
        }
        reached.sort_unstable();
        Self {
            steps: checker.state_count(),
            states: checker.unique_state_count(),
            depth: checker.max_depth(),
            took,
            is_complete: broken.is_empty() && took < bounds.timeout,
            reached,
            broken,
        }
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { steps, states, depth, took, .. } = self;
        let verdict = if self.is_complete { "all schedules within the bounds" } else { "not all schedules" };
        write!(f, "{states} states, {steps} steps, {depth} deep, in {:.1} s: {verdict}", took.as_secs_f64())
    }
}

/// The bounds of a quick look: one fault at any point.
pub const QUICK: Bounds =
    Bounds { faults: 1, horizon: 40 * SECOND, aftermath: 100 * SECOND, timeout: Duration::from_secs(600) };

/// All small worlds, as the product is.
pub fn all(bounds: Bounds) -> Exhaustive {
    Exhaustive { bounds, mutant: None, worlds: Small::ALL.to_vec() }
}
