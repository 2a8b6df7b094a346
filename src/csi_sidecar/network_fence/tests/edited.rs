//! Somebody writes into a NetworkFence of ours: csi-addons, with its finalizer; or who changes whom it shuts out.

use super::*;

const ADDONS_FINALIZER: &str = "csiaddons.openshift.io/network-fence";

/// The fence of the request that holds, with these addresses written into it.
fn edited() -> NetworkFence {
    let mut edited = holding();
    edited.metadata.generation = Some(3);
    edited.spec.cidrs = vec!["10.0.0.7/32".into()];
    edited
}

/// As it is after somebody asked for its deletion.
fn deleted(mut fence: NetworkFence) -> NetworkFence {
    fence.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    fence
}

/// csi-addons adds its finalizer by an update of the whole object, `driver: ""` and `secret: {}` with it.
#[test]
fn what_csi_addons_writes_into_it_is_no_change() {
    for (generation, deletion, is_as_made) in
        [(1, false, true), (2, false, true), (3, false, false), (3, true, true), (4, true, false)]
    {
        let mut world = World::new("Fenced");
        let mut written = if deletion { deleted(holding()) } else { holding() };
        written.metadata.generation = Some(generation);
        written.spec.others = [("driver".to_owned(), json!("")), ("secret".to_owned(), json!({}))].into();
        world.0.fences = vec![written];
        // Of one that is being deleted the addresses count.
        let cidrs = ["10.0.0.1", "10.9.0.1", "10.9.0.2"];
        world.0.request = Arc::new(request("r1", "n1", "Fenced", &cidrs));
        world.0.round = 4;
        let expected = if is_as_made { 2 } else { 3 };
        match fence(&world.0) {
            Step::Done => assert!(is_as_made && !deletion, "{generation}"),
            Step::Create(made) => assert_eq!(made.spec.cidrs.len(), expected, "{generation} {deletion}"),
            other => panic!("{generation} {deletion}: {other:?}"),
        }
    }
}

#[test]
fn one_that_somebody_changed_proves_nothing() {
    let taken_back = NetworkFence { spec: holding().spec, ..edited() };
    let before_csi_addons_came = {
        let mut fence = edited();
        fence.metadata.generation = Some(2);
        fence
    };
    for changed in [edited(), taken_back, before_csi_addons_came] {
        let mut world = World::new("Fenced");
        world.0.fences = vec![changed];
        assert_eq!(world.code(|seen| holds(seen, &BTreeSet::new())), "NetworkFenceLifted");
        world.0.round = 4;
        assert_eq!(world.made().spec.cidrs, ["10.0.0.1/32", "10.9.0.1/32"]);
    }
}

/// What somebody wrote into it is theirs to let in; ours would stay out for good, and nothing would say so.
#[test]
fn whom_it_was_made_to_shut_out_is_let_in() {
    let mut world = World::new("Unfenced");
    world.0.fences = vec![edited()];
    let Step::Replace(announced) = give_back(&world.0) else { panic!("{:?}", give_back(&world.0)) };
    world.0.fences = vec![NetworkFence { status: holding().status, ..*announced }];
    let Step::Replace(lifting) = give_back(&world.0) else { panic!("{:?}", give_back(&world.0)) };
    assert_eq!((lifting.spec.fence_state, &lifting.spec.cidrs), (FenceState::Unfenced, &holding().spec.cidrs));
    // Who wants those out is asked, and not who wants the others.
    world.0.fences = vec![edited(), foreign("Fenced", "10.0.0.7/32")];
    assert!(matches!(give_back(&world.0), Step::Replace(_)));
    world.0.fences = vec![edited(), foreign("Fenced", "10.9.0.1/32")];
    assert_eq!(world.code(give_back), "AddressShared");
}

/// Somebody lets other addresses in by it: what is said of it is not of ours, so that another object lifts them.
#[test]
fn a_lift_of_other_addresses_is_not_taken_for_ours() {
    let mut lifted = with_result(edited(), "Succeeded", "unfencing operation successful");
    lifted.spec.fence_state = FenceState::Unfenced;
    lifted.metadata.finalizers.as_mut().unwrap().push(ADDONS_FINALIZER.into());
    let mut world = World::new("Unfenced");
    world.0.fences = vec![lifted.clone()];
    assert!(matches!(give_back(&world.0), Step::Delete(_)));
    world.0.fences = vec![deleted(lifted.clone())];
    let Step::Create(other) = give_back(&world.0) else { panic!("{:?}", give_back(&world.0)) };
    assert_eq!((other.spec.fence_state, &other.spec.cidrs), (FenceState::Unfenced, &holding().spec.cidrs));
    let node =
        other.metadata.annotations.as_ref().and_then(|annotations| annotations.get(names::FENCED_NODE_ANNOTATION));
    assert_eq!(node.map(String::as_str), Some("n1"), "people look for it");
    // Asked for again, another is made as soon as csi-addons has done with it.
    let mut world = World::new("Fenced");
    world.0.round = 4;
    world.0.fences = vec![lifted.clone()];
    assert!(matches!(fence(&world.0), Step::Delete(_)));
    world.0.fences = vec![deleted(lifted.clone())];
    assert_eq!(world.code(fence), "NetworkUnfencing");
    lifted.metadata.finalizers.as_mut().unwrap().retain(|finalizer| finalizer != ADDONS_FINALIZER);
    world.0.fences = vec![deleted(lifted)];
    assert_eq!(world.made().spec.cidrs, holding().spec.cidrs);
}

/// The node is wanted out again, and its storage has not let it in: who took it for done would leave nothing that lifts it.
#[test]
fn a_lift_that_somebody_deleted_too_early_is_there_for_the_end() {
    let mut lifting = holding();
    lifting.spec.fence_state = FenceState::Unfenced;
    let mut world = World::new("Fenced");
    world.0.round = 4;
    world.0.fences = vec![deleted(lifting.clone())];
    assert_eq!(world.made().spec.cidrs, holding().spec.cidrs);
    // csi-addons may be at it.
    lifting.metadata.finalizers.as_mut().unwrap().push(ADDONS_FINALIZER.into());
    world.0.fences = vec![deleted(lifting.clone())];
    assert_eq!(world.code(fence), "NetworkUnfencing");
    let mut world = World::new("Unfenced");
    lifting.metadata.finalizers.as_mut().unwrap().pop();
    world.0.fences = vec![deleted(lifting)];
    let Step::Create(other) = give_back(&world.0) else { panic!("{:?}", give_back(&world.0)) };
    assert_eq!((other.spec.fence_state, &other.spec.cidrs), (FenceState::Unfenced, &holding().spec.cidrs));
}
