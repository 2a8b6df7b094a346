//! What is to go wrong with which calls.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Method;

use crate::lock::lock;

/// What happens instead of an answer, or before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// This status and an error, without any effect.
    Status(u16),
    /// The answer comes so much later.
    Delay(Duration),
    /// No answer, ever.
    Silence,
    /// An answer that is no JSON.
    Garbage,
    /// Somebody else writes to the volume just before: its version is another.
    Overtaken,
    /// The call is carried out, and then the status says that it was not.
    LostAnswer,
}

/// Which calls, and what happens to them.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Calls of this method; of all without.
    pub method: Option<Method>,
    /// Calls whose path contains this.
    pub path: String,
    /// How often; always without.
    pub times: Option<usize>,
    /// What happens.
    pub effect: Effect,
}

impl Fault {
    /// To all calls whose path contains this.
    pub fn to(path: &str, effect: Effect) -> Self {
        Self { method: None, path: path.to_owned(), times: None, effect }
    }

    /// Only so often.
    #[must_use]
    pub fn times(self, times: usize) -> Self {
        Self { times: Some(times), ..self }
    }

    /// Only to calls of this method.
    #[must_use]
    pub fn with(self, method: Method) -> Self {
        Self { method: Some(method), ..self }
    }

    fn hits(&self, method: &Method, path: &str) -> bool {
        self.times != Some(0) && self.method.as_ref().is_none_or(|it| it == method) && path.contains(&self.path)
    }
}

/// Names a fault, to take it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultId(u64);

/// The faults of one server. Cheap to clone; all clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<Set>>);

#[derive(Debug, Default)]
struct Set {
    added: u64,
    faults: Vec<(FaultId, Fault)>,
}

impl Faults {
    /// From now on, until it is taken back or has come as often as it should.
    pub fn add(&self, fault: Fault) -> FaultId {
        let mut set = lock(&self.0);
        set.added += 1;
        let id = FaultId(set.added);
        set.faults.push((id, fault));
        id
    }

    /// No more.
    pub fn remove(&self, id: FaultId) {
        lock(&self.0).faults.retain(|(of, _)| *of != id);
    }

    /// The first fault that hits this call; it has come once more then.
    pub(super) fn of(&self, method: &Method, path: &str) -> Option<Effect> {
        let mut set = lock(&self.0);
        let (_, fault) = set.faults.iter_mut().find(|(_, fault)| fault.hits(method, path))?;
        fault.times = fault.times.map(|times| times.saturating_sub(1));
        Some(fault.effect)
    }
}
