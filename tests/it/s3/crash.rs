//! `kill -9` at the controller's writes, before they are sent and when they are done: whoever starts next carries on, and in
//! the end nothing is lost, nothing left behind, nothing there twice.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead::api::s3;
use bulkhead_testbed::fault_proxy::{Call, Site};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::json;

use crate::deaths::Mortals;

use super::lane::Lane;
use super::world::World;

/// A workload that went while no controller ran counts as gone so soon.
const STALE: &str = "--s3-stale-after=20s";

/// One kind of write after the other, each before and after.
pub async fn killed_at_its_writes_it_converges() -> Result<(), Failed> {
    let world = World::start(&[STALE]).await?;
    let calls = undisturbed(&world).await?;
    let kinds: BTreeSet<_> = calls.iter().map(|call| call.what.as_str()).collect();
    for kind in ["create pods", "patch pods", "delete pods", "create mountpoints3podattachments"] {
        assert!(kinds.contains(kind), "no {kind} in {calls:?}");
    }
    // What was not sent is sent again, as the second of its kind.
    let sites: Vec<_> = kinds.iter().flat_map(|kind| [Site::before(kind, 1), Site::after(kind, 2)]).collect();
    let (left, died) = mortals(&world).disturbed(sites, story(&world, "dies")).await?;
    println!("killed at {died} writes of {} kinds", kinds.len());
    assert_eq!(left, [], "these were not come to");
    Ok(())
}

/// Each write of the story, alone.
pub async fn killed_at_every_write_it_converges() -> Result<(), Failed> {
    let world = World::start(&[STALE]).await?;
    let calls = undisturbed(&world).await?;
    mortals(&world).disturbed_at_each(&calls, async |name| story(&world, name).await).await
}

/// Our calls of a story during which nobody dies.
async fn undisturbed(world: &World) -> Result<Vec<Call>, Failed> {
    let calls = mortals(world).undisturbed(story(world, "lives")).await?;
    Ok(calls.into_iter().filter(is_ours).collect())
}

fn mortals(world: &World) -> Mortals<'_> {
    Mortals { cluster: &world.cluster, admin: &world.admin }
}

/// Whether a kind of write is one of S3 mounts: for others there are other tests.
fn is_ours(call: &Call) -> bool {
    [" pods", " mountpoints3podattachments"].iter().any(|resource| call.what.contains(resource))
}

/// Mounts are shared, replaced, given up and lost; in the end nothing may be left.
async fn story(world: &World, name: &str) -> Result<(), Failed> {
    let lane = Lane::new(world, name, 1).await?;
    for claim in ["data", "more"] {
        lane.bound(claim, json!({})).await?;
    }
    lane.pod("a", 1, &["data"], json!({})).await?;
    lane.pod("b", 1, &["data", "more"], json!({})).await?;
    let pods = lane.shared("data", &[&["a", "b"]]).await?;
    lane.shared("more", &[&["b"]]).await?;

    lane.status(&lane.mountpoint_pods(), &pods[0], json!({ "phase": "Failed" })).await?;
    lane.wait_for(&lane.mountpoint_pods(), &pods[0], "gone", |pod| pod.is_none()).await?;
    let pods = lane.shared("data", &[&["a", "b"]]).await?;
    lane.pod("c", 1, &["data"], json!({})).await?;
    assert_eq!(lane.shared("data", &[&["a", "b", "c"]]).await?, pods);

    let deleted = lane.attachment("more").await?;
    lane.attachments().delete(&deleted.name_any(), &DeleteParams::default()).await?;
    let anew = |uid: Option<String>| uid.is_some() && uid != deleted.uid();
    lane.wait_for(&lane.attachments(), &deleted.name_any(), "made anew", |it| anew(it.and_then(|it| it.uid()))).await?;
    lane.shared("more", &[&["b"]]).await?;

    // A Job that is done, and others that are deleted.
    lane.status(&lane.pods(), "a", json!({ "phase": "Succeeded" })).await?;
    lane.shared("data", &[&["b", "c"]]).await?;
    lane.delete(&["c"]).await?;
    lane.shared("data", &[&["b"]]).await?;
    lane.pods().delete("b", &DeleteParams::default().grace_period(0)).await?;
    lane.clean("data").await?;
    lane.clean("more").await?;
    nothing_is_left(world).await
}

async fn nothing_is_left(world: &World) -> Result<(), Failed> {
    let pods: Api<Pod> = Api::namespaced(world.admin.clone(), s3::MOUNTPOINT_NAMESPACE);
    let left: BTreeMap<_, _> =
        pods.list(&ListParams::default()).await?.items.iter().map(|pod| (pod.name_any(), pod.status.clone())).collect();
    assert!(left.is_empty(), "{left:?}");
    Ok(())
}
