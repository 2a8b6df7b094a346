//! Taints of volumes that move pods off a node that is well: whom, when, and why not.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::conditions;
use crate::api::node_fence::{Channel, Phase, PodAction};
use crate::api::resiliency_policy::RestraintType::ArrayOutage;
use crate::api::time;
use crate::api::usage::PodView;
use crate::api::volume_health::VolumeHealthStatus;
use crate::controllers::testing::*;

use super::World;

const KEY: &str = "VolumeNotUsable";

/// A policy that moves pods for a volume that cannot be used.
fn moving() -> Value {
    json!({ "triggers": { "volumeTaints": [KEY] } })
}

/// Four nodes, with these pods.
fn world(pods: Vec<PodView>, spec: &Value) -> World {
    World::new((0..4).map(|i| node(&format!("n{i}"))).collect(), pods, vec![policy("db", spec)])
}

impl World {
    fn taint(&mut self, volume: &str, nodes: &[&str]) {
        self.seen.healths.insert(volume.into(), Arc::new(tainted(volume, KEY, nodes)));
    }

    fn edit_taint(&mut self, volume: &str, change: impl FnOnce(&mut VolumeHealthStatus)) {
        let mut health = tainted(volume, KEY, &["n0"]);
        change(health.status.as_mut().expect("a status"));
        self.seen.healths.insert(volume.into(), Arc::new(health));
    }

    /// Reasons of pods that stay, by name.
    fn held(&mut self) -> Vec<(String, &'static str)> {
        self.decide().unmoved.into_iter().map(|held| (held.name, held.reason)).collect()
    }

    fn says(&self, type_: &str) -> Option<(String, String)> {
        let status = self.seen.policies[0].status.as_ref()?;
        conditions::find(&status.conditions, type_).map(|it| (it.reason.clone(), it.message.clone()))
    }
}

#[test]
fn only_the_pods_of_the_volume_are_planned_with_all_their_volumes() {
    let pods =
        vec![pod("pg", "n0", &[csi("v1"), csi("v2")]), pod("web", "n0", &[csi("v3")]), pod("far", "n1", &[csi("v4")])];
    let mut world = world(pods, &moving());
    world.taint("v1", &["n0"]);
    world.rest();
    assert_eq!(world.opened(), 1);
    let spec = &world.fence("n0").expect("the node's").spec;
    let rows: Vec<_> = spec.plan.pods.iter().map(|row| (row.name.as_str(), row.action, row.reason.as_str())).collect();
    assert_eq!(rows, [("pg", PodAction::Release, "VolumeTaint")]);
    assert_eq!(spec.plan.volumes.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["v1", "v2"]);
    assert!(spec.plan.volumes.iter().all(|row| row.node_id.as_deref() == Some("id-n0") && !row.methods.is_empty()));
    assert_eq!(spec.plan.evidence.iter().map(|it| it.channel).collect::<Vec<_>>(), [Channel::Volume]);
    assert!(spec.plan.is_by_volume());
}

#[test]
fn who_moves_and_who_stays() {
    let db = |volumes: &[crate::api::usage::VolumeUse]| pod("pg", "n0", volumes);
    let one = || vec![db(&[csi("v1")])];
    type Case = (&'static str, Vec<PodView>, Value, fn(&mut World), Option<&'static str>);
    let on = |world: &mut World| world.taint("v1", &["n0"]);
    let cases: Vec<Case> = vec![
        ("tainted where it is used", one(), moving(), on, Some("moves")),
        ("a policy that does not ask", one(), json!({}), on, None),
        ("another key", one(), json!({ "triggers": { "volumeTaints": ["VolumeNotMounted"] } }), on, None),
        ("tainted elsewhere", one(), moving(), |w| w.taint("v1", &["n1"]), None),
        ("tainted everywhere", one(), moving(), |w| w.taint("v1", &[]), Some("TaintedEverywhere")),
        (
            "tainted on every node that uses it",
            vec![db(&[csi("v1")]), owned_by(pod("b", "n1", &[csi("v1")]), Some("DaemonSet"))],
            moving(),
            |w| w.taint("v1", &["n0", "n1"]),
            Some("TaintedEverywhere"),
        ),
        (
            "its data are lost",
            one(),
            moving(),
            |w| w.edit_taint("v1", |status| status.data_loss_token = Some("t".into())),
            Some("TaintedEverywhere"),
        ),
        (
            "the word of a dead node is the kubelet's",
            one(),
            moving(),
            |w| w.edit_taint("v1", |status| status.taints[0].source = crate::api::volume::Source::NodeLifecycle),
            None,
        ),
        (
            "another volume of that name",
            one(),
            moving(),
            |w| w.edit_taint("v1", |status| status.volume = Some(watched("uid-of-another"))),
            None,
        ),
        ("a local volume", vec![db(&[csi("v1"), local("l")])], moving(), on, Some("LocalVolume")),
        ("a local volume that is tainted", vec![db(&[local("v1")])], moving(), on, Some("LocalVolume")),
        ("a kind that no method covers", vec![db(&[csi("v1"), unknown("x")])], moving(), on, Some("UnknownVolumeKind")),
        ("a bare pod", vec![owned_by(db(&[csi("v1")]), None)], moving(), on, Some("BarePod")),
        ("a pod of its node", vec![owned_by(db(&[csi("v1")]), Some("DaemonSet"))], moving(), on, None),
        (
            "a pod that is going already",
            vec![but(db(&[csi("v1")]), |pod| pod.metadata.deletion_timestamp = Some(time::to_k8s(now().wall)))],
            moving(),
            on,
            None,
        ),
        (
            "one that shares a volume with a pod that stays",
            vec![db(&[csi("v1"), csi("v2")]), pod("other", "n0", &[csi("v2")])],
            moving(),
            on,
            Some("SharerHeld"),
        ),
        (
            "a driver that proves nothing",
            vec![db(&[csi_of("odd.example.com", "v1")])],
            moving(),
            on,
            Some("ProofUnreachable"),
        ),
        (
            "a sidecar that is silent",
            one(),
            moving(),
            |w| {
                w.taint("v1", &["n0"]);
                w.seen.silent_fencers.insert(DRIVER.into());
            },
            Some("ProofUnreachable"),
        ),
        (
            "a node that is not ready is the kubelet's matter",
            one(),
            moving(),
            |w| {
                w.taint("v1", &["n0"]);
                w.node_becomes(with_ready(node("n0"), "False"));
            },
            None,
        ),
    ];
    for (name, pods, spec, change, wanted) in cases {
        let mut world = world(pods, &spec);
        change(&mut world);
        let stays: Vec<_> = wanted.filter(|wanted| *wanted != "moves").into_iter().collect();
        assert_eq!(world.held().into_iter().map(|(_, reason)| reason).collect::<Vec<_>>(), stays, "{name}");
        world.rest();
        assert_eq!(world.opened(), usize::from(wanted == Some("moves")), "{name}");
        let told = world.says("VolumesHeld").map(|(reason, _)| reason);
        assert_eq!(told.as_deref(), wanted.filter(|wanted| *wanted != "moves"), "{name}");
    }
}

#[test]
fn why_a_pod_stays_is_told_by_name_and_no_longer_than_it_holds() {
    let mut world = world(vec![pod("pg", "n0", &[csi("v1")])], &moving());
    world.taint("v1", &[]);
    world.rest();
    let (reason, message) = world.says("VolumesHeld").expect("told");
    assert_eq!(reason, "TaintedEverywhere");
    assert!(message.contains("shop/pg stays") && message.contains("volume v1"), "{message}");
    world.seen.healths.clear();
    world.rest();
    assert_eq!(world.says("VolumesHeld"), None);
}

#[test]
fn of_two_policies_both_must_ask() {
    let mut world = world(vec![pod("pg", "n0", &[csi("v1")])], &moving());
    world.seen.policies.push(Arc::new(policy("strict", &json!({}))));
    world.taint("v1", &["n0"]);
    world.rest();
    assert_eq!(world.opened(), 0);
}

#[test]
fn the_budget_counts_nodes_that_are_left_for_their_volumes() {
    let pods = (0..4).map(|i| pod(&format!("p{i}"), &format!("n{i}"), &[csi(&format!("v{i}"))]));
    let mut world = world(pods.collect(), &moving());
    world.taint("v0", &["n0"]);
    world.taint("v1", &["n1"]);
    let held: Vec<_> = world.decide().restrained.into_iter().map(|it| (it.node, it.brake)).collect();
    assert_eq!(held, [("n1".to_owned(), "BudgetExhausted")]);
    world.rest();
    assert_eq!(world.opened(), 1);
    // A node that fails is held by it too: it is one budget.
    world.seen.healths.remove("v1");
    world.node_becomes(unreachable("n2"));
    world.rest();
    assert_eq!(
        (world.opened(), world.restraints()),
        (1, vec![crate::api::resiliency_policy::RestraintType::BudgetExhausted])
    );
}

#[test]
fn volumes_of_too_many_nodes_move_nobody_until_a_calm_has_passed() {
    let pods = (0..4).map(|i| pod(&format!("p{i}"), &format!("n{i}"), &[csi(&format!("v{i}"))]));
    let mut world = world(pods.collect(), &moving());
    for i in 0..3 {
        world.taint(&format!("v{i}"), &[&format!("n{i}")]);
    }
    let held: Vec<_> = world.decide().restrained.into_iter().map(|it| it.brake).collect();
    assert_eq!(held, ["ArrayOutage"; 3]);
    world.rest();
    assert_eq!((world.opened(), world.restraints()), (0, vec![ArrayOutage]));
    world.seen.healths.remove("v1");
    world.seen.healths.remove("v2");
    world.wait(60.0);
    world.rest();
    assert_eq!((world.opened(), world.restraints()), (0, vec![ArrayOutage]), "the calm has only begun");
    world.wait(601.0);
    world.rest();
    assert_eq!((world.opened(), world.restraints()), (1, vec![]));
}

#[test]
fn tainted_volumes_hold_no_node_that_fails() {
    let pods = (0..4).map(|i| pod(&format!("p{i}"), &format!("n{i}"), &[csi(&format!("v{i}"))]));
    let mut world = world(pods.collect(), &moving());
    for i in 1..4 {
        world.taint(&format!("v{i}"), &[&format!("n{i}")]);
    }
    world.node_becomes(unreachable("n0"));
    world.rest();
    assert_eq!((world.opened(), world.restraints()), (1, vec![ArrayOutage]));
    assert!(!world.fence("n0").expect("it failed").spec.plan.is_by_volume());
}

#[test]
fn what_was_moved_lately_is_not_moved_again() {
    let mut world = world(
        vec![pod("pg", "n0", &[csi("v1")])],
        &json!({
            "triggers": { "volumeTaints": [KEY] }, "limits": { "maxNodes": 4, "window": "0s" },
        }),
    );
    world.taint("v1", &["n0"]);
    world.rest();
    world.reach("n0", Phase::Recovered);
    // Its replacement has the same trouble on the next node, and on the first again.
    for place in ["n1", "n0"] {
        world.seen.pods = [(
            place.to_owned(),
            vec![but(pod("pg", place, &[csi("v1")]), |pod| {
                pod.metadata.uid = Some(format!("uid-pg-{place}"));
            })],
        )]
        .into();
        world.taint("v1", &[place]);
        assert_eq!(world.held(), [("pg".to_owned(), "MovedRecently")], "{place}");
        world.rest();
        assert_eq!(world.says("VolumesHeld").expect("told").0, "MovedRecently");
    }
    assert_eq!((world.opened(), world.fence("n0").map(|fence| fence.spec.episode)), (1, Some(1)));
    world.wait(601.0);
    world.rest();
    assert_eq!(world.fence("n0").map(|fence| fence.spec.episode), Some(2), "after limits.cooldown it is");
}

/// Pods in no policy, by their label.
fn unlabelled(more: &Value) -> Value {
    let selector = json!({ "matchExpressions": [{ "key": "skip", "operator": "DoesNotExist" }] });
    let mut spec = json!({ "selector": { "podSelector": selector }, "triggers": { "volumeTaints": [KEY] } });
    json_patch::merge(&mut spec, more);
    spec
}

#[test]
fn who_shares_a_volume_outside_every_policy_goes_along_where_all_policies_say_so() {
    let outside = |volumes: &[crate::api::usage::VolumeUse]| {
        but(pod("out", "n0", volumes), |pod| {
            pod.metadata.labels = Some([("skip".to_owned(), String::new())].into());
        })
    };
    let free = || outside(&[csi("v2"), csi("v3")]);
    let clean = || unlabelled(&json!({ "sharers": "CleanAll" }));
    let cases = [
        ("hold", free(), unlabelled(&json!({})), false),
        ("clean all", free(), clean(), true),
        ("a local volume", outside(&[csi("v2"), local("l")]), clean(), false),
        ("a driver that proves nothing", outside(&[csi("v2"), csi_of("odd", "v3")]), clean(), false),
        ("nobody would create it again", owned_by(free(), None), clean(), false),
        ("a pod of its node", owned_by(free(), Some("DaemonSet")), clean(), false),
        ("a volume that is in trouble everywhere", outside(&[csi("v2"), csi("v4")]), clean(), false),
        ("one that policies select is kept by them", pod("out", "n0", &[csi("v2")]), clean(), false),
    ];
    for (name, other, spec, goes) in cases {
        let mut world = world(vec![pod("pg", "n0", &[csi("v1"), csi("v2")]), other], &spec);
        world.taint("v1", &["n0"]);
        world.taint("v4", &[]);
        let held = if goes { vec![] } else { vec![("pg".to_owned(), "SharerHeld")] };
        assert_eq!(world.held(), held, "{name}");
        world.rest();
        let plan = world.fence("n0").map(|fence| fence.spec.plan.clone());
        assert_eq!(plan.is_some(), goes, "{name}");
        let Some(plan) = plan else { continue };
        assert!(plan.is_by_volume(), "it is no failure of the node");
        let rows: Vec<_> = plan.pods.iter().map(|row| (row.name.as_str(), row.policy.as_deref())).collect();
        assert_eq!(rows, [("out", Some("db")), ("pg", Some("db"))]);
        assert_eq!(plan.volumes.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["v1", "v2", "v3"]);
        assert!(plan.volumes.iter().all(|row| row.methods == plan.volumes[0].methods && row.node_id.is_some()));
    }
}

#[test]
fn who_must_run_beside_a_pod_goes_along_or_holds_it() {
    let term =
        json!([{ "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "app": "pg" } } }]);
    let web = |place: &str| {
        but(pod("web", place, &[csi("v2")]), |pod| {
            let affinity = &mut pod.spec.affinity.pod_affinity;
            affinity.required_during_scheduling_ignored_during_execution =
                serde_json::from_value(term.clone()).unwrap();
        })
    };
    let together = json!({ "release": { "affinityGroups": "Together" }, "limits": { "maxNodes": 4, "window": "0s" } });
    let mut world = world(vec![pod("pg", "n0", &[csi("v1")]), web("n0")], &unlabelled(&together));
    world.taint("v1", &["n0"]);
    world.rest();
    let plan = &world.fence("n0").expect("opened").spec.plan;
    assert_eq!(plan.pods.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["pg", "web"]);
    assert!(plan.is_by_volume() && plan.evidence.len() == 1);
    // Neither the one nor the other wanders.
    world.reach("n0", Phase::Recovered);
    world.seen.pods = [("n1".to_owned(), vec![pod("pg", "n1", &[csi("v5")]), web("n1")])].into();
    world.taint("v5", &["n1"]);
    assert_eq!(world.held(), [("pg".to_owned(), "SharerHeld")]);
    world.wait(601.0);
    world.rest();
    assert_eq!(world.fence("n1").map(|fence| fence.spec.plan.pods.len()), Some(2), "after limits.cooldown it is");
}

#[test]
fn who_goes_along_must_be_under_the_same_key_and_not_be_going_already() {
    let terminating = |pod: PodView| but(pod, |pod| pod.metadata.deletion_timestamp = Some(time::to_k8s(now().wall)));
    let term =
        json!([{ "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "app": "pg" } } }]);
    let web = but(pod("web", "n0", &[csi("v2")]), |pod| {
        pod.spec.affinity.pod_affinity.required_during_scheduling_ignored_during_execution =
            serde_json::from_value(term).unwrap();
    });
    let keys = |keys: Value| json!({ "triggers": { "volumeTaints": keys }, "selector": { "podSelector": { "matchLabels": { "app": "web" } } } });
    let cases = [
        ("the same", web.clone(), keys(json!([KEY])), true),
        ("another", web.clone(), keys(json!(["VolumeNotMounted"])), false),
        ("going", terminating(web), keys(json!([KEY])), false),
    ];
    for (name, web, other, goes) in cases {
        let spec = json!({
            "selector": { "podSelector": { "matchLabels": { "app": "pg" } } },
            "release": { "affinityGroups": "Together" }, "triggers": { "volumeTaints": [KEY] },
        });
        let mut world = world(vec![pod("pg", "n0", &[csi("v1")]), web], &spec);
        world.seen.policies.push(Arc::new(policy("other", &other)));
        world.taint("v1", &["n0"]);
        assert_eq!(world.held().is_empty(), goes, "{name}");
        world.rest();
        assert_eq!(world.opened(), usize::from(goes), "{name}");
    }
}

#[test]
fn an_incident_of_the_node_comes_first() {
    let mut world = world(vec![pod("pg", "n0", &[csi("v1")]), pod("web", "n0", &[csi("v2")])], &moving());
    world.taint("v1", &["n0"]);
    world.rest();
    assert!(world.fence("n0").expect("opened").spec.plan.is_by_volume());
    world.node_becomes(unreachable("n0"));
    world.rest();
    let plan = &world.fence("n0").expect("there").spec.plan;
    assert_eq!((plan.pods.len(), plan.is_by_volume()), (2, false), "the node failed meanwhile: all its pods go");
    // Back and not clean: what was cut off is in trouble because of it.
    world.reach("n0", Phase::Cleaning);
    world.node_becomes(node("n0"));
    world.taint("v2", &["n0"]);
    world.rest();
    assert_eq!(world.fence("n0").map(|fence| fence.spec.episode), Some(1));
}
