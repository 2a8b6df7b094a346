//! Stands between one of our programs and those it calls (API server, CSI driver), numbers the calls, and stops at a chosen
//! one: before it is sent, or when it is done and its answer is on the way. From that moment on nothing passes until
//! somebody says what becomes of the program.
//!
//! A [`Script`] says where to stop, and outlives processes; each process has a [`Tap`] of its own.

mod api;
mod csi;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;

pub(crate) use self::api::serve as serve_api;
pub(crate) use self::csi::serve as serve_csi;

use crate::lock::lock;

/// On which side of a call to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moment {
    /// It was not sent.
    Before,
    /// It is done; its answer did not arrive.
    After,
}

/// A call as it is numbered: the API's writes by verb and resource (`update nodefences/status`), but for Leases and
/// Events; all gRPC calls by method (`ListVolumes`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    /// What is called.
    pub what: String,
    /// The how-many-eth of its kind, from 1.
    pub number: usize,
}

/// A place to stop at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    /// The call.
    pub call: Call,
    /// The side of it.
    pub moment: Moment,
}

impl Site {
    /// Before the call of that kind and number is sent.
    pub fn before(what: &str, number: usize) -> Self {
        Self { call: Call { what: what.to_owned(), number }, moment: Moment::Before }
    }

    /// When the call of that kind and number is done.
    pub fn after(what: &str, number: usize) -> Self {
        Self { moment: Moment::After, ..Self::before(what, number) }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = match self.moment {
            Moment::Before => "before",
            Moment::After => "after",
        };
        write!(f, "{side} {} #{}", self.call.what, self.call.number)
    }
}

/// What to count and where to stop. Cheap to clone; all clones are the same script.
#[derive(Clone, Debug, Default)]
pub struct Script(Arc<Mutex<Plan>>);

#[derive(Debug, Default)]
struct Plan {
    /// What the names of counted objects contain.
    subject: String,
    sites: Vec<Site>,
    numbers: BTreeMap<String, usize>,
    calls: Vec<Call>,
}

impl Script {
    /// Counts from the beginning: writes to objects with this in their names, attachments, NetworkFences, and all gRPC
    /// calls. Stops at each of these sites once.
    pub fn begin(&self, subject: &str, sites: Vec<Site>) {
        *lock(&self.0) = Plan { subject: subject.to_owned(), sites, ..Plan::default() };
    }

    /// The calls so far, in the order in which they came.
    pub fn calls(&self) -> Vec<Call> {
        lock(&self.0).calls.clone()
    }

    /// The sites that were not come to yet.
    pub fn left(&self) -> Vec<Site> {
        lock(&self.0).sites.clone()
    }

    /// The way of one more process.
    pub fn tap(&self) -> Tap {
        Tap { script: self.clone(), valve: watch::Sender::new(Valve::Open), chosen: watch::Sender::new(0) }
    }

    /// Numbers a call, and takes the site that it is off the list.
    fn count(&self, heard: Heard) -> Option<Site> {
        let mut plan = lock(&self.0);
        if heard.object.is_some_and(|object| !object.contains(&plan.subject)) {
            return None;
        }
        let number = plan.numbers.entry(heard.what.clone()).or_default();
        *number += 1;
        let call = Call { what: heard.what, number: *number };
        plan.calls.push(call.clone());
        let at = plan.sites.iter().position(|site| site.call == call)?;
        Some(plan.sites.remove(at))
    }
}

/// A call that is to be numbered.
#[derive(Debug)]
struct Heard {
    what: String,
    /// The name by which it is told whether it counts; without one it does.
    object: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Valve {
    Open,
    /// Every call waits.
    Shut(Site),
    /// Every call is refused, and so are those that waited.
    Ended,
}

/// The way of one process to those it calls. Cheap to clone; all clones are the same way.
#[derive(Clone, Debug)]
pub struct Tap {
    script: Script,
    valve: watch::Sender<Valve>,
    /// Calls under way at which it stopped, or will when they are done.
    chosen: watch::Sender<usize>,
}

impl Tap {
    /// Returns when it stopped at a site: nothing passes any more.
    pub async fn stopped(&self) -> Site {
        let mut valve = self.valve.subscribe();
        loop {
            if let Valve::Shut(site) = &*valve.borrow_and_update() {
                return site.clone();
            }
            if valve.changed().await.is_err() {
                // Not reached: a sender is in `self`.
                return std::future::pending().await;
            }
        }
    }

    /// Returns when no call is under way at which it stopped or will stop.
    pub async fn quiet(&self) {
        // The sender is in `self`, so this cannot fail.
        let _ = self.chosen.subscribe().wait_for(|chosen| *chosen == 0).await;
    }

    /// Lets everything pass that waits, late as it is.
    pub fn go_on(&self) {
        self.valve.send_replace(Valve::Open);
    }

    /// Nothing of this process passes any more, ever: it is dead.
    pub fn end(&self) {
        self.valve.send_replace(Valve::Ended);
    }

    /// Makes a call, unless the process is dead.
    async fn pass<T>(&self, heard: Option<Heard>, send: impl Future<Output = T>) -> Option<T> {
        self.open().await?;
        match heard.and_then(|heard| self.script.count(heard)) {
            Some(site) => {
                self.chosen.send_modify(|chosen| *chosen += 1);
                let answer = self.stop_at(site, send).await;
                self.chosen.send_modify(|chosen| *chosen -= 1);
                answer
            }
            None => {
                let answer = send.await;
                // Nor does an answer pass while it is shut: what is done is not yet known.
                self.open().await?;
                Some(answer)
            }
        }
    }

    async fn stop_at<T>(&self, site: Site, send: impl Future<Output = T>) -> Option<T> {
        if site.moment == Moment::Before {
            self.shut(site);
            self.open().await?;
            return Some(send.await);
        }
        let answer = send.await;
        self.shut(site);
        self.open().await?;
        Some(answer)
    }

    fn shut(&self, site: Site) {
        self.valve.send_if_modified(|valve| {
            let open = *valve == Valve::Open;
            if open {
                *valve = Valve::Shut(site);
            }
            open
        });
    }

    /// Waits while it is shut; `None` once the process is dead.
    async fn open(&self) -> Option<()> {
        let mut valve = self.valve.subscribe();
        let settled = valve.wait_for(|valve| !matches!(valve, Valve::Shut(_))).await.ok()?;
        (*settled == Valve::Open).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(what: &str, object: &str) -> Option<Heard> {
        Some(Heard { what: what.to_owned(), object: Some(object.to_owned()) })
    }

    #[tokio::test]
    async fn it_stops_before_and_after_the_call_that_was_chosen() {
        let script = Script::default();
        script.begin("mine", vec![Site::before("patch nodes", 2), Site::after("delete pods", 1)]);
        let tap = script.tap();
        assert_eq!(tap.pass(heard("patch nodes", "mine-1"), async { 1 }).await, Some(1));
        assert_eq!(tap.pass(heard("patch nodes", "other"), async { 2 }).await, Some(2), "not counted");
        let waits = tokio::spawn({
            let tap = tap.clone();
            async move { tap.pass(heard("patch nodes", "mine-1"), async { 3 }).await }
        });
        assert_eq!(tap.stopped().await.to_string(), "before patch nodes #2");
        assert!(!waits.is_finished());
        tap.go_on();
        assert_eq!(waits.await.unwrap(), Some(3));

        let (sent, done) = tokio::sync::oneshot::channel();
        let waits = tokio::spawn({
            let tap = tap.clone();
            async move { tap.pass(heard("delete pods", "mine-1"), async { sent.send(()) }).await }
        });
        assert_eq!(tap.stopped().await, Site::after("delete pods", 1));
        done.await.expect("it was sent");
        tap.end();
        assert_eq!(waits.await.unwrap(), None, "a dead process gets no answer");
        assert_eq!(tap.pass(None, async {}).await, None);
        assert_eq!(script.left(), []);
        assert_eq!(script.calls().len(), 3);
    }
}
