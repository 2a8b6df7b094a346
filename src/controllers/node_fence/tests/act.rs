//! What a write rests on.

use k8s_openapi::api::core::v1::Taint;

use crate::api::names;
use crate::controllers::testing::node;

use super::super::act::precondition_for;

#[test]
fn the_key_is_for_the_node_as_it_was_read() {
    let mut node = node("n1");
    node.metadata.resource_version = Some("7".into());
    for (key, version) in [(names::OUT_OF_SERVICE_TAINT, Some("7")), (names::FENCED_TAINT, None)] {
        let taint = Taint { key: key.into(), ..Taint::default() };
        assert_eq!(precondition_for(&taint, &node).version, version, "{key}");
    }
}
