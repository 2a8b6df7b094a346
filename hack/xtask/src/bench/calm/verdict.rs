//! What no disturbance excuses: a node that is declared failed, a pod that we delete.

use std::collections::BTreeMap;

use bulkhead::api::node_fence::NodeFence;
use bulkhead_testbed::audit::Record;
use bulkhead_testbed::cluster::real::RealCluster;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use crate::Result;
use crate::bench::on_real_nodes;

/// What the accounts of controllers and agents begin with.
const OURS: &str = "system:serviceaccount:bulkhead-";
/// The account that the sidecar shares with the driver's other sidecars.
const SIDECAR: &str = "system:serviceaccount:csi-array:csi-controller";

/// What there was before a disturbance.
pub struct Before {
    /// The episode of each NodeFence.
    episodes: BTreeMap<String, i64>,
    /// Where the audit log ended.
    end: u64,
}

impl Before {
    /// What there is now.
    pub async fn look(cluster: &RealCluster) -> Result<Self> {
        let episodes = fences(cluster).await?.into_iter().map(|fence| (fence.name_any(), fence.spec.episode));
        Ok(Self { episodes: episodes.collect(), end: cluster.testbed.audit().end()? })
    }

    /// An error with the evidence of each node that was declared failed since then.
    pub async fn nothing_is_declared(&self, cluster: &RealCluster) -> Result<()> {
        let fences = fences(cluster).await?;
        let told = |fence: &NodeFence| format!("{}: {}", fence.name_any(), on_real_nodes::evidence(fence));
        let declared: Vec<_> = fences.iter().filter(|fence| is_new(&self.episodes, fence)).map(told).collect();
        if declared.is_empty() { Ok(()) } else { Err(format!("declared failed: {}", declared.join("\n")).into()) }
    }

    /// An error with each pod whose deletion we asked for since then, whatever the answer.
    pub fn nobody_is_deleted(&self, cluster: &RealCluster) -> Result<()> {
        let records = cluster.testbed.audit().records_since(self.end)?.filter(is_deletion_of_ours);
        let deleted: Vec<_> = records
            .map(|it| format!("{} {}/{} by {}, answered {}", it.verb, it.namespace, it.name, it.user, it.code))
            .collect();
        if deleted.is_empty() { Ok(()) } else { Err(format!("pods were deleted: {}", deleted.join("\n")).into()) }
    }
}

async fn fences(cluster: &RealCluster) -> Result<Vec<NodeFence>> {
    Ok(Api::<NodeFence>::all(cluster.client.clone()).list(&ListParams::default()).await?.items)
}

/// Whether the NodeFence, or its episode, was not there.
fn is_new(episodes: &BTreeMap<String, i64>, fence: &NodeFence) -> bool {
    episodes.get(&fence.name_any()).is_none_or(|episode| *episode < fence.spec.episode)
}

fn is_deletion_of_ours(record: &Record) -> bool {
    let is_ours = record.user.starts_with(OURS) || record.user == SIDECAR;
    let is_deletion = record.verb.starts_with("delete") || record.subresource == "eviction";
    is_ours && record.resource == "pods" && is_deletion && record.is_write()
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_further_episode_is_news_and_an_old_one_is_not() {
        let fence = |episode: i64| -> NodeFence {
            serde_json::from_value(json!({
                "apiVersion": "bulkhead.dev/v1alpha1", "kind": "NodeFence", "metadata": { "name": "node-1" },
                "spec": {
                    "episode": episode, "node": { "uid": "u" }, "policies": [],
                    "plan": {
                        "decidedAt": "2026-01-01T00:00:00Z", "digest": "sha256:00000000",
                        "evidence": [{
                            "channel": "Agent", "state": "Failed", "since": "2026-01-01T00:00:00Z",
                            "reason": "HeartbeatLost", "message": "no heartbeat for 4 s",
                        }],
                    },
                },
            }))
            .unwrap()
        };
        let known = BTreeMap::from([("node-1".to_owned(), 2)]);
        assert!(!is_new(&known, &fence(2)) && is_new(&known, &fence(3)) && is_new(&BTreeMap::new(), &fence(1)));
        let evidence = on_real_nodes::evidence(&fence(3));
        assert!(evidence.contains("HeartbeatLost") && evidence.contains("no heartbeat for 4 s"), "{evidence}");
    }

    #[test]
    fn only_our_own_deletions_count() {
        let asked = |user: &str, verb: &str, resource: &str, subresource: &str| {
            is_deletion_of_ours(&Record {
                user: user.to_owned(),
                verb: verb.to_owned(),
                resource: resource.to_owned(),
                subresource: subresource.to_owned(),
                namespace: "default".to_owned(),
                name: "db-0".to_owned(),
                code: 200,
                received: DateTime::UNIX_EPOCH,
                finished: DateTime::UNIX_EPOCH,
                body: None,
            })
        };
        let controller = "system:serviceaccount:bulkhead-system:bulkhead-controller";
        assert!(asked(controller, "delete", "pods", "") && asked(SIDECAR, "deletecollection", "pods", ""));
        assert!(asked(controller, "create", "pods", "eviction"));
        assert!(!asked(controller, "patch", "pods", "status") && !asked(controller, "delete", "nodefences", ""));
        assert!(!asked("system:serviceaccount:kube-system:node-controller", "delete", "pods", ""));
    }
}
