//! Channel Power: what it takes, whom nobody believes, and what a node that is heard makes of it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::driver_report::{DriverReport, PoweredOffNode};
use crate::api::node_fence::{Channel, EvidenceState};
use crate::api::slim::Node;
use crate::controllers::testing::*;

use super::super::decide::{decide, effective};
use super::super::evidence::{Silence, declares};
use super::super::heartbeat::Heartbeat;
use super::super::plan::LiveNode;
use super::super::power::Told;
use super::super::storage::Paths;
use super::World;

const NOTHING: &[Channel] = &[];
const FAST: &[Channel] = &[Channel::Agent, Channel::Power];
const SLOW: &[Channel] = &[Channel::Kubelet, Channel::Power];
const ALL: &[Channel] = &[Channel::Kubelet, Channel::Agent, Channel::Power];

pub(super) fn row(node: &str) -> PoweredOffNode {
    let node_uid = format!("uid-{node}");
    PoweredOffNode { node: node.into(), node_uid, boot_id: "boot-1".into(), since: at(99_990), reason: None }
}

/// What a fencer reports.
pub(super) fn off(rows: Vec<PoweredOffNode>) -> DriverReport {
    let mut report = report(POWER, &[]);
    report.status.as_mut().unwrap().powered_off = rows;
    report
}

pub(super) fn named(more: &Value) -> Value {
    let methods = json!([{ "type": "Unpublish" }, { "type": "External", "external": { "fencerName": POWER } }]);
    let mut spec = json!({ "fencing": { "methods": methods } });
    json_patch::merge(&mut spec, more);
    spec
}

/// Three nodes with a pod each, of which the fencer says that the first is off: known for so many seconds.
fn world(known_for: u64, spec: &Value) -> World {
    let mut world = World::with_failed(3, 0, spec);
    world.seen.reports = reports([able(DRIVER), off(vec![row("n0")])]);
    let told = Told {
        fencer: POWER.into(),
        row: row("n0"),
        known_for: Duration::from_secs(known_for),
        is_denied: false,
        was_there: false,
    };
    world.seen.off = [("n0".to_owned(), vec![told])].into();
    world
}

/// Agent and kubelet were heard so many seconds ago; an agent of which nothing is known was never heard. The peers of one that is
/// silent do not reach it.
fn heard(agent: Option<u64>, lease: u64) -> Silence {
    let (agent, lease) = (agent.map(Duration::from_secs), Some(Duration::from_secs(lease)));
    let against = agent.filter(|silent| *silent >= Duration::from_secs(3)).map(|_| (4, 5));
    let heartbeat = Heartbeat { silent_for: agent, against, out_of_reach_for: agent };
    let next_renewal = super::NEXT_RENEWAL;
    Silence { lease_age: lease, still_for: lease, has_moved: true, next_renewal, heartbeat, ..Silence::default() }
}

/// An agent that was heard so many milliseconds ago, of which the peers do not say that it is out of reach.
pub(super) fn lost_for(millis: u64) -> Heartbeat {
    let ago = Some(Duration::from_millis(millis));
    Heartbeat { silent_for: ago, against: None, out_of_reach_for: ago }
}

/// The channels that declare the first node.
fn declared(world: &World) -> Vec<Channel> {
    let ((node, silence), pod) = (&world.seen.nodes[0], &world.seen.pods["n0"][0]);
    let Some(policies) = effective(&world.seen, pod) else { return Vec::new() };
    let outside =
        Paths::unrestrained(&world.seen, world.now).outside(node, *silence, &world.seen.reports, pod, &policies);
    let found = declares(node, *silence, &pod.pod, &policies, outside, world.now);
    found.into_iter().flatten().map(|evidence| evidence.channel).collect()
}

#[test]
fn a_node_without_power_must_be_silent_too() {
    let unconfirmed = |mut silence: Silence| {
        silence.heartbeat.against = None;
        silence
    };
    let reached = |mut silence: Silence, ago| {
        silence.heartbeat.out_of_reach_for = Some(Duration::from_secs(ago));
        silence
    };
    // Our own silence is long enough, and the peers have not answered yet; or they have, a moment ago, and are asked again.
    let asking = |millis, lease| Silence { heartbeat: lost_for(millis), ..heard(None, lease) };
    let hasty = json!({ "detection": { "agent": { "suspectAfter": "2s" } } });
    let unproved = Silence { lease_age: None, ..heard(None, 30) };
    let (defaults, three) = (json!({}), json!({ "detection": { "requiredChannels": 3, "decisiveChannels": [] } }));
    let fences_itself = json!({ "selfFencing": { "mode": "Enabled", "after": "15s" } });
    let cases: Vec<(&str, Silence, u64, &Value, &[Channel])> = vec![
        ("its word alone", heard(None, 4), 2, &defaults, NOTHING),
        ("heartbeat and peers beside it", heard(Some(4), 9), 2, &defaults, FAST),
        ("the peers do not say so", unconfirmed(heard(Some(4), 9)), 2, &defaults, NOTHING),
        ("a peer was answered", reached(heard(Some(9), 9), 1), 2, &defaults, NOTHING),
        ("one renewal that is missed", heard(None, 20), 2, &defaults, NOTHING),
        ("two that are", heard(None, 21), 2, &defaults, SLOW),
        ("two that are, while the peers are asked", asking(3_000, 21), 2, &defaults, NOTHING),
        ("a node that its peers reach, and we do not", asking(2_300, 21), 2, &hasty, NOTHING),
        (
            "a node without a Lease",
            Silence { still_for: None, lease_age: None, ..heard(Some(22), 25) },
            2,
            &defaults,
            NOTHING,
        ),
        ("an agent that nobody has heard for long", asking(9_000, 21), 2, &defaults, SLOW),
        ("a Lease whose age is not proved", unproved, 2, &defaults, NOTHING),
        ("all three", heard(Some(22), 25), 2, &defaults, ALL),
        ("the agent is heard", heard(Some(1), 30), 2, &defaults, NOTHING),
        ("the Lease has moved since it was said", heard(Some(4), 9), 60, &defaults, NOTHING),
        ("it was renewed just before", heard(Some(4), 9), 9, &defaults, FAST),
        ("the kubelet outlives the agent", heard(Some(60), 5), 2, &defaults, NOTHING),
        ("and then it does not", heard(Some(60), 21), 2, &defaults, ALL),
        ("two where three must agree", heard(Some(4), 9), 2, &three, NOTHING),
        ("three that do", heard(Some(22), 25), 2, &three, ALL),
        ("an agent that has time left to stop its pods", heard(Some(9), 9), 2, &fences_itself, NOTHING),
        ("one that has had it", heard(Some(20), 20), 2, &fences_itself, FAST),
        ("nobody knows whether it has had it", heard(None, 30), 2, &fences_itself, NOTHING),
    ];
    for (name, silence, known_for, more, wanted) in cases {
        let mut world = world(known_for, &named(more));
        world.seen.nodes[0].1 = silence;
        assert_eq!(declared(&world), wanted, "{name}");
    }
}

/// Where the policy calls no channel decisive the fencer is the second that agrees with Kubernetes.
#[test]
fn it_agrees_with_what_kubernetes_says() {
    let broken = json!([{ "key": "example.com/broken" }]);
    let spec = named(&json!({ "detection": { "decisiveChannels": [], "taints": broken } }));
    let mut world = world(30, &spec);
    world.node_becomes(unreachable("n0"));
    world.seen.nodes[0].1 = Silence { unreachable_for: Some(Duration::ZERO), ..heard(None, 50) };
    assert_eq!(declared(&world), SLOW);
    world.seen.off.clear();
    assert_eq!(declared(&world), NOTHING);
}

#[test]
fn whoever_cannot_be_believed_says_nothing() {
    type Case = (&'static str, fn(&mut World), &'static [Channel]);
    let cases: [Case; 12] = [
        ("as it is", |_| {}, FAST),
        ("a fencer that is not heard of", |world| _ = world.seen.silent_fencers.insert(POWER.into()), NOTHING),
        ("one that has no Lease", |world| _ = world.seen.missing_fencers.insert(POWER.into()), NOTHING),
        ("one whose Lease was only found", |world| _ = world.seen.unproved_fencers.insert(POWER.into()), NOTHING),
        ("a word that was there before us", |world| off_of(world).was_there = true, NOTHING),
        ("a node without a Lease", |world| world.seen.nodes[0].1.still_for = None, NOTHING),
        ("no report", |world| _ = world.seen.reports.remove(POWER), NOTHING),
        ("the node is not in it any more", |world| world.seen.reports.extend(reports([off(vec![])])), NOTHING),
        ("one that is not Ready", |world| world.seen.reports.extend(reports([unready()])), NOTHING),
        (
            "another Node of that name",
            |world| world.seen.nodes[0].0 = but_node(|node| node.metadata.uid = None),
            NOTHING,
        ),
        ("another boot", other_boot, NOTHING),
        (
            "another policy of the pod does not name it",
            |world| {
                world.seen.policies.push(policy("z", &json!({})).into());
            },
            NOTHING,
        ),
    ];
    for (name, change, wanted) in cases {
        let mut world = world(2, &named(&json!({})));
        world.seen.nodes[0].1 = heard(Some(4), 9);
        change(&mut world);
        assert_eq!(declared(&world), wanted, "{name}");
    }
}

/// What is said of the first node.
fn off_of(world: &mut World) -> &mut Told {
    &mut world.seen.off.get_mut("n0").expect("it is said")[0]
}

fn other_boot(world: &mut World) {
    world.seen.nodes[0].0 = but_node(|node| node.status.node_info.boot_id = "2".into());
}

pub(super) fn but_node(change: impl FnOnce(&mut Node)) -> Arc<Node> {
    let mut node = node("n0");
    change(&mut node);
    node.into()
}

pub(super) fn unready() -> DriverReport {
    let mut report = off(vec![row("n0")]);
    report.status.as_mut().unwrap().conditions[0].status = "False".into();
    report
}

#[test]
fn a_plan_is_made_before_kubernetes_notices() {
    let mut world = world(2, &named(&json!({})));
    world.seen.nodes[0].1 = heard(Some(4), 9);
    world.rest();
    let plan = &world.fence("n0").expect("declared").spec.plan;
    let power = plan.evidence.iter().find(|it| it.channel == Channel::Power).expect("it is told");
    assert_eq!((power.state, power.since), (EvidenceState::Failed, at(99_990)));
    assert!(power.message.as_ref().is_some_and(|it| it.contains(POWER)), "{power:?}");
    assert!(plan.is_of_node() && plan.is_ahead_of_kubernetes(), "{plan:?}");
    assert_eq!(world.opened(), 1);
}

#[test]
fn what_the_api_says_now_decides() {
    type Case = (&'static str, fn(&mut LiveNode));
    let cases: [Case; 3] = [
        ("the Lease has moved", |live| live.lease_is_still = false),
        ("the fencer has taken it back", |live| live.reports = reports([able(DRIVER), off(vec![])])),
        ("it has booted", |live| live.node = but_node(|node| node.status.node_info.boot_id = "2".into())),
    ];
    for (name, change) in cases {
        let mut world = world(2, &named(&json!({})));
        world.seen.nodes[0].1 = heard(Some(4), 9);
        let mut live = world.look_at("n0").expect("it is there");
        change(&mut live);
        world.live.insert("n0".into(), live);
        world.rest();
        assert_eq!(world.opened(), 0, "{name}");
    }
}

#[test]
fn a_fencer_that_is_contradicted_is_told_and_counts_for_nothing() {
    type Case = (&'static str, Silence, u64, fn(&mut World), Option<&'static str>);
    let found = Silence { has_moved: false, ..heard(Some(4), 9) };
    let cases: [Case; 10] = [
        // Beside a heartbeat that is lost: nothing but the Lease stands in its way.
        ("its Lease moves", heard(Some(4), 9), 60, |_| {}, Some("Lease")),
        ("its Lease may have moved", found, 60, |_| {}, None),
        ("its agent was heard", heard(None, 70), 60, |w| off_of(w).is_denied = true, Some("agent")),
        ("its agent is heard", heard(Some(1), 70), 60, |_| {}, Some("agent")),
        ("it has booted", heard(None, 70), 60, other_boot, Some("booted")),
        ("all silent since", heard(Some(65), 70), 60, |_| {}, None),
        ("it was only just said", heard(Some(1), 4), 3, |_| {}, None),
        ("of a fencer that nobody hears", heard(None, 4), 60, |w| _ = w.seen.silent_fencers.insert(POWER.into()), None),
        (
            "of one that no policy names",
            heard(None, 4),
            60,
            |w| w.seen.policies = vec![policy("db", &json!({})).into()],
            None,
        ),
        ("Kubernetes gave it up", heard(None, 4), 60, |w| w.seen.nodes[0].0 = unreachable("n0").into(), None),
    ];
    for (name, silence, known_for, change, wanted) in cases {
        let mut world = world(known_for, &named(&json!({})));
        world.seen.nodes[0].1 = silence;
        change(&mut world);
        let told = decide(&world.seen, world.now).contradicted;
        let heard = told.get(&("n0".to_owned(), POWER.to_owned()));
        match wanted {
            Some(word) => assert!(heard.is_some_and(|it| it.contains(word)), "{name}: {told:?}"),
            None => assert!(told.is_empty(), "{name}: {told:?}"),
        }
        if wanted.is_some() || !silence.has_moved {
            world.rest();
            assert_eq!(world.opened(), 0, "{name}");
        }
    }
}

/// A word that may have been denied before we looked has time to be denied again.
#[test]
fn a_word_that_was_there_before_us_waits_for_the_kubelet() {
    let mut world = world(30, &named(&json!({})));
    off_of(&mut world).was_there = true;
    for (silence, wanted) in [(heard(Some(29), 29), ALL), (heard(None, 31), SLOW), (heard(Some(20), 20), NOTHING)] {
        world.seen.nodes[0].1 = silence;
        let known_for = silence.still_for.expect("it has a Lease");
        off_of(&mut world).known_for = known_for;
        assert_eq!(declared(&world), wanted, "{silence:?}");
    }
}
