//! One call from its arrival to its answer: log, faults, exclusion, the array's own rules.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tonic::{Code, Response, Status};

use super::ArrayOptions;
use super::calls::{CallLog, Method};
use super::faults::{Effect, FaultScript};
use super::state::State;
use crate::ledger::Ledger;
use crate::lock::lock;

/// What all services share. It outlives a crash of the driver, as an array does.
#[derive(Debug)]
pub(super) struct Driver {
    pub options: ArrayOptions,
    pub state: Mutex<State>,
    pub ledger: Ledger,
    pub faults: FaultScript,
    pub calls: CallLog,
    /// Changes when the link of a node does.
    pub links: watch::Sender<()>,
    /// Tells the owner of the driver's runtime to end it.
    pub crash: mpsc::UnboundedSender<()>,
}

/// What a call is about.
pub(super) struct About {
    pub method: Method,
    pub volume: String,
    pub node: String,
}

impl About {
    pub fn new(method: Method, volume: &str, node: &str) -> Self {
        About { method, volume: volume.to_owned(), node: node.to_owned() }
    }
}

impl Driver {
    /// Carries out one call. `act` gets the state under its lock, and the effects that only its method understands.
    ///
    /// The call goes on when the caller goes away: what was asked for can still happen later, as on real arrays.
    pub async fn call<T: Default + Send + 'static>(
        self: &Arc<Self>,
        about: About,
        act: impl FnOnce(&mut State, &[Effect]) -> Result<T, Status> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let log = self.calls.begin(about.method, &about.volume, &about.node);
        let driver = self.clone();
        let call = tokio::spawn(async move {
            let answer = driver.carry_out(&about, act).await;
            let code = answer.as_ref().err().map_or(Code::Ok, Status::code);
            driver.calls.end(log, code);
            answer
        });
        let answer = call.await;
        answer.map_err(|error| Status::internal(format!("the test array failed: {error}")))?.map(Response::new)
    }

    async fn carry_out<T: Default>(
        self: &Arc<Self>,
        about: &About,
        act: impl FnOnce(&mut State, &[Effect]) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let befallen = self.faults.befall(about.method, &about.volume, &about.node);
        for (id, effect) in &befallen {
            match effect {
                Effect::Hang => self.faults.released(*id).await,
                Effect::CrashBefore => self.die().await,
                _ => {}
            }
        }
        let effects: Vec<Effect> = befallen.into_iter().map(|(_, effect)| effect).collect();
        let _exclusion = self.exclude_others(about)?;
        tokio::time::sleep(latency(&effects)).await;
        if let Some(answer) = effects.iter().find_map(answer_without_doing) {
            return answer;
        }
        let done = act(&mut lock(&self.state), &effects);
        for effect in &effects {
            match effect {
                Effect::CrashAfter => self.die().await,
                Effect::DoThenFail(code) => return Err(injected(*code)),
                _ => {}
            }
        }
        done
    }

    fn exclude_others(self: &Arc<Self>, about: &About) -> Result<Option<Exclusion>, Status> {
        if !about.method.is_exclusive() {
            return Ok(None);
        }
        let volume: Arc<str> = about.volume.as_str().into();
        if !lock(&self.state).busy.insert(volume.clone()) {
            return Err(Status::aborted(format!("another operation on volume {volume} is under way")));
        }
        let driver = self.clone();
        Ok(Some(Exclusion { driver, volume }))
    }

    async fn die(&self) {
        // Nobody listens any more when the array is being dropped: then this call ends with it.
        let _ = self.crash.send(());
        std::future::pending().await
    }
}

/// Keeps other operations away from a volume while it lives.
struct Exclusion {
    driver: Arc<Driver>,
    volume: Arc<str>,
}

impl Drop for Exclusion {
    fn drop(&mut self) {
        lock(&self.driver.state).busy.remove(&self.volume);
    }
}

fn latency(effects: &[Effect]) -> Duration {
    let latencies = effects.iter().map(|effect| match effect {
        Effect::Latency(latency) => *latency,
        _ => Duration::ZERO,
    });
    latencies.sum()
}

fn answer_without_doing<T: Default>(effect: &Effect) -> Option<Result<T, Status>> {
    match effect {
        Effect::Fail(code) => Some(Err(injected(*code))),
        Effect::DoNothing => Some(Ok(T::default())),
        _ => None,
    }
}

fn injected(code: Code) -> Status {
    Status::new(code, "by the fault script")
}
