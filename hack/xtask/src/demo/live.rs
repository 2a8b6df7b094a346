//! What happens, said as it is seen.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bulkhead::api::names::{FENCED_TAINT, UNREACHABLE_TAINT};
use bulkhead::api::node_fence::{NodeFence, VolumeStatusState};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, Client};

use super::{POD, Scene, all_proved};
use crate::{Result, incident};

/// How often it is looked. What the table says is not from here.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Follows a failover and says each thing once.
pub struct Live<'a> {
    scene: &'a Scene,
    killed: Instant,
    tainted: Option<Instant>,
    said: BTreeSet<String>,
}

/// What is there at one moment.
struct Look {
    node: Option<Node>,
    fence: Option<NodeFence>,
    pod: Option<Pod>,
    attachments: usize,
}

impl<'a> Live<'a> {
    /// From now on.
    pub fn new(scene: &'a Scene) -> Self {
        Self { scene, killed: Instant::now(), tainted: None, said: BTreeSet::new() }
    }

    /// Until the pod runs elsewhere and the dead node holds nothing; returns where. None when `limit` has passed.
    pub async fn follow(&mut self, limit: Duration) -> Result<Option<String>> {
        loop {
            let look = Look::now(&self.scene.cluster.client, &self.scene.node).await?;
            self.tell(&look);
            let to = look.runs_elsewhere(&self.scene.node);
            if to.is_some() && look.attachments == 0 {
                return Ok(to);
            }
            if self.killed.elapsed() >= limit {
                println!("{POD} does not run on another node {} s after the kill: giving up.", limit.as_secs());
                return Ok(None);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn tell(&mut self, look: &Look) {
        let node = &self.scene.node;
        let status = look.fence.as_ref().and_then(|fence| fence.status.clone()).unwrap_or_default();
        let volumes = &status.volumes;
        let asked = volumes.iter().any(|volume| volume.state != VolumeStatusState::Pending);
        if look.has_taint(UNREACHABLE_TAINT) && self.tainted.is_none() {
            self.say(&format!("Kubernetes notices: taint {UNREACHABLE_TAINT}:NoSchedule on {node}"));
            self.tainted = Some(Instant::now());
        }
        let moved = look.runs_elsewhere(node);
        for (seen, what) in [
            (look.fence.is_some(), format!("Bulkhead decides: NodeFence {node} holds the plan")),
            (look.has_taint(FENCED_TAINT), format!("no new pods for {node}: taint {FENCED_TAINT}:NoSchedule")),
            (asked, format!("the array is asked to cut {node} off")),
            (
                !volumes.is_empty() && all_proved(&status).is_some(),
                "the array did it, and a second look proves it".into(),
            ),
            (look.pod_is_released(node), format!("{POD} is released")),
            (self.tainted.is_some() && look.attachments == 0, format!("{node} is detached from the volume")),
            (moved.is_some(), format!("{POD} runs on {}", moved.unwrap_or_default())),
        ] {
            if seen {
                self.say(&what);
            }
        }
    }

    fn say(&mut self, what: &str) {
        if self.said.insert(what.to_owned()) {
            let (since, from) = self.tainted.map_or((self.killed, "kill"), |tainted| (tainted, "taint"));
            println!("{from:>6} +{:5.1} s  {what}", since.elapsed().as_secs_f64());
        }
    }
}

impl Look {
    async fn now(client: &Client, node: &str) -> Result<Self> {
        Ok(Self {
            node: Api::all(client.clone()).get_opt(node).await?,
            fence: Api::all(client.clone()).get_opt(node).await?,
            pod: Api::default_namespaced(client.clone()).get_opt(POD).await?,
            attachments: incident::held_by(client, node).await?.attachments.len(),
        })
    }

    fn has_taint(&self, key: &str) -> bool {
        let spec = self.node.as_ref().and_then(|node| node.spec.as_ref());
        let mut taints = spec.into_iter().flat_map(|spec| spec.taints.iter().flatten());
        taints.any(|taint| taint.key == key && taint.effect == "NoSchedule")
    }

    /// The pod is gone, or another one has its name: one that is not on the dead node.
    fn pod_is_released(&self, from: &str) -> bool {
        let on = self.pod.as_ref().and_then(|pod| pod.spec.as_ref()).and_then(|spec| spec.node_name.as_deref());
        on != Some(from)
    }

    fn runs_elsewhere(&self, from: &str) -> Option<String> {
        let pod = self.pod.as_ref().filter(|pod| pod.metadata.deletion_timestamp.is_none())?;
        let conditions = pod.status.as_ref()?.conditions.as_ref()?;
        let ready = conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
        let on = pod.spec.as_ref()?.node_name.as_deref().filter(|on| *on != from)?;
        ready.then(|| on.to_owned())
    }
}
