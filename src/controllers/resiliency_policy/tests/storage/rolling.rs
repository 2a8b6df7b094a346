//! Some drivers ask their own pod on a node whether it reaches the array, and answer "not connected" where that does not
//! answer: while it is away, and until the array was asked anew, what they say of a node that is well is no evidence.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::api::node_fence::Channel;
use crate::api::slim::{Node, VolumeSource};
use crate::api::time::{self, Now};
use crate::api::usage::PodView;
use crate::controllers::testing::*;

use super::super::super::evidence::Silence;
use super::super::super::heartbeat::Heartbeat;
use super::super::super::memory::{Found, Memory};
use super::super::super::storage::{REMOVED_AFTER, plugins_away};
use super::super::World;
use super::super::plugins::plugin;
use super::{OTHER, asked, one, world};

/// A plugin that is Ready for so many seconds.
fn ready_for(node: &str, seconds: i64) -> PodView {
    but(plugin(node, true), |pod| {
        pod.status.conditions[1].last_transition_time = Some(time::to_k8s(at(100_000 - seconds)));
    })
}

/// One that is on its way out.
fn ending(node: &str) -> PodView {
    but(ready_for(node, 9_000), |pod| pod.metadata.deletion_timestamp = Some(time::to_k8s(now().wall)))
}

#[test]
fn what_is_said_while_the_plugin_is_away_is_no_evidence() {
    let others = || {
        but(plugin("n0", false), |pod| {
            pod.spec.volumes[1].source = VolumeSource::HostPath(format!("/var/lib/kubelet/plugins/{OTHER}"));
        })
    };
    let over = || but(ready_for("n0", 9_000), |pod| pod.status.phase = Some("Failed".into()));
    let (well, unready) = (node("n0"), with_ready(node("n0"), "False"));
    let cases: Vec<(&str, &Node, Vec<PodView>, bool)> = vec![
        ("none is known", &well, vec![], true),
        ("Ready as ever", &well, vec![ready_for("n0", 9_000)], true),
        ("not Ready", &well, vec![plugin("n0", false)], false),
        ("on its way out", &well, vec![ending("n0")], false),
        ("it has failed", &well, vec![over()], false),
        ("Ready a moment ago", &well, vec![ready_for("n0", 59)], false),
        ("and asked anew since", &well, vec![ready_for("n0", 60)], true),
        ("the next one is there already", &well, vec![ending("n0"), ready_for("n0", 90)], true),
        ("another driver's", &well, vec![others()], true),
        ("the node is not Ready: nobody knows of its pods", &unready, vec![plugin("n0", false)], true),
    ];
    for (name, node, plugins, moves) in cases {
        let mut world = world(one(), &json!({}));
        world.node_becomes(node.clone());
        world.seen.pods.get_mut("n0").unwrap().extend(plugins);
        world.loses(&["n0"]);
        world.rest();
        assert_eq!(world.opened() == 1, moves, "{name}");
        assert_eq!(world.named_restraints(), [], "{name}");
    }
}

#[test]
fn the_slowest_policy_says_when_it_was_asked_anew() {
    let mut world = world(one(), &json!({}));
    let slow = json!({ "detection": { "storage": { "period": "30s", "lossThreshold": 4 } } });
    world.seen.policies.push(Arc::new(policy("slow", &slow)));
    world.plugin_becomes("n0", Some(ready_for("n0", 149)));
    world.loses(&["n0"]);
    world.rest();
    assert_eq!(world.opened(), 0);
    world.wait(1.0);
    world.rest();
    assert_eq!(world.opened(), 1);
}

/// The watch may be late.
#[test]
fn what_the_api_shows_of_it_now_decides() {
    let mut world = world(one(), &json!({}));
    world.plugin_becomes("n0", Some(ready_for("n0", 9_000)));
    world.loses(&["n0"]);
    let mut live = world.look_at("n0").expect("it is there");
    live.pods.retain(|pod| pod.name() == "pg");
    live.pods.push(plugin("n0", false));
    world.live.insert("n0".into(), live);
    world.rest();
    assert_eq!(world.opened(), 0);
}

/// Requirements, row 17: its image takes minutes to come, while all other nodes answer.
#[test]
fn a_rolling_upgrade_during_which_the_array_says_not_connected_releases_nobody() {
    let names: Vec<_> = (0..6).map(|i| format!("n{i}")).collect();
    let pods = names.iter().map(|name| pod(&format!("pg-{name}"), name, &[csi(&format!("v-{name}"))]));
    let mut world = world(pods.collect(), &json!({}));
    for name in &names {
        world.plugin_becomes(name, Some(ready_for(name, 9_000)));
    }
    let look = |world: &mut World| {
        let (seen, now) = (&mut world.seen, world.now.mono);
        seen.plugins_away = plugins_away(&seen.plugins_away, &seen.reports, &seen.pods, now);
        world.wait(5.0);
        world.rest();
    };
    for name in &names {
        world.plugin_becomes(name, Some(ending(name)));
        look(&mut world);
        world.loses(&[name]);
        look(&mut world);
        world.plugin_becomes(name, None);
        look(&mut world);
        world.plugin_becomes(name, Some(plugin(name, false)));
        (0..40).for_each(|_| look(&mut world));
        let since = time::to_k8s(world.now.wall);
        let back = but(plugin(name, true), |pod| pod.status.conditions[1].last_transition_time = Some(since));
        world.plugin_becomes(name, Some(back));
        (0..3).for_each(|_| look(&mut world));
        world.loses(&[]);
        (0..20).for_each(|_| look(&mut world));
    }
    assert_eq!((world.opened(), world.named_restraints()), (0, vec![]));
    assert!(world.seen.nodes.iter().all(|(node, _)| node.taints().is_empty()));
}

/// What the stores show of a node that has lost its path, with these pods of the plugin.
fn found(plugins: Vec<PodView>) -> Found {
    let mut report = asked(DRIVER, 6);
    report.status.as_mut().unwrap().unreachable =
        vec![super::pair(DRIVER, "n0", crate::api::driver_report::PathState::Disconnected)];
    Found {
        policies: vec![Arc::new(policy("db", &json!({})))],
        nodes: vec![Arc::new(node("n0"))],
        pods: one().into_iter().chain(plugins).collect(),
        reports: vec![Arc::new(report)],
        ..Found::default()
    }
}

fn remembers(memory: &mut Memory, plugins: Vec<PodView>, now: Now) -> bool {
    memory.look(found(plugins), (1, 1), now).plugins_away.contains_key(&("n0".to_owned(), DRIVER.to_owned()))
}

#[test]
fn one_that_does_not_come_again_was_removed() {
    let (mut memory, began) = (Memory::default(), now());
    let mut is_away = |seconds: f64, plugins| remembers(&mut memory, plugins, later(began, seconds));
    let removed = REMOVED_AFTER.as_secs_f64();
    assert!(is_away(0.0, vec![ending("n0")]));
    assert!(is_away(removed - 1.0, vec![]), "whoever makes its pods may still be waiting");
    assert!(is_away(removed, vec![plugin("n0", false)]), "while there is one nobody asks how long");
    assert!(is_away(2.0 * removed - 1.0, vec![]));
    assert!(!is_away(2.0 * removed, vec![]));
    assert!(!is_away(2.0 * removed + 1.0, vec![]), "nor does it begin anew");
}

#[test]
fn between_two_of_its_pods_it_is_away() {
    let mut memory = Memory::default();
    let mut remembers = |plugins| remembers(&mut memory, plugins, now());
    assert!(!remembers(vec![]), "none was ever seen");
    assert!(remembers(vec![ending("n0")]));
    assert!(remembers(vec![]), "the next one is not there yet");
    assert!(!remembers(vec![ready_for("n0", 1)]));
    assert!(!remembers(vec![]));
}

/// The kubelet is dead, and its pods are shown as they were: the array is a witness as ever, before Kubernetes tells.
#[test]
fn of_a_node_that_dies_the_plugin_is_shown_ready_and_the_array_counts() {
    let ignoring = json!({ "triggers": { "storagePathLoss": "Ignore" } });
    let both: &[Channel] = &[Channel::Agent, Channel::Storage];
    let cases: [(&str, PodView, &[Channel]); 3] = [
        ("Ready as ever", ready_for("n0", 9_000), both),
        ("it was being replaced just then", plugin("n0", false), &[]),
        ("it was Ready for a moment", ready_for("n0", 10), &[]),
    ];
    for (name, plugin, wanted) in cases {
        let mut world = world(one(), &ignoring);
        world.plugin_becomes("n0", Some(plugin));
        world.loses(&["n0"]);
        let silent = Some(Duration::from_secs(9));
        let heartbeat = Heartbeat { silent_for: silent, against: Some((4, 5)), out_of_reach_for: silent };
        let (node, known) = &mut world.seen.nodes[0];
        assert_eq!(node.ready(), "True");
        *known = Silence { lease_age: Some(Duration::from_secs(4)), heartbeat, ..*known };
        world.rest();
        let plan = world.fence("n0").map(|fence| fence.spec.plan.evidence.clone()).unwrap_or_default();
        assert_eq!(plan.iter().map(|it| it.channel).collect::<Vec<_>>(), wanted, "{name}");
    }
}

/// Kubernetes marks the pods of a silent node not Ready: that says nothing of them.
#[test]
fn of_a_node_that_kubernetes_gave_up_the_array_counts_whatever_is_shown_of_the_plugin() {
    let two = json!({ "detection": { "decisiveChannels": [] }, "triggers": { "storagePathLoss": "Ignore" } });
    let mut world = world(one(), &two);
    world.plugin_becomes("n0", Some(plugin("n0", false)));
    world.loses(&["n0"]);
    world.node_becomes(unreachable("n0"));
    world.rest();
    let plan = &world.fence("n0").expect("two channels agree").spec.plan;
    assert_eq!(plan.evidence.iter().map(|it| it.channel).collect::<Vec<_>>(), [Channel::Kubelet, Channel::Storage]);
}
