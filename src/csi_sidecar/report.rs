//! The DriverReport: what the driver can answer, written on change only. Silence means unknown.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Api, Resource};

use crate::api::conditions::{self, State};
use crate::api::driver_report::{DriverReport, DriverReportSpec, DriverReportStatus};
use crate::api::slim::CsiDriver;
use crate::error::Result;
use crate::runtime::clock::Now;
use crate::runtime::events::EventType;

use super::Context;
use super::decide::Failure;

/// How often the driver is asked what it can do.
const PERIOD: Duration = Duration::from_secs(30);
/// How soon after a failure.
const RETRY: Duration = Duration::from_secs(2);
/// Deadline of one call.
const DEADLINE: Duration = Duration::from_secs(10);

/// Keeps the report true for ever; writes only while this replica leads.
pub async fn run(cx: Context) {
    loop {
        cx.writer.leadership().acquired().await;
        let wait = match refresh(&cx).await {
            Ok(true) => PERIOD,
            Ok(false) => RETRY,
            Err(error) => {
                tracing::warn!(%error, driver = cx.name, "DriverReport not written");
                RETRY
            }
        };
        tokio::time::sleep(wait).await;
    }
}

/// Asks the driver and writes what changed. Returns whether the driver answered.
pub async fn refresh(cx: &Context) -> Result<bool> {
    let answer = match cx.driver.name(DEADLINE).await {
        Ok(_) => cx.driver.capabilities(DEADLINE).await,
        Err(failure) => Err(failure),
    };
    let api: Api<DriverReport> = Api::all(cx.clients.reads.clone());
    let report = match api.get_opt(&cx.name).await? {
        Some(report) => report,
        None => create(cx).await?,
    };
    let answered = answer.is_ok();
    let wanted = compute(report.status.clone().unwrap_or_default(), answer, cx.clock.now());
    if report.status.as_ref() != Some(&wanted) {
        let mut next = report;
        next.status = Some(wanted);
        let written = cx.writer.replace_status(&next).await?;
        tell(cx, &written);
    }
    Ok(answered)
}

/// The status for what the driver answered. A driver that does not answer keeps no capability: what cannot be asked
/// cannot be relied on.
pub fn compute(
    mut status: DriverReportStatus,
    answer: Result<std::collections::BTreeSet<crate::api::driver_report::Capability>, Failure>,
    now: Now,
) -> DriverReportStatus {
    status.sidecar_version = Some(env!("CARGO_PKG_VERSION").into());
    let (state, reason, message) = match answer {
        Ok(capabilities) => {
            status.capabilities = capabilities.into_iter().collect();
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

fn tell(cx: &Context, report: &DriverReport) {
    let conditions = report.status.iter().flat_map(|status| &status.conditions);
    for condition in conditions.into_iter().filter(|condition| condition.type_ == "Ready" && condition.status != "True")
    {
        let note = format!("{}: {}", condition.reason, condition.message);
        tracing::warn!(driver = cx.name, note, "driver does not answer");
        cx.events.publish(report.object_ref(&()), EventType::Warning, "DriverUnavailable", "Report", note);
    }
}
