//! Pods that must run on one node, and pods outside every policy that share volumes: they leave a node that is well with those
//! that lost their path, or hold them before anything is begun.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::driver_report::PathState;
use crate::api::node_fence::{Phase, PodAction};
use crate::api::usage::{PodView, VolumeUse};
use crate::controllers::testing::*;

use super::super::World;
use super::{OTHER, world};

/// A pod of `n0` that must run where the other one does.
pub(super) fn beside(other: &str, name: &str, volumes: &[VolumeUse]) -> PodView {
    let selector = json!({ "matchLabels": { "app": other } });
    let term = json!([{ "topologyKey": "kubernetes.io/hostname", "labelSelector": selector }]);
    but(pod(name, "n0", volumes), |pod| {
        let affinity = &mut pod.spec.affinity.pod_affinity;
        affinity.required_during_scheduling_ignored_during_execution = serde_json::from_value(term).unwrap();
    })
}

/// The pod in no policy of [`together`].
fn outside(pod: PodView) -> PodView {
    but(pod, |pod| pod.metadata.labels.get_or_insert_default().extend([("skip".to_owned(), String::new())]))
}

/// A policy for all pods but those, which keeps groups together.
pub(super) fn together(more: &Value) -> Value {
    let unlabelled = json!({ "matchExpressions": [{ "key": "skip", "operator": "DoesNotExist" }] });
    let mut spec = json!({ "selector": { "podSelector": unlabelled }, "release": { "affinityGroups": "Together" } });
    json_patch::merge(&mut spec, more);
    spec
}

/// Another policy, for the pods of one application, which are in no other.
pub(super) fn only_for(world: &mut World, app: &str, spec: &Value) {
    let others = json!({ "matchExpressions": [{ "key": "app", "operator": "NotIn", "values": [app] }] });
    let mut apart = json!({ "selector": { "podSelector": { "matchLabels": { "app": app } } } });
    json_patch::merge(&mut apart, spec);
    let first = Arc::make_mut(&mut world.seen.policies[0]);
    first.spec.selector.pod_selector = Some(serde_json::from_value(others).unwrap());
    world.seen.policies.push(Arc::new(policy("apart", &apart)));
}

/// A database, and what must run beside it with these volumes.
fn group(volumes: &[VolumeUse]) -> Vec<PodView> {
    vec![pod("pg", "n0", &[csi("v1")]), beside("pg", "web", volumes)]
}

fn files() -> Vec<PodView> {
    group(&[csi_of(OTHER, "v2")])
}

/// The pods that are planned, by name: all to be released, for the path.
fn moved(world: &World) -> Vec<String> {
    let rows = world.planned("n0").into_iter().map(|(name, action, reason)| {
        assert_eq!((action, reason.as_str()), (PodAction::Release, "StoragePathLoss"), "{name}");
        name
    });
    rows.collect()
}

/// What the API shows beside the stores, which have no pods without volumes.
pub(super) fn is_there_too(world: &mut World, node: &str, pod: PodView) {
    let mut live = world.look_at(node).expect("it is there");
    live.pods.push(pod);
    world.live.insert(node.into(), live);
}

#[test]
fn who_goes_along_and_who_holds() {
    type Prepare = fn(&mut World);
    type Case = (&'static str, Vec<PodView>, Value, Prepare, Result<&'static [&'static str], &'static str>);
    let as_is: Prepare = |_| {};
    let web_stays = Err("must run beside shop/web, which stays");
    let outsider = |volumes: &[VolumeUse]| outside(pod("out", "n0", volumes));
    let shared = || vec![pod("pg", "n0", &[csi("v1")]), outsider(&[csi("v1"), csi_of(OTHER, "v2")])];
    let clean = || together(&json!({ "sharers": "CleanAll" }));
    let cases: Vec<Case> = vec![
        ("one that must run beside it", files(), together(&json!({})), as_is, Ok(&["pg", "web"])),
        (
            "one that it must run beside",
            vec![beside("web", "pg", &[csi("v1")]), pod("web", "n0", &[csi_of(OTHER, "v2")])],
            together(&json!({})),
            as_is,
            Ok(&["pg", "web"]),
        ),
        ("no policy says Together", files(), json!({}), as_is, Ok(&["pg"])),
        (
            "one beside one beside it",
            [files(), vec![beside("web", "cache", &[csi_of(OTHER, "v3")]), pod("free", "n0", &[csi_of(OTHER, "v4")])]]
                .concat(),
            together(&json!({})),
            as_is,
            Ok(&["cache", "pg", "web"]),
        ),
        (
            "no policy selects it",
            vec![pod("pg", "n0", &[csi("v1")]), outside(beside("pg", "web", &[csi_of(OTHER, "v2")]))],
            together(&json!({})),
            as_is,
            web_stays,
        ),
        ("a local volume", group(&[local("disk")]), together(&json!({})), as_is, web_stays),
        ("a driver that proves nothing", group(&[csi_of("odd", "v2")]), together(&json!({})), as_is, web_stays),
        (
            "nobody would create it again",
            vec![pod("pg", "n0", &[csi("v1")]), owned_by(beside("pg", "web", &[csi_of(OTHER, "v2")]), None)],
            together(&json!({})),
            as_is,
            web_stays,
        ),
        (
            "a pod of its node binds nobody",
            vec![pod("pg", "n0", &[csi("v1")]), owned_by(beside("pg", "web", &[]), Some("DaemonSet"))],
            together(&json!({})),
            as_is,
            Ok(&["pg"]),
        ),
        (
            "one that has ended binds nobody",
            vec![
                pod("pg", "n0", &[csi("v1")]),
                but(beside("pg", "web", &[local("disk")]), |pod| pod.status.phase = Some("Succeeded".into())),
            ],
            together(&json!({})),
            as_is,
            Ok(&["pg"]),
        ),
        (
            "its own policy lets no lost path move it",
            files(),
            together(&json!({})),
            |w| only_for(w, "web", &json!({ "triggers": { "storagePathLoss": "Ignore" } })),
            web_stays,
        ),
        (
            "its own policy says Together",
            files(),
            json!({}),
            |w| only_for(w, "web", &together(&json!({ "selector": { "podSelector": null } }))),
            Ok(&["pg", "web"]),
        ),
        (
            "its own policy says so, and only rehearses",
            files(),
            json!({}),
            |w| only_for(w, "web", &together(&json!({ "selector": { "podSelector": null }, "mode": "DryRun" }))),
            Ok(&["pg"]),
        ),
        (
            "its own policy only rehearses",
            files(),
            together(&json!({})),
            |w| only_for(w, "web", &json!({ "mode": "DryRun" })),
            web_stays,
        ),
        (
            "that of the pod in trouble only rehearses",
            files(),
            together(&json!({ "mode": "DryRun" })),
            |w| only_for(w, "web", &json!({ "mode": "Enforce" })),
            web_stays,
        ),
        (
            "its own array is out for everyone",
            files(),
            together(&json!({})),
            |w| w.says_of(OTHER, &["n0", "n1", "n2", "n3"], PathState::Disconnected),
            web_stays,
        ),
        (
            "it shares a volume with one that stays",
            [files(), vec![pod("other", "n0", &[csi_of(OTHER, "v2")])]].concat(),
            together(&json!({})),
            as_is,
            web_stays,
        ),
        (
            "who is outside holds",
            shared(),
            together(&json!({})),
            as_is,
            Err("shares a volume with shop/out, which stays"),
        ),
        ("or goes along", shared(), clean(), as_is, Ok(&["out", "pg"])),
        (
            "with a volume that no method covers it holds",
            vec![pod("pg", "n0", &[csi("v1")]), outsider(&[csi("v1"), local("disk")])],
            clean(),
            as_is,
            Err("shares a volume with shop/out, which stays"),
        ),
        (
            "who is outside goes with one that goes along",
            [files(), vec![outsider(&[csi_of(OTHER, "v2")])]].concat(),
            clean(),
            as_is,
            Ok(&["out", "pg", "web"]),
        ),
        (
            "and not beside one that must run there and stays",
            [shared(), vec![outside(beside("out", "web", &[csi_of(OTHER, "v3")]))]].concat(),
            clean(),
            as_is,
            Err("shares a volume with shop/out, which stays"),
        ),
    ];
    for (name, pods, spec, prepare, wanted) in cases {
        let mut world = world(pods, &spec);
        world.loses(&["n0"]);
        prepare(&mut world);
        let held: Vec<_> = world.decide().unmoved.into_iter().map(|it| (it.name, it.reason, it.message)).collect();
        world.rest();
        let stays = wanted.err().map(|why| ("pg".to_owned(), "SharerHeld", why.to_owned()));
        assert_eq!(held, Vec::from_iter(stays), "{name}");
        assert_eq!(moved(&world), wanted.unwrap_or_default(), "{name}");
        assert_eq!(world.opened(), usize::from(wanted.is_ok()), "{name}: the node is marked for nothing");
    }
}

/// Nothing is begun with those that were to go for its sake, and nobody is held for what it demanded.
#[test]
fn one_that_is_held_takes_nobody_along_and_holds_nobody() {
    let pods = vec![
        pod("a", "n0", &[csi("v8")]),
        outside(pod("b", "n0", &[csi("v8")])),
        pod("pg", "n0", &[csi("v1")]),
        beside("pg", "web", &[local("disk")]),
    ];
    let mut world = world(pods, &json!({ "selector": together(&json!({}))["selector"] }));
    only_for(&mut world, "a", &json!({ "release": { "affinityGroups": "Together" } }));
    let first = Arc::make_mut(&mut world.seen.policies[0]);
    let apart = json!({ "matchExpressions": [
        { "key": "app", "operator": "NotIn", "values": ["a"] }, { "key": "skip", "operator": "DoesNotExist" },
    ] });
    first.spec.selector.pod_selector = Some(serde_json::from_value(apart).unwrap());
    world.loses(&["n0"]);
    let unmoved: Vec<_> = world.decide().unmoved.into_iter().map(|it| it.name).collect();
    world.rest();
    assert_eq!(unmoved, ["a"]);
    assert_eq!(moved(&world), ["pg"]);
}

#[test]
fn who_goes_along_has_rows_of_its_own_and_is_no_failure_of_the_node() {
    let pods = [files(), vec![outside(pod("out", "n0", &[csi_of(OTHER, "v2"), csi_of(OTHER, "v3")]))]].concat();
    let mut world = world(pods, &together(&json!({ "sharers": "CleanAll" })));
    world.loses(&["n0"]);
    world.rest();
    let plan = &world.fence("n0").expect("opened").spec.plan;
    assert!(plan.is_by_path() && plan.evidence.len() == 1, "no power may be cut for it");
    let volumes: Vec<_> = plan.volumes.iter().map(|row| (row.name.as_str(), row.node_id.is_some())).collect();
    assert_eq!(volumes, [("v1", true), ("v2", true), ("v3", true)]);
    assert!(plan.volumes.iter().all(|row| !row.methods.is_empty()), "{:?}", plan.volumes);
    assert!(plan.pods.iter().all(|row| row.policy.as_deref() == Some("db") && !row.volumes.is_empty()));
}

#[test]
fn one_that_comes_later_grows_the_plan_and_its_digest() {
    let mut world = world(vec![pod("pg", "n0", &[csi("v1")])], &together(&json!({})));
    world.loses(&["n0"]);
    world.rest();
    world.reach("n0", Phase::Fencing);
    let digest = world.fence("n0").unwrap().spec.plan.digest.clone();
    world.seen.pods.get_mut("n0").unwrap().push(beside("pg", "web", &[csi_of(OTHER, "v2")]));
    world.rest();
    assert_eq!(moved(&world), ["pg", "web"]);
    assert_ne!(world.fence("n0").unwrap().spec.plan.digest, digest, "it was not approved of");
}

/// The stores have no pods without volumes: the live look finds them.
#[test]
fn one_without_volumes_goes_where_its_policy_says_so() {
    let release = json!({ "release": { "podsWithoutVolumes": "Release" } });
    for (spec, wanted) in [(json!({}), vec![]), (release, vec!["pg", "web"])] {
        let mut world = world(vec![pod("pg", "n0", &[csi("v1")])], &together(&spec));
        world.loses(&["n0"]);
        is_there_too(&mut world, "n0", beside("pg", "web", &[]));
        let held: Vec<_> = world.decide().unmoved.into_iter().map(|it| it.message).collect();
        assert_eq!(held.concat().contains("must run beside shop/web"), wanted.is_empty(), "{spec}: {held:?}");
        world.rest();
        assert_eq!(moved(&world), wanted, "{spec}");
    }
}

#[test]
fn the_brakes_of_its_own_policy_hold_all_of_them() {
    for volumes in [vec![csi_of(OTHER, "v2")], vec![]] {
        let mut world = world(vec![pod("pg", "n0", &[csi("v1")])], &together(&json!({})));
        world.loses(&["n0"]);
        only_for(&mut world, "web", &json!({ "release": { "podsWithoutVolumes": "Release" } }));
        let paused = &mut Arc::make_mut(&mut world.seen.policies[1]).metadata;
        paused.annotations.get_or_insert_default().insert("bulkhead.dev/paused".into(), "on call is on it".into());
        is_there_too(&mut world, "n0", beside("pg", "web", &volumes));
        let held: Vec<_> = world.decide().restrained.into_iter().map(|it| (it.policy, it.brake)).collect();
        assert_eq!(held, [("apart".to_owned(), "Paused")], "{volumes:?}");
        world.rest();
        assert_eq!(world.opened(), 0, "{volumes:?}");
    }
}

#[test]
fn a_node_on_which_nothing_is_begun_takes_no_place_in_the_budget() {
    let pods = vec![pod("pg", "n0", &[csi("v1")]), pod("db", "n1", &[csi("v2")])];
    let mut world = world(pods, &together(&json!({ "limits": { "maxNodes": 1 } })));
    world.loses(&["n0", "n1"]);
    is_there_too(&mut world, "n0", beside("pg", "web", &[]));
    world.rest();
    assert!(world.fence("n0").is_none() && world.fence("n1").is_some());
}
