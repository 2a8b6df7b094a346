//! Leader election over a `coordination.k8s.io` Lease, with the semantics of client-go.
//!
//! Safety rests on three rules. Every write is a compare-and-swap on resourceVersion. A Lease is taken over
//! only when *we* have watched it stand still for its whole duration, by our own monotonic clock; the
//! timestamps in it are for people. And a leader counts its time from *before* it sent the renewal, and stops
//! ([`LeaseTimes::give_up`]) earlier than anyone may take over ([`LeaseTimes::lease`]).
//!
//! What remains: a machine that is paused as a whole does not notice the time that passed. So leadership is
//! only ever a reason to try; destructive writes carry uid and resourceVersion besides.

use std::{
    future::pending,
    time::{Duration, Instant},
};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec as LeaseFields},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

pub use super::election::LeaseTimes;
use super::{
    clock::monotonic,
    election::{Candidate, Record, Step},
    random_bits,
    telemetry::Telemetry,
};
use crate::error::{Error, Result};

/// Longest single call to the API.
const CALL: Duration = Duration::from_secs(5);
/// What a release may take at shutdown.
const RELEASE: Duration = Duration::from_secs(1);

/// Which Lease, and as whom.
#[derive(Clone, Debug)]
pub struct LeaseSpec {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Who we are, usually the pod's name. A random suffix is added, so that two processes with the same
    /// name (or one that was restarted) are never taken for one.
    pub identity: String,
    /// Timing.
    pub times: LeaseTimes,
}

/// How an election ended for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was cancelled; the Lease was released if we held it.
    Stopped,
    /// We led and no longer do. Exit the process: memory may hold decisions of a term that is over.
    Lost,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    until: Option<Instant>,
    term: u64,
}

/// Whether this process leads, asked at the moment of each write. Clones share it.
#[derive(Clone, Debug)]
pub struct Leadership(Option<watch::Receiver<State>>);

impl Leadership {
    /// Leads for ever: for tests, and for programs that run once.
    pub fn always() -> Self {
        Self(None)
    }

    /// How long we lead for sure; `None` when we do not.
    pub fn remaining(&self) -> Option<Duration> {
        let Some(state) = &self.0 else {
            return Some(Duration::MAX);
        };
        let until = state.borrow().until?;
        until.checked_duration_since(monotonic()).filter(|left| !left.is_zero())
    }

    /// Like [`Leadership::remaining`], as a condition: [`Error::NotLeader`] unless we lead.
    pub fn require(&self) -> Result<Duration> {
        self.remaining().ok_or(Error::NotLeader)
    }

    /// Grows with each acquisition. What was observed in an earlier term is no evidence in this one.
    pub fn term(&self) -> u64 {
        self.0.as_ref().map_or(1, |state| state.borrow().term)
    }

    /// Returns once we lead; never if that does not happen.
    pub async fn acquired(&self) {
        let Some(mut state) = self.0.clone() else {
            return;
        };
        while self.remaining().is_none() {
            if state.changed().await.is_err() {
                return pending().await;
            }
        }
    }

    /// Returns once we have led and no longer do; never if that does not happen.
    pub async fn lost(&self) {
        let Some(mut state) = self.0.clone() else {
            return pending().await;
        };
        loop {
            let State { until, term } = *state.borrow_and_update();
            if term > 0 && self.remaining().is_none() {
                return;
            }
            let over = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until.into()).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = over => {}
                changed = state.changed() => if changed.is_err() && until.is_none() {
                    return pending().await;
                },
            }
        }
    }
}

/// Runs for the Lease in a task until `cancel` (then releases it) or until leadership is lost.
///
/// `client` must not retry ([`Clients::leases`](super::client::Clients)): a retry may write after we gave up.
pub fn lead(
    client: Client,
    spec: LeaseSpec,
    telemetry: &Telemetry,
    cancel: CancellationToken,
) -> (Leadership, JoinHandle<Ended>) {
    let (state, watched) = watch::channel(State::default());
    let me = format!("{}_{:08x}", spec.identity, random_bits() >> 32);
    let election = Election {
        api: Api::namespaced(client, &spec.namespace),
        candidate: Candidate::new(me.clone(), spec.times),
        me,
        spec,
        lease: None,
        told: None,
        state,
        gauge: telemetry.runtime.leader.clone(),
    };
    (Leadership(Some(watched)), tokio::spawn(election.run(cancel)))
}

/// The running election: carries out what [`Candidate`] decides.
struct Election {
    api: Api<Lease>,
    me: String,
    spec: LeaseSpec,
    candidate: Candidate,
    /// The Lease as last read or written.
    lease: Option<Lease>,
    /// The last failure that was told.
    told: Option<String>,
    state: watch::Sender<State>,
    gauge: prometheus_client::metrics::gauge::Gauge,
}

impl Election {
    async fn run(mut self, cancel: CancellationToken) -> Ended {
        let ended = cancel.run_until_cancelled(self.campaign()).await;
        let led = self.publish(None);
        if ended.is_none() && led {
            self.release().await;
        }
        ended.unwrap_or(Ended::Stopped)
    }

    /// Follows and leads; returns when leadership is lost.
    async fn campaign(&mut self) -> Ended {
        loop {
            let now = monotonic();
            let until = self.candidate.leads_until();
            if self.led() && until.is_none_or(|until| until <= now) {
                tracing::error!(lease = self.spec.name, "leadership is lost");
                return Ended::Lost;
            }
            // Never sleep or call beyond the end of our own term.
            let term_left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(now));
            match self.candidate.step(now) {
                Step::Wait(wait) => tokio::time::sleep(wait.min(term_left)).await,
                Step::Read => self.read(call_time(term_left)).await,
                Step::Claim => self.claim(call_time(term_left)).await,
            }
        }
    }

    async fn read(&mut self, limit: Duration) {
        match within(limit, self.api.get_opt(&self.spec.name)).await {
            Ok(lease) => {
                self.candidate.saw(lease.as_ref().map(record), monotonic());
                self.lease = lease;
            }
            Err(error) => {
                tracing::warn!(lease = self.spec.name, %error, "the Lease cannot be read");
                self.candidate.failed(monotonic());
            }
        }
    }

    async fn claim(&mut self, limit: Duration) {
        let desired = self.claimed_lease();
        let sent = monotonic();
        let parameters = PostParams::default();
        let written = match &self.lease {
            None => within(limit, self.api.create(&parameters, &desired)).await,
            Some(_) => within(limit, self.api.replace(&self.spec.name, &parameters, &desired)).await,
        };
        match written {
            Ok(lease) => {
                self.candidate.claimed(record(&lease), sent, monotonic());
                self.lease = Some(lease);
                self.publish(self.candidate.leads_until());
            }
            Err(error) => {
                self.tell(&error);
                self.candidate.failed(monotonic());
            }
        }
    }

    /// A replica that can never lead must not look like one that only waits. A conflict is the other replica's success.
    fn tell(&mut self, error: &Error) {
        let text = error.to_string();
        if error.is_conflict() || self.told.as_ref() == Some(&text) {
            tracing::debug!(lease = self.spec.name, error = text, "the Lease was not written");
            return;
        }
        let namespace = &self.spec.namespace;
        tracing::warn!(
            namespace,
            lease = self.spec.name,
            error = text,
            "the Lease cannot be written, so this replica does not lead: check that the namespace exists (--namespace) \
             and that its Role allows leases"
        );
        self.told = Some(text);
    }

    /// The Lease with us as its holder, based on what was read: its resourceVersion makes this a
    /// compare-and-swap.
    fn claimed_lease(&self) -> Lease {
        let mut lease = self.lease.clone().unwrap_or_else(|| Lease {
            metadata: ObjectMeta { name: Some(self.spec.name.clone()), ..Default::default() },
            ..Default::default()
        });
        let now = MicroTime(Timestamp::now());
        let fields = lease.spec.get_or_insert_with(LeaseFields::default);
        if fields.holder_identity.as_ref() != Some(&self.me) {
            fields.holder_identity = Some(self.me.clone());
            fields.acquire_time = Some(now.clone());
            fields.lease_transitions = Some(fields.lease_transitions.unwrap_or_default().saturating_add(1));
        }
        fields.renew_time = Some(now);
        fields.lease_duration_seconds = Some(i32::try_from(self.spec.times.lease.as_secs()).unwrap_or(i32::MAX));
        lease
    }

    /// Empties the Lease, so that the next leader need not wait. A renewal may still have been under way
    /// when we were cancelled, so the Lease is read first; if anything fails, it simply runs out.
    async fn release(&mut self) {
        let released = async {
            self.read(RELEASE).await;
            let Some(mut lease) = self.lease.clone() else {
                return Ok(());
            };
            let fields = lease.spec.get_or_insert_with(LeaseFields::default);
            if fields.holder_identity.as_ref() != Some(&self.me) {
                return Ok(());
            }
            fields.holder_identity = None;
            fields.lease_duration_seconds = Some(1);
            within(RELEASE, self.api.replace(&self.spec.name, &PostParams::default(), &lease)).await.map(drop)
        };
        let released = tokio::time::timeout(RELEASE, released).await;
        match released.unwrap_or(Err(Error::Deadline(RELEASE))) {
            Ok(()) => tracing::info!(lease = self.spec.name, "the Lease is released"),
            Err(error) => {
                tracing::warn!(lease = self.spec.name, %error, "the Lease is not released; it runs out")
            }
        }
    }

    fn led(&self) -> bool {
        self.state.borrow().until.is_some()
    }

    /// Tells everyone until when we lead; returns whether we led before.
    fn publish(&self, until: Option<Instant>) -> bool {
        let led = self.led();
        if until.is_some() && !led {
            tracing::info!(lease = self.spec.name, identity = self.me, "leading");
        }
        self.gauge.set(i64::from(until.is_some()));
        self.state.send_modify(|state| {
            state.term += u64::from(until.is_some() && !led);
            state.until = until;
        });
        led
    }
}

/// How long a call may take: half of what is left of our term, so that a hanging one can be repeated.
fn call_time(term_left: Duration) -> Duration {
    CALL.min(term_left / 2).max(Duration::from_millis(500).min(term_left))
}

async fn within<T>(limit: Duration, call: impl Future<Output = kube::Result<T>>) -> Result<T> {
    Ok(tokio::time::timeout(limit, call).await.map_err(|_| Error::Deadline(limit))??)
}

fn record(lease: &Lease) -> Record {
    let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone());
    Record {
        holder: holder.filter(|holder| !holder.is_empty()),
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
#[path = "leader_tests.rs"]
pub(crate) mod tests;
