//! Which nodes a change is worth a look at.

use std::sync::Mutex;

use serde_json::json;

use crate::api::driver_report::{DriverReport, PathState, UnreachablePair};
use crate::api::fence_request::FenceRequest;
use crate::api::node_fence::NodeFence;
use crate::api::node_volume_report::{NodeVolumeReport, NodeVolumeReportSpec};
use crate::api::slim::Pod;
use crate::controllers::Stores;
use crate::controllers::feed_tests::{Queued, context, list_done};
use crate::controllers::testing::*;
use crate::runtime::queue::Next;
use crate::runtime::store::ObjectKey;

use super::super::decide::Settings;
use super::super::metrics::Metrics;
use super::super::{Controller, feed};
use super::build::fence;

/// Something changes that is of node `n1`: one of each kind, but for its Node, its report and its NodeFence.
const CHANGES: [fn(&Stores); 4] = [
    |stores| stores.pods.insert(Pod::clone(&pod("db", "n1", &[csi("v1")]).pod)),
    |stores| stores.attachments.insert(attachment("v1", "n1")),
    |stores| stores.requests.insert(request()),
    |stores| stores.reports.insert(disconnected()),
];

fn request() -> FenceRequest {
    serde_json::from_value(json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "FenceRequest", "metadata": { "name": "n1" },
        "spec": {
            "fencerName": DRIVER, "nodeName": "n1", "episode": 1, "desired": "Fenced", "callTimeout": "5s",
            "node": { "uid": "uid-n1" }, "volumes": [],
        },
    }))
    .unwrap()
}

/// The driver says that the node has lost the path to its storage.
fn disconnected() -> DriverReport {
    let mut told = able(DRIVER);
    let pair = UnreachablePair {
        node: "n1".into(),
        backend: DRIVER.into(),
        state: PathState::Disconnected,
        reason: None,
        since: at(0),
    };
    told.status.as_mut().unwrap().unreachable = vec![pair];
    told
}

fn fence_of_node() -> NodeFence {
    fence(&[], &policy("db", &json!({})))
}

fn report_of_agent() -> NodeVolumeReport {
    NodeVolumeReport::new("n1", NodeVolumeReportSpec {})
}

fn n1() -> ObjectKey {
    ObjectKey::cluster("n1")
}

/// The stores that the controller listens to, and what it is to look at.
fn listening() -> (Stores, Queued) {
    let cx = context();
    let (queue, queued) = Queued::queue();
    feed::start(&cx, &queue);
    (cx.stores, queued)
}

#[tokio::test(start_paused = true)]
async fn of_a_node_without_a_fence_only_a_missing_report_is_worth_a_look() {
    let (stores, queued) = listening();
    stores.nodes.insert(node("n1"));
    assert_eq!(queued.taken().await, ["n1"], "it has no report");
    for (number, change) in CHANGES.iter().enumerate() {
        change(&stores);
        assert!(queued.taken().await.is_empty(), "change {number}: for that no report is looked for");
    }
    stores.node_reports.insert(report_of_agent());
    stores.nodes.insert(node("n1"));
    assert!(queued.taken().await.is_empty(), "it has one");
    stores.node_reports.remove(&n1());
    assert_eq!(queued.taken().await, ["n1"], "it has lost it");
}

#[tokio::test(start_paused = true)]
async fn of_a_node_with_a_fence_each_change_is_worth_a_look() {
    let (stores, queued) = listening();
    stores.fences.insert(fence_of_node());
    assert_eq!(queued.taken().await, ["n1"]);
    for (number, change) in CHANGES.iter().enumerate() {
        change(&stores);
        assert_eq!(queued.taken().await, ["n1"], "change {number}");
    }
    stores.node_reports.insert(report_of_agent());
    assert_eq!(queued.taken().await, ["n1"]);
    stores.nodes.insert(node("n1"));
    assert_eq!(queued.taken().await, ["n1"], "though it has a report");
}

#[tokio::test(start_paused = true)]
async fn a_node_is_looked_at_once_more_when_its_fence_has_gone() {
    let (stores, queued) = listening();
    stores.fences.insert(fence_of_node());
    assert_eq!(queued.taken().await, ["n1"]);
    stores.fences.remove(&n1());
    assert_eq!(queued.taken().await, ["n1"], "or it would be remembered for ever");
    CHANGES.iter().for_each(|change| change(&stores));
    assert!(queued.taken().await.is_empty());
}

#[tokio::test]
async fn what_is_remembered_of_a_fence_goes_with_it() {
    let cx = context();
    list_done(&cx.stores);
    let metrics = Metrics::register(&cx.telemetry);
    let controller = Controller { cx, metrics, settings: Settings::default(), incidents: Mutex::default() };
    controller.incident("n1");
    controller.incident("n2");
    assert_eq!(controller.reconcile("n1").await.unwrap(), Next::Await);
    assert_eq!(controller.incidents.lock().unwrap().keys().collect::<Vec<_>>(), ["n2"]);
}
