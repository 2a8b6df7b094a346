//! External fencers, played by the test under identities of their own: a node without power, nobody who answers, somebody who
//! answers for another.

use bulkhead::api::fence_request::{Desired, FenceOutcome, FenceRequest, FenceResult, FencerMethodType};
use bulkhead::api::fencing::{FenceMethodType, Proof};
use bulkhead::api::node_fence::{NodeFence, Phase};
use bulkhead_testbed::Identity;
use bulkhead_testbed::cluster::{Cluster, ClusterOptions, Workload};
use chrono::{SubsecRound, Utc};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Error, ResourceExt};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::fleet::{Lane, LaneOptions, options};
use super::look::{Before, condition, phase, volume_row};

/// A fencer that may answer for its own name.
pub(super) struct Played {
    pub(super) name: String,
    api: Api<FenceRequest>,
}

impl Played {
    pub(super) async fn new(cluster: &Cluster, name: &str) -> Result<Self, Failed> {
        let role: ClusterRole = serde_json::from_value(json!({
            "metadata": { "name": format!("fencer-{name}") },
            "rules": [
                { "apiGroups": ["bulkhead.dev"], "resources": ["fencers"], "resourceNames": [name], "verbs": ["attest"] },
                { "apiGroups": ["bulkhead.dev"], "resources": ["fencerequests"], "verbs": ["get", "list", "watch"] },
                { "apiGroups": ["bulkhead.dev"], "resources": ["fencerequests/status"], "verbs": ["update"] },
            ],
        }))?;
        let binding: ClusterRoleBinding = serde_json::from_value(json!({
            "metadata": { "name": format!("fencer-{name}") },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": format!("fencer-{name}") },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name }],
        }))?;
        Api::all(cluster.client.clone()).create(&PostParams::default(), &role).await?;
        Api::all(cluster.client.clone()).create(&PostParams::default(), &binding).await?;
        let identity = Identity::User { name: name.to_owned(), groups: Vec::new() };
        let client = cluster.testbed.client(&identity).await?;
        Ok(Self { name: name.to_owned(), api: Api::all(client) })
    }

    /// Answers every row of a request in the round that it asks for.
    pub(super) async fn answer(
        &self,
        request: &FenceRequest,
        outcome: FenceOutcome,
        proof: Proof,
    ) -> Result<FenceRequest, Error> {
        let mut next = request.clone();
        let now = Utc::now().trunc_subsecs(6);
        let status = next.status.get_or_insert_default();
        let known = std::mem::take(&mut status.volumes);
        for asked in &request.spec.volumes {
            let begun = known.iter().find(|row| row.name == asked.name).and_then(|row| row.started_at);
            let fenced = outcome == FenceOutcome::Fenced;
            status.volumes.push(FenceResult {
                proof,
                method: fenced.then_some(FencerMethodType::External),
                started_at: begun.or_else(|| (outcome == FenceOutcome::Started).then_some(now)),
                read_back_at: fenced.then_some(now),
                reason: fenced.then(|| "PoweredOff".into()),
                ..FenceResult::of(asked, outcome)
            });
        }
        let name = next.metadata.name.clone().unwrap_or_default();
        self.api.replace_status(&name, &PostParams::default(), &next).await
    }
}

fn by(fencer: &str, minimum: &str, more: &[Value]) -> Value {
    let mut methods = vec![json!({ "type": "External", "external": { "fencerName": fencer } })];
    methods.extend_from_slice(more);
    json!({ "fencing": { "minimumProof": minimum, "methods": methods, "callTimeout": "2s", "giveUpAfter": "10s" } })
}

pub(super) fn is_asked(request: &FenceRequest) -> bool {
    request.spec.desired == Desired::Fenced && !request.spec.volumes.is_empty()
}

pub(super) fn row_of(fence: &NodeFence, volume: &str) -> Result<(Option<FenceMethodType>, Proof), Failed> {
    let row = volume_row(fence, volume).ok_or("no row")?;
    Ok((row.method, row.proof))
}

pub async fn a_node_without_power_frees_its_pods(cluster: &Cluster) -> Result<(), Failed> {
    let fencer = Played::new(cluster, "power.nopower.test").await?;
    let forger = Played::new(cluster, "power.elsewhere.test").await?;
    let policy = by(&fencer.name, "PowerOff", &[]);
    let options = LaneOptions { sidecar: false, policy, ..LaneOptions::default() };
    let (lane, set, before) = Lane::open(cluster, "nopower", options).await?;
    // Cut off from the API, and still writing.
    lane.victim()?.kill().await;
    let request = lane.request_of(&fencer.name, "asked", is_asked).await?;
    let asked = request.spec.volumes.first().ok_or("no volume")?;
    assert_eq!((asked.minimum_proof, asked.methods.len()), (Proof::PowerOff, 1));
    // Nobody answers: it is told, and nothing is done.
    let fence = lane.fence("silent", |fence| condition(fence, "Stalled") == Some(("True", "FencerSilent"))).await?;
    assert_eq!(condition(&fence, "Released").map(|(status, _)| status), Some("False"));
    // Somebody answers who may answer for another fencer only.
    for outcome in [FenceOutcome::Started, FenceOutcome::Fenced] {
        let proof = if outcome == FenceOutcome::Fenced { Proof::PowerOff } else { Proof::None };
        match forger.answer(&request, outcome, proof).await {
            Err(Error::Api(refused)) => assert_eq!(refused.code, 403, "{refused:?}"),
            other => return Err(format!("a forged answer was taken: {other:?}").into()),
        }
    }
    lane.assert_untouched(&set, &before).await?;
    // A proof that is too weak for the policy.
    only_power_off_frees(lane, &set, &before, &fencer, &request, Proof::Acknowledged).await
}

/// The fencer proves less than that the node has no power: that frees nobody. Then the node has none, and when its pods have moved
/// it gets it back.
pub(super) async fn only_power_off_frees(
    lane: Lane<'_>,
    set: &Workload,
    before: &Before,
    fencer: &Played,
    request: &FenceRequest,
    weak: Proof,
) -> Result<(), Failed> {
    let volume = set.volume_name(0, 0);
    let begun = fencer.answer(request, FenceOutcome::Started, Proof::None).await?;
    let weak = fencer.answer(&begun, FenceOutcome::Fenced, weak).await?;
    lane.fence("too weak", |fence| condition(fence, "Fenced") == Some(("False", "ProofTooWeak"))).await?;
    lane.assert_untouched(set, before).await?;
    let round = weak.spec.volumes.first().map(|asked| asked.round);
    let again = lane.request_of(&fencer.name, "asked again", |it| it.spec.volumes.first().map(|it| it.round) > round);
    let again = again.await?;
    lane.victim()?.power_off().await;
    fencer.answer(&again, FenceOutcome::Fenced, Proof::PowerOff).await?;
    lane.moved(set).await?;
    let fence = lane.detached().await?;
    assert_eq!(row_of(&fence, &volume)?, (Some(FenceMethodType::External), Proof::PowerOff));
    // All has moved: the fencer may give the node its power back.
    let unfenced = lane.request_of(&fencer.name, "given back", |it| it.spec.desired == Desired::Unfenced).await?;
    fencer.answer(&unfenced, FenceOutcome::Unfenced, Proof::None).await?;
    lane.victim()?.revive().await?;
    lane.recovered().await?;
    lane.end().await
}

/// A call that failed may have cut the machine off: with its Node deleted nobody would know of what runs there. That it has no power ends
/// the wait, though no pod waits for that any more.
pub async fn what_a_fencer_has_begun_is_kept_while_its_node_is_deleted(cluster: &Cluster) -> Result<(), Failed> {
    let fencer = Played::new(cluster, "power.begun.test").await?;
    let policy = by(&fencer.name, "PowerOff", &[]);
    let (lane, set, _) =
        Lane::open(cluster, "begun", LaneOptions { sidecar: false, policy, ..LaneOptions::default() }).await?;
    lane.victim()?.kill().await;
    let request = lane.request_of(&fencer.name, "asked", is_asked).await?;
    let begun = fencer.answer(&request, FenceOutcome::Started, Proof::None).await?;
    fencer.answer(&begun, FenceOutcome::Failed, Proof::None).await?;
    lane.victim()?.power_off().await;
    Api::<Node>::all(lane.client()).delete(lane.victim()?.name(), &DeleteParams::default()).await?;
    // Kubernetes does both too: pod garbage collection after 40 s and more, attach/detach after six minutes.
    let by_force = DeleteParams::default().grace_period(0);
    Api::<Pod>::default_namespaced(lane.client()).delete(&lane.pod(&set, 0).await?.name_any(), &by_force).await?;
    for attachment in lane.attachments().await? {
        Api::<VolumeAttachment>::all(lane.client()).delete(&attachment, &DeleteParams::default()).await?;
    }
    lane.moved(&set).await?;
    let told = |fence: &NodeFence| condition(fence, "NodeClean") == Some(("Unknown", "MachineMayRun"));
    let fence = lane.fence("its machine may write on", told).await?;
    let stalled = fence.status.iter().flat_map(|status| &status.conditions).find(|it| it.type_ == "Stalled");
    let message = stalled.map(|it| it.message.as_str()).unwrap_or_default();
    assert!(message.contains("power.begun.test has begun to cut it off, and has not proved it"), "{message}");

    let round = |request: &FenceRequest| request.spec.volumes.first().map(|asked| asked.round);
    let open = lane.request_of(&fencer.name, "asked", is_asked).await?;
    let begun = fencer.answer(&open, FenceOutcome::Started, Proof::None).await?;
    let failed = fencer.answer(&begun, FenceOutcome::Failed, Proof::None).await?;
    let again = lane.request_of(&fencer.name, "asked again", |it| is_asked(it) && round(it) > round(&failed)).await?;
    let again = fencer.answer(&again, FenceOutcome::Started, Proof::None).await?;
    fencer.answer(&again, FenceOutcome::Fenced, Proof::PowerOff).await?;
    let unfenced = lane.request_of(&fencer.name, "given back", |it| it.spec.desired == Desired::Unfenced).await?;
    fencer.answer(&unfenced, FenceOutcome::Unfenced, Proof::None).await?;
    lane.fence("over", |fence| phase(fence) == Some(Phase::Recovered)).await?;
    lane.end().await
}

pub async fn when_nobody_answers_the_next_method_is_tried(cluster: &Cluster) -> Result<(), Failed> {
    let nobody = "power.nobody.test";
    let policy = by(nobody, "Verified", &[json!({ "type": "Unpublish" })]);
    let lane = Lane::new(cluster, "nextone", LaneOptions { policy, ..LaneOptions::default() }).await?;
    let set = lane.workload("db");
    lane.run(&set).await?;
    lane.victim()?.kill().await;
    lane.request_of(nobody, "asked first", is_asked).await?;
    lane.moved(&set).await?;
    let fence = lane.detached().await?;
    assert_eq!(row_of(&fence, &set.volume_name(0, 0))?, (Some(FenceMethodType::Unpublish), Proof::Verified));
    lane.victim()?.reboot().await?;
    lane.recovered().await?;
    lane.end().await
}

pub async fn a_node_without_power_is_carried_through_by_the_next_controller() -> Result<(), Failed> {
    let mut cluster = Cluster::start(ClusterOptions { arrays: Vec::new(), nodes: 2, ..options() }).await?;
    let fencer = Played::new(&cluster, "power.killed.test").await?;
    let first = cluster.controllers.remove(0);
    {
        let policy = by(&fencer.name, "PowerOff", &[]);
        let options = LaneOptions { sidecar: false, policy, ..LaneOptions::default() };
        let (lane, set, before) = Lane::open(&cluster, "killed", options).await?;
        lane.victim()?.kill().await;
        let request = lane.request_of(&fencer.name, "asked", is_asked).await?;
        let begun = fencer.answer(&request, FenceOutcome::Started, Proof::None).await?;
        first.kill().await;
        lane.victim()?.power_off().await;
        fencer.answer(&begun, FenceOutcome::Fenced, Proof::PowerOff).await?;
        lane.assert_untouched(&set, &before).await?;
        // What another process asked for is no proof for this one: it asks whether the node is still held off.
        let _second = cluster.controller("bulkhead-controller-0")?;
        let again = lane.request_of(&fencer.name, "asked again", |it| {
            is_asked(it) && it.spec.volumes.first().is_some_and(|asked| asked.round == 2)
        });
        let again = again.await?;
        lane.assert_untouched(&set, &before).await?;
        fencer.answer(&again, FenceOutcome::Fenced, Proof::PowerOff).await?;
        lane.moved(&set).await?;
        lane.end().await?;
    }
    cluster.judge()?;
    Ok(())
}
