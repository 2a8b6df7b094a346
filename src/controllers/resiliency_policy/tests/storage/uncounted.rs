//! Pods are counted once a minute at most: the brake of a backend holds for one that came since then too, and no longer than
//! somebody uses it.

use std::time::Duration;

use serde_json::json;

use crate::api::driver_report::{BackendState, PathState};
use crate::api::node_fence::PodAction;
use crate::api::resiliency_policy::RestraintType;
use crate::controllers::testing::*;

use super::super::super::scope::{Counted, Scope};
use super::{OTHER, world};

#[test]
fn a_brake_holds_for_a_pod_that_was_not_counted_yet() {
    let mut world = world(vec![pod("pg", "n1", &[csi("v1")])], &json!({ "limits": { "cooldown": "0s" } }));
    world.loses(&["n1"]);
    world.seen.scope = Scope::Nodes(["n1".to_owned()].into());
    world.seen.counts = [("db".to_owned(), Counted::default())].into();
    world.seen.backend_outage_seen.insert(DRIVER.into(), Duration::from_secs(10));
    world.rest();
    let brake = (RestraintType::ArrayOutage, Some(DRIVER.to_owned()));
    assert_eq!((world.opened(), world.named_restraints()), (0, vec![brake]));
    let decision = world.decide();
    assert_eq!(decision.restrained.iter().map(|it| it.brake).collect::<Vec<_>>(), ["ArrayOutage"]);
    assert!(decision.look_at.is_empty(), "nothing is to be done there");
    world.wait(80.0);
    world.rest();
    assert_eq!((world.opened(), world.named_restraints()), (1, vec![]), "after a calm it is lost by itself");
}

#[test]
fn a_brake_holds_for_a_pod_that_only_the_api_shows() {
    let pods = vec![pod("pg", "n0", &[csi("v1")]), pod("web", "n0", &[csi_of(OTHER, "v3")])];
    let mut world = world(pods, &json!({}));
    world.loses(&["n0"]);
    world.says_of(OTHER, &["n0"], PathState::Disconnected);
    world.seen.backend_outage_seen.insert(OTHER.into(), Duration::from_secs(10));
    let live = world.look_at("n0").expect("it is there");
    world.live.insert("n0".into(), live);
    world.seen.pods.get_mut("n0").unwrap().retain(|pod| pod.name() == "pg");
    world.rest();
    assert_eq!(world.planned("n0"), [("pg".into(), PodAction::Release, "StoragePathLoss".into())]);
}

#[test]
fn a_brake_on_a_backend_that_no_pod_uses_any_more_ends_though_it_stays_out() {
    let over = but(pod("pg", "n1", &[csi("v1")]), |pod| pod.status.phase = Some("Succeeded".into()));
    let mut world = world(vec![over], &json!({}));
    world.edit_report(DRIVER, |it| it.status.as_mut().unwrap().backends[0].state = BackendState::Silent);
    world.seen.scope = Scope::Nodes(["n1".to_owned()].into());
    let counted = Counted { drivers: [(DRIVER.to_owned(), 1)].into(), ..Counted::default() };
    world.seen.counts = [("db".to_owned(), counted)].into();
    world.rest();
    assert_eq!(world.named_restraints(), [(RestraintType::ArrayOutage, Some(DRIVER.to_owned()))]);
    // The next count finds none, and the one in sight has ended.
    world.seen.counts = [("db".to_owned(), Counted::default())].into();
    world.rest();
    assert_eq!(world.named_restraints(), []);
}
