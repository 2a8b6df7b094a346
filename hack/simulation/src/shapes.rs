//! Shapes by chance.

use std::collections::BTreeMap;

use bulkhead::api::resiliency_policy::ResiliencyPolicy;
use serde_json::{Value, json};

use crate::chance::{Chance, Choice};
use crate::oracle::programs::plugin;
use crate::others::POWER;
use crate::shape::{
    Clusters, Driver, NetworkShape, Owner, Placement, PowerShape, Shape, VolumeShape, Workload, fence_class, one_of,
    policy,
};

/// A shape by chance.
pub(crate) fn random(chance: &mut dyn Chance) -> Shape {
    let c = Choice::Shape;
    let nodes = chance.between(c, 3, 5) as usize;
    let mut drivers = vec![driver(chance, "block.example.com")];
    if chance.one_in(c, 3) {
        drivers.push(driver(chance, "file.example.com"));
    }
    let mut volumes = BTreeMap::new();
    for index in 0..chance.between(c, 2, 5) {
        let driver = one_of(chance, &drivers).name;
        volumes.insert(format!("v{index}"), VolumeShape { driver, shared: chance.one_in(c, 3) });
    }
    let mut workloads = workloads(chance, &volumes, nodes);
    workloads.extend(chance.one_in(c, 3).then(|| node_plugin(&drivers[0].name)));
    let power = chance.one_in(c, 4).then(|| {
        let (gives_back, reports) = (chance.one_in(c, 2), chance.one_in(Choice::Report, 2));
        PowerShape { gives_back, reports, leaves_power: leaves_power(chance) }
    });
    let network = chance.one_in(Choice::Network, 8);
    let network = network.then(|| NetworkShape { is_behind_nat: chance.one_in(Choice::Network, 2) });
    let network = network.or(beside_fabric(chance, power));
    let unattached = unattached(chance, &drivers);
    let (power, network) = if unattached.is_empty() { (power, network) } else { cut_off(chance, power, network) };
    end_before_the_next(&mut workloads, &volumes, &unattached);
    let policies = policies(chance, &workloads, (&drivers, power, network));
    let mut shape = Shape::new(nodes, drivers, volumes, workloads, policies);
    // Who tolerates every taint is kept off a failed node by admission alone (docs/safety.md): a program that fails elsewhere
    // would be put back there, beside its own zombie.
    let is_lawless = chance.one_in(c, 6);
    shape.admission_missing = is_lawless && shape.workloads.iter().all(|it| it.placement != Placement::ToleratesAll);
    shape.beats = chance.one_in(c, 3);
    shape.power = power;
    shape.network = network;
    for driver in &unattached {
        shape = attaching_nothing(chance, shape, driver);
    }
    shape
}

/// The drivers that attach nothing, if there are any: one of them, or all.
fn unattached(chance: &mut dyn Chance, drivers: &[Driver]) -> Vec<String> {
    let c = Choice::Unattached;
    if !chance.one_in(c, 4) {
        return Vec::new();
    }
    let mut names: Vec<_> = drivers.iter().map(|driver| driver.name.clone()).collect();
    let one = chance.pick(c, names.len() as u64) as usize;
    if chance.one_in(c, 2) { names } else { vec![names.swap_remove(one)] }
}

/// Whether who cuts nodes off as a whole leaves them their power.
fn leaves_power(chance: &mut dyn Chance) -> bool {
    chance.one_in(Choice::Fabric, 3)
}

/// Storages that are left by their network only, beside who leaves nodes their power, more often than elsewhere: an unpublish revokes
/// nothing there, so what is let in by its fabric writes.
fn beside_fabric(chance: &mut dyn Chance, power: Option<PowerShape>) -> Option<NetworkShape> {
    let is_there = power.is_some_and(|power| power.leaves_power) && chance.one_in(Choice::Fabric, 2);
    is_there.then_some(NetworkShape { is_behind_nat: false })
}

/// Who cuts off a node as a whole where a driver attaches nothing: its storage, a program, both, or nobody. Nothing else covers such
/// volumes, so they are there more often than elsewhere.
fn cut_off(
    chance: &mut dyn Chance,
    power: Option<PowerShape>,
    network: Option<NetworkShape>,
) -> (Option<PowerShape>, Option<NetworkShape>) {
    let c = Choice::Unattached;
    let more = chance.one_in(c, 2);
    let more = more.then(|| {
        let (gives_back, reports) = (chance.one_in(c, 2), chance.one_in(c, 2));
        PowerShape { gives_back, reports, leaves_power: leaves_power(chance) }
    });
    let by_network = chance.one_in(c, 2);
    let by_network = by_network.then(|| NetworkShape { is_behind_nat: chance.one_in(c, 2) });
    (power.or(more), network.or(by_network))
}

/// Nothing keeps the next pod of a ReplicaSet off a volume that is not attached while the last one ends, whoever asked for its end: that
/// second writer is Kubernetes' own. Only those whose next pod waits have such a volume here, if one may write to it.
fn end_before_the_next(workloads: &mut [Workload], volumes: &BTreeMap<String, VolumeShape>, unattached: &[String]) {
    let is_alone = |name: &String| volumes.get(name).is_some_and(|it| !it.shared && unattached.contains(&it.driver));
    for workload in workloads.iter_mut().filter(|it| it.owner == Owner::ReplicaSet) {
        if workload.volumes.iter().any(is_alone) {
            workload.owner = Owner::StatefulSet;
        }
    }
}

/// Its NetworkFenceClass names a cluster of the storage, or none; and its volumes do as the class does, or are of another one.
fn attaching_nothing(chance: &mut dyn Chance, shape: Shape, driver: &str) -> Shape {
    let c = Choice::Unattached;
    let of_class = (!chance.one_in(c, 4)).then(|| "east".to_owned());
    let volumes = shape.volumes.iter().filter(|(_, volume)| volume.driver == driver).map(|(name, _)| name.clone());
    let of_another: Vec<_> = volumes.filter(|_| chance.one_in(c, 3)).collect();
    let shape = shape.attaching_nothing(driver, Clusters { of_volumes: of_class.clone(), of_class });
    of_another.iter().fold(shape, |shape, volume| shape.in_cluster(volume, "west"))
}

fn driver(chance: &mut dyn Chance, name: &str) -> Driver {
    let c = Choice::Shape;
    Driver {
        name: name.into(),
        has_sidecar: !chance.one_in(c, 20),
        lists: !chance.one_in(c, 12),
        tells_io: chance.one_in(c, 3),
        latency: one_of(chance, &[50, 50, 5, 400, 2000, 8000]),
    }
}

/// The node plugin of a driver, on the node where most workloads are.
pub(crate) fn node_plugin(driver: &str) -> Workload {
    Workload {
        name: plugin(driver),
        owner: Owner::Plugin,
        volumes: Vec::new(),
        placement: Placement::Named(0),
        home: 0,
        priority: 2000,
        is_protected: false,
    }
}

/// A single-writer volume belongs to one workload, as a claim does; a shared one to several.
fn workloads(chance: &mut dyn Chance, volumes: &BTreeMap<String, VolumeShape>, nodes: usize) -> Vec<Workload> {
    let c = Choice::Shape;
    let mut workloads = Vec::new();
    let mut free: Vec<&String> = volumes.iter().filter(|(_, it)| !it.shared).map(|(name, _)| name).collect();
    let shared: Vec<&String> = volumes.iter().filter(|(_, it)| it.shared).map(|(name, _)| name).collect();
    let count = chance.between(c, 2, 4);
    for index in 0..count {
        let mut of = Vec::new();
        for _ in 0..chance.between(c, 0, 1) + u64::from(index == 0 || shared.is_empty()) {
            of.extend(free.pop().cloned());
        }
        if !shared.is_empty() && (of.is_empty() || chance.one_in(c, 3)) {
            of.push(one_of(chance, &shared).clone());
        }
        let owner = one_of(chance, &[Owner::StatefulSet, Owner::StatefulSet, Owner::ReplicaSet, Owner::Job]);
        let placement = match chance.pick(c, 12) {
            1 => Placement::ToleratesAll,
            2 => Placement::Named(0),
            _ => Placement::Scheduled,
        };
        workloads.push(Workload {
            name: format!("w{index}"),
            owner,
            volumes: of,
            placement,
            home: if placement == Placement::Scheduled && chance.one_in(c, 3) { 1 + index as usize } else { 0 } % nodes,
            priority: chance.between(c, 0, 3) as i32 * 100,
            is_protected: !chance.one_in(c, 8),
        });
    }
    if chance.one_in(c, 2) {
        workloads.push(Workload {
            name: "agent".into(),
            owner: Owner::DaemonSet,
            volumes: Vec::new(),
            placement: Placement::Named(0),
            home: 0,
            priority: 1000,
            is_protected: false,
        });
    }
    workloads
}

fn policies(chance: &mut dyn Chance, workloads: &[Workload], fencers: Fencers) -> Vec<ResiliencyPolicy> {
    let c = Choice::Shape;
    let protected: Vec<&str> = workloads.iter().filter(|it| it.is_protected).map(|it| it.name.as_str()).collect();
    if protected.is_empty() {
        return vec![policy("all", &["nobody"], &spec(chance, fencers))];
    }
    let mut policies = vec![policy("all", &protected, &spec(chance, fencers))];
    if chance.one_in(c, 4) {
        policies.push(policy("more", &[one_of(chance, &protected)], &spec(chance, fencers)));
    }
    policies
}

/// Who can cut nodes off: sidecars of drivers, who does so as a whole, and csi-addons.
type Fencers<'a> = (&'a [Driver], Option<PowerShape>, Option<NetworkShape>);

fn external() -> Value {
    json!({ "type": "External", "external": { "fencerName": POWER } })
}

/// The spec of a policy, selector aside.
pub(crate) fn spec(chance: &mut dyn Chance, (drivers, power, network): Fencers) -> Value {
    let c = Choice::Shape;
    let external = external();
    let unpublish = json!({ "type": "Unpublish" });
    // Who leaves nodes their power proves no more.
    let most = if power.is_some_and(|power| power.leaves_power) { "Verified" } else { "PowerOff" };
    let mut fencing = match chance.pick(c, 8) {
        _ if power.is_some() && !chance.one_in(c, 4) => match chance.pick(c, 4) {
            1 => json!({ "minimumProof": most, "methods": [external] }),
            2 => json!({ "minimumProof": "Verified", "methods": [external, unpublish] }),
            3 => json!({ "minimumProof": "Verified", "methods": [unpublish], "drivers": [
                { "name": one_of(chance, drivers).name, "minimumProof": most, "methods": [external] },
            ] }),
            _ => json!({ "minimumProof": "Verified", "methods": [unpublish, external] }),
        },
        1 | 2 => json!({ "minimumProof": "Acknowledged" }),
        3 => json!({ "minimumProof": "None", "acknowledgeRisk": "DoubleWriters" }),
        4 => json!({ "minimumProof": "Acknowledged", "methods": [{ "type": "Detach" }, { "type": "Unpublish" }] }),
        5 => json!({ "minimumProof": "Verified", "drivers": [
            { "name": one_of(chance, drivers).name, "minimumProof": "Acknowledged", "methods": [{ "type": "Unpublish" }] },
        ] }),
        _ => json!({ "minimumProof": "Verified" }),
    };
    if network.is_some() {
        fencing = shut_out(chance, drivers, power.is_some());
    }
    // A call that can never end in time proves nothing for ever: that is no fault.
    let slow = drivers.iter().any(|driver| driver.latency > 1000);
    fencing["callTimeout"] = json!(one_of(chance, if slow { &["30s"] } else { &["30s", "30s", "5s", "2s"] }));
    let volume_taints: &[&str] = one_of(chance, &[&["VolumeNotUsable"], &["VolumeNotUsable"], &[]]);
    json!({
        "triggers": {
            "volumeTaints": volume_taints,
            "driverPluginDown": one_of(chance, &["TaintNode", "Ignore"]),
            "crashLoop": { "maxDeletes": one_of(chance, &[1, 2, 3]), "window": one_of(chance, &["60s", "5m", "1h"]) },
        },
        "detection": {
            "kubelet": { "decisiveAfter": one_of(chance, &["0s", "0s", "0s", "4s"]) },
            "storage": {
                "ioInProgressCheck": one_of(chance, &["Enabled", "Enabled", "Disabled"]),
                "whenIOInProgress": one_of(chance, &["VetoUnlessNodeFailed", "VetoUnlessNodeFailed", "Veto"]),
            },
        },
        "fencing": fencing,
        "limits": {
            "maxNodes": one_of(chance, &[1, 1, 2]), "cooldown": one_of(chance, &["60s", "60s", "0s"]),
            "window": one_of(chance, &["120s", "60s", "0s"]),
        },
        "release": { "detach": one_of(chance, &["Automatic", "Automatic", "VolumeAttachments"]) },
    })
}

/// How nodes are cut off from storages that give access by their network only. What a driver says of an unpublish is not so there,
/// and a policy that believes it, or wants no proof, lets a second writer in.
fn shut_out(chance: &mut dyn Chance, drivers: &[Driver], has_power: bool) -> Value {
    let by_driver = drivers.iter().map(|driver| {
        let fence = json!({ "type": "NetworkFence", "networkFence": { "className": fence_class(&driver.name) } });
        let order = if has_power { chance.pick(Choice::Network, 3) } else { 0 };
        let methods = match order {
            1 => vec![fence, external()],
            2 => vec![external(), fence],
            _ => vec![fence],
        };
        json!({ "name": driver.name, "minimumProof": "Acknowledged", "methods": methods })
    });
    let by_driver: Vec<_> = by_driver.collect();
    json!({ "drivers": by_driver })
}
