//! What the CSI driver's controller says of its volumes: asked in sweeps, each volume at the interval of the policy that
//! rules it, counted, and told in the DriverReport. Only the leader asks. Nothing is written here: that is
//! [`report`](super::report)'s.

pub mod act;
pub mod clean;
pub mod decide;
pub mod driver;
pub mod memory;
pub mod metrics;
pub mod observe;
pub mod schedule;
pub mod status;
#[cfg(test)]
mod tests;

use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::api::driver_report::DriverReportStatus;
use crate::runtime::lock::lock;
use crate::runtime::random_unit;

use super::{Context, report};
use act::Sweeper;
use driver::Health;
use memory::{Memory, Volumes};
use metrics::Metrics;
use observe::Stores;
use schedule::Schedule;
use status::VolumeReport;

/// Changes of the cluster are gathered for so long.
const GATHER: Duration = Duration::from_secs(1);
/// How long nothing is looked at though nothing changes: an attachment's grace may end.
const IDLE: Duration = Duration::from_secs(10);

/// What there is to report of the volumes; nothing before our own last report was read.
pub type Reports = watch::Sender<Option<VolumeReport>>;

/// Watches the driver's volumes until `cancel`, while this replica leads.
pub async fn run(cx: Context, stores: Stores, reports: Reports, cancel: CancellationToken) {
    let work = async {
        stores.synced().await;
        cx.writer.leadership().acquired().await;
        let before = report::last(&cx).await;
        Watch::new(cx, stores, reports, &before).run().await;
    };
    cancel.run_until_cancelled(work).await;
}

struct Watch {
    cx: Context,
    stores: Stores,
    reports: Reports,
    memory: Mutex<Memory>,
    sweeper: Sweeper,
    metrics: Metrics,
    /// The volumes are known by a sweep, of ours or of the leader before us.
    known: bool,
}

impl Watch {
    fn new(cx: Context, stores: Stores, reports: Reports, before: &DriverReportStatus) -> Self {
        let metrics = Metrics::register(&cx.telemetry);
        let health = Health::new(cx.driver.clone(), metrics.clone());
        let sweeper = Sweeper::new(health, cx.clock.clone());
        let memory = Mutex::new(Memory::from_report(before));
        Self { cx, stores, reports, memory, sweeper, metrics, known: before.coverage.is_some() }
    }

    async fn run(mut self) {
        let mut schedule = Schedule::default();
        let mut volumes = self.stores.volumes.subscribe();
        let mut policies = self.stores.policies.subscribe();
        let mut attachments = self.stores.attachments.subscribe();
        loop {
            let watched = self.stores.watched(&self.cx.name);
            lock(&self.memory).keep(&watched);
            self.metrics.checked(watched.len());
            self.publish(&watched);
            let now = self.cx.clock.now().mono;
            let due = schedule.due(&watched, now, random_unit);
            if !due.is_empty() {
                self.sweep(&watched, &due).await;
                continue;
            }
            let idle = schedule.next().map_or(IDLE, |next| next.saturating_duration_since(now).min(IDLE));
            tokio::select! {
                () = tokio::time::sleep(idle) => continue,
                _ = volumes.recv() => {}
                _ = policies.recv() => {}
                _ = attachments.recv() => {}
            }
            tokio::time::sleep(GATHER).await;
            while volumes.try_recv().is_ok() {}
            while policies.try_recv().is_ok() {}
            while attachments.try_recv().is_ok() {}
        }
    }

    async fn sweep(&mut self, watched: &Volumes, due: &Volumes) {
        let began = self.cx.clock.now().mono;
        let (stores, memory, reports, known) = (&self.stores, &self.memory, &self.reports, self.known);
        let mut told = began;
        let changed = || {
            // A thousand volumes that change at once are one report, not a thousand.
            let now = self.cx.clock.now().mono;
            if now.saturating_duration_since(told) >= GATHER {
                told = now;
                publish(reports, memory, watched, known, &self.cx);
            }
        };
        let asked = self.sweeper.sweep(memory, due, |attachment| stores.holds(attachment), changed).await;
        self.known = asked.unwrap_or(self.known);
        self.publish(watched);
        let took = self.cx.clock.now().mono.saturating_duration_since(began);
        self.metrics.swept(took, lock(&self.memory).oldest());
    }

    fn publish(&self, watched: &Volumes) {
        publish(&self.reports, &self.memory, watched, self.known, &self.cx);
    }
}

fn publish(reports: &Reports, memory: &Mutex<Memory>, watched: &Volumes, known: bool, cx: &Context) {
    let memory = lock(memory);
    let report = VolumeReport::new(memory.rows(watched, cx.clock.now()), known.then_some(watched.len()));
    reports.send_if_modified(|told| {
        let news = told.as_ref() != Some(&report);
        if news {
            *told = Some(report);
        }
        news
    });
}
