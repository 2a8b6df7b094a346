//! What the host network of a machine carries beside its kubelet's word: the beats of its agent to the controllers, and the
//! probes of its peers.

use crate::time::Millis;

/// The host network of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// No beat reaches a controller.
    pub is_unheard: bool,
    /// No peer reaches it either: its agent has ended, or nothing of the network is left.
    pub is_cut: bool,
    /// Since when no beat has arrived; `None` while they do.
    pub(crate) unheard_since: Option<Millis>,
    /// Since when no peer has reached it; `None` while they do.
    pub(crate) unmet_since: Option<Millis>,
    /// When the last time ended in which none did.
    pub(crate) met_again_at: Option<Millis>,
}

impl Network {
    /// It carries everything again.
    pub(crate) fn mend(&mut self) {
        (self.is_unheard, self.is_cut) = (false, false);
    }

    /// The machine, or its network, has changed.
    pub(crate) fn notice(&mut self, runs: bool, now: Millis) {
        let since = |is_silent: bool, since: Option<Millis>| is_silent.then(|| since.unwrap_or(now));
        let is_unmet = !runs || self.is_cut;
        if self.unmet_since.is_some() && !is_unmet {
            self.met_again_at = Some(now);
        }
        self.unheard_since = since(is_unmet || self.is_unheard, self.unheard_since);
        self.unmet_since = since(is_unmet, self.unmet_since);
    }
}
