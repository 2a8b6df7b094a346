//! Another machine has the name of one whose incident is open: it takes in nothing of that one.

use std::sync::Arc;

use crate::api::fencing::{FenceMethodType, Proof};
use crate::api::node_fence::{MACHINE_MAY_RUN, NODE_DELETED, Phase, VolumeStatusState};
use crate::controllers::testing::*;

use super::World;
use super::machines::{ANOTHER, FROZEN, by, cut_off, kept_out, machine, say_that_it_is_off};

/// Its fence would be taken for the proof of pods that another machine runs, whether the first one is off or not.
#[test]
fn an_open_incident_takes_in_nothing_of_another_machine() {
    let row = (VolumeStatusState::Detached, None);
    for phase in [Phase::Fencing, Phase::Detached] {
        for (by, mut world) in [
            ("a network fence", cut_off(FenceMethodType::NetworkFence, phase, row)),
            ("a fencer", kept_out(phase, row, Proof::Verified)),
        ] {
            world.node_becomes(machine("boot-2", ANOTHER));
            say_that_it_is_off(&mut world, "1");
            world.seen.pods.get_mut("n0").unwrap().push(pod("late", "n0", &[csi("v9")]));
            world.rest();
            let fence = world.fence("n0").unwrap();
            assert_eq!((fence.spec.episode, fence.spec.plan.pods.len()), (1, 1), "{by} {phase:?}");
            let restrained = world.decide().restrained;
            let [held] = restrained.as_slice() else { panic!("{by} {phase:?}: {restrained:?}") };
            assert_eq!(held.brake, MACHINE_MAY_RUN, "{by} {phase:?}");
            assert!(held.about.as_ref().unwrap().ends_with("kubectl delete node n0"), "a way out is told: {held:?}");
            world.node_becomes(machine("boot-1", FROZEN));
            world.rest();
            let pods = world.fence("n0").unwrap().spec.plan.pods.len();
            assert_eq!(pods, 2, "{by} {phase:?}: the first machine is there");
        }
    }
}

/// Podgc and attach/detach go by the name: they would remove the pods and attachments of the first machine too.
#[test]
fn to_delete_the_node_is_told_as_safe_only_where_the_first_machine_is_cut_off() {
    use VolumeStatusState::{Clean, Detached, Failed, Fenced, Fencing};
    for (state, reason, is_safe) in [
        (Fenced, None, true),
        (Detached, None, true),
        (Fencing, None, false),
        (Failed, Some("AddressClaimed"), false),
        (Failed, Some("AnotherMachine"), false),
        (Clean, Some(NODE_DELETED), false),
    ] {
        let mut world = cut_off(FenceMethodType::NetworkFence, Phase::Fencing, (state, reason));
        if state == Failed {
            Arc::make_mut(&mut world.seen.fences[0]).status.as_mut().unwrap().volumes[0].proof = Proof::None;
        }
        world.node_becomes(machine("boot-2", ANOTHER));
        world.seen.pods.get_mut("n0").unwrap().push(pod("late", "n0", &[csi("v9")]));
        world.rest();
        let restrained = world.decide().restrained;
        let [held] = restrained.as_slice() else { panic!("{state:?}: {restrained:?}") };
        let about = held.about.as_deref().unwrap();
        assert!(about.ends_with("kubectl delete node n0"), "{state:?}: {about}");
        assert_eq!(!about.contains("make sure that both are off for good"), is_safe, "{state:?}: {about}");
    }
}

/// The incident began with another method; the policy has the network fence since.
#[test]
fn what_another_machine_brings_is_not_fenced_by_the_addresses_of_the_first() {
    for (node, expected) in [
        (machine("boot-2", ANOTHER), vec![FenceMethodType::Unpublish]),
        (machine("boot-1", FROZEN), vec![FenceMethodType::NetworkFence, FenceMethodType::Unpublish]),
    ] {
        let mut world = World::with_failed(3, 1, &by(&["Unpublish"]));
        world.rest();
        world.reach("n0", Phase::Fencing);
        Arc::make_mut(&mut world.seen.fences[0]).spec.node.addresses = vec![FROZEN.into()];
        let edited = policy("db", &by(&["NetworkFence", "Unpublish"]));
        Arc::make_mut(&mut world.seen.policies[0]).spec = edited.spec;
        world.node_becomes(node);
        world.seen.pods.get_mut("n0").unwrap().push(pod("late", "n0", &[csi("v9")]));
        world.rest();
        let rows = &world.fence("n0").unwrap().spec.plan.volumes;
        let late = rows.iter().find(|row| row.name == "v9").unwrap();
        assert_eq!(late.methods.iter().map(|method| method.type_).collect::<Vec<_>>(), expected);
    }
}
