//! What goes wrong with storage: arrays that misbehave, volumes in trouble, paths that are lost.

use bulkhead::api::driver_report::PathState;

use crate::array::Mood;
use crate::faults::Fault;
use crate::shape::one_of;
use crate::time::{Millis, SECOND};

use super::{Draft, When};

impl Draft<'_> {
    /// A volume is in trouble: where a pod uses it, or on other nodes too, or everywhere; and it may be well again.
    pub(super) fn bad_volume(&mut self, failed: Millis) {
        let when = match self.pick(3) {
            0 => self.some_time(failed),
            _ => When::At(self.between(2 * SECOND, failed)),
        };
        let workload = one_of(self.chance, &self.shape.workloads);
        let Some(volume) = workload.volumes.first().cloned() else { return };
        let home = self.shape.nodes[workload.home % self.shape.nodes.len()].clone();
        let all = self.shape.nodes.clone();
        let nodes = match self.pick(8) {
            0 => Vec::new(),
            1 => all,
            2 => vec![home.clone(), one_of(self.chance, &all)],
            _ => vec![home.clone()],
        };
        let mut volumes = vec![volume];
        if self.pick(6) == 1 {
            // A storm: every volume.
            volumes = self.shape.volumes.keys().cloned().collect();
        }
        for volume in volumes {
            if self.pick(3) == 1 {
                self.events.push((when, Fault::HangVolume(volume.clone(), home.clone())));
            }
            self.events.push((when, Fault::TaintVolume(volume.clone(), nodes.clone())));
            if self.pick(4) > 0 {
                let end = self.after(when, 2 * SECOND, 200 * SECOND);
                self.events.push((end, Fault::HealVolume(volume)));
            }
        }
    }

    /// A node does not reach an array, or several, or none of them does; or nobody can tell. And it may again.
    pub(super) fn bad_path(&mut self, failed: Millis) {
        let when = match self.pick(3) {
            0 => self.some_time(failed),
            _ => When::At(self.between(5 * SECOND, failed)),
        };
        let driver = one_of(self.chance, &self.shape.drivers).name;
        let all = self.shape.nodes.clone();
        let nodes = match self.pick(6) {
            0 => all,
            1 => vec![one_of(self.chance, &all), one_of(self.chance, &all)],
            _ => vec![one_of(self.chance, &all)],
        };
        self.events.push((when, Fault::TellPaths(driver.clone(), nodes.clone(), PathState::Disconnected)));
        if self.pick(3) == 1 {
            let doubt = self.after(when, SECOND, 60 * SECOND);
            self.events.push((doubt, Fault::TellPaths(driver.clone(), nodes, PathState::Unknown)));
        }
        if self.pick(4) > 0 {
            let end = self.after(when, 2 * SECOND, 200 * SECOND);
            self.events.push((end, Fault::TellPaths(driver, Vec::new(), PathState::Unknown)));
        }
    }

    pub(super) fn bad_array(&mut self, when: When) {
        let driver = one_of(self.chance, &self.shape.drivers).name;
        let mut mood = Mood::default();
        let rate = self.between(1, 3);
        match self.pick(10) {
            0 => mood.is_down = true,
            1 | 2 => mood.ok_but_nothing = rate,
            3 => {
                let code = self.between(1, 16);
                mood.fails = Some((rate, i32::try_from(code).unwrap_or(2)));
                mood.fails_after_effect = self.pick(2) == 1;
            }
            4 => mood.hangs = rate,
            5 => mood.slow = rate,
            6 => mood.stale_list = rate,
            7 => mood.incomplete = rate,
            8 => mood.omits = rate,
            _ => mood.omits_nodes = rate,
        }
        if self.pick(4) == 1 && mood.omits_nodes == 0 {
            mood.stale_list = rate;
            mood.slow = 4;
        }
        self.events.push((when, Fault::Mood(driver.clone(), mood)));
        if self.pick(3) > 0 {
            let end = self.after(when, 5 * SECOND, 90 * SECOND);
            self.events.push((end, Fault::Mood(driver, Mood::default())));
        }
    }
}
