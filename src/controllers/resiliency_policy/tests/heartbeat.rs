//! Channel Agent: what it takes, and what it never does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::api::names;
use crate::api::node_fence::{Channel, Evidence, EvidenceState};
use crate::api::slim::Node;
use crate::api::time;
use crate::controllers::testing::*;

use super::super::evidence::{Outside, Silence, declares};
use super::super::heartbeat::{Hearing, Heartbeat, suspect_after};
use super::super::select::Effective;
use super::{NEXT_RENEWAL, silence};

const PEERS: Option<(usize, usize)> = Some((4, 5));
const NOTHING: &[Channel] = &[];
const BOTH: &[Channel] = &[Channel::Kubelet, Channel::Agent];

fn heartbeat(silent: u64, against: Option<(usize, usize)>) -> Heartbeat {
    let silent = Some(Duration::from_secs(silent));
    Heartbeat { silent_for: silent, against, out_of_reach_for: silent }
}

fn with(node: &Node, lease: Option<u64>, heartbeat: Heartbeat) -> Silence {
    Silence { lease_age: lease.map(Duration::from_secs), heartbeat, ..silence(node) }
}

fn evidence(node: &Node, silence: Silence, spec: &Value) -> Vec<Evidence> {
    evidence_beside(node, silence, spec, None)
}

/// The same where the array says something too.
fn evidence_beside(node: &Node, silence: Silence, spec: &Value, storage: Option<Evidence>) -> Vec<Evidence> {
    let (policy, pod) = (policy("db", spec), pod("p", "n1", &[csi("v")]));
    let effective = Effective::of(&pod, &Default::default(), [&policy]).unwrap();
    let outside = Outside { storage, ..Outside::default() };
    declares(node, silence, &pod.pod, &effective, outside, now()).unwrap_or_default()
}

fn lost_path() -> Evidence {
    Evidence {
        channel: Channel::Storage,
        state: EvidenceState::Failed,
        backend: None,
        since: time::stamp(now().wall),
        reason: "BackendDisconnected".into(),
        message: None,
    }
}

/// What is seen, age of the Lease in seconds, heartbeat, policy, and the channels that declare.
type Case<'a> = (&'a str, &'a Node, Option<u64>, Heartbeat, &'a Value, &'a [Channel]);

#[test]
fn heartbeats_count_only_beside_another_sign() {
    let (unknown, lost) = (Heartbeat::default(), heartbeat(9, PEERS));
    let defaults = json!({});
    let both_wanted = json!({ "detection": { "decisiveChannels": [], "taints": [{ "key": "example.com/broken" }] } });
    let patient = json!({ "detection": { "agent": { "suspectAfter": "10s" } } });
    let late = json!({ "detection": { "kubelet": { "decisiveAfter": "90s" } } });
    let (well, gone) = (node("n1"), unreachable("n1"));
    let cases: Vec<Case> = vec![
        ("heartbeat and peers alone", &well, Some(9), lost, &defaults, NOTHING),
        ("one renewal that is missed", &well, Some(20), lost, &defaults, NOTHING),
        ("two that are", &well, Some(21), lost, &defaults, BOTH),
        ("a Lease whose age is not proved", &well, None, lost, &defaults, NOTHING),
        ("two renewals, and the agent is heard", &well, Some(30), heartbeat(1, None), &defaults, NOTHING),
        ("never heard", &well, Some(30), unknown, &defaults, NOTHING),
        ("peers do not say so", &well, Some(30), heartbeat(9, None), &defaults, NOTHING),
        ("not as long as the policy asks for", &well, Some(30), lost, &patient, NOTHING),
        ("as long", &well, Some(30), heartbeat(10, PEERS), &patient, BOTH),
        ("no channel is decisive: two are enough", &well, Some(21), lost, &both_wanted, BOTH),
        ("the taint, and one is not enough", &gone, Some(60), unknown, &both_wanted, NOTHING),
        ("the taint and the heartbeat", &gone, Some(60), lost, &both_wanted, BOTH),
        ("sooner than the kubelet alone", &gone, None, lost, &late, BOTH),
        ("the kubelet decides without the agent", &gone, None, unknown, &defaults, &[Channel::Kubelet]),
        ("and while the agent is heard", &gone, None, heartbeat(0, None), &defaults, &[Channel::Kubelet]),
    ];
    for (name, node, lease, heartbeat, spec, wanted) in cases {
        let found: Vec<_> = evidence(node, with(node, lease, heartbeat), spec).iter().map(|it| it.channel).collect();
        assert_eq!(found, wanted, "{name}");
    }
}

#[test]
fn a_lost_storage_path_is_such_a_sign() {
    let path = lost_path();
    let well = node("n1");
    let with_agent = |heartbeat| with(&well, Some(4), heartbeat);
    let of = |heartbeat, storage| evidence_beside(&well, with_agent(heartbeat), &json!({}), storage);
    assert_eq!(of(heartbeat(0, None), Some(path.clone())), [], "alone it declares no node failed");
    assert_eq!(of(heartbeat(9, None), Some(path.clone())), [], "nor while the peers do not say so");
    let rows = of(heartbeat(9, PEERS), Some(path));
    assert_eq!(rows.iter().map(|row| row.channel).collect::<Vec<_>>(), [Channel::Agent, Channel::Storage]);
}

/// Somebody drops the heartbeats, and the array is mistaken: the kubelet goes on renewing its Lease.
#[test]
fn a_kubelet_that_goes_on_contradicts_it() {
    let (well, gone) = (node("n1"), unreachable("n1"));
    let cases: [(&str, &Node, u64, bool, &[Channel]); 7] = [
        ("renewed long after the last heartbeat", &well, 3, true, NOTHING),
        ("renewed after it by less than a watch may be late", &well, 4, true, &[Channel::Agent, Channel::Storage]),
        ("only found, by a new leader", &well, 14, false, NOTHING),
        ("found, and not renewed since", &well, 15, false, &[Channel::Agent, Channel::Storage]),
        ("and it is silent by now", &well, 21, true, &[Channel::Kubelet, Channel::Agent, Channel::Storage]),
        ("Kubernetes gave it up, and its own watch lags behind", &gone, 3, true, NOTHING),
        ("Kubernetes gave it up", &gone, 15, true, &[Channel::Kubelet, Channel::Agent, Channel::Storage]),
    ];
    for (name, node, still, has_moved, expected) in cases {
        let age = Duration::from_secs(still);
        let silent = if still == 21 { 60 } else { 9 };
        let heard = with(node, Some(still), heartbeat(silent, PEERS));
        let seen = Silence { still_for: Some(age), has_moved, next_renewal: NEXT_RENEWAL, ..heard };
        let found = evidence_beside(node, seen, &json!({}), Some(lost_path()));
        assert_eq!(found.iter().map(|row| row.channel).collect::<Vec<_>>(), expected, "{name}");
    }
}

/// Lifecycle taints count where taints decide alone, and `unreachable` no sooner than the kubelet. A row of one that did not count
/// would be read as that of a node whose kubelet was never away.
#[test]
fn a_taint_that_did_not_count_is_no_evidence() {
    let gone = unreachable("n1");
    let not_ready = with_taint(with_ready(node("n1"), "False"), names::NOT_READY_TAINT, "", "NoSchedule");
    let broken = with_taint(not_ready.clone(), "example.com/broken", "", "NoSchedule");
    let spec = |channels: Value| json!({ "detection": { "decisiveChannels": channels, "taints": [{ "key": "*" }] } });
    let (alone, together) = (spec(json!(["Kubelet", "Taint"])), spec(json!([])));
    let others: &[Channel] = &[Channel::Agent, Channel::Storage];
    let all: &[Channel] = &[Channel::Agent, Channel::Taint, Channel::Storage];
    for (name, node, spec, expected) in [
        ("unreachable, and its Lease may be renewed as ever", &gone, &alone, others),
        ("not-ready, where taints decide alone", &not_ready, &alone, all),
        ("where they do not", &not_ready, &together, others),
        ("beside one that somebody set", &broken, &together, all),
    ] {
        let still_for = Some(Duration::from_secs(4));
        let heard = with(node, Some(4), heartbeat(9, PEERS));
        let seen = Silence { still_for, has_moved: true, next_renewal: NEXT_RENEWAL, ..heard };
        let found = evidence_beside(node, seen, spec, Some(lost_path()));
        assert_eq!(found.iter().map(|row| row.channel).collect::<Vec<_>>(), expected, "{name}");
    }
}

#[test]
fn self_fencing_is_given_its_time() {
    let (well, gone) = (node("n1"), unreachable("n1"));
    let enabled = json!({ "selfFencing": { "mode": "Enabled", "after": "15s" } });
    let disabled = json!({ "selfFencing": { "mode": "Disabled", "after": "15s" } });
    let out_of_reach = |seconds| {
        let seconds: Option<u64> = seconds;
        Heartbeat { out_of_reach_for: seconds.map(Duration::from_secs), ..heartbeat(60, PEERS) }
    };
    for (name, node, spec, seconds, expected) in [
        ("disabled", &well, &disabled, Some(4), 2),
        ("not yet", &well, &enabled, Some(4), 0),
        ("it may have acted, and what it does takes time", &well, &enabled, Some(19), 0),
        ("a peer reached it since", &well, &enabled, Some(3), 0),
        ("nobody knows when it was reached", &well, &enabled, None, 0),
        ("it has had its time", &well, &enabled, Some(20), 2),
        ("the taint waits for nothing", &gone, &enabled, Some(4), 3),
    ] {
        let found = evidence_beside(node, with(node, Some(4), out_of_reach(seconds)), spec, Some(lost_path()));
        assert_eq!(found.len(), expected, "{name}");
    }
}

#[test]
fn the_plan_says_what_was_seen() {
    let node = node("n1");
    let rows = evidence(&node, with(&node, Some(23), heartbeat(9, PEERS)), &json!({}));
    let words: Vec<_> = rows.iter().map(|row| (row.reason.as_str(), row.message.as_deref().unwrap())).collect();
    assert_eq!(
        words,
        [
            ("LeaseNotRenewed", "Lease 23 s old: two renewals are missed"),
            ("HeartbeatLost", "no heartbeat for 9 s, and 4 of 5 nodes that were asked do not reach it"),
        ]
    );
    assert_eq!((now().wall - rows[1].since).num_seconds(), 9);
}

/// Ten nodes, of which so many are lost and so many are not Ready.
fn heard(hearing: &mut Hearing, lost: usize, unready: usize, at: Instant) -> usize {
    let names: Vec<_> = (0..10).map(|number| format!("n{number}")).collect();
    let kind = |(number, name): (usize, &String)| {
        if (lost..lost + unready).contains(&number) { with_ready(node(name), "Unknown") } else { node(name) }
    };
    let nodes: Vec<_> = names.iter().enumerate().map(kind).collect();
    let state = |number| if number < lost { heartbeat(9, PEERS) } else { heartbeat(0, None) };
    let heard: BTreeMap<_, _> = names.iter().enumerate().map(|(number, name)| (name.clone(), state(number))).collect();
    let policies = [policy("db", &json!({ "limits": { "maxUnhealthy": "50%" } })), policy("any", &json!({}))];
    hearing.listen(nodes.iter(), |_| Silence::default(), &heard, &policies.map(Arc::new), at);
    let believed = nodes.iter().map(|node| hearing.believed(&heard, node, at));
    believed.filter(|heartbeat| heartbeat.is_confirmed(Duration::from_secs(3))).count()
}

#[test]
fn so_many_at_once_are_our_own_deafness() {
    let start = Instant::now();
    for (lost, unready, believed) in [(1, 0, 1), (5, 0, 5), (6, 0, 0), (10, 0, 0), (3, 3, 0), (3, 2, 3), (0, 10, 0)] {
        let mut hearing = Hearing::default();
        assert_eq!(heard(&mut hearing, lost, unready, start), believed, "{lost} lost, {unready} not Ready");
    }
    let mut hearing = Hearing::default();
    let at = |seconds| start + Duration::from_secs(seconds);
    for (seconds, lost, believed) in
        [(0, 6, 0), (1, 1, 0), (59, 1, 0), (60, 1, 1), (61, 10, 0), (120, 1, 0), (121, 1, 1)]
    {
        assert_eq!(heard(&mut hearing, lost, 0, at(seconds)), believed, "after {seconds} s");
    }
}

#[test]
fn without_a_policy_nothing_is_asked() {
    assert_eq!(suspect_after([]), None);
    let patient = policy("a", &json!({ "detection": { "agent": { "suspectAfter": "10s" } } }));
    assert_eq!(suspect_after([&patient]), Some(Duration::from_secs(10)));
    assert_eq!(suspect_after([&patient, &policy("b", &json!({}))]), Some(Duration::from_secs(3)));
}
