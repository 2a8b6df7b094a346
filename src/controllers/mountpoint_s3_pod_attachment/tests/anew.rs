//! What was there before: mounts of version 1 of the driver, and volumes that were made anew under their name since.

use std::sync::Arc;
use std::time::Duration;

use crate::api::slim::PersistentVolume;
use crate::api::time;

use super::world::{World, volume};

const ALL: usize = usize::MAX;
const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_mount_of_version_1_goes_on_beside_new_ones() {
    let mut world = World::with(&["v1"]);
    world.runs("v1");
    world.settle();
    assert!(world.writes.is_empty());
    world.wait(SECOND);
    world.start("a");
    world.settle();
    world.kubelet();
    world.settle();
    assert_eq!(world.entries().into_values().collect::<Vec<_>>(), [["a"]], "none of ours has mounted it");
    // It comes again, and gets what the others have.
    world.gone("v1", true);
    world.start("v1-again");
    world.settle();
    assert_eq!(world.serves("v1-again"), world.serves("a"));
}

/// A readiness that comes and goes says nothing: it ran before.
#[test]
fn version_1_is_told_by_the_first_that_it_did() {
    let mut world = World::with(&["v1"]);
    world.runs("v1");
    world.wait(SECOND);
    world.start("a");
    world.settle();
    world.wait(SECOND);
    let now = time::to_k8s(world.now.wall);
    let ready = serde_json::json!({ "type": "Ready", "status": "True", "lastTransitionTime": now });
    let v1 = world.workloads.get_mut("v1").unwrap();
    v1.status.conditions.push(serde_json::from_value(ready).unwrap());
    world.settle();
    assert_eq!(world.serves("v1"), None);
}

/// Nothing tells of one when it began: it is left alone.
#[test]
fn without_a_time_nothing_is_adopted_but_what_a_pod_was_made_for() {
    let mut world = World::with(&["a", "b"]);
    world.settle();
    world.kubelet();
    world.attachments.clear();
    world.workloads.values_mut().for_each(|pod| pod.status.conditions.clear());
    world.settle();
    assert_eq!(world.entries().into_values().collect::<Vec<_>>(), [["a"]]);
}

/// Under its name, in the world's next minute.
fn made_anew(world: &mut World) {
    world.wait(Duration::from_secs(60));
    let mut anew: PersistentVolume = volume("uid-2");
    anew.metadata.creation_timestamp = Some(time::to_k8s(world.now.wall));
    world.volume = Some(Arc::new(anew));
}

/// Its data may be another's now.
#[test]
fn nobody_is_moved_to_a_volume_that_was_made_anew() {
    type Death = fn(&mut World, &str);
    let deaths: [(&str, Death); 4] = [
        ("Failed", |world, name| world.pod_becomes(name, "Failed")),
        ("Succeeded", |world, name| world.pod_becomes(name, "Succeeded")),
        ("terminating", |world, name| world.terminate_pod(name)),
        ("gone", |world, name| world.vanish_pod(name)),
    ];
    for (what, death) in deaths {
        let mut world = World::with(&["old"]);
        world.settle();
        world.kubelet();
        let home = world.serves("old").unwrap();
        made_anew(&mut world);
        world.start("new");
        world.settle();
        world.kubelet();
        let other = world.serves("new").unwrap();
        death(&mut world, &home);
        world.settle();
        assert_eq!(world.serves("old").as_ref(), Some(&home), "{what}");
        assert_eq!(world.serves("new"), Some(other.clone()), "{what}");
        assert!(world.pods.get(&home).is_none_or(|pod| pod.annotation("bulkhead.dev/s3-volume-uid") == Some("uid-pv")));
        world.gone("old", true);
        world.converge();
        assert_eq!(world.entries().keys().collect::<Vec<_>>(), [&other], "{what}");
        world.check().unwrap();
    }
}

/// The claim was made anew too, and leads elsewhere, or nowhere.
#[test]
fn nobody_is_moved_whose_claim_leads_elsewhere() {
    let mut world = World::with(&["old"]);
    world.settle();
    world.kubelet();
    let home = world.serves("old").unwrap();
    world.pod_becomes(&home, "Failed");
    let mut seen = world.seen();
    seen.workloads.get_mut("old").unwrap().wants = false;
    world.writes.clear();
    world.pass_over(&seen, ALL);
    assert!(world.writes.is_empty(), "{:?}", world.writes);
    // It leads here again.
    world.settle();
    assert_ne!(world.serves("old"), Some(home));
}

#[test]
fn one_that_starts_is_moved_from_the_older_volume_to_its_own() {
    let mut world = World::with(&["runs", "starts"]);
    world.settle();
    let home = world.serves("starts").unwrap();
    world.pod_becomes(&home, "Running");
    world.runs("runs");
    made_anew(&mut world);
    world.settle();
    assert_eq!(world.serves("runs"), Some(home.clone()));
    assert_ne!(world.serves("starts"), Some(home));
}
