//! Method NetworkFence in the world: storages that give access by their network only, and csi-addons with its habits.

use std::sync::Arc;

use bulkhead::api::node_fence::{NodeFence, Phase};
use kube::ResourceExt;
use serde_json::json;

use crate::array::{Array, Mood};
use crate::chance::{Chance, Choice, Prompt};
use crate::faults::Fault;
use crate::people::Person;
use crate::shape::{Clusters, Driver, Shape, VolumeShape, Workload, fence_class, policy};
use crate::stories::network::by_network;
use crate::time::SECOND;
use crate::world::{CrashPoint, Task, World};

const DRIVER: &str = "block.example.com";
const OTHER: &str = "file.example.com";

fn world(shape: Shape, faults: &[(u64, Fault)]) -> World {
    let mut world = World::new(Arc::new(shape));
    world.trace = Some(Vec::new());
    for (second, fault) in faults {
        world.schedule(second * SECOND, Task::Fault(Box::new(fault.clone())));
    }
    world
}

fn runs_until(world: &mut World, second: u64) {
    let is_clean = world.run_until(second * SECOND, &mut Prompt);
    assert!(is_clean, "{:#?}\n{}", world.oracle.violations, trace(world));
}

fn trace(world: &World) -> String {
    world.trace.clone().unwrap_or_default().join("\n")
}

fn shut_out(array: &Array) -> Vec<String> {
    array.shut_out.iter().map(ToString::to_string).collect()
}

fn phase(world: &World) -> Option<Phase> {
    world.api.get::<NodeFence>("n0")?.status.as_ref()?.phase
}

/// The node is given back, and nobody is shut out any more.
fn assert_over(world: &World) {
    assert_eq!(phase(world), Some(Phase::Recovered), "{}", trace(world));
    assert_eq!(world.unrecovered(), [] as [String; 0], "{}", trace(world));
    assert!(world.arrays.values().all(|array| array.shut_out.is_empty()), "{:?}\n{}", world.arrays, trace(world));
    let left: Vec<_> = world.others.csi_addons.fences.values().map(ResourceExt::name_any).collect();
    assert_eq!(left, [] as [String; 0], "{}", trace(world));
}

#[test]
fn a_machine_that_writes_on_is_shut_out_and_let_in_when_it_has_booted() {
    for (is_behind_nat, address) in [(false, "10.0.0.1/32"), (true, "192.0.2.1/32")] {
        let faults = [(40, Fault::Disconnect("n0".into())), (200, Fault::Reboot("n0".into()))];
        let mut world = world(by_network(is_behind_nat), &faults);
        runs_until(&mut world, 199);
        assert_eq!(shut_out(&world.arrays[DRIVER]), [address], "{}", trace(&world));
        assert_eq!(world.counts.released, 1, "{}", trace(&world));
        assert!(!world.machines["n0"].running.is_empty(), "nothing writes on: this shows nothing");
        runs_until(&mut world, 360);
        assert_over(&world);
    }
}

/// It writes on in both, and only one of them is left.
#[test]
fn what_is_not_attached_is_left_in_its_own_cluster_only() {
    let some = |cluster: &str| Some(cluster.to_owned());
    for (of_volumes, of_class, released) in [
        (None, None, 1),
        (some("east"), some("east"), 1),
        (some("east"), some("west"), 0),
        (some("east"), None, 0),
        (None, some("west"), 0),
    ] {
        let case = format!("{of_volumes:?} {of_class:?}");
        let shape = by_network(false).attaching_nothing(DRIVER, Clusters { of_volumes, of_class });
        let faults = [(40, Fault::Disconnect("n0".into())), (200, Fault::Reboot("n0".into()))];
        let mut world = world(shape, &faults);
        assert_eq!(world.api.attachments.values().count(), 0, "nothing is attached");
        runs_until(&mut world, 199);
        assert!(!world.machines["n0"].running.is_empty(), "nothing writes on: this shows nothing");
        assert_eq!(world.counts.released, released, "{case}\n{}", trace(&world));
        assert_eq!(shut_out(&world.arrays[DRIVER]).len() as u64, released, "{case}\n{}", trace(&world));
        runs_until(&mut world, 360);
        assert_over(&world);
    }
}

/// Two databases, each with a volume in a cluster of its own, and a class of one of them: the other one waits, and writes on.
#[test]
fn of_two_clusters_of_a_storage_only_that_of_the_class_is_left() {
    let method = json!({ "type": "NetworkFence", "networkFence": { "className": fence_class(DRIVER) } });
    let spec = json!({ "fencing": { "minimumProof": "Acknowledged", "methods": [method] } });
    let volume = |name: &str| (name.to_owned(), VolumeShape { driver: DRIVER.into(), shared: false });
    let mut shape = Shape::new(
        3,
        vec![Driver { name: DRIVER.into(), has_sidecar: true, lists: true, tells_io: false, latency: 50 }],
        [volume("v0"), volume("v1")].into(),
        vec![Workload::protected("db", &["v0"], 0), Workload::protected("files", &["v1"], 0)],
        vec![policy("all", &["db", "files"], &spec)],
    );
    shape.network = by_network(false).network;
    let east = Some("east".to_owned());
    let shape = shape.attaching_nothing(DRIVER, Clusters { of_volumes: east.clone(), of_class: east });
    let faults = [(40, Fault::Disconnect("n0".into())), (200, Fault::Reboot("n0".into()))];
    let mut world = world(shape.in_cluster("v1", "west"), &faults);
    runs_until(&mut world, 199);
    assert_eq!((world.accepts("n0", "v0"), world.accepts("n0", "v1")), (false, true), "{}", trace(&world));
    assert_eq!((world.counts.released, world.counts.released_unattached), (1, 1), "{}", trace(&world));
    assert!(world.counts.of_another_cluster > 0 && world.held_back().is_empty(), "{}", trace(&world));
    runs_until(&mut world, 360);
    assert_over(&world);
}

/// Its writers hang, so it is not clean; many may write to the volume, so that what somebody lets in harms nobody here.
#[test]
fn what_somebody_lifts_is_shut_out_again_while_the_node_is_back_and_not_clean() {
    let mut shape = by_network(false);
    shape.volumes.values_mut().for_each(|volume| volume.shared = true);
    let faults = [
        (39, Fault::HangVolume("v0".into(), "n0".into())),
        (40, Fault::Disconnect("n0".into())),
        (200, Fault::Reconnect("n0".into())),
        (260, Fault::LiftNetwork("n0".into())),
        (330, Fault::ForgetLifts),
        (480, Fault::HealVolume("v0".into())),
    ];
    let mut world = world(shape, &faults);
    runs_until(&mut world, 259);
    assert_eq!(shut_out(&world.arrays[DRIVER]), ["10.0.0.1/32"], "{}", trace(&world));
    runs_until(&mut world, 329);
    assert_eq!(shut_out(&world.arrays[DRIVER]), [] as [String; 0], "shut out while somebody lets it in");
    runs_until(&mut world, 479);
    assert_eq!(shut_out(&world.arrays[DRIVER]), ["10.0.0.1/32"], "{}", trace(&world));
    runs_until(&mut world, 720);
    assert_over(&world);
}

/// Also on those whose result it has written. Many may write to the volume, so that what the storage forgets harms nobody here.
#[test]
fn csi_addons_works_on_every_object_again_when_it_starts_again() {
    let mut shape = by_network(false);
    shape.volumes.values_mut().for_each(|volume| volume.shared = true);
    let mut world = world(shape, &[(40, Fault::Disconnect("n0".into())), (210, Fault::RestartCsiAddons)]);
    runs_until(&mut world, 209);
    world.arrays.values_mut().for_each(|array| array.shut_out.clear());
    runs_until(&mut world, 230);
    assert_eq!(shut_out(&world.arrays[DRIVER]), ["10.0.0.1/32"], "{}", trace(&world));
}

/// The storage hangs when it is asked; csi-addons gives it up after three minutes, tries again, and only then is it carried out.
#[test]
fn what_csi_addons_gave_up_is_carried_out_later_and_lifted_in_the_end() {
    struct Late;
    impl Chance for Late {
        fn pick(&mut self, choice: Choice, _: u64) -> u64 {
            u64::from(choice == Choice::Network)
        }
    }
    let hangs = Mood { hangs: 1, ..Mood::default() };
    let faults = [
        (30, Fault::Mood(DRIVER.into(), hangs)),
        (40, Fault::Disconnect("n0".into())),
        (120, Fault::Mood(DRIVER.into(), Mood::default())),
        (360, Fault::Reboot("n0".into())),
    ];
    let mut world = world(by_network(false), &faults);
    for (second, is_shut_out) in [(250, false), (359, true), (540, false)] {
        let is_clean = world.run_until(second * SECOND, &mut Late);
        assert!(is_clean, "{:#?}\n{}", world.oracle.violations, trace(&world));
        assert_eq!(!shut_out(&world.arrays[DRIVER]).is_empty(), is_shut_out, "{second}\n{}", trace(&world));
        assert_eq!(world.counts.released, u64::from(second > 250), "{second}\n{}", trace(&world));
    }
    assert_eq!((world.counts.network_failures, world.counts.network_late), (1, 1), "{}", trace(&world));
    assert_over(&world);
}

/// Its machine runs on, and nobody lets it in: neither who deletes the fence nor who writes another address into it.
#[test]
fn what_a_person_does_to_a_fence_lets_nobody_in_and_is_cleared_up() {
    for meddled in [Fault::EditNetworkFences("n0".into()), Fault::DeleteNetworkFences("n0".into())] {
        let faults = [(40, Fault::Disconnect("n0".into())), (150, meddled.clone()), (240, Fault::Reboot("n0".into()))];
        let mut world = world(by_network(false), &faults);
        runs_until(&mut world, 239);
        assert!(world.is_shut_out("n0", &world.arrays[DRIVER]), "{meddled:?}\n{}", trace(&world));
        runs_until(&mut world, 480);
        assert_eq!(phase(&world), Some(Phase::Recovered), "{meddled:?}\n{}", trace(&world));
        assert_eq!(world.unrecovered(), [] as [String; 0], "{meddled:?}\n{}", trace(&world));
    }
}

/// It may be another machine, which says nothing of the one that is shut out. Another node has got the address meanwhile: that one is
/// let in with it.
#[test]
fn a_node_that_comes_back_by_another_address_waits_for_the_word_of_who_knows() {
    let faults = [
        (40, Fault::PowerOff("n0".into())),
        (150, Fault::Renumber("n0".into())),
        (160, Fault::Reboot("n0".into())),
        (200, Fault::TakeAddress("n1".into(), "n0".into())),
        (260, Fault::Person(Person::SayOff("n0".into()))),
    ];
    let mut world = world(by_network(false), &faults);
    runs_until(&mut world, 159);
    assert_eq!(shut_out(&world.arrays[DRIVER]), ["10.0.0.1/32"], "{}", trace(&world));
    runs_until(&mut world, 259);
    assert_eq!(world.own_address("n0"), "10.0.0.101", "{}", trace(&world));
    assert!(world.is_shut_out("n1", &world.arrays[DRIVER]), "{}", trace(&world));
    assert_ne!(phase(&world), Some(Phase::Recovered), "{}", trace(&world));
    runs_until(&mut world, 480);
    assert_over(&world);
}

#[test]
fn nobody_is_shut_out_by_an_address_that_another_node_has() {
    let faults = [(40, Fault::PowerOff("n0".into())), (55, Fault::TakeAddress("n1".into(), "n0".into()))];
    let mut world = world(by_network(false), &faults);
    runs_until(&mut world, 240);
    assert_eq!((world.counts.opened, world.counts.shut_out, world.counts.released), (1, 0, 0), "{}", trace(&world));
    assert_eq!(world.held_back(), [] as [String; 0], "{}", trace(&world));
}

#[test]
fn two_drivers_that_shut_a_node_out_let_it_in_again() {
    let driver =
        |name: &str| Driver { name: name.into(), has_sidecar: true, lists: true, tells_io: false, latency: 50 };
    let volume = |name: &str, driver: &str| (name.to_owned(), VolumeShape { driver: driver.into(), shared: false });
    let by = |driver: &str| {
        let method = json!({ "type": "NetworkFence", "networkFence": { "className": fence_class(driver) } });
        json!({ "name": driver, "minimumProof": "Acknowledged", "methods": [method] })
    };
    let spec = json!({ "fencing": { "drivers": [by(DRIVER), by(OTHER)] } });
    let mut shape = Shape::new(
        3,
        vec![driver(DRIVER), driver(OTHER)],
        [volume("v0", DRIVER), volume("v1", OTHER)].into(),
        vec![Workload::protected("db", &["v0", "v1"], 0)],
        vec![policy("all", &["db"], &spec)],
    );
    shape.network = by_network(false).network;
    let mut world = world(shape, &[(40, Fault::Disconnect("n0".into())), (200, Fault::Reboot("n0".into()))]);
    runs_until(&mut world, 199);
    for driver in [DRIVER, OTHER] {
        assert_eq!(shut_out(&world.arrays[driver]), ["10.0.0.1/32"], "{driver}\n{}", trace(&world));
    }
    runs_until(&mut world, 400);
    assert_over(&world);
}

/// I8: controller and sidecar end at each of their writes, sent or not.
#[test]
fn a_crash_at_any_write_of_a_network_fence_leads_to_the_same_end() {
    let mut crashed = 0;
    let processes = world(by_network(false), &[]).processes.len();
    for pid in 0..processes {
        for sent in [false, true] {
            for after in 0.. {
                let faults = [(40, Fault::Disconnect("n0".into())), (240, Fault::Reboot("n0".into()))];
                let mut world = world(by_network(false), &faults);
                world.crash_point = Some(CrashPoint { pid, after, sent });
                runs_until(&mut world, 540);
                if world.counts.crashes == 0 {
                    break;
                }
                crashed += 1;
                assert_eq!(
                    world.counts.released,
                    1,
                    "process {pid} at its write {after}, sent: {sent}\n{}",
                    trace(&world)
                );
                assert_over(&world);
            }
        }
    }
    assert!(crashed > 40, "{crashed} places are not all writes of a network fence and its end");
}
