//! Endpoints that others write for our Service: traffic that is split between two servers corrupts, so nobody is served.

use bulkhead::api::shared_volume::SHARED_VOLUME_LABEL;
use bulkhead_testbed::nfs_server::Mode;
use k8s_openapi::api::core::v1::{Endpoints, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::lane::{Lane, is};

fn slice(name: &str, service: &str, endpoints: Value) -> Value {
    let labels = json!({ "kubernetes.io/service-name": service, "endpointslice.kubernetes.io/managed-by": "somebody" });
    json!({
        "metadata": { "name": name, "labels": labels }, "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{ "name": "nfs", "port": 2049 }],
    })
}

/// Row 24: while they lead clients anywhere, ours lead nowhere.
pub async fn slices_stop_ours(lane: &Lane<'_>) -> Result<(), Failed> {
    let server = lane.server(Mode::Serves).await?;
    lane.serving("data", &[&server], json!({})).await?;
    // An empty one leads nowhere.
    lane.here::<EndpointSlice>(slice("empty", "data", json!([]))).await?;
    lane.barrier("after").await?;
    lane.active("data", &server).await?;
    lane.here::<EndpointSlice>(slice("theirs", "data", json!([{ "addresses": ["198.51.100.7"] }]))).await?;
    lane.condition("data", "ServiceReady", "False", "ForeignEndpoints").await?;
    lane.condition("data", "Stalled", "True", "ForeignEndpoints").await?;
    lane.eventually("ours are withdrawn", async || {
        let slices = lane.slices("data").await?;
        let ours = slices.iter().filter(|slice| slice.labels().contains_key(SHARED_VOLUME_LABEL));
        let left: Vec<_> = ours.flat_map(|slice| slice.endpoints.clone()).collect();
        Ok(if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) })
    })
    .await?;
    // Not ours to delete.
    lane.all::<EndpointSlice>().get("theirs").await?;
    lane.delete::<EndpointSlice>("theirs").await?;
    lane.active("data", &server).await?;
    // There before ours.
    lane.here::<EndpointSlice>(slice("early", "later", json!([{ "addresses": ["198.51.100.7"] }]))).await?;
    lane.served_by("later", &[&server], json!({})).await?;
    let volume = lane.condition("later", "ServiceReady", "False", "ForeignEndpoints").await?;
    assert!(!volume.status.is_some_and(|status| is(&status, "Ready", "True", "Serving")));
    assert_eq!(lane.history("later").concat(), Vec::<u16>::new(), "nobody was ever sent to ours");
    Ok(())
}

/// Row 24: Endpoints of a Service without selector are copied into a slice by Kubernetes. On adoption they go first.
pub async fn legacy_endpoints_go_before_ours_come(lane: &Lane<'_>) -> Result<(), Failed> {
    let server = lane.server(Mode::Serves).await?;
    let adopt = json!({ "bulkhead.dev/adopt": "true" });
    let port = json!([{ "name": "nfs", "port": 2049 }]);
    let spec = json!({ "ports": port, "ipFamilyPolicy": "PreferDualStack" });
    lane.here::<Service>(json!({ "metadata": { "name": "data", "annotations": adopt }, "spec": spec })).await?;
    let subsets = json!([{ "addresses": [{ "ip": "198.51.100.7" }], "ports": port }]);
    lane.here::<Endpoints>(json!({ "metadata": { "name": "data" }, "subsets": subsets })).await?;
    lane.eventually("Kubernetes copies them", async || {
        let slices = lane.slices("data").await?;
        Ok(if slices.is_empty() { Err("no slice".into()) } else { Ok(()) })
    })
    .await?;
    // That the Service may be taken over says nothing of who leads its traffic.
    lane.served_by("data", &[&server], json!({})).await?;
    lane.condition("data", "ServiceReady", "False", "ForeignEndpoints").await?;
    lane.patch::<Endpoints>("data", json!({ "metadata": { "annotations": adopt } })).await?;
    lane.active("data", &server).await?;
    let slices = lane.slices("data").await?;
    assert!(slices.iter().all(|slice| slice.labels().contains_key(SHARED_VOLUME_LABEL)), "{slices:?}");
    Ok(())
}
