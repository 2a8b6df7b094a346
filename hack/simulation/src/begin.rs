//! The beginning of a world: every node is well, every pod runs where it is at home with its volumes attached, and the
//! programs under test are about to start.

use bulkhead::api::names;
use bulkhead::api::slim::{
    AttachedVolume, CsiNode, CsiNodeDriver, Node, NodeAddress, Pod, StatusCondition, VolumeAttachment,
};

use crate::array::Array;
use crate::others::{Actor, Attacher, Machine, attachment_name};
use crate::process::controller::{Controller, fencer_lease};
use crate::process::sidecar::Sidecar;
use crate::process::{Process, Role};
use crate::shape::{Owner, handle, volumes_of};
use crate::time::{MINUTE, Millis, SECOND, stamp};
use crate::world::{Task, World};

/// Replicas of the controller, and of each sidecar.
const REPLICAS: usize = 2;

pub(crate) fn begin(world: &mut World) {
    let shape = world.shape.clone();
    for driver in &shape.drivers {
        let mut array = Array::new(driver.latency);
        array.is_by_network = shape.network.is_some();
        world.arrays.insert(driver.name.clone(), array);
        world.others.attachers.insert(driver.name.clone(), Attacher::default());
    }
    for name in &shape.nodes {
        add_machine(world, name);
    }
    for workload in &shape.workloads {
        world.others.pods_made += 1;
        let mut pod = workload.pod(world.others.pods_made);
        pod.spec.node_name = shape.nodes.get(workload.home % shape.nodes.len()).cloned();
        if workload.owner == Owner::DaemonSet {
            pod.spec.volumes.clear();
        }
        attach(world, &pod);
        let _ = world.api.create(pod, 0);
    }
    for policy in &shape.policies {
        let mut policy = policy.clone();
        policy.metadata.finalizers = Some(vec![names::POLICY_FINALIZER.into()]);
        let _ = world.api.create(policy, 0);
    }
    add_processes(world);
    let period = |index: usize, of: Millis| (index as Millis * 7919) % of + 1;
    for (index, name) in shape.nodes.iter().enumerate() {
        world.wake(Actor::Kubelet(name.clone()), period(index, 2 * SECOND));
    }
    for (index, driver) in shape.drivers.iter().enumerate() {
        world.wake(Actor::Resync(driver.name.clone()), period(index + 1, MINUTE));
    }
    if shape.power.is_some() {
        world.wake(Actor::PowerFencer, 1);
    }
    for (index, actor) in [Actor::Lifecycle, Actor::Garbage, Actor::AttachDetach].into_iter().enumerate() {
        world.wake(actor, period(index, 5 * SECOND));
    }
    world.api.take_changes();
}

fn add_machine(world: &mut World, name: &str) {
    let mut machine = Machine::new(format!("id-{name}"), world.first_address(name));
    machine.well_since = Some(0);
    let node = registered(name, &machine, 0);
    let _ = world.api.create(node, 0);
    let csi_node = csi_node(world, name, &machine.node_id);
    let _ = world.api.create(csi_node, 0);
    world.machines.insert(name.to_owned(), machine);
}

/// A Node as its kubelet registers it.
pub(crate) fn registered(name: &str, machine: &Machine, at: Millis) -> Node {
    let mut node = Node::default();
    node.metadata.name = Some(name.to_owned());
    node.status.conditions =
        vec![StatusCondition { type_: "Ready".into(), status: "True".into(), last_transition_time: Some(stamp(at)) }];
    node.status.addresses = vec![NodeAddress { type_: "InternalIP".into(), address: machine.address.clone() }];
    node.status.node_info.boot_id = machine.boot_id();
    node
}

/// The CSINode of a machine.
pub(crate) fn csi_node(world: &World, name: &str, node_id: &str) -> CsiNode {
    let mut csi_node = CsiNode::default();
    csi_node.metadata.name = Some(name.to_owned());
    let drivers = world.shape.drivers.iter();
    csi_node.spec.drivers =
        drivers.map(|driver| CsiNodeDriver { name: driver.name.clone(), node_id: node_id.to_owned() }).collect();
    csi_node
}

fn attach(world: &mut World, pod: &Pod) {
    let shape = world.shape.clone();
    let Some(node) = pod.spec.node_name.clone() else { return };
    for volume in volumes_of(pod).filter(|volume| shape.attaches(volume)) {
        let driver = shape.driver_of(volume).unwrap_or_default().to_owned();
        let node_id = world.machines[&node].node_id.clone();
        let mut attachment = VolumeAttachment::default();
        attachment.metadata.name = Some(attachment_name(volume, &node));
        attachment.metadata.finalizers = Some(vec![names::attacher_finalizer(&driver)]);
        let noted = (names::ATTACHED_NODE_ID_ANNOTATION.to_owned(), node_id.clone());
        attachment.metadata.annotations = Some([noted].into());
        attachment.spec.attacher.clone_from(&driver);
        attachment.spec.node_name.clone_from(&node);
        attachment.spec.source.persistent_volume_name = Some(volume.to_owned());
        attachment.status.attached = true;
        let _ = world.api.create(attachment, 0);
        if let Some(array) = world.arrays.get_mut(&driver) {
            array.publish(&handle(volume), &node_id);
        }
        world.others.attach_detach.actual.insert((volume.to_owned(), node.clone()), None);
        let unique = shape.unique_name(volume);
        world.api.update::<Node>(&node, |node| {
            if !node.status.volumes_attached.iter().any(|it| it.name == unique) {
                node.status.volumes_attached.push(AttachedVolume { name: unique });
            }
        });
    }
}

fn add_processes(world: &mut World) {
    for _ in 0..REPLICAS {
        world.processes.push(Process::new(Role::Controller, "bulkhead-controller".into()));
        world.controllers.push(Controller::default());
    }
    let shape = world.shape.clone();
    for driver in shape.drivers.iter().filter(|driver| driver.has_sidecar) {
        for _ in 0..REPLICAS {
            world.processes.push(Process::new(Role::Sidecar(driver.name.clone()), fencer_lease(&driver.name)));
            world.sidecars.push(Sidecar::default());
        }
    }
    for pid in 0..world.processes.len() {
        world.schedule(1 + pid as Millis, Task::Start(pid));
    }
}
