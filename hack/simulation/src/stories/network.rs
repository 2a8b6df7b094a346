//! The stories of storages that are left by their network only.

use serde_json::json;

use crate::array::Mood;
use crate::chance::Prompt;
use crate::faults::Fault;
use crate::people::Person;
use crate::run::settle;
use crate::shape::{Clusters, NetworkShape, Shape, Workload, fence_class, policy};
use crate::time::SECOND;
use crate::world::World;

use super::{DRIVER, FAILS, at, shape, to_its_end, world};

/// It is cut off from the API only, and its machine writes on as soon as it is let in.
pub(crate) fn its_node_is_deleted_while_it_is_shut_out(_: u64) -> World {
    let mut world = world(by_network(false));
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    at(&mut world, FAILS + 120 * SECOND, Fault::DeleteNode("n0".into()));
    to_its_end(world, &mut Prompt)
}

/// Its machine writes on, and csi-addons waits for an answer.
pub(crate) fn the_storage_hangs_in_the_middle_of_a_fence(_: u64) -> World {
    let mut world = world(by_network(false));
    at(&mut world, SECOND, Fault::Mood(DRIVER.into(), hanging()));
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    to_its_end(world, &mut Prompt)
}

/// Nothing holds up the end of its incident but that it is still shut out.
pub(crate) fn the_storage_hangs_in_the_middle_of_a_lift(_: u64) -> World {
    let mut world = world(by_network(false));
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    at(&mut world, FAILS + 110 * SECOND, Fault::Mood(DRIVER.into(), hanging()));
    at(&mut world, FAILS + 120 * SECOND, Fault::Reboot("n0".into()));
    to_its_end(world, &mut Prompt)
}

/// What its sidecar writes is kept back until it has booted and is given back. It does nothing wrong, and is shut out.
pub(crate) fn a_fence_is_made_when_its_incident_is_over(_: u64) -> World {
    let mut world = world(by_network(false));
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    at(&mut world, FAILS + 20 * SECOND, Fault::KeepNetworkWrites(120 * SECOND));
    at(&mut world, FAILS + 70 * SECOND, Fault::Reboot("n0".into()));
    let mut world = to_its_end(world, &mut Prompt);
    if world.oracle.is_clean() {
        settle(&mut world, &mut Prompt);
    }
    world
}

/// Right before its machine boots, and is to be let in.
pub(crate) fn a_person_writes_another_address_into_a_fence(_: u64) -> World {
    let mut world = world(by_network(false));
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    at(&mut world, FAILS + 120 * SECOND, Fault::EditNetworkFences("n0".into()));
    at(&mut world, FAILS + 120 * SECOND + 100, Fault::Reboot("n0".into()));
    to_its_end(world, &mut Prompt)
}

/// It has no power, and Kubernetes has not noticed yet.
pub(crate) fn its_address_is_another_nodes_before_it_is_shut_out(_: u64) -> World {
    let mut world = world(by_network(false));
    at(&mut world, FAILS, Fault::PowerOff("n0".into()));
    at(&mut world, FAILS + 15 * SECOND, Fault::TakeAddress("n1".into(), "n0".into()));
    to_its_end(world, &mut Prompt)
}

/// Nothing is attached: it writes on, in a cluster that nobody shuts it out of.
pub(crate) fn its_class_is_of_another_cluster(_: u64) -> World {
    let clusters = Clusters { of_volumes: Some("east".into()), of_class: Some("west".into()) };
    let mut world = world(by_network(false).attaching_nothing(DRIVER, clusters));
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    to_its_end(world, &mut Prompt)
}

fn hanging() -> Mood {
    Mood { hangs: 1, ..Mood::default() }
}

/// Three nodes, and a database on the first whose storage is left by its network only.
pub(crate) fn by_network(is_behind_nat: bool) -> Shape {
    let mut shape = shape(3, vec![Workload::protected("db", &["v0"], 0)], &[], &json!({}));
    shape.policies = vec![policy("all", &["db"], &json!({ "fencing": network_fencing() }))];
    shape.network = Some(NetworkShape { is_behind_nat });
    shape
}

pub(super) fn network_fencing() -> serde_json::Value {
    let method = json!({ "type": "NetworkFence", "networkFence": { "className": fence_class(DRIVER) } });
    json!({ "minimumProof": "Acknowledged", "methods": [method] })
}

/// It boots before its storage shuts it out, its pod starts again, and it is cut off from the API once more, before anybody could end
/// that. When its Node is back in this very boot the pod is still there, and waits for its volume.
pub(crate) fn it_fails_again_after_a_reboot(_: u64) -> World {
    let mut world = silent_again_after_a_reboot();
    at(&mut world, FAILS + 160 * SECOND, Fault::Reconnect("n0".into()));
    to_its_end(world, &mut Prompt)
}

/// The same, but its Node is deleted before Kubernetes calls it silent, and soon after podGC has looked for such pods. Then its kubelet
/// registers it again.
pub(crate) fn its_node_is_deleted_after_a_reboot(_: u64) -> World {
    let mut world = silent_again_after_a_reboot();
    at(&mut world, FAILS + 106 * SECOND, Fault::DeleteNode("n0".into()));
    at(&mut world, FAILS + 160 * SECOND, Fault::Reconnect("n0".into()));
    at(&mut world, FAILS + 161 * SECOND, Fault::RegisterNode("n0".into()));
    to_its_end(world, &mut Prompt)
}

/// As in `it_fails_again_after_a_reboot`, but it had no power right before it booted, and somebody said so. It is not heard again, and
/// another machine takes its name once it is shut out.
pub(crate) fn another_machine_joins_when_it_has_failed_again(_: u64) -> World {
    let mut world = silent_again_after_a_reboot();
    at(&mut world, FAILS + 69 * SECOND, Fault::PowerOff("n0".into()));
    at(&mut world, FAILS + 70 * SECOND, Fault::Person(Person::SayOff("n0".into())));
    at(&mut world, FAILS + 135 * SECOND, Fault::Replace("n0".into(), false));
    to_its_end(world, &mut Prompt)
}

fn silent_again_after_a_reboot() -> World {
    let reboot = FAILS + 71 * SECOND;
    let mut world = world(by_network(false));
    at(&mut world, FAILS, Fault::Mood(DRIVER.into(), Mood { is_down: true, ..Mood::default() }));
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    at(&mut world, reboot, Fault::Reboot("n0".into()));
    at(&mut world, reboot + 25, Fault::Disconnect("n0".into()));
    at(&mut world, reboot + 30, Fault::HangVolume("v0".into(), "n0".into()));
    at(&mut world, reboot + 100, Fault::Mood(DRIVER.into(), Mood::default()));
    world
}
