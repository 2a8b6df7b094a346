//! A program under test as a process: it leads or follows, sleeps, crashes and starts again; and its work queue.

pub mod controller;
mod effects;
pub(crate) mod hearing;
mod life;
pub mod network;
pub mod queue;
pub mod sidecar;
pub mod views;
mod writes;

use std::time::Duration;

use bulkhead::api::time::Now;
use bulkhead::runtime::election::{Candidate, LeaseTimes};

use crate::time::{Clocks, Millis};

/// Number of a process.
pub type Pid = usize;

/// What a process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// One of the controllers.
    Controller,
    /// A sidecar of the driver of that name.
    Sidecar(String),
}

/// A process.
#[derive(Clone, Debug)]
pub struct Process {
    /// What it is.
    pub role: Role,
    /// Name of the Lease it leads by.
    pub lease: String,
    /// Counts its starts. What belongs to an earlier life has no effect.
    pub life: u32,
    /// When it last started.
    pub started_at: Millis,
    /// Whether it runs.
    pub is_up: bool,
    /// Until when it stands still.
    pub stands_until: Option<Millis>,
    /// When it last woke, if it ever stood still.
    pub woke_at: Option<Millis>,
    /// Its clocks.
    pub clocks: Clocks,
    /// Its part in the election.
    pub candidate: Candidate,
    /// Whether it has led in this life.
    pub has_led: bool,
    /// Version of the Lease as it was last read or written.
    pub seen_version: Option<String>,
    /// A claim is on its way.
    pub is_claiming: bool,
    /// What it has to do.
    pub queue: queue::Queue,
}

impl Process {
    /// A process that has not started.
    pub fn new(role: Role, lease: String) -> Self {
        Self {
            role,
            lease,
            life: 0,
            started_at: 0,
            is_up: false,
            stands_until: None,
            woke_at: None,
            clocks: Clocks::default(),
            candidate: Candidate::new(String::new(), LeaseTimes::default()),
            has_led: false,
            seen_version: None,
            is_claiming: false,
            queue: queue::Queue::default(),
        }
    }

    /// It starts, and knows nothing.
    pub fn start(&mut self, pid: Pid, at: Millis) {
        self.life += 1;
        self.started_at = at;
        self.is_up = true;
        self.stands_until = None;
        self.candidate = Candidate::new(format!("p{pid}-{}", self.life), LeaseTimes::default());
        self.has_led = false;
        self.is_claiming = false;
        self.seen_version = None;
        self.queue = queue::Queue::default();
    }

    /// Its name in the election.
    pub fn identity(&self, pid: Pid) -> String {
        format!("p{pid}-{}", self.life)
    }

    /// What its clocks show.
    pub fn now(&self, at: Millis) -> Now {
        self.clocks.now(at)
    }

    /// How long it leads for sure, as far as it knows.
    pub fn leads_for(&self, at: Millis) -> Option<Duration> {
        let until = self.candidate.leads_until()?;
        until.checked_duration_since(self.now(at).mono).filter(|left| !left.is_zero())
    }

    /// Whether it works on what it has to do.
    pub fn is_awake(&self, at: Millis) -> bool {
        self.is_up && self.stands_until.is_none_or(|until| until <= at)
    }
}
