//! What every program answers a scrape, against the rules for names that `promtool check metrics` has.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_testbed::cluster::real::RealCluster;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use super::Outcome;

/// The name of our programs' port in their pods, and in those of CSI drivers.
const PORTS: [&str; 2] = ["http", "bulkhead-http"];
/// The images of the programs that answer.
const PROGRAMS: [&str; 4] = ["bulkhead-controller", "bulkhead-csi-sidecar", "bulkhead-node-agent", "bulkhead-s3-csi"];
/// What names begin with. Those that StorageOS gave its metrics are kept as they are.
const OURS: &str = "bulkhead_";

/// Words that are no base unit.
const UNITS: [&str; 16] = [
    "milliseconds",
    "microseconds",
    "nanoseconds",
    "minutes",
    "hours",
    "days",
    "weeks",
    "kilobytes",
    "megabytes",
    "gigabytes",
    "bits",
    "percent",
    "kelvin",
    "inches",
    "grams",
    "millis",
];
/// Units that are cut short.
const ABBREVIATIONS: [&str; 10] = ["s", "ms", "us", "ns", "sec", "secs", "b", "kb", "mb", "gb"];
/// Types say themselves what they are.
const TYPES: [&str; 5] = ["gauge", "counter", "histogram", "summary", "untyped"];
/// What the series of a histogram end with.
const OF_HISTOGRAM: [&str; 3] = ["_bucket", "_count", "_sum"];

/// Scrapes one container of each kind.
pub async fn are_named_well(cluster: &RealCluster) -> Outcome {
    let pods = Api::<Pod>::all(cluster.client.clone()).list(&ListParams::default()).await?;
    let (mut scraped, mut programs, mut wrong) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    for pod in &pods {
        for (container, image, port) in ports(pod) {
            if scraped.insert(container) {
                programs.insert(image.split(':').next().unwrap_or_default());
                let text = scrape(cluster, pod, port).await?;
                wrong.extend(lint(&text).into_iter().map(|what| format!("{container}: {what}")));
            }
        }
    }
    if programs != BTreeSet::from(PROGRAMS) {
        return Err(format!("scraped {scraped:?} of {programs:?} instead of {PROGRAMS:?}").into());
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n").into()) }
}

/// The containers of a pod that can be scraped, with their images and ports.
fn ports(pod: &Pod) -> impl Iterator<Item = (&str, &str, i32)> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers.flat_map(|container| {
        let ports = container.ports.iter().flatten();
        let ours = ports.filter(|port| port.name.as_deref().is_some_and(|name| PORTS.contains(&name)));
        ours.map(|port| (container.name.as_str(), container.image.as_deref().unwrap_or_default(), port.container_port))
    })
}

async fn scrape(cluster: &RealCluster, pod: &Pod, port: i32) -> Result<String, libtest_mimic::Failed> {
    let text = cluster.scrape(pod, port).await?;
    if text.contains(OURS) { Ok(text) } else { Err(format!("port {port} of {}: {text}", pod.name_any()).into()) }
}

/// What is wrong with the names in a scrape.
fn lint(text: &str) -> Vec<String> {
    let (mut helped, mut types, mut wrong) = (BTreeSet::new(), BTreeMap::new(), Vec::new());
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            if help.trim_matches('.').trim().is_empty() {
                wrong.push(format!("{name} has no help text"));
            }
            helped.insert(name);
        } else if let Some((name, type_)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            if types.insert(name, type_).is_some() {
                wrong.push(format!("{name} is there twice"));
            }
        } else if !line.starts_with('#') {
            wrong.extend(series(line, &types).err());
        }
    }
    for (name, type_) in types.iter().filter(|(name, _)| name.starts_with(OURS)) {
        wrong.extend((!helped.contains(name)).then(|| format!("{name} has no help text")));
        wrong.extend(family(name, type_));
    }
    wrong
}

/// What is wrong with the name of a metric.
fn family(name: &str, type_: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if !is_snake_case(name) {
        wrong.push(format!("{name} is not in snake case"));
    }
    for word in name.split('_') {
        for (words, what) in [(&UNITS[..], "no base unit"), (&ABBREVIATIONS, "a unit cut short"), (&TYPES, "a type")] {
            wrong.extend(words.contains(&word).then(|| format!("{name}: {word} is {what}")));
        }
    }
    // The counter itself is declared without the end that its series has.
    if name.ends_with("_total") {
        wrong.push(format!("{name}, a {type_}, ends as counters do, or twice"));
    }
    if type_ != "histogram" && OF_HISTOGRAM.iter().any(|end| name.ends_with(end)) {
        wrong.push(format!("{name}, a {type_}, ends as the series of a histogram do"));
    }
    wrong
}

/// What is wrong with a series.
fn series(line: &str, types: &BTreeMap<&str, &str>) -> Result<(), String> {
    let name = line.split(['{', ' ']).next().unwrap_or_default();
    let ends = |type_: &str, ends: &[&str]| {
        ends.iter().any(|end| name.strip_suffix(end).is_some_and(|name| types.get(name) == Some(&type_)))
    };
    let is_declared = matches!(types.get(name), Some(&type_) if type_ != "counter")
        || ends("counter", &["_total"])
        || ends("histogram", &OF_HISTOGRAM);
    if !is_declared {
        return Err(format!("{name} has no type, or not the end that its type asks for"));
    }
    let labels = line.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map_or("", |(labels, _)| labels);
    for label in labels.split("\",").filter_map(|label| label.split_once("=\"")).map(|(label, _)| label) {
        let is_reserved = label == "quantile" || (label == "le" && !ends("histogram", &["_bucket"]));
        if is_reserved || !is_snake_case(label) {
            return Err(format!("{name}: the label {label} is reserved, or not in snake case"));
        }
    }
    Ok(())
}

fn is_snake_case(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_') && !name.contains("__")
}
