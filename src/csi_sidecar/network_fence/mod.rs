//! Method NetworkFence: csi-addons shuts the addresses of a node out of the storage of this driver. One object for each
//! request and class, whatever the number of volumes; a later round looks whether it still holds.

pub mod addresses;
pub mod clients;
pub mod decide;
mod failures;
pub mod left;
pub mod lift;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use kube::api::{ListParams, ObjectMeta};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::api::driver_report::{DriverReport, NetworkFenceClients, NetworkFenceCluster};
use crate::api::fence_request::{Desired, FenceRequest, RequestedVolume};
use crate::api::network_fence::{CsiAddonsNode, NetworkFence, NetworkFenceClass};
use crate::api::slim::network::ReportedAddresses;
use crate::api::slim::{CsiNode, Node};
use crate::api::time;
use crate::error::{Error, ErrorClass, Result as ApiResult};
use crate::runtime::store::ObjectKey;

use self::addresses::Around;
use self::decide::{Seen, Step};
use super::decide::{Failure, FailureClass};
use super::unfence::CSI_ADDONS_MISSING;
use super::{Context, status};

/// How soon is looked again for what csi-addons does, first and at last. It writes nothing that could be waited for but its
/// result; and every look is a list.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));
/// Fences of one request that are marked in one look at most.
const MARKS: usize = 8;
/// Classes of the driver that are reported at most.
const MOST_CLASSES: usize = 64;
/// The longest name of a cluster that is reported.
const MOST_CLUSTER_ID: usize = 253;
/// How long one pass waits for the end of a fence.
const PATIENCE: Duration = Duration::from_secs(2);

/// Shuts the node of a request out, and sees to it that it is. All volumes are of one class.
pub async fn fence(
    cx: &Context,
    request: &Arc<FenceRequest>,
    class: &str,
    volumes: &[RequestedVolume],
    timeout: Duration,
) -> Result<(), Failure> {
    let before = check_cluster(cx, class, volumes).await?;
    let class_uid = before.uid.as_deref().unwrap_or_default();
    let class_made = before.creation_timestamp.as_ref().map(time::from_k8s);
    let round = volumes.iter().map(|volume| volume.round).max().unwrap_or(1);
    let cluster = volumes.iter().find_map(RequestedVolume::demanded_cluster);
    let asked = Asked { class, class_uid, class_made, cluster, round };
    advance(cx, request, asked, decide::fence, timeout).await?;
    // csi-addons read the class after we did.
    let now = check_cluster(cx, class, volumes).await?;
    addresses::check_same(class, class_uid, now.uid.as_deref().unwrap_or_default())
}

/// What a fence is asked to be; nothing where it is lifted, or only looked at.
#[derive(Clone, Copy, Default)]
struct Asked<'a> {
    class: &'a str,
    class_uid: &'a str,
    class_made: Option<DateTime<Utc>>,
    cluster: Option<&'a str>,
    round: i32,
}

/// A class that shuts addresses out of another cluster of the storage leaves these volumes to whoever writes them. Looked at before
/// and after each round: somebody may have made the class anew. Its metadata tell; empty where none of them demands a cluster.
async fn check_cluster(cx: &Context, class: &str, volumes: &[RequestedVolume]) -> Result<ObjectMeta, Failure> {
    if volumes.iter().all(|volume| volume.demanded_cluster().is_none()) {
        return Ok(ObjectMeta::default());
    }
    let classes: Api<NetworkFenceClass> = Api::all(cx.clients.reads.clone());
    let found = classes.get_opt(class).await.map_err(|error| unavailable(error.into()))?;
    let cluster_id = found.as_ref().and_then(NetworkFenceClass::cluster_id);
    addresses::check_cluster(class, cluster_id, volumes)?;
    Ok(found.map(|class| class.metadata).unwrap_or_default())
}

/// Lets it in again. An error says what is waited for.
pub async fn give_back(cx: &Context, request: &Arc<FenceRequest>) -> Result<(), Failure> {
    advance(cx, request, Asked::default(), lift::give_back, PATIENCE).await
}

/// Lifts what requests that are gone have left behind. At rest one list is read.
pub async fn lift_left_behind(cx: &Context, classes: &[String]) -> ApiResult<()> {
    let fences: Vec<NetworkFence> = if classes.is_empty() { Vec::new() } else { list(cx).await? };
    if !fences.iter().any(left::is_ours) {
        return Ok(());
    }
    // After the fences: one whose request is not in this list is of nobody any more.
    let requests: Vec<FenceRequest> = list(cx).await?;
    let mut left = left::behind(&cx.name, classes, &fences, &requests);
    if left.is_empty() {
        return Ok(());
    }
    let nodes: Vec<Node> = list(cx).await?;
    left.retain(|request| left::is_over(request, &nodes));
    for request in left.into_iter().map(Arc::new) {
        let node = &request.spec.node_name;
        match give_back(cx, &request).await {
            Ok(()) => tracing::info!(node, "a NetworkFence that was made after the end of its incident is lifted"),
            Err(failure) => tracing::warn!(
                node,
                code = failure.code,
                failure.message,
                "a NetworkFence that was made after the end of its incident is not lifted yet"
            ),
        }
    }
    Ok(())
}

/// What a look at a fence that was proved has shown.
pub struct Looked {
    /// Whether it holds.
    pub holds: Result<(), Failure>,
    /// The fences of others by the same addresses, by uid.
    pub others: BTreeSet<String>,
}

/// Looks whether a fence that was proved still holds; `None` where that cannot be told now. `before` are the others of the look
/// before.
pub async fn look(cx: &Context, request: &Arc<FenceRequest>, before: &BTreeSet<String>) -> Option<Looked> {
    let looked = look_at(cx, request, before).await;
    looked.unwrap_or_else(|error| {
        tracing::warn!(%error, node = request.spec.node_name, "NetworkFences not read; they are looked at again");
        None
    })
}

async fn look_at(cx: &Context, request: &Arc<FenceRequest>, before: &BTreeSet<String>) -> ApiResult<Option<Looked>> {
    for _ in 0..MARKS {
        let seen = observe(cx, request, Asked::default()).await?;
        let holds = match decide::holds(&seen, before) {
            Step::Done => Ok(()),
            Step::Stop(failure) => Err(failure),
            step => match write(cx, &seen, step).await {
                Err(error) if !error.is_conflict() && !error.is_not_found() => return Err(error),
                _ => continue,
            },
        };
        return Ok(Some(Looked { holds, others: decide::others(&seen) }));
    }
    Ok(None)
}

/// The classes that csi-addons has for this driver.
#[derive(Default)]
pub struct Classes {
    /// By name.
    pub names: Vec<String>,
    /// The clusters of the storage that they name, or that they name none.
    pub clusters: Vec<NetworkFenceCluster>,
}

/// Asks for them.
pub async fn classes(cx: &Context) -> ApiResult<Classes> {
    let classes = match list::<NetworkFenceClass>(cx).await {
        // Not installed; or installed and we may not ask, which comes to the same.
        Err(error) if error.is_not_found() || error.class() == ErrorClass::Forbidden => Vec::new(),
        found => found?,
    };
    let mut ours: Vec<_> = classes.iter().filter(|class| class.spec.provisioner == cx.name).collect();
    ours.sort_by_key(|class| class.name_any());
    ours.truncate(MOST_CLASSES);
    let is_short = |class: &&&NetworkFenceClass| class.cluster_id().is_none_or(|id| id.len() <= MOST_CLUSTER_ID);
    let clusters = ours.iter().filter(is_short).map(|class| NetworkFenceCluster {
        class_name: class.name_any(),
        cluster_id: class.cluster_id().map(str::to_owned),
    });
    let clusters = clusters.collect();
    Ok(Classes { names: ours.iter().map(|class| class.name_any()).collect(), clusters })
}

/// By what the storage knows the nodes, as it is to be on record. At rest one list is read, and Nodes hardly ever.
pub async fn known_clients(
    cx: &Context,
    classes: &[String],
    memory: &mut clients::Memory,
) -> ApiResult<Vec<NetworkFenceClients>> {
    let mut record = on_record(cx).await?;
    record.retain(|it| classes.contains(&it.class_name));
    let plugins = if classes.is_empty() { Vec::new() } else { plugins(cx).await? };
    let told = clients::told(&plugins, &cx.name, classes);
    let now = cx.clock.now().mono;
    if !memory.is_look_due(&record, &told, now) {
        return Ok(record);
    }
    let (nodes, csi_nodes, reports) =
        tokio::try_join!(list::<Node>(cx), list::<CsiNode>(cx), list::<ReportedAddresses>(cx))?;
    let machines = clients::Machines { nodes: &nodes, csi_nodes: &csi_nodes, reports: &reports };
    Ok(memory.settle(record, told, &machines, &cx.name, now))
}

/// What is on record, as the API server has it now.
async fn on_record(cx: &Context) -> ApiResult<Vec<NetworkFenceClients>> {
    let reports: Api<DriverReport> = Api::all(cx.clients.reads.clone());
    let status = reports.get_opt(&cx.name).await?.and_then(|report| report.status);
    Ok(status.map(|status| status.network_fence_clients).unwrap_or_default())
}

/// Those in the driver's own namespace. What is said elsewhere anybody may have written.
async fn plugins(cx: &Context) -> ApiResult<Vec<CsiAddonsNode>> {
    let reads = cx.clients.reads.clone();
    let namespace = reads.default_namespace().to_owned();
    // What the API server has in memory will do: it is asked again.
    let found = Api::<CsiAddonsNode>::namespaced(reads, &namespace).list(&ListParams::default().match_any()).await;
    match found.map_err(Error::from) {
        // Not every version of csi-addons has them.
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        found => Ok(found?.items),
    }
}

/// Takes one step after the other, each on what the API server has now, until it is done or the time is up.
async fn advance(
    cx: &Context,
    request: &Arc<FenceRequest>,
    asked: Asked<'_>,
    next: impl Fn(&Seen) -> Step,
    timeout: Duration,
) -> Result<(), Failure> {
    let until = Instant::now() + timeout;
    let (mut pause, longest) = LOOK_AGAIN;
    let mut around = None;
    loop {
        let mut seen = observe(cx, request, asked).await.map_err(unavailable)?;
        seen.around = around.take();
        let is_kept = seen.around.is_some();
        let mut step = next(&seen);
        // To look around reads all Nodes and reports. What was seen before a wait will do to wait on, but not to make a fence.
        if step == Step::LookAround || is_kept && matches!(step, Step::Create(_)) {
            seen.around = Some(look_around(cx, asked.class).await.map_err(unavailable)?);
            step = next(&seen);
        }
        let waits_for = match step {
            Step::Done => return Ok(()),
            Step::Stop(failure) => return Err(failure),
            Step::Wait(failure) => failure,
            step => match write(cx, &seen, step).await {
                Ok(()) => continue,
                // It is another one by now, or gone.
                Err(error) if error.is_conflict() || error.is_not_found() => changed(&error),
                Err(error) => return Err(unavailable(error)),
            },
        };
        if Instant::now() + pause >= until {
            return Err(waits_for);
        }
        around = seen.around;
        tokio::time::sleep(pause).await;
        pause = longest.min(pause * 2);
    }
}

async fn write(cx: &Context, seen: &Seen, step: Step) -> ApiResult<()> {
    match step {
        Step::Record => match seen.live() {
            Some(request) => cx.writer.replace_status(&status::shutting_out(request, cx.clock.now())).await.map(drop),
            None => Ok(()),
        },
        Step::Create(fence) => cx.writer.create(&*fence).await.map(drop),
        Step::Replace(fence) => cx.writer.replace(&*fence).await.map(drop),
        Step::Delete(fence) => {
            let uid = fence.uid().unwrap_or_default();
            cx.writer.delete::<NetworkFence>(&ObjectKey::cluster(fence.name_any()), &uid, None, None).await
        }
        Step::LookAround | Step::Wait(_) | Step::Stop(_) | Step::Done => Ok(()),
    }
}

async fn observe(cx: &Context, request: &Arc<FenceRequest>, asked: Asked<'_>) -> ApiResult<Seen> {
    // One after the other: a fence whose request is not in the later list is of nobody any more.
    let fences = list(cx).await?;
    let (requests, classes): (Vec<FenceRequest>, Vec<NetworkFenceClass>) = match request.spec.desired {
        Desired::Fenced => {
            let api: Api<FenceRequest> = Api::all(cx.clients.reads.clone());
            (api.get_opt(&request.name_any()).await?.into_iter().collect(), Vec::new())
        }
        // Others may want out whom this one lets in; and csi-addons lifts by the class as it is now.
        Desired::Unfenced => tokio::try_join!(list(cx), list(cx))?,
    };
    Ok(Seen {
        request: request.clone(),
        driver: cx.name.clone(),
        class: asked.class.to_owned(),
        class_uid: asked.class_uid.to_owned(),
        class_made: asked.class_made,
        cluster: asked.cluster.map(str::to_owned),
        round: asked.round,
        fences,
        requests: requests.into_iter().map(Arc::new).collect(),
        classes,
        around: None,
        now: cx.clock.now().wall,
    })
}

async fn look_around(cx: &Context, class: &str) -> ApiResult<Around> {
    let classes: Api<NetworkFenceClass> = Api::all(cx.clients.reads.clone());
    let class = async { classes.get_opt(class).await.map_err(Error::from) };
    let (class, nodes, reports, record) = tokio::try_join!(class, list(cx), list(cx), on_record(cx))?;
    // Not every version of csi-addons has them.
    let clients = match list::<CsiAddonsNode>(cx).await {
        Err(error) if error.is_not_found() => Vec::new(),
        found => found?,
    };
    // We run beside the driver's controller, and its node plugins in the same namespace.
    let namespace = cx.clients.reads.default_namespace().to_owned();
    Ok(Around { class, nodes, reports, record, clients, namespace })
}

/// All objects of a kind, as the API server has them now.
async fn list<K>(cx: &Context) -> ApiResult<Vec<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    Ok(Api::<K>::all(cx.clients.reads.clone()).list(&ListParams::default()).await?.items)
}

fn changed(error: &Error) -> Failure {
    Failure { code: "Unavailable", class: FailureClass::Retry, message: format!("csi-addons: {error}") }
}

fn unavailable(error: Error) -> Failure {
    let (code, class) = match error.class() {
        _ if error.is_not_found() => (CSI_ADDONS_MISSING, FailureClass::Stop),
        ErrorClass::Forbidden => ("PermissionDenied", FailureClass::Stop),
        _ => ("Unavailable", FailureClass::Retry),
    };
    Failure { code, class, message: format!("csi-addons: {error}") }
}
