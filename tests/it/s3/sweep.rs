//! What no event tells: workloads that went while nobody looked, and Mountpoint Pods that nothing names.

use std::collections::BTreeSet;

use bulkhead::api::s3;
use chrono::{SecondsFormat, Utc};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::json;

use super::attachments::write;
use super::lane::Lane;
use super::world::{SOON, World};

/// Another namespace than by default; and times that are shorter, so that they can be waited for.
const NAMESPACE: &str = "mounts-elsewhere";
const ARGUMENTS: [&str; 4] = [
    "--mountpoint-namespace=mounts-elsewhere",
    "--s3-stale-after=15s",
    "--s3-orphan-after=10s",
    "--s3-sweep-interval=5s",
];
/// How the log tells of each kind.
const WORDS: [&str; 3] = ["stale attachment cleanup", "empty attachment cleanup", "forgotten Mountpoint Pod cleanup"];

/// Ours, and nothing names it: a controller before us was told to make it by an attachment that is gone.
pub async fn a_forgotten_mountpoint_pod_is_removed(world: &World) -> Result<(), Failed> {
    let lane = Lane::new(world, "forgotten", 1).await?;
    lane.bound("data", json!({})).await?;
    lane.pod("user", 1, &["data"], json!({})).await?;
    let used = lane.shared("data", &[&["user"]]).await?;
    forget(&lane, &used[0]).await?;
    removed(&lane).await?;
    assert_eq!(lane.shared("data", &[&["user"]]).await?, used, "what is used stays");
    lane.delete(&["user"]).await?;
    lane.clean("data").await
}

/// Makes another that nothing names, beside one that is used.
async fn forget(lane: &Lane<'_>, like: &str) -> Result<(), Failed> {
    let mut forgotten = lane.mountpoint_pods().get(like).await?;
    forgotten.metadata = kube::api::ObjectMeta {
        name: Some("mp-forgotten".to_owned()),
        labels: Some(forgotten.labels().clone()),
        annotations: Some(forgotten.annotations().clone()),
        ..Default::default()
    };
    forgotten.status = None;
    if let Some(spec) = &mut forgotten.spec {
        spec.node_name = None;
    }
    lane.create::<Pod>(Some(lane.world.namespace), serde_json::to_value(&forgotten)?).await.map(drop)
}

/// Waits until it is gone.
async fn removed(lane: &Lane<'_>) -> Result<(), Failed> {
    let pods = lane.mountpoint_pods();
    let look = async || {
        let pod = pods.get_opt("mp-forgotten").await?;
        Ok(pod.map_or(Ok(()), |pod| Err(format!("{:?} {:?}", pod.metadata, pod.status))))
    };
    Ok(lane.world.cluster.wait("what nothing names is removed", SOON, look).await?)
}

/// The controller was away. Of the two that follow only the one that leads sweeps.
pub async fn finds_what_was_missed() -> Result<(), Failed> {
    let mut world = World::start_in(NAMESPACE, &ARGUMENTS).await?;
    world.cluster.start_controller().await?;
    let lane = Lane::new(&world, "missed", 1).await?;
    lane.bound("data", json!({})).await?;
    lane.pod("user", 1, &["data"], json!({})).await?;
    lane.pod("stays", 1, &["data"], json!({})).await?;
    let pods = lane.shared("data", &[&["user", "stays"]]).await?;
    drop(lane);

    let controller = world.cluster.controllers.remove(0);
    controller.kill().await;
    let lane = Lane { world: &world, name: "missed".to_owned() };
    lane.pods().delete("user", &kube::api::DeleteParams::default().grace_period(0)).await?;
    lane.bound("nobody", json!({})).await?;
    let now = Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true);
    let unknown = json!([{ "workloadPodUID": "00000000-0000-4000-8000-000000000000", "attachmentTime": now }]);
    write(&lane, "nobody", json!({ "mp-of-nobody": unknown })).await?;
    lane.bound("empty", json!({})).await?;
    write(&lane, "empty", json!({})).await?;
    forget(&lane, &pods[0]).await?;
    let replicas = [world.cluster.controller("replica-a")?, world.cluster.controller("replica-b")?];
    for claim in ["data", "nobody", "empty"] {
        let look = async || {
            let attachments = lane.attachments_of(claim).await?;
            let named: usize = attachments.iter().map(|it| it.spec.workloads().len()).sum();
            let wanted = usize::from(claim == "data");
            Ok(if named == wanted { Ok(()) } else { Err(format!("{attachments:?}")) })
        };
        world.cluster.wait(&format!("what is stale in {claim} is gone"), SOON, look).await?;
    }
    assert_eq!(lane.shared("data", &[&["stays"]]).await?, pods);
    removed(&lane).await?;
    told(&world).await?;
    let mut sweeping = Vec::new();
    for replica in &replicas {
        let said = std::fs::read_to_string(&replica.launch().log)?;
        sweeping.push(WORDS.map(|words| said.contains(words)));
    }
    sweeping.sort_unstable();
    assert_eq!(sweeping, [[false; 3], [true; 3]], "whose log tells of which: {WORDS:?}");
    Ok(())
}

/// Events tell of it too, as the S3 controller service asks for them.
async fn told(world: &World) -> Result<(), Failed> {
    let events: Api<Event> = Api::all(world.cluster.client.clone());
    let of_controller = ListParams::default().fields("reportingComponent=bulkhead-controller");
    let look = async || {
        let found = events.list(&of_controller).await?;
        let of_sweep = found.iter().filter(|event| event.action.as_deref() == Some(s3::SWEEP_ACTION));
        let reasons: BTreeSet<_> = of_sweep.filter_map(|event| event.reason.as_deref()).collect();
        let wanted = BTreeSet::from(["OrphanRemoved", "StaleAttachmentsRemoved"]);
        Ok(if reasons == wanted { Ok(()) } else { Err(format!("{reasons:?}")) })
    };
    Ok(world.cluster.wait("Events tell of the sweep", SOON, look).await?)
}
