//! What is measured, in order. After each phase nothing may be left of it: what is ends the run.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use bulkhead_testbed::Identity;
use bulkhead_testbed::process::Process;

use crate::Result;

use super::super::measured::{Measured, Times};
use super::super::watched::{self, Spell, Writes};
use super::Options;
use super::seen::Seen;
use super::world::{LIMIT, NAMESPACE, Workload, World, node};

/// The goals of the project, in seconds: one bucket, and a key for each workload.
const SHARED: f64 = 3.0;
const KEYS: f64 = 10.0;
/// From the end of a workload until no attachment names it.
const DETACHED: f64 = 5.0;
/// Writes but for status and Events: of a new key, of one who joins, of the last who leaves.
const WRITES_OF_A_KEY: f64 = 2.0;
const WRITES_OF_A_SHARER: f64 = 1.0;
const WRITES_OF_A_REMOVAL: f64 = 3.0;
/// Workloads that are there at once while the controller is killed.
const WAVE: usize = 200;
/// The controller works so long between two kills, and then longer, and again so long.
const LIVES: [Duration; 4] =
    [Duration::from_millis(700), Duration::from_millis(1900), Duration::from_millis(1100), Duration::from_millis(2600)];

/// A cluster that is being measured.
pub struct Run<'a> {
    options: &'a Options,
    world: World,
    seen: Seen,
    measured: Measured,
    started: Instant,
}

/// The names of what is read of one arrival and its end.
struct Names {
    created: &'static str,
    attached: &'static str,
    lag: &'static str,
    writes: &'static str,
    detached: [&'static str; 2],
    clean: &'static str,
    removal: &'static str,
}

/// One bucket, the nodes in turn; they end within a second.
const ROUND_ROBIN: Names = Names {
    created: "round-robin/created",
    attached: "round-robin/attached",
    lag: "round-robin/last-created-to-attached",
    writes: "round-robin/writes-per-workload",
    detached: ["ends-in-1s/detached-p50", "ends-in-1s/detached-p99"],
    clean: "ends-in-1s/all-clean",
    removal: "ends-in-1s/writes-per-workload",
};

/// One bucket, node after node; they go on for half a minute.
const NODE_BY_NODE: Names = Names {
    created: "node-by-node/created",
    attached: "node-by-node/attached",
    lag: "node-by-node/last-created-to-attached",
    writes: "node-by-node/writes-per-workload",
    detached: ["ends-in-30s/detached-p50", "ends-in-30s/detached-p99"],
    clean: "ends-in-30s/all-clean",
    removal: "ends-in-30s/writes-per-workload",
};

/// A volume for each.
const OWN_KEYS: Names = Names {
    created: "keys/created",
    attached: "keys/attached",
    lag: "keys/last-created-to-attached",
    writes: "keys/writes-per-key",
    detached: ["keys/detached-p50", "keys/detached-p99"],
    clean: "keys/all-clean",
    removal: "keys/writes-per-removal",
};

impl<'a> Run<'a> {
    /// One run.
    pub async fn run(programs: &Path, options: &'a Options) -> Result<Measured> {
        let started = Instant::now();
        let world = World::start(programs, options).await?;
        let seen = Seen::watch(&world.admin, NAMESPACE);
        let mut run = Self { options, world, seen, measured: Measured::default(), started };
        match run.measure().await {
            Ok(()) => Ok(run.measured),
            Err(error) => {
                let log = run.world.controller.as_ref().map(Process::log_tail).unwrap_or_default();
                Err(format!("{error}\nthe last output of the controller:\n{log}").into())
            }
        }
    }

    async fn measure(&mut self) -> Result<()> {
        let most = self.options.keys.max(WAVE.min(self.options.cycles)).max(1);
        let volumes: Vec<_> = (0..most).map(claim).collect();
        self.world.add_volumes(&volumes).await?;
        self.say(&format!("{} nodes are there, {most} volumes are bound", self.options.nodes));
        self.one_bucket(&ROUND_ROBIN).await?;
        self.one_bucket(&NODE_BY_NODE).await?;
        self.own_keys().await?;
        self.kills().await?;
        self.memory().await
    }

    async fn one_bucket(&mut self, names: &Names) -> Result<()> {
        let (count, nodes) = (self.options.workloads, self.options.nodes);
        let in_turn = names.created == ROUND_ROBIN.created;
        let seconds = if in_turn { 1 } else { 30 };
        let place = |number: usize| if in_turn { number % nodes } else { number * nodes / count };
        let workload = |number: usize| Workload {
            name: format!("{}-{number}", if in_turn { "turn" } else { "node" }),
            node: place(number),
            claim: claim(0),
            ends_after: Duration::from_secs(seconds),
        };
        let workloads: Vec<_> = (0..count).map(workload).collect();
        let mountpoint_pods = nodes.min(count);
        let spell = Spell::begin(self.world.controller()?)?;
        let uids = self.arrive(&workloads, names, SHARED, WRITES_OF_A_SHARER, mountpoint_pods).await?;
        if in_turn {
            let spent = spell.end(self.world.controller()?)?;
            self.measured.note("round-robin/controller-processor", "s", spent.processor);
            self.measured.note("round-robin/controller-peak-memory", "MiB", spent.peak);
        }
        self.leave(&workloads, &uids, names, WRITES_OF_A_SHARER).await
    }

    async fn own_keys(&mut self) -> Result<()> {
        if self.options.keys == 0 {
            return Ok(());
        }
        let workload = |number: usize| Workload {
            name: format!("key-{number}"),
            node: number % self.options.nodes,
            claim: claim(number),
            ends_after: Duration::from_secs(1),
        };
        let workloads: Vec<_> = (0..self.options.keys).map(workload).collect();
        let uids = self.arrive(&workloads, &OWN_KEYS, KEYS, WRITES_OF_A_KEY, workloads.len()).await?;
        self.leave(&workloads, &uids, &OWN_KEYS, WRITES_OF_A_REMOVAL).await
    }

    /// Workloads come, and run. Pods start when all are attached: a kubelet's writes are not what is measured.
    async fn arrive(
        &mut self,
        workloads: &[Workload],
        names: &Names,
        goal: f64,
        writes: f64,
        mountpoint_pods: usize,
    ) -> Result<Vec<String>> {
        self.quiet().await?;
        (0..self.options.nodes).for_each(|number| self.world.nodes.hold(&node(number)));
        let end = self.world.cluster.testbed.audit().end()?;
        let from = Instant::now();
        let uids = self.world.add_workloads(workloads).await?;
        let created = Instant::now();
        self.seen.until("workloads are attached", &uids, LIMIT, |times| &times.attached).await?;
        let last = last(&uids, &self.seen.times().attached).ok_or("nobody was attached")?;
        self.measured.note(names.created, "s", (created - from).as_secs_f64());
        self.measured.hold(names.attached, "s", (last - from).as_secs_f64(), goal);
        self.measured.note(names.lag, "s", last.saturating_duration_since(created).as_secs_f64());
        (0..self.options.nodes).for_each(|number| self.world.nodes.release(&node(number)));
        self.seen.until("workloads run", &uids, LIMIT, |times| &times.running).await?;
        self.quiet().await?;
        let found = self.world.mountpoint_pods().await?;
        if found != mountpoint_pods {
            return Err(format!("{found} Mountpoint Pods instead of {mountpoint_pods}").into());
        }
        let written = self.written(end)?;
        self.measured.hold(names.writes, "", written.kept() as f64 / workloads.len() as f64, writes);
        self.say(&format!("{} workloads are attached: writes: {written}", workloads.len()));
        Ok(uids)
    }

    /// They are deleted, all at once.
    async fn leave(&mut self, workloads: &[Workload], uids: &[String], names: &Names, writes: f64) -> Result<()> {
        let end = self.world.cluster.testbed.audit().end()?;
        self.world.delete(workloads).await?;
        self.seen.until("workloads have ended", uids, LIMIT, |times| &times.ended).await?;
        self.seen.until("workloads are detached", uids, LIMIT, |times| &times.detached).await?;
        self.world.clean().await?;
        let mut detached = Times::default();
        {
            let times = self.seen.times();
            for uid in uids {
                if let (Some(ended), Some(gone)) = (times.ended.get(uid), times.detached.get(uid)) {
                    detached.add(gone.saturating_duration_since(*ended));
                }
            }
            let ended = last(uids, &times.ended).ok_or("nobody ended")?;
            self.measured.note(names.detached[0], "s", detached.percentile(50));
            self.measured.hold(names.detached[1], "s", detached.percentile(99), DETACHED);
            self.measured.note(names.clean, "s", ended.elapsed().as_secs_f64());
        }
        self.quiet().await?;
        let written = self.written(end)?;
        self.measured.hold(names.removal, "", written.kept() as f64 / workloads.len() as f64, writes);
        self.say(&format!("{} workloads are gone: writes: {written}", workloads.len()));
        Ok(())
    }

    /// Wave after wave comes and goes while the controller is killed again and again.
    async fn kills(&mut self) -> Result<()> {
        let (mut done, mut killed, from) = (0, 0, Instant::now());
        while done < self.options.cycles {
            let size = WAVE.min(self.options.cycles - done);
            let workload = |number: usize| Workload {
                name: format!("cycle-{done}-{number}"),
                node: number % self.options.nodes,
                // Every other one shares.
                claim: claim(if number.is_multiple_of(2) { number } else { 0 }),
                ends_after: Duration::from_millis(100),
            };
            let workloads: Vec<_> = (0..size).map(workload).collect();
            let controller = self.world.controller.take().ok_or("the controller does not run")?;
            let wave = wave(&self.world, &self.seen, &workloads);
            let (controller, kills) = kill_during(&self.world, controller, killed, wave).await?;
            self.world.controller = Some(controller);
            (done, killed) = (done + size, killed + kills);
        }
        if done > 0 {
            // Whoever went unseen is found by its age.
            self.world.clean().await?;
            self.measured.note("kills/workloads", "", done as f64);
            self.measured.note("kills/controllers-killed", "", killed as f64);
            self.measured.note("kills/until-clean", "s", from.elapsed().as_secs_f64());
            self.measured.hold("kills/leaked", "", 0.0, 0.0);
            self.say(&format!("{done} workloads came and went, {killed} controllers were killed, nothing is left"));
        }
        Ok(())
    }

    /// Of a controller that finds all these pods when it starts, and of one that saw them come.
    async fn memory(&mut self) -> Result<()> {
        if self.options.pods == 0 {
            return Ok(());
        }
        self.world.add_others(self.options.pods).await?;
        self.quiet().await?;
        let spent = Spell::begin(self.world.controller()?)?.end(self.world.controller()?)?;
        self.measured.note("pods/controller-memory", "MiB", spent.memory);
        if let Some(controller) = self.world.controller.take() {
            controller.stop().await;
        }
        self.world.start_controller().await?;
        self.quiet().await?;
        let spent = Spell::begin(self.world.controller()?)?.end(self.world.controller()?)?;
        self.measured.note("pods/controller-memory-after-start", "MiB", spent.memory);
        self.say(&format!("{} other pods are there", self.options.pods));
        Ok(())
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

/// Workloads come, run and go.
async fn wave(world: &World, seen: &Seen, workloads: &[Workload]) -> Result<()> {
    let uids = world.add_workloads(workloads).await?;
    seen.until("workloads run", &uids, LIMIT, |times| &times.running).await?;
    world.delete(workloads).await?;
    seen.until("workloads have ended", &uids, LIMIT, |times| &times.ended).await
}

/// Kills the controller while something happens, and starts it again each time.
async fn kill_during(
    world: &World,
    mut controller: Process,
    before: usize,
    happens: impl Future<Output = Result<()>>,
) -> Result<(Process, usize)> {
    let mut happens = std::pin::pin!(happens);
    let mut kills = 0;
    for life in LIVES.iter().cycle().skip(before) {
        tokio::select! {
            done = &mut happens => {
                done?;
                break;
            }
            () = tokio::time::sleep(*life) => {}
        }
        controller = world.replace_killed(controller).await?;
        kills += 1;
    }
    Ok((controller, kills))
}

fn claim(number: usize) -> String {
    format!("bucket-{number:04}")
}

/// When the last of them came.
fn last(uids: &[String], times: &HashMap<String, Instant>) -> Option<Instant> {
    uids.iter().filter_map(|uid| times.get(uid)).max().copied()
}
