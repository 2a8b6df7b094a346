use std::sync::{Arc, Mutex};

use http::Method;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use serde_json::json;
use tokio::time::Instant;

use super::*;
use crate::{
    api::driver_report::{DriverReport, DriverReportSpec, DriverReportStatus},
    error::ErrorClass,
    runtime::{
        fake_api::{self, Call, Reply, ok, refuse, silence},
        leader::tests::Switch,
        patch,
    },
};

/// A writer, and what it sent.
fn writer(leadership: Leadership, answer: fn(&Call) -> Reply) -> (Writer, Arc<Mutex<Vec<Call>>>) {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let client = fake_api::client({
        let calls = calls.clone();
        move |call: Call| {
            calls.lock().unwrap().push(call.clone());
            answer(&call)
        }
    });
    (Writer::new(client, leadership, "bulkhead-test"), calls)
}

fn echo(call: &Call) -> Reply {
    ok(call.body.clone())
}

fn config_map(value: Value) -> ConfigMap {
    serde_json::from_value(value).unwrap()
}

fn sample() -> ConfigMap {
    config_map(json!({
        "metadata": { "namespace": "ns", "name": "a", "resourceVersion": "7" }, "data": { "k": "v" },
    }))
}

#[tokio::test]
async fn nothing_is_sent_without_leadership() {
    let (_switch, leadership) = Switch::new();
    let (writer, calls) = writer(leadership, echo);
    let key = ObjectKey::from(&sample());
    let patch = JsonPatch(Vec::new());
    let results = [
        writer.create(&sample()).await.map(drop),
        writer.replace(&sample()).await.map(drop),
        writer.replace_status(&sample()).await.map(drop),
        writer.apply(&sample()).await.map(drop),
        writer.json_patch::<ConfigMap>(&key, patch.clone()).await.map(drop),
        writer.json_patch_status::<ConfigMap>(&key, patch).await.map(drop),
        writer.delete::<ConfigMap>(&key, "uid", None, None).await,
    ];
    for result in results {
        assert_eq!(result.unwrap_err().class(), ErrorClass::NotLeader);
    }
    assert!(calls.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_write_ends_before_leadership_does() {
    let (switch, leadership) = Switch::new();
    let (writer, calls) = writer(leadership, |_| silence());
    for (term, limit) in [(2, 2), (60, 5)] {
        switch.lead_for(Duration::from_secs(term));
        let started = Instant::now();
        let error = writer.create(&sample()).await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Deadline);
        assert!(started.elapsed() <= Duration::from_millis(limit * 1000 + 10), "{:?}", started.elapsed());
    }
    assert_eq!(calls.lock().unwrap().len(), 2, "sent once each, not repeated");
}

#[tokio::test]
async fn a_delete_names_the_object_it_means() {
    let (writer, calls) = writer(Leadership::always(), |_| ok(json!({ "kind": "Status", "status": "Success" })));
    let key = ObjectKey::namespaced("ns", "db-0");
    writer.delete::<Pod>(&key, "uid-1", Some("42"), Some(0)).await.unwrap();
    let call = calls.lock().unwrap()[0].clone();
    assert_eq!((call.method, call.path.as_str()), (Method::DELETE, "/api/v1/namespaces/ns/pods/db-0"));
    assert_eq!(call.body["preconditions"], json!({ "uid": "uid-1", "resourceVersion": "42" }));
    assert_eq!(call.body["gracePeriodSeconds"], 0);
}

#[tokio::test]
async fn deleting_what_is_gone_is_done_but_another_object_is_a_conflict() {
    let (gone, _) = writer(Leadership::always(), |_| refuse(404, "NotFound"));
    let key = ObjectKey::namespaced("ns", "db-0");
    gone.delete::<Pod>(&key, "uid-1", None, None).await.unwrap();
    let (other, _) = writer(Leadership::always(), |_| refuse(409, "Conflict"));
    assert!(other.delete::<Pod>(&key, "uid-1", None, None).await.unwrap_err().is_conflict());
}

#[tokio::test]
async fn a_replacement_needs_and_sends_the_version_it_was_made_from() {
    let (writer, calls) = writer(Leadership::always(), echo);
    writer.replace(&sample()).await.unwrap();
    writer.replace_status(&sample()).await.unwrap();
    let mut blind = sample();
    blind.metadata.resource_version = None;
    assert_eq!(writer.replace(&blind).await.unwrap_err().class(), ErrorClass::Invalid);
    assert_eq!(writer.replace_status(&blind).await.unwrap_err().class(), ErrorClass::Invalid);
    let calls = calls.lock().unwrap().clone();
    let paths: Vec<_> = calls.iter().map(|call| call.path.as_str()).collect();
    let object = "/api/v1/namespaces/ns/configmaps/a";
    assert_eq!(paths, [object, &format!("{object}/status")]);
    for call in calls {
        assert_eq!(call.body["metadata"]["resourceVersion"], "7");
        assert_eq!(call.query["fieldManager"], "bulkhead-test");
    }
}

#[tokio::test]
async fn an_apply_takes_the_fields_that_it_names_and_says_the_kind() {
    let (writer, calls) = writer(Leadership::always(), echo);
    let desired = config_map(json!({
        "metadata": { "namespace": "ns", "name": "a", "labels": { "ours": "1" } }, "data": { "k": "v" },
    }));
    assert_eq!(writer.apply(&desired).await.unwrap(), desired);
    let call = calls.lock().unwrap()[0].clone();
    assert_eq!((call.method, call.content_type.as_str()), (Method::PATCH, "application/apply-patch+yaml"));
    assert_eq!((call.body["kind"].as_str(), call.body["apiVersion"].as_str()), (Some("ConfigMap"), Some("v1")));
    assert_eq!((call.query["fieldManager"].as_str(), call.query["force"].as_str()), ("bulkhead-test", "true"));
}

#[tokio::test]
async fn a_json_patch_is_sent_as_one() {
    let (writer, calls) = writer(Leadership::always(), |_| ok(json!({ "metadata": { "name": "a" } })));
    let patch = patch::add_finalizer(&sample().metadata, "bulkhead.dev/x").unwrap();
    writer.json_patch::<ConfigMap>(&ObjectKey::from(&sample()), patch).await.unwrap();
    let call = calls.lock().unwrap()[0].clone();
    assert_eq!(call.content_type, "application/json-patch+json");
    assert_eq!(call.body[0]["op"], "test");
}

#[tokio::test]
async fn where_nothing_would_change_nothing_is_sent() {
    let (writer, calls) = writer(Leadership::always(), |_| ok(json!({ "metadata": { "name": "a" } })));
    let patch = patch::add_finalizer(&sample().metadata, "bulkhead.dev/x");
    assert!(writer.patch(&sample(), None).await.unwrap().is_none());
    assert!(calls.lock().unwrap().is_empty());
    assert!(writer.patch(&sample(), patch).await.unwrap().is_some());
    let call = calls.lock().unwrap()[0].clone();
    assert_eq!((call.method, call.path.as_str()), (Method::PATCH, "/api/v1/namespaces/ns/configmaps/a"));
}

#[tokio::test]
async fn a_status_is_recorded_on_the_version_that_was_read() {
    let (writer, calls) = writer(Leadership::always(), echo);
    let mut before = DriverReport::new("a", DriverReportSpec::default());
    before.metadata.resource_version = Some("7".into());
    let status = DriverReportStatus { sidecar_version: Some("1.2".into()), ..DriverReportStatus::default() };
    assert_eq!(writer.record(&before, status.clone()).await.unwrap().status, Some(status));
    let call = calls.lock().unwrap()[0].clone();
    assert_eq!((call.method, call.body["metadata"]["resourceVersion"].as_str()), (Method::PUT, Some("7")));
    assert!(call.path.ends_with("/driverreports/a/status"), "{}", call.path);
}

#[tokio::test]
async fn a_failed_test_is_a_conflict_and_an_invalid_object_is_not() {
    let key = ObjectKey::from(&sample());
    let patch = || patch::add_finalizer(&sample().metadata, "bulkhead.dev/x").unwrap();
    // As kube-apiserver 1.36 answers a failed test: `details` is there but names nothing.
    let (failed, _) = writer(Leadership::always(), |_| refuse_with(json!({})));
    assert!(failed.json_patch::<ConfigMap>(&key, patch()).await.unwrap_err().is_conflict());
    assert!(failed.json_patch_status::<ConfigMap>(&key, patch()).await.unwrap_err().is_conflict());
    let (invalid, _) = writer(Leadership::always(), |_| refuse_with(json!({ "name": "a" })));
    let error = invalid.json_patch::<ConfigMap>(&key, patch()).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Rejected);
}

fn refuse_with(details: Value) -> Reply {
    fake_api::refuse_with(422, "Invalid", details)
}
