//! One run of `bench scale`: a new cluster, then one measure after the other.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use bulkhead::api::names;
use bulkhead::api::node_fence::{NodeFence, Plan, PodAction};
use bulkhead_testbed::Identity;
use bulkhead_testbed::process::Process;
use chrono::{SecondsFormat, Utc};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::Result;

use super::super::measured::{Measured, Times};
use super::super::watched::{self, Spell, Spent, Writes};
use super::Options;
use super::agents::Agents;
use super::objects::Layout;
use super::world::{LIMIT, World};

/// The goals of the project: MiB, percent of a processor, seconds.
const MEMORY: f64 = 150.0;
const IDLE: f64 = 2.0;
const ARMED: f64 = 10.0;
const HEARTBEATS: f64 = 5.0;
/// Nodes that fail, one after the other.
const FAILURES: usize = 3;
/// How long the node lifecycle controller hears nothing of a node before it gives it up, at least.
const GIVEN_UP: Duration = Duration::from_secs(40);
/// How long nodes may take to fail.
const LONGEST: Duration = Duration::from_secs(3600);
/// What a pass over the cluster is called in the metrics.
const PASS: &str = "queue=\"resiliency_policy\"";

/// A cluster that is being measured.
struct Run<'a> {
    options: &'a Options,
    layout: Layout,
    world: World,
    measured: Measured,
    started: Instant,
}

/// One run.
pub async fn run(root: &Path, programs: &Path, options: &Options) -> Result<Measured> {
    let started = Instant::now();
    let layout = Layout { nodes: options.nodes, pods: options.pods, attachments: options.attachments };
    let mut agents = Agents::new(options.nodes)?;
    let world = World::start(root, layout, &agents).await?;
    let mut run = Run { options, layout, world, measured: Measured::default(), started };
    run.say("the cluster is there");
    let mut controller = run.start(programs).await?;
    match run.measure(&mut controller, &mut agents).await {
        Ok(()) => Ok(run.measured),
        Err(error) => Err(format!("{error}\nthe controller's last output:\n{}", controller.log_tail()).into()),
    }
}

impl Run<'_> {
    /// Starts the controller among all that, and again when all of ours is there.
    async fn start(&mut self, programs: &Path) -> Result<Process> {
        let first = self.world.start_controller(programs).await?;
        self.leads().await?;
        self.quiet().await?;
        first.stop().await;
        let (from, spell) = (Instant::now(), Spell::of_start());
        let controller = self.world.start_controller(programs).await?;
        self.leads().await?;
        self.measured.hold("start/armed", "s", from.elapsed().as_secs_f64(), ARMED);
        let used = spell.end(&controller)?;
        self.measured.note("start/processor", "s", used.processor);
        self.measured.note("start/peak-memory", "MiB", used.peak);
        self.say("the controller is ready and leads");
        Ok(controller)
    }

    async fn measure(&mut self, controller: &mut Process, agents: &mut Agents) -> Result<()> {
        self.quiet().await?;
        let rest = self.rest(controller).await?;
        self.heartbeats(controller, agents, &rest).await?;
        // The others go on: who beats no more is lost, and that would be all.
        tokio::select! {
            beaten = agents.beat(FAILURES, LONGEST) => Err(format!("the nodes still fail after {LONGEST:?}: {beaten:?}").into()),
            failed = self.failures(controller) => failed,
        }
    }

    /// Nothing happens but that Leases are renewed.
    async fn rest(&mut self, controller: &Process) -> Result<Spent> {
        let (audit, before) = (self.world.testbed.audit(), passes(controller).await?);
        let (spell, end) = (Spell::begin(controller)?, audit.end()?);
        tokio::time::sleep(self.options.rest()).await;
        let (spent, written) = (spell.end(controller)?, Writes::since(&audit, end, &user())?);
        let (count, seconds) = passes(controller).await?;
        self.measured.hold("rest/memory", "MiB", spent.memory, MEMORY);
        self.measured.hold("rest/processor", "%", spent.share, IDLE);
        self.measured.hold("rest/writes", "", written.all() as f64, 0.0);
        self.measured.note("rest/passes", "", count - before.0);
        self.measured.note("rest/pass", "s", (seconds - before.1) / (count - before.0).max(1.0));
        self.say(&format!("at rest: {:.1} % of a core, {:.0} MiB, writes: {written}", spent.share, spent.memory));
        Ok(spent)
    }

    /// The same while all agents send heartbeats.
    async fn heartbeats(&mut self, controller: &Process, agents: &mut Agents, rest: &Spent) -> Result<()> {
        agents.learn(&self.world.admin).await?;
        let before = watched::metric(controller, "heartbeat_datagrams_total", "Accepted").await?;
        let spell = Spell::begin(controller)?;
        let sent = agents.beat(0, self.options.rest()).await?;
        let spent = spell.end(controller)?;
        let accepted = watched::metric(controller, "heartbeat_datagrams_total", "Accepted").await? - before;
        self.measured.note("heartbeats/accepted", "%", 100.0 * accepted / sent as f64);
        self.measured.hold("heartbeats/processor", "%", spent.share - rest.share, HEARTBEATS);
        self.measured.note("heartbeats/memory", "MiB", spent.memory);
        self.say(&format!("{accepted} of {sent} heartbeats were taken in, with {:.1} % of a core", spent.share));
        Ok(())
    }

    /// Nodes become unreachable, one after the other.
    async fn failures(&mut self, controller: &mut Process) -> Result<()> {
        let (mut decided, before) = (Times::default(), passes(controller).await?);
        let spell = Spell::begin(controller)?;
        (0..FAILURES).for_each(|node| self.world.silence(node));
        tokio::time::sleep(GIVEN_UP).await;
        for node in 0..FAILURES {
            let from = self.fail(node).await?;
            let plan = self.planned(controller, node).await?;
            decided.add(from.elapsed());
            releases(&plan, &self.layout.protected_on(node))
                .map_err(|wrong| format!("the plan of {}: {wrong}", Layout::node(node)))?;
        }
        let (count, seconds) = passes(controller).await?;
        let spent = spell.end(controller)?;
        self.measured.note("failure/planned", "s", decided.percentile(100));
        self.measured.note("failure/pass", "s", (seconds - before.1) / (count - before.0).max(1.0));
        self.measured.note("failure/peak-memory", "MiB", spent.peak);
        self.say("nodes have failed");
        Ok(())
    }

    /// What the node lifecycle controller does with a node that is silent. Returns when that was sent.
    async fn fail(&self, node: usize) -> Result<Instant> {
        let (api, name): (Api<Node>, _) = (Api::all(self.world.admin.clone()), Layout::node(node));
        let at = Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true);
        let ready = json!({ "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "",
                            "lastHeartbeatTime": at, "lastTransitionTime": at });
        let status = json!({ "status": { "conditions": [ready] } });
        api.patch_status(&name, &PatchParams::default(), &Patch::Strategic(status)).await?;
        let taint = json!({ "key": names::UNREACHABLE_TAINT, "effect": "NoSchedule", "timeAdded": at });
        let from = Instant::now();
        let patch = Patch::Merge(json!({ "spec": { "taints": [taint] } }));
        api.patch(&name, &PatchParams::default(), &patch).await?;
        Ok(from)
    }

    /// Waits until a node has a plan.
    async fn planned(&self, controller: &mut Process, node: usize) -> Result<Plan> {
        let (api, name): (Api<NodeFence>, _) = (Api::all(self.world.admin.clone()), Layout::node(node));
        let deadline = Instant::now() + LIMIT;
        loop {
            controller.ensure_running()?;
            if let Some(fence) = api.get_opt(&name).await? {
                return Ok(fence.spec.plan);
            }
            if Instant::now() > deadline {
                return Err(format!("{name} has no NodeFence after {LIMIT:?}").into());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until our controller leads.
    async fn leads(&self) -> Result<()> {
        let api: Api<Lease> = Api::namespaced(self.world.admin.clone(), names::OPERATOR_NAMESPACE);
        let deadline = Instant::now() + LIMIT;
        loop {
            let lease = api.get_opt("bulkhead-controller").await?.and_then(|lease| lease.spec);
            if lease.and_then(|spec| spec.holder_identity).is_some_and(|holder| !holder.is_empty()) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err("the controller does not lead".into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until the controller has nothing to write any more.
    async fn quiet(&self) -> Result<()> {
        watched::quiet(&self.world.testbed.audit(), &user(), LIMIT).await
    }

    fn say(&self, what: &str) {
        println!("{:>7.1} s  {what}", self.started.elapsed().as_secs_f64());
    }
}

/// Whether a plan releases exactly the protected pods. It has a row for every pod of the node: those that no policy selects
/// are kept, and the row says so.
fn releases(plan: &Plan, protected: &BTreeSet<(String, String)>) -> Result<(), String> {
    let released: BTreeSet<_> = plan
        .pods
        .iter()
        .filter(|row| row.action == PodAction::Release)
        .map(|row| (row.namespace.clone(), row.name.clone()))
        .collect();
    if released == *protected {
        return Ok(());
    }
    let only = |these: &BTreeSet<(String, String)>, those: &BTreeSet<(String, String)>| {
        let names = these.difference(those).map(|(namespace, name)| format!("{namespace}/{name}"));
        names.collect::<Vec<_>>().join(", ")
    };
    Err(format!(
        "released and not protected: [{}]; protected and not released: [{}]",
        only(&released, protected),
        only(protected, &released)
    ))
}

/// How many passes over the cluster there were, and how long all of them took.
async fn passes(controller: &Process) -> Result<(f64, f64)> {
    let count = watched::metric(controller, "reconcile_seconds_count", PASS).await?;
    Ok((count, watched::metric(controller, "reconcile_seconds_sum", PASS).await?))
}

fn user() -> String {
    Identity::OperatorController.user()
}
