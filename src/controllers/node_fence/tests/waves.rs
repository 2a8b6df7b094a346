//! Many pods: those with the highest priority are fenced before all others, and hold up nobody.

use std::collections::BTreeSet;

use serde_json::json;

use crate::api::usage::PodView;
use crate::controllers::testing::*;

use super::fencer::Fencer;
use super::world::World;

/// Pods `p0` to `p29`, the last with the highest priority.
fn thirty() -> Vec<PodView> {
    let one = |number: i32| {
        let pod = pod(&format!("p{number}"), "n1", &[csi(&format!("v{number}"))]);
        but(pod, |pod| pod.spec.priority = Some(number))
    };
    (0..30).map(one).collect()
}

fn asked(world: &World) -> BTreeSet<String> {
    world.seen.requests.iter().flat_map(|request| &request.spec.volumes).map(|volume| volume.name.clone()).collect()
}

#[test]
fn the_highest_priorities_are_asked_for_first_and_released_first() {
    let mut world = World::new(thirty(), &json!({}));
    world.run_controller();
    assert_eq!(asked(&world), (22..30).map(|number| format!("v{number}")).collect());
    while !world.did("delete") {
        if !world.pass() {
            world.fencers_act();
        }
    }
    assert!(world.did("delete p29"), "{:#?}", world.log);
    world.run();
    let released = (0..30).all(|number| world.did(&format!("delete p{number} grace 0")));
    assert!(released, "{:#?}", world.log);
}

#[test]
fn a_first_wave_without_an_answer_holds_the_others_up_for_a_second() {
    let mut world = World::new(thirty(), &json!({}));
    world.fencers.insert(DRIVER.into(), Fencer::Hangs);
    world.run();
    assert_eq!(asked(&world).len(), 8);
    world.wait(0.9);
    world.run();
    assert_eq!(asked(&world).len(), 8);
    world.wait(0.2);
    world.run();
    assert_eq!(asked(&world).len(), 30);
}

#[test]
fn few_pods_need_no_waves() {
    let mut world = World::new(thirty().into_iter().take(16).collect(), &json!({}));
    world.run_controller();
    assert_eq!(asked(&world).len(), 16);
}

/// Attach/detach takes one after the other; what it has not come to is deleted beside it.
#[test]
fn of_many_attachments_those_that_wait_for_attach_detach_are_deleted() {
    let mut world = World::new(thirty(), &json!({}));
    world.attacher = false;
    world.run();
    world.assert_order(&["taint out-of-service", "delete p0 grace 0", "detach v0"]);
    assert!((0..30).all(|number| world.did(&format!("detach v{number}"))), "{:#?}", world.log);
    assert!(!world.did("untaint"), "attach/detach has not noticed yet: {:#?}", world.log);
    world.attacher = true;
    world.run();
    world.assert_order(&["detach v0", "untaint out-of-service"]);
}

#[test]
fn pods_that_no_fencer_can_help_make_no_first_wave() {
    let mut pods = thirty();
    for number in 30..40 {
        let helpless = pod(&format!("p{number}"), "n1", &[csi_of("mute.example.com", &format!("v{number}"))]);
        pods.push(but(helpless, |pod| pod.spec.priority = Some(1000)));
    }
    let mut world = World::new(pods, &json!({}));
    world.seen.reports.remove("mute.example.com");
    world.run();
    let released = (0..30).all(|number| world.did(&format!("delete p{number} grace 0")));
    assert!(released && !world.did("delete p35"), "{:#?}", world.log);
}

#[test]
fn what_another_process_asked_for_holds_nobody_up() {
    let mut world = World::new(thirty(), &json!({}));
    world.fencers.insert(DRIVER.into(), Fencer::Hangs);
    world.run();
    assert_eq!(asked(&world).len(), 8);
    world.restart();
    world.run();
    assert_eq!(asked(&world).len(), 30, "{:#?}", world.log);
}
