//! How the API server ranks requests of ours when it has too many.

use k8s_openapi::api::flowcontrol::v1::FlowSchema;
use kube::client::Body;
use kube::{Api, Client};

use super::Outcome;
use super::world::{DRIVER, World, eventually};

/// Where the API server says which FlowSchema it took.
const CHOSEN: &str = "x-kubernetes-pf-flowschema-uid";

/// What a fence asks for is ranked, and what the driver's other containers ask for with the same ServiceAccount is not.
pub async fn a_fence_is_ranked_before_other_workloads(world: &World) -> Outcome {
    let schemas: Api<FlowSchema> = Api::all(world.admin.clone());
    let fences = schemas.get(&format!("bulkhead-fencer-{DRIVER}")).await?.metadata.uid;
    let elections = schemas.get(&format!("bulkhead-fencer-leader-election-{DRIVER}")).await?.metadata.uid;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/bulkhead-system/leases/any";
    for (path, ours) in [("/apis/bulkhead.dev/v1alpha1/fencerequests", &fences), (leases, &elections)] {
        eventually(path, async || (chosen(&world.sidecar, path).await == *ours).then_some(())).await?;
    }
    let other = chosen(&world.sidecar, "/apis/storage.k8s.io/v1/volumeattachments").await;
    assert!(other.is_some() && other != fences && other != elections, "{other:?}");
    Ok(())
}

/// The FlowSchema of an answer, whether it was granted or not.
async fn chosen(client: &Client, path: &str) -> Option<String> {
    let request = http::Request::get(path).body(Body::empty()).ok()?;
    let answer = client.send(request).await.ok()?;
    answer.headers().get(CHOSEN)?.to_str().ok().map(str::to_owned)
}
