//! What goes wrong between the programs: bad weather, networks that carry no heartbeats, and a fencer of somebody else's.

use crate::chance::Chance;
use crate::faults::Fault;
use crate::others::FencerMood;
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
            slow_kind: None,
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

    /// Whoever switches nodes off is slow, fails, or does not run; and may run again.
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
}
