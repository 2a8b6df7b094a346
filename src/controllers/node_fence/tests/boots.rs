//! A node that fails again in another boot, before its pods have gone: to be back in that one shows nothing.

use std::sync::Arc;

use serde_json::json;

use crate::api::fencing::Proof;
use crate::api::node_fence::{NodeFence, Phase, UNKNOWN_BOOT};
use crate::controllers::testing::*;

use super::super::memory::{Found, Incident, Live};
use super::build::found;
use super::network::{ADDRESS, is_shut_out, shut_out_by_network, with_address};
use super::world::{Fencer, World};

/// What it started in the second boot was moved by a proof of that boot, whose processes may live.
#[test]
fn a_boot_in_which_the_node_failed_again_is_no_reboot_when_it_is_back() {
    let by_its_driver = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    for (mut world, proof) in
        [(by_its_driver, Proof::Verified), (shut_out_by_network(&[("pg", "v1")]), Proof::Acknowledged)]
    {
        world.fencers.insert(DRIVER.into(), Fencer::Hangs);
        world.run();
        world.node_reboots();
        world.run();
        assert!(world.did("delete pg graceful"), "{:#?}", world.log);
        assert_eq!(failed_again(&world), [""; 0], "{:#?}", world.log);
        world.node_fails();
        world.fencers.insert(DRIVER.into(), Fencer::Proves(proof));
        world.run();
        world.wait(5.0);
        world.run();
        assert!(world.did("delete pg grace 0"), "{:#?}", world.log);
        assert_eq!(failed_again(&world), ["boot-1-again"]);
        world.node_returns();
        world.run();
        world.wait(3600.0);
        world.run();
        assert_eq!(world.seen.phase(), Some(Phase::Cleaning), "{:#?}", world.log);
        assert_eq!(world.condition("NodeClean"), Some(("False".into(), "AgentMissing".into())));
        assert!(world.seen.our_taint().is_some() && !world.did("ask Unfenced"), "{:#?}", world.log);
        world.node_reboots();
        world.run();
        assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{:#?}", world.log);
    }
}

/// Its pods end by nobody's word: nobody sees what becomes of them in a boot whose Node is gone.
#[test]
fn a_boot_in_which_its_node_is_deleted_is_no_reboot_when_it_is_back() {
    let by_its_driver = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    for (mut world, proof, by_network) in
        [(by_its_driver, Proof::Verified, false), (shut_out_by_network(&[("pg", "v1")]), Proof::Acknowledged, true)]
    {
        deleted_in_another_boot(&mut world);
        released_without_a_node(&mut world, proof);
        assert_eq!(failed_again(&world), ["boot-1-again"], "{:#?}", world.log);
        created_again(&mut world, "boot-1-again");
        assert_eq!(world.seen.phase(), Some(Phase::Cleaning), "{:#?}", world.log);
        assert_eq!(world.condition("NodeClean"), Some(("False".into(), "AgentMissing".into())));
        assert!(world.seen.our_taint().is_some(), "{:#?}", world.log);
        assert_eq!(is_shut_out(&world), by_network, "{:#?}", world.log);
        world.node_reboots();
        world.run();
        assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{:#?}", world.log);
    }
}

/// Nothing of it lives in another one; nor had a kubelet been there since the node failed.
#[test]
fn one_that_is_created_again_in_another_boot_has_rebooted() {
    let mut rebooted_before = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    deleted_in_another_boot(&mut rebooted_before);
    let mut away_all_the_time = fenced_in_vain();
    away_all_the_time.seen.node = None;
    // Another one leads, which has never seen the Node: nobody knows of another boot than the planned one.
    let mut unseen = fenced_in_vain();
    unseen.seen.node = None;
    unseen.restart();
    for mut world in [rebooted_before, away_all_the_time, unseen] {
        released_without_a_node(&mut world, Proof::Verified);
        created_again(&mut world, "boot-3");
        assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{:#?}", world.log);
        assert!(world.seen.our_taint().is_none(), "{:#?}", world.log);
    }
}

/// Another one leads: it has not seen in which boot the Node was deleted, so the next one that it sees may be that.
#[test]
fn where_nobody_saw_in_which_boot_its_node_was_deleted_the_next_one_is_no_reboot() {
    let by_its_driver = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    for (mut world, proof) in
        [(by_its_driver, Proof::Verified), (shut_out_by_network(&[("pg", "v1")]), Proof::Acknowledged)]
    {
        deleted_in_another_boot(&mut world);
        world.restart();
        released_without_a_node(&mut world, proof);
        assert_eq!(failed_again(&world), [UNKNOWN_BOOT], "{:#?}", world.log);
        created_again(&mut world, "boot-3");
        assert_eq!(failed_again(&world), ["boot-3", UNKNOWN_BOOT], "{:#?}", world.log);
        assert_eq!(world.seen.phase(), Some(Phase::Cleaning), "{:#?}", world.log);
        assert!(world.seen.our_taint().is_some(), "{:#?}", world.log);
        world.node_reboots();
        world.run();
        assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{:#?}", world.log);
    }
}

/// Where the plan has none, none is asked for: it would never be clean by any.
#[test]
fn without_a_boot_id_in_its_plan_no_boot_is_noted() {
    let mut world = fenced_in_vain();
    Arc::make_mut(&mut world.seen.fence).spec.node.boot_id = None;
    world.restart();
    world.seen.node = None;
    released_without_a_node(&mut world, Proof::Verified);
    assert_eq!(failed_again(&world), [""; 0], "{:#?}", world.log);
    assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{:#?}", world.log);
}

#[test]
fn what_a_node_told_last_is_remembered_when_it_is_gone() {
    let world = fenced_in_vain();
    let (fence, settings, now) = (world.seen.fence.clone(), world.seen.settings, world.now);
    let mut incident = Incident::default();
    assert_eq!(incident.look(found(&fence), settings, now).last_boot, None);
    for (told, last) in [(Some("boot-2"), "boot-2"), (None, "boot-2"), (Some(""), "boot-2"), (Some("boot-3"), "boot-3")]
    {
        let node = told.map(|boot_id| {
            let mut node = node("n1");
            node.status.node_info.boot_id = boot_id.into();
            Arc::new(node)
        });
        let seen = incident.look(Found { node, ..found(&fence) }, settings, now);
        assert_eq!(seen.last_boot.as_deref(), Some(last), "{told:?}");
    }
    assert_eq!(Incident::default().look(found(&fence), settings, now).last_boot, None, "another process");
}

/// Its Node tells of the boot, and that it is not ready yet, before its Lease moves.
#[test]
fn a_kubelet_that_has_just_begun_has_not_failed_again() {
    let mut world = fenced_in_vain();
    begins_with(&mut world, Some("False"));
    world.run_controller();
    assert_eq!(failed_again(&world), [""; 0], "{:#?}", world.log);
    world.node_returns();
    world.run_controller();
    world.remove_pod("pg");
    world.fencers.clear();
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{:#?}", world.log);
}

/// A moment later it is there to end them, or it has failed again, and that is on record.
#[test]
fn beside_a_kubelet_that_has_just_begun_nothing_goes_by_force() {
    for ready in [Some("False"), None] {
        for is_there in [true, false] {
            let mut world = fenced_in_vain();
            begins_with(&mut world, ready);
            world.fencers.clear();
            world.run();
            assert!(world.did("pg is Releasing") && !world.did("delete") && !world.did("detach"), "{:#?}", world.log);
            assert_eq!(failed_again(&world), [""; 0], "{ready:?}: {:#?}", world.log);
            begins_with(&mut world, Some("False"));
            if is_there {
                world.node_returns();
                world.run();
                assert!(world.did("delete pg graceful") && !world.did("delete pg grace 0"), "{:#?}", world.log);
                assert_eq!(failed_again(&world), [""; 0], "{ready:?}: {:#?}", world.log);
            } else {
                world.node_fails();
                world.run();
                assert!(world.did("delete pg grace 0"), "{:#?}", world.log);
                assert_eq!(failed_again(&world), ["boot-2"], "{ready:?}: {:#?}", world.log);
            }
        }
    }
}

/// The call would not be made, and its pods would go all the same.
#[test]
fn beside_a_kubelet_that_has_just_begun_no_attachment_is_the_fence() {
    let detach = json!({ "fencing": { "minimumProof": "Acknowledged", "methods": [{ "type": "Detach" }] } });
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &detach);
    begins_with(&mut world, Some("False"));
    world.run();
    assert_eq!(world.volume("v1").committed_at, None, "{:#?}", world.log);
    world.node_returns();
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{:#?}", world.log);
    assert!(world.did("pg is Undone") && !world.did("delete") && !world.did("detach"), "{:#?}", world.log);
}

/// The controllers were away while its kubelet was there, or another one led.
#[test]
fn that_a_kubelet_was_there_needs_no_witness() {
    let mut world = fenced_in_vain();
    begins_with(&mut world, Some("Unknown"));
    world.restart();
    world.fencers.clear();
    world.run();
    world.wait(5.0);
    world.run();
    assert!(world.did("delete pg grace 0"), "{:#?}", world.log);
    assert_eq!(failed_again(&world), ["boot-2"], "{:#?}", world.log);
    world.node_returns();
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Cleaning), "{:#?}", world.log);
}

/// What ran there is proved to be clean, and nothing of a plan may have been started since.
#[test]
fn a_boot_in_which_nothing_was_left_is_a_reboot() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    world.run();
    assert!(world.did("delete pg grace 0"), "{:#?}", world.log);
    begins_with(&mut world, Some("Unknown"));
    world.run();
    assert_eq!(failed_again(&world), [""; 0], "{:#?}", world.log);
    world.node_returns();
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{:#?}", world.log);
}

/// Attach/detach and podGC would act on what its kubelet has started anew.
#[test]
fn the_out_of_service_taint_does_not_outlive_the_boot() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    world.attacher = false;
    world.run();
    assert!(world.did("taint out-of-service") && !world.did("untaint"), "{:#?}", world.log);
    begins_with(&mut world, Some("False"));
    world.run_controller();
    assert!(world.did("untaint out-of-service"), "{:#?}", world.log);
}

/// One of the release before: it drops what it does not know without a word.
#[test]
fn what_an_older_definition_does_not_keep_this_process_does() {
    let mut world = fenced_in_vain();
    begins_with(&mut world, Some("Unknown"));
    world.run_controller();
    let sent = world.seen.fence.clone();
    assert_eq!(boots(&sent), ["boot-2"], "{:#?}", world.log);
    let mut stored = sent.clone();
    Arc::make_mut(&mut stored).status.as_mut().unwrap().failed_boot_ids.clear();
    world.seen.fence = stored.clone();
    assert_ne!(world.decide().effects, [], "it would be written for ever");

    let (mut incident, settings, now) = (Incident::default(), world.seen.settings, world.now);
    assert_eq!(boots(&incident.look(found(&stored), settings, now).fence), [""; 0]);
    incident.recorded(sent.status.as_ref().unwrap(), now);
    let seen = incident.look(found(&stored), settings, now);
    assert_eq!(boots(&seen.fence), ["boot-2"]);
    let live = Live {
        fence: Some(stored.clone()),
        node: None,
        lease: None,
        pods: Vec::new(),
        attachments: Vec::new(),
        node_report: None,
    };
    assert_eq!(boots(&incident.look_live(seen.clone(), live, now).fence), ["boot-2"]);
    world.seen.fence = seen.fence;
    assert_eq!(world.decide().effects, [], "nothing waits for it");
    Arc::make_mut(&mut stored).spec.episode = 2;
    assert_eq!(boots(&incident.look(found(&stored), settings, now).fence), [""; 0], "it was of the episode before");
}

/// Each question has an answer of its own where a boot is not known.
#[test]
fn what_a_boot_tells_and_one_that_is_not_known() {
    let mut fence = NodeFence::clone(&fenced_in_vain().seen.fence);
    fence.status.as_mut().unwrap().failed_boot_ids = vec!["boot-2".into()];
    for (frozen, now, is_another, has_failed, is_rebooted, may_be_another_machine) in [
        (Some("boot-1"), "boot-1", false, true, false, false),
        (Some("boot-1"), "boot-2", true, true, false, true),
        (Some("boot-1"), "boot-3", true, false, true, true),
        (Some("boot-1"), "", false, false, false, true),
        (None, "boot-3", false, false, false, true),
        (None, "", false, false, false, true),
    ] {
        fence.spec.node.boot_id = frozen.map(str::to_owned);
        let mut told = node("n1");
        told.status.node_info.boot_id = now.into();
        assert_eq!(fence.is_another_boot(&told), is_another, "{frozen:?}, {now:?}");
        assert_eq!(fence.has_failed_in(&told), has_failed, "{frozen:?}, {now:?}");
        assert_eq!(fence.is_rebooted(&told), is_rebooted, "{frozen:?}, {now:?}");
        assert_eq!(fence.may_be_another_machine(&told), may_be_another_machine, "{frozen:?}, {now:?}");
    }
}

/// A failed node whose volume is being cut off, without an end.
fn fenced_in_vain() -> World {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    world.fencers.insert(DRIVER.into(), Fencer::Hangs);
    world.run();
    world
}

/// It reboots, its kubelet is asked to end the pod, and its Node is deleted before that has ended.
fn deleted_in_another_boot(world: &mut World) {
    world.fencers.insert(DRIVER.into(), Fencer::Hangs);
    world.run();
    world.node_reboots();
    world.run();
    assert!(world.did("delete pg graceful"), "{:#?}", world.log);
    assert_eq!(failed_again(world), [""; 0], "{:#?}", world.log);
    world.seen.node = None;
}

/// It is cut off after its Node was deleted.
fn released_without_a_node(world: &mut World, proof: Proof) {
    world.fencers.insert(DRIVER.into(), Fencer::Proves(proof));
    world.run();
    world.wait(5.0);
    world.run();
    assert!(world.did("delete pg grace 0"), "{:#?}", world.log);
}

/// Its kubelet starts again, and registers it.
fn created_again(world: &mut World, boot_id: &str) {
    let mut node = with_address(node("n1"), ADDRESS);
    node.metadata.uid = Some("uid-again".into());
    node.status.node_info.boot_id = boot_id.into();
    world.seen.node = Some(Arc::new(node));
    world.run();
}

/// Its Node tells of another boot, with this word on whether it is ready; nobody has seen its Lease move.
fn begins_with(world: &mut World, ready: Option<&str>) {
    world.node_becomes(|mut before| {
        before.status.node_info.boot_id = "boot-2".into();
        before.status.conditions = node("n1").status.conditions;
        match ready {
            Some(status) => with_ready(before, status),
            None => {
                before.status.conditions.clear();
                before
            }
        }
    });
}

fn failed_again(world: &World) -> Vec<String> {
    boots(&world.seen.fence)
}

fn boots(fence: &NodeFence) -> Vec<String> {
    fence.status.as_ref().map(|status| status.failed_boot_ids.clone()).unwrap_or_default()
}
