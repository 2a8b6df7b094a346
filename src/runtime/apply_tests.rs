use std::sync::{Arc, Mutex};

use http::Method;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use serde_json::json;
use tokio::time::Instant;

use super::*;
use crate::{
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
    let none = None::<&ConfigMap>;
    let patch = JsonPatch(Vec::new());
    let results = [
        writer.create(&sample()).await.map(drop),
        writer.replace(&sample()).await.map(drop),
        writer.replace_status(&sample()).await.map(drop),
        writer.apply(&sample(), none).await.map(drop),
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
async fn apply_is_skipped_when_the_object_already_holds_it() {
    let (writer, calls) = writer(Leadership::always(), echo);
    let desired = config_map(json!({
        "metadata": { "namespace": "ns", "name": "a", "labels": { "ours": "1" } }, "data": { "k": "v" },
    }));
    let mut live = desired.clone();
    live.metadata.uid = Some("u".into());
    live.data.as_mut().unwrap().insert("theirs".into(), "x".into());
    assert!(writer.apply(&desired, Some(&live)).await.unwrap().is_none());
    assert!(calls.lock().unwrap().is_empty());

    live.data.as_mut().unwrap().insert("k".into(), "changed".into());
    assert!(writer.apply(&desired, Some(&live)).await.unwrap().is_some());
    assert!(writer.apply(&desired, None::<&ConfigMap>).await.unwrap().is_some());
    let call = calls.lock().unwrap()[0].clone();
    assert_eq!((call.method, call.content_type.as_str()), (Method::PATCH, "application/apply-patch+yaml"));
    assert_eq!((call.body["kind"].as_str(), call.body["apiVersion"].as_str()), (Some("ConfigMap"), Some("v1")));
    assert_eq!((call.query["fieldManager"].as_str(), call.query["force"].as_str()), ("bulkhead-test", "true"));
}

#[test]
fn holding_means_equal_lists_and_contained_maps() {
    let live = json!({ "a": { "b": 1, "c": [1, 2] }, "d": "x" });
    for held in [
        json!({}),
        json!({ "a": { "b": 1 } }),
        json!({ "a": { "c": [1, 2] }, "kind": "K" }),
        json!({ "e": null, "f": {}, "g": [] }),
    ] {
        assert!(holds(&live, &held), "{held}");
    }
    for missing in [json!({ "a": { "c": [1] } }), json!({ "d": "y" }), json!({ "e": 1 }), json!({ "a": 1 })] {
        assert!(!holds(&live, &missing), "{missing}");
    }
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
