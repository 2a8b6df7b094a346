//! What is told when a pass is carried out.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Taint;

use crate::api::names;
use crate::controllers::feed_tests::telling;
use crate::controllers::testing::*;

use super::super::act::act;
use super::super::decide::Effect;

#[tokio::test(start_paused = true)]
async fn the_end_of_a_plugins_taint_is_told_as_its_beginning_is() {
    let node = node("n1");
    let (cx, told) = telling(&node);
    let key = names::driver_down_taint(DRIVER);
    let taint = Taint { key: key.clone(), effect: "NoSchedule".into(), ..Taint::default() };
    act(&cx, Effect::AddTaint { taint: taint.clone(), node: Arc::new(node.clone()) }).await.unwrap();
    assert_eq!(told.taken().await, ["Node n1 NodeTainted"]);
    let node = Arc::new(with_taint(node, &key, "", "NoSchedule"));
    act(&cx, Effect::RemoveTaint { taint: taint.clone(), node: node.clone() }).await.unwrap();
    assert_eq!(told.taken().await, ["Node n1 NodeUntainted"]);
}
