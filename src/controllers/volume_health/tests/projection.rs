//! What a record shows, and that all of it is taken back: each order of events, and each way in which a write is refused.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::world::{World, parse};
use crate::api::names;
use crate::api::slim::{PersistentVolume, Pod};
use crate::api::volume_health::VolumeHealth;
use crate::controllers::volume_health::decide::{Effect, Seen};
use crate::controllers::volume_health::gates::may_go;
use crate::controllers::volume_health::projection::{self, Marks};
use crate::controllers::volume_health::reservation::{self, ClaimRef};

fn volume(claim: Value) -> PersistentVolume {
    parse(json!({
        "metadata": { "name": "v", "uid": "uid-v", "resourceVersion": "1" },
        "spec": { "claimRef": claim }, "status": { "phase": "Available" },
    }))
}

fn health(level: &str, effects: &[&str]) -> VolumeHealth {
    let taint = |(number, effect): (usize, &&str)| {
        json!({
            "key": format!("example.com/{number}"), "value": "true", "effect": effect, "source": "Manual",
            "reason": "ManualTaint", "timeAdded": "2026-01-02T03:04:05Z",
        })
    };
    let taints: Vec<_> = effects.iter().enumerate().map(taint).collect();
    parse(json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "VolumeHealth",
        "metadata": { "name": "v", "uid": "uid-vh", "resourceVersion": "1" }, "spec": {},
        "status": {
            "enforcement": level, "taints": taints,
            "volume": { "uid": "uid-v", "source": "CSI", "pvPhase": "Bound", "claim": "shop/data" },
        },
    }))
}

fn pod(gates: &[&str]) -> Pod {
    let gates: Vec<_> = gates.iter().map(|name| json!({ "name": name })).collect();
    parse(json!({ "metadata": { "name": "p", "namespace": "shop" }, "spec": { "schedulingGates": gates } }))
}

fn seen(volume: Option<PersistentVolume>, health: Option<VolumeHealth>) -> Seen {
    Seen { name: "v".into(), volume: volume.map(Arc::new), health: health.map(Arc::new), ..Seen::default() }
}

/// Does what an API server would.
fn carry_out(seen: &mut Seen, effect: Effect) {
    match effect {
        Effect::Mark { closed, guarded, .. } => {
            let health = Arc::make_mut(seen.health.as_mut().unwrap());
            let label = (names::NO_ATTACH_LABEL.to_owned(), "Enforce".to_owned());
            health.metadata.labels = closed.then(|| [label].into());
            health.metadata.finalizers = guarded.then(|| vec![names::PROJECTION_FINALIZER.to_owned()]);
        }
        Effect::Project { marks, .. } => {
            let volume = Arc::make_mut(seen.volume.as_mut().unwrap());
            let labels = [(names::TAINTED_LABEL, marks.tainted), (names::NO_ATTACH_LABEL, marks.no_attach)];
            let labels =
                labels.into_iter().filter_map(|(key, level)| Some((key.to_owned(), level?.as_str().to_owned())));
            volume.metadata.labels = Some(labels.collect());
            let taints = marks.taints.map(|taints| (names::VOLUME_TAINTS_ANNOTATION.to_owned(), taints));
            volume.metadata.annotations = Some(taints.into_iter().collect());
            match marks.claim_ref {
                ClaimRef::Keep => {}
                ClaimRef::Reserve => volume.spec.claim_ref = Some(reservation::reserved()),
                ClaimRef::Release => volume.spec.claim_ref = None,
            }
        }
        other => panic!("{other:?} is no step of the projection"),
    }
}

fn settle(seen: &mut Seen) {
    for _ in 0..4 {
        let steps = projection::steps(seen);
        if steps.is_empty() {
            return;
        }
        steps.into_iter().for_each(|step| carry_out(seen, step));
    }
    panic!("it writes for ever: {:?}", projection::steps(seen));
}

fn label<'a>(seen: &'a Seen, key: &str) -> Option<&'a str> {
    seen.volume.as_ref()?.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

fn is_guarded(seen: &Seen) -> bool {
    seen.health.as_deref().is_some_and(projection::is_guarded)
}

#[test]
fn the_finalizer_comes_before_the_first_mark_and_goes_after_the_last() {
    let mut seen = seen(Some(volume(Value::Null)), Some(health("Enforce", &["NoAttachOrMount"])));
    let steps = projection::steps(&seen);
    assert!(
        matches!(steps[..], [Effect::Mark { closed: true, guarded: true, .. }, Effect::Project { .. }]),
        "{steps:?}"
    );
    settle(&mut seen);
    assert!(reservation::is_reserved(seen.volume.as_ref().unwrap()));
    let shown = &seen.volume.as_ref().unwrap().metadata.annotations.as_ref().unwrap()[names::VOLUME_TAINTS_ANNOTATION];
    let wanted =
        r#"[{"key":"example.com/0","value":"true","effect":"NoAttachOrMount","timeAdded":"2026-01-02T03:04:05Z"}]"#;
    assert_eq!(shown, wanted);
    Arc::make_mut(seen.health.as_mut().unwrap()).status.as_mut().unwrap().taints.clear();
    let steps = projection::steps(&seen);
    assert!(
        matches!(steps[..], [Effect::Project { .. }, Effect::Mark { closed: false, guarded: false, .. }]),
        "{steps:?}"
    );
    settle(&mut seen);
    assert_eq!((label(&seen, names::TAINTED_LABEL), is_guarded(&seen)), (None, false));
    assert_eq!(seen.volume.as_ref().unwrap().spec.claim_ref, None);
}

#[test]
fn each_level_and_effect_shows_what_it_does() {
    for (level, effects, tainted, no_attach, reserved, closed) in [
        ("Enforce", &["NoEffect", "NoAttachOrMount"][..], Some("Enforce"), Some("Enforce"), true, true),
        ("Enforce", &["NoEffect"], Some("Enforce"), None, true, false),
        ("Observe", &["NoAttachOrMount"], Some("Observe"), Some("Observe"), false, false),
        ("Enforce", &[], None, None, false, false),
    ] {
        let mut seen = seen(Some(volume(Value::Null)), Some(health(level, effects)));
        settle(&mut seen);
        let case = format!("{level} {effects:?}");
        assert_eq!(label(&seen, names::TAINTED_LABEL), tainted, "{case}");
        assert_eq!(label(&seen, names::NO_ATTACH_LABEL), no_attach, "{case}");
        assert_eq!(reservation::is_reserved(seen.volume.as_ref().unwrap()), reserved, "{case}");
        let labels = seen.health.as_ref().unwrap().metadata.labels.as_ref();
        assert_eq!(labels.is_some_and(|labels| labels.contains_key(names::NO_ATTACH_LABEL)), closed, "{case}");
        assert_eq!(is_guarded(&seen), tainted.is_some(), "{case}");
    }
}

/// A uid makes it a real claim's, and so does any other name.
#[test]
fn a_claim_that_is_not_ours_is_never_touched() {
    let reserved = json!({ "namespace": "bulkhead-system", "name": "reserved-by-bulkhead" });
    let with_uid = json!({ "namespace": "bulkhead-system", "name": "reserved-by-bulkhead", "uid": "1" });
    for (claim, wanted, next) in [
        (Value::Null, true, ClaimRef::Reserve),
        (Value::Null, false, ClaimRef::Keep),
        (reserved.clone(), true, ClaimRef::Keep),
        (reserved, false, ClaimRef::Release),
        (with_uid, false, ClaimRef::Keep),
        (json!({ "namespace": "shop", "name": "data", "uid": "1" }), true, ClaimRef::Keep),
        (json!({ "namespace": "shop", "name": "data" }), true, ClaimRef::Keep),
        (json!({ "namespace": "shop", "name": "reserved-by-bulkhead" }), false, ClaimRef::Keep),
    ] {
        assert_eq!(reservation::next(&volume(claim.clone()), wanted), next, "{claim} {wanted}");
    }
    assert_eq!(reservation::reserved().uid, None);
    let mut leaving = volume(Value::Null);
    leaving.metadata.deletion_timestamp = Some(parse(json!("2026-01-02T03:04:05Z")));
    assert_eq!(reservation::next(&leaving, true), ClaimRef::Keep);
}

#[test]
fn a_volume_health_that_leaves_waits_for_the_last_pod_it_holds() {
    let mut seen = seen(Some(volume(Value::Null)), Some(health("Enforce", &["NoAttachOrMount"])));
    settle(&mut seen);
    Arc::make_mut(seen.health.as_mut().unwrap()).metadata.deletion_timestamp =
        Some(parse(json!("2026-01-02T03:04:05Z")));
    seen.pods = vec![Arc::new(pod(&[names::VOLUME_TAINTED_GATE]))];
    settle(&mut seen);
    assert_eq!(label(&seen, names::TAINTED_LABEL), None);
    assert!(is_guarded(&seen), "it goes before its pods");
    // It is another volume that the pod waits for: that may take for ever.
    seen.held_elsewhere = ["shop/p".to_owned()].into();
    let also = Pod {
        metadata: ObjectMeta { name: Some("q".into()), ..seen.pods[0].metadata.clone() },
        ..pod(&[names::VOLUME_TAINTED_GATE])
    };
    seen.pods.push(Arc::new(also));
    settle(&mut seen);
    assert!(is_guarded(&seen), "this one could go now");
    seen.pods.pop();
    let mut left = seen.clone();
    settle(&mut left);
    assert!(!is_guarded(&left));
    seen.held_elsewhere.clear();
    seen.pods = vec![Arc::new(pod(&["example.com/quota"]))];
    settle(&mut seen);
    assert!(!is_guarded(&seen));
}

#[test]
fn without_a_volume_or_a_health_nothing_hangs() {
    // The volume is gone: there is nothing left to take back.
    let mut gone = seen(None, Some(health("Enforce", &["NoAttachOrMount"])));
    let leaving = Arc::make_mut(gone.health.as_mut().unwrap());
    leaving.metadata.finalizers = Some(vec![names::PROJECTION_FINALIZER.into()]);
    leaving.metadata.deletion_timestamp = Some(parse(json!("2026-01-02T03:04:05Z")));
    settle(&mut gone);
    assert!(!is_guarded(&gone));
    // The VolumeHealth is gone, by force, or a backup has brought the marks back.
    let mut marked = seen(Some(volume(Value::Null)), Some(health("Enforce", &["NoAttachOrMount"])));
    settle(&mut marked);
    marked.health = None;
    settle(&mut marked);
    let volume = marked.volume.as_ref().unwrap();
    assert_eq!((label(&marked, names::TAINTED_LABEL), &volume.spec.claim_ref), (None, &None));
    assert_eq!(Marks::none(volume).claim_ref, ClaimRef::Keep);
}

#[test]
fn a_pod_goes_when_none_of_its_volumes_holds_it() {
    let (ours, theirs) = (pod(&[names::VOLUME_TAINTED_GATE]), pod(&["example.com/quota"]));
    let (closed, open) = (health("Enforce", &["NoAttachOrMount"]), health("Enforce", &["NoEffect"]));
    let observed = health("Observe", &["NoAttachOrMount"]);
    let mut released = closed.clone();
    released.status.as_mut().unwrap().volume = parse(json!({ "uid": "u", "source": "CSI", "pvPhase": "Released" }));
    assert!(may_go(&ours, []));
    assert!(may_go(&ours, [&open, &observed, &released]));
    assert!(!may_go(&ours, [&open, &closed]));
    assert!(!may_go(&theirs, []), "there is no gate of ours");
}

/// The record first: what is not recorded is not shown.
#[test]
fn nothing_is_shown_before_it_is_recorded() {
    let mut world = World::csi(&["n1"]);
    world.settle();
    world.want(json!({ "manualTaints": [{ "key": "example.com/a", "effect": "NoAttachOrMount", "reason": "r" }] }));
    let effects = world.decide().effects;
    assert!(matches!(effects[..], [Effect::Record { .. }]), "{effects:?}");
    effects.into_iter().for_each(|effect| world.carry_out(effect));
    let effects = world.decide().effects;
    assert!(matches!(effects[..], [Effect::Mark { .. }, Effect::Project { .. }]), "{effects:?}");
}

proptest! {
    /// From whatever state, with a crash after any step, everything comes to show the record and nothing else.
    #[test]
    fn what_is_left_half_done_is_finished(
        history in prop::collection::vec((0_usize..2, 0_usize..3, 0_usize..3), 1..6), claimed in any::<bool>(),
    ) {
        let claim = if claimed { json!({ "namespace": "shop", "name": "data", "uid": "1" }) } else { Value::Null };
        let mut seen = seen(Some(volume(claim.clone())), Some(health("Observe", &[])));
        for (level, effects, done) in history {
            let effects = [&[][..], &["NoEffect"], &["NoEffect", "NoAttachOrMount"]][effects];
            let next = health(["Observe", "Enforce"][level], effects);
            Arc::make_mut(seen.health.as_mut().unwrap()).status = next.status;
            projection::steps(&seen).into_iter().take(done).for_each(|step| carry_out(&mut seen, step));
            let marked = label(&seen, names::TAINTED_LABEL).is_some();
            prop_assert!(!marked || is_guarded(&seen), "a mark that no finalizer guards");
        }
        Arc::make_mut(seen.health.as_mut().unwrap()).status.as_mut().unwrap().taints.clear();
        settle(&mut seen);
        let volume = seen.volume.as_ref().unwrap();
        prop_assert_eq!(label(&seen, names::TAINTED_LABEL), None);
        let left = json!(volume.spec.claim_ref);
        prop_assert_eq!(left.get("uid"), claim.get("uid"));
        prop_assert!(claimed == volume.spec.claim_ref.is_some() && !is_guarded(&seen));
    }
}
