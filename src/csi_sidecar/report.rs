//! The DriverReport: what the driver can answer, and what it says of its volumes and of the nodes that reach it. Written on change only, here and nowhere
//! else. Silence means unknown.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference};
use kube::{Api, Resource};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::api::conditions::{self, State};
use crate::api::driver_report::{Capability, DriverReport, DriverReportSpec, DriverReportStatus, NetworkFenceClients};
use crate::api::slim::CsiDriver;
use crate::error::{Error, Result};
use crate::runtime::clock::Now;
use crate::runtime::events::EventType;

use super::Context;
use super::connectivity::status::{PathReport, news};
use super::decide::Failure;
use super::health::status::VolumeReport;
use super::network_fence::{self, Classes, clients};

/// How often the driver is asked what it can do.
const PERIOD: Duration = Duration::from_secs(30);
/// How soon after a failure.
const RETRY: Duration = Duration::from_secs(2);
/// Between two writes.
const PAUSE: Duration = Duration::from_secs(1);
/// Deadline of one call.
const DEADLINE: Duration = Duration::from_secs(10);

/// What the driver can answer, or that it does not.
type Answer = Result<BTreeSet<Capability>, Failure>;

/// What was asked.
struct Asked {
    /// The driver.
    answer: Answer,
    /// By which classes csi-addons can shut addresses out for it; `None` where that cannot be told now.
    classes: Option<Classes>,
    /// By what the storage knows the nodes; `None` as above.
    clients: Option<Vec<NetworkFenceClients>>,
}

/// What others have to report.
pub struct Parts {
    /// On volumes.
    pub volumes: watch::Receiver<Option<VolumeReport>>,
    /// On paths.
    pub paths: watch::Receiver<Option<PathReport>>,
}

/// What they have reported. Nothing is known before the last report was read: what that says stays.
#[derive(Clone, Default)]
struct Known {
    volumes: Option<VolumeReport>,
    paths: Option<PathReport>,
}

impl Parts {
    fn known(&mut self) -> Known {
        Known { volumes: self.volumes.borrow_and_update().clone(), paths: self.paths.borrow_and_update().clone() }
    }

    async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        tokio::select! {
            changed = self.volumes.changed() => changed,
            changed = self.paths.changed() => changed,
        }
    }
}

/// What the leader before us reported.
pub(super) async fn last(cx: &Context) -> DriverReportStatus {
    let api: Api<DriverReport> = Api::all(cx.clients.reads.clone());
    loop {
        match api.get_opt(&cx.name).await {
            Ok(report) => return report.and_then(|report| report.status).unwrap_or_default(),
            Err(error) => tracing::warn!(%error, driver = cx.name, "DriverReport not read; it is tried again"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Keeps the report true for ever; writes only while this replica leads, and at most once per second.
pub async fn run(cx: Context, mut parts: Parts) {
    let mut memory = clients::Memory::default();
    loop {
        cx.writer.leadership().acquired().await;
        let asked = ask(&cx, &mut memory).await;
        lift_left_behind(&cx, &asked).await;
        let mut again = Instant::now() + if asked.answer.is_ok() { PERIOD } else { RETRY };
        loop {
            let known = parts.known();
            if let Err(error) = write(&cx, &asked, &known).await {
                tracing::warn!(%error, driver = cx.name, "DriverReport not written");
                again = again.min(Instant::now() + RETRY);
            }
            tokio::time::sleep(PAUSE).await;
            let news = tokio::time::timeout_at(again, parts.changed()).await;
            if !matches!(news, Ok(Ok(()))) {
                break;
            }
        }
        tokio::time::sleep_until(again).await;
    }
}

/// Asks the driver and writes what changed. Returns whether the driver answered.
pub async fn refresh(cx: &Context) -> Result<bool> {
    let asked = ask(cx, &mut clients::Memory::default()).await;
    write(cx, &asked, &Known::default()).await?;
    Ok(asked.answer.is_ok())
}

/// Asks the driver what it can do, and csi-addons what it can do for the driver.
async fn ask(cx: &Context, memory: &mut clients::Memory) -> Asked {
    let classes = network_fence::classes(cx).await.inspect_err(|error| stays(cx, "NetworkFenceClasses", error)).ok();
    let clients = match &classes {
        Some(classes) => network_fence::known_clients(cx, &classes.names, memory)
            .await
            .inspect_err(|error| stays(cx, "clients of NetworkFences", error))
            .ok(),
        None => None,
    };
    Asked { answer: ask_driver(cx).await, classes, clients }
}

/// Here, since the classes are at hand: whom late fences shut out is let in.
async fn lift_left_behind(cx: &Context, asked: &Asked) {
    let classes = asked.classes.as_ref().map(|classes| classes.names.as_slice()).unwrap_or_default();
    if let Err(error) = network_fence::lift_left_behind(cx, classes).await {
        tracing::warn!(%error, driver = cx.name, "NetworkFences that are left behind not looked for; it is tried again");
    }
}

fn stays(cx: &Context, what: &str, error: &Error) {
    tracing::warn!(%error, driver = cx.name, "{what} not read; what was known of them stays");
}

async fn ask_driver(cx: &Context) -> Answer {
    cx.driver.name(DEADLINE).await?;
    cx.driver.capabilities(DEADLINE).await
}

/// Writes what changed.
async fn write(cx: &Context, asked: &Asked, known: &Known) -> Result<()> {
    let api: Api<DriverReport> = Api::all(cx.clients.reads.clone());
    let report = match api.get_opt(&cx.name).await? {
        Some(report) => report,
        None => create(cx).await?,
    };
    let mut wanted = compute(report.status.clone().unwrap_or_default(), asked.answer.clone(), cx.clock.now());
    tell_network_fence(&mut wanted, asked.classes.as_ref());
    if let Some(clients) = &asked.clients {
        wanted.network_fence_clients.clone_from(clients);
    }
    if let Some(volumes) = &known.volumes {
        volumes.write(&mut wanted);
    }
    if let Some(paths) = &known.paths {
        paths.write(&mut wanted);
    }
    if report.status.as_ref() != Some(&wanted) {
        let news = news(&report.status.clone().unwrap_or_default(), &wanted);
        let ready = |report: &DriverReport| {
            report.status.as_ref().and_then(|status| conditions::find(&status.conditions, "Ready").cloned())
        };
        let written = cx.writer.record(&report, wanted).await?;
        if let Some(condition) = ready(&written).filter(|condition| ready(&report).as_ref() != Some(condition)) {
            tell(cx, &written, &condition);
        }
        for it in news {
            let kind = if it.is_warning { EventType::Warning } else { EventType::Normal };
            tracing::info!(driver = cx.name, reason = it.reason, it.note, "what the array says of nodes has changed");
            cx.events.publish(written.object_ref(&()), kind, it.reason, "Report", it.note);
        }
    }
    Ok(())
}

/// The status for what the driver answered. A driver that does not answer keeps no capability: what cannot be asked
/// cannot be relied on.
pub fn compute(mut status: DriverReportStatus, answer: Answer, now: Now) -> DriverReportStatus {
    status.sidecar_version = Some(env!("CARGO_PKG_VERSION").into());
    let (state, reason, message) = match answer {
        Ok(capabilities) => {
            // Whether there is the extension is asked by itself: what was last known of it stays until then.
            let is_apart = |it: &Capability| {
                matches!(it, Capability::Connectivity | Capability::IoInProgress | Capability::NetworkFence)
            };
            let asked_apart = status.capabilities.iter().copied().filter(is_apart);
            status.capabilities =
                capabilities.into_iter().chain(asked_apart).collect::<BTreeSet<_>>().into_iter().collect();
            (State::True, "Reporting", String::new())
        }
        Err(failure) => {
            let reason = if failure.code == "Unimplemented" { "Unimplemented" } else { "DriverUnavailable" };
            (State::False, reason, format!("{}: {}", failure.code, failure.message))
        }
    };
    conditions::set(&mut status.conditions, "Ready", state, reason, message, 0, now.wall);
    status
}

/// It is csi-addons that shuts out: whether the driver answers us is nothing to it.
fn tell_network_fence(status: &mut DriverReportStatus, classes: Option<&Classes>) {
    let Some(classes) = classes else { return };
    status.capabilities.retain(|it| *it != Capability::NetworkFence);
    if !classes.names.is_empty() {
        status.capabilities.push(Capability::NetworkFence);
    }
    status.capabilities.sort();
    status.network_fence_classes.clone_from(&classes.names);
    status.network_fence_clusters.clone_from(&classes.clusters);
}

async fn create(cx: &Context) -> Result<DriverReport> {
    let drivers: Api<CsiDriver> = Api::all(cx.clients.reads.clone());
    let owner = drivers.get_opt(&cx.name).await?.and_then(|driver| {
        Some(OwnerReference {
            api_version: CsiDriver::api_version(&()).into_owned(),
            kind: CsiDriver::kind(&()).into_owned(),
            name: driver.metadata.name?,
            uid: driver.metadata.uid?,
            ..OwnerReference::default()
        })
    });
    let mut report = DriverReport::new(&cx.name, DriverReportSpec {});
    report.metadata.owner_references = owner.map(|owner| vec![owner]);
    cx.writer.create(&report).await
}

fn tell(cx: &Context, report: &DriverReport, ready: &Condition) {
    if ready.status != State::True.as_str() {
        let note = format!("{}: {}", ready.reason, ready.message);
        tracing::warn!(driver = cx.name, note, "driver does not answer");
        cx.events.publish(report.object_ref(&()), EventType::Warning, "DriverUnavailable", "Report", note);
    }
}
