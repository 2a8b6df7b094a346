//! `kubectl bulkhead doctor`: what would go wrong at night, found at noon. It reads and writes nothing, but for `--certify`,
//! which tries a driver out on a volume of its own.

mod attachers;
mod certify;
mod declared;
mod failures;
mod fencers;
mod heartbeats;
mod install;
mod replicas;
mod timeline;
mod webhooks;
mod workloads;

use std::process::ExitCode;

use chrono::{DateTime, Utc};
use clap::Args;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use kube::api::ListParams;
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::slim::AdmissionBinding;
use crate::api::time;
use crate::api::usage::{VolumeKind, VolumeUse};
use crate::error::Error as ApiError;

use super::error::{REMEDY_VIEWER, Result};
use super::gather::{Cluster, Gathered};
use super::print::{Output, Page, Report};

pub use certify::WriterLog;

use failures::StayingPod;
use timeline::PolicyTimeline;
use workloads::Workload;

/// What is examined.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Instead: certify on a scratch volume that the driver of a StorageClass really takes a node's access away when it is
    /// asked to. Creates objects of its own, and removes them. Exit code 0: it does; 1: it does not; 2: not shown.
    #[arg(long)]
    certify: bool,
    #[command(flatten)]
    certification: certify::Certify,
}

impl Doctor {
    /// Examines, or certifies.
    pub async fn run(self, cluster: &Cluster, output: Output) -> Result<(String, ExitCode)> {
        if self.certify {
            let certificate = self.certification.run(cluster).await?;
            return Ok((output.render(&certificate)?, certificate.exit_code()));
        }
        let findings = examine(cluster).await?;
        Ok((output.render(&findings)?, findings.exit_code()))
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Examination {
    /// Warnings first, then what could not be looked at, then what is in order.
    pub findings: Vec<Finding>,
    /// Protected pods that would stay if their node failed now.
    pub staying: Vec<StayingPod>,
    /// How long a failover takes, computed for each policy.
    pub timelines: Vec<PolicyTimeline>,
    /// When this was seen.
    pub at: DateTime<Utc>,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was looked at.
    pub check: &'static str,
    /// Which object.
    pub about: String,
    /// What was found.
    pub message: String,
    /// What to do; empty where nothing is to be done.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub remedy: String,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Severity {
    /// Something would be held, or slow.
    Warning,
    /// It could not be looked at.
    Unknown,
    /// In order.
    Ok,
}

impl Finding {
    fn ok(check: &'static str, about: impl Into<String>, message: impl Into<String>) -> Self {
        Self { severity: Severity::Ok, check, about: about.into(), message: message.into(), remedy: String::new() }
    }

    fn unknown(
        check: &'static str,
        about: impl Into<String>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { severity: Severity::Unknown, ..Self::warning(check, about, message, remedy) }
    }

    fn warning(
        check: &'static str,
        about: impl Into<String>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { severity: Severity::Warning, check, about: about.into(), message: message.into(), remedy: remedy.into() }
    }
}

impl Examination {
    /// 0: nothing was found; 1: warnings; 2: it could not look everywhere.
    pub fn exit_code(&self) -> ExitCode {
        let has = |severity| self.findings.iter().any(|finding| finding.severity == severity);
        ExitCode::from(match (has(Severity::Warning), has(Severity::Unknown)) {
            (true, _) => 1,
            (false, true) => 2,
            (false, false) => 0,
        })
    }
}

/// Looks at everything.
pub async fn examine(cluster: &Cluster) -> Result<Examination> {
    let gathered = cluster.gather().await?;
    let mut findings = Vec::new();
    let (deployments, stateful_sets, daemon_sets, validating, mutating, bindings) = tokio::join!(
        list::<Deployment>(cluster),
        list::<StatefulSet>(cluster),
        list::<DaemonSet>(cluster),
        list::<ValidatingWebhookConfiguration>(cluster),
        list::<MutatingWebhookConfiguration>(cluster),
        list::<AdmissionBinding>(cluster),
    );
    let mut workloads = Vec::new();
    workloads.extend(known(deployments, &mut findings).iter().flatten().map(Workload::of_deployment));
    workloads.extend(known(stateful_sets, &mut findings).iter().flatten().map(Workload::of_stateful_set));
    let daemon_sets = known(daemon_sets, &mut findings);
    workloads.extend(daemon_sets.iter().flatten().map(Workload::of_daemon_set));
    let version = cluster.clients.reads.apiserver_version().await.map_err(ApiError::from);
    findings.extend(install::version(version));
    findings.extend(install::controller(&gathered));
    findings.extend(install::triggers(&gathered));
    if let Some(bindings) = known(bindings, &mut findings) {
        findings.extend(install::policies(&bindings));
    }
    findings.extend(fencers::check(&gathered));
    let (staying, failures) = failures::of(&gathered).await;
    findings.extend(failures);
    if daemon_sets.is_some() {
        findings.extend(workloads::check(&gathered, &workloads));
    }
    findings.extend(heartbeats::check(&gathered));
    let attachers = attachers::of(&workloads);
    findings.extend(attachers::check(&gathered, &attachers));
    findings.extend(replicas::check(&gathered, &workloads, &attachers));
    let hooks = [
        known(validating, &mut findings).map(|all| webhooks::of_validating(&all)),
        known(mutating, &mut findings).map(|all| webhooks::of_mutating(&all)),
    ];
    if hooks.iter().all(Option::is_some) {
        findings.extend(webhooks::check(hooks.into_iter().flatten().flatten().collect()));
    }
    findings.sort_by_key(|finding| finding.severity);
    let timelines = timeline::of(&gathered, &attachers);
    Ok(Examination { findings, staying, timelines, at: time::stamp(gathered.now.wall) })
}

async fn list<K>(cluster: &Cluster) -> Result<Vec<K>, Finding>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let api: Api<K> = Api::all(cluster.clients.reads.clone());
    let listed = api.list(&ListParams::default()).await;
    listed.map(|listed| listed.items).map_err(|error| Finding {
        severity: Severity::Unknown,
        check: "Rights",
        about: format!("{}.{}", K::plural(&()), K::group(&())),
        message: ApiError::from(error).to_string(),
        remedy: REMEDY_VIEWER.into(),
    })
}

fn known<K>(listed: Result<Vec<K>, Finding>, findings: &mut Vec<Finding>) -> Option<Vec<K>> {
    listed.map_err(|finding| findings.push(finding)).ok()
}

/// The drivers that attach volumes of the pods that each policy selects, with the number of pods, by policy and driver.
fn protected_drivers(gathered: &Gathered) -> Vec<(String, String, usize)> {
    by_policy(gathered, |volume| match &volume.kind {
        VolumeKind::Csi(csi) => Some(csi.driver.clone()),
        _ => None,
    })
}

/// Those that attach nothing.
fn unattached_drivers(gathered: &Gathered) -> Vec<(String, String, usize)> {
    by_policy(gathered, |volume| match &volume.kind {
        VolumeKind::Unattached(unattached) => unattached.csi.as_ref().map(|csi| csi.driver.clone()),
        _ => None,
    })
}

fn by_policy(gathered: &Gathered, driver: impl Fn(&VolumeUse) -> Option<String>) -> Vec<(String, String, usize)> {
    let mut counts = std::collections::BTreeMap::new();
    let seen = gathered.seen();
    for pod in seen.pods.values().flatten() {
        let Some(policies) = crate::controllers::resiliency_policy::decide::effective(&seen, pod) else { continue };
        for policy in policies.policies() {
            let name = policy.metadata.name.clone().unwrap_or_default();
            for driver in pod.volumes.iter().filter_map(&driver).collect::<std::collections::BTreeSet<_>>() {
                *counts.entry((name.clone(), driver)).or_default() += 1;
            }
        }
    }
    counts.into_iter().map(|((policy, driver), pods)| (policy, driver, pods)).collect()
}

/// Drivers of protected pods, each once.
fn drivers(gathered: &Gathered) -> Vec<String> {
    let mut drivers: Vec<_> = protected_drivers(gathered).into_iter().map(|(_, driver, _)| driver).collect();
    drivers.sort_unstable();
    drivers.dedup();
    drivers
}

impl Report for Examination {
    fn text(&self) -> String {
        let count = |severity| self.findings.iter().filter(|finding| finding.severity == severity).count();
        let page = Page::default().line(format!(
            "{} warnings, {} not looked at, {} in order",
            count(Severity::Warning),
            count(Severity::Unknown),
            count(Severity::Ok)
        ));
        let page = page.table(
            "",
            ["", "CHECK", "ABOUT", "FOUND"],
            self.findings
                .iter()
                .map(|it| [format!("{:?}", it.severity), it.check.to_owned(), it.about.clone(), it.message.clone()])
                .collect(),
        );
        let remedies: Vec<_> = self.findings.iter().filter(|finding| !finding.remedy.is_empty()).collect();
        let page = if remedies.is_empty() { page } else { page.line("").line("WHAT TO DO") };
        let page = page.list(remedies.iter().map(|it| format!("{} {}: {}", it.check, it.about, it.remedy)));
        let staying = self.staying.iter().map(|pod| {
            let why = format!("{}: {}", pod.reason, pod.message);
            [format!("{}/{}", pod.namespace, pod.name), pod.node.clone(), pod.policy.clone(), why]
        });
        let title = "PODS THAT WOULD STAY IF THEIR NODE FAILED";
        let page = page.table(title, ["POD", "NODE", "POLICY", "WHY"], staying.collect());
        self.timelines.iter().fold(page, |page, timeline| timeline.page(page)).end()
    }
}
