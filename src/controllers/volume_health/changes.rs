//! Which volumes a change of a report touches: of thousands of rows one has changed, and only that volume is looked at
//! again. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::driver_report::DriverReport;
use crate::api::node_volume_report::{NodeVolumeReport, ReportedVolume};
use crate::api::volume::{Finding, VolumeState};

/// Volumes of which a node says something else than before.
pub fn of_node_report(old: Option<&NodeVolumeReport>, new: Option<&NodeVolumeReport>) -> BTreeSet<String> {
    let speaker = |report: Option<&NodeVolumeReport>| report?.status.as_ref()?.node_uid.clone();
    let (before, after) = (rows(old), rows(new));
    let names = before.keys().chain(after.keys()).copied();
    let is_same = |name: &&str| speaker(old) == speaker(new) && before.get(name) == after.get(name);
    names.filter(|name| !is_same(name)).map(str::to_owned).collect()
}

/// What matters of each row; mounts and devices do not.
fn rows(report: Option<&NodeVolumeReport>) -> BTreeMap<&str, (VolumeState, &[Finding])> {
    let volumes = report.and_then(|report| report.status.as_ref()).into_iter().flat_map(|status| &status.volumes);
    volumes.map(|row: &ReportedVolume| (row.name.as_str(), (row.state, row.findings.as_slice()))).collect()
}

/// Handles of which a driver says something else than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handles {
    /// All of them: what it leaves out means something else now.
    All,
    /// These.
    These(BTreeSet<String>),
}

/// Handles of which a driver says something else than before.
pub fn of_driver_report(old: Option<&DriverReport>, new: Option<&DriverReport>) -> Handles {
    let terms = |report: Option<&DriverReport>| {
        report.map(|report| (report.is_ready(), report.status.as_ref().and_then(|status| status.coverage)))
    };
    if terms(old) != terms(new) {
        return Handles::All;
    }
    let (before, after) = (said(old), said(new));
    let handles = before.keys().chain(after.keys()).copied();
    let changed = handles.filter(|handle| before.get(handle) != after.get(handle));
    Handles::These(changed.map(str::to_owned).collect())
}

type Said<'a> = (VolumeState, &'a str, Option<&'a str>, Option<&'a str>, Option<i32>, chrono::DateTime<chrono::Utc>);

fn said(report: Option<&DriverReport>) -> BTreeMap<&str, Vec<Said<'_>>> {
    let mut said: BTreeMap<&str, Vec<Said>> = BTreeMap::new();
    for group in report.and_then(|report| report.status.as_ref()).into_iter().flat_map(|status| &status.abnormal) {
        let (node, message) = (group.node.as_deref(), group.message.as_deref());
        for handle in &group.volume_handles {
            let row = (group.state, group.reason.as_str(), node, message, group.raw_status, group.since);
            said.entry(handle).or_default().push(row);
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node_report(uid: &str, volumes: Value) -> NodeVolumeReport {
        serde_json::from_value(json!({
            "apiVersion": "bulkhead.dev/v1alpha1", "kind": "NodeVolumeReport", "metadata": { "name": "n" },
            "status": { "nodeUID": uid, "volumes": volumes },
        }))
        .unwrap()
    }

    fn driver_report(coverage: &str, abnormal: Value) -> DriverReport {
        serde_json::from_value(json!({
            "apiVersion": "bulkhead.dev/v1alpha1", "kind": "DriverReport", "metadata": { "name": "d" },
            "status": { "coverage": coverage, "abnormal": abnormal },
        }))
        .unwrap()
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn of_a_node_only_the_rows_that_differ() {
        let row = |name: &str, device: &str| json!({ "name": name, "state": "Healthy", "device": device });
        let finding =
            json!({ "check": "Device", "state": "Inaccessible", "reason": "R", "since": "2026-11-21T02:14:31Z" });
        let bad = |name: &str| json!({ "name": name, "state": "Inaccessible", "findings": [finding] });
        let old = node_report("u", json!([row("a", "1:1"), row("b", "1:2"), bad("c"), bad("e")]));
        let new = node_report("u", json!([row("a", "9:9"), bad("b"), bad("c"), row("d", "1:3")]));
        assert_eq!(of_node_report(Some(&old), Some(&new)), set(&["b", "d", "e"]));
        assert_eq!(of_node_report(Some(&old), Some(&old)), set(&[]));
        let anew = NodeVolumeReport { ..node_report("v", json!([row("a", "1:1")])) };
        assert_eq!(of_node_report(Some(&old), Some(&anew)), set(&["a", "b", "c", "e"]), "another speaker");
        assert_eq!(of_node_report(Some(&old), None), set(&["a", "b", "c", "e"]));
    }

    #[test]
    fn of_a_driver_only_the_handles_that_differ() {
        let group = |reason: &str, handles: &[&str]| json!({ "state": "Degraded", "reason": reason, "since": "2026-11-21T02:14:31Z", "volumeHandles": handles });
        let old = driver_report("Complete", json!([group("A", &["1", "2"]), group("B", &["3"])]));
        let new = driver_report("Complete", json!([group("B", &["3", "2"]), group("A", &["1", "4"])]));
        assert_eq!(of_driver_report(Some(&old), Some(&new)), Handles::These(set(&["2", "4"])));
        let capped = driver_report("Capped", json!([group("A", &["1", "2"]), group("B", &["3"])]));
        assert_eq!(of_driver_report(Some(&old), Some(&capped)), Handles::All);
        assert_eq!(of_driver_report(None, Some(&old)), Handles::All);
    }
}
