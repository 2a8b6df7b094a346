//! What the program that cuts nodes off as a whole reports before anybody asks it, as docs/fencers.md tells whoever writes one: the
//! nodes without power, each by the boot that it read before it looked. It may come late, stay when the program has ended, and be
//! wrong about a node.

use bulkhead::api::conditions::{self, State};
use bulkhead::api::driver_report::{DriverReport, DriverReportSpec, PoweredOffNode};
use bulkhead::api::slim::Node;
use kube::ResourceExt;

use crate::api::Kind;
use crate::chance::{Chance, Choice};
use crate::time::{Millis, SECOND, wall};
use crate::world::World;

use super::{Lie, POWER};

/// How often it looks.
const LOOK: Millis = 5 * SECOND;

/// What it reports before anybody asks.
#[derive(Clone, Debug, Default)]
pub struct Watching {
    /// What it has seen, and when that arrives.
    says: Option<(Millis, Vec<PoweredOffNode>)>,
    looks_at: Millis,
}

impl World {
    /// It looks at the power of all nodes, and reports it. Returns when there is more to do.
    pub(super) fn watch_power(&mut self, chance: &mut dyn Chance) -> Millis {
        if !self.shape.power.is_some_and(|power| power.reports) {
            return Millis::MAX;
        }
        let now = self.now;
        if let Some((_, rows)) = self.others.power.watching.says.take_if(|(due, _)| *due <= now) {
            self.report_power(rows);
        }
        if self.others.power.watching.says.is_none() && self.others.power.watching.looks_at <= now {
            let rows = self.look_at_power();
            let slow = chance.one_in(Choice::Report, self.others.power.mood.slow);
            let late = if slow { chance.between(Choice::Report, 2 * SECOND, 90 * SECOND) } else { 0 };
            let arrives = now + chance.between(Choice::Report, 5, 200) + late;
            self.others.power.watching = Watching { says: Some((arrives, rows)), looks_at: now + LOOK };
        }
        let Watching { says, looks_at } = &self.others.power.watching;
        says.as_ref().map_or(*looks_at, |(due, _)| *due)
    }

    /// The nodes that have no power, as it sees them.
    fn look_at_power(&self) -> Vec<PoweredOffNode> {
        let report = self.api.get::<DriverReport>(POWER);
        let known: Vec<_> = report.iter().flat_map(|report| report.powered_off()).cloned().collect();
        let rows = self.api.nodes.values().filter_map(|node| self.power_row(node));
        rows.map(|row| known.iter().find(|it| boot_of(it) == boot_of(&row)).cloned().unwrap_or(row)).collect()
    }

    fn power_row(&self, node: &Node) -> Option<PoweredOffNode> {
        let name = node.name_any();
        let lies = self.others.power.mood.lies.as_ref().filter(|(of, _)| *of == name);
        let read = node.status.node_info.boot_id.clone();
        let boot_id = match lies {
            Some((_, Lie::BootBefore)) => self.machines.get(&name)?.boot_id_before(),
            Some((_, Lie::ThisBoot)) => read,
            None if self.has_power(&name) => return None,
            None => read,
        };
        let (node_uid, since, reason) = (node.uid()?, wall(self.now), Some("PoweredOff".into()));
        Some(PoweredOffNode { node: name, node_uid, boot_id, since, reason })
    }

    fn report_power(&mut self, rows: Vec<PoweredOffNode>) {
        if self.api.get::<DriverReport>(POWER).is_none() {
            let _ = self.api.create(DriverReport::new(POWER, DriverReportSpec {}), self.now);
        }
        let told: Vec<_> = rows.iter().map(|row| row.boot_id.clone()).collect();
        let (before, at) = (self.api.changes(Kind::Reports), wall(self.now));
        self.api.update::<DriverReport>(POWER, |report| {
            let status = report.status.get_or_insert_default();
            conditions::set(&mut status.conditions, "Ready", State::True, "Reporting", "", 0, at);
            status.powered_off = rows;
        });
        if self.api.changes(Kind::Reports) > before {
            self.tell(|| format!("the fencer reports the end of {told:?}"));
        }
    }
}

/// What a row is of.
fn boot_of(row: &PoweredOffNode) -> (&str, &str, &str) {
    (&row.node, &row.node_uid, &row.boot_id)
}
