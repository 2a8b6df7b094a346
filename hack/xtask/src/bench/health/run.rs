//! One run of `bench health`: a new cluster, then one measure after the other. What is measured stands in `phases`.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use bulkhead::api::volume_health_policy::VolumeHealthPolicy;
use bulkhead_testbed::Identity;
use bulkhead_testbed::process::Process;
use kube::Api;

use crate::Result;

use super::super::measured::Measured;
use super::super::watched::{self, QUIET, Writes};
use super::Options;
use super::agents::Agents;
use super::local::{self, LocalNode};
use super::verdicts::Verdicts;
use super::world::{AGENT, Layout, World};

/// The time by which anything must be done. How long it took is measured; a loaded machine must not end a run.
pub const LIMIT: Duration = Duration::from_secs(900);

/// A cluster that is being measured.
pub struct Run<'a> {
    /// What was asked for.
    pub options: &'a Options,
    /// Which volume is where.
    pub layout: Layout,
    /// What the API says.
    pub verdicts: Verdicts,
    /// The agents of all nodes but this machine.
    pub agents: Agents,
    controller: Option<Process>,
    /// This machine as a node, and its agent.
    pub local: Option<(LocalNode, Process)>,
    /// Volumes of the simulated nodes that are broken now.
    pub broken: BTreeSet<usize>,
    /// The numbers so far.
    pub measured: Measured,
    /// The cluster.
    pub world: World,
    started: Instant,
}

/// One run.
pub async fn run(root: &Path, programs: &Path, options: &Options) -> Result<Measured> {
    let mut run = Run::start(root, programs, options).await?;
    match run.measure().await {
        Ok(()) => Ok(run.measured),
        Err(error) => {
            let programs = [run.controller.as_ref(), run.local.as_ref().map(|(_, agent)| agent)];
            let logs: String = programs.into_iter().flatten().map(Process::log_tail).collect();
            Err(format!("{error}\nthe last output of controller and agent:\n{logs}").into())
        }
    }
}

impl<'a> Run<'a> {
    /// Sets the cluster up and starts the controller, which finds everything there but its own objects.
    async fn start(root: &Path, programs: &Path, options: &'a Options) -> Result<Self> {
        let started = Instant::now();
        let layout = Layout { volumes: options.volumes, nodes: options.nodes };
        let world = World::start(root, programs, layout).await?;
        let mut verdicts = Verdicts::watch(world.admin.clone());
        let mut node = None;
        if options.local > 0 {
            node = Some(LocalNode::new(&world, options.local).await?);
            verdicts.watch_report(local::NODE);
        }
        world.nodes_ready(options.nodes + usize::from(node.is_some())).await?;
        let place = |number| {
            let name = Layout::volume(number);
            let path = format!("/mnt/disks/{name}");
            (name, Layout::node(layout.node_of(number)), path)
        };
        world.add_volumes(layout.all().map(place).collect()).await?;
        let all = options.volumes + options.local;
        verdicts.until_count("all claims are bound", all, LIMIT, |verdict| verdict.bound.on).await?;
        say(started, &format!("{} nodes are Ready, {all} volumes are bound", options.nodes));

        let agents = Agents::new(world.admin.clone(), layout, world.nodes.clone());
        let (broken, measured) = (BTreeSet::new(), Measured::default());
        let mut run =
            Self { options, layout, verdicts, agents, controller: None, local: None, broken, measured, world, started };
        let from = run.start_controller().await?;
        run.verdicts.until_count("every volume has a VolumeHealth", all, LIMIT, |verdict| verdict.watched.on).await?;
        run.measured.note("cold-start/all-created", "s", from.elapsed().as_secs_f64());
        if let Some(node) = node {
            let agent = node.start_agent(&run.world).await?;
            run.local = Some((node, agent));
        }
        Ok(run)
    }

    /// Waits until neither the controller nor the real agent has anything to write any more.
    pub async fn quiet(&self) -> Result<()> {
        let audit = self.world.testbed.audit();
        let deadline = Instant::now() + LIMIT;
        loop {
            let end = audit.end()?;
            tokio::time::sleep(QUIET).await;
            let writes = [controller_user(), agent_user()].map(|user| Writes::since(&audit, end, &user));
            let [controller, agent] = writes;
            let (controller, agent) = (controller?, agent?);
            let counted = self.is_counted().await?;
            if controller.all() + agent.all() == 0 && counted {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "there is no rest: in the last {QUIET:?} the controller wrote {controller}, the agent {agent}; the \
                     policy {} what there is",
                    if counted { "counts" } else { "does not count" }
                )
                .into());
            }
        }
    }

    /// Whether the policy has counted what there is: it does so at most once a minute, so another write is due until then.
    async fn is_counted(&self) -> Result<bool> {
        let policies: Api<VolumeHealthPolicy> = Api::all(self.world.admin.clone());
        let status = policies.get("default").await?.status.unwrap_or_default();
        // Where nobody counts there is nothing to wait for.
        let is = |counted: Option<u32>, count: usize| counted.is_none_or(|it| usize::try_from(it) == Ok(count));
        let volumes = self.options.volumes + self.options.local;
        Ok(is(status.volumes, volumes) && is(status.unhealthy, self.broken.len()))
    }

    /// Ends the controller in order, as one that is replaced.
    pub async fn stop_controller(&mut self) {
        if let Some(controller) = self.controller.take() {
            controller.stop().await;
        }
    }

    /// Starts the controller and waits until it is ready. Returns when it was started.
    pub async fn start_controller(&mut self) -> Result<Instant> {
        let from = Instant::now();
        let kubeconfig = self.world.testbed.kubeconfig(&Identity::OperatorController)?;
        let controller = self.controller.insert(self.world.launch("bulkhead-controller", &kubeconfig, &[])?);
        watched::ready(controller, LIMIT).await?;
        Ok(from)
    }

    /// Our controller.
    pub fn controller(&self) -> Result<&Process> {
        Ok(self.controller.as_ref().ok_or("the controller does not run")?)
    }

    /// Tells how far it is.
    pub fn say(&self, what: &str) {
        say(self.started, what);
    }
}

fn say(started: Instant, what: &str) {
    println!("{:>7.1} s  {what}", started.elapsed().as_secs_f64());
}

/// The user that the controller is.
pub fn controller_user() -> String {
    Identity::OperatorController.user()
}

/// The user that the real agent is. The others impersonate it, and stand in the audit log as who they are.
pub fn agent_user() -> String {
    format!("system:serviceaccount:{AGENT}:{AGENT}")
}
