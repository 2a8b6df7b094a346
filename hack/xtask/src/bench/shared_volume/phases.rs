//! What is measured, in order.

use std::path::Path;
use std::time::Instant;

use bulkhead_testbed::Identity;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::Result;

use super::super::measured::{Measured, Times};
use super::super::watched::{self, Spell, Writes};
use super::Options;
use super::seen::Seen;
use super::world::{LIMIT, NAMESPACE, World};

/// The goals of the project, in seconds.
const SWITCH_P50: f64 = 0.050;
const SWITCH_P99: f64 = 0.250;
const ALL_AT_ONCE: f64 = 3.0;
const COLD: f64 = 10.0;
const BACK: f64 = 1.0;
/// A port that no server has.
const NOBODY: i32 = 1;
/// Writes of a switch but for the status: the slice; with v1 Endpoints those, and the targetPort of the Service.
const WRITES: f64 = 1.0;
const WRITES_WITH_ENDPOINTS: f64 = 3.0;

/// A cluster that is being measured.
pub struct Run<'a> {
    options: &'a Options,
    world: World,
    seen: Seen,
    measured: Measured,
    started: Instant,
}

impl<'a> Run<'a> {
    /// One run.
    pub async fn run(programs: &Path, options: &'a Options) -> Result<Measured> {
        let started = Instant::now();
        let world = World::start(programs).await?;
        let seen = Seen::watch(&world.admin);
        let mut run = Self { options, world, seen, measured: Measured::default(), started };
        match run.measure().await {
            Ok(()) => Ok(run.measured),
            Err(error) => {
                let log = run.world.controller.log_tail();
                Err(format!("{error}\nthe last output of the controller:\n{log}").into())
            }
        }
    }

    async fn measure(&mut self) -> Result<()> {
        let names: Vec<_> =
            (0..self.options.volumes.max(self.options.idle)).map(|it| format!("bench-{it:04}")).collect();
        let (first, others) = names.split_at(self.options.volumes.min(names.len()));
        self.world.add_claims(&names).await?;
        self.say(&format!("{} claims are bound", names.len()));
        self.cold(first).await?;
        self.one_by_one(first).await?;
        self.all_at_once(first).await?;
        self.deletions(first).await?;
        self.edits(first).await?;
        self.idle(first.len(), others).await
    }

    /// All volumes are new.
    async fn cold(&mut self, names: &[String]) -> Result<()> {
        let spell = Spell::begin(&self.world.controller)?;
        let end = self.world.cluster.testbed.audit().end()?;
        let from = Instant::now();
        self.world.add_shared_volumes(names, self.endpoints()).await?;
        let created = from.elapsed();
        self.seen.until("volumes serve", names.len(), LIMIT, |state| state.serving.len()).await?;
        let last = self.seen.state().serving.values().max().copied().ok_or("nothing serves")?;
        self.measured.note("cold/created", "s", created.as_secs_f64());
        self.measured.hold("cold/all-serving", "s", (last - from).as_secs_f64(), COLD);
        let spent = spell.end(&self.world.controller)?;
        self.measured.note("cold/controller-processor", "s", spent.processor);
        self.quiet().await?;
        let written = self.written(end)?;
        self.measured.note("cold/writes-per-volume", "", written.all() as f64 / names.len() as f64);
        self.say(&format!("{} volumes are published; writes: {written}", names.len()));
        Ok(())
    }

    /// From the moment when the change is sent to the slice that leads to the other server.
    async fn one_by_one(&mut self, names: &[String]) -> Result<()> {
        let end = self.world.cluster.testbed.audit().end()?;
        let mut times = Times::default();
        for (number, name) in names.iter().cycle().take(self.options.switches).enumerate() {
            let to = number / names.len() % 2;
            let (from, port) = (Instant::now(), i32::from(self.port(1 - to)));
            self.world.switch(name, if to == 0 { "b" } else { "a" }).await?;
            self.seen
                .until("a switch", 1, LIMIT, |state| {
                    usize::from(state.leads_to.get(name).is_some_and(|(found, _)| *found == port))
                })
                .await?;
            let at = self.seen.state().leads_to.get(name).map(|(_, at)| *at).ok_or("it leads nowhere again")?;
            times.add(at - from);
        }
        self.measured.hold("switch/p50", "s", times.percentile(50), SWITCH_P50);
        self.measured.hold("switch/p99", "s", times.percentile(99), SWITCH_P99);
        self.quiet().await?;
        let written = self.written(end)?;
        let goal = if self.options.endpoints { WRITES_WITH_ENDPOINTS } else { WRITES };
        self.measured.hold("switch/writes-but-status", "", written.kept() as f64 / self.options.switches as f64, goal);
        self.measured.note(
            "switch/writes",
            "",
            (written.all() - written.events()) as f64 / self.options.switches as f64,
        );
        self.say(&format!("{} switches; writes: {written}", self.options.switches));
        Ok(())
    }

    /// From the first change that is sent to the last slice.
    async fn all_at_once(&mut self, names: &[String]) -> Result<()> {
        for to in ["a", "b"] {
            // The first round brings all to the same server.
            let port = i32::from(self.port(usize::from(to == "b")));
            let (from, end) = (Instant::now(), self.world.cluster.testbed.audit().end()?);
            self.world.switch_all(names, to).await?;
            let asked = from.elapsed();
            self.seen
                .until("switches", names.len(), LIMIT, |state| {
                    names
                        .iter()
                        .filter(|name| state.leads_to.get(*name).is_some_and(|(found, _)| *found == port))
                        .count()
                })
                .await?;
            let last = names.iter().filter_map(|name| self.seen.state().leads_to.get(name).map(|(_, at)| *at)).max();
            if to == "b" {
                self.measured.note("together/asked", "s", asked.as_secs_f64());
                let took = last.ok_or("nothing leads anywhere")?.saturating_duration_since(from);
                self.measured.hold("together/all-switched", "s", took.as_secs_f64(), ALL_AT_ONCE);
            }
            self.quiet().await?;
            self.say(&format!("{} switches to {to} at once; writes: {}", names.len(), self.written(end)?));
        }
        Ok(())
    }

    /// From the moment when the deletion is sent to the Service with the same address.
    async fn deletions(&mut self, names: &[String]) -> Result<()> {
        if self.options.deletions == 0 {
            return Ok(());
        }
        let services: Api<Service> = Api::namespaced(self.world.admin.clone(), NAMESPACE);
        let mut times = Times::default();
        for name in names.iter().take(self.options.deletions) {
            let (uid, address, _) = self.seen.state().services.get(name).cloned().ok_or("no Service")?;
            let from = Instant::now();
            services.delete(name, &DeleteParams::default()).await?;
            self.seen
                .until("a Service is back", 1, LIMIT, |state| {
                    usize::from(state.services.get(name).is_some_and(|(found, ..)| *found != uid))
                })
                .await?;
            let (_, found, at) = self.seen.state().services.get(name).cloned().ok_or("it went again")?;
            if found != address {
                return Err(format!("BROKEN: {name} had {address} and has {found}").into());
            }
            times.add(at - from);
        }
        self.measured.note("deleted/back-p50", "s", times.percentile(50));
        self.measured.hold("deleted/back-max", "s", times.percentile(100), BACK);
        self.quiet().await?;
        self.say(&format!("{} Services were deleted", self.options.deletions));
        Ok(())
    }

    /// From the moment when somebody's edit is sent, which leads clients nowhere, to the slice as it was.
    async fn edits(&mut self, names: &[String]) -> Result<()> {
        if self.options.edits == 0 {
            return Ok(());
        }
        let slices: Api<EndpointSlice> = Api::namespaced(self.world.admin.clone(), NAMESPACE);
        let nowhere = Patch::Merge(json!({ "ports": [{ "name": "nfs", "port": NOBODY }] }));
        let mut times = Times::default();
        for name in names.iter().take(self.options.edits) {
            let (wanted, _) = self.seen.state().leads_to.get(name).copied().ok_or("it leads nowhere")?;
            let from = Instant::now();
            slices.patch(&format!("{name}-ipv4"), &PatchParams::default(), &nowhere).await?;
            let back = |port: i32, at: Instant| port == wanted && at >= from;
            self.seen
                .until("a slice is as it was", 1, LIMIT, |state| {
                    usize::from(state.leads_to.get(name).is_some_and(|(port, at)| back(*port, *at)))
                })
                .await?;
            let (_, at) = self.seen.state().leads_to.get(name).copied().ok_or("it leads nowhere again")?;
            times.add(at - from);
        }
        self.measured.note("edited/back-p50", "s", times.percentile(50));
        self.measured.hold("edited/back-max", "s", times.percentile(100), BACK);
        self.quiet().await?;
        self.say(&format!("{} slices were edited", self.options.edits));
        Ok(())
    }

    /// Nothing happens.
    async fn idle(&mut self, there: usize, others: &[String]) -> Result<()> {
        if self.options.idle == 0 {
            return Ok(());
        }
        self.world.add_shared_volumes(others, self.endpoints()).await?;
        self.seen.until("volumes serve", there + others.len(), LIMIT, |state| state.serving.len()).await?;
        self.quiet().await?;
        let spell = Spell::begin(&self.world.controller)?;
        let end = self.world.cluster.testbed.audit().end()?;
        tokio::time::sleep(self.options.rest()).await;
        let written = self.written(end)?;
        let spent = spell.end(&self.world.controller)?;
        self.measured.hold("idle/writes", "", written.all() as f64, 0.0);
        self.measured.note("idle/controller-processor", "%", spent.share);
        self.measured.note("idle/controller-memory", "MiB", spent.memory);
        self.say(&format!("{} volumes at rest; writes: {written}", there + others.len()));
        Ok(())
    }

    fn endpoints(&self) -> &'static str {
        if self.options.endpoints { "EndpointSliceAndEndpoints" } else { "EndpointSlice" }
    }

    /// The port of candidate `a` or `b`.
    fn port(&self, number: usize) -> u16 {
        let [a, b] = &self.world.servers;
        if number == 0 { a.port() } else { b.port() }
    }

    fn written(&self, end: u64) -> Result<Writes> {
        Writes::since(&self.world.cluster.testbed.audit(), end, &Identity::OperatorController.user())
    }

    /// Waits until the controller has nothing to write any more.
    async fn quiet(&self) -> Result<()> {
        watched::quiet(&self.world.cluster.testbed.audit(), &Identity::OperatorController.user(), LIMIT).await
    }

    fn say(&self, what: &str) {
        println!("{:>7.1} s  {what}", self.started.elapsed().as_secs_f64());
    }
}
