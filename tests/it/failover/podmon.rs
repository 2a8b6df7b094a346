//! What comes from podmon, as it is: pods under its label, and any taint as evidence.

use bulkhead::api::fencing::Proof;
use bulkhead::api::node_fence::{Channel, NodeFence};
use bulkhead::api::resiliency_policy::ResiliencyPolicy;
use bulkhead_testbed::cluster::{Cluster, Workload, merge};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::fleet::{Lane, LaneOptions, SOON};
use super::look::is_released;
use crate::api::objects::one;
use crate::api::world::root;

/// The label by which podmon knows its pods; the value is the driver's.
const LABEL: (&str, &str) = ("podmon.dellemc.com/driver", "csi-vxflexos");

/// The shipped policy selects the pods by podmon's label alone, and trusts the driver's OK.
pub async fn pods_labelled_for_podmon_move(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "podmon", LaneOptions::default()).await?;
    let mut policy = one(&root().join("config/samples/resiliencypolicy-podmon.yaml"))?;
    // Other nodes fail beside those of this lane.
    let limits =
        json!({ "maxNodes": "100%", "ceiling": 100, "maxUnhealthy": "100%", "window": "0s", "cooldown": "0s" });
    merge(&mut policy, &json!({ "spec": { "limits": limits } }));
    let policy: ResiliencyPolicy = serde_json::from_value(policy)?;
    let name = policy.metadata.name.clone().ok_or("the sample has no name")?;
    let policies: Api<ResiliencyPolicy> = Api::all(lane.client());
    policies.create(&PostParams::default(), &policy).await?;
    let (key, value) = LABEL;
    let labels = [(key.to_owned(), value.to_owned())].into();
    let set = Workload { labels, ..lane.workload("db") };
    let other = Workload { labels: [].into(), ..lane.workload("other") };
    lane.run(&set).await?;
    lane.run(&other).await?;
    let stays = lane.pod(&other, 0).await?.metadata.uid;
    // It loses its power: under this policy a node that writes on is left alone, as podmon does.
    lane.victim()?.freeze_writers();
    lane.victim()?.kill().await;
    lane.moved(&set).await?;
    let fence = lane.fence("released", |fence| is_released(fence, &format!("{}-0", set.name))).await?;
    assert_eq!(fence.spec.policies.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), [name.as_str()]);
    let demanded = fence.spec.plan.volumes.iter().find(|row| row.name == set.volume_name(0, 0));
    assert_eq!(demanded.map(|row| row.minimum_proof), Some(Proof::Acknowledged));
    assert_eq!(lane.pod(&other, 0).await?.metadata.uid, stays, "a pod without the label was deleted");
    policies.delete(&name, &DeleteParams::default()).await?;
    lane.end().await
}

/// A person's taint, of either effect, on a node that is well: of its protected pods the one that is Initialized and not Ready
/// goes, fenced first; the one that is Ready stays. Without the taint neither goes.
pub async fn a_persons_taint_moves_the_pods_that_are_not_ready(cluster: &Cluster) -> Result<(), Failed> {
    for effect in ["NoSchedule", "NoExecute"] {
        let policy = json!({
            "detection": { "taints": [{ "key": "*" }] },
            "triggers": { "crashLoop": { "action": "Ignore" } },
        });
        let name = format!("person-{}", effect.to_lowercase());
        let lane = Lane::new(cluster, &name, LaneOptions { policy, ..LaneOptions::default() }).await?;
        let victim = lane.victim()?.name().to_owned();
        // Kubernetes itself evicts whoever does not tolerate NoExecute, and not by our proof.
        let tolerations = json!([{ "key": "example.com/broken", "operator": "Exists" }]);
        let failing = json!([{ "name": "main", "image": format!("crash-on/{victim}") }]);
        let set = Workload {
            template: json!({ "spec": { "tolerations": tolerations, "containers": failing } }),
            ..lane.workload("db")
        };
        let well = Workload { template: json!({ "spec": { "tolerations": tolerations } }), ..lane.workload("well") };
        lane.run(&well).await?;
        let stays = lane.pod(&well, 0).await?.metadata.uid;
        cluster.stateful_set_on(&[lane.array()], &set).await?;
        not_ready(&lane, &set).await?;
        let fences: Api<NodeFence> = Api::all(lane.client());
        assert!(fences.get_opt(&victim).await?.is_none(), "an incident without a taint");
        let taint = json!({ "key": "example.com/broken", "value": "by-a-person", "effect": effect });
        let patch: Value = json!({ "spec": { "taints": [taint] } });
        let nodes: Api<Node> = Api::all(lane.client());
        nodes.patch(&victim, &PatchParams::default(), &Patch::Strategic(patch)).await?;
        lane.moved(&set).await?;
        let fence = lane.fence("released", |fence| is_released(fence, &format!("{}-0", set.name))).await?;
        let evidence = &fence.spec.plan.evidence;
        assert_eq!(evidence.iter().map(|it| it.channel).collect::<Vec<_>>(), [Channel::Taint], "{evidence:?}");
        let told = evidence.first().and_then(|it| it.message.clone()).unwrap_or_default();
        assert!(told.contains(&format!("example.com/broken:{effect}")), "{told}");
        let handle = set.handle(0, 0);
        assert!(
            !lane.array().published_nodes(&handle).contains(&lane.victim()?.csi_node_id().to_owned()),
            "not cut off"
        );
        assert_eq!(lane.pod(&well, 0).await?.metadata.uid, stays, "a pod that was Ready was deleted");
        lane.end().await?;
    }
    Ok(())
}

/// Waits until the workload's pod is Initialized and not Ready, on the victim.
async fn not_ready(lane: &Lane<'_>, set: &Workload) -> Result<(), Failed> {
    let (api, pod): (Api<Pod>, _) = (Api::namespaced(lane.client(), &set.namespace), format!("{}-0", set.name));
    let victim = lane.victim()?.name();
    let look = async || {
        let found = api.get_opt(&pod).await?;
        let there = found.as_ref().and_then(|pod| pod.spec.as_ref()?.node_name.as_deref()) == Some(victim);
        let status = found.as_ref().and_then(|pod| pod.status.clone()).unwrap_or_default();
        let waiting = status.container_statuses.iter().flatten().filter_map(|it| it.state.as_ref()?.waiting.as_ref());
        let fails = waiting.filter_map(|it| it.reason.as_deref()).any(|reason| reason == "CrashLoopBackOff");
        let is = |kind: &str, value: &str| {
            status.conditions.iter().flatten().any(|it| it.type_ == kind && it.status == value)
        };
        let holds = there && fails && is("Initialized", "True") && is("Ready", "False");
        Ok(if holds { Ok(()) } else { Err(format!("{status:?}")) })
    };
    Ok(lane.cluster.wait(&format!("{pod} is Initialized and not Ready"), SOON, look).await?)
}
