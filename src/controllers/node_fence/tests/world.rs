//! A cluster in one value, which notes what happened in which order: it carries out the effects of a decision (`effects`).
//! Fencers, the attacher and the kubelet act when they are told to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::fencing::Proof;
use crate::api::names;
use crate::api::node_fence::{Channel, LEASE_NOT_RENEWED, Plan};
use crate::api::slim::{Node, Pod};
use crate::api::time::{self, Now};
use crate::api::usage::PodView;
use crate::controllers::testing::*;

use super::super::decide::{Decision, Seen, Settings, decide};
use super::build::{fence, node_using, unique_name};
pub use super::fencer::Fencer;
use super::fencer::{answer, tell_shut_out};

/// The cluster.
pub struct World {
    /// What the stores and the API show.
    pub seen: Seen,
    /// The clocks.
    pub now: Now,
    /// What happened.
    pub log: Vec<String>,
    /// Behaviour by driver; without one it proves Verified.
    pub fencers: BTreeMap<String, Fencer>,
    /// Whether the attacher finishes deletions of attachments.
    pub attacher: bool,
}

impl World {
    /// A failed node with these pods and their attachments, just planned under a policy with that spec.
    pub fn new(pods: Vec<PodView>, spec: &serde_json::Value) -> Self {
        let policy = policy("db", spec);
        let fence = fence(&pods, &policy);
        let volumes: Vec<String> = fence.spec.plan.volumes.iter().map(|row| row.name.clone()).collect();
        let attachable = fence.spec.plan.volumes.iter().filter(|row| row.attachment_uid.is_some());
        let attachments = attachable.map(|row| Arc::new(attachment(&row.name, "n1"))).collect::<Vec<_>>();
        let drivers = fence.spec.plan.volumes.iter().filter_map(|row| row.driver.clone());
        let now = now();
        let seen = Seen {
            node: Some(Arc::new(node_using(unreachable("n1"), &fence))),
            last_boot: None,
            lease_is_still: true,
            renewed_lately: false,
            renewed_at: None,
            pods,
            attached_since: volumes.iter().map(|name| (format!("va-{name}"), now.mono)).collect(),
            attachments,
            requests: Vec::new(),
            reports: reports(drivers.map(|driver| able(&driver))),
            node_report: None,
            healths: Some(BTreeMap::new()),
            policies: vec![Arc::new(policy)],
            asked: BTreeMap::new(),
            node_changed_at: None,
            live: false,
            out_of_service_spent: false,
            recorded_for: Duration::from_secs(2),
            watched_for: Duration::ZERO,
            settings: Settings::default(),
            fence: Arc::new(fence),
        };
        Self { seen, now: later(now, 1.0), log: Vec::new(), fencers: BTreeMap::new(), attacher: true }
    }

    /// Decides as the controller does: on the stores, which keep no pods without volumes, and again on the API where the
    /// decision asks for it.
    pub fn decide(&self) -> Decision {
        let pods = self.seen.pods.iter().filter(|pod| !pod.volumes.is_empty()).cloned().collect();
        let decision = decide(&Seen { pods, ..self.seen.clone() }, self.now);
        if !decision.look_live {
            return decision;
        }
        let live = Seen { live: true, ..self.seen.clone() };
        let decision = decide(&live, self.now);
        assert!(!decision.look_live, "a live look is asked for once: {}", decision.reason);
        decision
    }

    /// One pass; whether it did anything.
    pub fn pass(&mut self) -> bool {
        let told = self.seen.node.as_ref().and_then(|node| node.boot_id().map(str::to_owned));
        self.seen.last_boot = told.or(self.seen.last_boot.take());
        let decision = self.decide();
        let acted = !decision.effects.is_empty();
        for effect in decision.effects {
            self.apply(effect);
        }
        acted
    }

    /// Passes, fencers and attacher until nothing moves; and then a pass must do nothing.
    pub fn run(&mut self) {
        for _ in 0..300 {
            let acted = self.pass();
            if !acted && !self.others_act() {
                let again = self.decide();
                assert_eq!(again.effects, [], "writes at rest: {}", again.reason);
                return;
            }
        }
        panic!("no rest after 300 passes: {:#?}", &self.log[self.log.len().saturating_sub(20)..]);
    }

    /// Passes of the controller alone, until it rests.
    pub fn run_controller(&mut self) {
        for _ in 0..100 {
            if !self.pass() {
                return;
            }
        }
        panic!("no rest after 100 passes: {:#?}", self.log);
    }

    /// Time passes for nobody but the clocks.
    pub fn wait(&mut self, seconds: f64) {
        self.seen.watched_for += Duration::from_secs_f64(seconds);
        self.now = later(self.now, seconds);
    }

    /// Passes, fencers and attacher until that is done.
    pub fn run_until(&mut self, done: &str) {
        while !self.did(done) {
            assert!(self.pass() || self.others_act(), "not {done}: {:#?}", self.log);
        }
    }

    /// A pod that is as good as deleted when the controller starts anew: what was proved is asked for once more.
    pub fn asks_again_after_a_restart(&mut self) {
        self.run_until("pg is Releasing");
        self.restart();
        self.run();
        self.assert_order(&[
            "pg is Releasing",
            "ask Fenced v1 round 2",
            "Started v1",
            "Fenced v1",
            "delete pg grace 0",
        ]);
    }

    /// Fencers and attacher do their next thing; whether there was any.
    pub fn others_act(&mut self) -> bool {
        let fenced = self.fencers_act();
        let attached = self.seen.attachments.len();
        if self.attacher {
            let in_use: Vec<String> = self.volumes_in_use();
            // Attach/detach detaches what no pod uses: at once under the taint, and of a node that is back.
            let back = self.seen.node.as_ref().is_some_and(|node| node.ready() == "True");
            let by_taint = self.seen.our_out_of_service().is_some() || back;
            self.seen.attachments.retain(|attachment| {
                let deleted = attachment.metadata.deletion_timestamp.is_some();
                !deleted && (!by_taint || in_use.iter().any(|name| name == attachment.volume()))
            });
            self.sync_node();
        }
        fenced || attached != self.seen.attachments.len()
    }

    fn volumes_in_use(&self) -> Vec<String> {
        let used = self.seen.pods.iter().flat_map(|pod| &pod.volumes);
        used.map(|volume| volume.name.clone()).collect()
    }

    /// Each fencer takes its next step for all its rows: Started first, the answer later.
    pub fn fencers_act(&mut self) -> bool {
        let mut acted = false;
        let now = time::stamp(self.now.wall);
        for request in &mut self.seen.requests {
            let driver = request.spec.fencer_name.clone();
            let fencer = self.fencers.get(&driver).cloned().unwrap_or(Fencer::Proves(Proof::Verified));
            let request = Arc::make_mut(request);
            let results = &mut request.status.get_or_insert_default().volumes;
            for asked in &request.spec.volumes {
                let index = results.iter().position(|it| (it.episode, &it.name) == (asked.episode, &asked.name));
                let known = index.map(|index| results[index].clone());
                let next = answer(&fencer, request.spec.desired, asked, known.as_ref(), now);
                let Some(next) = next else { continue };
                acted = true;
                self.log.push(format!("{:?} {}", next.result, next.name));
                match index {
                    Some(index) => results[index] = next,
                    None => results.push(next),
                }
            }
            tell_shut_out(request, self.now.wall);
        }
        acted
    }

    /// The pod is gone.
    pub fn remove_pod(&mut self, name: &str) {
        self.seen.pods.retain(|pod| pod.name() != name);
        self.sync_node();
    }

    /// Somebody writes the pod.
    pub fn change_pod(&mut self, name: &str, change: impl FnOnce(&mut Pod)) {
        let place = self.seen.pods.iter().position(|pod| pod.name() == name).expect("the pod is there");
        let pod = Arc::make_mut(&mut self.seen.pods[place].pod);
        let version: u64 = pod.metadata.resource_version.as_deref().unwrap().parse().unwrap();
        pod.metadata.resource_version = Some((version + 1).to_string());
        change(pod);
    }

    /// The node becomes another, with the taints that it has.
    pub fn node_becomes(&mut self, change: impl FnOnce(Node) -> Node) {
        let node = self.seen.node.take().map(|node| change(node.as_ref().clone()));
        self.seen.node = node.map(Arc::new);
    }

    /// The kubelet is heard of again.
    pub fn node_returns(&mut self) {
        self.seen.lease_is_still = false;
        self.node_becomes(|node| {
            let mut node = with_ready(node, "True");
            node.spec.taints.iter_mut().for_each(|taints| taints.retain(|t| t.key != names::UNREACHABLE_TAINT));
            node
        });
    }

    /// Heartbeats declared the node failed: for Kubernetes it is Ready still.
    pub fn heartbeats_tell(&mut self) {
        let plan = self.plan();
        let mut agent = plan.evidence[0].clone();
        (agent.channel, agent.reason) = (Channel::Agent, "HeartbeatLost".into());
        plan.evidence[0].reason = LEASE_NOT_RENEWED.into();
        plan.evidence.push(agent);
        self.node_becomes(|node| {
            let mut node = with_ready(node, "True");
            node.spec.taints.iter_mut().for_each(|taints| taints.retain(|t| t.key != names::UNREACHABLE_TAINT));
            node
        });
    }

    /// Ready has turned just now.
    pub fn ready_turns(&mut self) {
        let now = stamp(self.now);
        self.node_becomes(|mut node| {
            node.status.conditions[0].last_transition_time = Some(now);
            node
        });
    }

    /// The kubelet is silent again.
    pub fn node_fails(&mut self) {
        self.node_becomes(|node| with_taint(with_ready(node, "Unknown"), names::UNREACHABLE_TAINT, "", "NoSchedule"));
    }

    /// The machine has booted again.
    pub fn node_reboots(&mut self) {
        self.node_becomes(|mut node| {
            node.status.node_info.boot_id.push_str("-again");
            node
        });
        self.wait(0.1);
        self.seen.node_changed_at = Some(self.now.mono);
        self.node_returns();
    }

    /// The controller is another process: it remembers nothing.
    pub fn restart(&mut self) {
        self.seen.asked.clear();
        self.seen.watched_for = Duration::ZERO;
        self.seen.node_changed_at = None;
        self.seen.last_boot = None;
        self.seen.out_of_service_spent = false;
        let now = self.now.mono;
        let is_there = |uid: &String| self.seen.attachments.iter().any(|it| it.metadata.uid.as_ref() == Some(uid));
        self.seen.attached_since.retain(|uid, _| is_there(uid));
        self.seen.attached_since.values_mut().for_each(|since| *since = now);
        self.wait(0.1);
    }

    /// An attachment appears.
    pub fn attach(&mut self, volume: &str, uid: &str, attached: bool) {
        let mut new = attachment(volume, "n1");
        new.metadata.uid = Some(uid.into());
        new.metadata.creation_timestamp = Some(stamp(self.now));
        new.status.attached = attached;
        self.seen.attachments.push(Arc::new(new));
        if attached {
            self.seen.attached_since.insert(uid.into(), self.now.mono);
        }
    }

    /// The plan, as a test wants it.
    pub fn plan(&mut self) -> &mut Plan {
        &mut Arc::make_mut(&mut self.seen.fence).spec.plan
    }

    /// The node's lists of volumes follow the attachments, as attach/detach keeps them.
    fn sync_node(&mut self) {
        let attached: Vec<String> = self.seen.attachments.iter().map(|it| unique_name(it.volume())).collect();
        if let Some(node) = self.seen.node.as_mut() {
            let status = &mut Arc::make_mut(node).status;
            status.volumes_attached.retain(|volume| attached.contains(&volume.name));
            status.volumes_in_use.retain(|name| attached.contains(name));
        }
    }
}

pub(super) fn stamp(now: Now) -> Time {
    time::to_k8s(now.wall)
}
