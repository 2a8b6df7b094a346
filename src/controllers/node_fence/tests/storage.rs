//! A node that is well but for the path to the storage of its pods.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::conditions;
use crate::api::driver_report::{Backend, BackendState, DriverReport, PathState, UnreachablePair};
use crate::api::node_fence::{Channel, Phase, PodStatusState, STORAGE_PATH_LOSS};
use crate::api::resiliency_policy::{ResiliencyPolicyStatus, Restraint, RestraintType};
use crate::api::time;
use crate::controllers::testing::*;

use super::cleaning::{clean, condition, says};
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

    fn is_stalled(&self) -> bool {
        conditions::is_true(&self.seen.fence.status.as_ref().unwrap().conditions, "Stalled")
    }

    /// Everything has moved, and was watched.
    fn settles(&mut self) {
        self.run();
        self.wait(61.0);
        self.run();
    }

    /// Nothing but the path is waited for, and by the words of Ready.
    fn assert_awaits_storage(&self, phase: Phase) {
        assert_eq!(self.seen.phase(), Some(phase), "{:#?}", self.log);
        let (_, reason, message) = condition(self, "Ready");
        assert!(reason == "AwaitingStorage" && message.contains(DRIVER), "{reason}: {message}");
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

/// A failed node of which the array says that it does not reach it either.
fn failed_and_cut_off() -> World {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    let mut storage = world.plan().evidence[0].clone();
    storage.channel = Channel::Storage;
    storage.backend = Some(DRIVER.into());
    world.plan().evidence.push(storage);
    world.says_of_the_path(Some(PathState::Disconnected));
    world
}

#[test]
fn a_failed_node_of_which_the_array_said_the_same_is_given_back_when_it_reaches_its_storage() {
    let mut world = failed_and_cut_off();
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

#[test]
fn a_lost_path_is_told_by_name_and_becomes_a_warning_after_the_policys_time() {
    let mut world = cut_off();
    world.run();
    assert_eq!(condition(&world, "Ready").1, "Detaching", "what came back would be fenced again");
    world.settles();
    world.assert_awaits_storage(Phase::Detached);
    assert_eq!(condition(&world, "Reconciling").1, "AwaitingStorage");
    assert_eq!(world.condition("NodeClean"), Some(("False".into(), "AgentMissing".into())), "it was never away");
    let agent = clean(&world);
    says(&mut world, agent);
    world.run();
    assert_eq!(world.condition("NodeClean"), Some(("True".into(), "TwoCleanPasses".into())));
    assert!(!world.is_stalled(), "the policy waits for 15 minutes");
    world.wait(16.0 * 60.0);
    world.run();
    assert_eq!(condition(&world, "Stalled").1, "AwaitingStorage");
    world.assert_awaits_storage(Phase::Detached);
    world.says_of_the_path(None);
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{:#?}", world.log);
    assert!(!world.is_stalled());
}

#[test]
fn a_path_that_is_lost_once_more_is_what_is_waited_for_again() {
    let mut world = cut_off();
    world.run();
    world.says_of_the_path(None);
    world.run();
    assert_eq!((world.seen.phase(), condition(&world, "Ready").1), (Some(Phase::Cleaning), "Cleaning".into()));
    world.says_of_the_path(Some(PathState::Disconnected));
    world.run();
    world.assert_awaits_storage(Phase::Cleaning);
}

#[test]
fn who_does_not_prove_the_path_is_named_with_the_reason() {
    fn told(world: &mut World, change: fn(&mut DriverReport)) {
        change(Arc::make_mut(world.seen.reports.get_mut(DRIVER).unwrap()));
    }
    type Case = (&'static str, fn(&mut World));
    let cases: [Case; 6] = [
        ("says Disconnected since 2027-", |_| {}),
        ("says Unknown since 2027-", |world| world.says_of_the_path(Some(PathState::Unknown))),
        ("has no DriverReport", |world| world.seen.reports.clear()),
        ("does not answer its sidecar", |world| {
            told(world, |report| report.status.as_mut().unwrap().conditions[0].status = "False".into());
        }),
        ("cannot say it", |world| told(world, |report| report.status.as_mut().unwrap().capabilities.clear())),
        ("says it of too few nodes", |world| {
            told(world, |report| {
                let status = report.status.as_mut().unwrap();
                status.unreachable.clear();
                status.backends[0].state = BackendState::Silent;
            });
        }),
    ];
    for (expected, change) in cases {
        let mut world = cut_off();
        world.settles();
        change(&mut world);
        world.run();
        world.assert_awaits_storage(Phase::Detached);
        let message = condition(&world, "Ready").2;
        assert!(message.contains(&format!("driver {DRIVER} {expected}")), "{expected}: {message}");
        assert!(message.contains("storagePathLoss: Ignore"), "the way out: {message}");
    }
}

#[test]
fn a_failed_node_that_is_back_and_clean_waits_for_its_storage_by_name() {
    let mut world = failed_and_cut_off();
    world.settles();
    assert_eq!(condition(&world, "Ready").1, "AwaitingNode", "it is away");
    world.node_returns();
    world.run();
    assert_eq!(condition(&world, "Ready").1, "Cleaning", "it is not clean yet");
    world.wait(10.0 * 60.0);
    let agent = clean(&world);
    says(&mut world, agent);
    world.run();
    world.assert_awaits_storage(Phase::Cleaning);
    assert_eq!(world.condition("NodeClean"), Some(("True".into(), "TwoCleanPasses".into())));
    assert!(!world.is_stalled() && world.is_tainted());
    world.wait(6.0 * 60.0);
    world.run();
    assert_eq!(condition(&world, "Stalled").1, "AwaitingStorage", "it has been back for 16 minutes");
    world.edit_policy(&json!({ "triggers": { "storagePathLoss": "Ignore" } }));
    world.run();
    assert!(!world.is_tainted() && world.seen.phase() == Some(Phase::Recovered), "the way out: {:#?}", world.log);
}
