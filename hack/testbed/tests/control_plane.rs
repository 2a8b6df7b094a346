//! The control plane itself, with real programs. Each test takes some seconds.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::time::{Duration, Instant};

use bulkhead_testbed::{Identity, Testbed, TestbedOptions};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"a": "b"}})).unwrap()
}

#[tokio::test]
async fn a_control_plane_is_ready_soon_and_enforces_rbac() {
    let started = Instant::now();
    let testbed = Testbed::start(TestbedOptions::default()).await.unwrap();
    eprintln!("ready after {:?}", started.elapsed());

    let admin = testbed.client(&Identity::Admin).await.unwrap();
    let maps: Api<ConfigMap> = Api::default_namespaced(admin);
    maps.create(&PostParams::default(), &config_map("by-admin"))
        .await
        .unwrap();

    let stranger = testbed.client(&Identity::OperatorController).await.unwrap();
    let maps: Api<ConfigMap> = Api::default_namespaced(stranger);
    let refused = maps
        .create(&PostParams::default(), &config_map("by-operator"))
        .await
        .unwrap_err();
    let kube::Error::Api(status) = refused else {
        panic!("not an answer: {refused}")
    };
    assert_eq!(status.code, 403);
    assert!(
        status
            .message
            .contains("system:serviceaccount:bulkhead-system:bulkhead-controller")
    );
    let _ = Duration::ZERO;
}
