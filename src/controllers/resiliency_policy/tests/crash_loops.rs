//! Crash loops on a node that is well: who is deleted, how often, how far apart; and what no restart forgets.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use crate::api::fencing::PolicyMode;
use crate::api::names;
use crate::api::node_fence::Phase;
use crate::api::time;
use crate::api::usage::PodView;
use crate::controllers::testing::*;

use super::super::decide::Effect;
use super::super::scope::Scope;
use super::World;

/// The pod fails again and again since that second.
fn looping(view: PodView, since: i64) -> PodView {
    but(view, |pod| {
        let status = json!([{ "name": "main", "state": { "waiting": { "reason": "CrashLoopBackOff" } } }]);
        pod.status.container_statuses = serde_json::from_value(status).unwrap();
        pod.status.conditions[1].last_transition_time = Some(time::to_k8s(at(since)));
    })
}

fn in_loop(name: &str) -> PodView {
    looping(pod(name, "n0", &[csi(&format!("v-{name}"))]), 99_000)
}

fn world(pods: Vec<PodView>, spec: &Value) -> World {
    World::new((0..4).map(|i| node(&format!("n{i}"))).collect(), pods, vec![policy("db", spec)])
}

fn pause(object: &mut ObjectMeta) {
    object.annotations.get_or_insert_default().insert(names::PAUSED_ANNOTATION.into(), "wait".into());
}

/// Names of the pods that a pass deletes.
fn deleted(effects: &[Effect]) -> Vec<String> {
    let named = effects.iter().filter_map(|effect| match effect {
        Effect::Reschedule { pod, .. } => Some(pod.name().to_owned()),
        _ => None,
    });
    named.collect()
}

impl World {
    /// Passes for that many seconds, one each; the StatefulSet creates what was deleted, and it fails again. Returns the
    /// seconds at which something was deleted.
    fn suffer(&mut self, seconds: u32) -> Vec<u32> {
        let mut at = Vec::new();
        let mut incarnation = self.seen.pods.values().flatten().count();
        for second in 0..seconds {
            for name in deleted(&self.pass()) {
                incarnation += 1;
                let again = but(in_loop(&name), |pod| pod.metadata.uid = Some(format!("uid-{incarnation}")));
                self.seen.pods.get_mut("n0").unwrap().push(again);
                at.push(second);
            }
            self.wait(1.0);
        }
        at
    }

    /// Why pods stay in their loop, by name.
    fn kept(&mut self) -> Vec<(String, &'static str)> {
        self.decide().crash_loops.held.into_iter().map(|held| (held.name, held.reason)).collect()
    }

    fn rows(&self) -> usize {
        self.seen.policies.iter().flat_map(|it| &it.status).map(|status| status.crash_loop_deletes.len()).sum()
    }
}

#[test]
fn it_is_recorded_and_then_deleted() {
    let mut world = world(vec![in_loop("pg"), pod("web", "n0", &[csi("w")])], &json!({}));
    world.pass();
    let first = world.pass();
    assert_eq!(world.rows(), 1);
    let deletions = if deleted(&first).is_empty() { deleted(&world.pass()) } else { deleted(&first) };
    assert_eq!(deletions, ["pg"]);
    assert_eq!(world.opened(), 0, "a crash loop is no failed node");
    world.rest();
}

#[test]
fn nothing_is_deleted_without_a_record_that_was_seen() {
    let mut world = world(vec![in_loop("pg")], &json!({}));
    for _ in 0..5 {
        // The status write is refused each time.
        let decision = world.decide();
        assert_eq!(deleted(&decision.effects), [""; 0]);
        assert!(decision.effects.iter().any(|effect| matches!(effect, Effect::Record(_))));
    }
}

#[test]
fn a_program_that_fails_everywhere_is_deleted_within_its_budget_ever_more_seldom() {
    let mut world = world(vec![in_loop("pg")], &json!({}));
    let deletions = world.suffer(600);
    assert_eq!(deletions.len(), 3, "{deletions:?}");
    let pauses: Vec<_> = deletions.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses[0] >= 10 && pauses[1] >= 20, "{deletions:?}");
    assert_eq!(world.kept(), [("pg".to_owned(), "BudgetExhausted")]);
    world.rest();
    // The window passes: once more.
    world.wait(3_600.0);
    assert!(!world.suffer(5).is_empty());
}

#[test]
fn the_replicas_of_one_owner_share_its_budget() {
    let pods = (0..5).map(|number| in_loop(&format!("pg-{number}"))).collect();
    let mut world = world(pods, &json!({ "triggers": { "crashLoop": { "maxDeletes": 2 } } }));
    assert_eq!(world.suffer(300).len(), 2);
    let other = but(in_loop("other"), |pod| pod.metadata.owner_references.as_mut().unwrap()[0].uid = "t".into());
    world.seen.pods.get_mut("n0").unwrap().push(other);
    assert!(!world.suffer(5).is_empty(), "another owner has a budget of its own");
}

/// A controller that starts anew knows what the policy's status has, and nothing else; one that dies after its record
/// deletes that pod, or counts again: never more than the budget.
#[test]
fn what_is_recorded_counts_whether_it_was_carried_out_or_not() {
    let mut world = world(vec![in_loop("pg")], &json!({ "triggers": { "crashLoop": { "maxDeletes": 3 } } }));
    world.pass();
    assert_eq!(world.rows(), 1);
    // Nobody is there for longer than the record may be acted on.
    world.wait(120.0);
    assert_eq!(deleted(&world.decide().effects), [""; 0], "an old record deletes nothing");
    assert_eq!(world.suffer(600).len(), 2);
    assert_eq!(world.rows(), 3);
}

#[test]
fn a_record_is_kept_through_an_edit_of_the_policy_and_counts_for_every_policy() {
    let mut world = world(vec![in_loop("pg")], &json!({ "triggers": { "crashLoop": { "maxDeletes": 1 } } }));
    assert_eq!(world.suffer(30).len(), 1);
    world.seen.policies.push(Arc::new(policy("aa", &json!({}))));
    assert_eq!(world.suffer(120), [0; 0], "a policy that comes first by name begins no new count");
}

#[test]
fn the_record_has_an_end() {
    let mut world = world(vec![in_loop("pg")], &json!({ "triggers": { "crashLoop": { "maxDeletes": 100 } } }));
    world.pass();
    let full = world.seen.policies[0].status.as_ref().map(|status| {
        let mut row = status.crash_loop_deletes[0].clone();
        row.owner_uid = "another".into();
        vec![row; 256]
    });
    let rows = full.unwrap();
    Arc::make_mut(&mut world.seen.policies[0]).status.as_mut().unwrap().crash_loop_deletes = rows;
    assert_eq!(world.kept(), [("pg".to_owned(), "BudgetExhausted")]);
    world.rest();
    assert_eq!(world.rows(), 256);
    world.wait(7_200.0);
    assert!(!world.suffer(5).is_empty(), "old rows make room");
    assert!(world.rows() <= 2);
}

#[test]
fn who_is_left_alone() {
    let ready = |view| but(view, |pod| pod.status.conditions[1].status = "True".into());
    let db = || in_loop("pg");
    type Case = (&'static str, PodView, Value, fn(&mut World), Option<&'static str>);
    let nothing: fn(&mut World) = |_| {};
    let cases: Vec<Case> = vec![
        ("a pod that does not fail", pod("pg", "n0", &[csi("v")]), json!({}), nothing, None),
        ("one that is Ready", ready(db()), json!({}), nothing, None),
        ("a bare pod", owned_by(db(), None), json!({}), nothing, Some("BarePod")),
        ("a pod of a DaemonSet", owned_by(db(), Some("DaemonSet")), json!({}), nothing, None),
        ("no policy wants it", db(), json!({ "triggers": { "crashLoop": { "action": "Ignore" } } }), nothing, None),
        (
            "one that is going already",
            but(db(), |pod| pod.metadata.deletion_timestamp = Some(time::to_k8s(now().wall))),
            json!({}),
            nothing,
            None,
        ),
        ("its node is not ready", db(), json!({}), |w| w.node_becomes(with_ready(node("n0"), "False")), None),
        (
            "an outage",
            db(),
            json!({}),
            |w| {
                (0..4).for_each(|i| {
                    if i > 0 {
                        w.node_becomes(unreachable(&format!("n{i}")))
                    }
                })
            },
            Some("CorrelatedOutage"),
        ),
        (
            "its array was out, and it was not counted yet",
            db(),
            json!({}),
            |w| {
                w.seen.scope = Scope::Nodes(BTreeSet::new());
                w.seen.backend_outage_seen.insert(DRIVER.into(), Duration::from_secs(1));
            },
            Some("ArrayOutage"),
        ),
        ("only rehearsed", db(), json!({ "mode": "DryRun" }), nothing, Some("DryRun")),
        ("nobody can approve of it", db(), json!({ "mode": "RequireApproval" }), nothing, Some("RequireApproval")),
        (
            "another policy of it asks people first",
            db(),
            json!({}),
            |w| w.seen.policies.push(Arc::new(policy("zz", &json!({ "mode": "RequireApproval" })))),
            Some("RequireApproval"),
        ),
        (
            "its policy is paused",
            db(),
            json!({}),
            |w| pause(&mut Arc::make_mut(&mut w.seen.policies[0]).metadata),
            Some("Paused"),
        ),
        (
            "its node is paused",
            db(),
            json!({}),
            |w| {
                let mut paused = node("n0");
                pause(&mut paused.metadata);
                w.node_becomes(paused);
            },
            Some("Paused"),
        ),
        (
            "a maintenance window is open",
            db(),
            json!({ "maintenanceWindows": [
                { "name": "always", "schedule": "* * * * *", "duration": "1h", "timeZone": "UTC" },
            ] }),
            nothing,
            Some("MaintenanceWindow"),
        ),
        (
            "the API says that it runs again",
            db(),
            json!({}),
            |w| {
                let mut live = w.look_at("n0").unwrap();
                live.pods = vec![pod("pg", "n0", &[csi("v-pg")])];
                w.live.insert("n0".into(), live);
            },
            None,
        ),
        (
            "the API has another pod of that name",
            db(),
            json!({}),
            |w| {
                let mut live = w.look_at("n0").unwrap();
                live.pods = vec![but(in_loop("pg"), |pod| pod.metadata.uid = Some("another".into()))];
                w.live.insert("n0".into(), live);
            },
            None,
        ),
    ];
    for (name, pod, spec, change, told) in cases {
        let mut world = world(vec![pod], &spec);
        change(&mut world);
        for _ in 0..5 {
            assert_eq!(deleted(&world.pass()), [""; 0], "{name}");
        }
        assert_eq!(world.kept().first().map(|(_, reason)| *reason), told, "{name}");
    }
}

#[test]
fn what_holds_a_crash_loop_is_told_as_what_it_is() {
    for (mode, told) in [
        ("DryRun", "DryRun: nothing is begun"),
        ("RequireApproval", "RequireApproval: people approve of plans for nodes, and here is none"),
    ] {
        let decision = world(vec![in_loop("pg")], &json!({ "mode": mode })).decide();
        let messages: Vec<_> = decision.crash_loops.held.into_iter().map(|held| held.message).collect();
        assert_eq!(messages, [told]);
        assert!(decision.crash_loops.recorded.is_empty(), "{mode}");
    }
}

#[test]
fn when_the_brake_lets_go_it_is_moved() {
    let mut world = world(vec![in_loop("pg")], &json!({ "mode": "RequireApproval" }));
    assert_eq!(world.suffer(60), [0; 0]);
    Arc::make_mut(&mut world.seen.policies[0]).spec.mode = PolicyMode::Enforce;
    assert_eq!(world.suffer(5).len(), 1, "what was held was not counted");
}

#[test]
fn init_containers_count() {
    let mut pod = in_loop("pg");
    pod = but(pod, |pod| std::mem::swap(&mut pod.status.container_statuses, &mut pod.status.init_container_statuses));
    assert_eq!(world(vec![pod], &json!({})).suffer(5).len(), 1);
}

#[test]
fn of_two_policies_the_stricter_one_holds() {
    let mut world = world(vec![in_loop("pg")], &json!({ "triggers": { "crashLoop": { "maxDeletes": 5 } } }));
    let strict = policy("zz", &json!({ "triggers": { "crashLoop": { "maxDeletes": 1, "window": "24h" } } }));
    world.seen.policies.push(Arc::new(strict));
    assert_eq!(world.suffer(600).len(), 1);
    world.wait(7_200.0);
    assert_eq!(world.suffer(10), [0; 0], "the longer window counts");
}

#[test]
fn after_an_incident_only() {
    let spec = json!({ "triggers": { "crashLoop": { "when": "AfterIncident", "window": "10m" } } });
    // Node n1 fails at second 100 000, and its pod goes to n0.
    let after = |began: i64, failed: &str, name: &str| {
        let victim = pod("pg", failed, &[csi("v-pg")]);
        let nodes = (0..4).map(|i| format!("n{i}"));
        let nodes = nodes.map(|name| if name == failed { unreachable(&name) } else { node(&name) });
        let mut world = World::new(nodes.collect(), vec![victim], vec![policy("db", &spec)]);
        world.rest();
        assert_eq!(world.opened(), 1);
        world.reach(failed, Phase::Recovered);
        world.fences_end(failed, 100_060);
        world.node_becomes(node(failed));
        world.seen.pods.clear();
        let pod = looping(pod(name, "n0", &[csi(&format!("v-{name}"))]), began);
        world.seen.pods.insert("n0".into(), vec![pod]);
        world.wait(200.0);
        world.suffer(5).len()
    };
    assert_eq!(after(100_100, "n1", "pg"), 1, "it came from there");
    assert_eq!(after(100_659, "n1", "pg"), 1, "within the window");
    assert_eq!(after(100_661, "n1", "pg"), 0, "too late");
    assert_eq!(after(99_000, "n1", "pg"), 0, "it failed before");
    assert_eq!(after(100_100, "n1", "web"), 0, "it was never there");
    assert_eq!(after(100_100, "n0", "web"), 1, "its own node");
}

impl World {
    /// The incident of a node was over at that second.
    fn fences_end(&mut self, name: &str, second: i64) {
        let fence = self.seen.fences.iter_mut().find(|it| it.metadata.name.as_deref() == Some(name)).unwrap();
        let status = Arc::make_mut(fence).status.as_mut().unwrap();
        status.timeline.as_mut().unwrap().recovered_at = Some(at(second));
    }
}
