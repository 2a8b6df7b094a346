//! What is measured, in order.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bulkhead::api::node_volume_report::NodeVolumeReport;
use kube::Api;
use kube::api::ListParams;

use crate::Result;

use super::super::measured::Times;
use super::super::watched::{Spell, Writes};
use super::run::{LIMIT, Run, agent_user, controller_user};
use super::verdicts::Switch;
use super::world::Layout;

/// The goals of the project: from the signal to the taint, and all taints of a thousand faults.
const SIGNAL_TO_TAINT: f64 = 5.0;
const STORM_TO_LAST_TAINT: f64 = 10.0;
/// With everything there, and nothing to change.
const RESTART: f64 = 5.0;
/// The status, the finalizer that guards the projection, the projection itself.
const WRITES_PER_FAULT: f64 = 3.0;
/// What an agent may cost a node: MiB, and percent of a processor.
const AGENT_MEMORY: f64 = 40.0;
const AGENT_SHARE: f64 = 1.0;

/// The names of what is read in a rest: writes, share of a processor, memory.
struct Rest {
    controller: [&'static str; 3],
    agent: [&'static str; 3],
}

/// When all volumes are well.
const HEALTHY: Rest = Rest {
    controller: ["rest/writes", "rest/controller-processor", "rest/controller-memory"],
    agent: ["agent/rest/writes", "agent/rest/processor", "agent/rest/memory"],
};

/// When many are broken.
const UNHEALTHY: Rest = Rest {
    controller: ["unhealthy-rest/writes", "unhealthy-rest/controller-processor", "unhealthy-rest/controller-memory"],
    agent: ["agent/unhealthy-rest/writes", "agent/unhealthy-rest/processor", "agent/unhealthy-rest/memory"],
};

/// Something that came, and when.
fn after(from: Instant, switch: Switch, on: bool) -> Option<Duration> {
    switch.since.filter(|since| switch.on == on && *since >= from).map(|since| since - from)
}

impl Run<'_> {
    /// Everything.
    pub async fn measure(&mut self) -> Result<()> {
        self.first_reports().await?;
        self.rest(&HEALTHY).await?;
        self.single_faults().await?;
        self.local_faults().await?;
        self.storm().await?;
        self.rest(&UNHEALTHY).await?;
        self.restart().await?;
        self.repair().await
    }

    /// All agents say for the first time how their volumes are.
    async fn first_reports(&mut self) -> Result<()> {
        let reports: Api<NodeVolumeReport> = Api::all(self.world.admin.clone());
        let deadline = Instant::now() + LIMIT;
        let nodes = self.options.nodes + usize::from(self.local.is_some());
        while reports.list_metadata(&ListParams::default()).await?.items.len() < nodes {
            if Instant::now() > deadline {
                return Err(format!("not every one of {nodes} nodes has a NodeVolumeReport").into());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let all: BTreeSet<_> = self.layout.all().collect();
        let from = self.agents.report(&all, &self.broken).await?;
        let count = self.options.volumes + self.options.local;
        self.verdicts.until_count("every volume is Healthy", count, LIMIT, |verdict| verdict.healthy.on).await?;
        self.measured.note("cold-start/all-healthy", "s", from.elapsed().as_secs_f64());
        self.say("every volume is known to be healthy");
        Ok(())
    }

    /// Nothing happens.
    async fn rest(&mut self, names: &Rest) -> Result<()> {
        self.quiet().await?;
        self.judge()?;
        let (audit, length) = (self.world.testbed.audit(), self.options.rest());
        let controller = Spell::begin(self.controller()?)?;
        let agent = self.local.as_ref().map(|(_, agent)| Spell::begin(agent)).transpose()?;
        let end = audit.end()?;
        tokio::time::sleep(length).await;
        let (spent, written) = (controller.end(self.controller()?)?, Writes::since(&audit, end, &controller_user())?);
        let [writes, share, memory] = names.controller;
        self.measured.hold(writes, "", written.all() as f64, 0.0);
        self.measured.note(share, "%", spent.share);
        self.measured.note(memory, "MiB", spent.memory);
        self.say(&format!("at rest for {length:?}, {} volumes are broken; writes: {written}", self.broken.len()));
        if let Some((spell, (_, agent))) = agent.zip(self.local.as_ref()) {
            let (spent, written) = (spell.end(agent)?, Writes::since(&audit, end, &agent_user())?);
            let [writes, share, memory] = names.agent;
            self.measured.hold(writes, "", written.all() as f64, 0.0);
            self.measured.hold(share, "%", spent.share, AGENT_SHARE);
            self.measured.hold(memory, "MiB", spent.memory, AGENT_MEMORY);
            self.say(&format!("the agent's writes: {written}"));
        }
        Ok(())
    }

    /// One volume after the other breaks, and is well again.
    async fn single_faults(&mut self) -> Result<()> {
        let (mut taints, mut projections, mut removals) = (Times::default(), Times::default(), Times::default());
        let count = self.options.single_faults;
        for number in 0..count {
            let volume = number * self.options.volumes / count;
            let (name, only) = (Layout::volume(volume), BTreeSet::from([volume]));
            let from = self.agents.report(&only, &only).await?;
            let (taint, projection) = self
                .verdicts
                .until(&format!("{name} is tainted"), LIMIT, || {
                    let now = self.verdicts.of(&name);
                    let both = after(from, now.tainted, true).zip(after(from, now.projected, true));
                    both.ok_or_else(|| format!("{now:?}"))
                })
                .await?;
            taints.add(taint);
            projections.add(projection);
            let from = self.agents.report(&only, &BTreeSet::new()).await?;
            let (removal, _) = self
                .verdicts
                .until(&format!("{name} is not tainted any more"), LIMIT, || {
                    let now = self.verdicts.of(&name);
                    let both = after(from, now.tainted, false).zip(after(from, now.projected, false));
                    both.ok_or_else(|| format!("{now:?}"))
                })
                .await?;
            removals.add(removal);
        }
        self.measured.note("one-fault/taint-p50", "s", taints.percentile(50));
        self.measured.note("one-fault/taint-p99", "s", taints.percentile(99));
        self.measured.note("one-fault/projected-p99", "s", projections.percentile(99));
        self.measured.note("one-fault/taint-gone-p99", "s", removals.percentile(99));
        self.say(&format!("{count} volumes broke and were repaired one after the other"));
        Ok(())
    }

    /// The volumes of this machine are taken away, one after the other, and put back.
    async fn local_faults(&mut self) -> Result<()> {
        let Some((node, agent)) = &self.local else { return Ok(()) };
        let spell = Spell::begin(agent)?;
        let (mut reports, mut taints, mut removals) = (Times::default(), Times::default(), Times::default());
        for volume in &node.volumes {
            let name = &volume.name;
            let from = node.take_away(volume).await?;
            let (report, taint) = self
                .verdicts
                .until(&format!("{name} is tainted"), LIMIT, || {
                    let now = self.verdicts.of(name);
                    let both = after(from, now.reported, true).zip(after(from, now.tainted, true));
                    both.ok_or_else(|| format!("{now:?}"))
                })
                .await?;
            reports.add(report);
            taints.add(taint);
            let from = node.repair(volume).await?;
            let removal = self
                .verdicts
                .until(&format!("{name} is not tainted any more"), LIMIT, || {
                    let now = self.verdicts.of(name);
                    after(from, now.tainted, false).ok_or_else(|| format!("{now:?}"))
                })
                .await?;
            removals.add(removal);
        }
        let spent = spell.end(agent)?;
        self.measured.note("agent/signal-to-report-p50", "s", reports.percentile(50));
        self.measured.note("agent/signal-to-report-p99", "s", reports.percentile(99));
        self.measured.note("agent/signal-to-taint-p50", "s", taints.percentile(50));
        self.measured.hold("agent/signal-to-taint-p99", "s", taints.percentile(99), SIGNAL_TO_TAINT);
        self.measured.note("agent/repair-to-taint-gone-p99", "s", removals.percentile(99));
        self.measured.hold("agent/peak-memory", "MiB", spent.peak, AGENT_MEMORY);
        self.say(&format!("{} volumes of this machine were taken away and put back", node.volumes.len()));
        Ok(())
    }

    /// Many volumes break at the same moment.
    async fn storm(&mut self) -> Result<()> {
        let faults = self.options.faults;
        self.quiet().await?;
        self.broken = (0..faults).map(|number| number * self.options.volumes / faults).collect();
        let end = self.world.testbed.audit().end()?;
        let spell = Spell::begin(self.controller()?)?;
        let from = self.agents.report(&self.broken, &self.broken).await?;
        let last = self.last("every broken volume is tainted", from, faults, true).await?;
        let spent = spell.end(self.controller()?)?;
        self.measured.hold("storm/last-taint", "s", last.taint.as_secs_f64(), STORM_TO_LAST_TAINT);
        self.measured.note("storm/last-projected", "s", last.projection.as_secs_f64());
        self.measured.note("storm/controller-processor", "s", spent.processor);
        self.measured.note("storm/controller-peak-memory", "MiB", spent.peak);
        self.judge()?;
        self.quiet().await?;
        let writes = Writes::since(&self.world.testbed.audit(), end, &controller_user())?;
        let per_fault = |count: usize| count as f64 / faults as f64;
        self.measured.hold("storm/writes-per-fault", "", per_fault(writes.all() - writes.events()), WRITES_PER_FAULT);
        self.measured.note("storm/events-per-fault", "", per_fault(writes.events()));
        self.say(&format!("{faults} volumes broke: writes: {writes}"));
        Ok(())
    }

    /// The controller ends, one more volume breaks, and the controller is started again.
    async fn restart(&mut self) -> Result<()> {
        self.stop_controller().await;
        let well = self.layout.all().find(|volume| !self.broken.contains(volume));
        let (volume, name) = match well {
            Some(volume) => (volume, Layout::volume(volume)),
            None => return self.start_controller().await.map(drop),
        };
        self.broken.insert(volume);
        self.agents.report(&BTreeSet::from([volume]), &self.broken).await?;
        let from = self.start_controller().await?;
        self.measured.hold("restart/ready", "s", from.elapsed().as_secs_f64(), RESTART);
        let look = || {
            let now = self.verdicts.of(&name);
            let both = after(from, now.tainted, true).zip(after(from, now.projected, true));
            both.ok_or_else(|| format!("{now:?}"))
        };
        let (taint, _) = self.verdicts.until("what broke meanwhile is tainted", LIMIT, look).await?;
        self.measured.note("restart/missed-fault-tainted", "s", taint.as_secs_f64());
        self.say("the controller was started again");
        self.judge()
    }

    /// All volumes are well again.
    async fn repair(&mut self) -> Result<()> {
        let broken = std::mem::take(&mut self.broken);
        let end = self.world.testbed.audit().end()?;
        let from = self.agents.report(&broken, &self.broken).await?;
        let last = self.last("no volume is tainted", from, broken.len(), false).await?;
        self.measured.hold("repair/last-taint-gone", "s", last.taint.as_secs_f64(), STORM_TO_LAST_TAINT);
        self.measured.note("repair/last-projection-gone", "s", last.projection.as_secs_f64());
        self.quiet().await?;
        let writes = Writes::since(&self.world.testbed.audit(), end, &controller_user())?;
        self.say(&format!("{} volumes are well again: writes: {writes}", broken.len()));
        self.judge()
    }

    /// Waits until so many volumes have turned, and says when the last one had.
    async fn last(&self, what: &str, from: Instant, count: usize, on: bool) -> Result<Last> {
        let look = || {
            let all = self.verdicts.all();
            let taints: Vec<_> = all.iter().filter_map(|now| after(from, now.tainted, on)).collect();
            let projections: Vec<_> = all.iter().filter_map(|now| after(from, now.projected, on)).collect();
            let done = taints.len() >= count && projections.len() >= count;
            let last = taints.iter().max().zip(projections.iter().max()).filter(|_| done);
            let last = last.map(|(taint, projection)| Last { taint: *taint, projection: *projection });
            last.ok_or_else(|| format!("{} of {count}, {} projected", taints.len(), projections.len()))
        };
        Ok(self.verdicts.until(what, LIMIT, look).await?)
    }

    /// What is tainted is what is broken, and the PersistentVolumes show it.
    fn judge(&self) -> Result<()> {
        let broken: Vec<_> = self.broken.iter().map(|volume| Layout::volume(*volume)).collect();
        let tainted = self.verdicts.names(|verdict| verdict.tainted.on);
        let projected = self.verdicts.names(|verdict| verdict.projected.on);
        if tainted == broken && projected == broken {
            return Ok(());
        }
        let differ = |names: &[String]| {
            let wrong: Vec<_> = names.iter().filter(|name| !broken.contains(name)).take(5).collect();
            let missing: Vec<_> = broken.iter().filter(|name| !names.contains(name)).take(5).collect();
            format!("wrongly {wrong:?}, missing {missing:?}")
        };
        Err(format!(
            "{} volumes are broken, {} are tainted ({}), {} are shown to be ({})",
            broken.len(),
            tainted.len(),
            differ(&tainted),
            projected.len(),
            differ(&projected)
        )
        .into())
    }
}

/// When the last of many volumes had turned.
struct Last {
    taint: Duration,
    projection: Duration,
}
