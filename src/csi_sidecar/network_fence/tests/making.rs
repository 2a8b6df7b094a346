//! How the node is shut out: an object of its own, on record before it is made, and used once.

use chrono::TimeDelta;
use kube::ResourceExt as _;

use crate::api::time;

use super::*;

#[test]
fn all_frozen_addresses_are_shut_out_by_an_object_of_its_own() {
    let mut world = World::new("Fenced");
    let around = world.0.around.take();
    assert_eq!(fence(&world.0), Step::LookAround);
    world.0.around = around;
    let made = world.made();
    assert_eq!(made.spec.cidrs, ["10.0.0.1/32", "10.9.0.1/32"]);
    assert_eq!(made.spec.fence_state, FenceState::Fenced);
    assert_eq!(made.metadata.name, Some(names::network_fence("r1", CLASS, 1, 3)));
    world.0.fences = vec![made.clone()];
    assert_eq!(world.code(fence), "NetworkFencing");
    world.0.fences = vec![with_result(made.clone(), "Failed", "the storage is away")];
    assert_eq!(world.code(fence), "NetworkFenceFailed");
    world.0.fences = vec![with_result(made, "Succeeded", "fencing operation successful")];
    // A later round looks whether it still holds, and makes nothing.
    world.0.round = 9;
    world.0.around = None;
    assert_eq!(fence(&world.0), Step::Done);
}

#[test]
fn it_is_on_record_before_it_is_made_and_only_while_it_is_asked_for() {
    let mut world = World::new("Fenced");
    let mut unrecorded = FenceRequest::clone(&world.0.request);
    unrecorded.status = None;
    world.0.requests = vec![Arc::new(unrecorded)];
    assert_eq!(fence(&world.0), Step::Record);
    world.0.requests = World::new("Unfenced").0.requests;
    assert_eq!(world.code(fence), "Withdrawn");
    world.0.requests.clear();
    assert_eq!(world.code(fence), "Withdrawn");
    let mut world = World::new("Unfenced");
    world.0.fences = vec![holding()];
    world.0.requests = World::new("Fenced").0.requests;
    assert_eq!(world.code(give_back), "Withdrawn", "it is asked for again");
}

#[test]
fn an_object_that_is_gone_or_of_an_earlier_episode_is_none() {
    let mut world = World::new("Fenced");
    let mut made = with_result(world.made(), "Succeeded", "fencing operation successful");
    made.metadata.labels.as_mut().unwrap().insert(names::EPISODE_LABEL.into(), "0".into());
    made.metadata.name = Some("of-an-earlier-episode".into());
    world.0.fences = vec![made.clone()];
    world.made();
    made.metadata.labels.as_mut().unwrap().insert(names::EPISODE_LABEL.into(), "1".into());
    made.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    made.spec.cidrs = vec!["10.0.0.1/32".into()];
    let annotations = made.metadata.annotations.as_mut().unwrap();
    annotations.insert(names::FENCED_ADDRESSES_ANNOTATION.into(), "10.0.0.1/32".into());
    world.0.fences = vec![made];
    world.0.round = 4;
    // What the episode shut out first it shuts out again.
    assert_eq!(world.made().spec.cidrs, ["10.0.0.1/32"]);
}

/// While its round is open: the name is taken, and a creation would be refused until the time is up, with no answer.
#[test]
fn one_that_somebody_deleted_or_changed_in_its_round_ends_the_round() {
    let made = with_result(World::new("Fenced").made(), "Succeeded", "fencing operation successful");
    let deleted = {
        let mut deleted = made.clone();
        deleted.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        deleted
    };
    let changed = {
        let mut changed = made;
        changed.metadata.generation = Some(3);
        changed
    };
    for tampered in [deleted, changed] {
        let mut world = World::new("Fenced");
        world.0.fences = vec![tampered];
        let Step::Stop(failure) = fence(&world.0) else { panic!("{:?}", fence(&world.0)) };
        assert_eq!(failure.code, "NetworkFenceChanged");
        world.0.round += 1;
        world.made();
    }
}

#[test]
fn what_was_announced_once_is_no_fence_that_holds() {
    let mut world = World::new("Fenced");
    let mut announced = holding();
    announced.metadata.labels.as_mut().unwrap().insert(names::UNFENCING_LABEL.into(), "true".into());
    let annotations = announced.metadata.annotations.as_mut().unwrap();
    annotations.insert(names::ANNOUNCED_ANNOTATION.into(), "true".into());
    world.0.fences = vec![announced];
    let Step::Replace(back) = fence(&world.0) else { panic!("{:?}", fence(&world.0)) };
    let back = NetworkFence { status: holding().status, ..*back };
    assert!(back.is_fenced() && !back.metadata.labels.as_ref().unwrap().contains_key(names::UNFENCING_LABEL));
    world.0.fences = vec![back];
    world.0.round = 4;
    let again = world.made();
    assert_eq!(again.spec.cidrs, holding().spec.cidrs);
    world.0.fences.push(with_result(again, "Succeeded", "fencing operation successful"));
    assert_eq!(fence(&world.0), Step::Done);
}

#[test]
fn what_was_to_be_lifted_is_taken_up_again_or_brought_to_its_end() {
    let mut world = World::new("Fenced");
    let mut announced = holding();
    announced.metadata.labels.as_mut().unwrap().insert(names::UNFENCING_LABEL.into(), "true".into());
    world.0.fences = vec![announced];
    let Step::Replace(back) = fence(&world.0) else { panic!("{:?}", fence(&world.0)) };
    assert!(!back.metadata.labels.as_ref().unwrap().contains_key(names::UNFENCING_LABEL));
    let mut lifting = holding();
    lifting.spec.fence_state = FenceState::Unfenced;
    world.0.fences = vec![lifting.clone()];
    assert_eq!(world.code(fence), "NetworkUnfencing");
    let lifted = with_result(lifting, "Succeeded", "unfencing operation successful");
    world.0.fences = vec![lifted.clone()];
    assert!(matches!(fence(&world.0), Step::Delete(_)));
    // Gone but for csi-addons' own finalizer: that is no fence that holds.
    let mut going = lifted;
    going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    going.metadata.finalizers = None;
    world.0.fences = vec![going];
    assert_eq!(world.code(fence), "NetworkUnfencing");
}

/// The class was deleted and made anew, or was given its parameter since.
#[test]
fn one_that_was_made_for_another_cluster_proves_nothing() {
    for (then, now, counts) in [
        (None, None, true),
        (Some("a"), Some("a"), true),
        (None, Some("a"), false),
        (Some("a"), None, false),
        (Some("a"), Some("b"), false),
    ] {
        let mut world = World::new("Fenced");
        world.around().class = class_of(then);
        world.0.fences = vec![with_result(world.made(), "Succeeded", "fencing operation successful")];
        world.around().class = class_of(now);
        assert_eq!(fence(&world.0), Step::Done, "of attached volumes the policy's word is taken");
        world.0.cluster = Some(now.unwrap_or_default().to_owned());
        if counts {
            assert_eq!(fence(&world.0), Step::Done, "{then:?} {now:?}");
            world.0.fences[0].metadata.annotations.as_mut().unwrap().remove(names::FENCED_CLUSTER_ANNOTATION);
        }
        assert_eq!(world.code(fence), "NetworkFenceChanged", "the name is taken: {then:?} {now:?}");
        world.0.round = 4;
        let made = world.made();
        let cluster = made.metadata.annotations.unwrap().remove(names::FENCED_CLUSTER_ANNOTATION);
        assert_eq!(cluster.as_deref(), Some(now.unwrap_or_default()), "{then:?} {now:?}");
    }
}

/// In between it may have been of another cluster, and csi-addons may have read it then.
#[test]
fn one_whose_class_was_made_anew_proves_nothing() {
    let class = |uid: &str| {
        let mut class = class_of(Some("a"))?;
        class.metadata.uid = Some(uid.into());
        Some(class)
    };
    let class_uid = |fence: &mut NetworkFence| fence.annotations_mut().remove(names::FENCED_CLASS_ANNOTATION);
    let mut world = World::new("Fenced");
    world.around().class = class("first");
    world.0.fences = vec![with_result(world.made(), "Succeeded", "fencing operation successful")];
    assert_eq!(fence(&world.0), Step::Done, "of attached volumes the policy's word is taken");
    (world.0.class_uid, world.0.cluster) = ("first".into(), Some("a".into()));
    assert_eq!(fence(&world.0), Step::Done);
    world.around().class = class("second");
    world.0.class_uid = "second".into();
    assert_eq!(world.code(fence), "NetworkFenceChanged", "the name is taken");
    let looked = |seen: &Seen| holds(seen, &BTreeSet::new());
    assert_eq!(looked(&world.0), Step::Done, "what it has proved stands");
    // Nor does one of the release before, which did not say it.
    let mut untold = world.0.fences[0].clone();
    assert_eq!(class_uid(&mut untold).as_deref(), Some("first"));
    for before in [world.0.fences[0].clone(), untold] {
        world.0.fences = vec![before];
        world.0.round = 3;
        assert_eq!(world.code(fence), "NetworkFenceChanged");
        world.0.round = 4;
        let mut made = world.made();
        assert_eq!(made.spec.cidrs, world.0.fences[0].spec.cidrs);
        world.0.fences.push(with_result(made.clone(), "Succeeded", "fencing operation successful"));
        world.marks();
        assert_eq!(fence(&world.0), Step::Done);
        world.0.fences.truncate(1);
        assert_eq!(
            world.code(looked),
            "NetworkFenceLifted",
            "the first is not taken for one that holds when ours is gone"
        );
        assert_eq!(class_uid(&mut made).as_deref(), Some("second"));
    }
    // It is gone: nobody makes another.
    world.around().class = None;
    (world.0.class_uid, world.0.fences) = (String::new(), Vec::new());
    assert_eq!(world.code(fence), "ClassNotFound");
}

/// csi-addons may still go by one that was there before, which may have been of another cluster.
#[test]
fn by_a_class_that_was_just_made_nobody_is_shut_out() {
    let mut world = World::new("Fenced");
    world.around().class = class_of(Some("a"));
    let now = world.0.now;
    world.0.cluster = Some("a".into());
    for (age, is_made) in [(5, false), (59, false), (60, true)] {
        world.0.class_made = Some(now - TimeDelta::seconds(age));
        if is_made {
            world.made();
        } else {
            assert_eq!(world.code(fence), "ClassTooNew", "{age}");
        }
    }
    // Of attached volumes the policy's word is taken: nobody asks how old the class is.
    (world.0.class_made, world.0.cluster) = (None, None);
    world.made();
}

/// It was made though: our clock was wrong, or the class was made anew between two reads.
#[test]
fn one_that_was_made_when_its_class_was_new_proves_nothing() {
    let mut world = World::new("Fenced");
    world.around().class = class_of(Some("a"));
    world.0.cluster = Some("a".into());
    let class_made = world.0.now - TimeDelta::hours(1);
    world.0.class_made = Some(class_made);
    let made = with_result(world.made(), "Succeeded", "fencing operation successful");
    for (age, counts) in [(5, false), (45, false), (55, true), (61, true)] {
        let mut made = made.clone();
        made.metadata.creation_timestamp = Some(time::to_k8s(class_made + TimeDelta::seconds(age)));
        world.0.fences = vec![made];
        if counts {
            assert_eq!(fence(&world.0), Step::Done, "{age}");
        } else {
            assert_eq!(world.code(fence), "NetworkFenceChanged", "the name is taken: {age}");
        }
    }
}
