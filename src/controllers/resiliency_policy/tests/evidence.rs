//! What declares a node failed, and for which pods.

use std::time::Duration;

use serde_json::{Value, json};

use crate::api::names;
use crate::api::node_fence::Channel;
use crate::api::slim::Node;
use crate::api::usage::PodView;
use crate::controllers::testing::*;

use super::super::evidence::{Outside, Silence, declares, is_suspected};
use super::super::select::Effective;
use super::silence;

const KUBELET: &[Channel] = &[Channel::Kubelet];
const TAINT: &[Channel] = &[Channel::Taint];
const BOTH: &[Channel] = &[Channel::Kubelet, Channel::Taint];
const NOTHING: &[Channel] = &[];

fn down() -> PodView {
    pod("p", "n1", &[csi("v")])
}

fn with_conditions(initialized: &str, ready: &str) -> PodView {
    but(down(), |pod| {
        pod.status.conditions[0].status = initialized.into();
        pod.status.conditions[1].status = ready.into();
    })
}

fn channels(node: &Node, silence: Silence, pod: &PodView, spec: &Value) -> Vec<Channel> {
    let policy = policy("db", spec);
    let effective = Effective::of(pod, &Default::default(), [&policy]).unwrap();
    let found = declares(node, silence, &pod.pod, &effective, Outside::default(), now());
    found.into_iter().flatten().map(|evidence| evidence.channel).collect()
}

fn tainted(key: &str, effect: &str) -> Node {
    with_taint(node("n1"), key, "", effect)
}

fn taints(list: Value) -> Value {
    json!({ "detection": { "taints": list } })
}

#[test]
fn each_channel_says_what_the_api_says() {
    let broken = json!([{ "key": "example.com/broken", "effect": "NoExecute" }]);
    let any = || taints(json!([{ "key": "*" }]));
    let alone = json!({ "detection": { "decisiveChannels": [] } });
    let alone_broken = json!({ "detection": { "decisiveChannels": [], "taints": broken } });
    let kubelet_only = json!({ "detection": { "decisiveChannels": ["Kubelet"], "decisiveAfter": "0s" } });
    let unreachable_broken = with_taint(unreachable("n1"), "example.com/broken", "", "NoExecute");
    let unknown = || with_ready(node("n1"), "Unknown");
    let cases: Vec<(&str, Node, PodView, Value, &[Channel])> = vec![
        ("a healthy node", node("n1"), down(), json!({}), NOTHING),
        ("Unknown and unreachable", unreachable("n1"), with_conditions("True", "True"), json!({}), KUBELET),
        ("Unknown alone", unknown(), down(), json!({}), NOTHING),
        (
            "unreachable:NoExecute is never keyed on by the Kubelet channel",
            with_taint(unknown(), names::UNREACHABLE_TAINT, "", "NoExecute"),
            with_conditions("True", "True"),
            json!({}),
            NOTHING,
        ),
        ("a kubelet that reports NotReady", with_ready(node("n1"), "False"), down(), json!({}), NOTHING),
        (
            "not-ready is not in the default list",
            with_taint(with_ready(node("n1"), "False"), names::NOT_READY_TAINT, "", "NoSchedule"),
            down(),
            json!({}),
            NOTHING,
        ),
        ("unreachable beside Ready=True", tainted(names::UNREACHABLE_TAINT, "NoSchedule"), down(), json!({}), NOTHING),
        ("not-ready beside Ready=True", tainted(names::NOT_READY_TAINT, "NoSchedule"), down(), any(), NOTHING),
        ("somebody's out-of-service", tainted(names::OUT_OF_SERVICE_TAINT, "NoExecute"), down(), json!({}), TAINT),
        ("a listed taint", tainted("example.com/broken", "NoExecute"), down(), taints(broken.clone()), TAINT),
        ("of another effect", tainted("example.com/broken", "NoSchedule"), down(), taints(broken.clone()), NOTHING),
        (
            "but the pod is Ready",
            tainted("example.com/broken", "NoExecute"),
            with_conditions("True", "True"),
            taints(broken.clone()),
            NOTHING,
        ),
        (
            "but the pod is not Initialized",
            tainted("example.com/broken", "NoExecute"),
            with_conditions("False", "False"),
            taints(broken.clone()),
            NOTHING,
        ),
        ("* is any taint", tainted("whatever", "NoSchedule"), down(), any(), TAINT),
        ("* is no PreferNoSchedule", tainted("whatever", "PreferNoSchedule"), down(), any(), NOTHING),
        ("* is no cordon", tainted(names::UNSCHEDULABLE_TAINT, "NoSchedule"), down(), any(), NOTHING),
        ("* is not our own taint", tainted(names::FENCED_TAINT, "NoSchedule"), down(), any(), NOTHING),
        ("* is not our own driver taint", tainted("driver-down.bulkhead.dev/x", "NoSchedule"), down(), any(), NOTHING),
        (
            "* is not our own out-of-service",
            with_taint(node("n1"), names::OUT_OF_SERVICE_TAINT, "bulkhead-1", "NoSchedule"),
            down(),
            any(),
            NOTHING,
        ),
        ("no channel is decisive: one is not enough", unreachable("n1"), down(), alone.clone(), NOTHING),
        (
            "lifecycle taints are the same channel, and never count twice",
            unreachable("n1"),
            down(),
            json!({ "detection": { "decisiveChannels": [], "taints": [{ "key": "*" }] } }),
            NOTHING,
        ),
        ("two that agree", unreachable_broken.clone(), down(), alone_broken.clone(), BOTH),
        ("one of the two", tainted("example.com/broken", "NoExecute"), down(), alone_broken, NOTHING),
        (
            "Taint is not decisive here",
            tainted(names::OUT_OF_SERVICE_TAINT, "NoExecute"),
            down(),
            kubelet_only,
            NOTHING,
        ),
    ];
    for (name, node, pod, spec, wanted) in cases {
        assert_eq!(channels(&node, silence(&node), &pod, &spec), wanted, "{name}");
    }
}

#[test]
fn the_kubelet_is_decisive_after_its_time_without_interruption() {
    // The taint of the lifecycle controller that the defaults list must not undercut the time.
    let by_default = json!({ "detection": { "kubelet": { "decisiveAfter": "90s" } } });
    let alone = json!({ "detection": { "decisiveChannels": ["Kubelet"], "kubelet": { "decisiveAfter": "90s" } } });
    for spec in [alone, by_default] {
        for (seconds, wanted) in [(None, NOTHING), (Some(89), NOTHING), (Some(90), KUBELET)] {
            let node = unreachable("n1");
            let silence = Silence { unreachable_for: seconds.map(Duration::from_secs), ..silence(&node) };
            assert_eq!(channels(&node, silence, &down(), &spec), wanted, "{seconds:?} {spec}");
        }
    }
}

/// After an outage of the API server the lifecycle controller may write Ready=Unknown over kubelets that never fell silent.
#[test]
fn a_kubelet_that_may_renew_its_lease_as_ever_is_not_silent() {
    let still = |seconds: Option<u64>, has_moved| {
        let still = seconds.map(Duration::from_secs);
        Silence { lease_age: still, still_for: still, has_moved, ..silence(&unreachable("n1")) }
    };
    for (name, silence, wanted) in [
        ("seen to renew it", still(Some(3), true), NOTHING),
        ("renewed it one renewal ago", still(Some(15), true), KUBELET),
        ("only found, by a new leader", still(Some(3), false), NOTHING),
        ("found, and not renewed since", still(Some(15), false), KUBELET),
        ("it has no Lease", still(None, false), KUBELET),
    ] {
        assert_eq!(channels(&unreachable("n1"), silence, &down(), &json!({})), wanted, "{name}");
    }
}

#[test]
fn the_evidence_names_the_taint_that_counted() {
    let node = with_taint(unreachable("n1"), "example.com/broken", "", "NoExecute");
    let spec = taints(json!([{ "key": names::UNREACHABLE_TAINT }, { "key": "example.com/broken" }]));
    let policy = policy("db", &spec);
    let pod = down();
    let effective = Effective::of(&pod, &Default::default(), [&policy]).unwrap();
    let found = declares(&node, silence(&node), &pod.pod, &effective, Outside::default(), now()).unwrap();
    let message = found.iter().find(|it| it.channel == Channel::Taint).unwrap().message.clone().unwrap();
    assert!(message.contains("example.com/broken"), "{message}");
}

#[test]
fn suspicion_needs_one_signal_and_never_an_unknown_age() {
    let after = Duration::from_secs(20);
    let aged = |seconds| Silence { still_for: Some(Duration::from_secs(seconds)), ..Silence::default() };
    let unknown = Silence::default();
    let cases: [(&str, Node, Silence, bool); 6] = [
        ("healthy", node("n1"), aged(9), false),
        ("an old Lease", node("n1"), aged(20), true),
        ("an age that cannot be told", node("n1"), unknown, false),
        ("Ready=Unknown", with_ready(node("n1"), "Unknown"), unknown, true),
        ("Ready=False", with_ready(node("n1"), "False"), unknown, true),
        ("the unreachable taint", tainted(names::UNREACHABLE_TAINT, "NoExecute"), unknown, true),
    ];
    for (name, node, silence, wanted) in cases {
        assert_eq!(is_suspected(&node, silence, after), wanted, "{name}");
    }
}
