//! An address that is of one node by some and of another by others.

use super::*;

/// Behind a NAT the address of a node that is let in may have become that of one that fails. Who fences that one records it first and
/// looks for who lifts then: so who lifts sees the record, if not the fence.
#[test]
fn who_is_about_to_shut_somebody_out_is_waited_for() {
    let asked = request("r2", "n2", "Fenced", &[]);
    let unrecorded = FenceRequest { status: None, ..asked.clone() };
    let labels = json!({ names::FENCE_REQUEST_LABEL: "r2" });
    let far = of("far", "Fenced", "10.1.0.1/32", labels.clone());
    let gone = of("gone", "Unfenced", "10.1.0.1/32", labels);
    for (name, request, fences, is_waited_for) in [
        ("recorded", asked.clone(), vec![], true),
        ("and lifting an earlier one", asked.clone(), vec![gone], true),
        ("made, by another address", asked, vec![far], false),
        ("not recorded: it will see who lifts", unrecorded, vec![], false),
    ] {
        let mut world = World::new("Unfenced");
        world.0.requests.push(Arc::new(request));
        world.0.fences = [vec![holding()], fences].concat();
        if is_waited_for {
            assert_eq!(world.code(give_back), "AddressShared", "{name}");
        } else {
            assert!(matches!(give_back(&world.0), Step::Replace(_)), "{name}");
        }
    }
}

/// A plugin in a pod with an address of its own has the node's name too.
#[test]
fn where_the_driver_tells_one_that_the_node_has_none_of_both_is_left_out() {
    let mut world = World::new("Fenced");
    world.around().record = vec![on_record("n1", "uid-n1", &["10.0.0.1/32", "10.128.0.7/32"])];
    assert_eq!(world.made().spec.cidrs, ["10.0.0.1/32", "10.9.0.1/32", "10.128.0.7/32"]);
}
