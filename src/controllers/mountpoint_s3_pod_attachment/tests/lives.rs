//! The life of a mount, step by step; and what each step costs.

use std::sync::Arc;
use std::time::Duration;

use crate::api::s3::{
    DRIVER_VERSION_LABEL, FINALIZER, MOUNT_ANNOTATION, NEEDS_UNMOUNT, NO_NEW_WORKLOAD, mountpoint_pod_name,
};

use super::world::{World, volume};

const ALL: usize = usize::MAX;

#[test]
fn a_new_mount_costs_two_writes_whoever_waits() {
    let mut world = World::with(&["a", "b", "c"]);
    world.pass(ALL);
    assert_eq!(world.writes, ["create", "create pod"]);
    let name = mountpoint_pod_name("a", "pv", None);
    assert_eq!(world.entries()[&name], ["a", "b", "c"]);
    assert!(world.pods.contains_key(&name));
    let attachment = world.attachment();
    assert_eq!(attachment.metadata.name, Some(world.mount.attachment_name()));
    assert_eq!(attachment.metadata.finalizers, Some(vec![FINALIZER.to_owned()]));
    assert!(world.decide().effects.is_empty());
}

#[test]
fn those_who_come_together_cost_one_write() {
    let mut world = World::with(&["a"]);
    world.settle();
    world.writes.clear();
    (0..50).for_each(|n| world.start(&format!("b{n}")));
    world.settle();
    assert_eq!(world.writes, ["replace"]);
    assert_eq!(world.pods.len(), 1);
    world.converge();
    world.check().unwrap();
}

#[test]
fn the_last_costs_three_writes_and_the_pod_its_deletion() {
    let mut world = World::with(&["a"]);
    world.settle();
    world.kubelet();
    world.settle();
    world.writes.clear();
    world.gone("a", true);
    world.settle();
    assert_eq!(world.writes, ["retire", "replace", "delete"]);
    world.kubelet();
    world.settle();
    assert_eq!(world.writes.split_off(3), ["delete pod"]);
    world.check().unwrap();
    assert!(world.pods.is_empty() && world.attachments.is_empty());
}

#[test]
fn a_pod_that_never_ran_is_deleted_at_once() {
    let mut world = World::with(&["a"]);
    world.settle();
    world.gone("a", true);
    world.writes.clear();
    world.settle();
    assert_eq!(world.writes, ["replace", "delete", "delete pod"]);
}

#[test]
fn one_of_several_leaves_with_one_write() {
    let mut world = World::with(&["a", "b"]);
    world.settle();
    world.kubelet();
    world.writes.clear();
    world.gone("a", true);
    world.settle();
    assert_eq!(world.writes, ["replace"]);
    assert_eq!(world.serves("b").as_ref(), world.pods.keys().next());
}

#[test]
fn a_workload_stays_until_its_containers_have_ended() {
    let mut world = World::with(&["a"]);
    world.settle();
    world.kubelet();
    world.terminate("a");
    world.settle();
    assert!(world.serves("a").is_some());
    world.phase("a", "Unknown");
    world.settle();
    assert!(world.serves("a").is_some());
    world.phase("a", "Succeeded");
    world.settle();
    assert!(world.attachments.is_empty());
}

#[test]
fn no_pod_is_made_for_one_that_ends() {
    let mut world = World::with(&["a", "b"]);
    world.terminate("a");
    world.phase("b", "Failed");
    world.settle();
    assert!(world.writes.is_empty());
}

#[test]
fn one_whose_end_was_not_seen_is_kept_until_it_is_stale() {
    let mut world = World::with(&["a"]);
    world.settle();
    world.kubelet();
    world.wait(Duration::from_secs(30));
    world.gone("a", false);
    let decision = world.decide();
    assert!(decision.effects.is_empty());
    assert_eq!(decision.look_again, Some(Duration::from_secs(90)));
    world.wait(Duration::from_secs(90));
    let decision = world.decide();
    assert_eq!(decision.stale.len(), 1);
    world.settle();
    assert!(world.attachments.is_empty());
}

#[test]
fn a_dead_mountpoint_pod_is_replaced_in_one_update() {
    for death in ["Failed", "Succeeded"] {
        let mut world = World::with(&["a", "b"]);
        world.settle();
        world.kubelet();
        let old = world.serves("a").unwrap();
        world.pod_becomes(&old, death);
        world.writes.clear();
        world.pass(ALL);
        assert_eq!(world.writes, ["replace", "create pod", "delete pod"], "{death}");
        let new = world.serves("a").unwrap();
        assert_ne!(old, new);
        assert_eq!(world.serves("b"), Some(new.clone()));
        assert_eq!(world.pods.keys().collect::<Vec<_>>(), [&new]);
        world.converge();
        world.check().unwrap();
    }
}

#[test]
fn one_that_is_drained_is_replaced_while_it_serves_and_told_to_unmount() {
    let mut world = World::with(&["a", "b"]);
    world.settle();
    world.kubelet();
    let old = world.serves("a").unwrap();
    world.terminate_pod(&old);
    world.terminate("b");
    world.settle();
    let new = world.serves("a").unwrap();
    assert_ne!(old, new);
    // It ends anyhow, with what it has.
    assert_eq!(world.serves("b"), Some(old.clone()));
    assert!(!world.pod(&old).needs_unmount());
    world.gone("b", true);
    world.settle();
    assert!(world.pod(&old).needs_unmount());
    world.converge();
    world.check().unwrap();
}

#[test]
fn one_that_vanished_is_made_again_under_its_name() {
    let mut world = World::with(&["a"]);
    world.settle();
    world.kubelet();
    let name = world.serves("a").unwrap();
    world.vanish_pod(&name);
    world.writes.clear();
    world.settle();
    assert_eq!(world.writes, ["create pod"]);
    world.converge();
    world.check().unwrap();
}

#[test]
fn nobody_is_assigned_to_one_that_takes_nobody() {
    type Change = fn(&mut World, &str);
    let changes: [(&str, Change); 8] = [
        ("needs-unmount", |world, name| world.annotate(name, NEEDS_UNMOUNT)),
        ("no-new-workload", |world, name| world.annotate(name, NO_NEW_WORKLOAD)),
        ("other version", |world, _| world.settings.driver_version = "9.9.9".into()),
        ("no version", |world, name| {
            world.pod(name).metadata.labels.as_mut().unwrap().remove(DRIVER_VERSION_LABEL);
        }),
        ("Failed", |world, name| world.pod_becomes(name, "Failed")),
        ("Succeeded", |world, name| world.pod_becomes(name, "Succeeded")),
        ("terminating", |world, name| world.terminate_pod(name)),
        ("other volume", |world, _| world.volume = Some(Arc::new(volume("uid-2")))),
    ];
    for (what, change) in changes {
        let mut world = World::with(&["a"]);
        world.settle();
        world.kubelet();
        let old = world.serves("a").unwrap();
        change(&mut world, &old);
        world.start("b");
        world.settle();
        let new = world.serves("b").unwrap();
        assert_ne!(old, new, "{what}");
        assert!(world.pods.contains_key(&new), "{what}");
    }
}

#[test]
fn who_runs_stays_where_a_person_wants_nobody_new() {
    for annotation in [NO_NEW_WORKLOAD, NEEDS_UNMOUNT] {
        let mut world = World::with(&["a"]);
        world.settle();
        world.kubelet();
        let old = world.serves("a").unwrap();
        world.annotate(&old, annotation);
        world.settle();
        assert_eq!(world.serves("a"), Some(old));
    }
}

#[test]
fn who_starts_does_not_stay_with_one_that_unmounts() {
    let mut world = World::with(&["a"]);
    world.settle();
    let old = world.serves("a").unwrap();
    world.pod_becomes(&old, "Running");
    world.annotate(&old, NEEDS_UNMOUNT);
    world.settle();
    assert_ne!(world.serves("a"), Some(old));
    world.converge();
    world.check().unwrap();
}

#[test]
fn lost_attachments_are_made_again_naming_the_same_pods() {
    let mut world = World::with(&["a", "b"]);
    world.settle();
    world.kubelet();
    let before = world.entries();
    world.attachments.clear();
    world.start("c");
    world.writes.clear();
    world.settle();
    assert_eq!(world.writes, ["create"]);
    let mut after = world.entries();
    after.values_mut().for_each(|uids| uids.retain(|uid| uid != "c"));
    assert_eq!(before, after);
}

#[test]
fn an_attachment_that_a_person_deletes_comes_back() {
    let mut world = World::with(&["a", "b"]);
    world.settle();
    world.kubelet();
    let (before, name) = (world.entries(), world.mount.attachment_name());
    world.delete_attachment(&name);
    world.writes.clear();
    world.settle();
    assert_eq!(world.writes, ["replace", "create"]);
    assert_eq!(world.entries(), before);
    assert_eq!(world.attachment().metadata.deletion_timestamp, None);
}

#[test]
fn duplicates_are_merged_into_the_oldest_that_serves() {
    let mut world = World::with(&["a"]);
    world.settle();
    world.kubelet();
    let mut twin = world.attachment().clone();
    twin.metadata.name = Some("s3pa-abcde".into());
    twin.metadata.finalizers = None;
    let pods = &mut twin.spec.mountpoint_s3_pod_attachments;
    let mut workloads = pods.pop_first().unwrap().1;
    workloads[0].workload_pod_uid = "b".into();
    pods.insert("mp-of-upstream".into(), workloads);
    // An upstream pod, which says nothing of its mount.
    let mut pod = world.pods.values().next().unwrap().clone();
    pod.metadata.name = Some("mp-of-upstream".into());
    pod.metadata.uid = Some("uid-upstream".into());
    pod.metadata.annotations.as_mut().unwrap().remove(MOUNT_ANNOTATION);
    world.pods.insert("mp-of-upstream".into(), pod);
    world.start("b");
    world.phase("b", "Running");
    world.put(twin);
    world.settle();
    assert_eq!(world.attachment().metadata.name, Some(world.mount.attachment_name()));
    assert_eq!(world.serves("b").as_deref(), Some("mp-of-upstream"));
    world.check().unwrap();
}

#[test]
fn empty_attachments_and_entries_go() {
    let mut world = World::with(&["a"]);
    world.settle();
    world.kubelet();
    let name = world.serves("a").unwrap();
    let mut empty = world.attachment().clone();
    empty.spec.mountpoint_s3_pod_attachments.clear();
    empty.metadata.name = Some("s3pa-empty".into());
    empty.metadata.finalizers = None;
    world.put(empty);
    let mut attachment = world.attachments[&world.mount.attachment_name()].clone();
    attachment.spec.mountpoint_s3_pod_attachments.insert("mp-nobody".into(), Vec::new());
    world.put(attachment);
    world.settle();
    assert_eq!(world.entries().keys().collect::<Vec<_>>(), [&name]);
    world.check().unwrap();
}

#[test]
fn a_forgotten_pod_is_unmounted_after_a_minute() {
    let mut world = World::with(&["a"]);
    world.settle();
    world.kubelet();
    let name = world.serves("a").unwrap();
    world.attachments.clear();
    world.gone("a", false);
    let decision = world.decide();
    assert!(decision.effects.is_empty());
    assert_eq!(decision.look_again, Some(Duration::from_secs(60)));
    world.wait(Duration::from_secs(60));
    assert!(world.decide().orphans.contains(&name));
    world.settle();
    assert!(world.pod(&name).needs_unmount());
    world.kubelet();
    world.settle();
    assert!(world.pods.is_empty());
}

#[test]
fn a_bad_volume_makes_nothing_and_says_why() {
    let mut world = World::with(&["a"]);
    let mut bad = volume("uid-pv");
    bad.spec.csi.as_mut().unwrap().volume_attributes.insert("cache".into(), "disk".into());
    world.volume = Some(Arc::new(bad));
    world.settle();
    assert!(world.writes.is_empty());
    assert!(world.decide().complaint.unwrap().contains("cache"));
}

#[test]
fn nothing_is_removed_for_a_volume_that_is_gone() {
    let mut world = World::with(&["a"]);
    world.settle();
    world.kubelet();
    world.volume = None;
    world.settle();
    assert!(world.serves("a").is_some());
    world.gone("a", true);
    world.settle();
    assert!(world.attachments.is_empty());
}
