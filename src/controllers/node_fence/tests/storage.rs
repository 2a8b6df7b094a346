//! A node that is well but for the path to the storage of its pods.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::driver_report::{Backend, BackendState, PathState, UnreachablePair};
use crate::api::node_fence::{Channel, Phase, PodStatusState, STORAGE_PATH_LOSS};
use crate::api::resiliency_policy::{ResiliencyPolicyStatus, Restraint, RestraintType};
use crate::api::time;
use crate::controllers::testing::*;

use super::cleaning::{clean, says};
use super::world::{Fencer, World};

/// A node with a pod whose storage it does not reach, and one that has nothing to do with it.
fn cut_off() -> World {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1"), csi("v2")])], &json!({}));
    world.plan().evidence.iter_mut().for_each(|it| {
        it.channel = Channel::Storage;
        it.backend = Some(DRIVER.into());
    });
    world.plan().pods.iter_mut().for_each(|row| row.reason = STORAGE_PATH_LOSS.into());
    world.seen.pods.push(pod("web", "n1", &[csi_of("file.example.com", "v9")]));
    world.seen.attachments.push(Arc::new(attachment("v9", "n1")));
    world.node_returns();
    world.says_of_the_path(Some(PathState::Disconnected));
    world
}

impl World {
    /// What the driver says of the path of the node; nothing: it is proved to be well.
    fn says_of_the_path(&mut self, state: Option<PathState>) {
        let mut told = report(DRIVER, &["Unpublish", "ListPublishedNodes", "Connectivity"]);
        let status = told.status.as_mut().unwrap();
        let pair = |state| UnreachablePair {
            node: "n1".into(),
            backend: DRIVER.into(),
            state,
            reason: None,
            since: at(99_000),
        };
        status.backends =
            vec![Backend { name: DRIVER.into(), state: BackendState::Answering, nodes: Some(9), since: at(1) }];
        status.unreachable = state.map(pair).into_iter().collect();
        self.seen.reports.insert(DRIVER.into(), Arc::new(told));
    }

    fn restrain(&mut self, name: Option<&str>) {
        let since = time::stamp(self.now.wall);
        let name = name.map(str::to_owned);
        let restraint = Restraint { type_: RestraintType::ArrayOutage, name, since, until: None };
        let status = ResiliencyPolicyStatus { restraints: vec![restraint], ..ResiliencyPolicyStatus::default() };
        Arc::make_mut(&mut self.seen.policies[0]).status = Some(status);
    }

    fn edit_policy(&mut self, spec: &Value) {
        let changed = policy("db", spec);
        Arc::make_mut(&mut self.seen.policies[0]).spec = changed.spec;
    }

    fn is_tainted(&self) -> bool {
        self.seen.our_taint().is_some()
    }
}

fn assert_untouched(world: &World) {
    assert!(world.seen.pods.iter().any(|pod| pod.name() == "web" && !pod.pod.is_terminating()));
    assert!(world.seen.attachments.iter().any(|it| it.volume() == "v9" && it.metadata.deletion_timestamp.is_none()));
    assert!(!world.did("taint out-of-service") && !world.did("delete web"), "{:#?}", world.log);
}

#[test]
fn its_pods_end_as_on_a_failed_node_and_the_taint_waits_for_the_path_and_for_cleanliness() {
    let mut world = cut_off();
    world.run();
    world.assert_order(&[
        "active",
        "taint fenced",
        "v1 is Fenced",
        "pg is Releasing",
        "delete pg grace 0",
        "detach v1",
    ]);
    assert_eq!(world.pod("pg"), (PodStatusState::Released, STORAGE_PATH_LOSS.into()));
    // Clean, but not connected: no pod is to land there.
    let agent = clean(&world);
    says(&mut world, agent);
    world.run();
    assert!(world.is_tainted(), "{:#?}", world.log);
    for state in [PathState::Unknown, PathState::Disconnected, PathState::Unknown] {
        world.says_of_the_path(Some(state));
        world.run();
        assert!(world.is_tainted(), "{state:?}: {:#?}", world.log);
    }
    world.says_of_the_path(None);
    world.run();
    world.assert_order(&[
        "v1 is Clean",
        "phase Cleaning",
        "ask Unfenced",
        "untaint fenced",
        "inactive",
        "phase Recovered",
    ]);
    assert_untouched(&world);
}

#[test]
fn connected_but_not_clean_it_keeps_the_taint_too() {
    let mut world = cut_off();
    world.run();
    world.says_of_the_path(None);
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Cleaning), "{:#?}", world.log);
    assert!(world.is_tainted());
    let agent = clean(&world);
    says(&mut world, agent);
    world.run();
    assert!(!world.is_tainted() && world.seen.phase() == Some(Phase::Recovered), "{:#?}", world.log);
}

/// Its kubelet has started them anew since.
#[test]
fn pods_that_end_so_after_a_reboot_may_be_left_in_that_boot() {
    let mut world = cut_off();
    world.fencers.insert(DRIVER.into(), Fencer::Hangs);
    world.run();
    world.node_reboots();
    world.seen.lease_is_still = true;
    world.fencers.clear();
    world.run();
    assert!(!world.did("delete"), "another controller, that has not seen its kubelet there yet: {:#?}", world.log);
    world.seen.lease_is_still = false;
    world.run();
    assert!(world.did("delete pg grace 0"), "{:#?}", world.log);
    world.says_of_the_path(None);
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Cleaning), "{:#?}", world.log);
    assert!(world.is_tainted(), "it is back in a boot in which they went by force");
    world.node_reboots();
    world.run();
    assert!(!world.is_tainted() && world.seen.phase() == Some(Phase::Recovered), "{:#?}", world.log);
}

/// Somebody has mended it so, and nothing had gone.
#[test]
fn a_reboot_that_brings_the_path_back_cleans_it() {
    let mut world = cut_off();
    world.fencers.insert(DRIVER.into(), Fencer::Hangs);
    world.run();
    world.node_reboots();
    world.run();
    assert!(!world.did("delete") && world.is_tainted(), "{:#?}", world.log);
    world.says_of_the_path(None);
    world.run();
    assert!(world.did("delete pg graceful"), "{:#?}", world.log);
    world.remove_pod("pg");
    world.run();
    assert!(!world.is_tainted() && world.seen.phase() == Some(Phase::Recovered), "{:#?}", world.log);
}

#[test]
fn what_is_over_before_started_leaves_nothing() {
    let ignored = json!({ "triggers": { "storagePathLoss": "Ignore" } });
    let disabled = json!({ "detection": { "storage": { "connectivityCheck": "Disabled" } } });
    type Case<'a> = (&'a str, &'a dyn Fn(&mut World));
    let cases: [Case; 5] = [
        ("the path is back", &|world| world.says_of_the_path(None)),
        ("the backend is out for everyone", &|world| world.restrain(Some(DRIVER))),
        ("storage is in trouble for too many nodes", &|world| world.restrain(None)),
        ("nobody asks any more", &|world| world.edit_policy(&ignored)),
        ("nobody is asked any more", &|world| world.edit_policy(&disabled)),
    ];
    for (name, change) in cases {
        let mut world = cut_off();
        world.fencers.insert(DRIVER.into(), Fencer::Silent);
        world.run();
        change(&mut world);
        world.run_controller();
        world.assert_order(&["ask Fenced v1 round 1, v2 round 1", "ask Unfenced", "untaint fenced", "phase Recovered"]);
        assert_eq!(world.pod("pg"), (PodStatusState::Undone, "PathRestored".into()), "{name}");
        assert!(!world.did("delete"), "{name}: {:#?}", world.log);
        assert_untouched(&world);
    }
}

#[test]
fn brakes_on_something_else_change_nothing() {
    let mut world = cut_off();
    world.restrain(Some("file.example.com"));
    world.run();
    assert!(world.did("delete pg grace 0"), "{:#?}", world.log);
}

#[test]
fn while_nobody_can_say_nothing_is_begun() {
    let silent = |world: &mut World| world.seen.reports.clear();
    for (name, change) in [
        ("unknown", (|world| world.says_of_the_path(Some(PathState::Unknown))) as fn(&mut World)),
        ("no report", silent),
    ] {
        let mut world = cut_off();
        change(&mut world);
        world.run();
        assert!(!world.did("ask Fenced") && !world.did("delete"), "{name}: {:#?}", world.log);
        assert_eq!(world.condition("Held"), Some(("True".into(), "ArrayOutage".into())), "{name}");
        world.says_of_the_path(Some(PathState::Disconnected));
        world.run();
        assert!(world.did("delete pg grace 0"), "{name}: {:#?}", world.log);
    }
}

#[test]
fn what_was_begun_is_brought_to_its_end_whatever_the_array_says() {
    for state in [Some(PathState::Unknown), None] {
        let mut world = cut_off();
        world.fencers.insert(DRIVER.into(), Fencer::Hangs);
        world.run();
        world.says_of_the_path(state);
        world.fencers.clear();
        world.run();
        world.assert_order(&["Started v1", "pg is Releasing"]);
        assert!(world.did("delete pg"), "{state:?}: {:#?}", world.log);
        assert_untouched(&world);
    }
}

#[test]
fn a_failed_node_of_which_the_array_said_the_same_is_given_back_when_it_reaches_its_storage() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    let mut storage = world.plan().evidence[0].clone();
    storage.channel = Channel::Storage;
    storage.backend = Some(DRIVER.into());
    world.plan().evidence.push(storage);
    world.says_of_the_path(Some(PathState::Disconnected));
    world.run();
    world.node_reboots();
    world.run();
    assert!(world.is_tainted(), "it is back and clean, and does not reach its storage: {:#?}", world.log);
    world.says_of_the_path(None);
    world.run();
    world.assert_order(&["v1 is Clean", "untaint fenced", "phase Recovered"]);
}

#[test]
fn a_kubelet_that_falls_silent_meanwhile_makes_it_a_failed_node() {
    let mut world = cut_off();
    world.fencers.insert(DRIVER.into(), Fencer::Silent);
    world.run();
    world.seen.lease_is_still = true;
    world.node_fails();
    // Its array cannot be asked any more either: a failed node does not wait for that.
    world.says_of_the_path(Some(PathState::Unknown));
    world.fencers.clear();
    world.run();
    assert!(world.did("delete pg grace 0"), "{:#?}", world.log);
    assert_untouched(&world);
}
