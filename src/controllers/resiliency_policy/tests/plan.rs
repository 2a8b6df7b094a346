//! The plan: a row per pod with its reason, a row per volume with the identity that was really published.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use crate::api::fencing::{FenceMethodType, Proof};
use crate::api::names;
use crate::api::node_fence::{PODS_MAX, Plan, PlannedPod, PlannedVolume, PodAction, VOLUMES_MAX};
use crate::api::resiliency_policy::ResiliencyPolicy;
use crate::api::slim::VolumeAttachment;
use crate::api::time;
use crate::api::usage::{PodView, VolumeUse};
use crate::controllers::testing::*;

use super::super::decide::Seen;
use super::super::growth::{grown, without_early_returns};
use super::super::plan::{Draft, LiveNode, draft};
use super::super::storage::Paths;
use super::{live_node, silence};

fn live(pods: Vec<PodView>) -> LiveNode {
    let node = unreachable("n1");
    let silence = silence(&node);
    live_node(node, silence, pods)
}

fn drafted(live: &LiveNode, policies: &[ResiliencyPolicy]) -> Option<Draft> {
    let seen = Seen::default();
    draft(live, policies, &BTreeMap::new(), &Paths::new(&seen, &BTreeMap::new(), now()), 1, now())
}

fn labelled() -> ResiliencyPolicy {
    let mut policy = policy("db", &json!({}));
    policy.spec.selector.pod_selector = Some(
        serde_json::from_value(json!({ "matchExpressions": [{ "key": "skip", "operator": "DoesNotExist" }] })).unwrap(),
    );
    policy
}

fn second(seconds: i64) -> Option<Time> {
    Some(time::to_k8s(at(seconds)))
}

#[test]
fn every_pod_of_the_node_has_a_row_with_the_reason() {
    let volume = || [csi("v1")];
    let static_pod = but(pod("static", "n1", &volume()), |pod| {
        pod.metadata.annotations = Some([(names::MIRROR_POD_ANNOTATION.to_owned(), String::new())].into());
    });
    let completed = but(pod("completed", "n1", &volume()), |pod| pod.status.phase = Some("Succeeded".into()));
    let unselected = but(pod("unselected", "n1", &volume()), |pod| {
        pod.metadata.labels = Some([("skip".to_owned(), String::new())].into());
    });
    let terminating = but(pod("terminating", "n1", &volume()), |pod| pod.metadata.deletion_timestamp = second(500));
    let cases = [
        (pod("plain", "n1", &volume()), PodAction::Release, "NodeFailure"),
        (terminating, PodAction::Release, "NodeFailure"),
        (pod("on-disk", "n1", &[local("l1")]), PodAction::Release, "NodeFailure"),
        (owned_by(pod("daemon", "n1", &volume()), Some("DaemonSet")), PodAction::Keep, "DaemonSet"),
        (static_pod, PodAction::Keep, "StaticPod"),
        (completed, PodAction::Keep, "Completed"),
        (owned_by(pod("bare", "n1", &volume()), None), PodAction::Keep, "BarePod"),
        (pod("empty", "n1", &[]), PodAction::Keep, "NoVolumes"),
        (unselected, PodAction::Keep, "UnselectedSharer"),
    ];
    let live = live(cases.iter().map(|(pod, ..)| pod.clone()).collect());
    let plan = drafted(&live, &[labelled()]).unwrap().plan;
    assert_eq!(plan.pods.len(), cases.len());
    for (pod, action, reason) in &cases {
        let row = plan.pods.iter().find(|row| row.uid == pod.uid()).unwrap();
        assert_eq!((row.action, row.reason.as_str()), (*action, *reason), "{}", pod.name());
        let policy = (pod.name() != "unselected").then_some("db");
        assert_eq!(row.policy.as_deref(), policy, "{}", pod.name());
    }
}

#[test]
fn nothing_is_planned_where_no_pod_is_to_be_released() {
    let bare = || owned_by(pod("bare", "n1", &[csi("v1")]), None);
    assert!(drafted(&live(vec![bare()]), &[labelled()]).is_none());
    assert!(drafted(&live(vec![]), &[labelled()]).is_none());
    assert!(drafted(&live(vec![pod("pg", "n1", &[csi("v1")])]), &[]).is_none());
}

#[test]
fn the_node_id_is_the_one_that_was_really_published_or_none_at_all() {
    let pg = || pod("pg", "n1", &[csi("v1")]);
    type Change = fn(&mut LiveNode);
    fn attached(live: &mut LiveNode, change: impl FnOnce(&mut VolumeAttachment)) {
        change(Arc::make_mut(&mut live.attachments[0]));
    }
    fn registered(live: &mut LiveNode, id: &str) {
        Arc::make_mut(live.csi_node.as_mut().unwrap()).spec.drivers[0].node_id = id.into();
    }
    let cases: [(&str, Change, Option<&str>); 9] = [
        ("as published", |_| {}, Some("id-n1")),
        ("no CSINode", |live| live.csi_node = None, Some("id-n1")),
        (
            "CSINode without the driver",
            |live| Arc::make_mut(live.csi_node.as_mut().unwrap()).spec.drivers.clear(),
            Some("id-n1"),
        ),
        ("CSINode disagrees", |live| registered(live, "id-other"), None),
        (
            "attachment older than the Node",
            |live| attached(live, |it| it.metadata.creation_timestamp = second(-1)),
            None,
        ),
        (
            "pod older than the Node",
            |live| {
                live.pods[0] = but(live.pods[0].clone(), |pod| pod.metadata.creation_timestamp = second(-1));
            },
            None,
        ),
        ("attached without the attacher's note", |live| attached(live, |it| it.metadata.annotations = None), None),
        (
            "never attached: as registered",
            |live| {
                attached(live, |it| {
                    it.metadata.annotations = None;
                    it.status.attached = false;
                })
            },
            Some("id-n1"),
        ),
        (
            "neither attached nor registered",
            |live| {
                live.attachments.clear();
                live.csi_node = None;
            },
            None,
        ),
    ];
    for (name, change, wanted) in cases {
        let mut live = live(vec![pg()]);
        change(&mut live);
        let plan = drafted(&live, &[labelled()]).unwrap().plan;
        assert_eq!(plan.volumes[0].node_id.as_deref(), wanted, "{name}");
    }
}

#[test]
fn one_doubtful_user_of_a_shared_volume_makes_it_doubtful_in_any_order() {
    let old = || but(pod("old", "n1", &[csi("v1")]), |pod| pod.metadata.creation_timestamp = second(-1));
    for pods in [vec![old(), pod("new", "n1", &[csi("v1")])], vec![pod("new", "n1", &[csi("v1")]), old()]] {
        let plan = drafted(&live(pods), &[labelled()]).unwrap().plan;
        assert_eq!(plan.volumes[0].node_id, None);
    }
}

#[test]
fn sharers_get_the_strictest_proof_and_the_methods_that_all_allow() {
    let acknowledged = || json!({ "fencing": { "minimumProof": "Acknowledged" } });
    let mut lax = policy("lax", &acknowledged());
    let mut strict = policy("strict", &json!({}));
    for (policy, app) in [(&mut lax, "a"), (&mut strict, "b")] {
        policy.spec.selector.pod_selector =
            Some(serde_json::from_value(json!({ "matchLabels": { "app": app } })).unwrap());
    }
    for names in [["a", "b"], ["b", "a"]] {
        let pods = names.map(|name| pod(name, "n1", &[csi("v1")])).to_vec();
        let draft = drafted(&live(pods), &[lax.clone(), strict.clone()]).unwrap();
        let row = &draft.plan.volumes[0];
        assert_eq!(row.minimum_proof, Proof::Verified, "{names:?}");
        assert_eq!(
            row.methods.iter().map(|it| it.type_).collect::<Vec<_>>(),
            [FenceMethodType::Unpublish],
            "{names:?}"
        );
        assert_eq!(draft.policies.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["lax", "strict"]);
    }
}

#[test]
fn every_attachment_of_the_node_is_recorded_and_those_of_no_released_pod_have_no_method() {
    let mut live =
        live(vec![pod("pg", "n1", &[csi("v1"), unknown("u1")]), owned_by(pod("bare", "n1", &[csi("v2")]), None)]);
    live.csi_node = None;
    let plan = drafted(&live, &[labelled()]).unwrap().plan;
    let row = |name: &str| -> &PlannedVolume { plan.volumes.iter().find(|row| row.name == name).unwrap() };
    assert_eq!(plan.volumes.len(), 3);
    assert_eq!(row("v1").attachment_uid.as_deref(), Some("va-v1"));
    assert_eq!(row("v1").methods.len(), 1);
    assert_eq!((row("v2").methods.len(), row("v2").attachment_uid.as_deref()), (0, Some("va-v2")));
    assert_eq!((row("u1").driver.as_deref(), row("u1").methods.len()), (None, 0));
}

#[test]
fn a_plan_grows_by_what_it_lacks_and_keeps_its_rows() {
    let first = drafted(&live(vec![pod("a", "n1", &[csi("v1")])]), &[labelled()]).unwrap().plan;
    let same = drafted(&live(vec![pod("a", "n1", &[csi("v1")])]), &[labelled()]).unwrap().plan;
    assert!(grown(&first, &same).is_none());
    let wanted =
        drafted(&live(vec![pod("a", "n1", &[csi("v1")]), pod("b", "n1", &[csi("v2")])]), &[labelled()]).unwrap().plan;
    let plan = grown(&first, &wanted).unwrap();
    assert_eq!(plan.pods[0], first.pods[0]);
    assert_eq!((plan.pods.len(), plan.volumes.len()), (2, 2));
    assert_ne!(plan.digest, first.digest, "another plan");
    assert_eq!(plan.decided_at, first.decided_at);
}

#[test]
fn a_pod_that_never_started_is_lacked_if_its_scheduler_will_do_better_next_time() {
    let mut world = super::World::with_failed(3, 1, &json!({}));
    world.rest();
    let bound = |name: &str, conditions: serde_json::Value, tolerations: serde_json::Value| {
        but(pod(name, "n0", &[csi(name)]), |pod| {
            pod.status.phase = Some("Pending".into());
            pod.status.conditions = serde_json::from_value(conditions).unwrap();
            pod.spec.tolerations = serde_json::from_value(tolerations).unwrap();
        })
    };
    let scheduled = json!([{ "type": "PodScheduled", "status": "True" }]);
    let all = json!([{ "operator": "Exists" }]);
    for (name, conditions, tolerations, lacked) in [
        ("named", json!([]), json!([]), false),
        ("tolerant", scheduled.clone(), all.clone(), false),
        ("stale", scheduled, json!([{ "key": "node.kubernetes.io/unreachable", "operator": "Exists" }]), true),
        ("started", json!([{ "type": "Initialized", "status": "True" }]), all, true),
    ] {
        world.seen.pods.get_mut("n0").unwrap().push(bound(name, conditions, tolerations));
        world.rest();
        let planned = world.fence("n0").unwrap().spec.plan.pods.iter().any(|row| row.name == name);
        assert_eq!(planned, lacked, "{name}");
        world.seen.pods.get_mut("n0").unwrap().pop();
    }
}

/// A pod that was put on the node when its plan was 10 s old.
fn put_back(kind: &str, name: &str, uid: &str, volumes: &[VolumeUse]) -> PodView {
    but(owned_by(pod(name, "n1", volumes), Some(kind)), |pod| {
        pod.metadata.uid = Some(uid.into());
        pod.metadata.generate_name = (kind == "ReplicaSet").then(|| "web-".into());
        pod.metadata.creation_timestamp = second(100_010);
    })
}

/// The plan with that pod, `age` seconds after it came; `None` while it waits.
fn with_it(known: &Plan, pod: &PodView, age: f64) -> Option<Plan> {
    let live = live(vec![pod.clone(), super::pod("other", "n1", &[csi("v9")])]);
    let release = policy("db", &json!({ "release": { "podsWithoutVolumes": "Release" } }));
    let wanted = drafted(&live, &[release]).unwrap().plan;
    let wanted = without_early_returns(wanted, known, &live, later(now(), 10.0 + age));
    grown(known, &wanted).filter(|plan| plan.pods.iter().any(|row| row.uid == pod.uid()))
}

fn first_plan(pods: Vec<PodView>) -> Plan {
    let release = policy("db", &json!({ "release": { "podsWithoutVolumes": "Release" } }));
    drafted(&live(pods), &[release]).unwrap().plan
}

/// The first one may be back since its scheduler had not heard of the taint yet.
#[test]
fn who_comes_back_waits_by_how_often_it_came_and_not_by_how_many_have_gone() {
    type Case = (&'static str, &'static str, [&'static str; 4], fn(usize) -> Vec<VolumeUse>);
    let own = |number: usize| vec![csi(&format!("v{number}"))];
    let cases: [Case; 4] = [
        ("the same of a StatefulSet", "StatefulSet", ["web-0"; 4], |_| vec![csi("v0")]),
        ("any replica", "ReplicaSet", ["web-a", "web-b", "web-c", "web-d"], own),
        ("any without volumes", "ReplicaSet", ["web-a", "web-b", "web-c", "web-d"], |_| Vec::new()),
        ("whoever has its volume", "VirtualMachineInstance", ["a", "b", "c", "d"], |_| vec![csi("v0")]),
    ];
    for (name, kind, names, volumes) in cases {
        let mut plan = first_plan(vec![put_back(kind, names[0], "uid-0", &volumes(0)), pod("pg", "n1", &[csi("v8")])]);
        for (number, wait) in [(1, 0.0), (2, 2.0), (3, 4.0)] {
            let back = put_back(kind, names[number], &format!("uid-{number}"), &volumes(number));
            if number > 1 {
                assert!(with_it(&plan, &back, wait - 0.1).is_none(), "{name}: {number}");
            }
            plan = with_it(&plan, &back, wait).unwrap_or_else(|| panic!("{name}: {number}"));
            let returns = plan.pods.iter().find(|row| row.uid == back.uid()).unwrap().returns;
            assert_eq!(returns, i32::try_from(number).ok(), "{name}");
        }
    }
}

#[test]
fn who_shares_a_volume_with_many_that_have_gone_moves_on_at_once() {
    let shared = || [csi("shared")];
    let eight =
        (0..8).map(|number| put_back("ReplicaSet", &format!("web-{number}"), &format!("uid-{number}"), &shared()));
    let mut plan = first_plan(eight.collect());
    assert_eq!(plan.pods.iter().filter(|row| row.action == PodAction::Release).count(), 8);
    assert!(with_it(&plan, &put_back("ReplicaSet", "web-new", "uid-new", &shared()), 0.0).is_some());
    // Another member of a StatefulSet came back many times.
    plan.pods[0].returns = Some(5);
    assert!(with_it(&plan, &put_back("StatefulSet", "db-1", "uid-db-1", &shared()), 0.0).is_some());
    assert!(with_it(&plan, &put_back("StatefulSet", "web-0", "uid-again", &shared()), 31.9).is_none());
    assert!(with_it(&plan, &put_back("StatefulSet", "web-0", "uid-again", &shared()), 32.0).is_some());
}

#[test]
fn a_plan_takes_in_as_much_as_it_has_room_for() {
    let mut plan = first_plan(vec![pod("a", "n1", &[csi("v1")])]);
    let (row, volume) = (plan.pods[0].clone(), plan.volumes[0].clone());
    plan.pods.extend((2..PODS_MAX).map(|number| PlannedPod { uid: format!("gone-{number}"), ..row.clone() }));
    plan.volumes.extend((2..VOLUMES_MAX).map(|number| PlannedVolume { name: format!("w{number}"), ..volume.clone() }));
    assert_eq!((plan.pods.len(), plan.volumes.len()), (PODS_MAX - 1, VOLUMES_MAX - 1));
    let wanted = first_plan(vec![pod("b", "n1", &[csi("v2")]), pod("c", "n1", &[csi("v3")])]);
    let plan = grown(&plan, &wanted).unwrap();
    assert_eq!((plan.pods.len(), plan.volumes.len()), (PODS_MAX, VOLUMES_MAX));
    assert!(grown(&plan, &wanted).is_none(), "it is full");
}

#[test]
fn a_row_that_was_carried_over_is_no_row_of_this_episode() {
    let mut first = drafted(&live(vec![pod("a", "n1", &[csi("v1")])]), &[labelled()]).unwrap().plan;
    first.volumes.push(PlannedVolume { episode: 0, name: "v2".into(), ..first.volumes[0].clone() });
    let wanted =
        drafted(&live(vec![pod("a", "n1", &[csi("v1")]), pod("b", "n1", &[csi("v2")])]), &[labelled()]).unwrap().plan;
    let plan = grown(&first, &wanted).unwrap();
    assert!(plan.volumes.iter().any(|row| (row.episode, row.name.as_str()) == (1, "v2")));
}

#[test]
fn hundreds_of_finished_pods_do_not_make_the_plan_too_large() {
    let finished =
        |number| but(pod(&format!("job-{number}"), "n1", &[]), |pod| pod.status.phase = Some("Succeeded".into()));
    let mut pods: Vec<_> = (0..600).map(finished).collect();
    pods.push(pod("pg", "n1", &[csi("v1")]));
    let plan = drafted(&live(pods), &[policy("db", &json!({}))]).unwrap().plan;
    assert_eq!(plan.pods.len(), 512);
    assert!(plan.pods.iter().any(|row| row.name == "pg"));
}
