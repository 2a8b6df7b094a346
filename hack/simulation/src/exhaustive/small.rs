//! The small worlds, and what can go wrong in them.

use std::sync::Arc;

use serde_json::json;

use crate::api::Kind;
use crate::array::Mood;
use crate::chance::Chance;
use crate::faults::Fault;
use crate::others::Power;
use crate::process::{Pid, Role};
use crate::shape::{Driver, Shape, VolumeShape, Workload, handle, policy};
use crate::time::{MINUTE, Millis, SECOND};
use crate::world::{Task, Weather, World};

/// The only driver.
const DRIVER: &str = "block.example.com";
/// When the first node fails.
const FAILS: Millis = 30 * SECOND;
/// How long a process is away: longer than a term, and than a proof counts.
const AWAY: Millis = 20 * SECOND;

/// A small world: three nodes, two volumes of one driver, two replicas of the controller and of the sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Small {
    /// Both volumes are used by one pod on the first node; else by one on each of the first two.
    pub one_pod: bool,
    /// The first node loses its power; else only its connection, and its pods run on.
    pub power: bool,
}

impl Small {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self { one_pod: true, power: false },
        Self { one_pod: true, power: true },
        Self { one_pod: false, power: false },
        Self { one_pod: false, power: true },
    ];

    fn shape(self) -> Shape {
        let driver = Driver { name: DRIVER.into(), has_sidecar: true, lists: true, tells_io: false, latency: 50 };
        let volumes = ["v0", "v1"].map(|name| (name.to_owned(), VolumeShape { driver: DRIVER.into(), shared: false }));
        let workloads = if self.one_pod {
            vec![Workload::protected("db", &["v0", "v1"], 0)]
        } else {
            vec![Workload::protected("db", &["v0"], 0), Workload::protected("web", &["v1"], 1)]
        };
        // Two of three failed nodes are none too many: it is the budget that must hold the second back.
        let limits = json!({ "limits": { "maxNodes": 1, "maxUnhealthy": "80%" } });
        Shape::new(3, vec![driver], volumes.into(), workloads, vec![policy("all", &["db", "web"], &limits)])
    }

    /// The world when it is about to be noticed that its first node has failed.
    pub(super) fn begin(self, chance: &mut dyn Chance) -> World {
        let mut world = World::new(Arc::new(self.shape()));
        let fault = if self.power { Fault::PowerOff("n0".into()) } else { Fault::Disconnect("n0".into()) };
        world.schedule(FAILS, Task::Fault(Box::new(fault)));
        let noticed = |world: &World| world.api.nodes.get("n0").is_none_or(|node| node.ready() != "True");
        while world.now < FAILS + MINUTE && !noticed(&world) && world.step(chance) {}
        world
    }
}

/// What may go wrong, or right again, in a world as it is.
pub(super) fn faults(world: &World) -> Vec<Fault> {
    let mut faults = Vec::new();
    let leaders = (0..world.processes.len()).filter(|pid| world.processes[*pid].leads_for(world.now).is_some());
    for pid in leaders.filter(|pid| world.processes[*pid].is_awake(world.now)) {
        faults.extend([Fault::Crash(pid, 2 * SECOND), Fault::Stop(pid, AWAY)]);
        faults.extend(is_controller(world, pid).then_some(Fault::Relist(pid, Kind::Nodes)));
    }
    machine(world, &mut faults);
    array(world, &mut faults);
    // A watch that tells nothing of Leases either would be an outage.
    let slow = Weather { slow_watches: 1, slow_kinds: vec![Kind::Nodes], ..Weather::default() };
    let other = if world.weather == slow { Weather::default() } else { slow };
    faults.extend([Fault::Weather(other), Fault::Resync(DRIVER.into())]);
    faults
}

fn is_controller(world: &World, pid: Pid) -> bool {
    world.processes[pid].role == Role::Controller
}

/// The first node returns or boots; the second fails.
fn machine(world: &World, faults: &mut Vec<Fault>) {
    let (first, second) = (&world.machines["n0"], &world.machines["n1"]);
    if first.power != Power::Running || !first.is_connected {
        faults.push(Fault::Reboot("n0".into()));
    }
    if first.power == Power::Running && !first.is_connected {
        faults.push(Fault::Reconnect("n0".into()));
    }
    if second.is_connected {
        faults.push(Fault::Disconnect("n1".into()));
    }
}

/// The array lies, hangs or fails, or is well again.
fn array(world: &World, faults: &mut Vec<Fault>) {
    let mood = |mood: Mood| Fault::Mood(DRIVER.into(), mood);
    let well = Mood::default();
    if world.arrays[DRIVER].mood != well {
        return faults.push(mood(well));
    }
    faults.extend([
        mood(Mood { ok_but_nothing: 1, ..well.clone() }),
        mood(Mood { stale_list: 1, ..well.clone() }),
        mood(Mood { omits_nodes: 0, omits: 1, ..well.clone() }),
        mood(Mood { stuck: Some(handle("v1")), ..well.clone() }),
        mood(Mood { is_down: true, ..well }),
    ]);
}

/// Whether nothing is held that could be released: where the array is well, or the proof was had before.
pub(super) fn is_released(world: &World) -> bool {
    let well = world.arrays[DRIVER].mood == Mood::default() && world.weather == Weather::default();
    !world.oracle.is_clean() || !well || world.held_back().is_empty()
}
