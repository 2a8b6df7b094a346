//! A certification from its first object to its last look. What it learns it keeps, also when it is interrupted.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, PersistentVolume};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::{Api, ResourceExt};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::fence_request::{FenceOutcome, FenceResult};
use crate::api::names;
use crate::api::slim::Node;
use crate::kubectl::error::{Error, Result};
use crate::runtime::client::Clients;

use super::judge::{Facts, Reason};
use super::log::WriterLog;
use super::pods;
use super::prepare::Plan;
use super::report::Step;
use super::scratch::{Program, Role, Scratch, Target};

/// How long a volume may take to be made and attached, or to move to the other node.
const VOLUME: Duration = Duration::from_secs(300);
/// How long the fencer may take to answer: its own deadline of a call, and its reads.
const ANSWER: Duration = Duration::from_secs(90);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(100);
/// Numbers that must be durable before the node is cut off.
const ENOUGH: usize = 5;

impl From<Error> for Reason {
    fn from(error: Error) -> Self {
        Self { reason: "Failed", message: error.to_string() }
    }
}

/// What ends a trial before its end.
type Stopped<T> = std::result::Result<T, Reason>;

/// A certification under way.
pub struct Trial {
    plan: Plan,
    scratch: Scratch,
    clients: Clients,
    began: Instant,
    stop: CancellationToken,
    log: Arc<Mutex<WriterLog>>,
    /// What was learnt.
    pub facts: Facts,
    /// What was done.
    pub steps: Vec<Step>,
}

impl Trial {
    /// Nothing is created yet. `stop` ends it at the next wait: what was asked to be created is then known.
    pub fn new(plan: Plan, scratch: Scratch, clients: Clients, stop: CancellationToken) -> Self {
        let (facts, steps) = (Facts::default(), Vec::new());
        Self { plan, scratch, clients, began: Instant::now(), stop, log: Arc::default(), facts, steps }
    }

    /// Time since the beginning.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Everything, until something stops it.
    pub async fn play(&mut self, size: &str, watch: Duration) {
        let listening = pods::listen(&self.clients.watches, self.scratch.name(), self.began, self.log.clone());
        let played = self.stages(size, watch).await;
        drop(listening);
        self.facts.log = lock(&self.log).clone();
        self.facts.stopped = played.err();
    }

    async fn stages(&mut self, size: &str, watch: Duration) -> Stopped<()> {
        let began = self.elapsed();
        let written = self.write(size).await;
        let (namespace, volume, attachment) =
            self.told("writer counts", began, written, |(_, volume, _)| format!("volume {}", volume.name_any()))?;
        let began = self.elapsed();
        let fenced = self.fence(&namespace, &volume, &attachment).await;
        if self.told("node cut off", began, fenced, answer)?.result != FenceOutcome::Fenced {
            return Ok(());
        }
        let began = self.elapsed();
        let watched = self.watch(watch).await;
        if self.told("writes watched", began, watched, answer)?.result != FenceOutcome::Fenced {
            return Ok(());
        }
        let began = self.elapsed();
        let found = self.look().await;
        self.told("other node looked", began, found, |number| format!("the last number there is {number}")).map(drop)
    }

    /// Notes a step, and says it to whoever waits.
    pub fn told<T>(
        &mut self,
        step: &'static str,
        began: Duration,
        outcome: Stopped<T>,
        words: impl FnOnce(&T) -> String,
    ) -> Stopped<T> {
        let told = outcome.as_ref().map(words).map_err(|why| why.message.clone());
        let step = Step::new(step, began, self.elapsed(), told);
        eprintln!("{:6.1} s  {}: {}", step.at_seconds, step.step, step.message);
        self.steps.push(step);
        outcome
    }

    /// A namespace, a claim and a pod that counts.
    async fn write(&self, size: &str) -> Stopped<(Namespace, PersistentVolume, VolumeAttachment)> {
        self.go_on()?;
        let namespace = self.scratch.create_namespace().await?;
        self.go_on()?;
        self.scratch.create_claim(&self.plan.class, size).await?;
        self.go_on()?;
        let (node, program) = (&self.plan.pair.node, &self.plan.program);
        self.create_pod(Role::Writer, node, program).await?;
        let is_attached = |it: &VolumeAttachment| {
            it.spec.node_name == *node && it.annotations().contains_key(names::ATTACHED_NODE_ID_ANNOTATION)
        };
        let (volume, attachment) = self
            .wait("the writer to count on its volume", VOLUME, async || {
                let counts = lock(&self.log).written().count() >= ENOUGH;
                let (volume, attachments) = self.scratch.volume().await?.unzip();
                let attachment = attachments.into_iter().flatten().find(is_attached);
                match (volume, attachment) {
                    (Some(volume), Some(attachment)) if counts => Ok(Ok((volume, attachment))),
                    _ => Ok(Err(pods::trouble(&self.clients.reads, self.scratch.name(), Role::Writer).await)),
                }
            })
            .await?;
        Ok((namespace, volume, attachment))
    }

    /// The ServiceAccount that every pod has comes a moment after its namespace.
    async fn create_pod(&self, role: Role, node: &str, program: &Program) -> Stopped<()> {
        self.wait("the pod to be admitted", ANSWER, async || match self.scratch.create_pod(role, node, program).await {
            Ok(_) => Ok(Ok(())),
            Err(Error::Forbidden { source, .. }) if source.to_string().contains("serviceaccount") => {
                Ok(Err(source.to_string()))
            }
            Err(error) => Err(error),
        })
        .await
    }

    /// The sidecar's answer to a FenceRequest like the controller's.
    async fn fence(
        &mut self,
        namespace: &Namespace,
        volume: &PersistentVolume,
        attachment: &VolumeAttachment,
    ) -> Stopped<FenceResult> {
        let node = self.node().await?;
        let Plan { driver, proof, .. } = &self.plan;
        let target = Target { driver, volume, attachment, node: &node, proof: *proof };
        self.go_on()?;
        self.scratch.create_request(namespace, &target).await?;
        let row = self.answered(1).await?;
        self.facts.fenced = Some((row.clone(), self.elapsed()));
        Ok(row)
    }

    /// Lets the writer try on, then has the sidecar look at the list once more: within the time in which it only reads.
    async fn watch(&mut self, time: Duration) -> Stopped<FenceResult> {
        self.stop.run_until_cancelled(tokio::time::sleep(time)).await;
        self.go_on()?;
        let asked = self.elapsed();
        self.scratch.ask_again().await?;
        let row = self.answered(2).await?;
        self.facts.again = Some((row.clone(), asked));
        let node = self.node().await?;
        let key = node.taints().iter().any(|taint| taint.key == names::OUT_OF_SERVICE_TAINT);
        if key || node.ready() != "True" {
            let message = format!("node {} failed or was tainted meanwhile", self.plan.pair.node);
            return Err(Reason { reason: "NodeChanged", message });
        }
        Ok(row)
    }

    /// The volume goes to the other node, by Kubernetes' own way.
    async fn look(&mut self) -> Stopped<u64> {
        self.go_on()?;
        self.scratch.delete_pod(Role::Writer).await?;
        let pods = self.scratch.pods();
        self.wait("the writer to end", VOLUME, async || {
            let left = pods.get_opt(Role::Writer.pod()).await?;
            Ok(if left.is_none() { Ok(()) } else { Err("its pod is still there".to_owned()) })
        })
        .await?;
        self.facts.ended = true;
        self.create_pod(Role::Reader, &self.plan.pair.other, &self.plan.program).await?;
        let found = self
            .wait("the other node to read the volume", VOLUME, async || match pods::found(&pods).await? {
                Some(number) => Ok(Ok(number)),
                None => Ok(Err(pods::trouble(&self.clients.reads, self.scratch.name(), Role::Reader).await)),
            })
            .await?;
        self.facts.found = Some(found);
        Ok(found)
    }

    async fn node(&self) -> Result<Node> {
        Ok(Api::<Node>::all(self.clients.reads.clone()).get(&self.plan.pair.node).await?)
    }

    /// The fencer's answer to a round.
    async fn answered(&self, round: i32) -> Stopped<FenceResult> {
        self.wait("the driver's sidecar to answer", ANSWER, async || {
            let request = self.scratch.request().await?;
            let row = request.and_then(|it| it.status).and_then(|status| status.volumes.into_iter().next());
            Ok(match row {
                Some(row) if row.round == round && row.result != FenceOutcome::Started => Ok(row),
                Some(row) => Err(answer(&row)),
                None => Err("it has said nothing".to_owned()),
            })
        })
        .await
    }

    fn go_on(&self) -> Stopped<()> {
        match self.stop.is_cancelled() {
            true => Err(Reason { reason: "Interrupted", message: "it was interrupted".into() }),
            false => Ok(()),
        }
    }

    /// Looks until it is so, the time is up, or somebody interrupts. No request is cut short: what it did is known.
    async fn wait<T>(
        &self,
        what: &str,
        limit: Duration,
        look: impl AsyncFn() -> Result<std::result::Result<T, String>>,
    ) -> Stopped<T> {
        let end = Instant::now() + limit;
        loop {
            let why = match look().await? {
                Ok(found) => return Ok(found),
                Err(why) => why,
            };
            self.go_on()?;
            if Instant::now() > end {
                let message = format!("waited {} s for {what}: {why}", limit.as_secs());
                return Err(Reason { reason: "TimedOut", message });
            }
            self.stop.run_until_cancelled(tokio::time::sleep(LOOK)).await;
        }
    }
}

fn answer(row: &FenceResult) -> String {
    let reason = row.reason.as_deref().unwrap_or_default();
    let message = row.message.as_deref().map(|message| format!(": {message}")).unwrap_or_default();
    format!("{:?}, proof {:?} {reason}{message}", row.result, row.proof)
}

/// A log outlives a panic of whoever listened.
fn lock(log: &Mutex<WriterLog>) -> std::sync::MutexGuard<'_, WriterLog> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}
