//! A program that fails again and again on a node that is well: its pod starts elsewhere, and no more often than its budget
//! says, whenever the controller dies.

use bulkhead::api::node_fence::NodeFence;
use bulkhead::api::resiliency_policy::ResiliencyPolicy;
use bulkhead_testbed::Identity;
use bulkhead_testbed::audit::Record;
use bulkhead_testbed::cluster::{Cluster, ClusterOptions, Workload};
use bulkhead_testbed::fault_proxy::Site;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use crate::deaths::Mortals;
use crate::rest::at_rest;

use super::fleet::{Lane, LaneOptions, SOON, create_policy, options};
use super::look::{event, operator_records};

/// What the operator deleted of a workload's pods.
fn deletions(cluster: &Cluster, set: &Workload) -> Result<Vec<Record>, Failed> {
    let ours = |name: &str| name.strip_prefix(&set.name).is_some_and(|rest| rest.starts_with('-'));
    operator_records(cluster, |it| it.verb == "delete" && it.resource == "pods" && ours(&it.name) && it.succeeded())
}

/// Waits until a pod fails in its loop, and returns its uid.
async fn looping(cluster: &Cluster, pod: &str) -> Result<Option<String>, Failed> {
    let api: Api<Pod> = Api::default_namespaced(cluster.client.clone());
    let look = async || {
        let Some(pod) = api.get_opt(pod).await? else { return Ok(Err("there is no such pod".into())) };
        let status = pod.status.as_ref();
        let all =
            status.iter().flat_map(|it| it.container_statuses.iter().chain(&it.init_container_statuses)).flatten();
        let mut reasons = all.filter_map(|it| it.state.as_ref()?.waiting.as_ref()?.reason.as_deref());
        let fails = reasons.any(|reason| reason == "CrashLoopBackOff");
        Ok(if fails { Ok(pod.metadata.uid) } else { Err(format!("{status:?}")) })
    };
    Ok(cluster.wait(&format!("{pod} in its loop"), SOON, look).await?)
}

/// A workload whose containers are these.
fn with(set: Workload, spec: Value) -> Workload {
    Workload { template: json!({ "spec": spec }), ..set }
}

/// What is missing on one node may be there on another: also for an init container. Nothing is fenced for it.
pub async fn a_pod_that_fails_on_its_node_starts_on_another(cluster: &Cluster) -> Result<(), Failed> {
    let policy = json!({ "triggers": { "crashLoop": { "action": "Ignore" } } });
    let lane = Lane::new(cluster, "loops", LaneOptions { policy, ..LaneOptions::default() }).await?;
    let victim = lane.victim()?.name().to_owned();
    let container = |name: &str| json!([{ "name": name, "image": format!("crash-on/{victim}") }]);
    let first = with(lane.workload("main"), json!({ "containers": container("main") }));
    let second = with(lane.workload("init"), json!({ "initContainers": container("before") }));
    for set in [&first, &second] {
        cluster.stateful_set_on(&[lane.array()], set).await?;
        looping(cluster, &format!("{}-0", set.name)).await?;
    }
    // Their template would have them here again.
    let nodes: Api<Node> = Api::all(lane.client());
    let cordon = json!({ "spec": { "unschedulable": true } });
    nodes.patch(&victim, &PatchParams::default(), &Patch::Merge(cordon)).await?;
    assert_eq!(deletions(cluster, &first)?, [], "the policy ignores crash loops");
    let policies: Api<ResiliencyPolicy> = Api::all(lane.client());
    let acts = json!({ "spec": { "triggers": { "crashLoop": { "action": "Reschedule" } } } });
    policies.patch("loops", &PatchParams::default(), &Patch::Merge(acts)).await?;
    for set in [&first, &second] {
        lane.moved(set).await?;
        let deleted = deletions(cluster, set)?;
        assert_eq!(deleted.len(), 1, "{deleted:?}");
        let body = deleted[0].body.as_ref().ok_or("no body")?;
        assert!(body["gracePeriodSeconds"].is_null(), "the kubelet is there: {body}");
        assert!(body["preconditions"]["uid"].is_string(), "{body}");
        event(cluster, "Pod", &format!("{}-0", set.name), "PodReleased", "CrashLoopBackOff").await?;
    }
    let recorded = policies.get("loops").await?.status.map(|status| status.crash_loop_deletes.len());
    assert_eq!(recorded, Some(2));
    assert!(Api::<NodeFence>::all(lane.client()).get_opt(&victim).await?.is_none(), "an incident was opened");
    assert_eq!(lane.taints().await?.iter().filter(|taint| taint.key.contains("bulkhead")).count(), 0);
    lane.end().await
}

/// Killed before and after each record and each deletion, controllers together delete no more than the budget; then they
/// say so, and rest.
pub async fn a_program_that_fails_everywhere_keeps_to_its_budget() -> Result<(), Failed> {
    let cluster = Cluster::start(ClusterOptions { nodes: 2, controller: false, ..options() }).await?;
    let admin = cluster.testbed.client(&Identity::Admin).await?;
    let spec = json!({ "triggers": { "crashLoop": { "maxDeletes": 2 } } });
    let story = async {
        create_policy(&cluster.client, "buggy", "buggy", &spec).await?;
        let labels = [("lane".to_owned(), "buggy".to_owned())].into();
        let set = with(
            Workload { labels, ..Workload::new("buggy") },
            json!({ "containers": [{ "name": "main", "image": "crash" }] }),
        );
        cluster.stateful_set(&set).await?;
        event(&cluster, "Pod", "buggy-0", "PodKept", "BudgetExhausted").await?;
        looping(&cluster, "buggy-0").await?;
        let deleted = deletions(&cluster, &set)?;
        assert_eq!(deleted.len(), 2, "{deleted:?}");
        at_rest(&cluster, &[Identity::OperatorController], SOON).await
    };
    let sites = [
        Site::before("update resiliencypolicies/status", 2),
        Site::after("update resiliencypolicies/status", 3),
        Site::before("delete pods", 1),
        Site::after("delete pods", 2),
        Site::after("delete pods", 3),
    ];
    let (left, died) = Mortals { cluster: &cluster, admin: &admin }.disturbed(sites.to_vec(), story).await?;
    assert!(died >= 3, "killed {died} times only, not at {left:?}");
    cluster.judge()?;
    Ok(())
}
