//! Channel Storage: lost paths move the pods with volumes on that backend, and who hangs together with them; what is out for everyone moves nobody.

mod looks;
mod many;
mod rolling;
mod together;
mod uncounted;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::driver_report::{Backend, BackendState, DriverReport, PathState, UnreachablePair};
use crate::api::node_fence::{Channel, Phase, PodAction};
use crate::api::resiliency_policy::{RestraintType, StorageEvidence};
use crate::api::time;
use crate::api::usage::PodView;
use crate::controllers::testing::*;

use super::World;

const OTHER: &str = "file.example.com";

fn asked(driver: &str, nodes: u32) -> DriverReport {
    let mut report = report(driver, &["Unpublish", "ListPublishedNodes", "Connectivity"]);
    let backend =
        Backend { name: driver.into(), state: BackendState::Answering, nodes: Some(nodes), since: at(50_000) };
    report.status.as_mut().unwrap().backends = vec![backend];
    report
}

fn pair(driver: &str, node: &str, state: PathState) -> UnreachablePair {
    UnreachablePair {
        node: node.into(),
        backend: driver.into(),
        state,
        reason: Some("NotConnected".into()),
        since: at(99_000),
    }
}

/// Six nodes that are well and asked about, with these pods, Ready.
fn world(pods: Vec<PodView>, spec: &Value) -> World {
    let ready = |pod: PodView| but(pod, |pod| pod.status.conditions[1].status = "True".into());
    let nodes = (0..6).map(|number| node(&format!("n{number}"))).collect();
    let mut world = World::new(nodes, pods.into_iter().map(ready).collect(), vec![policy("db", spec)]);
    world.seen.reports = reports([asked(DRIVER, 6), asked(OTHER, 6)]);
    world
}

fn one() -> Vec<PodView> {
    vec![pod("pg", "n0", &[csi("v1")])]
}

impl World {
    fn edit_report(&mut self, driver: &str, change: impl FnOnce(&mut DriverReport)) {
        change(Arc::make_mut(self.seen.reports.get_mut(driver).expect("a report")));
    }

    fn says_of(&mut self, driver: &str, nodes: &[&str], state: PathState) {
        let pairs = nodes.iter().map(|node| pair(driver, node, state)).collect::<Vec<_>>();
        self.edit_report(driver, |report| {
            let status = report.status.as_mut().unwrap();
            status.unreachable_pairs = Some(u32::try_from(pairs.len()).unwrap());
            status.unreachable = pairs;
        });
    }

    fn loses(&mut self, nodes: &[&str]) {
        self.says_of(DRIVER, nodes, PathState::Disconnected);
    }

    fn planned(&self, node: &str) -> Vec<(String, PodAction, String)> {
        let rows = self.fence(node).map(|fence| fence.spec.plan.pods.clone()).unwrap_or_default();
        rows.into_iter().map(|row| (row.name, row.action, row.reason)).collect()
    }

    fn named_restraints(&self) -> Vec<(RestraintType, Option<String>)> {
        let status = self.seen.policies[0].status.iter();
        status.flat_map(|status| &status.restraints).map(|it| (it.type_, it.name.clone())).collect()
    }
}

#[test]
fn exactly_the_pods_with_volumes_on_that_backend_move() {
    let pods = vec![
        pod("pg", "n0", &[csi("v1"), csi_of(OTHER, "v2")]),
        pod("web", "n0", &[csi_of(OTHER, "v3")]),
        pod("far", "n1", &[csi("v4")]),
    ];
    let mut world = world(pods, &json!({}));
    world.loses(&["n0"]);
    world.rest();
    assert_eq!(world.opened(), 1);
    assert_eq!(world.planned("n0"), [("pg".into(), PodAction::Release, "StoragePathLoss".into())]);
    let plan = &world.fence("n0").unwrap().spec.plan;
    assert_eq!(plan.volumes.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["v1", "v2"]);
    let evidence: Vec<_> = plan.evidence.iter().map(|it| (it.channel, it.backend.as_deref())).collect();
    assert_eq!(evidence, [(Channel::Storage, Some(DRIVER))]);
    assert!(plan.is_by_path() && !plan.is_by_volume());
}

#[test]
fn who_moves_and_who_stays() {
    type Case = (&'static str, Vec<PodView>, Value, fn(&mut World), Option<&'static str>);
    let lost = |world: &mut World| world.loses(&["n0"]);
    let off = |field: &str, value: &str| json!({ "triggers": { field: value } });
    let db = |volumes: &[crate::api::usage::VolumeUse]| pod("pg", "n0", volumes);
    let cases: Vec<Case> = vec![
        ("lost", one(), json!({}), lost, Some("moves")),
        ("lost by another node", one(), json!({}), |w| w.loses(&["n1"]), None),
        ("unknown", one(), json!({}), |w| w.says_of(DRIVER, &["n0"], PathState::Unknown), None),
        ("another backend", one(), json!({}), |w| w.says_of(OTHER, &["n0"], PathState::Disconnected), None),
        ("a policy that ignores it", one(), off("storagePathLoss", "Ignore"), lost, None),
        (
            "a policy that does not ask",
            one(),
            json!({ "detection": { "storage": { "connectivityCheck": "Disabled" } } }),
            lost,
            None,
        ),
        ("a policy that ignores failed nodes", one(), off("nodeFailure", "Ignore"), lost, Some("moves")),
        (
            "a sidecar that is not heard of",
            one(),
            json!({}),
            |w| {
                w.loses(&["n0"]);
                w.seen.silent_fencers.insert(DRIVER.into());
            },
            None,
        ),
        (
            "a driver that does not answer",
            one(),
            json!({}),
            |w| {
                w.loses(&["n0"]);
                w.edit_report(DRIVER, |it| it.status.as_mut().unwrap().conditions[0].status = "False".into());
            },
            None,
        ),
        (
            "a driver without the extension",
            one(),
            json!({}),
            |w| {
                w.loses(&["n0"]);
                w.edit_report(DRIVER, |it| it.status.as_mut().unwrap().capabilities.truncate(2));
            },
            None,
        ),
        (
            "said of a predecessor of that name",
            one(),
            json!({}),
            |w| {
                w.loses(&["n0"]);
                let mut anew = node("n0");
                anew.metadata.creation_timestamp = Some(time::to_k8s(at(99_500)));
                w.node_becomes(anew);
            },
            None,
        ),
        ("a local volume", vec![db(&[csi("v1"), local("l")])], json!({}), lost, Some("LocalVolume")),
        ("a bare pod", vec![owned_by(db(&[csi("v1")]), None)], json!({}), lost, Some("BarePod")),
        ("a pod of its node", vec![owned_by(db(&[csi("v1")]), Some("DaemonSet"))], json!({}), lost, None),
        (
            "one that shares a volume with a pod that stays",
            vec![db(&[csi("v1"), csi("v2")]), owned_by(pod("other", "n0", &[csi("v2")]), Some("DaemonSet"))],
            json!({}),
            lost,
            Some("SharerHeld"),
        ),
        (
            "a driver that can prove nothing",
            one(),
            json!({}),
            |w| {
                w.loses(&["n0"]);
                w.edit_report(DRIVER, |it| {
                    it.status.as_mut().unwrap().capabilities =
                        vec![crate::api::driver_report::Capability::Connectivity];
                });
            },
            Some("ProofUnreachable"),
        ),
    ];
    for (name, pods, spec, prepare, wanted) in cases {
        let mut world = world(pods, &spec);
        prepare(&mut world);
        let stays = world.decide().unmoved.first().map(|held| held.reason);
        world.rest();
        let found = if world.opened() > 0 { Some("moves") } else { stays };
        assert_eq!(found, wanted, "{name}");
    }
}

#[test]
fn a_node_that_failed_is_declared_by_two_channels_where_one_does_not_decide() {
    let asking = json!({ "detection": { "decisiveChannels": [] }, "triggers": { "storagePathLoss": "Ignore" } });
    for (lost, wanted) in [(false, 0), (true, 1)] {
        let mut world = world(one(), &asking);
        if lost {
            world.loses(&["n0"]);
        }
        world.node_becomes(unreachable("n0"));
        world.rest();
        assert_eq!(world.opened(), wanted, "lost: {lost}");
        if let Some(fence) = world.fence("n0") {
            let channels: Vec<_> = fence.spec.plan.evidence.iter().map(|it| it.channel).collect();
            assert_eq!(channels, [Channel::Kubelet, Channel::Storage]);
            assert!(!fence.spec.plan.is_by_path());
        }
    }
    // Storage alone declares no node failed.
    let mut world = world(one(), &asking);
    world.loses(&["n0"]);
    world.rest();
    assert_eq!(world.opened(), 0);
}

#[test]
fn a_backend_that_is_out_for_everyone_moves_nobody_and_its_nodes_are_believed_again_after_a_calm() {
    let pods: Vec<_> = (0..6).map(|i| pod(&format!("p{i}"), &format!("n{i}"), &[csi(&format!("v{i}"))])).collect();
    let spec = json!({
        "limits": { "cooldown": "0s" }, "detection": { "storage": { "period": "10s", "lossThreshold": 2 } },
    });
    let mut world = world(pods, &spec);
    world.loses(&["n0", "n1", "n2", "n3"]);
    world.rest();
    let brake = (RestraintType::ArrayOutage, Some(DRIVER.to_owned()));
    assert_eq!((world.opened(), world.named_restraints()), (0, vec![brake.clone()]));
    assert_eq!(world.decide().restrained.iter().map(|it| it.brake).collect::<Vec<_>>(), ["ArrayOutage"; 4]);
    // Those that recover first must not make the last look lost alone.
    world.loses(&["n3"]);
    world.rest();
    assert_eq!((world.opened(), world.named_restraints()), (0, vec![brake]));
    world.wait(49.0);
    world.rest();
    assert_eq!(world.opened(), 0);
    world.wait(2.0);
    world.rest();
    assert_eq!(world.named_restraints(), []);
    assert_eq!(world.opened(), 1, "one that is still lost is lost by itself");
}

#[test]
fn what_is_out_for_everyone_is_told_though_nobody_is_lost() {
    let mut world = world(one(), &json!({}));
    world.edit_report(DRIVER, |it| it.status.as_mut().unwrap().backends[0].state = BackendState::Silent);
    world.rest();
    assert_eq!(world.named_restraints(), [(RestraintType::ArrayOutage, Some(DRIVER.to_owned()))]);
    // While nobody can say that it is over it is not.
    world.edit_report(DRIVER, |it| it.status.as_mut().unwrap().backends[0].state = BackendState::Answering);
    world.seen.silent_fencers.insert(DRIVER.into());
    world.wait(10_000.0);
    world.rest();
    assert_eq!(world.named_restraints().len(), 1);
    world.seen.silent_fencers.clear();
    world.rest();
    world.wait(10_000.0);
    world.rest();
    assert_eq!(world.named_restraints(), []);
}

#[test]
fn a_policy_whose_pods_are_elsewhere_has_nothing_to_do_with_it() {
    let mut world = world(vec![pod("web", "n0", &[csi_of(OTHER, "v3")])], &json!({}));
    world.edit_report(DRIVER, |it| it.status.as_mut().unwrap().backends[0].state = BackendState::Silent);
    world.rest();
    assert_eq!(world.named_restraints(), []);
}

#[test]
fn a_brake_that_was_not_recorded_yet_holds_all_the_same() {
    let pods: Vec<_> = (0..2).map(|i| pod(&format!("p{i}"), &format!("n{i}"), &[csi(&format!("v{i}"))])).collect();
    let mut world = world(pods, &json!({ "limits": { "cooldown": "0s" } }));
    world.loses(&["n0"]);
    world.seen.backend_outage_seen.insert(DRIVER.into(), Duration::from_secs(1));
    world.rest();
    assert_eq!(world.opened(), 0);
}

#[test]
fn what_the_api_says_now_decides() {
    let mut world = world(one(), &json!({}));
    world.loses(&["n0"]);
    let mut live = world.look_at("n0").expect("it is there");
    live.reports = reports([asked(DRIVER, 6)]);
    world.live.insert("n0".into(), live);
    world.rest();
    assert_eq!(world.opened(), 0, "the path is back, whatever the watch says");
}

#[test]
fn a_plan_of_a_lost_path_grows_by_its_own_and_is_the_nodes_when_that_fails() {
    let pods = vec![pod("pg", "n0", &[csi("v1")]), pod("web", "n0", &[csi_of(OTHER, "v3")])];
    let mut world = world(pods, &json!({}));
    world.loses(&["n0"]);
    world.rest();
    world.reach("n0", Phase::Fencing);
    let late = but(pod("late", "n0", &[csi("v5")]), |pod| pod.status.conditions[1].status = "True".into());
    world.seen.pods.get_mut("n0").unwrap().push(late);
    world.rest();
    let names = |world: &World| world.planned("n0").into_iter().map(|(name, ..)| name).collect::<Vec<_>>();
    assert_eq!(names(&world), ["pg", "late"]);
    assert!(world.fence("n0").unwrap().spec.plan.is_by_path());
    world.node_becomes(unreachable("n0"));
    world.rest();
    assert_eq!(names(&world), ["pg", "late", "web"]);
    assert!(!world.fence("n0").unwrap().spec.plan.is_by_path(), "the node failed meanwhile: all its pods go");
}

/// Or a method that is for failed nodes only could never be tried for pods that were on their way already.
#[test]
fn a_node_that_fails_with_nobody_new_to_move_is_told_in_the_plan_once() {
    let mut world = world(one(), &json!({}));
    world.loses(&["n0"]);
    world.rest();
    world.reach("n0", Phase::Fencing);
    let before = world.fence("n0").unwrap().spec.plan.clone();
    assert!(before.is_by_path() && !before.is_of_node());
    world.node_becomes(unreachable("n0"));
    world.rest();
    let plan = world.fence("n0").unwrap().spec.plan.clone();
    assert!(plan.is_of_node());
    assert_eq!((&plan.pods, &plan.volumes), (&before.pods, &before.volumes));
    assert_ne!(plan.digest, before.digest, "who approved of moving some pods has not approved of cutting the power");
    let channels: Vec<_> = plan.evidence.iter().map(|it| it.channel).collect();
    assert_eq!(channels[0], Channel::Storage, "what it began with stays");
    assert!(channels.contains(&Channel::Kubelet), "{channels:?}");
    assert!(world.pass().is_empty(), "it is said once");
}

#[test]
fn the_policy_says_which_drivers_can_be_asked() {
    let evidence = |world: &World| {
        let status = world.seen.policies[0].status.clone().unwrap();
        status.drivers.first().and_then(|driver| driver.storage_evidence)
    };
    type Case = (&'static str, fn(&mut World), StorageEvidence);
    let cases: [Case; 4] = [
        ("able", |_| {}, StorageEvidence::Supported),
        (
            "without the extension",
            |w| w.edit_report(DRIVER, |it| it.status.as_mut().unwrap().capabilities.truncate(2)),
            StorageEvidence::Unsupported,
        ),
        (
            "silent",
            |w| {
                w.seen.silent_fencers.insert(DRIVER.into());
            },
            StorageEvidence::Unknown,
        ),
        ("without a sidecar", |w| w.seen.reports.clear(), StorageEvidence::Unknown),
    ];
    for (name, prepare, wanted) in cases {
        let mut world = world(one(), &json!({}));
        prepare(&mut world);
        world.rest();
        assert_eq!(evidence(&world), Some(wanted), "{name}");
    }
}
