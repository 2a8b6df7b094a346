//! The demo on real nodes: a database in a container goes on writing after its node lost the control link. Its failure with
//! Bulkhead; and, to compare, without, and with a person who sets the out-of-service taint by hand, on an array that revokes
//! access and on one that says OK and does nothing.

mod scene;
mod table;

use std::path::Path;
use std::time::Duration;

use bulkhead_testbed::TestbedOptions;
use bulkhead_testbed::array::{Effect, Fault as ArrayFault, FaultId, Method};
use bulkhead_testbed::cluster::real::{RealCluster, RealClusterOptions};
use bulkhead_testbed::real_nodes::RealNodeOptions;

use self::scene::{Outcome, Scene};
use super::Options;
use crate::Result;
use crate::programs::{self, Profile};

/// Longest time for a failover, from the taint on. It takes seconds; a machine may be busy.
pub(super) const FAILOVER: Duration = Duration::from_secs(120);
/// How long Bulkhead is watched while it holds: long enough to see that it goes on holding.
const HOLDS: Duration = Duration::from_secs(60);

/// Who acts on the failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Actor {
    /// Bulkhead.
    Bulkhead,
    /// A person, who sets the out-of-service taint so long after the node became unreachable. Until then nobody.
    Person(Duration),
}

/// What the array does when it is asked to take a node's access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Array {
    /// It takes it.
    Revokes,
    /// It says OK and takes nothing. What it lists is true.
    SaysOk,
}

/// Shows it all.
pub(super) async fn run(root: &Path, options: &Options) -> Result<()> {
    println!("Real nodes: kubelets, containerd and containers in namespaces of their own on this machine.");
    println!("Preparing: our programs and upstream's (built once, then cached), and images of them.");
    let programs = programs::build(root, Profile::Dev)?;
    let with = with_bulkhead(root, &programs, options).await?;
    let without = if options.compare { without_bulkhead(&programs, options).await? } else { Vec::new() };
    let all: Vec<Outcome> = with.into_iter().chain(without).collect();
    table::print(&all, options);
    table::judge(&all)
}

async fn with_bulkhead(root: &Path, programs: &Path, options: &Options) -> Result<Vec<Outcome>> {
    println!(
        "Starting: control plane, 3 nodes, the array and its CSI driver, and Bulkhead from the shipped manifests."
    );
    let cluster = RealCluster::start(cluster_options(programs, options, true)).await?;
    cluster.testbed.apply_file(&root.join("config/samples/resiliencypolicy-first.yaml")).await?;
    let mut outcomes = vec![incident(&cluster, "db", Actor::Bulkhead, Array::Revokes, FAILOVER).await?];
    if options.compare {
        outcomes.push(incident(&cluster, "lied-to", Actor::Bulkhead, Array::SaysOk, HOLDS).await?);
    }
    Ok(outcomes)
}

async fn without_bulkhead(programs: &Path, options: &Options) -> Result<Vec<Outcome>> {
    println!("\nStarting the same cluster without Bulkhead.");
    let cluster = RealCluster::start(cluster_options(programs, options, false)).await?;
    let person = Actor::Person(options.person_after.get());
    let limit = options.person_after.get() + FAILOVER;
    Ok(vec![
        incident(&cluster, "db", person, Array::Revokes, limit).await?,
        incident(&cluster, "lied-to", person, Array::SaysOk, limit).await?,
    ])
}

/// One failure from beginning to end: everything is whole again afterwards.
async fn incident(cluster: &RealCluster, name: &str, actor: Actor, array: Array, limit: Duration) -> Result<Outcome> {
    let scene = Scene::set_up(cluster, name, actor, array).await?;
    let lie = lie(cluster, array, scene.volume());
    let outcome = scene.play(limit).await?;
    if let Some(lie) = lie {
        cluster.array.faults().remove(lie);
    }
    scene.recover(outcome).await
}

fn lie(cluster: &RealCluster, array: Array, volume: &str) -> Option<FaultId> {
    let nothing = ArrayFault::on(Method::ControllerUnpublishVolume, Effect::DoNothing).volume(volume);
    (array == Array::SaysOk).then(|| cluster.array.faults().add(nothing))
}

fn cluster_options(programs: &Path, options: &Options, operator: bool) -> RealClusterOptions {
    let grace = options.grace.get();
    let usual = grace >= RealNodeOptions::default().lease_duration;
    let (testbed, node) = if usual {
        (TestbedOptions::default(), RealNodeOptions::default())
    } else {
        (TestbedOptions::fast_nodes(), RealNodeOptions::fast())
    };
    RealClusterOptions {
        testbed: TestbedOptions { node_monitor_grace_period: grace, ..testbed },
        node,
        operator,
        ..RealClusterOptions::new(programs)
    }
}
