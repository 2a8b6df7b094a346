//! What becomes of pods that a node has stopped: it gives back what nobody has fenced, and lets go of the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use bulkhead::api::node_volume_report::CleanupState;
use bulkhead::node_agent::child::{Answer, Task};
use bulkhead::node_agent::children::Children;
use bulkhead::node_agent::mounts::mountinfo;
use bulkhead::node_agent::self_fence::cut::{Cover, Done, GiveBack, Order, Stop};
use libtest_mimic::Trial;
use rustix::mount::MountPropagationFlags;
use serde_json::json;

use super::cleaning::{able, trial};
use super::self_fencing::{AFTER, Container, Node, is_covered, record, self_fenced};
use super::world::{PATIENCE, Volume, World, bind, folder, staging, target, volume};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("self_fencing::what_was_fenced_meanwhile_is_not_given_back", what_was_fenced_meanwhile),
        trial("self_fencing::a_container_that_began_under_a_cover_ends_with_it", a_container_that_began_under_a_cover),
        trial("self_fencing::a_cover_is_over_one_pods_mount_alone", a_cover_on_a_shared_mount),
        trial("self_fencing::an_agent_without_heartbeats_gives_back", an_agent_without_heartbeats),
        trial("self_fencing::covers_are_given_back_without_a_record", without_a_record),
    ]
}

async fn what_was_fenced_meanwhile() {
    let mut node = Node::start().await;
    node.world.outside.api(false);
    node.world.outside.neighbours(0);
    node.until_stopped().await;
    node.world.fence(1, &[volume(1)]);
    node.world.outside.api(true);
    node.world.outside.neighbours(3);
    node.world.until("told", |world| self_fenced(world) == Some("True".to_owned())).await;
    tokio::time::sleep(AFTER * 2).await;
    assert!(is_covered(&node.world, &volume(1)), "the incident decides");
    node.world.pod_is_gone(&volume(1).pod);
    node.until_given_back().await;
    // Nothing is in its way, but the other pod as it is played here: it sees all mounts of this machine.
    node.other.child.kill().unwrap();
    node.other.child.wait().unwrap();
    node.world.pod_is_gone(&volume(2).pod);
    node.world.until("clean", |world| world.state() == Some(CleanupState::Clean)).await;
    assert!(node.world.mounts().iter().all(|path| !path.contains(&volume(1).name)));
    // The kubelet has not heard of it yet, and starts it anew; a restart of the agent in between changes nothing.
    assert_eq!(record(&node.world)["stopped"]["gone"], json!([volume(1).pod]));
    node.world.start();
    let started = std::sync::Mutex::new(Container::start(&node.world, 1));
    node.world.until("it ends", |_| !started.lock().unwrap().is_alive()).await;
    fs::remove_dir_all(node.world.path(&format!("pods/{}", volume(1).pod))).unwrap();
    node.world.until("the kubelet knows", |world| record(world)["stopped"].is_null()).await;
}

async fn a_container_that_began_under_a_cover() {
    let world = World::new(able());
    [1, 2].into_iter().for_each(|number| world.publish(&volume(number)));
    let pod = volume(1).pod;
    let (pods, root) = (BTreeSet::from([pod.clone()]), world.root.display().to_string());
    let stop = Order::Stop(Stop { kubelet_root: root.clone(), pods });
    let paths = vec![world.path(&target(&volume(1))).join("mount").display().to_string()];
    let cover = Order::Cover(Cover { kubelet_root: root.clone(), pod: pod.clone(), paths: paths.clone() });
    let give_back = Order::GiveBack(GiveBack { kubelet_root: root, pod: pod.clone(), paths: Vec::new() });
    let open = BTreeMap::from([(pod, paths.clone())]);
    assert!(matches!(ordered(&world, &stop).await, Done::Stopped(done) if done.open == open));
    assert!(matches!(ordered(&world, &cover).await, Done::Stopped(done) if done.covered == paths));
    assert!(matches!(ordered(&world, &stop).await, Done::Stopped(done) if done.open.is_empty()));
    // Beside it one of another pod, which sees the same mounts as it is played here.
    let mut containers = [1, 2].map(|number| Container::start(&world, number));
    for (container, number) in containers.iter().zip(1..) {
        world.until("it has begun", |_| container.has_its_hosts(number)).await;
    }
    assert_eq!(ordered(&world, &give_back).await, Done::GivenBack(Vec::new()));
    assert!(!is_covered(&world, &volume(1)));
    let [under, other] = &mut containers;
    assert!(!under.is_alive() && other.is_alive(), "it would keep the cover for good");
    let mut after = Container::start(&world, 1);
    world.until("it has begun", |_| after.has_its_hosts(1)).await;
    assert_eq!(ordered(&world, &give_back).await, Done::GivenBack(Vec::new()));
    assert!(after.is_alive(), "it has its volume");
}

async fn a_cover_on_a_shared_mount() {
    let world = World::new(able());
    // As systemd makes it; what is mounted below is of one group.
    bind(&world.root, &world.root);
    rustix::mount::mount_change(&world.root, MountPropagationFlags::SHARED).unwrap();
    world.publish(&volume(1));
    let (one, other) = (volume(1), Volume { pod: volume(2).pod, ..volume(1) });
    let mount = |volume: &Volume| world.path(&target(volume)).join("mount");
    folder(&mount(&other));
    bind(&world.path(&staging(&one)).join("globalmount"), &mount(&other));
    let root = world.root.display().to_string();
    let paths = vec![mount(&one).display().to_string()];
    let cover = Order::Cover(Cover { kubelet_root: root.clone(), pod: one.pod.clone(), paths: paths.clone() });
    assert!(matches!(ordered(&world, &cover).await, Done::Stopped(done) if done.covered == paths));
    let covers = || {
        let mounts = mountinfo::parse(&fs::read("/proc/self/mountinfo").unwrap()).unwrap();
        let within = |mount: &mountinfo::Mount| mountinfo::is_within(&mount.path, &root);
        mounts.into_iter().filter(|mount| mount.is_cover() && within(mount)).map(|mount| mount.path).collect::<Vec<_>>()
    };
    assert_eq!(covers(), paths);
    assert!(is_covered(&world, &one) && !is_covered(&world, &other));
    let give_back = Order::GiveBack(GiveBack { kubelet_root: root.clone(), pod: one.pod, paths });
    assert_eq!(ordered(&world, &give_back).await, Done::GivenBack(Vec::new()));
    assert_eq!(covers(), [] as [&str; 0]);
}

async fn ordered(world: &World, order: &Order) -> Done {
    let children = Children::new(world.program.clone(), world.host.clone());
    match children.run("", Task::SelfFence(order.clone()), PATIENCE).await.unwrap() {
        Answer::SelfFenced(done) => done,
        other => panic!("{other:?}"),
    }
}

async fn without_a_record() {
    let mut node = Node::start().await;
    node.world.outside.api(false);
    node.world.outside.neighbours(0);
    node.until_stopped().await;
    // With heartbeats, and without.
    for beats in [true, false] {
        node.world.stop();
        node.world.outside.beats = beats;
        fs::write(node.world.path("plugins/bulkhead-node-agent/self-fencing.json"), "{").unwrap();
        node.world.start();
        node.world.until("found", |world| !record(world)["stopped"]["pods"].is_null()).await;
        assert!(is_covered(&node.world, &volume(1)));
    }
    node.world.outside.neighbours(3);
    node.world.outside.api(true);
    node.until_given_back().await;
    assert!(!is_covered(&node.world, &volume(1)));
}

async fn an_agent_without_heartbeats() {
    let mut node = Node::start().await;
    node.world.outside.api(false);
    node.world.outside.neighbours(0);
    node.until_stopped().await;
    // Its port is taken, or its address was withdrawn.
    node.world.outside.beats = false;
    node.world.start();
    node.protected = Container::start(&node.world, 1);
    node.until_stopped().await;
    node.world.outside.api(true);
    node.until_given_back().await;
    assert!(!is_covered(&node.world, &volume(1)));
}
