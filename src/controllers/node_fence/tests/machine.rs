//! Who has the name of a node that a network fence shuts out: the same machine, or another one.

use std::sync::Arc;

use crate::api::node_fence::Phase;
use crate::controllers::testing::*;

use super::network::{ADDRESS, deleted, is_shut_out, say_that_it_is_off, shut_out_by_network, with_address};

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
