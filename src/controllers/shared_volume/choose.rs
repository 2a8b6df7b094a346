//! Which server is to be active. Pure.
//!
//! One that serves stays, even if the spec prefers another (sticky). A person's choice counts at once; a loss leads to the
//! first other one that answers, but not sooner than `failover.holdDown` after the switch before, so that two servers
//! that come and go do not take turns.

use std::time::{Duration, Instant};

use crate::api::shared_volume::{ActiveServer, Backend, FailoverMode, LastFailover, ProbeGate, ProbeType};
use crate::api::time::Now;

use super::decide::{Answer, Seen, Target};
use super::servers::{Health, Offer, Server, health};
use super::slices::{self, Written};
use super::status::Finding;

/// Reason of a switch that a person asked for.
pub const USER_REQUESTED: &str = "UserRequested";
/// Reason of a switch that follows what the provider reports.
pub const ENDPOINT_CHANGED: &str = "EndpointChanged";
/// Reason of a switch away from a pod that is gone or not Ready.
const POD_LOST: &str = "PodLost";
/// Reason of a switch away from a fenced node.
pub const NODE_FENCED: &str = "NodeFenced";

/// Who is to be active.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// This one, once it answers.
    pub wanted: Option<Server>,
    /// The one that is active now, if the backend still has it.
    pub active: Option<Server>,
    /// The active one is to be left at once.
    pub is_lost: bool,
    /// Nothing may be left there, whatever the spec says of lost servers.
    pub is_fenced: bool,
    /// Why the active one is left.
    pub leaving: Option<&'static str>,
    /// Another one answers, and waits so long for the time between two switches to pass.
    pub held: Option<Duration>,
    /// What there is to be said of the backend; nothing as long as nobody has answered.
    pub backend: Option<Finding>,
    /// Who is to be asked.
    pub probes: Vec<Target>,
    /// When to look again for one that is preferred and may still answer.
    pub look_again: Option<Duration>,
}

/// Chooses.
pub fn choose(seen: &Seen, offer: &Offer, now: Now) -> Choice {
    Chooser::new(seen, offer, now).choice()
}

/// The label of the server that the status tells of.
pub fn recorded_label(backend: &Backend, active: &ActiveServer) -> String {
    match (&backend.provider, active.addresses.first()) {
        (Some(_), Some(address)) => std::net::SocketAddr::new(*address, active.port).to_string(),
        _ => active.name.clone(),
    }
}

/// Whether a switch was made without anybody asking.
pub fn is_automatic(reason: &str) -> bool {
    reason != USER_REQUESTED && reason != ENDPOINT_CHANGED
}

/// The last automatic switch. That of an earlier process is told by the status.
pub fn last_switch(seen: &Seen, now: Now) -> Option<Instant> {
    let recorded = || {
        let status = seen.status()?;
        let last = status.last_failover.as_ref().filter(|last| is_automatic(&last.reason))?;
        // The record of a loss took the place of that of the switch before, which was earlier.
        let earlier = || status.failovers.filter(|count| *count > 0).map(|_| last.detected_at);
        let at = last.switched_at.or_else(earlier)?;
        // A clock that was set back must not hold for ever.
        now.mono.checked_sub((now.wall - at).to_std().unwrap_or_default())
    };
    seen.memory.last_switch.or_else(recorded)
}

/// What is left of the time in which no automatic switch may follow.
fn hold_down(seen: &Seen, now: Now) -> Option<Duration> {
    let passed = now.mono.saturating_duration_since(last_switch(seen, now)?);
    seen.shared_volume.spec.failover.hold_down.get().checked_sub(passed).filter(|left| !left.is_zero())
}

struct Chooser<'a> {
    seen: &'a Seen,
    now: Now,
    /// Those that may become active, the preferred ones first.
    usable: Vec<&'a Server>,
    offer: &'a Offer,
    written: Option<Written>,
    active: Option<&'a Server>,
}

impl<'a> Chooser<'a> {
    fn new(seen: &'a Seen, offer: &'a Offer, now: Now) -> Self {
        let written = slices::written(seen);
        let recorded = seen.status().and_then(|status| status.active.as_ref());
        let is_written = |server: &&Server| written.as_ref().is_some_and(|it| slices::leads_to(it, server));
        let is_recorded = |server: &&Server| recorded.is_some_and(|active| server.is(active));
        // What a person did to a slice does not change who is active.
        let active = offer.servers.iter().find(is_written).or_else(|| offer.servers.iter().find(is_recorded));
        let mut chooser = Self { seen, now, usable: Vec::new(), offer, written, active };
        chooser.usable = chooser.usable();
        chooser
    }

    fn spec(&self) -> &'a crate::api::shared_volume::SharedVolumeSpec {
        &self.seen.shared_volume.spec
    }

    fn usable(&self) -> Vec<&'a Server> {
        if self.awaits_proof() {
            return Vec::new();
        }
        let requested = self.spec().failover.active_candidate.as_deref();
        let may = |server: &&Server| {
            !self.is_fenced(server.node.as_deref()) && (!self.is_manual() || Some(server.name.as_str()) == requested)
        };
        let mut usable: Vec<_> = self.offer.servers.iter().filter(may).collect();
        usable.sort_by_key(|server| Some(server.name.as_str()) != requested);
        usable
    }

    /// The one that was left may still write until its node is proved to be cut off, and another one would be the second
    /// writer. Pods and providers see to that themselves: their servers start where the volume is attached.
    fn awaits_proof(&self) -> bool {
        let last = self.last().filter(|_| self.spec().backend.static_.is_some());
        let left = self.offer.servers.iter().find(|server| Some(&server.label) == last.as_ref());
        left.and_then(|server| server.node.as_ref()).is_some_and(|node| self.seen.unproved_nodes.contains(node))
    }

    /// Only a fixed list waits for a person: providers and pods say themselves who serves.
    fn is_manual(&self) -> bool {
        self.spec().failover.mode == FailoverMode::Manual && self.spec().backend.static_.is_some()
    }

    fn is_fenced(&self, node: Option<&str>) -> bool {
        node.is_some_and(|node| self.seen.fenced_nodes.contains(node))
    }

    fn serves(&self, server: &Server) -> bool {
        health(self.seen, server) == Health::Serving
    }

    /// The active one stands on a fenced node.
    fn active_is_fenced(&self) -> bool {
        let node = self.active.and_then(|server| server.node.as_deref());
        self.is_fenced(node) || self.written.as_ref().is_some_and(|written| self.is_fenced(written.node.as_deref()))
    }

    /// The pod that is active is no server any more.
    fn pod_is_gone(&self) -> bool {
        self.spec().backend.pods.is_some() && self.active.is_none() && self.written.is_some()
    }

    fn is_lost(&self) -> bool {
        let answers_no = self.active.is_some_and(|server| health(self.seen, server) == Health::Lost);
        let nobody = self.offer.servers.is_empty() && !self.offer.is_unknown;
        self.active_is_fenced() || self.pod_is_gone() || answers_no || nobody
    }

    /// The one that was active last, as records call it.
    fn last(&self) -> Option<String> {
        let status = self.seen.status()?;
        let open = |last: &LastFailover| last.switched_at.is_none();
        let recorded = || status.active.as_ref().map(|active| recorded_label(&self.spec().backend, active));
        let left = || status.last_failover.as_ref().filter(|last| open(last))?.from.clone();
        self.active.map(|server| server.label.clone()).or_else(recorded).or_else(left)
    }

    fn choice(&self) -> Choice {
        let held = hold_down(self.seen, self.now).filter(|_| !self.is_exempt());
        let (wanted, look_again) = self.wanted(held);
        let waiting = held.filter(|_| self.waits(wanted));
        let is_lost = self.is_lost();
        Choice {
            wanted: wanted.cloned(),
            active: self.active.cloned(),
            is_lost,
            is_fenced: self.active_is_fenced(),
            leaving: self.leaving(wanted, is_lost),
            held: waiting,
            backend: self.backend(wanted, waiting.is_some()),
            probes: self.probes(wanted),
            look_again,
        }
    }

    /// Where waiting helps nobody: the server is gone for sure, or another program says who serves.
    fn is_exempt(&self) -> bool {
        let open = self.seen.status().and_then(|status| status.last_failover.as_ref());
        let open = open.filter(|last| last.switched_at.is_none()).map(|last| last.reason.as_str());
        let is_gone = |reason: &str| reason == NODE_FENCED || reason == POD_LOST;
        self.active_is_fenced()
            || self.pod_is_gone()
            || open.is_some_and(is_gone)
            || self.seen.memory.leaving.as_ref().is_some_and(|leaving| is_gone(leaving.reason))
            || self.spec().backend.provider.is_some()
            || self.is_manual()
    }

    fn wanted(&self, held: Option<Duration>) -> (Option<&'a Server>, Option<Duration>) {
        let active = self.active.filter(|active| self.usable.contains(active));
        if let Some(requested) = self.requested(held) {
            return (Some(requested), None);
        }
        if let Some(active) = active.filter(|active| health(self.seen, active) != Health::Lost) {
            return (Some(active), None);
        }
        let last = self.last();
        if last.is_none()
            && let Some((server, wait)) = self.first_of_all()
        {
            return (Some(server), wait);
        }
        let may = |server: &&&Server| held.is_none() || Some(&server.label) == last.as_ref();
        let next = self.usable.iter().filter(may).find(|server| self.serves(server)).copied();
        let before = || self.usable.iter().find(|server| Some(&server.label) == last.as_ref()).copied();
        (next.or(active).or_else(before).or(self.usable.first().copied()), None)
    }

    /// The candidate that the spec asks for, if it answers. To go back to one that was lost is a switch like any other.
    fn requested(&self, held: Option<Duration>) -> Option<&'a Server> {
        let requested = self.spec().failover.active_candidate.as_ref()?;
        let server = self.usable.iter().find(|server| server.name == *requested).copied()?;
        if self.is_manual() {
            return Some(server);
        }
        let last = self.seen.status().and_then(|status| status.last_failover.as_ref());
        let was_lost = last.is_some_and(|last| last.from.as_ref() == Some(requested) && is_automatic(&last.reason));
        let may = self.serves(server) && !(was_lost && held.is_some());
        may.then_some(server)
    }

    /// At the very beginning the order of the spec counts: a preferred one gets the time of one probe to answer.
    fn first_of_all(&self) -> Option<(&'a Server, Option<Duration>)> {
        let timeout = self.spec().probe.timeout.get();
        for server in &self.usable {
            if self.serves(server) {
                return Some((server, None));
            }
            let left = match self.seen.answers.get(&server.target) {
                Some(Answer::Failing { .. }) => None,
                Some(Answer::Pending { since }) => {
                    timeout.checked_sub(self.now.mono.saturating_duration_since(*since)).filter(|left| !left.is_zero())
                }
                Some(Answer::Serving { .. }) | None => Some(timeout),
            };
            if left.is_some() {
                return Some((server, left));
            }
        }
        None
    }

    /// Whether only the time between two switches keeps another one from taking over.
    fn waits(&self, wanted: Option<&Server>) -> bool {
        let is_other = |server: &&&Server| Some(**server) != wanted;
        let is_idle =
            wanted.is_none_or(|wanted| health(self.seen, wanted) == Health::Lost || self.active != Some(wanted));
        let goes_back = self.spec().failover.active_candidate.is_some();
        (is_idle || goes_back) && self.usable.iter().filter(is_other).any(|server| self.serves(server))
    }

    fn leaving(&self, wanted: Option<&Server>, is_lost: bool) -> Option<&'static str> {
        let stays = self.active.is_some() && self.active == wanted && !is_lost;
        if stays || self.last().is_none() || self.offer.is_unknown {
            return None;
        }
        let backend = &self.spec().backend;
        let requested = self.spec().failover.active_candidate.as_ref();
        Some(match () {
            () if self.active_is_fenced() => NODE_FENCED,
            () if backend.provider.is_some() && self.active.is_none() => {
                if wanted.is_some() {
                    ENDPOINT_CHANGED
                } else {
                    "EndpointLost"
                }
            }
            () if backend.pods.is_some() && self.active.is_none() => POD_LOST,
            () if is_lost && !self.is_manual() => "ProbeFailed",
            () if requested.is_some() && wanted.map(|wanted| &wanted.name) == requested && self.active != wanted => {
                USER_REQUESTED
            }
            () if is_lost => "ProbeFailed",
            () => "CandidateRemoved",
        })
    }

    fn backend(&self, wanted: Option<&Server>, is_held: bool) -> Option<Finding> {
        if self.offer.trouble.is_some() {
            return self.offer.trouble.clone();
        }
        let backend = &self.spec().backend;
        let Some(wanted) = wanted else {
            if self.awaits_proof() {
                let message =
                    "nobody takes over before the node of the last server is proved to be cut off: see its NodeFence";
                return Some(Finding::no("NodeFenced", message.to_owned()));
            }
            let fenced: Vec<_> = self.offer.servers.iter().map(Server::told).collect();
            let message = format!("on nodes that are being fenced: {}", fenced.join(", "));
            return (!fenced.is_empty()).then(|| Finding::no("NodeFenced", message));
        };
        if backend.provider.is_some() {
            return Some(Finding::yes("ProviderEndpoint", format!("{} is reported", wanted.told())));
        }
        if backend.pods.is_some() {
            return Some(Finding::yes("PodActive", format!("pod {} is Ready", wanted.told())));
        }
        let is_active = self.active == Some(wanted);
        let chosen = || Finding::yes("CandidateActive", format!("{} is chosen", wanted.told()));
        match health(self.seen, wanted) {
            Health::Serving if !is_held || is_active => Some(chosen()),
            Health::Unsettled if is_active => {
                Some(Finding::before(self.seen, "BackendAvailable").unwrap_or_else(chosen))
            }
            _ if is_held => {
                let length = &self.spec().failover.hold_down;
                let message = format!("another candidate answers, and waits for failover.holdDown ({length}) to pass");
                Some(Finding::no("NoCandidateServes", message))
            }
            Health::Unsettled if self.last().is_none() => None,
            _ => Some(Finding::no("NoCandidateServes", "no candidate that may be active answers".to_owned())),
        }
    }

    /// The active one alone as long as it serves; else everybody, so that it is known at once who can take over. Nobody
    /// on a fenced node: a dead one would only cost time.
    fn probes(&self, wanted: Option<&Server>) -> Vec<Target> {
        let requested = self.spec().failover.active_candidate.as_deref();
        let is_steady = self.active.is_some_and(|active| {
            Some(active) == wanted && self.serves(active) && requested.is_none_or(|it| it == active.name)
        });
        let all = self.usable.iter().copied().chain(self.active.filter(|it| !self.is_fenced(it.node.as_deref())));
        let mut targets: Vec<_> =
            all.filter(|server| !is_steady || Some(*server) == self.active).map(|server| server.target).collect();
        targets.retain(|target| target.probe != ProbeType::None);
        targets.sort();
        targets.dedup();
        targets
    }
}

/// Whether traffic may go to a server: it answers, or nothing waits for answers and it was not seen to fail.
pub fn is_accepted(seen: &Seen, server: &Server) -> bool {
    match health(seen, server) {
        Health::Serving => true,
        Health::Unsettled => seen.shared_volume.spec.probe.gate == ProbeGate::Never,
        Health::Lost => false,
    }
}
