//! How the node is let in again, and who else is asked.

use chrono::TimeDelta;
use kube::ResourceExt as _;

use crate::api::time;

use super::*;

#[test]
fn it_is_announced_lifted_and_only_then_deleted() {
    let mut world = World::new("Unfenced");
    assert_eq!(give_back(&world.0), Step::Done);
    world.0.fences = vec![holding()];
    let Step::Replace(announced) = give_back(&world.0) else { panic!("{:?}", give_back(&world.0)) };
    assert!(announced.metadata.labels.as_ref().unwrap().contains_key(names::UNFENCING_LABEL));
    assert_eq!(announced.spec.fence_state, FenceState::Fenced);
    let announced = NetworkFence { status: holding().status, ..*announced };
    world.0.fences = vec![announced];
    let Step::Replace(lifting) = give_back(&world.0) else { panic!("{:?}", give_back(&world.0)) };
    assert_eq!(lifting.spec.fence_state, FenceState::Unfenced);
    // The result is the old one yet.
    let lifting = NetworkFence { status: holding().status, ..*lifting };
    world.0.fences = vec![lifting.clone()];
    assert_eq!(world.code(give_back), "NetworkUnfencing");
    world.0.fences = vec![with_result(lifting.clone(), "Failed", "no")];
    assert_eq!(world.code(give_back), "NetworkUnfenceFailed");
    let lifted = with_result(lifting, "Succeeded", "unfencing operation successful");
    world.0.fences = vec![lifted.clone()];
    assert!(matches!(give_back(&world.0), Step::Delete(_)));
    let mut deleted = lifted;
    deleted.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    world.0.fences = vec![deleted];
    let Step::Replace(released) = give_back(&world.0) else { panic!("{:?}", give_back(&world.0)) };
    assert_eq!(released.metadata.finalizers, Some(Vec::new()));
    world.0.fences = vec![*released];
    assert_eq!(give_back(&world.0), Step::Done);
}

#[test]
fn what_somebody_else_wants_out_stays_out() {
    let asked = request("r2", "n1", "Fenced", &[]);
    let elsewhere = request("r3", "n9", "Fenced", &["10.0.0.1"]);
    for (fences, requests) in [
        (vec![foreign("Fenced", "10.0.0.0/24")], Vec::new()),
        (Vec::new(), vec![Arc::new(asked)]),
        (Vec::new(), vec![Arc::new(elsewhere)]),
    ] {
        let mut world = World::new("Unfenced");
        world.0.fences = [vec![holding()], fences.clone()].concat();
        world.0.requests.clone_from(&requests);
        assert_eq!(world.code(give_back), "AddressShared");
        // Who was about to lift steps back, or both would wait for each other.
        let mut announced = holding();
        announced.metadata.labels.as_mut().unwrap().insert(names::UNFENCING_LABEL.into(), "true".into());
        world.0.fences = [vec![announced], fences].concat();
        let Step::Replace(back) = give_back(&world.0) else { panic!("{:?}", give_back(&world.0)) };
        assert!(!back.metadata.labels.as_ref().unwrap().contains_key(names::UNFENCING_LABEL));
        assert_eq!(back.spec.fence_state, FenceState::Fenced);
    }
    let mut world = World::new("Unfenced");
    world.0.fences = vec![holding(), foreign("Fenced", "10.0.0.2/32"), foreign("Unfenced", "10.0.0.1/32")];
    world.0.requests = vec![Arc::new(request("r2", "n1", "Unfenced", &[])), world.0.request.clone()];
    assert!(matches!(give_back(&world.0), Step::Replace(_)));
}

/// The fence of another driver for the same node, as it is in the world of that driver's sidecar too.
fn of_another_driver(labels: Value) -> NetworkFence {
    let mut theirs = of("theirs", "Fenced", "10.0.0.1/32", labels);
    theirs.metadata.labels.get_or_insert_default().insert(names::FENCE_REQUEST_LABEL.into(), "r2".into());
    theirs
}

#[test]
fn two_drivers_that_both_let_a_node_in_do_not_wait_for_each_other() {
    let turned_round = Arc::new(request("r2", "n1", "Unfenced", &["10.0.0.1"]));
    let mut ours = holding();
    ours.metadata.labels.as_mut().unwrap().insert(names::UNFENCING_LABEL.into(), "true".into());
    for (requests, tells) in [(vec![turned_round.clone()], true), (Vec::new(), false)] {
        let mut world = World::new("Unfenced");
        world.0.requests.extend(requests);
        world.0.fences = vec![holding(), of_another_driver(json!({}))];
        let Step::Replace(announced) = give_back(&world.0) else { panic!("{:?}", give_back(&world.0)) };
        assert_eq!(announced.metadata.name, holding().metadata.name);
        world.0.fences[0] = ours.clone();
        let Step::Replace(next) = give_back(&world.0) else { panic!("{:?}", give_back(&world.0)) };
        // Theirs is marked first, unless nobody is left who could take it for one that holds.
        assert_eq!(next.metadata.name.as_deref() == Some("theirs"), tells);
        if tells {
            assert!(next.metadata.annotations.as_ref().unwrap().contains_key(names::ANNOUNCED_ANNOTATION));
            // It holds up nobody, though its sidecar may be away for long.
            assert!(!next.metadata.labels.as_ref().unwrap().contains_key(names::UNFENCING_LABEL));
            world.0.fences[1] = *next;
            let Step::Replace(next) = give_back(&world.0) else { panic!("{:?}", give_back(&world.0)) };
            assert_eq!(next.spec.fence_state, FenceState::Unfenced);
        }
    }
    // Asked for again, theirs is a wish.
    let mut world = World::new("Unfenced");
    world.0.requests.push(Arc::new(request("r2", "n1", "Fenced", &["10.0.0.1"])));
    world.0.fences = vec![holding(), of_another_driver(json!({}))];
    assert_eq!(world.code(give_back), "AddressShared");
}

#[test]
fn one_that_somebody_deleted_is_lifted_by_another() {
    let mut world = World::new("Unfenced");
    let mut deleted = holding();
    deleted.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    world.0.fences = vec![deleted.clone()];
    let Step::Create(other) = give_back(&world.0) else { panic!("{:?}", give_back(&world.0)) };
    assert_eq!((other.spec.fence_state, &other.spec.cidrs), (FenceState::Unfenced, &deleted.spec.cidrs));
    world.0.fences = vec![deleted.clone(), *other.clone()];
    assert_eq!(world.code(give_back), "NetworkUnfencing");
    let lifted = with_result(*other, "Succeeded", "unfencing operation successful");
    world.0.fences = vec![lifted.clone(), deleted];
    let Step::Replace(released) = give_back(&world.0) else { panic!("{:?}", give_back(&world.0)) };
    assert_eq!(released.metadata.finalizers, Some(Vec::new()));
    world.0.fences = vec![lifted, *released];
    assert!(matches!(give_back(&world.0), Step::Delete(_)));
}

/// The fence of the request that holds, made while its class named that cluster.
fn made_for(cluster: Option<&str>) -> NetworkFence {
    let mut world = World::new("Fenced");
    world.around().class = class_of(cluster);
    with_result(world.made(), "Succeeded", "fencing operation successful")
}

/// csi-addons would let the node in there, and say that it is lifted.
#[test]
fn one_whose_class_is_of_another_cluster_by_now_is_not_lifted() {
    for (then, now) in [(Some("a"), Some("b")), (Some("a"), None), (None, Some("b"))] {
        let mut world = World::new("Unfenced");
        world.0.classes = class_of(now).into_iter().collect();
        world.0.fences = vec![made_for(then)];
        assert_eq!(world.code(give_back), "ClassOfAnotherCluster", "{then:?} {now:?}");
        // One that was announced before steps back: others may wait for it.
        world.0.fences[0].labels_mut().insert(names::UNFENCING_LABEL.into(), "true".into());
        let Step::Replace(back) = give_back(&world.0) else { panic!("{:?}", give_back(&world.0)) };
        assert!(!back.labels().contains_key(names::UNFENCING_LABEL), "{then:?} {now:?}");
        assert_eq!(back.spec.fence_state, FenceState::Fenced);
        world.0.fences = vec![*back];
        assert_eq!(world.code(give_back), "ClassOfAnotherCluster", "{then:?} {now:?}");
        // Nor by another object, where somebody deleted it.
        world.0.fences[0].metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(world.code(give_back), "ClassOfAnotherCluster", "{then:?} {now:?}");
        world.0.classes = class_of(then).into_iter().collect();
        assert!(matches!(give_back(&world.0), Step::Create(_)), "it is as it was: {then:?} {now:?}");
    }
}

/// csi-addons goes on trying, by a class that is made meanwhile, of whatever cluster.
#[test]
fn one_whose_class_is_gone_or_of_another_driver_is_not_lifted() {
    let (mut elsewhere, mut other) = (class_of(Some("a")).unwrap(), class_of(Some("a")).unwrap());
    elsewhere.spec.provisioner = "csi.other.example.com".into();
    other.metadata.name = Some("another-class".into());
    for (classes, code) in
        [(Vec::new(), "ClassNotFound"), (vec![other], "ClassNotFound"), (vec![elsewhere], "ClassOfAnotherDriver")]
    {
        let mut world = World::new("Unfenced");
        (world.0.fences, world.0.classes) = (vec![made_for(Some("a"))], classes);
        assert_eq!(world.code(give_back), code);
    }
}

/// Whoever makes the class as it was does so because we said it: csi-addons may not have seen that yet.
#[test]
fn by_a_class_that_was_just_made_anew_nobody_is_let_in() {
    for (uid, age, is_lifted) in [("second", 5, false), ("second", 59, false), ("second", 60, true), ("first", 5, true)]
    {
        let mut world = World::new("Unfenced");
        let mut made = made_for(Some("a"));
        made.annotations_mut().insert(names::FENCED_CLASS_ANNOTATION.into(), "first".into());
        let mut class = class_of(Some("a")).unwrap();
        class.metadata.uid = Some(uid.into());
        class.metadata.creation_timestamp = Some(time::to_k8s(world.0.now - TimeDelta::seconds(age)));
        (world.0.fences, world.0.classes) = (vec![made], vec![class]);
        match is_lifted {
            true => assert!(matches!(give_back(&world.0), Step::Replace(_)), "{uid} {age}"),
            false => assert_eq!(world.code(give_back), "ClassTooNew", "{uid} {age}"),
        }
    }
}

#[test]
fn one_whose_class_is_as_it_was_is_lifted() {
    let mut untold = made_for(Some("a"));
    untold.annotations_mut().remove(names::FENCED_CLUSTER_ANNOTATION);
    for (made, classes) in [
        (made_for(Some("a")), class_of(Some("a")).into_iter().collect()),
        (made_for(None), class_of(None).into_iter().collect()),
        // Of a release that did not say it; or an admin took it off, for the cluster is the same.
        (untold.clone(), class_of(Some("b")).into_iter().collect()),
        (untold, Vec::new()),
    ] {
        let mut world = World::new("Unfenced");
        (world.0.fences, world.0.classes) = (vec![made], classes);
        let Step::Replace(announced) = give_back(&world.0) else { panic!("{:?}", give_back(&world.0)) };
        assert!(announced.labels().contains_key(names::UNFENCING_LABEL), "{:?}", world.0.classes);
    }
}
