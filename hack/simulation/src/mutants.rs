//! One directed schedule per mutant: a story in which the safety measure that the mutant takes out is the only thing
//! that stands between the operator and a broken invariant. As the product is, every story ends well.

use std::collections::BTreeMap;
use std::sync::Arc;

use bulkhead::api::driver_report::PathState;
use bulkhead::api::slim::CsiNode;
use bulkhead::mutants::{Mutant, throw};
use serde_json::json;

use crate::api::Kind;
use crate::array::Mood;
use crate::chance::{Chance, Choice, Prompt};
use crate::faults::Fault;
use crate::oracle::Violation;
use crate::people::Person;
use crate::shape::{Driver, Owner, Placement, Shape, VolumeShape, Workload, handle, policy};
use crate::time::{Millis, SECOND};
use crate::world::{Task, Weather, World};

/// The only driver.
const DRIVER: &str = "block.example.com";
/// When the first node fails.
const FAILS: Millis = 40 * SECOND;
/// By when every story is over.
const END: Millis = 240 * SECOND;

/// A story and what it is told for.
#[derive(Clone, Copy)]
pub struct Story {
    /// What is taken out.
    pub mutant: Mutant,
    /// What then is broken.
    pub invariant: &'static str,
    /// How many schedules it has: the same story with other times.
    pub schedules: u64,
    tell: fn(u64) -> World,
}

/// What a mutant came to.
#[derive(Clone, Debug)]
pub struct Caught {
    /// Schedules that were run until it was seen.
    pub schedules: u64,
    /// What was broken.
    pub violation: Violation,
}

impl Story {
    /// The story of a mutant.
    pub fn of(mutant: Mutant) -> Self {
        let (invariant, schedules, tell): (_, _, fn(u64) -> World) = match mutant {
            Mutant::NoFence => ("I2", 1, a_node_falls_silent),
            Mutant::NoReadBack => ("I2", 1, the_array_says_ok_and_does_nothing),
            Mutant::DeleteBeforeFence => ("I2", 1, a_call_hangs_for_ever),
            Mutant::NoOutOfServiceGuard => ("I2", 1, another_pod_is_terminating_on_the_node),
            Mutant::WrongNodeId => ("I3", 1, another_machine_registers_under_the_name),
            Mutant::StaleProof => ("I2", 1, one_of_two_volumes_hangs),
            Mutant::NoLiveReread => ("I3", 1, the_watches_are_late),
            Mutant::BrakeCountedPerPass => ("I4", 1, two_nodes_fail_and_the_budget_is_one),
            Mutant::HoldIgnored => ("I12", 1, a_person_holds_it),
            Mutant::LeaseCheckedOnce => ("I4", 20, a_leader_sleeps_between_two_writes),
            Mutant::IoIgnored => ("I13", 1, the_array_sees_it_writing),
            Mutant::BudgetPerPod => ("I14", 1, a_program_fails_everywhere),
            Mutant::ArrayOutageIgnored => ("I6", 1, an_array_is_out_for_everyone),
        };
        Self { mutant, invariant, schedules, tell }
    }

    /// The first thing that is broken in a schedule of the story, told with the mutant or as the product is.
    pub fn run(&self, schedule: u64, mutant: Option<Mutant>) -> (Option<Violation>, World) {
        let _thrown = throw(mutant);
        let world = (self.tell)(schedule);
        (world.oracle.violations.first().cloned(), world)
    }

    /// Tells its schedules with the mutant until something is broken.
    pub fn hunt(&self) -> Option<Caught> {
        (0..self.schedules).find_map(|schedule| {
            let violation = self.run(schedule, Some(self.mutant)).0?;
            Some(Caught { schedules: schedule + 1, violation })
        })
    }
}

/// Runs the schedules of seeds with a mutant until something is broken.
pub fn hunt_at_random(mutant: Mutant, seeds: u64) -> Option<Caught> {
    let _thrown = throw(mutant);
    (0..seeds).find_map(|seed| {
        let violation = crate::run(seed).violations.into_iter().next()?;
        Some(Caught { schedules: seed + 1, violation })
    })
}

fn a_node_falls_silent(_: u64) -> World {
    let mut world = world(Shape::plain());
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    to_its_end(world, &mut Prompt)
}

fn the_array_says_ok_and_does_nothing(_: u64) -> World {
    let mut world = world(Shape::plain());
    at(&mut world, SECOND, Fault::Mood(DRIVER.into(), Mood { ok_but_nothing: 1, ..Mood::default() }));
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    to_its_end(world, &mut Prompt)
}

fn a_call_hangs_for_ever(_: u64) -> World {
    let mut world = world(Shape::plain());
    at(&mut world, SECOND, Fault::Mood(DRIVER.into(), stuck("v0")));
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    to_its_end(world, &mut Prompt)
}

/// Nobody protects it, so nobody fences its volume; our key would let podGC remove it. podGC looks every 20 s, and the
/// driver is slow enough for the key to be there then.
fn another_pod_is_terminating_on_the_node(_: u64) -> World {
    let mut other = workload("other", &["v1"], 0);
    other.is_protected = false;
    let mut shape = shape(3, vec![workload("db", &["v0"], 0), other], &[], &json!({}));
    shape.drivers.iter_mut().for_each(|driver| driver.latency = 5 * SECOND);
    let mut world = world(shape);
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    at(&mut world, FAILS + 21 * SECOND, Fault::Delete("other".into()));
    to_its_end(world, &mut Prompt)
}

/// A node plugin that starts with another machine's id: its CSINode says whom to cut off, and it is wrong.
fn another_machine_registers_under_the_name(_: u64) -> World {
    let mut elsewhere = workload("web", &["v0"], 0);
    elsewhere.home = 1;
    let mut world = world(shape(3, vec![workload("db", &["v0"], 0), elsewhere], &["v0"], &json!({})));
    let clean = world.run_until(FAILS - SECOND, &mut Prompt);
    if clean {
        let wrong = world.machines["n1"].node_id.clone();
        world.api.update::<CsiNode>("n0", |it| it.spec.drivers.iter_mut().for_each(|it| it.node_id.clone_from(&wrong)));
    }
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    to_its_end(world, &mut Prompt)
}

/// The proof of the other one grows old.
fn one_of_two_volumes_hangs(_: u64) -> World {
    let mut world = world(Shape::plain());
    at(&mut world, SECOND, Fault::Mood(DRIVER.into(), stuck("v2")));
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    at(&mut world, FAILS + 90 * SECOND, Fault::Mood(DRIVER.into(), Mood::default()));
    to_its_end(world, &mut Prompt)
}

/// The node is well for a minute and a half when the operator hears that it is away. Leases are told in time: if they
/// stood still as well, that would be an outage.
fn the_watches_are_late(_: u64) -> World {
    struct Late;
    impl Chance for Late {
        fn pick(&mut self, choice: Choice, options: u64) -> u64 {
            if choice == Choice::Watch && options > SECOND { 90 * SECOND } else { 0 }
        }
    }
    let mut world = world(Shape::plain());
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    at(&mut world, FAILS + 25 * SECOND, Fault::Weather(nodes_late()));
    let unreachable = |world: &World| world.api.nodes.get("n0").is_some_and(|node| node.ready() == "Unknown");
    while world.now < END && !unreachable(&world) && world.step(&mut Late) {}
    let now = world.now;
    at(&mut world, now + SECOND, Fault::Reconnect("n0".into()));
    to_its_end(world, &mut Late)
}

/// Held while a call hangs; then the call ends well.
fn a_person_holds_it(_: u64) -> World {
    let mut world = world(Shape::plain());
    at(&mut world, SECOND, Fault::Mood(DRIVER.into(), stuck("v0")));
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    at(&mut world, FAILS + 70 * SECOND, Fault::Person(Person::Hold("n0".into())));
    at(&mut world, FAILS + 100 * SECOND, Fault::Mood(DRIVER.into(), Mood::default()));
    to_its_end(world, &mut Prompt)
}

/// A node that is cut off from the API, and goes on writing.
fn the_array_sees_it_writing(_: u64) -> World {
    let mut shape = Shape::plain();
    shape.drivers.iter_mut().for_each(|driver| driver.tells_io = true);
    let spec = json!({ "detection": { "storage": { "whenIOInProgress": "Veto" } } });
    shape.policies = vec![policy("all", &["db", "queue"], &spec)];
    let mut world = world(shape);
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    to_its_end(world, &mut Prompt)
}

fn a_program_fails_everywhere(_: u64) -> World {
    let mut shape = Shape::plain();
    let spec = json!({ "triggers": { "crashLoop": { "maxDeletes": 1 } } });
    shape.policies = vec![policy("all", &["db", "queue"], &spec)];
    let mut world = world(shape);
    at(&mut world, FAILS, Fault::FailProgram("db".into()));
    to_its_end(world, &mut Prompt)
}

fn an_array_is_out_for_everyone(_: u64) -> World {
    let mut world = world(Shape::plain());
    let nodes = world.shape.nodes.clone();
    at(&mut world, FAILS, Fault::TellPaths(DRIVER.into(), nodes, PathState::Disconnected));
    to_its_end(world, &mut Prompt)
}

fn two_nodes_fail_and_the_budget_is_one(_: u64) -> World {
    let mut world = world(three_that_may_fail(1));
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    at(&mut world, FAILS + 20 * SECOND, Fault::Disconnect("n1".into()));
    to_its_end(world, &mut Prompt)
}

/// Of two incidents that it decided on, one is written when it is stopped. The other node returns and a third one fails,
/// which the next leader opens an incident for: then the first one wakes up. The schedules differ in the write at which
/// it is stopped.
fn a_leader_sleeps_between_two_writes(schedule: u64) -> World {
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

fn nodes_late() -> Weather {
    Weather { slow_watches: 1, slow_kind: Some(Kind::Nodes), ..Weather::default() }
}

fn stuck(volume: &str) -> Mood {
    Mood { stuck: Some(handle(volume)), ..Mood::default() }
}

fn workload(name: &str, volumes: &[&str], home: usize) -> Workload {
    Workload {
        name: name.into(),
        owner: Owner::StatefulSet,
        volumes: volumes.iter().map(|it| (*it).to_owned()).collect(),
        placement: Placement::Scheduled,
        home,
        priority: 0,
        is_protected: true,
    }
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
    let workloads = (0..3).map(|index| workload(&format!("db{index}"), &[&format!("v{index}")], index)).collect();
    shape(7, workloads, &[], &json!({ "maxNodes": budget }))
}
