//! A fence that is made when its incident is over.

use super::super::left::{behind, is_over};
use super::*;
use crate::api::names::FENCED_TAINT;
use crate::api::slim::Node;

fn left_by(fences: &[NetworkFence], requests: &[FenceRequest]) -> Vec<FenceRequest> {
    behind(DRIVER, &[CLASS.to_owned()], fences, requests)
}

#[test]
fn it_is_lifted_when_nobody_asks_for_its_node() {
    let uids = |left: Vec<FenceRequest>| left.into_iter().filter_map(|it| it.metadata.uid).collect::<Vec<_>>();
    let nobody = [] as [String; 0];
    assert_eq!(uids(left_by(&[holding(), holding()], &[])), ["r1"]);
    assert_eq!(uids(left_by(&[holding()], &[request("r9", "n9", "Fenced", &[])])), ["r1"]);
    for asked in [request("r1", "n1", "Unfenced", &[]), request("r2", "n1", "Fenced", &[])] {
        assert_eq!(uids(left_by(&[holding()], std::slice::from_ref(&asked))), nobody, "{asked:?}");
    }
    assert_eq!(uids(left_by(&[foreign("Fenced", "10.0.0.1/32")], &[])), nobody, "it is none of ours");
    assert_eq!(uids(behind(DRIVER, &["another".to_owned()], &[holding()], &[])), nobody, "it is another driver's");
}

#[test]
fn it_stays_while_its_node_is_not_well() {
    let left = left_by(&[holding()], &[]);
    let node = |name: &str, ready: &str, taints: Value| -> Node {
        serde_json::from_value(json!({
            "metadata": { "name": name, "uid": "anew" }, "spec": { "taints": taints },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] },
        }))
        .unwrap()
    };
    let ours = json!([{ "key": FENCED_TAINT, "effect": "NoSchedule" }]);
    for (node, expected) in [
        (node("n1", "True", json!([])), true),
        (node("n1", "Unknown", json!([])), false),
        (node("n1", "True", ours), false),
        (node("n2", "True", json!([])), false),
    ] {
        assert_eq!(is_over(&left[0], std::slice::from_ref(&node)), expected, "{node:?}");
    }
}

#[test]
fn who_stands_in_for_its_request_lifts_it() {
    let mut world = World::new("Unfenced");
    world.0.request = Arc::new(left_by(&[holding()], &[]).remove(0));
    (world.0.requests, world.0.fences) = (Vec::new(), vec![holding()]);
    let Step::Replace(announced) = give_back(&world.0) else { panic!("{:?}", give_back(&world.0)) };
    world.0.fences = vec![NetworkFence { status: holding().status, ..*announced }];
    let Step::Replace(lifting) = give_back(&world.0) else { panic!("{:?}", give_back(&world.0)) };
    assert_eq!(lifting.spec.fence_state, FenceState::Unfenced);
    // Somebody wants the node out by now.
    world.0.requests = vec![Arc::new(request("r2", "n1", "Fenced", &["10.0.0.1"]))];
    world.0.fences = vec![holding()];
    assert_eq!(world.code(give_back), "AddressShared");
}
