//! Whole rounds, against a Kubernetes API in memory: what is read, and when.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use chrono::{TimeDelta, Utc};
use kube::ResourceExt as _;

use crate::api::fence_request::RequestedVolume;
use crate::api::time;
use crate::csi_sidecar::act::tests::context;
use crate::csi_sidecar::{Context, network_fence};
use crate::runtime::fake_api::ok;

use super::*;

/// The class of a cluster, with this uid, as it is after that many seconds.
fn class(cluster: &str, uid: &str, age: i64) -> NetworkFenceClass {
    let mut class = class_of(Some(cluster)).unwrap();
    class.metadata.uid = Some(uid.into());
    class.metadata.creation_timestamp = Some(time::to_k8s(Utc::now() - TimeDelta::seconds(age)));
    class
}

/// What holds, by the first class of cluster a.
fn proved() -> NetworkFence {
    let mut world = World::new("Fenced");
    world.around().class = Some(class("a", "first", 3600));
    with_result(world.made(), "Succeeded", "fencing operation successful")
}

/// Where these objects are. Each read of the class finds the next of them, and the last from then on.
fn with(asked: &FenceRequest, fences: Vec<NetworkFence>, classes: Vec<NetworkFenceClass>) -> Context {
    let (asked, name, reads) = (asked.clone(), asked.name_any(), AtomicUsize::new(0));
    let cx = context("/nobody/listens", move |call| {
        let read = || reads.fetch_add(1, Ordering::SeqCst).min(classes.len() - 1);
        let list = |items: Value| ok(json!({ "metadata": {}, "items": items }));
        match call.path.rsplit('/').next().unwrap() {
            "networkfences" => list(json!(fences)),
            "networkfenceclasses" => list(json!([classes[read()]])),
            "fencerequests" => list(json!([asked])),
            CLASS => ok(json!(classes[read()])),
            last if last == name => ok(json!(asked)),
            _ => list(json!([])),
        }
    });
    Context { name: DRIVER.into(), ..cx }
}

/// A round for a volume of cluster a that is not attached.
async fn code_of_round(fences: Vec<NetworkFence>, classes: Vec<NetworkFenceClass>) -> Option<&'static str> {
    let asked = Arc::new(request("r1", "n1", "Fenced", &["10.0.0.1", "10.9.0.1"]));
    let volume = asked.spec.volumes[0].clone();
    let volume = RequestedVolume { attach_required: Some(false), cluster_id: Some("a".into()), ..volume };
    let cx = with(&asked, fences, classes);
    let outcome = network_fence::fence(&cx, &asked, CLASS, &[volume], Duration::ZERO).await;
    outcome.err().map(|failure| failure.code)
}

/// csi-addons read it after we did.
#[tokio::test]
async fn a_class_that_is_made_anew_while_csi_addons_works_proves_nothing() {
    let first = || class("a", "first", 3600);
    assert_eq!(code_of_round(vec![proved()], vec![first()]).await, None);
    let code = code_of_round(vec![proved()], vec![first(), class("a", "second", 0)]).await;
    assert_eq!(code, Some("NetworkFenceChanged"));
    let code = code_of_round(vec![proved()], vec![first(), class("b", "second", 0)]).await;
    assert_eq!(code, Some("ClassOfAnotherCluster"));
}

#[tokio::test]
async fn the_age_of_the_class_is_read() {
    assert_eq!(code_of_round(Vec::new(), vec![class("a", "first", 5)]).await, Some("ClassTooNew"));
}

#[tokio::test(start_paused = true)]
async fn a_lift_goes_by_the_class_as_it_is_now() {
    let asked = Arc::new(request("r1", "n1", "Unfenced", &["10.0.0.1", "10.9.0.1"]));
    let cx = with(&asked, vec![proved()], vec![class("b", "second", 3600)]);
    let failure = network_fence::give_back(&cx, &asked).await.unwrap_err();
    assert_eq!(failure.code, "ClassOfAnotherCluster");
    assert!(failure.message.contains("cluster a") && failure.message.contains("cluster b"), "{}", failure.message);
}
