//! Those of reports, of the health of volumes and of its policies.

use serde_json::{Value, json};

use super::super::objects::Changes;
use super::{Case, LABELS, Refused};

/// When something began.
const SINCE: &str = "2026-11-21T02:14:31Z";

pub fn cases() -> Vec<Case> {
    [node_volume_report(), driver_report(), volume_health(), volume_health_policy()].into_iter().flatten().collect()
}

fn node_volume_report() -> Vec<Case> {
    let cleanup = json!({
        "fenceUID": "44d9c3aa-0c4e-4a65-9a4c-9f0a8d2b1c55", "episode": 1, "digest": "sha256:00000000",
        "state": "Clean", "cleanPasses": 1, "bootID": "5e2d7a50-1f0b-4a8e-8d5a-4f6f0f2f9b3a",
    });
    let finding = |state| json!({"check": "FUSE", "state": state, "reason": "FuseDisconnected", "since": SINCE});
    let volume = |state, finding: Value| json!([{"name": "pvc-77aa", "state": state, "findings": [finding]}]);
    let status = |field, message, after| status_case("NodeVolumeReport", field, message, vec![], after);
    vec![
        status("status.cleanup", "Clean needs two passes and nothing remaining", vec![("/status/cleanup", cleanup)]),
        status(
            "status.unhealthy",
            "unhealthy cannot exceed checked",
            vec![("/status/checked", json!(1)), ("/status/unhealthy", json!(2))],
        ),
        status(
            "status.volumes[0].findings",
            "a Healthy volume has no findings",
            vec![("/status/volumes", volume("Healthy", finding("Degraded")))],
        ),
        status(
            "status.volumes[0].findings[0].state",
            "a finding is not Healthy: leave it out",
            vec![("/status/volumes", volume("Degraded", finding("Healthy")))],
        ),
    ]
}

fn driver_report() -> Vec<Case> {
    let group = |state, handles: Vec<String>| json!({"state": state, "reason": "Slow", "since": SINCE, "volumeHandles": handles});
    let many = |from: usize| group("Degraded", (from..from + 2501).map(|number| format!("vol-{number}")).collect());
    let status = |field, message, groups| {
        status_case("DriverReport", field, message, vec![], vec![("/status/abnormal", groups)])
    };
    vec![
        status("status.abnormal", "at most 5000 abnormal volumes may be listed", json!([many(0), many(2501)])),
        status(
            "status.abnormal[0].state",
            "an abnormal volume is not Healthy: leave it out",
            json!([group("Healthy", vec!["vol-1".into()])]),
        ),
    ]
}

fn volume_health() -> Vec<Case> {
    let taint = |at| json!([{"key": "VolumeNotUsable", "value": "true", "source": "NodeAgent", "reason": "IOError", "timeAdded": at}]);
    let observation = json!([
        {"source": "Manual", "node": "", "check": "FUSE", "state": "Degraded", "reason": "Slow", "firstSeen": SINCE},
    ]);
    let status = |field, message, before, after| status_case("VolumeHealth", field, message, before, after);
    vec![
        status(
            "status",
            "phase Healthy allows no taint other than Manual",
            vec![],
            vec![("/status/phase", json!("Healthy")), ("/status/taints", taint(SINCE))],
        ),
        status("status", "phase Unhealthy needs a taint", vec![], vec![("/status/phase", json!("Unhealthy"))]),
        status(
            "status.taints[0].timeAdded",
            "timeAdded of a taint that stays is immutable",
            vec![("/status/taints", taint(SINCE))],
            vec![("/status/taints", taint("2026-11-21T03:00:00Z"))],
        ),
        status(
            "status.observations[0].source",
            "Manual is a source of taints, not of observations",
            vec![],
            vec![("/status/observations", observation)],
        ),
    ]
}

fn volume_health_policy() -> Vec<Case> {
    let create = |field, message, pointer, value| Case {
        kind: "VolumeHealthPolicy",
        field,
        message,
        refused: Refused::Create(vec![(pointer, value)]),
    };
    vec![
        create(
            "spec.selector.volumeSelector.matchExpressions[0]",
            LABELS,
            "/spec/selector/volumeSelector/matchExpressions",
            json!([{"key": "tier", "operator": "In"}]),
        ),
        create("spec.interval", "must be between 5s and 1h", "/spec/interval", json!("1s")),
        create(
            "spec.thresholds.unreachableAfter",
            "must be between 10s and 24h",
            "/spec/thresholds/unreachableAfter",
            json!("5s"),
        ),
        create(
            "spec.thresholds.attachGrace",
            "must be between 0s and 24h",
            "/spec/thresholds/attachGrace",
            json!("25h"),
        ),
        create(
            "spec.checks[0].mode",
            "WriteProbe and Scrub do I/O: use Active or Disabled",
            "/spec/checks/0",
            json!({"name": "WriteProbe", "mode": "Passive"}),
        ),
        create(
            "spec.states[0].state",
            "must be Degraded, Inaccessible or DataLoss: what a driver complains of is not Healthy",
            "/spec/states/0/state",
            json!("Healthy"),
        ),
    ]
}

fn status_case(
    kind: &'static str,
    field: &'static str,
    message: &'static str,
    before: Changes,
    after: Changes,
) -> Case {
    Case { kind, field, message, refused: Refused::Status { before, after } }
}
