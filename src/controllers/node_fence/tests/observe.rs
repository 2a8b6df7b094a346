//! What a pass takes from the stores.

use std::collections::BTreeSet;

use serde_json::json;

use crate::api::node_fence::{Channel, Evidence};
use crate::controllers::feed_tests::context;
use crate::controllers::testing::*;

use super::super::decide::Settings;
use super::super::memory::Incident;
use super::super::observe;
use super::build::fence;

/// The volume that no method covers names no driver: of its path only the evidence tells.
#[tokio::test]
async fn the_drivers_of_the_volumes_and_of_the_lost_backends_are_heard_and_no_others() {
    let cx = context();
    let mut fence = fence(&[pod("db", "n1", &[csi("v1"), unknown("v2")])], &policy("db", &json!({})));
    let kubelet = fence.spec.plan.evidence[0].clone();
    let of = |channel, backend: &str| Evidence { channel, backend: Some(backend.into()), ..kubelet.clone() };
    fence.spec.plan.evidence.extend([of(Channel::Storage, FILES), of(Channel::Power, POWER)]);
    assert_eq!(fence.spec.plan.drivers(), BTreeSet::from([DRIVER, FILES]));
    cx.stores.fences.insert(fence);
    [DRIVER, FILES, POWER].into_iter().for_each(|driver| cx.stores.reports.insert(able(driver)));
    let seen = observe::stored(&cx, "n1", &mut Incident::default(), Settings::default(), now()).unwrap();
    assert_eq!(seen.reports.keys().collect::<Vec<_>>(), [DRIVER, FILES]);
}
