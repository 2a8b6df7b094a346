//! Whether nodes reach the array behind the driver: asked through the podmon extension, once per node and period, counted,
//! and told in the DriverReport. Only the leader asks, and only where a policy wants to know and the driver can tell.
//! Nothing is written here: that is [`report`](super::report)'s.
//!
//! A driver has one backend, named after it: nothing in CSI tells on which array a volume lies, and the drivers with the
//! extension answer for all arrays that a node is to reach.

pub mod act;
pub mod decide;
pub mod driver;
pub mod memory;
pub mod metrics;
pub mod observe;
pub mod status;
#[cfg(test)]
mod tests;

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::driver_report::DriverReportStatus;
use crate::api::time::jittered;
use crate::runtime::random_unit;

use super::health::observe::Stores as Volumes;
use super::{Context, report};
use act::Asker;
use memory::Memory;
use metrics::Metrics;
use observe::Stores;
use status::PathReport;

/// How often a driver without the extension is asked whether it has one now.
const PROBE: Duration = Duration::from_secs(30);
/// How soon one that did not say.
const PROBE_AGAIN: Duration = Duration::from_secs(5);
/// How long nothing is looked at while nobody is to be asked about.
const IDLE: Duration = Duration::from_secs(5);

/// What there is to report of paths; nothing before the driver has told whether it can be asked.
pub type Reports = watch::Sender<Option<PathReport>>;

/// Asks about the nodes until `cancel`, while this replica leads.
pub async fn run(cx: Context, volumes: Volumes, reports: Reports, cancel: CancellationToken) {
    let work = async {
        cx.writer.leadership().acquired().await;
        let before = report::last(&cx).await;
        Watch::new(cx, reports, &before).run(volumes, &cancel).await;
    };
    cancel.run_until_cancelled(work).await;
}

struct Watch {
    cx: Context,
    reports: Reports,
    asker: Asker,
    memory: Memory,
    metrics: Metrics,
}

impl Watch {
    fn new(cx: Context, reports: Reports, before: &DriverReportStatus) -> Self {
        let metrics = Metrics::register(&cx.telemetry);
        let asker = Asker::new(&cx, metrics.clone());
        let memory = Memory::from_report(before, cx.clock.now());
        Self { cx, reports, asker, memory, metrics }
    }

    async fn run(mut self, volumes: Volumes, cancel: &CancellationToken) {
        // A driver that cannot be asked costs no watch of pods.
        self.wait_for_extension().await;
        if !self.memory.lost().is_empty() {
            self.publish();
        }
        let stores = Stores::spawn(&self.cx, volumes, cancel);
        stores.synced().await;
        loop {
            let began = Instant::now();
            let wait = self.cycle(&stores).await;
            tokio::time::sleep_until(began + wait).await;
        }
    }

    /// Asks about every node that is to be asked about. Returns how long after its beginning the next begins.
    async fn cycle(&mut self, stores: &Stores) -> Duration {
        let wanted = stores.wanted(&self.cx.name, &self.memory.lost());
        self.memory.keep(&wanted.nodes, self.cx.clock.now());
        let Some(settings) = wanted.settings else {
            self.publish();
            return IDLE;
        };
        if !self.asker.cycle(&mut self.memory, &settings, &wanted.nodes).await {
            // The driver was replaced by one that has no extension.
            self.memory.forget();
            self.tell(Some(PathReport::unsupported()));
            self.wait_for_extension().await;
            return Duration::ZERO;
        }
        self.publish();
        jittered(settings.period, random_unit())
    }

    /// Returns once the driver can be asked. Whether it can is never settled for good: it may be replaced, or be slow now.
    async fn wait_for_extension(&mut self) {
        loop {
            match self.asker.is_supported().await {
                Some(true) => return,
                Some(false) => {
                    self.tell(Some(PathReport::unsupported()));
                    tokio::time::sleep(PROBE).await;
                }
                None => tokio::time::sleep(PROBE_AGAIN).await,
            }
        }
    }

    fn publish(&self) {
        let report = self.memory.report(&self.cx.name);
        self.metrics.paths(&report);
        self.tell(Some(report));
    }

    fn tell(&self, report: Option<PathReport>) {
        self.reports.send_if_modified(|told| {
            let news = *told != report;
            if news {
                *told = report;
            }
            news
        });
    }
}
