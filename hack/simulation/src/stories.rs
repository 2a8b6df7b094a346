//! The stories of the mutants.

pub(crate) mod network;
#[cfg(test)]
mod replaced;

use std::collections::BTreeMap;
use std::sync::Arc;

use bulkhead::api::driver_report::PathState;
use bulkhead::api::slim::CsiNode;
use bulkhead::api::volume::NOT_USABLE;
use serde_json::json;

use crate::api::Kind;
use crate::array::Mood;
use crate::chance::{Chance, Choice, Prompt};
use crate::faults::Fault;
use crate::others::{FencerMood, Lie, POWER, first_of};
use crate::people::Person;
use crate::shape::{Driver, PowerShape, Shape, VolumeShape, Workload, handle, policy};
use crate::time::{Millis, SECOND};
use crate::world::{Task, Weather, World};

use self::network::{by_network, network_fencing};

/// The only driver.
const DRIVER: &str = "block.example.com";
/// When the first node fails.
const FAILS: Millis = 40 * SECOND;
/// By when every story is over.
const END: Millis = 240 * SECOND;

pub(crate) fn a_node_falls_silent(_: u64) -> World {
    let mut world = world(Shape::plain());
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    to_its_end(world, &mut Prompt)
}

pub(crate) fn the_array_says_ok_and_does_nothing(_: u64) -> World {
    let mut world = world(Shape::plain());
    at(&mut world, SECOND, Fault::Mood(DRIVER.into(), Mood { ok_but_nothing: 1, ..Mood::default() }));
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    to_its_end(world, &mut Prompt)
}

pub(crate) fn a_call_hangs_for_ever(_: u64) -> World {
    let mut world = world(Shape::plain());
    at(&mut world, SECOND, Fault::Mood(DRIVER.into(), stuck("v0")));
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    to_its_end(world, &mut Prompt)
}

/// Nobody protects it, so nobody fences its volume; our key would let podGC remove it. podGC looks every 20 s, and the
/// driver is slow enough for the key to be there then.
pub(crate) fn another_pod_is_terminating_on_the_node(_: u64) -> World {
    let mut other = Workload::protected("other", &["v1"], 0);
    other.is_protected = false;
    let mut shape = shape(3, vec![Workload::protected("db", &["v0"], 0), other], &[], &json!({}));
    shape.drivers.iter_mut().for_each(|driver| driver.latency = 5 * SECOND);
    let mut world = world(shape);
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    at(&mut world, FAILS + 21 * SECOND, Fault::Delete("other".into()));
    to_its_end(world, &mut Prompt)
}

/// A node plugin that starts with another machine's id: its CSINode says whom to cut off, and it is wrong.
pub(crate) fn another_machine_registers_under_the_name(_: u64) -> World {
    let mut elsewhere = Workload::protected("web", &["v0"], 0);
    elsewhere.home = 1;
    let mut world = world(shape(3, vec![Workload::protected("db", &["v0"], 0), elsewhere], &["v0"], &json!({})));
    let clean = world.run_until(FAILS - SECOND, &mut Prompt);
    if clean {
        let wrong = world.machines["n1"].node_id.clone();
        world.api.update::<CsiNode>("n0", |it| it.spec.drivers.iter_mut().for_each(|it| it.node_id.clone_from(&wrong)));
    }
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    to_its_end(world, &mut Prompt)
}

/// The proof of the other one grows old.
pub(crate) fn one_of_two_volumes_hangs(_: u64) -> World {
    let mut world = world(Shape::plain());
    at(&mut world, SECOND, Fault::Mood(DRIVER.into(), stuck("v2")));
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    at(&mut world, FAILS + 90 * SECOND, Fault::Mood(DRIVER.into(), Mood::default()));
    to_its_end(world, &mut Prompt)
}

/// The node is well for a minute and a half when the operator hears that it is away. Of its Lease it hears as late; that those of
/// the others seem to stand still too is no outage where so much silence is no suspicion.
pub(crate) fn the_watches_are_late(_: u64) -> World {
    struct Late;
    impl Chance for Late {
        fn pick(&mut self, choice: Choice, options: u64) -> u64 {
            if choice == Choice::Watch && options > SECOND { 90 * SECOND } else { 0 }
        }
    }
    let mut shape = Shape::plain();
    let spec = json!({ "detection": { "kubelet": { "suspectAfter": "10m" } } });
    shape.policies = vec![policy("all", &["db", "queue"], &spec)];
    let mut world = world(shape);
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    at(&mut world, FAILS + 25 * SECOND, Fault::Weather(nodes_and_leases_late()));
    let unreachable = |world: &World| world.api.nodes.get("n0").is_some_and(|node| node.ready() == "Unknown");
    while world.now < END && !unreachable(&world) && world.step(&mut Late) {}
    let now = world.now;
    at(&mut world, now + SECOND, Fault::Reconnect("n0".into()));
    to_its_end(world, &mut Late)
}

/// Its kubelet renews its Lease as ever. The node lifecycle controller does not hear of it.
pub(crate) fn kubernetes_gives_up_a_node_that_is_well(_: u64) -> World {
    let mut world = world(Shape::plain());
    at(&mut world, FAILS, Fault::LagBehind("n0".into()));
    at(&mut world, FAILS + 60 * SECOND, Fault::CatchUp("n0".into()));
    to_its_end(world, &mut Prompt)
}

/// Held while a call hangs; then the call ends well.
pub(crate) fn a_person_holds_it(_: u64) -> World {
    let mut world = world(Shape::plain());
    at(&mut world, SECOND, Fault::Mood(DRIVER.into(), stuck("v0")));
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    at(&mut world, FAILS + 70 * SECOND, Fault::Person(Person::Hold("n0".into())));
    at(&mut world, FAILS + 100 * SECOND, Fault::Mood(DRIVER.into(), Mood::default()));
    to_its_end(world, &mut Prompt)
}

/// A node that is cut off from the API, and goes on writing.
pub(crate) fn the_array_sees_it_writing(_: u64) -> World {
    let mut shape = Shape::plain();
    shape.drivers.iter_mut().for_each(|driver| driver.tells_io = true);
    let spec = json!({ "detection": { "storage": { "whenIOInProgress": "Veto" } } });
    shape.policies = vec![policy("all", &["db", "queue"], &spec)];
    let mut world = world(shape);
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    to_its_end(world, &mut Prompt)
}

pub(crate) fn a_program_fails_everywhere(_: u64) -> World {
    let mut shape = Shape::plain();
    let spec = json!({ "triggers": { "crashLoop": { "maxDeletes": 1 } } });
    shape.policies = vec![policy("all", &["db", "queue"], &spec)];
    let mut world = world(shape);
    at(&mut world, FAILS, Fault::FailProgram("db".into()));
    to_its_end(world, &mut Prompt)
}

pub(crate) fn a_program_fails_where_people_are_asked_first(_: u64) -> World {
    let mut shape = Shape::plain();
    shape.policies = vec![policy("all", &["db", "queue"], &json!({ "mode": "RequireApproval" }))];
    let mut world = world(shape);
    at(&mut world, FAILS, Fault::FailProgram("db".into()));
    to_its_end(world, &mut Prompt)
}

pub(crate) fn an_array_is_out_for_everyone(_: u64) -> World {
    let mut world = world(Shape::plain());
    let nodes = world.shape.nodes.clone();
    at(&mut world, FAILS, Fault::TellPaths(DRIVER.into(), nodes, PathState::Disconnected));
    to_its_end(world, &mut Prompt)
}

pub(crate) fn two_nodes_fail_and_the_budget_is_one(_: u64) -> World {
    let mut world = world(three_that_may_fail(1));
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    at(&mut world, FAILS + 20 * SECOND, Fault::Disconnect("n1".into()));
    to_its_end(world, &mut Prompt)
}

/// Of two incidents that it decided on, one is written when it is stopped. The other node returns and a third one fails,
/// which the next leader opens an incident for: then the first one wakes up. The schedules differ in the write at which
/// it is stopped.
pub(crate) fn a_leader_sleeps_between_two_writes(schedule: u64) -> World {
    let mut world = world(three_that_may_fail(2));
    at(&mut world, FAILS, Fault::Disconnect("n1".into()));
    at(&mut world, FAILS, Fault::Disconnect("n2".into()));
    at(&mut world, FAILS + 15 * SECOND, Fault::Disconnect("n0".into()));
    // The other replica leads from here: it renews its Lease at other moments than the lifecycle controller looks.
    at(&mut world, SECOND, Fault::Crash(0, SECOND));
    world.triggers.push((schedule + 1, Fault::Stop(1, 40 * SECOND)));
    world.triggers.push((schedule + 1, Fault::Reconnect("n2".into())));
    to_its_end(world, &mut Prompt)
}

/// A volume of its own is proved by a node without power, another hangs. Then somebody switches the node on, its pods start
/// again, and it is cut off from the API once more, before anybody could end them; whoever switched it off does not run.
pub(crate) fn the_node_is_switched_on_and_its_fencer_is_dead(_: u64) -> World {
    let other = "file.example.com";
    let driver =
        |name: &str| Driver { name: name.into(), has_sidecar: true, lists: true, tells_io: false, latency: 50 };
    let volume = |name: &str, driver: &str| (name.to_owned(), VolumeShape { driver: driver.into(), shared: false });
    let spec = json!({ "fencing": { "drivers": [
        { "name": DRIVER, "minimumProof": "PowerOff", "methods": [external()] },
    ] } });
    let mut shape = Shape::new(
        3,
        vec![driver(DRIVER), driver(other)],
        [volume("v0", DRIVER), volume("v1", other)].into(),
        vec![Workload::protected("db", &["v0", "v1"], 0)],
        vec![policy("all", &["db"], &spec)],
    );
    shape.power = Some(PowerShape { gives_back: false, reports: false, leaves_power: false });
    let mut world = world(shape);
    at(&mut world, SECOND, Fault::Mood(other.into(), stuck("v1")));
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    let dead = FencerMood { is_dead: true, ..FencerMood::default() };
    at(&mut world, FAILS + 70 * SECOND, Fault::Fencer(dead));
    at(&mut world, FAILS + 71 * SECOND, Fault::Reboot("n0".into()));
    at(&mut world, FAILS + 71 * SECOND + 25, Fault::Disconnect("n0".into()));
    at(&mut world, FAILS + 150 * SECOND, Fault::Mood(other.into(), Mood::default()));
    to_its_end(world, &mut Prompt)
}

/// The array does not take the volume from the node, which is well; whoever switches nodes off would be asked next. In the second
/// schedule the storage is left by its network only, and nobody but who shuts the node out could be asked.
pub(crate) fn a_volume_is_in_trouble_on_a_node_that_is_well(schedule: u64) -> World {
    let (mut shape, fencing) = if schedule == 0 {
        (Shape::plain(), json!({ "methods": [{ "type": "Unpublish" }, external()] }))
    } else {
        let mut fencing = network_fencing();
        fencing["methods"] = json!([{ "type": "Unpublish" }, fencing["methods"][0]]);
        (by_network(false), fencing)
    };
    let spec = json!({ "triggers": { "volumeTaints": [NOT_USABLE] }, "fencing": fencing });
    shape.policies = vec![policy("all", &["db", "queue"], &spec)];
    let power = PowerShape { gives_back: true, reports: false, leaves_power: false };
    shape.power = Some(power).filter(|_| schedule == 0);
    // What the driver is asked for proves nothing: by its list, or by its refusal (gRPC's Internal).
    let mood = match schedule {
        0 => Mood { ok_but_nothing: 1, ..Mood::default() },
        _ => Mood { fails: Some((1, 13)), ..Mood::default() },
    };
    let mut world = world(shape);
    at(&mut world, SECOND, Fault::Mood(DRIVER.into(), mood));
    at(&mut world, FAILS, Fault::TaintVolume("v0".into(), vec!["n0".into()]));
    to_its_end(world, &mut Prompt)
}

/// The control link of a node is cut for half a minute: nobody there hears its agent, nor its kubelet. Its peers reach it.
pub(crate) fn its_peers_reach_it(_: u64) -> World {
    let mut world = world(five_that_beat());
    at(&mut world, FAILS, Fault::Unhear("n0".into()));
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    at(&mut world, FAILS + 35 * SECOND, Fault::Reconnect("n0".into()));
    to_its_end(world, &mut Prompt)
}

/// Its agent has ended, or a firewall drops what it sends. Its kubelet is heard.
pub(crate) fn only_its_heartbeats_are_lost(_: u64) -> World {
    let mut world = world(five_that_beat());
    at(&mut world, FAILS, Fault::Mute("n0".into()));
    to_its_end(world, &mut Prompt)
}

/// Whoever reports its power looks at another machine. Its kubelet is heard after that, and is then cut off for less than a minute;
/// Kubernetes, whose controller-manager starts again, does not give it up.
pub(crate) fn it_is_heard_after_it_was_called_off(_: u64) -> World {
    let mut world = world(with_power_reported());
    let wrong = FencerMood { lies: Some(("n0".into(), Lie::ThisBoot)), ..FencerMood::default() };
    at(&mut world, FAILS - 30 * SECOND, Fault::Fencer(wrong));
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    at(&mut world, FAILS + 20 * SECOND, Fault::RestartManager);
    at(&mut world, FAILS + 50 * SECOND, Fault::Reconnect("n0".into()));
    to_its_end(world, &mut Prompt)
}

/// It is cut off from the API only. Its fencer leaves it its power, and lets it in when it is told to, though it writes on.
pub(crate) fn its_fencer_leaves_it_its_power(_: u64) -> World {
    let mut world = world(by_fabric());
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    to_its_end(world, &mut Prompt)
}

/// Its fencer takes it off the fabric, which is less than its policy demands, so its pods are held. Then another machine takes its name, whose
/// kubelet lets them go; and at last somebody finds the first.
pub(crate) fn another_machine_joins_beside_one_whose_fence_proves_too_little(_: u64) -> World {
    let mut shape = by_fabric();
    let spec = json!({ "fencing": { "minimumProof": "PowerOff", "methods": [external()] } });
    shape.policies = vec![policy("all", &["db"], &spec)];
    let mut world = world(shape);
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    at(&mut world, FAILS + 120 * SECOND, Fault::Replace("n0".into(), false));
    at(&mut world, FAILS + 260 * SECOND, Fault::PowerOff(first_of("n0")));
    at(&mut world, FAILS + 261 * SECOND, Fault::Person(Person::SayOff("n0".into())));
    to_its_end(world, &mut Prompt)
}

fn world(shape: Shape) -> World {
    let mut world = World::new(Arc::new(shape));
    world.trace = Some(Vec::new());
    world
}

fn at(world: &mut World, at: Millis, fault: Fault) {
    world.schedule(at, Task::Fault(Box::new(fault)));
}

fn to_its_end(mut world: World, chance: &mut dyn Chance) -> World {
    if world.oracle.is_clean() {
        world.run_until(END, chance);
    }
    world
}

fn nodes_and_leases_late() -> Weather {
    Weather { slow_watches: 1, slow_kinds: vec![Kind::Nodes, Kind::Leases], ..Weather::default() }
}

fn stuck(volume: &str) -> Mood {
    Mood { stuck: Some(handle(volume)), ..Mood::default() }
}

/// A world of one driver and one policy for the workloads that are protected.
fn shape(nodes: usize, workloads: Vec<Workload>, shared: &[&str], limits: &serde_json::Value) -> Shape {
    let driver = Driver { name: DRIVER.into(), has_sidecar: true, lists: true, tells_io: false, latency: 50 };
    let names = workloads.iter().flat_map(|it| it.volumes.clone());
    let volume = |name: String| {
        let shared = shared.contains(&name.as_str());
        (name, VolumeShape { driver: DRIVER.into(), shared })
    };
    let volumes: BTreeMap<_, _> = names.map(volume).collect();
    let protected = workloads.iter().filter(|it| it.is_protected).map(|it| it.name.clone()).collect::<Vec<_>>();
    let protected: Vec<&str> = protected.iter().map(String::as_str).collect();
    let policy = policy("all", &protected, &json!({ "limits": limits }));
    Shape::new(nodes, vec![driver], volumes, workloads, vec![policy])
}

/// Seven nodes, a database on each of the first three, and a budget.
fn three_that_may_fail(budget: u32) -> Shape {
    let workloads =
        (0..3).map(|index| Workload::protected(&format!("db{index}"), &[&format!("v{index}")], index)).collect();
    shape(7, workloads, &[], &json!({ "maxNodes": budget }))
}

/// Five nodes whose agents beat, and two databases on the first.
pub(crate) fn five_that_beat() -> Shape {
    let workloads = vec![Workload::protected("db", &["v0"], 0), Workload::protected("queue", &["v1"], 0)];
    let mut shape = shape(5, workloads, &[], &json!({}));
    shape.beats = true;
    shape
}

/// Three nodes with two databases on the first, and a fencer that reports those without power before anybody asks it.
pub(crate) fn with_power_reported() -> Shape {
    let mut shape = Shape::plain();
    let spec = json!({ "fencing": { "methods": [{ "type": "Unpublish" }, external()] } });
    shape.policies = vec![policy("all", &["db", "queue"], &spec)];
    shape.power = Some(PowerShape { gives_back: true, reports: true, leaves_power: false });
    shape
}

/// Three nodes, and a database on the first, whose fencer takes machines off the fabric of their storages. An unpublish revokes nothing
/// there.
pub(crate) fn by_fabric() -> Shape {
    let mut shape = by_network(false);
    let spec = json!({ "fencing": { "minimumProof": "Verified", "methods": [external()] } });
    shape.policies = vec![policy("all", &["db"], &spec)];
    shape.power = Some(PowerShape { gives_back: true, reports: false, leaves_power: true });
    shape
}

fn external() -> serde_json::Value {
    json!({ "type": "External", "external": { "fencerName": POWER } })
}
