//! For every CEL rule of the definitions, something that it refuses.

mod volumes;

use serde_json::{Value, json};

use super::objects::Changes;
use super::shared_volume_rules;

/// Something that a rule refuses.
#[derive(Debug)]
pub struct Case {
    pub kind: &'static str,
    /// The field that the refusal names.
    pub field: &'static str,
    /// What it says.
    pub message: &'static str,
    pub refused: Refused,
}

/// The request that is refused, as changes of the kind's sample.
#[derive(Debug)]
pub enum Refused {
    Create(Changes),
    Update { before: Changes, after: Changes },
    Status { before: Changes, after: Changes },
}

const RISK: &str =
    "minimumProof None lets two nodes write one volume; set acknowledgeRisk: DoubleWriters to accept that";
const UNREACHABLE: &str = "minimumProof cannot be reached by any listed method: Verified needs Unpublish or External; \
                           PowerOff needs External";
const TWO_NETWORKS: &str = "methods may list NetworkFence once: what is answered names the method, not the class";
const NEVER: &str = "no node could ever be declared failed: add Kubelet to decisiveChannels, or list a taint that somebody \
                     other than the node lifecycle controller sets";
pub const LABELS: &str = "values is required for In and NotIn and must be empty for Exists and DoesNotExist";
const SHARE: &str = "must be a whole number from 1 to 5000 or a percentage from 1% to 100%";

pub fn cases() -> Vec<Case> {
    let all = [policy(), node_fence(), fence_request(), volumes::cases(), shared_volume_rules::cases()];
    all.into_iter().flatten().collect()
}

fn two_networks() -> Value {
    let network = |class: &str| json!({"type": "NetworkFence", "networkFence": {"className": class}});
    json!([{"type": "Unpublish"}, network("a"), network("b")])
}

fn policy() -> Vec<Case> {
    let create =
        |field, message, changes| Case { kind: "ResiliencyPolicy", field, message, refused: Refused::Create(changes) };
    let one = |field, message, pointer, value| create(field, message, vec![(pointer, value)]);
    vec![
        create(
            "spec.selector",
            "set namespaceSelector or podSelector; write podSelector: {} to select every pod on purpose",
            vec![("/spec/selector/namespaceSelector", Value::Null), ("/spec/selector/podSelector", Value::Null)],
        ),
        one(
            "spec.selector.podSelector.matchExpressions[0]",
            LABELS,
            "/spec/selector/podSelector/matchExpressions/0/operator",
            json!("Exists"),
        ),
        one(
            "spec.selector.namespaceSelector.matchExpressions[0]",
            LABELS,
            "/spec/selector/namespaceSelector/matchExpressions",
            json!([{"key": "tier", "operator": "In"}]),
        ),
        create(
            "spec.detection.decisiveChannels",
            NEVER,
            vec![("/spec/detection/decisiveChannels", json!([])), ("/spec/detection/taints", json!([]))],
        ),
        one("spec.selfFencing.after", "must be between 5s and 1h", "/spec/selfFencing", json!({"after": "4s"})),
        create(
            "spec.selfFencing.after",
            "selfFencing.after must be shorter than detection.kubelet.suspectAfter plus decisiveAfter, or the node could still \
             write when it is declared failed",
            vec![
                ("/spec/selfFencing", json!({"mode": "Enabled", "after": "45s"})),
                ("/spec/detection/kubelet", json!({"suspectAfter": "15s", "decisiveAfter": "30s"})),
            ],
        ),
        one(
            "spec.detection.kubelet.suspectAfter",
            "must be between 11s and 10m",
            "/spec/detection/kubelet/suspectAfter",
            json!("10s"),
        ),
        one(
            "spec.detection.agent.suspectAfter",
            "must be between 2s and 10m",
            "/spec/detection/agent/suspectAfter",
            json!("1s"),
        ),
        one(
            "spec.detection.kubelet.decisiveAfter",
            "must be between 0s and 24h",
            "/spec/detection/kubelet/decisiveAfter",
            json!("24h1ms"),
        ),
        one(
            "spec.detection.storage.period",
            "must be between 1s and 10m",
            "/spec/detection/storage/period",
            json!("999ms"),
        ),
        one("spec.fencing.callTimeout", "must be between 1s and 5m", "/spec/fencing/callTimeout", json!("5m1s")),
        one("spec.fencing.giveUpAfter", "must be between 10s and 24h", "/spec/fencing/giveUpAfter", json!("9s")),
        one("spec.fencing.minimumProof", RISK, "/spec/fencing/minimumProof", json!("None")),
        one("spec.fencing.drivers", RISK, "/spec/fencing/drivers/0/minimumProof", json!("None")),
        create(
            "spec.fencing.methods",
            UNREACHABLE,
            vec![("/spec/fencing/methods", json!([{"type": "Detach"}])), ("/spec/fencing/drivers", Value::Null)],
        ),
        one(
            "spec.fencing.drivers",
            UNREACHABLE,
            "/spec/fencing/drivers",
            json!([{"name": "a", "methods": [{"type": "Detach"}]}]),
        ),
        one("spec.fencing.drivers[0]", UNREACHABLE, "/spec/fencing/drivers/0/minimumProof", json!("Verified")),
        one("spec.fencing.methods", UNREACHABLE, "/spec/fencing/minimumProof", json!("PowerOff")),
        one(
            "spec.fencing.methods[0]",
            "networkFence must be set exactly when type is NetworkFence",
            "/spec/fencing/methods",
            json!([{"type": "Unpublish", "networkFence": {"className": "file-fence"}}]),
        ),
        one(
            "spec.fencing.drivers[0].methods[0]",
            "networkFence must be set exactly when type is NetworkFence",
            "/spec/fencing/drivers",
            json!([{"name": "a", "methods": [{"type": "NetworkFence"}]}]),
        ),
        one(
            "spec.fencing.drivers[0]",
            UNREACHABLE,
            "/spec/fencing/drivers",
            json!([{"name": "a", "minimumProof": "Verified", "methods": [{"type": "NetworkFence", "networkFence": {"className": "c"}}]}]),
        ),
        one(
            "spec.fencing.methods[0]",
            "external must be set exactly when type is External",
            "/spec/fencing/methods",
            json!([{"type": "External"}]),
        ),
        one(
            "spec.fencing.methods[0]",
            "external must be set exactly when type is External",
            "/spec/fencing/methods",
            json!([{"type": "Unpublish", "external": {"fencerName": "power.example.com"}}]),
        ),
        one(
            "spec.fencing.drivers[0].methods[0]",
            "external must be set exactly when type is External",
            "/spec/fencing/drivers",
            json!([{"name": "a", "methods": [{"type": "External"}]}]),
        ),
        create("spec.fencing.methods", TWO_NETWORKS, vec![("/spec/fencing/methods", two_networks())]),
        one(
            "spec.fencing.drivers[0]",
            TWO_NETWORKS,
            "/spec/fencing/drivers",
            json!([{"name": "a", "minimumProof": "Acknowledged", "methods": two_networks()}]),
        ),
        one(
            "spec.fencing.drivers[0]",
            "set minimumProof or methods; an empty override does nothing",
            "/spec/fencing/drivers",
            json!([{"name": "a"}]),
        ),
        one("spec.limits.maxNodes", "maxNodes as a number must not exceed ceiling", "/spec/limits/maxNodes", json!(11)),
        one("spec.limits.maxNodes", SHARE, "/spec/limits/maxNodes", json!("101%")),
        one(
            "spec.limits.topology[0].maxNodes",
            SHARE,
            "/spec/limits/topology",
            json!([{"topologyKey": "topology.kubernetes.io/zone", "maxNodes": "0%"}]),
        ),
        one(
            "spec.maintenanceWindows[0].schedule",
            "must be a five-field cron expression such as 0 2 * * SUN",
            "/spec/maintenanceWindows",
            json!([{"name": "w", "schedule": "0 2 * * SUN;MON", "duration": "4h", "timeZone": "UTC"}]),
        ),
        one(
            "spec.maintenanceWindows[0].duration",
            "must be between 1m and 168h",
            "/spec/maintenanceWindows",
            json!([{"name": "w", "schedule": "0 2 * * SUN", "duration": "59s", "timeZone": "UTC"}]),
        ),
        one(
            "spec.maintenanceWindows[0].timeZone",
            "must be an IANA time zone name such as UTC or Europe/Berlin",
            "/spec/maintenanceWindows",
            json!([{"name": "w", "schedule": "0 2 * * SUN", "duration": "4h", "timeZone": "Local"}]),
        ),
        one("spec.limits.maxUnhealthy", SHARE, "/spec/limits/maxUnhealthy", json!(0)),
        one("spec.limits.window", "must be between 0s and 24h", "/spec/limits/window", json!("25h")),
        one("spec.recovery.warnAfter", "must be between 1m and 168h", "/spec/recovery/warnAfter", json!("59s")),
        one(
            "spec.triggers.crashLoop.window",
            "must be between 1m and 168h",
            "/spec/triggers/crashLoop/window",
            json!("59s"),
        ),
        one("spec.limits.cooldown", "must be between 0s and 24h", "/spec/limits/cooldown", json!("25h")),
    ]
}

fn node_fence() -> Vec<Case> {
    let update = |field, message, pointer, value| Case {
        kind: "NodeFence",
        field,
        message,
        refused: Refused::Update { before: vec![], after: vec![(pointer, value)] },
    };
    vec![
        update("spec.episode", "episode only rises, by one", "/spec/episode", json!(4)),
        update("spec.episode", "episode only rises, by one", "/spec/episode", json!(1)),
        update(
            "spec.node",
            "the frozen identity is immutable within an episode",
            "/spec/node/bootID",
            json!("another"),
        ),
        update(
            "spec.policies",
            "a recorded policy is immutable within an episode",
            "/spec/policies/0/generation",
            json!(2),
        ),
        update(
            "spec.plan.decidedAt",
            "decidedAt is immutable within an episode",
            "/spec/plan/decidedAt",
            json!("2026-11-21T02:13:08Z"),
        ),
        update(
            "spec.plan.evidence",
            "evidence is only added within an episode",
            "/spec/plan/evidence/0/reason",
            json!("Guessed"),
        ),
        update("spec.plan", "planned pods cannot be removed within an episode", "/spec/plan/pods/2", Value::Null),
        update("spec.plan", "planned pods cannot be removed within an episode", "/spec/plan/pods", Value::Null),
        update("spec.plan", "planned volumes cannot be removed within an episode", "/spec/plan/volumes/2", Value::Null),
        Case {
            kind: "NodeFence",
            field: "status.volumes[0]",
            message: "a fenced volume needs committedAt, provedAt and method",
            refused: Refused::Status {
                before: vec![],
                after: vec![(
                    "/status/volumes",
                    json!([{"episode": 2, "name": "pvc-1f0e", "state": "Fenced", "proof": "Verified"}]),
                )],
            },
        },
    ]
}

fn fence_request() -> Vec<Case> {
    let update = |field, message, pointer, value| Case {
        kind: "FenceRequest",
        field,
        message,
        refused: Refused::Update { before: vec![], after: vec![(pointer, value)] },
    };
    let status = |message, before, after| Case {
        kind: "FenceRequest",
        field: "status.volumes[0]",
        message,
        refused: Refused::Status { before, after },
    };
    let row = |row: Value| vec![("/status/volumes", json!([row]))];
    vec![
        Case {
            kind: "FenceRequest",
            field: "spec.callTimeout",
            message: "must be between 1s and 5m",
            refused: Refused::Create(vec![("/spec/callTimeout", json!("999ms"))]),
        },
        update("spec.fencerName", "fencerName is immutable", "/spec/fencerName", json!("csi.file.example.com")),
        update("spec.nodeName", "nodeName is immutable", "/spec/nodeName", json!("worker-4")),
        update("spec.episode", "episode only rises, by one", "/spec/episode", json!(1)),
        update("spec.node", "the frozen identity is immutable within an episode", "/spec/node/uid", json!("another")),
        update("spec.volumes", "requested volumes cannot be removed within an episode", "/spec/volumes/1", Value::Null),
        status(
            "a fenced volume needs proof and method",
            vec![],
            row(json!({"episode": 2, "name": "pvc-1f0e", "round": 1, "result": "Fenced", "proof": "Acknowledged"})),
        ),
        status(
            "proof Verified needs readBackAt",
            vec![],
            row(json!({
                "episode": 2, "name": "pvc-1f0e", "round": 1,
                "result": "Fenced", "proof": "Verified", "method": "Unpublish",
            })),
        ),
        status(
            "proof PowerOff comes from an external fencer",
            vec![],
            row(json!({
                "episode": 2, "name": "pvc-1f0e", "round": 1,
                "result": "Fenced", "proof": "PowerOff", "method": "Unpublish",
            })),
        ),
    ]
}
