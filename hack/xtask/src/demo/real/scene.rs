//! One failure of one node, from a database that runs to a node that is whole again.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bulkhead::api::conditions;
use bulkhead::api::names::{ACTIVE_LABEL, FENCED_TAINT, OUT_OF_SERVICE_TAINT, UNREACHABLE_TAINT};
use bulkhead::api::node_fence::NodeFence;
use bulkhead::api::node_volume_report::NodeVolumeReport;
use bulkhead_testbed::cluster::real::{PodPlace, RealCluster, RealWorkload, last_written, records_found};
use bulkhead_testbed::ledger::{Entry, Event, Ledger, Operation, Stamp};
use bulkhead_testbed::real_nodes::Fault;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::{Actor, Array};
use crate::Result;
use crate::incident::{Moment, seconds};

/// Longest time for the pods of the demo to come up, or for a node to be whole again. A machine may be busy.
const SETUP: Duration = Duration::from_secs(180);
/// How often it is looked. What the table says is not from here.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long both writers are watched after the new one has begun.
const BOTH: Duration = Duration::from_secs(10);

/// How a failure went. Moments are the array's or the API server's.
pub(in crate::demo) struct Outcome {
    pub actor: Actor,
    pub array: Array,
    /// Nodes before and, if it moved, after.
    pub from: String,
    pub to: Option<String>,
    /// The control link was cut: the zero.
    pub cut: Moment,
    /// Kubernetes noticed.
    pub unreachable: Option<Moment>,
    /// Its last accepted write of the old node, and the first of the new one.
    pub last_old: Option<Moment>,
    pub first_new: Option<Moment>,
    /// Writes of the old node after the cut: accepted, refused, and accepted after the new node's first.
    pub accepted: usize,
    pub refused: usize,
    pub double: usize,
    /// Why Bulkhead holds, if it does.
    pub held: Option<String>,
    /// How long nobody acted, and whether the database ran elsewhere by then.
    pub alone: Option<(Duration, bool)>,
    /// From the healed link to a node without taints.
    pub recovered: Option<Duration>,
    /// The last record that the old container knew to be safe, and what its successor found.
    pub safe: Option<u64>,
    pub found: Option<u64>,
}

/// A database that runs on a node that is about to be lost.
pub(super) struct Scene<'a> {
    cluster: &'a RealCluster,
    actor: Actor,
    array: Array,
    set: RealWorkload,
    old: PodPlace,
    volume: String,
}

impl<'a> Scene<'a> {
    /// Runs the database and waits for its first write.
    pub async fn set_up(cluster: &'a RealCluster, name: &str, actor: Actor, array: Array) -> Result<Self> {
        let set = RealWorkload { node: Some(cluster.node_without_leader().await?), ..RealWorkload::new(name) };
        cluster.run(&set).await?;
        let old = cluster.running(&set, &[], SETUP).await?.into_iter().next().ok_or("the pod is nowhere")?;
        let volume = cluster.volume(&set, 0).await?;
        cluster.array.ledger().wait_for_write(&volume, &old.node, Stamp::START, SETUP).await?;
        println!("\n{}: {}-0 writes to its volume on {}.", title(actor, array), name, old.node);
        Ok(Self { cluster, actor, array, set, old, volume })
    }

    /// The handle of its volume.
    pub fn volume(&self) -> &str {
        &self.volume
    }

    /// Cuts the control link and follows what happens until both have written for a while, or `limit` has passed.
    pub async fn play(&self, limit: Duration) -> Result<Outcome> {
        let ledger = self.cluster.array.ledger();
        self.cluster.node(&self.old.node)?.fault(Fault::CutControl).await?;
        let cut = ledger.now();
        println!("The control link of {} is cut. Its containers run on, and so does the storage link.", self.old.node);
        let mut said = Said::new(Instant::now());
        let mut outcome = self.outcome(ledger.wall(cut));
        let mut noticed: Option<Instant> = None;
        loop {
            let look = Look::now(&self.cluster.client, &self.old.node).await?;
            if noticed.is_none() && look.has_taint(UNREACHABLE_TAINT) {
                (noticed, outcome.unreachable) = (Some(Instant::now()), Some(chrono::Utc::now()));
            }
            self.tell(&look, &mut said, cut);
            if let (Actor::Person(after), Some(noticed)) = (self.actor, noticed)
                && noticed.elapsed() >= after
                && !look.has_taint(OUT_OF_SERVICE_TAINT)
            {
                outcome.alone.get_or_insert((after, self.first_elsewhere(cut).is_some()));
                self.set_out_of_service(true).await?;
            }
            let moved = self.first_elsewhere(cut);
            if moved.is_some_and(|first| ledger.now().since(first) >= BOTH) {
                break;
            }
            if noticed.is_some_and(|noticed| noticed.elapsed() >= limit) || said.since.elapsed() >= limit + SETUP {
                outcome.held = look.held();
                break;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        self.count(&mut outcome, cut);
        // Later its kubelet removes the log with the pod.
        outcome.safe = last_written(&self.cluster.log(&self.set, &self.old)?);
        Ok(outcome)
    }

    /// Heals the link and waits until the node is whole; then removes the database.
    pub async fn recover(self, mut outcome: Outcome) -> Result<Outcome> {
        let healed = Instant::now();
        self.cluster.node(&self.old.node)?.heal_all().await?;
        println!("The link of {} is healed.", self.old.node);
        if matches!(self.actor, Actor::Person(_)) {
            self.cluster.node(&self.old.node)?.wait_ready().await?;
            self.set_out_of_service(false).await?;
        }
        let mut said = Said::new(healed);
        loop {
            let look = Look::now(&self.cluster.client, &self.old.node).await?;
            self.tell_recovery(&look, &mut said);
            if look.is_usable() {
                break;
            }
            if healed.elapsed() >= SETUP {
                return Err(format!("{} is not whole again: {}", self.old.node, look.text()).into());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        outcome.recovered = Some(healed.elapsed());
        if outcome.to.is_some() {
            let after = self.cluster.running(&self.set, std::slice::from_ref(&self.old), SETUP).await?;
            let new = after.first().ok_or("the pod is nowhere")?;
            outcome.found = records_found(&self.cluster.log(&self.set, new)?);
        }
        Api::<StatefulSet>::namespaced(self.cluster.client.clone(), &self.set.namespace)
            .delete(&self.set.name, &DeleteParams::foreground())
            .await?;
        Ok(outcome)
    }

    fn outcome(&self, cut: Moment) -> Outcome {
        Outcome {
            actor: self.actor,
            array: self.array,
            from: self.old.node.clone(),
            to: None,
            cut,
            unreachable: None,
            last_old: None,
            first_new: None,
            accepted: 0,
            refused: 0,
            double: 0,
            held: None,
            alone: None,
            recovered: None,
            safe: None,
            found: None,
        }
    }

    fn ledger(&self) -> &Ledger {
        self.cluster.array.ledger()
    }

    fn first_elsewhere(&self, cut: Stamp) -> Option<Stamp> {
        self.ledger().read(|entries| {
            let after = |entry: &&Entry| entry.at > cut && *entry.volume == *self.volume;
            let elsewhere =
                |entry: &&Entry| *entry.node != *self.old.node && matches!(entry.event, Event::Wrote { .. });
            entries.iter().filter(after).find(elsewhere).map(|entry| entry.at)
        })
    }

    /// The ledger's verdict.
    fn count(&self, outcome: &mut Outcome, cut: Stamp) {
        let (ledger, first) = (self.ledger(), self.first_elsewhere(cut));
        outcome.first_new = first.map(|first| ledger.wall(first));
        for entry in ledger.entries().iter().filter(|entry| entry.at > cut && *entry.volume == *self.volume) {
            let old = *entry.node == *self.old.node;
            match &entry.event {
                Event::Wrote { .. } if old => {
                    outcome.accepted += 1;
                    outcome.last_old = Some(ledger.wall(entry.at));
                    outcome.double += usize::from(first.is_some_and(|first| entry.at > first));
                }
                Event::Wrote { .. } => outcome.to = Some(entry.node.to_string()),
                Event::Refused { operation: Operation::Write, .. } if old => outcome.refused += 1,
                _ => {}
            }
        }
    }

    fn tell(&self, look: &Look, said: &mut Said, cut: Stamp) {
        let node = &self.old.node;
        let held = look.held();
        for (seen, what) in [
            (look.has_taint(UNREACHABLE_TAINT), format!("Kubernetes notices: taint {UNREACHABLE_TAINT} on {node}")),
            (look.is_fenced(), format!("Bulkhead decides: NodeFence {node} holds the plan")),
            (look.has_taint(FENCED_TAINT), format!("no new pods for {node}: taint {FENCED_TAINT}")),
            (
                matches!(self.actor, Actor::Person(_)) && look.has_taint(OUT_OF_SERVICE_TAINT),
                format!("a person sets the taint {OUT_OF_SERVICE_TAINT}"),
            ),
            (self.ledger().refused_writes(&self.volume, node, cut) > 0, "the array refuses the old container".into()),
            (self.first_elsewhere(cut).is_some(), "the replacement writes on another node".into()),
            (held.is_some(), format!("held: {}", held.as_deref().unwrap_or_default())),
        ] {
            if seen {
                said.say("cut", &what);
            }
        }
    }

    fn tell_recovery(&self, look: &Look, said: &mut Said) {
        if let Some(state) = look.cleanup() {
            said.say("heal", &format!("the agent of {} says: {state}", self.old.node));
        }
        if look.is_usable() {
            said.say("heal", &format!("{} has no taint any more: it is whole", self.old.node));
        }
    }

    async fn set_out_of_service(&self, set: bool) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.cluster.client.clone());
        let node = nodes.get(&self.old.node).await?;
        let mut taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        taints.retain(|taint| taint.key != OUT_OF_SERVICE_TAINT);
        if set {
            taints.push(Taint {
                key: OUT_OF_SERVICE_TAINT.into(),
                value: Some("nodeshutdown".into()),
                effect: "NoExecute".into(),
                time_added: None,
            });
        }
        let patch =
            json!({"metadata": {"resourceVersion": node.metadata.resource_version}, "spec": {"taints": taints}});
        match nodes.patch(&self.old.node, &PatchParams::default(), &Patch::Merge(patch)).await {
            // The node lifecycle controller was faster: the next look tries again.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }
}

/// What is there at one moment.
struct Look {
    node: Option<Node>,
    fence: Option<NodeFence>,
    report: Option<NodeVolumeReport>,
}

impl Look {
    async fn now(client: &Client, node: &str) -> Result<Self> {
        Ok(Self {
            node: Api::all(client.clone()).get_opt(node).await?,
            fence: optional(Api::all(client.clone()).get_opt(node).await)?,
            report: optional(Api::all(client.clone()).get_opt(node).await)?,
        })
    }

    fn taints(&self) -> impl Iterator<Item = &Taint> {
        self.node.iter().filter_map(|node| node.spec.as_ref()).flat_map(|spec| spec.taints.iter().flatten())
    }

    fn has_taint(&self, key: &str) -> bool {
        self.taints().any(|taint| taint.key == key)
    }

    fn is_usable(&self) -> bool {
        let conditions =
            self.node.iter().filter_map(|node| node.status.as_ref()).flat_map(|it| it.conditions.iter().flatten());
        let ready = conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
        ready && self.taints().next().is_none()
    }

    /// There is an incident: the record of one that is over does not count.
    fn is_fenced(&self) -> bool {
        self.fence.as_ref().is_some_and(|fence| fence.labels().contains_key(ACTIVE_LABEL))
    }

    /// Why the incident waits, if it waits for proof.
    fn held(&self) -> Option<String> {
        let status = self.fence.as_ref()?.status.as_ref()?;
        let ready = conditions::find(&status.conditions, "Ready")?;
        (ready.reason == "ProofTooWeak").then(|| format!("{}: {}", ready.reason, ready.message))
    }

    fn cleanup(&self) -> Option<String> {
        let cleanup = self.report.as_ref()?.status.as_ref()?.cleanup.as_ref()?;
        let fence = self.fence.as_ref()?;
        let current = fence.metadata.uid.as_ref() == Some(&cleanup.fence_uid) && cleanup.episode == fence.spec.episode;
        current.then(|| format!("{:?}, {} clean passes", cleanup.state, cleanup.clean_passes))
    }

    fn text(&self) -> String {
        let fence = self.fence.as_ref().and_then(|fence| fence.status.as_ref());
        let said = fence.and_then(|status| conditions::find(&status.conditions, "NodeClean"));
        format!("taints {:?}; {:?}", self.taints().map(|taint| &taint.key).collect::<Vec<_>>(), said)
    }
}

/// A kind that this cluster does not have is not there.
fn optional<T>(found: kube::Result<Option<T>>) -> Result<Option<T>> {
    match found {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        other => Ok(other?),
    }
}

/// Says each thing once.
struct Said {
    since: Instant,
    said: BTreeSet<String>,
}

impl Said {
    fn new(since: Instant) -> Self {
        Self { since, said: BTreeSet::new() }
    }

    fn say(&mut self, from: &str, what: &str) {
        if self.said.insert(what.to_owned()) {
            println!("{from:>6} +{:5.1} s  {what}", self.since.elapsed().as_secs_f64());
        }
    }
}

/// How a failure is called.
pub(super) fn title(actor: Actor, array: Array) -> String {
    let who = match actor {
        Actor::Bulkhead => "with Bulkhead".to_owned(),
        Actor::Person(after) => format!("without, and a person after {} s", after.as_secs()),
    };
    let array = match array {
        Array::Revokes => "array revokes",
        Array::SaysOk => "array says OK only",
    };
    format!("{who}, {array}")
}

impl Outcome {
    /// Seconds after the cut.
    pub fn after_cut(&self, at: Option<Moment>) -> String {
        at.map_or_else(|| "never".to_owned(), |at| format!("{:.1}", seconds(self.cut, at)))
    }
}
