//! What the benchmarks on real nodes have in common: the cluster, the policy that is to declare a node within seconds, and
//! the wait until all works that this rests on.

use std::path::Path;
use std::time::Duration;

use bulkhead::api::conditions;
use bulkhead::api::driver_report::DriverReport;
use bulkhead::api::node_fence::NodeFence;
use bulkhead::api::resiliency_policy::{ResiliencyPolicy, ResiliencyPolicySpec};
use bulkhead_testbed::TestbedOptions;
use bulkhead_testbed::cluster::merge;
use bulkhead_testbed::cluster::real::{PodPlace, RealCluster, RealClusterOptions};
use bulkhead_testbed::real_nodes::RealNodeOptions;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use serde_json::Value;

use crate::Result;

/// Long enough for a loaded machine; nothing waits this long when it works.
pub const SOON: Duration = Duration::from_secs(240);
/// With fewer nodes there are not three others to be asked about one.
pub const NODES_MIN: usize = 4;
/// So that some of the others are outside of its zone.
const ZONES: usize = 3;
const POLICY: &str = "protected";
/// Detection within seconds, as we tell others to have it.
const SAMPLE: &str = include_str!("../../../../config/samples/resiliencypolicy-seconds.yaml");
/// The port of the controller's metrics, and how many nodes it hears.
const PORT: i32 = 8080;
const HEARD: &str = "bulkhead_heartbeat_nodes_heard ";

/// Starts a cluster with Kubernetes' usual times, and the policy with what `spec` adds to it.
pub async fn start(programs: &Path, nodes: usize, spec: &Value) -> Result<RealCluster> {
    let cluster = RealCluster::start(RealClusterOptions {
        testbed: TestbedOptions::default(),
        nodes,
        node: RealNodeOptions::default(),
        zones: ZONES,
        // It begins after all that is measured, and each incident waits for it.
        controller_args: vec!["--attacher-resync-period=1s".into()],
        ..RealClusterOptions::new(programs)
    })
    .await?;
    Api::<ResiliencyPolicy>::all(cluster.client.clone()).create(&PostParams::default(), &policy(spec)?).await?;
    Ok(cluster)
}

/// That of the sample, by which others are to get what is measured here, with what is particular.
fn policy(spec: &Value) -> Result<ResiliencyPolicy> {
    let sample: Value = serde_saphyr::from_str(SAMPLE)?;
    let mut whole = sample.get("spec").cloned().ok_or("the sample has no spec")?;
    merge(&mut whole, spec);
    let spec: ResiliencyPolicySpec = serde_json::from_value(whole)?;
    Ok(ResiliencyPolicy::new(POLICY, spec))
}

/// Waits until the leader hears every node, the array is asked about that many nodes, and the policy is in effect: before that
/// nothing can be declared within seconds.
pub async fn armed(cluster: &RealCluster, nodes: usize, asked: usize) -> Result<()> {
    let policies: Api<ResiliencyPolicy> = Api::all(cluster.client.clone());
    let reports: Api<DriverReport> = Api::all(cluster.client.clone());
    cluster
        .wait("every node is heard, and asked about", SOON, async || {
            let heard = match cluster.leader().await? {
                Some(leader) => heard_by(cluster, &leader).await,
                None => None,
            };
            let report = reports.get_opt(cluster.array.driver_name()).await?.and_then(|report| report.status);
            let backends = report.iter().flat_map(|status| &status.backends).filter_map(|backend| backend.nodes);
            let told = backends.max().and_then(|nodes| usize::try_from(nodes).ok()).unwrap_or_default();
            let held = obstacle(&policies.get(POLICY).await?);
            if heard == Some(nodes) && told >= asked && held.is_none() {
                return Ok(Ok(()));
            }
            Ok(Err(format!("the leader hears {heard:?} of {nodes} nodes, the array is asked about {told}; {held:?}")))
        })
        .await?;
    Ok(())
}

/// What a replica says of the nodes that it hears; none while it does not answer.
async fn heard_by(cluster: &RealCluster, pod: &Pod) -> Option<usize> {
    let text = cluster.scrape(pod, PORT).await.ok()?;
    text.lines().find_map(|line| line.strip_prefix(HEARD))?.trim().parse().ok()
}

/// Why nothing would be begun by a policy, if that is so.
fn obstacle(policy: &ResiliencyPolicy) -> Option<String> {
    let status = policy.status.clone().unwrap_or_default();
    let is_seen = status.observed_generation == policy.metadata.generation;
    if !is_seen || !conditions::is_true(&status.conditions, "Ready") {
        return Some(format!("the policy is not Ready: {:?}", status.conditions));
    }
    (!status.restraints.is_empty()).then(|| format!("the policy is held by {:?}", status.restraints))
}

/// Why a node was declared failed, by its plan.
pub fn evidence(fence: &NodeFence) -> String {
    let rows = fence.spec.plan.evidence.iter().map(|it| {
        let message = it.message.as_deref().unwrap_or_default();
        format!("{:?} since {}: {} ({message})", it.channel, it.since, it.reason)
    });
    rows.collect::<Vec<_>>().join("; ")
}

/// The one pod of a workload of one.
pub fn one(pods: Vec<PodPlace>) -> Result<PodPlace> {
    let [pod] = <[PodPlace; 1]>::try_from(pods).map_err(|pods| format!("{pods:?} instead of one pod"))?;
    Ok(pod)
}

#[cfg(test)]
mod tests {
    use bulkhead::api::resiliency_policy::{Detection, SelfFencing, StoragePathLossAction};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_benchmark_adds_to_the_policy() {
        let policy = policy(&json!({ "limits": { "cooldown": "1m" } })).unwrap();
        assert_eq!(policy.spec.limits.cooldown.get(), Duration::from_secs(60));
        assert_eq!(policy.spec.detection.storage.period.get(), Duration::from_secs(1));
        assert_eq!(policy.spec.detection.agent.suspect_after.get(), Duration::from_secs(3));
    }

    /// What docs/performance.md says of the policy that was measured.
    #[test]
    fn the_sample_has_the_detection_that_was_measured() {
        let measured = json!({
            "storage": { "period": "1s", "lossThreshold": 2, "recoveryThreshold": 2, "ioInProgressCheck": "Disabled" },
        });
        let spec = policy(&json!({})).unwrap().spec;
        assert_eq!(spec.detection, serde_json::from_value::<Detection>(measured).unwrap());
        assert_eq!(spec.triggers.storage_path_loss, StoragePathLossAction::Ignore);
        assert_eq!(spec.self_fencing, SelfFencing::default());
    }

    #[test]
    fn a_policy_that_nobody_has_looked_at_is_not_in_effect() {
        let mut policy = policy(&json!({})).unwrap();
        assert!(obstacle(&policy).is_some_and(|why| why.contains("not Ready")));
        let status = json!({
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "Accepted", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        });
        policy.status = Some(serde_json::from_value(status).unwrap());
        assert_eq!(obstacle(&policy), None);
        policy.metadata.generation = Some(2);
        assert!(obstacle(&policy).is_some());
    }
}
