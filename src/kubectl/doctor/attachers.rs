//! How fast attachments go: the settings of each external-attacher.

use std::collections::BTreeMap;

use crate::kubectl::arguments::setting;
use crate::kubectl::gather::Gathered;

use super::workloads::Workload;
use super::{Finding, drivers};

/// Two writes per attachment: the finalizer, and the object.
const WRITES: f64 = 2.0;
/// Detaching a node may take so long before it is worth a word.
const SLOW: f64 = 30.0;

/// The settings of an attacher.
pub struct Attacher<'a> {
    /// What runs it.
    pub workload: &'a Workload,
    /// `--kube-api-qps`.
    pub qps: f64,
    /// `--worker-threads`.
    pub workers: u32,
}

impl Attacher<'_> {
    /// Seconds that so many attachments take.
    pub fn seconds(&self, attachments: usize) -> f64 {
        f64::from(u32::try_from(attachments).unwrap_or(u32::MAX)) * WRITES / self.qps.max(0.1)
    }
}

/// The attachers among the workloads.
pub fn of(workloads: &[Workload]) -> Vec<Attacher<'_>> {
    workloads.iter().filter(|workload| !workload.is_daemon_set).filter_map(attacher).collect()
}

fn attacher(workload: &Workload) -> Option<Attacher<'_>> {
    let is_one = |(name, image, _): &&(String, String, Vec<String>)| {
        image.contains("csi-attacher") || image.contains("external-attacher") || name.contains("attacher")
    };
    let (.., args) = workload.containers.iter().find(is_one)?;
    let number = |flag| setting(args, flag);
    Some(Attacher {
        workload,
        qps: number("kube-api-qps").and_then(|text| text.parse().ok()).unwrap_or(5.0),
        workers: number("worker-threads").and_then(|text| text.parse().ok()).unwrap_or(10),
    })
}

/// The most attachments that one node has, by driver.
pub fn busiest(gathered: &Gathered) -> BTreeMap<String, usize> {
    let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    for attachment in gathered.stores.attachments.list() {
        *counts.entry((attachment.spec.attacher.clone(), attachment.spec.node_name.clone())).or_default() += 1;
    }
    let mut most = BTreeMap::new();
    for ((driver, _), count) in counts {
        let known = most.entry(driver).or_default();
        *known = count.max(*known);
    }
    most
}

/// The attachers that may be a driver's: those whose pods mention it; where none does, all that mention no other driver.
pub fn serving<'a>(attachers: &'a [Attacher<'a>], driver: &str, all: &[String]) -> Vec<&'a Attacher<'a>> {
    let by_name: Vec<_> = attachers.iter().filter(|it| it.workload.mentions(driver)).collect();
    if !by_name.is_empty() {
        return by_name;
    }
    attachers.iter().filter(|it| !all.iter().any(|other| it.workload.mentions(other))).collect()
}

/// Whether an attacher would make a failover slow.
pub fn check(gathered: &Gathered, attachers: &[Attacher]) -> Vec<Finding> {
    const CHECK: &str = "Attacher";
    let (most, drivers) = (busiest(gathered), drivers(gathered));
    let mut findings = Vec::new();
    for attacher in attachers {
        let serves =
            |driver: &&String| serving(attachers, driver, &drivers).iter().any(|it| std::ptr::eq(*it, attacher));
        let Some(attachments) = drivers.iter().filter(serves).filter_map(|it| most.get(it)).max().copied() else {
            continue;
        };
        let seconds = attacher.seconds(attachments);
        let settings = format!("--kube-api-qps={} --worker-threads={}", attacher.qps, attacher.workers);
        let message = format!("{settings}: {attachments} attachments of one node take about {seconds:.0} s (computed)");
        findings.push(if seconds > SLOW {
            let remedy = "raise --kube-api-qps and --kube-api-burst (for instance 100 and 200), and --worker-threads";
            Finding::warning(CHECK, attacher.workload.about.clone(), message, remedy)
        } else {
            Finding::ok(CHECK, attacher.workload.about.clone(), message)
        });
    }
    findings
}
