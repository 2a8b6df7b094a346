//! Who has the name of a node that a network fence shuts out: the same machine, or another one.

use std::sync::Arc;

use serde_json::json;

use crate::api::fencing::Proof;
use crate::api::node_fence::{Hold, Phase, PodStatusState, VolumeStatusState};
use crate::api::slim::Node;
use crate::controllers::testing::*;

use super::cleaning::condition;
use super::network::{
    ADDRESS, deleted, fencing_report, is_shut_out, say_that_it_is_off, shut_out_by_network, somebody_lifts,
    with_address,
};
use super::world::{Fencer, World};

const ANOTHER: &str = "10.0.0.9";

#[test]
fn a_deleted_node_that_comes_back_in_another_boot_is_let_in_where_it_is_the_same_machine() {
    for (name, boot_id, address, is_let_in) in [
        ("rebooted", "boot-2", ADDRESS, true),
        ("rebooted, and known by another of its addresses", "boot-2", "10.9.0.1", true),
        ("another machine", "boot-2", ANOTHER, false),
        ("the same boot", "boot-1", ADDRESS, false),
        ("the same boot by another address", "boot-1", ANOTHER, false),
        ("silent", "", ADDRESS, false),
    ] {
        let mut world = deleted();
        let mut node = with_address(node("n1"), address);
        node.metadata.uid = Some("uid-again".into());
        node.status.node_info.boot_id = boot_id.into();
        world.seen.node = Some(Arc::new(node));
        world.run();
        assert_eq!(is_shut_out(&world), !is_let_in, "{name}: {:#?}", world.log);
        assert_eq!(world.seen.phase() == Some(Phase::Recovered), is_let_in, "{name}");
    }
}

/// A kubelet on spare hardware may take the Node over without anybody deleting it.
#[test]
fn another_boot_without_an_address_of_the_machine_is_no_reboot_of_it() {
    let mut world = shut_out_by_network(&[("pg", "v1")]);
    world.run();
    world.node_becomes(|node| with_address(node, ANOTHER));
    world.node_reboots();
    world.run();
    assert!(is_shut_out(&world), "{:#?}", world.log);
    assert_eq!(world.condition("NodeClean"), Some(("Unknown".into(), "MachineMayRun".into())));
    assert_eq!(world.condition("Stalled"), Some(("True".into(), "MachineMayRun".into())));
    world.wait(3600.0);
    world.run();
    assert!(is_shut_out(&world), "time proves nothing: {:#?}", world.log);
    say_that_it_is_off(&mut world, "1");
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{:#?}", world.log);
    assert!(!is_shut_out(&world), "{:#?}", world.log);
}

/// Somebody saw it off, it was started again, and failed once more before all its pods had gone.
#[test]
fn the_word_that_it_is_off_is_of_the_boot_in_which_it_failed_last() {
    let mut world = shut_out_by_network(&[("pg", "v1")]);
    world.run();
    say_that_it_is_off(&mut world, "1");
    Arc::make_mut(&mut world.seen.fence).status.as_mut().unwrap().failed_boot_ids = vec!["$(reboot)".into()];
    world.node_becomes(|node| with_address(node, ANOTHER));
    world.node_reboots();
    world.run();
    assert!(is_shut_out(&world), "{:#?}", world.log);
    let word = world.seen.fence.machine_off_word();
    assert!(word.starts_with("1-") && word.len() == 10, "what a node says of itself is no part of a command: {word}");
    let (_, _, stalled) = condition(&world, "Stalled");
    let asked = format!(
        " (what the annotation says now does not count: it is of an earlier failure, or mistyped): kubectl annotate --overwrite nodefence n1 \
         bulkhead.dev/machine-is-off={word}"
    );
    assert!(stalled.ends_with(&asked), "{stalled}");
    say_that_it_is_off(&mut world, &word);
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{:#?}", world.log);
    assert!(!is_shut_out(&world), "{:#?}", world.log);
}

/// Its own incident would let both in; so none is begun (`resiliency_policy::machines`) before somebody says that the first is off.
#[test]
fn another_machine_that_fails_too_lets_nobody_in() {
    let mut world = deleted();
    let mut another = with_address(node("n1"), ANOTHER);
    another.metadata.uid = Some("uid-again".into());
    another.status.node_info.boot_id = "boot-2".into();
    world.seen.node = Some(Arc::new(another));
    world.run();
    world.node_fails();
    world.run();
    assert!(is_shut_out(&world), "{:#?}", world.log);
    assert_eq!(world.condition("NodeClean"), Some(("Unknown".into(), "MachineMayRun".into())));
    assert_eq!(world.seen.phase(), Some(Phase::Cleaning));
    say_that_it_is_off(&mut world, "1");
    world.run();
    assert_eq!(world.condition("NodeClean"), Some(("Unknown".into(), "NodeAway".into())));
    assert_eq!(world.seen.phase(), Some(Phase::Cleaning), "from here its next episode begins");
}

/// Nobody reported its addresses: then nothing tells its reboot from another machine.
#[test]
fn without_frozen_addresses_a_person_says_that_the_machine_is_off() {
    let mut world = shut_out_by_network(&[("pg", "v1")]);
    Arc::make_mut(&mut world.seen.fence).spec.node.addresses.clear();
    world.run();
    world.node_reboots();
    world.run();
    assert!(is_shut_out(&world), "{:#?}", world.log);
    say_that_it_is_off(&mut world, "1");
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{:#?}", world.log);
}

/// The node in another boot, by another address: its kubelet runs whatever is bound there.
fn another(node: Node) -> Node {
    let mut node = with_address(node, ANOTHER);
    node.status.node_info.boot_id = "boot-2".into();
    node
}

/// The machine that was frozen is there again.
fn the_first(node: Node) -> Node {
    let mut node = with_address(node, ADDRESS);
    node.status.node_info.boot_id = "boot-1".into();
    node
}

/// Its volume is cut off while a person holds it, and its pod waits. Then another machine takes its name, and fails too.
fn taken_over(mut world: World) -> World {
    world.run_until("Started v1");
    Arc::make_mut(&mut world.seen.fence).spec.hold = Some(Hold { reason: "looking".into() });
    world.run();
    assert_eq!(world.volume("v1").state, VolumeStatusState::Fenced, "{:#?}", world.log);
    world.node_becomes(another);
    world.wait(60.0);
    world.run();
    world
}

fn goes_on(world: &mut World) {
    Arc::make_mut(&mut world.seen.fence).spec.hold = None;
    world.run();
}

fn asked(world: &World) -> usize {
    world.log.iter().filter(|entry| entry.starts_with("ask Fenced")).count()
}

fn told() -> Option<(String, String)> {
    Some(("True".into(), "AnotherMachine".into()))
}

#[test]
fn a_network_fence_proves_nothing_of_another_machine() {
    for end in ["the first one is there again", "it is Ready"] {
        let mut world = taken_over(shut_out_by_network(&[("pg", "v1")]));
        goes_on(&mut world);
        for said in ["", "1"] {
            say_that_it_is_off(&mut world, said);
            world.wait(3600.0);
            world.run();
            assert_eq!(world.condition("Stalled"), told(), "{end}: whether the first is off says nothing of this one");
        }
        let row = world.volume("v1");
        assert_eq!((row.state, row.reason.as_deref()), (VolumeStatusState::Failed, Some("AnotherMachine")), "{end}");
        assert!(row.message.is_some_and(|message| message.contains("by hand") && message.len() <= 512), "{end}");
        assert_eq!(world.pod("pg").0, PodStatusState::Waiting, "{end}");
        assert!(!world.did("delete") && !world.did("fail") && !world.did("detach"), "{end}: {:#?}", world.log);
        assert_eq!(asked(&world), 1, "{end}: a fence by other addresses is asked for in vain: {:#?}", world.log);
        if end == "it is Ready" {
            world.node_returns();
            world.run();
            assert!(world.did("delete pg graceful") && !world.did("delete pg grace 0"), "{end}: {:#?}", world.log);
        } else {
            world.node_becomes(the_first);
            world.run();
            world.assert_order(&["ask Fenced v1 round 2", "pg is Releasing", "delete pg grace 0"]);
        }
        assert_ne!(world.condition("Stalled"), told(), "{end}");
    }
}

/// Its kubelet was asked to end the pods, and cannot tell that it did.
#[test]
fn another_machine_that_fails_before_its_pods_have_ended_keeps_them() {
    let mut world = taken_over(shut_out_by_network(&[("pg", "v1")]));
    world.node_returns();
    goes_on(&mut world);
    assert!(world.did("delete pg graceful"), "{:#?}", world.log);
    world.seen.lease_is_still = true;
    world.node_fails();
    world.wait(60.0);
    world.run();
    assert!(!world.did("delete pg grace 0") && !world.did("detach"), "{:#?}", world.log);
    assert_eq!(world.condition("Stalled"), told());
}

/// A person took the pod off by force, and it may run on: to let its volume go is theirs, too, and so it is once the Node is deleted.
#[test]
fn what_another_machine_may_use_is_not_detached() {
    let mut world = taken_over(shut_out_by_network(&[("pg", "v1")]));
    world.remove_pod("pg");
    goes_on(&mut world);
    assert_eq!(world.pod("pg"), (PodStatusState::Released, "ReleasedByOthers".into()));
    assert_eq!(world.condition("Stalled"), told());
    world.seen.node = None;
    world.wait(60.0);
    world.run();
    assert!(!world.did("detach"), "{:#?}", world.log);
    assert_eq!(world.condition("Stalled"), told());
    world.seen.attachments.clear();
    world.run();
    assert_eq!(world.volume("v1").state, VolumeStatusState::Clean, "{:#?}", world.log);
    assert!(is_shut_out(&world), "the first one may write on: {:#?}", world.log);
}

/// The first machine would write beside the replacements, whoever has its name.
#[test]
fn whoever_lets_the_first_machine_in_is_answered_while_another_has_its_name() {
    let mut world = taken_over(shut_out_by_network(&[("pg", "v1")]));
    goes_on(&mut world);
    somebody_lifts(&mut world);
    world.wait(60.0);
    world.run();
    world.assert_order(&["ask Fenced v1 round 2", "Started v1", "Fenced v1"]);
    world.wait(3600.0);
    world.run();
    assert_eq!((asked(&world), world.condition("Stalled")), (2, told()), "{:#?}", world.log);
    assert!(!world.did("delete"), "{:#?}", world.log);
}

/// The Node is gone before its boot and addresses tell that again; the row does.
#[test]
fn a_fence_that_fails_does_not_hide_that_another_machine_was_there() {
    let mut world = taken_over(shut_out_by_network(&[("pg", "v1")]));
    goes_on(&mut world);
    world.fencers.insert(DRIVER.into(), Fencer::Fails("NetworkFenceFailed"));
    somebody_lifts(&mut world);
    world.run();
    assert_eq!(world.volume("v1").reason.as_deref(), Some("AnotherMachine"), "{:#?}", world.log);
    world.seen.node = None;
    world.run();
    world.fencers.insert(DRIVER.into(), Fencer::Proves(Proof::Acknowledged));
    world.wait(60.0);
    world.run();
    assert!(!world.did("delete") && !world.did("detach"), "{:#?}", world.log);
    assert_eq!(world.condition("Stalled"), told());
}

/// A fence that never held is not tried for the first machine while nothing rests on it; and again when that one is there.
#[test]
fn nobody_is_asked_to_shut_out_whose_name_another_machine_has() {
    let mut world = shut_out_by_network(&[("pg", "v1")]);
    world.fencers.insert(DRIVER.into(), Fencer::Fails("NetworkFenceFailed"));
    world.run();
    world.node_becomes(another);
    for _ in 0..3 {
        world.wait(3600.0);
        world.run();
    }
    assert_eq!((asked(&world), world.condition("Stalled")), (1, told()), "{:#?}", world.log);
    world.fencers.insert(DRIVER.into(), Fencer::Proves(Proof::Acknowledged));
    world.node_becomes(the_first);
    world.run();
    world.assert_order(&["ask Fenced v1 round 2", "delete pg grace 0"]);
}

/// It is asked for the machine that failed, and may be as right as can be about that one.
#[test]
fn an_external_fencer_proves_nothing_of_another_machine() {
    for methods in [json!([network(), external()]), json!([external()])] {
        let fencing = json!({ "minimumProof": "Acknowledged", "methods": methods, "callTimeout": "5s" });
        let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({ "fencing": fencing }));
        world.seen.reports = reports([fencing_report(&["NetworkFence"])]);
        world.fencers.insert(DRIVER.into(), Fencer::Proves(Proof::Acknowledged));
        world.fencers.insert(POWER.into(), Fencer::Proves(Proof::PowerOff));
        Arc::make_mut(&mut world.seen.fence).spec.node.addresses = vec![ADDRESS.into()];
        world.node_becomes(|node| with_address(node, ADDRESS));
        let mut world = taken_over(world);
        goes_on(&mut world);
        world.wait(3600.0);
        world.run();
        assert!(!world.did("delete") && !world.did("detach"), "{methods}: {:#?}", world.log);
        assert_eq!(world.condition("Stalled"), told(), "{methods}");
        world.node_becomes(the_first);
        world.run();
        assert!(world.did("delete pg grace 0"), "{methods}: {:#?}", world.log);
    }
}
