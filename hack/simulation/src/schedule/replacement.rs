//! Another machine under the name of the one that failed.

use crate::chance::Choice;
use crate::faults::Fault;
use crate::others::first_of;
use crate::people::Person;
use crate::time::{Millis, SECOND};

use super::Draft;

impl Draft<'_> {
    /// Another machine takes the name of the one that failed, if that runs on. That one goes on where it stood, the other one may fail too,
    /// and somebody may find the first and say so.
    pub(super) fn another_machine(&mut self, failed: Millis) {
        let (c, node) = (Choice::Replacement, self.shape.nodes[0].clone());
        if self.shape.network.is_some_and(|network| network.is_behind_nat) || !self.chance.one_in(c, 8) {
            return;
        }
        let first = first_of(&node);
        let at = failed + self.chance.between(c, 60 * SECOND, 240 * SECOND);
        let is_anew = self.chance.one_in(c, 2);
        self.at(at, Fault::Replace(node.clone(), is_anew));
        let goes_on = at + self.chance.between(c, SECOND, 60 * SECOND);
        self.at(goes_on, Fault::Thaw(first.clone()));
        if self.chance.one_in(c, 2) {
            let fails = at + self.chance.between(c, 5 * SECOND, 90 * SECOND);
            let back = fails + self.chance.between(c, 10 * SECOND, 150 * SECOND);
            let has_power = self.chance.one_in(c, 2);
            self.at(fails, if has_power { Fault::Disconnect(node.clone()) } else { Fault::PowerOff(node.clone()) });
            self.at(back, if has_power { Fault::Reconnect(node.clone()) } else { Fault::Reboot(node.clone()) });
        }
        if self.chance.one_in(c, 2) {
            let found = at + self.chance.between(c, 20 * SECOND, 150 * SECOND);
            self.at(found, Fault::PowerOff(first));
            self.at(found + SECOND, Fault::Person(Person::SayOff(node.clone())));
        }
        // Whoever makes an instance anew has often deleted the Node before.
        if is_anew && self.chance.one_in(c, 2) {
            let deleted = failed + self.chance.between(c, 30 * SECOND, at - failed);
            self.at(deleted, Fault::DeleteNode(node));
        }
    }
}
