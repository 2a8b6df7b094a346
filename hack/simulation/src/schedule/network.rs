//! What goes wrong between the programs: bad weather, networks that carry no heartbeats, a fencer of somebody else's, in what it
//! does and in what it reports; csi-addons that starts again, storages in the middle of a network fence, who else writes that, and
//! nodes that get other addresses.

use crate::array::Mood;
use crate::chance::{Chance, Choice};
use crate::faults::Fault;
use crate::others::{FencerMood, Lie};
use crate::people::Person;
use crate::shape::one_of;
use crate::time::{Millis, SECOND};
use crate::world::Weather;

use super::{Draft, When};

impl Draft<'_> {
    pub(super) fn bad_weather(&mut self, when: When) {
        let rate = |chance: &mut dyn Chance| one_of(chance, &[0, 0, 20, 6]);
        let weather = Weather {
            slows: rate(self.chance),
            delays: rate(self.chance),
            loses_writes: rate(self.chance),
            loses_answers: rate(self.chance),
            throttles: rate(self.chance),
            slow_watches: rate(self.chance),
            slow_kinds: Vec::new(),
        };
        self.events.push((when, Fault::Weather(weather)));
    }

    /// The heartbeats of a node are lost: to the controllers, or to its peers too, or with its kubelet's word; or those of all
    /// nodes. And they come again, often before anybody may act on it.
    pub(super) fn bad_network(&mut self, failed: Millis) {
        let when = match self.pick(2) {
            0 => self.some_time(failed),
            _ => When::At(self.between(5 * SECOND, failed)),
        };
        let all = self.shape.nodes.clone();
        let nodes = if self.pick(6) == 1 { all } else { vec![one_of(self.chance, &all)] };
        let lasts = if self.pick(3) == 1 { 120 * SECOND } else { 35 * SECOND };
        let (how, again) = (self.pick(4), self.pick(4) > 0);
        for node in nodes {
            self.events.push((when, if how == 0 { Fault::Unhear(node.clone()) } else { Fault::Mute(node.clone()) }));
            if how > 1 {
                self.events.push((when, Fault::Disconnect(node.clone())));
            }
            if again {
                let end = self.after(when, SECOND, lasts);
                self.events.push((end, if how > 1 { Fault::Reconnect(node) } else { Fault::Hear(node) }));
            }
        }
    }

    /// Whoever cuts nodes off as a whole is slow, fails, or does not run; and may run again.
    pub(super) fn bad_fencer(&mut self, failed: Millis) {
        let when = self.some_time(failed);
        let rate = self.between(1, 3);
        let mood = match self.pick(4) {
            0 => FencerMood { slow: rate, ..FencerMood::default() },
            1 => FencerMood { fails: rate, slow: 3, ..FencerMood::default() },
            _ => FencerMood { is_dead: true, ..FencerMood::default() },
        };
        self.events.push((when, Fault::Fencer(mood)));
        if self.pick(3) > 0 {
            let end = self.after(when, 2 * SECOND, 120 * SECOND);
            self.events.push((end, Fault::Fencer(FencerMood::default())));
        }
    }

    /// csi-addons starts again, before a node is shut out, while it is, or while it is let in.
    pub(super) fn restarts_of_csi_addons(&mut self, failed: Millis) {
        for _ in 0..self.chance.pick(Choice::Network, 4) {
            let at = failed + self.chance.between(Choice::Network, 40 * SECOND, 150 * SECOND);
            self.at(at, Fault::RestartCsiAddons);
        }
    }

    /// A storage is slow, hangs or fails while a node is shut out, or while it is let in.
    pub(super) fn storages_in_the_middle_of_a_fence(&mut self, failed: Millis) {
        let (shape, c) = (self.shape, Choice::Network);
        for _ in 0..self.chance.pick(c, 3) {
            let at = failed + self.chance.between(c, 30 * SECOND, 180 * SECOND);
            let driver = &shape.drivers[self.chance.pick(c, shape.drivers.len() as u64) as usize];
            let rate = self.chance.between(c, 1, 2);
            let mood = match self.chance.pick(c, 3) {
                0 => Mood { slow: rate, ..Mood::default() },
                // gRPC's Internal.
                1 => Mood { fails: Some((rate, 13)), fails_after_effect: self.chance.one_in(c, 2), ..Mood::default() },
                _ => Mood { hangs: rate, ..Mood::default() },
            };
            let end = at + self.chance.between(c, 10 * SECOND, 120 * SECOND);
            let (bad, well) =
                (Fault::Mood(driver.name.clone(), mood), Fault::Mood(driver.name.clone(), Mood::default()));
            self.at(at, bad);
            self.at(end, well);
        }
    }

    /// Several write one NetworkFence: sidecars that both believe that they lead, since one stood still or slept, or since what it
    /// wrote was kept back; and people, who edit it or delete it.
    pub(super) fn writers_of_network_fences(&mut self, failed: Millis) {
        let (c, node) = (Choice::Network, self.shape.nodes[0].clone());
        let sidecars = 2 * self.shape.drivers.iter().filter(|driver| driver.has_sidecar).count() as u64;
        for _ in 0..self.chance.pick(c, 4) {
            let at = failed + self.chance.between(c, 30 * SECOND, 200 * SECOND);
            let length = self.chance.between(c, SECOND, 60 * SECOND);
            // The controllers come first.
            let pid = 2 + self.chance.pick(c, sidecars) as usize;
            let fault = match self.chance.pick(c, 6) {
                0 if sidecars > 0 => Fault::Stop(pid, length),
                1 if sidecars > 0 => Fault::Sleep(pid, length),
                2 => Fault::EditNetworkFences(node.clone()),
                3 => Fault::DeleteNetworkFences(node.clone()),
                _ => Fault::KeepNetworkWrites(length),
            };
            self.at(at, fault);
        }
    }

    /// The node that fails comes back by another address; another one gets what it had; or one is renumbered before. And somebody says
    /// that what is shut out is off, if it is.
    pub(super) fn other_addresses(&mut self, failed: Millis) {
        let (c, nodes) = (Choice::Network, self.shape.nodes.clone());
        let first = nodes[0].clone();
        for _ in 0..self.chance.pick(c, 3) {
            let other = nodes[1 + self.chance.pick(c, nodes.len() as u64 - 1) as usize].clone();
            let any = nodes[self.chance.pick(c, nodes.len() as u64) as usize].clone();
            let later = failed + self.chance.between(c, SECOND, 150 * SECOND);
            match self.chance.pick(c, 3) {
                0 => self.at(later, Fault::Renumber(first.clone())),
                1 => self.at(later, Fault::TakeAddress(other, first.clone())),
                _ => {
                    let before = self.chance.between(c, 5 * SECOND, failed);
                    self.at(before, Fault::Renumber(any));
                }
            }
            if self.chance.one_in(c, 2) {
                let said = later + self.chance.between(c, 10 * SECOND, 120 * SECOND);
                self.at(said, Fault::Person(Person::SayOff(first.clone())));
            }
        }
    }

    /// Whoever reports the power of nodes is wrong about one; and takes it back and says it again, or names another boot in
    /// between. It may come to see what is so.
    pub(super) fn bad_report(&mut self, failed: Millis) {
        let shape = self.shape;
        let node = if self.pick(3) > 0 { shape.nodes[0].clone() } else { one_of(self.chance, &shape.nodes) };
        let wrong = |lie| Fault::Fencer(FencerMood { lies: Some((node.clone(), lie)), ..FencerMood::default() });
        let mut when = match self.pick(3) {
            0 => self.some_time(failed),
            1 => When::At(failed.saturating_sub(self.between(0, 5_000))),
            _ => When::At(self.between(5 * SECOND, failed)),
        };
        self.events.push((when, wrong(Lie::ThisBoot)));
        for _ in 0..self.pick(3) {
            let between = if self.pick(2) == 1 { wrong(Lie::BootBefore) } else { Fault::Fencer(FencerMood::default()) };
            when = self.after(when, 2 * SECOND, 40 * SECOND);
            self.events.push((when, between));
            when = self.after(when, 2 * SECOND, 40 * SECOND);
            self.events.push((when, wrong(Lie::ThisBoot)));
        }
        if self.pick(3) > 0 {
            let end = self.after(when, 2 * SECOND, 120 * SECOND);
            self.events.push((end, Fault::Fencer(FencerMood::default())));
        }
    }
}
