//! I15, of a fencer's word on the power of a node: nothing rests on one that the node has denied since, that was there before
//! whoever decides looked, or whose fencer is not heard of any more. Judged by what the passes of that very process were shown, by its
//! own clock: which of two watches was late decides what came first.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bulkhead::api::driver_report::{DriverReport, PoweredOffNode};
use bulkhead::api::names;
use bulkhead::api::node_fence::{Channel, EvidenceState, NodeFence};
use bulkhead::api::slim::Node;
use bulkhead::controllers::resiliency_policy::decide::{Decision, Effect};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::ResourceExt;

use crate::others::POWER;
use crate::process::Pid;
use crate::process::views::Views;
use crate::time::{Millis, SECOND};
use crate::world::World;

/// What was sent before the end of a machine may arrive so late.
const IN_FLIGHT: Millis = 2 * SECOND;
/// A fencer whose Lease stands still for so long is not heard of.
const FENCER_SILENT: Millis = 20 * SECOND;

/// What the passes of a process were shown, by its own clock.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown {
    /// The life of the process.
    life: u32,
    has_looked: bool,
    words: BTreeMap<Word, Said>,
    /// When the kubelets renewed their Leases, by their own stamps.
    renewed: BTreeMap<String, Option<MicroTime>>,
    fencer: Option<Fencer>,
}

/// That a boot of a Node has ended: name, uid and boot id.
type Word = (String, String, String);

/// What is known of a word.
#[derive(Clone, Copy, Debug)]
struct Said {
    since: Millis,
    /// The node was heard after that.
    is_denied: bool,
    /// The first pass was shown it already.
    was_there: bool,
}

/// What is known of the fencer's Lease.
#[derive(Clone, Debug)]
struct Fencer {
    renewed: Option<MicroTime>,
    /// When that was shown.
    at: Millis,
    /// It was another before.
    has_moved: bool,
}

impl Shown {
    fn pass(&mut self, views: &Views, mut heard: BTreeSet<String>, at: Millis) {
        for (name, lease) in &views.leases.objects {
            let known = self.renewed.insert(name.clone(), lease.spec.renew_time.clone());
            heard.extend(known.filter(|known| *known != lease.spec.renew_time).map(|_| name.clone()));
        }
        let lease = views.leader_leases.get(&names::fencer_lease(POWER));
        let known = self.fencer.take();
        self.fencer = lease.map(|it| {
            let renewed = it.lease.spec.renew_time.clone();
            let has_moved = known.is_some();
            known.filter(|known| known.renewed == renewed).unwrap_or(Fencer { renewed, at, has_moved })
        });
        let report = views.reports.get(POWER);
        let rows = report.iter().flat_map(|report| report.powered_off());
        let uid = |node: &str| views.nodes.get(node).and_then(|node| node.uid());
        let is_there = |row: &&PoweredOffNode| uid(&row.node).as_ref() == Some(&row.node_uid);
        let said: BTreeSet<Word> = rows.filter(is_there).map(word).collect();
        let is_of_now = |word: &Word| views.nodes.get(&word.0).is_some_and(|node| boot_of(&node) == *word);
        self.words.retain(|word, _| said.contains(word) || is_of_now(word));
        for word in said {
            self.words.entry(word).or_insert(Said { since: at, is_denied: false, was_there: !self.has_looked });
        }
        for ((node, ..), said) in &mut self.words {
            said.is_denied |= heard.contains(node) && said.since + IN_FLIGHT < at;
        }
        self.has_looked = true;
    }

    fn hears_fencer(&self, at: Millis) -> bool {
        self.fencer.as_ref().is_some_and(|fencer| fencer.has_moved && fencer.at + FENCER_SILENT > at)
    }
}

impl World {
    /// A pass over the cluster is shown what there is.
    pub(super) fn note_shown(&mut self, pid: Pid) {
        if !self.shape.power.is_some_and(|power| power.reports) {
            return;
        }
        let heartbeats = self.heartbeats(pid).into_iter();
        let heard = heartbeats.filter(|(_, it)| it.out_of_reach_for == Some(Duration::ZERO)).map(|(name, _)| name);
        let (at, life) = (self.own_time(pid), self.processes[pid].life);
        let known = self.oracle.shown.remove(&pid).filter(|shown| shown.life == life);
        let mut shown = known.unwrap_or_else(|| Shown { life, ..Shown::default() });
        shown.pass(&self.controllers[pid].views, heard.collect(), at);
        self.oracle.shown.insert(pid, shown);
    }

    /// A pass has decided to begin with nodes, or to take them for failed as a whole.
    pub(super) fn judge_words(&mut self, pid: Pid, decision: &Decision) {
        for effect in &decision.effects {
            let (Effect::Open(fence) | Effect::Replan(fence)) = effect else { continue };
            let node = fence.name_any();
            let known = self.api.get::<NodeFence>(&node);
            // A plan of another version is refused, whatever it was decided on.
            let version = &fence.metadata.resource_version;
            let is_refused = known.as_ref().is_some_and(|known| known.metadata.resource_version != *version);
            let known = known.filter(|known| known.spec.episode == fence.spec.episode);
            let rested_on_it = known.is_some_and(|known| rests_on_power(&known));
            if rests_on_power(fence) && !rested_on_it && !is_refused {
                self.judge_word(pid, &node);
            }
        }
    }

    fn judge_word(&mut self, pid: Pid, name: &str) {
        self.counts.declared_off += 1;
        let Some(node) = self.api.get::<Node>(name) else { return };
        let (of_now, at) = (boot_of(&node), self.own_time(pid));
        let shown = self.oracle.shown.get(&pid);
        let said = shown.and_then(|shown| shown.words.get(&of_now));
        let report = self.api.get::<DriverReport>(POWER);
        let is_said = report.iter().flat_map(|report| report.powered_off()).any(|row| word(row) == of_now);
        let is_given_up = node.ready() != "True" || self.has_missed_two_renewals(name);
        let wrong = match said {
            None => "nobody has said so of this boot",
            Some(_) if !is_said => "its fencer has taken it back",
            Some(said) if said.is_denied => "it was heard since that was said",
            Some(said) if said.was_there && !is_given_up => "that was said before anybody looked",
            Some(_) if !shown.is_some_and(|shown| shown.hears_fencer(at)) => "its fencer is not heard of",
            Some(_) => return,
        };
        self.oracle.break_("I15", self.now, format!("{name} is declared to have no power, and {wrong}"));
    }

    /// The time by the own clock of a process, which stood still while it slept with its machine.
    fn own_time(&self, pid: Pid) -> Millis {
        self.now.saturating_sub(self.processes[pid].clocks.slept)
    }
}

fn rests_on_power(fence: &NodeFence) -> bool {
    let mut evidence = fence.spec.plan.evidence.iter();
    evidence.any(|it| it.channel == Channel::Power && it.state == EvidenceState::Failed)
}

fn word(row: &PoweredOffNode) -> Word {
    (row.node.clone(), row.node_uid.clone(), row.boot_id.clone())
}

/// What a word would be of now.
fn boot_of(node: &Node) -> Word {
    (node.name_any(), node.uid().unwrap_or_default(), node.status.node_info.boot_id.clone())
}
