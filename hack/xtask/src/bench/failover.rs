//! One run of `bench failover`: a new cluster, all pods on the nodes that will die, room for them elsewhere, the kill, and
//! the stamps.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_testbed::array::{Array, Effect, Fault, Method};
use bulkhead_testbed::cluster::{Cluster, ClusterError, ClusterOptions, Workload};
use bulkhead_testbed::ledger::{Event, Stamp};
use bulkhead_testbed::nodes::NodeOptions;
use bulkhead_testbed::process::Process;
use bulkhead_testbed::{AttacherOptions, TestbedOptions, usage};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use serde_json::json;

use crate::Result;
use crate::incident::{self, ApiSide, Held, Moment, seconds};

use super::{Options, timeline};

/// Longest time for nodes to be usable, and for each pod to be placed, without the attacher's part.
const SETUP: Duration = Duration::from_secs(120);
/// The writers must not take the processor away from what is measured.
const WRITE_EVERY: Duration = Duration::from_millis(250);
/// How often it is looked whether a run is over.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How much fails.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Nodes that die.
    pub nodes: usize,
    /// Pods on each.
    pub pods: usize,
    /// Volumes of each pod.
    pub volumes: usize,
}

impl Size {
    /// Volumes of all pods.
    pub fn all_volumes(self) -> usize {
        self.nodes * self.pods * self.volumes
    }

    /// API writes that the operator may need: 2 per pod, 1 per further volume of a pod, 20 per node.
    pub fn write_budget(self) -> f64 {
        let per_pod = 2 + (self.volumes - 1);
        (self.nodes * (self.pods * per_pod + 20)) as f64
    }

    /// API reads that it may need: 1 per volume (its secret), and 150 per node, however many pods: a look at the whole node is 6,
    /// and each step takes one. podmon makes about 4 requests per volume and 6 per pod, reads and writes together.
    pub fn read_budget(self) -> f64 {
        (self.all_volumes() + self.nodes * 150) as f64
    }
}

/// The result of a run; times in seconds from the taint `unreachable:NoSchedule`, the slowest node's.
#[derive(Clone, Debug)]
pub struct Measured {
    pub first_pod: f64,
    pub all_pods: f64,
    /// All pods gone, and every attachment gone or marked deleted: the rest is the attacher's work.
    pub handed_over: f64,
    pub detached: f64,
    /// The first write of the last replacement.
    pub running: f64,
    /// API writes by controller and sidecar, without Events and leader Leases.
    pub writes: f64,
    /// API reads by both, without watches and leader Leases.
    pub reads: f64,
    pub events: f64,
    /// Peak memory in MiB and processor time in seconds from the kill on.
    pub controller: (f64, f64),
    pub sidecar: (f64, f64),
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "first pod gone {:.3} s, all pods {:.3} s, handed over {:.3} s, attachments gone {:.3} s, replacements running \
             {:.3} s; {} API writes, {} reads, {} Events",
            self.first_pod,
            self.all_pods,
            self.handed_over,
            self.detached,
            self.running,
            self.writes,
            self.reads,
            self.events
        )
    }
}

/// What one node was and did.
struct Victim {
    name: String,
    csi_node: String,
    held: Held,
    pods: BTreeSet<String>,
    /// CSI handles of volumes whose fence hangs. They are not among those that the node is measured by.
    hanging: Vec<String>,
}

/// One run.
pub async fn run(programs: &Path, options: &Options, size: Size) -> Result<Measured> {
    let cluster = Cluster::start(cluster_options(programs, options, size)).await?;
    cluster.testbed.apply(vec![policy()?]).await?;
    let victims = place(&cluster, options, size).await?;
    let latency = Effect::Latency(options.fence_latency.get());
    let array = cluster.arrays.first().ok_or("the cluster has no array")?;
    array.faults().add(Fault::on(Method::ControllerUnpublishVolume, latency));
    for volume in victims.iter().flat_map(|victim| &victim.hanging) {
        array.faults().add(Fault::on(Method::ControllerUnpublishVolume, Effect::Hang).volume(volume));
    }
    let programs = || [cluster.controllers.first(), cluster.sidecars.values().next()];
    let before = programs().map(used);
    let killed = array.ledger().now();
    let nodes: Vec<_> = victims.iter().map(|victim| cluster.node(&victim.name)).collect::<Result<_, _>>()?;
    join_all(nodes.iter().map(|node| node.kill())).await;
    if let Err(error) = over(&cluster, &victims, killed, super::deadline(options, size)).await {
        let logs: String = programs().into_iter().flatten().map(Process::log_tail).collect();
        return Err(format!("{error}\nthe operator's last output:\n{logs}").into());
    }
    cluster.judge()?;
    let after = programs().map(used);
    let spent = |index: usize| {
        let at = |list: &[usage::Usage; 2]| list.get(index).copied().unwrap_or_default();
        let (before, after) = (at(&before), at(&after));
        let processor = after.processor.saturating_sub(before.processor);
        (after.peak_memory as f64 / f64::from(1 << 20), processor.as_secs_f64())
    };
    let measured = measure(&cluster, &victims, killed, spent(0), spent(1))?;
    if options.timeline {
        let [before, after] = timeline::of_run(&cluster, first_taint(&cluster, &victims)?, measured.handed_over)?;
        println!("until the hand-over\n{before}\nafter it\n{after}");
    }
    Ok(measured)
}

/// The nodes that will die are alone and exactly full; those with room for the replacements come after the pods run.
async fn place(cluster: &Cluster, options: &Options, size: Size) -> Result<Vec<Victim>> {
    let set = Workload { replicas: size.nodes * size.pods, volumes: vec![0; size.volumes], ..Workload::new("bench") };
    cluster.stateful_set(&set).await?;
    let placed = cluster.pods_ready(&set, SETUP + super::deadline(options, size)).await?;
    let healthy: Vec<_> = (1..=size.nodes + 1).map(|number| format!("healthy-{number}")).collect();
    for name in &healthy {
        cluster.nodes.add(name).await?;
    }
    for name in &healthy {
        usable(cluster, name).await?;
    }
    let hanging: BTreeMap<String, Vec<String>> = (0..options.hanging)
        .map(|replica| {
            let handles = (0..size.volumes).map(|volume| set.handle(replica, volume)).collect();
            (format!("{}-{replica}", set.name), handles)
        })
        .collect();
    let mut victims = Vec::new();
    for name in placed.values().collect::<BTreeSet<_>>() {
        let (stay, pods): (BTreeSet<_>, BTreeSet<_>) = placed
            .iter()
            .filter(|(_, on)| *on == name)
            .map(|(pod, _)| pod.clone())
            .partition(|pod| hanging.contains_key(pod));
        let hanging: Vec<_> = stay.iter().filter_map(|pod| hanging.get(pod)).flatten().cloned().collect();
        let held = incident::held_by(&cluster.client, name).await?.without(&hanging);
        let csi_node = cluster.node(name)?.csi_node_id().to_owned();
        victims.push(Victim { name: name.clone(), csi_node, held, pods, hanging });
    }
    Ok(victims)
}

async fn usable(cluster: &Cluster, name: &str) -> Result<(), ClusterError> {
    let api: Api<Node> = Api::all(cluster.client.clone());
    let what = format!("node {name} takes pods");
    let look = async || {
        let spec = api.get_opt(name).await?.and_then(|node| node.spec);
        let taints = spec.and_then(|spec| spec.taints).unwrap_or_default();
        Ok(if taints.is_empty() { Ok(()) } else { Err(format!("{taints:?}")) })
    };
    cluster.wait(&what, SETUP, look).await
}

/// Waits until the dead nodes hold no attachment and every volume is written to from elsewhere.
async fn over(cluster: &Cluster, victims: &[Victim], killed: Stamp, limit: Duration) -> Result<(), ClusterError> {
    let dead: BTreeSet<&str> = victims.iter().map(|victim| victim.csi_node.as_str()).collect();
    let volumes: usize = victims.iter().map(|victim| victim.held.volumes.len()).sum();
    let deadline = tokio::time::Instant::now() + limit;
    loop {
        let running: BTreeMap<_, _> =
            cluster.arrays.iter().flat_map(|array| written_elsewhere(array, &dead, killed)).collect();
        let mut attached = usize::MAX;
        // The ledger costs the cluster nothing; the API server is asked when that says that all is done.
        if running.len() >= volumes {
            attached = 0;
            for victim in victims {
                attached +=
                    incident::held_by(&cluster.client, &victim.name).await?.without(&victim.hanging).attachments.len();
            }
        }
        if attached == 0 {
            return Ok(());
        }
        if tokio::time::Instant::now() >= deadline {
            let last = format!("{} of {volumes} volumes are written to elsewhere", running.len());
            return Err(ClusterError::Timeout { what: "all pods failed over".to_owned(), limit, last });
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The first write to each volume from a node that is not dead. The array waits meanwhile, and a storm writes some million entries.
fn written_elsewhere(array: &Array, dead: &BTreeSet<&str>, killed: Stamp) -> BTreeMap<Arc<str>, Stamp> {
    array.ledger().read(|entries| {
        let later = entries.iter().rev().take_while(|entry| entry.at > killed);
        let elsewhere =
            later.filter(|entry| matches!(entry.event, Event::Wrote { .. }) && !dead.contains(&*entry.node));
        // From the last to the first, which stays.
        elsewhere.map(|entry| (entry.volume.clone(), entry.at)).collect()
    })
}

fn measure(
    cluster: &Cluster,
    victims: &[Victim],
    killed: Stamp,
    controller: (f64, f64),
    sidecar: (f64, f64),
) -> Result<Measured> {
    let array = cluster.arrays.first().ok_or("the cluster has no array")?;
    let dead: BTreeSet<&str> = victims.iter().map(|victim| victim.csi_node.as_str()).collect();
    let written = written_elsewhere(array, &dead, killed);
    let zero = 0.0_f64;
    let mut all = Measured {
        first_pod: zero,
        all_pods: zero,
        handed_over: zero,
        detached: zero,
        running: zero,
        writes: zero,
        reads: zero,
        events: zero,
        controller,
        sidecar,
    };
    for victim in victims {
        let side = incident::api_side(&cluster.testbed.audit(), &victim.name, &victim.held.attachments)?;
        let from = side.unreachable.ok_or("the audit log has no taint unreachable:NoSchedule")?;
        let gone = pods_gone(&side, victim)?;
        let since = |at: Option<&Moment>| at.map_or(f64::NAN, |at| seconds(from, *at));
        let pods = since(gone.values().max());
        let volumes = victim.held.volumes.iter();
        let first_writes: Option<Vec<_>> =
            volumes.map(|volume| written.get(volume.as_str()).map(|at| array.ledger().wall(*at))).collect();
        all.first_pod = all.first_pod.max(since(gone.values().min()));
        all.all_pods = all.all_pods.max(pods);
        all.handed_over = all.handed_over.max(pods).max(since(side.handed_over.values().max()));
        all.detached = all.detached.max(since(side.detached.values().max()));
        all.running = all.running.max(since(first_writes.unwrap_or_default().iter().max()));
        // The node that was tainted first saw all of them.
        all.writes = all.writes.max((side.writes.controller + side.writes.sidecar) as f64);
        all.reads = all.reads.max(side.reads as f64);
        all.events = all.events.max(side.writes.events as f64);
    }
    Ok(all)
}

/// When the first of the nodes was called unreachable.
fn first_taint(cluster: &Cluster, victims: &[Victim]) -> Result<Moment> {
    let audit = cluster.testbed.audit();
    let taints = victims.iter().map(|victim| Ok(incident::api_side(&audit, &victim.name, &[])?.unreachable));
    let taints: Vec<_> = taints.collect::<Result<_>>()?;
    Ok(taints.into_iter().flatten().min().ok_or("the audit log has no taint unreachable:NoSchedule")?)
}

fn pods_gone(side: &ApiSide, victim: &Victim) -> Result<BTreeMap<String, Moment>> {
    let of_victim = side.pods_gone.iter().filter(|(pod, _)| victim.pods.contains(*pod));
    let gone: BTreeMap<_, _> = of_victim.map(|(pod, at)| (pod.clone(), *at)).collect();
    if gone.len() == victim.pods.len() {
        return Ok(gone);
    }
    Err(format!("the audit log has {} deletions of the {} pods of {}", gone.len(), victim.pods.len(), victim.name)
        .into())
}

fn used(process: Option<&Process>) -> usage::Usage {
    process.and_then(|process| usage::of(process).ok()).unwrap_or_default()
}

fn cluster_options(programs: &Path, options: &Options, size: Size) -> ClusterOptions {
    let testbed = TestbedOptions {
        node_monitor_grace_period: options.grace.get(),
        controller_manager_qps: options.kcm_qps,
        controller_manager_burst: options.kcm_burst,
        ..TestbedOptions::fast_nodes()
    };
    let attacher =
        AttacherOptions { qps: options.attacher_qps, burst: options.attacher_qps * 2, ..AttacherOptions::default() };
    let max_pods = u32::try_from(size.pods).unwrap_or(u32::MAX);
    ClusterOptions {
        testbed,
        attacher,
        nodes: size.nodes,
        node: NodeOptions { write_interval: WRITE_EVERY, max_pods, ..NodeOptions::default() },
        programs: Some(programs.to_owned()),
        ..ClusterOptions::default()
    }
}

/// The first policy with its brakes off: how many nodes fail is the question here, not whether that may be.
fn policy() -> Result<kube::api::DynamicObject> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "bulkhead.dev/v1alpha1",
        "kind": "ResiliencyPolicy",
        "metadata": { "name": "bench" },
        "spec": {
            "mode": "Enforce",
            "selector": { "podSelector": { "matchLabels": { "bulkhead.dev/protect": "true" } } },
            "limits": { "maxNodes": "100%", "ceiling": 5000, "maxUnhealthy": "100%" },
        },
    }))?)
}
