//! Judges of volumes that are not attached.

use std::sync::Arc;

use bulkhead::api::fence_request::IO_IN_PROGRESS;
use bulkhead::api::fencing::{FenceMethodType, Proof};
use bulkhead::api::node_fence::{NodeFence, VolumeStatusState};
use bulkhead::api::slim::Pod;
use kube::ResourceExt;
use serde_json::json;

use crate::api::Op;
use crate::chance::Prompt;
use crate::others::POWER;
use crate::run::settle;
use crate::shape::{Clusters, Driver, PowerShape, Shape, VolumeShape, Workload, handle, policy};
use crate::stories::by_fabric;
use crate::stories::network::by_network;
use crate::time::MINUTE;
use crate::world::World;

use super::moments::planned;
use super::{end_all, incarnation, writes};

const DRIVER: &str = "block.example.com";
const OTHER: &str = "file.example.com";

fn is_broken(world: &World, invariant: &str) -> bool {
    world.oracle.violations.iter().any(|it| it.invariant == invariant)
}

/// The first node writes to a volume, and by now the second one too.
#[test]
fn i1_a_second_writer_is_whose_who_removed_the_pod_where_nothing_is_attached() {
    for (attaches, by_others, is_wrong) in [(true, true, true), (false, false, true), (false, true, false)] {
        let shape = Shape::plain();
        let shape = if attaches { shape } else { shape.attaching_nothing(DRIVER, Clusters::default()) };
        let mut world = World::new(Arc::new(shape));
        assert!(world.run_until(2 * MINUTE, &mut Prompt), "{:?}", world.oracle.violations);
        if by_others {
            let uid = world.api.get::<Pod>("db-0").and_then(|pod| pod.uid()).expect("a pod");
            world.oracle.released_by_a_person(&uid);
        }
        world.arrays.get_mut(DRIVER).expect("an array").publish(&handle("v0"), "id-n1");
        world.machines.get_mut("n1").expect("a machine").running.push(incarnation("v0", 999));
        world.oracle.touch();
        world.judge();
        assert_eq!(is_broken(&world, "I1"), is_wrong, "{attaches} {by_others}: {:?}", world.oracle.violations);
    }
}

#[test]
fn i2_time_alone_is_no_proof_of_what_is_not_attached() {
    for attaches in [true, false] {
        let mut shape = Shape::plain();
        let spec = json!({ "fencing": { "minimumProof": "None", "acknowledgeRisk": "DoubleWriters" } });
        shape.policies = vec![policy("all", &["db", "queue"], &spec)];
        let shape = if attaches { shape } else { shape.attaching_nothing(DRIVER, Clusters::default()) };
        let mut world = planned(shape);
        end_all(&mut world);
        let pod = world.api.get::<Pod>("db-0").expect("a pod");
        writes(&mut world, Op::DeletePod(pod, Some(0)));
        assert_eq!(is_broken(&world, "I2"), !attaches, "{:?}", world.oracle.violations);
    }
}

/// Its fencer has taken its machine off the fabric in both, so that nothing writes there.
#[test]
fn i2_less_than_the_end_of_power_is_no_proof_of_what_is_not_attached() {
    for (proof, is_wrong) in [(Proof::PowerOff, false), (Proof::Verified, true)] {
        let mut world = planned(by_fabric().attaching_nothing(DRIVER, Clusters::default()));
        end_all(&mut world);
        world.machines.get_mut("n0").expect("a machine").is_off_fabric = true;
        world.api.update::<NodeFence>("n0", |fence| {
            let rows = fence.status.iter_mut().flat_map(|status| &mut status.volumes);
            rows.for_each(|row| {
                (row.state, row.proof, row.method) =
                    (VolumeStatusState::Fenced, proof, Some(FenceMethodType::External));
            });
        });
        let pod = world.api.get::<Pod>("db-0").expect("a pod");
        writes(&mut world, Op::DeletePod(pod, Some(0)));
        assert_eq!(is_broken(&world, "I2"), is_wrong, "{proof:?}: {:?}", world.oracle.violations);
    }
}

#[test]
fn i7_a_pod_is_held_though_its_class_is_of_the_cluster_of_its_volume() {
    for of_class in ["east", "west"] {
        let clusters = Clusters { of_volumes: Some("east".into()), of_class: Some(of_class.into()) };
        let mut world = planned(by_network(false).attaching_nothing(DRIVER, clusters));
        end_all(&mut world);
        settle(&mut world, &mut Prompt);
        assert_eq!(is_broken(&world, "I7"), of_class == "east", "{:?}", world.oracle.violations);
    }
}

/// Two pods on a node that writes on. One waits for its power to end, which waits for the volume of the other.
#[test]
fn i7_a_node_is_not_switched_off_though_no_io_holds_that_up() {
    for (reason, is_wrong) in [(IO_IN_PROGRESS, false), ("NeverPublished", true)] {
        let driver =
            |name: &str| Driver { name: name.into(), has_sidecar: true, lists: true, tells_io: true, latency: 50 };
        let volume = |name: &str, driver: &str| (name.to_owned(), VolumeShape { driver: driver.into(), shared: false });
        let external = json!({ "type": "External", "external": { "fencerName": POWER } });
        let files = json!({ "name": OTHER, "minimumProof": "PowerOff", "methods": [external] });
        let mut shape = Shape::new(
            3,
            vec![driver(DRIVER), driver(OTHER)],
            [volume("v0", DRIVER), volume("v1", OTHER)].into(),
            vec![Workload::protected("db", &["v0"], 0), Workload::protected("files", &["v1"], 0)],
            vec![policy("all", &["db", "files"], &json!({ "fencing": { "drivers": [files] } }))],
        );
        shape.power = Some(PowerShape { gives_back: true, reports: false, leaves_power: false });
        let mut world = planned(shape.attaching_nothing(OTHER, Clusters::default()));
        end_all(&mut world);
        world.api.update::<NodeFence>("n0", |fence| {
            let rows = fence.status.iter_mut().flat_map(|status| &mut status.volumes);
            rows.for_each(|row| {
                let waits = if row.name == "v0" { reason } else { "PowerWaits" };
                row.reason = Some(waits.into());
            });
        });
        settle(&mut world, &mut Prompt);
        assert_eq!(is_broken(&world, "I7"), is_wrong, "{reason}: {:?}", world.oracle.violations);
    }
}
