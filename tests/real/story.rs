//! What most tests play: a database's node fails, the database moves or stays, and the node is whole again.

use bulkhead::api::conditions;
use bulkhead::api::node_fence::{NodeFence, Phase};
use bulkhead_testbed::cluster::real::{PodPlace, RealCluster, RealWorkload, last_written, records_found};
use bulkhead_testbed::ledger::{Ledger, Stamp};
use bulkhead_testbed::real_nodes::{Fault, RealNode};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use libtest_mimic::Failed;

use super::Outcome;
use super::bed::SOON;

/// One failure of the node of a database.
pub struct Story<'a> {
    pub cluster: &'a RealCluster,
    pub workload: RealWorkload,
    pub volume: String,
    /// The pod on the node that fails.
    pub old: PodPlace,
    pub node: RealNode,
    /// When it failed.
    pub began: Stamp,
}

impl<'a> Story<'a> {
    /// Runs the workload, and breaks its node when it writes.
    pub async fn begin(cluster: &'a RealCluster, workload: RealWorkload, faults: &[Fault]) -> Result<Self, Failed> {
        let mut story = Self::prepare(cluster, workload).await?;
        story.fail(faults).await?;
        Ok(story)
    }

    /// Runs the workload until it writes.
    pub async fn prepare(cluster: &'a RealCluster, workload: RealWorkload) -> Result<Self, Failed> {
        cluster.run(&workload).await?;
        let old = one(cluster.running(&workload, &[], SOON).await?)?;
        let volume = cluster.volume(&workload, 0).await?;
        let began = cluster.array.ledger().wait_for_write(&volume, &old.node, Stamp::START, SOON).await?;
        let node = cluster.node(&old.node)?;
        Ok(Self { cluster, workload, volume, old, node, began })
    }

    /// Breaks the node.
    pub async fn fail(&mut self, faults: &[Fault]) -> Outcome {
        for fault in faults {
            self.node.fault(*fault).await?;
        }
        self.began = self.ledger().now();
        Ok(())
    }

    pub fn ledger(&self) -> &'a Ledger {
        self.cluster.array.ledger()
    }

    /// Waits for something about the NodeFence of the node.
    pub async fn fence(&self, what: &str, holds: impl Fn(&NodeFence) -> bool) -> Result<NodeFence, Failed> {
        Ok(self.cluster.fence(&self.old.node, what, SOON, holds).await?)
    }

    /// Waits until the node is declared failed; its pod writes then as before.
    pub async fn writes_when_declared(&self) -> Outcome {
        self.fence("opened", of_now).await?;
        self.ledger().wait_for_write(&self.volume, &self.old.node, self.began, SOON).await?;
        Ok(())
    }

    /// Waits until the replacement writes elsewhere. Nothing of the old node is accepted after that, and nothing is missing
    /// that it was told to be safe.
    pub async fn moves(&self) -> Outcome {
        let new = one(self.cluster.running(&self.workload, std::slice::from_ref(&self.old), SOON).await?)?;
        assert_ne!(new.node, self.old.node);
        let first = self.ledger().wait_for_write(&self.volume, &new.node, self.began, SOON).await?;
        assert_eq!(self.ledger().writes(&self.volume, &self.old.node, first), 0);
        let safe = last_written(&self.cluster.log(&self.workload, &self.old)?);
        // The array knows of a write before the runtime has the log of it.
        let found = self.cluster.wait("the new pod says what it found", SOON, async || {
            let log = self.cluster.log(&self.workload, &new)?;
            Ok(records_found(&log).ok_or(log))
        });
        let found = Some(found.await?);
        assert!(safe.is_some() && found >= safe, "safe: {safe:?}, found: {found:?}");
        Ok(())
    }

    /// The old pod is alive, goes on trying, and is refused by the array.
    pub async fn is_refused(&self) -> Outcome {
        let refused = || self.ledger().refused_writes(&self.volume, &self.old.node, self.began);
        self.cluster
            .wait("a write of the old node is refused", SOON, async || {
                Ok(if refused() > 0 { Ok(()) } else { Err("none".to_owned()) })
            })
            .await?;
        let printed = self.cluster.log(&self.workload, &self.old)?;
        assert!(printed.contains("refused"), "{printed}");
        Ok(())
    }

    /// The failover is over but for the node itself.
    pub async fn detached(&self) -> Outcome {
        self.fence("Detached", |fence| phase(fence) == Some(Phase::Detached)).await?;
        Ok(())
    }

    /// Heals the node, and waits until it is whole: clean by this reason, without taint, and usable as any other.
    pub async fn recovers(self, clean: &str) -> Outcome {
        self.node.heal_all().await?;
        self.becomes_whole(clean).await
    }

    /// As [`Story::recovers`], of a node that is healed.
    pub async fn becomes_whole(self, clean: &str) -> Outcome {
        let fence = self.fence("Recovered", |fence| phase(fence) == Some(Phase::Recovered)).await?;
        assert_eq!(condition(&fence, "NodeClean"), Some(("True", clean)));
        self.cluster.usable(&self.old.node, SOON).await?;
        if clean == "TwoCleanPasses" {
            self.kubelet_lets_go().await?;
        }
        Ok(self.cluster.end(&self.workload, SOON).await?)
    }

    /// The agent takes away what is mounted, which the kubelet would have done a moment later: that must be able to end what it
    /// began. Else it tries for ever, and the volume stays in the Node's `volumesInUse`.
    pub async fn kubelet_lets_go(&self) -> Outcome {
        let nodes = Api::<Node>::all(self.cluster.client.clone());
        let lets_go = async || {
            let status = nodes.get(&self.old.node).await?.status.unwrap_or_default();
            let in_use: Vec<_> =
                status.volumes_in_use.into_iter().flatten().filter(|it| it.contains(&self.volume)).collect();
            let left = self.left().await.map_err(|error| format!("{error:?}"));
            Ok(if in_use.is_empty() && left.as_ref().is_ok_and(String::is_empty) {
                Ok(())
            } else {
                Err(format!("{in_use:?}, {left:?}"))
            })
        };
        Ok(self.cluster.wait("the kubelet lets the volume go", SOON, lets_go).await?)
    }

    /// The files on the node that tell of the volume: the kubelet's, deleted after what they tell of is unmounted.
    pub async fn left(&self) -> Result<String, Failed> {
        let find = format!(
            "find /var/lib/kubelet -xdev -name vol_data.json -exec grep -l -F '{}' {{}} +; grep -F '{}' /proc/self/mountinfo",
            self.volume, self.old.uid
        );
        let output = self.node.exec(&["sh", "-c", &find]).await?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

pub fn phase(fence: &NodeFence) -> Option<Phase> {
    fence.status.as_ref().and_then(|status| status.phase)
}

/// A condition, as (status, reason).
pub fn condition<'a>(fence: &'a NodeFence, type_: &str) -> Option<(&'a str, &'a str)> {
    let condition = conditions::find(&fence.status.as_ref()?.conditions, type_)?;
    Some((condition.status.as_str(), condition.reason.as_str()))
}

/// The object of an incident that goes on, not only the record of an earlier one.
pub fn of_now(fence: &NodeFence) -> bool {
    phase(fence).is_some_and(|phase| phase != Phase::Recovered)
}

pub fn one(pods: Vec<PodPlace>) -> Result<PodPlace, Failed> {
    let [pod] = <[PodPlace; 1]>::try_from(pods).map_err(|pods| format!("{pods:?} instead of one pod"))?;
    Ok(pod)
}
