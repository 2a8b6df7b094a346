//! Whatever happens in whatever order: the world's checks refuse a second writer, decisions come to rest, and a
//! machine that has booted again is given back in the end.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use crate::api::fencing::Proof;
use crate::api::node_fence::Phase;
use crate::api::slim::Node;
use crate::controllers::testing::*;

use super::world::{Fencer, World};

const FILE: &str = "file.example.com";

#[derive(Clone, Debug)]
enum Event {
    /// So many passes and no more, before the next thing happens.
    Passes(usize),
    FencersAct,
    AttacherActs,
    FencerIs(bool, u8),
    Wait(u16),
    Restart,
    NodeReturns,
    NodeFails,
    NodeReboots,
    NodeDeleted,
    NodeCreatedAgain(bool),
    LeaseMoves,
    PodGone(u8),
    Sharer(u8),
    AttachBegins(u8),
    AttachEnds,
    PolicyStricter,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (1..8usize).prop_map(Event::Passes),
        6 => Just(Event::FencersAct),
        2 => Just(Event::AttacherActs),
        2 => (any::<bool>(), 0..7u8).prop_map(|(file, how)| Event::FencerIs(file, how)),
        4 => prop_oneof![Just(1), Just(3), Just(11), Just(70)].prop_map(Event::Wait),
        1 => Just(Event::Restart),
        1 => Just(Event::NodeReturns),
        1 => Just(Event::NodeFails),
        1 => Just(Event::NodeReboots),
        1 => Just(Event::NodeDeleted),
        1 => any::<bool>().prop_map(Event::NodeCreatedAgain),
        1 => Just(Event::LeaseMoves),
        1 => (0..3u8).prop_map(Event::PodGone),
        1 => (0..3u8).prop_map(Event::Sharer),
        1 => (0..3u8).prop_map(Event::AttachBegins),
        1 => Just(Event::AttachEnds),
        1 => Just(Event::PolicyStricter),
    ]
}

fn fencer(how: u8) -> Fencer {
    match how {
        0 => Fencer::Silent,
        1 => Fencer::Hangs,
        2 => Fencer::Fails("Unavailable"),
        3 => Fencer::Fails("StillPublished"),
        4 => Fencer::Proves(Proof::Acknowledged),
        5 => Fencer::Refuses("Unimplemented"),
        _ => Fencer::Proves(Proof::Verified),
    }
}

fn happens(world: &mut World, event: &Event, count: &mut u32) {
    *count += 1;
    match event {
        Event::Passes(passes) => (0..*passes).for_each(|_| _ = world.pass()),
        Event::FencersAct => _ = world.fencers_act(),
        Event::AttacherActs => _ = world.others_act(),
        Event::FencerIs(file, how) => {
            let driver = if *file { FILE } else { DRIVER };
            world.fencers.insert(driver.into(), fencer(*how));
        }
        Event::Wait(seconds) => world.wait(f64::from(*seconds)),
        Event::Restart => world.restart(),
        Event::NodeReturns => world.node_returns(),
        Event::NodeFails => world.node_fails(),
        Event::NodeReboots => world.node_reboots(),
        Event::NodeDeleted => world.seen.node = None,
        Event::NodeCreatedAgain(same_boot) => {
            if world.seen.node.is_none() {
                world.seen.node = Some(Arc::new(created_again(*same_boot)));
            }
        }
        Event::LeaseMoves => world.seen.lease_is_still = false,
        Event::PodGone(index) => {
            let name = world.seen.pods.get(usize::from(*index)).map(|pod| pod.name().to_owned());
            name.iter().for_each(|name| world.remove_pod(name));
        }
        Event::Sharer(index) => {
            world.seen.pods.push(pod(&format!("sharer-{count}"), "n1", &[csi(&format!("v{index}"))]));
        }
        Event::AttachBegins(index) => world.attach(&format!("v{index}"), &format!("va-{count}"), false),
        Event::AttachEnds => attach_ends(world),
        Event::PolicyStricter => world.seen.policies = vec![Arc::new(policy("db", &json!({})))],
    }
}

fn attach_ends(world: &mut World) {
    let now = world.now.mono;
    for attachment in world.seen.attachments.iter_mut().filter(|attachment| !attachment.status.attached) {
        Arc::make_mut(attachment).status.attached = true;
        world.seen.attached_since.insert(attachment.metadata.uid.clone().unwrap(), now);
    }
}

fn created_again(same_boot: bool) -> Node {
    let mut node = node("n1");
    node.metadata.uid = Some("uid-again".into());
    if !same_boot {
        node.status.node_info.boot_id = "boot-3".into();
    }
    node
}

fn cluster(shape: u8) -> World {
    let spec = match shape % 3 {
        0 => json!({}),
        1 => json!({ "fencing": { "minimumProof": "Acknowledged" } }),
        _ => json!({ "fencing": { "minimumProof": "None", "acknowledgeRisk": "DoubleWriters" } }),
    };
    let job = but(pod("job", "n1", &[csi("v2")]), |pod| pod.metadata.finalizers = Some(vec!["x/y".into()]));
    let pods = vec![
        pod("a", "n1", &[csi("v0"), csi("v1")]),
        pod("b", "n1", &[csi("v1"), csi_of(FILE, "f0")]),
        if shape % 2 == 0 { job } else { pod("c", "n1", &[csi("v2"), local("l0")]) },
        owned_by(pod("daemon", "n1", &[]), Some("DaemonSet")),
    ];
    let mut world = World::new(pods, &spec);
    if shape % 5 == 0 {
        world.seen.reports.clear();
    }
    world
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_second_writer_no_unrest_and_an_end(shape in 0..30u8, events in prop::collection::vec(event(), 1..60)) {
        let mut world = cluster(shape);
        let mut count = 0;
        for event in &events {
            happens(&mut world, event, &mut count);
        }
        // Comes to rest with whatever is there, and writes nothing then.
        world.run_controller();
        prop_assert_eq!(world.decide().effects, vec![]);

        // The machine boots, and everybody does what they should.
        if world.seen.node.is_none() {
            world.seen.node = Some(Arc::new(created_again(false)));
        }
        world.node_reboots();
        world.fencers.clear();
        for _ in 0..6 {
            attach_ends(&mut world);
            let stopped = world.seen.pods.iter().filter(|pod| pod.pod.is_terminating());
            let stopped: Vec<_> = stopped.map(|pod| pod.name().to_owned()).collect();
            stopped.iter().for_each(|name| world.remove_pod(name));
            let sharers = world.seen.pods.iter().filter(|pod| pod.name().starts_with("sharer"));
            let sharers: Vec<_> = sharers.map(|pod| pod.name().to_owned()).collect();
            sharers.iter().for_each(|name| world.remove_pod(name));
            world.run();
            world.wait(65.0);
        }
        prop_assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{:#?}", world.log);
        prop_assert!(world.seen.our_taint().is_none() && !world.seen.is_active());
    }
}
