//! I/O in progress: who is asked, what a veto holds and for how long, and what it does not hold.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::fence_request::IO_IN_PROGRESS;
use crate::api::node_fence::{Channel, PodStatusState};
use crate::api::resiliency_policy::CheckSwitch;
use crate::api::time;
use crate::controllers::testing::*;

use super::world::{Fencer, World};

/// A failed node with a pod of two volumes, whose driver can tell of I/O.
fn failed(spec: &Value) -> World {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1"), csi("v2")])], spec);
    world.driver_can(&["Unpublish", "ListPublishedNodes", "Connectivity", "IOInProgress"]);
    world
}

fn storage(spec: &Value) -> Value {
    json!({ "detection": { "storage": spec } })
}

impl World {
    fn driver_can(&mut self, capabilities: &[&str]) {
        self.seen.reports.insert(DRIVER.into(), Arc::new(report(DRIVER, capabilities)));
    }

    fn decided_by(&mut self, channels: &[Channel]) {
        let first = self.plan().evidence[0].clone();
        self.plan().evidence = channels
            .iter()
            .map(|channel| {
                let mut it = first.clone();
                it.channel = *channel;
                it
            })
            .collect();
    }

    /// What the fencer of the driver was told about I/O.
    fn check(&self) -> Option<CheckSwitch> {
        self.seen.request(DRIVER).map(|request| request.spec.io_in_progress_check)
    }

    /// Kubernetes gave the node up just now.
    fn fell_silent_now(&mut self) {
        let node = Arc::make_mut(self.seen.node.as_mut().unwrap());
        let ready = node.status.conditions.iter_mut().find(|it| it.type_ == "Ready").unwrap();
        ready.last_transition_time = Some(time::to_k8s(self.now.wall));
    }

    fn vetoed(&mut self) {
        self.fencers.insert(DRIVER.into(), Fencer::Refuses(IO_IN_PROGRESS));
        self.run();
    }
}

#[test]
fn who_is_asked_to_look_for_io() {
    use CheckSwitch::{Disabled, Enabled};
    let default = json!({});
    let veto = storage(&json!({ "whenIOInProgress": "Veto" }));
    let off = storage(&json!({ "whenIOInProgress": "Veto", "ioInProgressCheck": "Disabled" }));
    let patient = json!({ "detection": { "kubelet": { "decisiveAfter": "1h" } } });
    let undecided = json!({ "detection": { "decisiveChannels": [] } });
    let fast: &[Channel] = &[Channel::Kubelet, Channel::Agent];
    type Case<'a> = (&'a str, &'a Value, &'a [Channel], CheckSwitch);
    let cases: [Case; 11] = [
        ("a node that Kubernetes gave up", &default, &[Channel::Kubelet], Disabled),
        ("the same, though heartbeats said so too", &default, fast, Disabled),
        ("the same, though its array said so too", &default, &[Channel::Kubelet, Channel::Storage], Disabled),
        ("where every decision is stopped", &veto, &[Channel::Kubelet], Enabled),
        ("where nobody wants to know", &off, fast, Disabled),
        ("heartbeats, and the kubelet is not decisive yet", &patient, fast, Enabled),
        ("storage, and the kubelet is not decisive yet", &patient, &[Channel::Kubelet, Channel::Storage], Enabled),
        ("power, and the kubelet is not decisive yet", &patient, &[Channel::Kubelet, Channel::Power], Enabled),
        ("heartbeats, and no channel is decisive", &undecided, fast, Enabled),
        ("a taint that somebody set", &patient, &[Channel::Taint], Disabled),
        ("a volume", &patient, &[Channel::Volume], Disabled),
    ];
    for (name, spec, channels, wanted) in cases {
        let mut world = failed(spec);
        world.decided_by(channels);
        world.fell_silent_now();
        world.fencers.insert(DRIVER.into(), Fencer::Silent);
        world.run();
        assert_eq!(world.check(), Some(wanted), "{name}: {:#?}", world.log);
    }
    let mut world = failed(&veto);
    world.driver_can(&["Unpublish", "ListPublishedNodes", "Connectivity"]);
    world.run();
    assert!(
        world.check() == Some(Disabled) && world.did("delete pg grace 0"),
        "a driver that cannot tell is not asked"
    );
}

#[test]
fn a_veto_holds_the_incident_by_name_and_ends_by_itself() {
    let mut world = failed(&storage(&json!({ "whenIOInProgress": "Veto" })));
    world.vetoed();
    assert_eq!(world.condition("Held"), Some(("True".into(), IO_IN_PROGRESS.into())));
    assert_eq!(world.condition("Ready").map(|(_, reason)| reason), Some(IO_IN_PROGRESS.into()));
    assert_eq!(world.condition("Stalled"), None);
    assert!(!world.did("Started") && !world.did("delete") && !world.did("detach"), "{:#?}", world.log);
    // However long it lasts: it is asked again and again, each time in a round of its own, and no proof is missed.
    for _ in 0..40 {
        world.wait(10.0);
        world.run();
        assert_eq!(world.condition("Held"), Some(("True".into(), IO_IN_PROGRESS.into())));
        assert_eq!(world.condition("Stalled"), None);
    }
    assert!(!world.did("Started"), "{:#?}", world.log);
    world.fencers.clear();
    world.wait(10.0);
    world.run();
    assert!(world.did("delete pg grace 0"), "{:#?}", world.log);
    assert_eq!(world.condition("Held"), Some(("False".into(), "NotHeld".into())));
}

#[test]
fn an_answer_that_nobody_gives_any_more_holds_nothing() {
    let mut world = failed(&storage(&json!({ "whenIOInProgress": "Veto" })));
    world.vetoed();
    world.fencers.insert(DRIVER.into(), Fencer::Silent);
    // The next process remembers no round, and believes none of the answers that are there.
    world.seen.asked.clear();
    world.wait(60.0);
    world.run();
    world.wait(11.0);
    world.run();
    assert_eq!(world.condition("Held"), Some(("False".into(), "NotHeld".into())), "the veto is of a round before");
    assert!(!world.did("delete"), "{:#?}", world.log);
}

#[test]
fn a_kubelet_that_becomes_decisive_lifts_it() {
    let mut world = failed(&json!({ "detection": { "kubelet": { "decisiveAfter": "20s" } } }));
    world.decided_by(&[Channel::Kubelet, Channel::Agent]);
    world.fell_silent_now();
    world.vetoed();
    assert_eq!(world.condition("Held"), Some(("True".into(), IO_IN_PROGRESS.into())), "{:#?}", world.log);
    // Its sidecar would say the same again: it is not asked any more.
    world.fencers.clear();
    world.wait(21.0);
    world.run();
    assert_eq!(world.check(), Some(CheckSwitch::Disabled));
    assert!(world.did("delete pg grace 0"), "{:#?}", world.log);
}

#[test]
fn a_node_that_returns_meanwhile_is_untouched() {
    let mut world = failed(&storage(&json!({ "whenIOInProgress": "Veto" })));
    world.vetoed();
    world.node_returns();
    world.run();
    world.assert_order(&["ask Unfenced", "untaint fenced", "phase Recovered"]);
    assert_eq!(world.pod("pg").0, PodStatusState::Undone);
    assert!(!world.did("delete"), "{:#?}", world.log);
}

#[test]
fn a_person_who_turns_it_off_is_obeyed_at_once() {
    let mut world = failed(&storage(&json!({ "whenIOInProgress": "Veto" })));
    world.vetoed();
    let off = storage(&json!({ "whenIOInProgress": "Veto", "ioInProgressCheck": "Disabled" }));
    Arc::make_mut(&mut world.seen.policies[0]).spec = policy("db", &off).spec;
    world.fencers.clear();
    world.run();
    assert!(world.did("delete pg grace 0"), "{:#?}", world.log);
}

#[test]
fn of_two_drivers_the_one_that_has_begun_is_brought_to_its_end() {
    let other = "file.example.com";
    let pods = vec![pod("pg", "n1", &[csi("v1")]), pod("web", "n1", &[csi_of(other, "v9")])];
    let mut world = World::new(pods, &storage(&json!({ "whenIOInProgress": "Veto" })));
    world.driver_can(&["Unpublish", "ListPublishedNodes", "IOInProgress"]);
    world.vetoed();
    assert!(world.did("delete web grace 0") && !world.did("delete pg"), "{:#?}", world.log);
    assert_eq!(world.condition("Held"), Some(("False".into(), "NotHeld".into())), "it has begun");
    assert_eq!(world.pod("pg").0, PodStatusState::Waiting);
}
