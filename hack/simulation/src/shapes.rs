//! Shapes by chance.

use std::collections::BTreeMap;

use bulkhead::api::resiliency_policy::ResiliencyPolicy;
use serde_json::{Value, json};

use crate::chance::{Chance, Choice};
use crate::oracle::programs::plugin;
use crate::others::POWER;
use crate::shape::{Driver, Owner, Placement, PowerShape, Shape, VolumeShape, Workload, one_of, policy};

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
        PowerShape { gives_back, reports }
    });
    let policies = policies(chance, &workloads, (&drivers, power));
    let mut shape = Shape::new(nodes, drivers, volumes, workloads, policies);
    // Who tolerates every taint is kept off a failed node by admission alone (docs/safety.md): a program that fails elsewhere
    // would be put back there, beside its own zombie.
    let is_lawless = chance.one_in(c, 6);
    shape.admission_missing = is_lawless && shape.workloads.iter().all(|it| it.placement != Placement::ToleratesAll);
    shape.beats = chance.one_in(c, 3);
    shape.power = power;
    shape
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

/// Who can cut nodes off: sidecars of drivers, and whoever switches nodes off.
type Fencers<'a> = (&'a [Driver], Option<PowerShape>);

/// The spec of a policy, selector aside.
pub(crate) fn spec(chance: &mut dyn Chance, (drivers, power): Fencers) -> Value {
    let c = Choice::Shape;
    let external = json!({ "type": "External", "external": { "fencerName": POWER } });
    let unpublish = json!({ "type": "Unpublish" });
    let mut fencing = match chance.pick(c, 8) {
        _ if power.is_some() && !chance.one_in(c, 4) => match chance.pick(c, 4) {
            1 => json!({ "minimumProof": "PowerOff", "methods": [external] }),
            2 => json!({ "minimumProof": "Verified", "methods": [external, unpublish] }),
            3 => json!({ "minimumProof": "Verified", "methods": [unpublish], "drivers": [
                { "name": one_of(chance, drivers).name, "minimumProof": "PowerOff", "methods": [external] },
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
