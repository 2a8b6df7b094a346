//! Whether a fence that was proved still holds.

use super::*;

/// A look, the first.
fn look(seen: &Seen) -> Step {
    holds(seen, &BTreeSet::new())
}

#[test]
fn who_lifts_an_address_is_waited_for() {
    for rival in [
        foreign("Unfenced", "10.0.0.0/8"),
        of("another", "Fenced", "10.0.0.1/32", json!({ names::UNFENCING_LABEL: "true" })),
    ] {
        let mut world = World::new("Fenced");
        let made = with_result(world.made(), "Succeeded", "fencing operation successful");
        world.0.fences = vec![rival.clone()];
        assert_eq!(world.code(fence), "BeingUnfenced");
        world.0.fences = vec![made, rival];
        // What was fenced may be lifted by now: when the rival is gone it does not count any more. Whoever looks marks it.
        assert!(matches!(look(&world.0), Step::Replace(_)));
        let Step::Replace(spent) = fence(&world.0) else { panic!("{:?}", fence(&world.0)) };
        let spent = NetworkFence { status: holding().status, ..*spent };
        assert!(spent.is_fenced() && !spent.metadata.labels.as_ref().unwrap().contains_key(names::UNFENCING_LABEL));
        world.0.round = 4;
        world.0.fences[0] = spent.clone();
        assert_eq!(world.code(fence), "BeingUnfenced");
        world.0.fences = vec![spent];
        assert_eq!(world.code(look), "NetworkFenceLifted");
        let again = with_result(world.made(), "Succeeded", "fencing operation successful");
        world.0.fences.push(again);
        assert_eq!(fence(&world.0), Step::Done);
        assert_eq!(look(&world.0), Step::Done);
    }
    let mut world = World::new("Fenced");
    world.0.fences = vec![foreign("Unfenced", "10.0.0.2/32"), foreign("Fenced", "10.0.0.1/32")];
    world.made();
    assert_eq!(world.code(look), "NetworkFenceLifted", "ours is gone");
}

/// Whoever made it may have lifted it before it was deleted, between two looks.
#[test]
fn a_fence_of_others_that_is_gone_makes_ours_doubtful() {
    let mut world = World::new("Fenced");
    world.0.fences = vec![holding(), foreign("Fenced", "10.0.0.0/24"), of("far", "Fenced", "10.1.0.1/32", json!({}))];
    assert_eq!(look(&world.0), Step::Done);
    let before = others(&world.0);
    assert_eq!(before, BTreeSet::from(["foreign".to_owned()]));
    assert_eq!(holds(&world.0, &before), Step::Done);
    world.0.fences.truncate(1);
    let Step::Replace(marked) = holds(&world.0, &before) else { panic!("{:?}", holds(&world.0, &before)) };
    assert!(marked.metadata.annotations.as_ref().unwrap().contains_key(names::ANNOUNCED_ANNOTATION));
}

/// A later incident of the same node: what was shut out in the first one is so still.
#[test]
fn a_row_that_is_carried_over_is_looked_for_in_its_own_episode() {
    let at = |row: i64, made: &str| {
        let mut world = World::new("Fenced");
        let mut request = FenceRequest::clone(&world.0.request);
        request.spec.episode = 2;
        request.spec.volumes[0].episode = row;
        request.status.as_mut().unwrap().volumes[0].episode = row;
        world.0.request = Arc::new(request);
        let mut fence = holding();
        fence.metadata.labels.as_mut().unwrap().insert(names::EPISODE_LABEL.into(), made.into());
        world.0.fences = vec![fence];
        look(&world.0)
    };
    assert_eq!(at(1, "1"), Step::Done);
    assert_eq!(at(1, "2"), Step::Done, "made again in the later one");
    assert!(matches!(at(2, "1"), Step::Stop(failure) if failure.code == "NetworkFenceLifted"));
}

/// Volumes that are not attached: the class may have been made anew since.
#[test]
fn a_fence_of_another_cluster_does_not_hold() {
    let with = |demanded: Option<&str>, made: Option<&str>| {
        let mut world = World::new("Fenced");
        let mut request = FenceRequest::clone(&world.0.request);
        request.spec.volumes[0].attach_required = Some(false);
        request.spec.volumes[0].cluster_id = demanded.map(str::to_owned);
        world.0.request = Arc::new(request);
        let mut fence = holding();
        let annotations = fence.metadata.annotations.as_mut().unwrap();
        annotations.remove(names::FENCED_CLUSTER_ANNOTATION);
        annotations.extend(made.map(|made| (names::FENCED_CLUSTER_ANNOTATION.to_owned(), made.to_owned())));
        world.0.fences = vec![fence];
        look(&world.0)
    };
    assert_eq!(with(Some("a"), Some("a")), Step::Done);
    assert_eq!(with(None, Some("")), Step::Done);
    for (demanded, made) in [(Some("a"), Some("b")), (Some("a"), Some("")), (None, Some("a")), (None, None)] {
        let found = with(demanded, made);
        assert!(
            matches!(&found, Step::Stop(failure) if failure.code == "NetworkFenceLifted"),
            "{demanded:?} {found:?}"
        );
    }
}
