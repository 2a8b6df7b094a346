//! A node that fails again in another boot, before its pods have gone: to be back in that one shows nothing.

use serde_json::json;

use crate::api::fencing::Proof;
use crate::api::node_fence::Phase;
use crate::controllers::testing::*;

use super::network::shut_out_by_network;
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

/// Its Node tells of the boot, and that it is not ready yet, before its Lease moves.
#[test]
fn a_kubelet_that_has_just_begun_has_not_failed_again() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    world.fencers.insert(DRIVER.into(), Fencer::Hangs);
    world.run();
    world.node_becomes(|mut node| {
        node.status.node_info.boot_id = "boot-2".into();
        with_ready(node, "False")
    });
    world.run_controller();
    assert_eq!(failed_again(&world), [""; 0], "{:#?}", world.log);
    world.node_returns();
    world.run_controller();
    world.remove_pod("pg");
    world.fencers.clear();
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{:#?}", world.log);
}

fn failed_again(world: &World) -> Vec<String> {
    world.seen.fence.status.as_ref().map(|status| status.failed_boot_ids.clone()).unwrap_or_default()
}
