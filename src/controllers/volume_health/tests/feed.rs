//! Which volumes a change is worth a look at: without anybody who asks, those that show a taint still.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::super::feed::Feed;
use super::world::{parse, policy};
use crate::api::names;
use crate::api::slim::PersistentVolume;
use crate::controllers::feed_tests::{Queued, context, list_done};
use crate::controllers::{Stores, testing};
use crate::runtime::store::ObjectKey;

/// The stores that the controller listens to, and what it is to look at.
fn listening() -> (Stores, Queued) {
    let cx = context();
    let stores = cx.stores.clone();
    let (queue, queued) = Queued::queue();
    Feed { cx, queue, beats: Arc::default() }.start(&CancellationToken::new());
    (stores, queued)
}

fn volume(name: &str, marks: Value) -> PersistentVolume {
    let mut volume = json!({ "metadata": { "name": name }, "status": { "phase": "Bound" } });
    json_patch::merge(&mut volume, &json!({ "metadata": marks }));
    parse(volume)
}

fn begin_to_ask(stores: &Stores) {
    stores.health_policies.insert(Arc::unwrap_or_clone(policy("default", json!({ "selector": {} }))));
}

/// Two volumes change, and the attachment of one of them.
fn change(stores: &Stores) {
    stores.volumes.insert(volume("v1", json!({})));
    stores.volumes.insert(volume("v2", json!({})));
    attach(stores);
}

/// The attachment comes anew.
fn attach(stores: &Stores) {
    let attachment = testing::attachment("v1", "n1");
    stores.attachments.remove(&ObjectKey::from(&attachment));
    stores.attachments.insert(attachment);
}

#[tokio::test(start_paused = true)]
async fn where_nobody_asks_and_no_volume_is_marked_nothing_is_looked_at() {
    let (stores, queued) = listening();
    change(&stores);
    assert!(queued.taken().await.is_empty(), "it is not known whether anybody asks");
    list_done(&stores);
    assert!(queued.taken().await.is_empty(), "nobody does");
    change(&stores);
    stores.volumes.remove(&ObjectKey::cluster("v2"));
    assert!(queued.taken().await.is_empty());
    begin_to_ask(&stores);
    assert_eq!(queued.taken().await, ["v1"], "somebody listened all the while");
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_shows_a_taint_is_looked_at_though_nobody_asks() {
    let (stores, queued) = listening();
    list_done(&stores);
    stores.volumes.insert(volume("good", json!({})));
    for marks in [
        json!({ "labels": { names::TAINTED_LABEL: "Enforce" } }),
        json!({ "labels": { names::NO_ATTACH_LABEL: "Enforce" } }),
        json!({ "annotations": { names::VOLUME_TAINTS_ANNOTATION: "[]" } }),
    ] {
        stores.volumes.insert(volume("marked", marks.clone()));
        assert_eq!(queued.taken().await, ["marked"], "{marks}");
    }
    stores.volumes.insert(volume("marked", json!({})));
    assert!(queued.taken().await.is_empty(), "it shows none any more");
}

#[tokio::test(start_paused = true)]
async fn the_first_policy_has_all_volumes_looked_at_and_each_change_from_then_on() {
    let (stores, queued) = listening();
    list_done(&stores);
    change(&stores);
    assert!(queued.taken().await.is_empty());
    begin_to_ask(&stores);
    assert_eq!(queued.taken().await, ["v1", "v2"]);
    begin_to_ask(&stores);
    assert!(queued.taken().await.is_empty(), "its status is worth nothing");
    attach(&stores);
    assert_eq!(queued.taken().await, ["v1"]);
    stores.volumes.insert(volume("v2", json!({})));
    assert_eq!(queued.taken().await, ["v2"]);
    stores.health_policies.remove(&ObjectKey::cluster("default"));
    assert_eq!(queued.taken().await, ["v1", "v2"], "what is left of it is taken back");
    change(&stores);
    assert!(queued.taken().await.is_empty(), "nobody asks any more");
}

#[tokio::test(start_paused = true)]
async fn a_record_that_a_policy_left_behind_asks_too() {
    let (stores, queued) = listening();
    list_done(&stores);
    stores.healths.insert(testing::tainted("gone", "example.com/1", &[]));
    assert_eq!(queued.taken().await, ["gone"]);
    change(&stores);
    assert_eq!(queued.taken().await, ["v1", "v2"]);
}

#[tokio::test(start_paused = true)]
async fn what_came_before_the_first_lists_is_made_good_for() {
    let (stores, queued) = listening();
    begin_to_ask(&stores);
    assert!(queued.taken().await.is_empty(), "there are no volumes yet");
    change(&stores);
    stores.health_policies.list_done();
    change(&stores);
    assert!(queued.taken().await.is_empty(), "not all is known yet");
    list_done(&stores);
    assert_eq!(queued.taken().await, ["v1", "v2"]);
}
