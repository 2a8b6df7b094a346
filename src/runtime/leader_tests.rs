use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use http::Method;
use serde_json::{Value, json};
use tokio::time::{Instant as TokioInstant, advance, sleep};

use super::*;
use crate::runtime::fake_api::{self, Call, Reply, ok, refuse, silence};

/// A leadership that a test switches.
pub(crate) struct Switch(watch::Sender<State>);

impl Switch {
    pub(crate) fn new() -> (Self, Leadership) {
        let (sender, receiver) = watch::channel(State::default());
        (Self(sender), Leadership(Some(receiver)))
    }

    pub(crate) fn lead_for(&self, time: Duration) {
        self.0.send_modify(|state| {
            state.term += 1;
            state.until = Some(monotonic() + time);
        });
    }

    pub(crate) fn stop(&self) {
        self.0.send_modify(|state| state.until = None);
    }
}

/// One Lease on a server with compare-and-swap, and all writes to it.
#[derive(Clone, Default)]
pub(crate) struct Server {
    lease: Arc<Mutex<Option<Value>>>,
    writes: Arc<Mutex<Vec<(TokioInstant, Value)>>>,
    /// Requests hang.
    pub(crate) down: Arc<AtomicBool>,
}

impl Server {
    fn client(&self) -> Client {
        let server = self.clone();
        fake_api::client(move |call| server.answer(&call))
    }

    fn answer(&self, call: &Call) -> Reply {
        if self.down.load(Ordering::SeqCst) {
            return silence();
        }
        let mut lease = self.lease.lock().unwrap();
        let version = |lease: &Option<Value>| lease.as_ref().map(|it| it["metadata"]["resourceVersion"].clone());
        match call.method {
            Method::GET => lease.clone().map_or_else(|| refuse(404, "NotFound"), ok),
            Method::POST if lease.is_some() => refuse(409, "AlreadyExists"),
            Method::PUT if version(&lease) != Some(call.body["metadata"]["resourceVersion"].clone()) => {
                refuse(409, "Conflict")
            }
            _ => {
                let mut writes = self.writes.lock().unwrap();
                writes.push((TokioInstant::now(), call.body.clone()));
                let mut written = call.body.clone();
                written["metadata"]["resourceVersion"] = json!(writes.len().to_string());
                *lease = Some(written.clone());
                ok(written)
            }
        }
    }

    pub(crate) fn holder(&self) -> String {
        let lease = self.lease.lock().unwrap();
        lease.as_ref().and_then(|it| it["spec"]["holderIdentity"].as_str()).unwrap_or_default().to_owned()
    }

    pub(crate) fn candidate(&self, identity: &str) -> (Leadership, JoinHandle<Ended>, CancellationToken) {
        let cancel = CancellationToken::new();
        let spec = LeaseSpec {
            namespace: "bulkhead-system".into(),
            name: "bulkhead-controller".into(),
            identity: identity.into(),
            times: LeaseTimes::default(),
        };
        let (leadership, ended) = lead(self.client(), spec, &Telemetry::new(), cancel.clone());
        (leadership, ended, cancel)
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_writes_at_most_once_in_five_seconds() {
    let server = Server::default();
    let (leadership, _ended, _cancel) = server.candidate("a");
    leadership.acquired().await;
    sleep(Duration::from_secs(60)).await;
    let writes: Vec<_> = server.writes.lock().unwrap().iter().map(|(at, _)| *at).collect();
    assert!((12..=13).contains(&writes.len()), "{} writes", writes.len());
    assert!(writes.windows(2).all(|pair| pair[1] - pair[0] >= Duration::from_secs(5)));
    assert!(leadership.remaining().unwrap() > Duration::from_secs(4));
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_released_on_cancel_and_the_next_takes_it_at_once() {
    let server = Server::default();
    let (first, ended, cancel) = server.candidate("a");
    first.acquired().await;
    let (second, ..) = server.candidate("b");
    sleep(Duration::from_secs(8)).await;
    assert_eq!(second.remaining(), None);
    assert_eq!((first.term(), second.term()), (1, 0));

    cancel.cancel();
    assert_eq!(ended.await.unwrap(), Ended::Stopped);
    assert_eq!(server.holder(), "");
    assert_eq!(first.remaining(), None);
    let released = TokioInstant::now();
    second.acquired().await;
    assert!(released.elapsed() <= Duration::from_secs(3), "{:?}", released.elapsed());
    assert!(server.holder().starts_with("b_"));
    let transitions = server.lease.lock().unwrap().clone().unwrap()["spec"]["leaseTransitions"].clone();
    assert_eq!(transitions, 2);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_renew_stops_before_anyone_may_take_over() {
    let server = Server::default();
    let (leadership, ended, _cancel) = server.candidate("a");
    leadership.acquired().await;
    let led = TokioInstant::now();
    server.down.store(true, Ordering::SeqCst);
    leadership.lost().await;
    assert_eq!(leadership.remaining(), None);
    assert!(leadership.require().is_err());
    assert!(led.elapsed() <= Duration::from_secs(10), "{:?}", led.elapsed());
    assert_eq!(ended.await.unwrap(), Ended::Lost);
}

#[tokio::test(start_paused = true)]
async fn one_failed_renewal_costs_nothing() {
    let server = Server::default();
    let (leadership, _ended, _cancel) = server.candidate("a");
    leadership.acquired().await;
    sleep(Duration::from_millis(4_900)).await;
    server.down.store(true, Ordering::SeqCst);
    sleep(Duration::from_millis(1_500)).await;
    server.down.store(false, Ordering::SeqCst);
    sleep(Duration::from_secs(20)).await;
    assert!(leadership.remaining().is_some());
    assert_eq!(leadership.term(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_dead_leader_is_followed_after_the_lease_and_not_earlier() {
    let server = Server::default();
    let (first, ended, _cancel) = server.candidate("a");
    first.acquired().await;
    let (second, ..) = server.candidate("b");
    sleep(Duration::from_secs(1)).await;
    ended.abort();
    let died = TokioInstant::now();
    second.acquired().await;
    let gap = died.elapsed();
    assert!(gap >= Duration::from_secs(13) && gap <= Duration::from_secs(18), "{gap:?}");
}

#[tokio::test(start_paused = true)]
async fn a_process_with_the_same_name_is_another_candidate() {
    let server = Server::default();
    let (first, ..) = server.candidate("same");
    first.acquired().await;
    let (second, ..) = server.candidate("same");
    sleep(Duration::from_secs(30)).await;
    assert!(first.remaining().is_some());
    assert_eq!(second.remaining(), None);
}

#[tokio::test(start_paused = true)]
async fn leadership_ends_by_the_clock_without_anyone_saying_so() {
    let (switch, leadership) = Switch::new();
    assert!(matches!(leadership.require(), Err(Error::NotLeader)));
    switch.lead_for(Duration::from_secs(10));
    advance(Duration::from_millis(9_999)).await;
    assert_eq!(leadership.remaining(), Some(Duration::from_millis(1)));
    advance(Duration::from_millis(1)).await;
    assert_eq!(leadership.remaining(), None);
    switch.stop();
    leadership.lost().await;
}
