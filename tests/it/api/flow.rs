//! How the API server ranks requests of ours when it has too many.

use k8s_openapi::api::flowcontrol::v1::{FlowSchema, PriorityLevelConfiguration};
use kube::client::Body;
use kube::{Api, Client};

use super::Outcome;
use super::world::{DRIVER, World, eventually};

/// Where the API server says which FlowSchema it took, and which level that led to.
const CHOSEN: &str = "x-kubernetes-pf-flowschema-uid";
const LEVEL: &str = "x-kubernetes-pf-prioritylevel-uid";

/// What a fence asks for is ranked, and what the driver's other containers ask for with the same ServiceAccount is not.
pub async fn a_fence_is_ranked_before_other_workloads(world: &World) -> Outcome {
    let schemas: Api<FlowSchema> = Api::all(world.admin.clone());
    let fences = schemas.get(&format!("bulkhead-fencer-{DRIVER}")).await?.metadata.uid;
    let elections = schemas.get(&format!("bulkhead-fencer-leader-election-{DRIVER}")).await?.metadata.uid;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/bulkhead-system/leases/any";
    for (path, ours) in [("/apis/bulkhead.dev/v1alpha1/fencerequests", &fences), (leases, &elections)] {
        eventually(path, async || (said(&world.sidecar, path, CHOSEN).await == *ours).then_some(())).await?;
    }
    let other = said(&world.sidecar, "/apis/storage.k8s.io/v1/volumeattachments", CHOSEN).await;
    assert!(other.is_some() && other != fences && other != elections, "{other:?}");
    Ok(())
}

/// So is all that the controller asks for, its Lease first, whatever the levels are that others are put into.
pub async fn the_controller_is_ranked_before_other_workloads(world: &World) -> Outcome {
    let schemas: Api<FlowSchema> = Api::all(world.admin.clone());
    let levels: Api<PriorityLevelConfiguration> = Api::all(world.admin.clone());
    let lease = "/apis/coordination.k8s.io/v1/namespaces/bulkhead-system/leases/bulkhead-controller";
    let of_others = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    for (path, schema, level) in [
        ("/apis/bulkhead.dev/v1alpha1/nodefences", "bulkhead-controller", "workload-high"),
        ("/api/v1/nodes", "bulkhead-controller", "workload-high"),
        (of_others, "bulkhead-controller", "workload-high"),
        (lease, "bulkhead-leader-election", "leader-election"),
    ] {
        let expected = (schemas.get(schema).await?.metadata.uid, levels.get(level).await?.metadata.uid);
        let what = format!("{path} by {schema} into {level}");
        let ranked = async || {
            let chosen = said(&world.controller, path, CHOSEN).await;
            ((chosen, said(&world.controller, path, LEVEL).await) == expected).then_some(())
        };
        eventually(&what, ranked).await?;
    }
    let other = said(&world.person, "/apis/bulkhead.dev/v1alpha1/nodefences", LEVEL).await;
    let high = levels.get("workload-high").await?.metadata.uid;
    assert!(other.is_some() && other != high, "a person is ranked as the controller is: {other:?}");
    Ok(())
}

/// A header of an answer, whether it was granted or not.
async fn said(client: &Client, path: &str, header: &str) -> Option<String> {
    let request = http::Request::get(path).body(Body::empty()).ok()?;
    let answer = client.send(request).await.ok()?;
    answer.headers().get(header)?.to_str().ok().map(str::to_owned)
}
