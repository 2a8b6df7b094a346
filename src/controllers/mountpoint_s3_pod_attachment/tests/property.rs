//! Whatever happens in whatever order, and wherever the controller dies: in the end every workload is served by one
//! Mountpoint Pod that lives, and nothing is left over.

use std::time::Duration;

use proptest::prelude::*;

use crate::api::s3::{NEEDS_UNMOUNT, NO_NEW_WORKLOAD};

use super::super::decide::Seen;
use super::world::World;

#[derive(Clone, Debug)]
enum Event {
    /// A pass that dies after so many writes.
    Pass(usize),
    /// The same, over what was seen some events ago: another replica, or a slow watch.
    OldPass(usize),
    Kubelet,
    Wait(u64),
    Start,
    Terminate(u8),
    Gone(u8, bool),
    Finished(u8),
    PodFails(u8),
    PodTerminates(u8),
    PodVanishes(u8),
    PodAnnotated(u8, bool),
    AttachmentDeleted,
    AttachmentLost,
    AttachmentDuplicated,
    NextVersion,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (0..6usize).prop_map(Event::Pass),
        2 => (0..6usize).prop_map(Event::OldPass),
        5 => Just(Event::Kubelet),
        2 => prop_oneof![Just(1), Just(30), Just(61), Just(130)].prop_map(Event::Wait),
        6 => Just(Event::Start),
        2 => (0..6u8).prop_map(Event::Terminate),
        4 => (0..6u8, any::<bool>()).prop_map(|(which, seen)| Event::Gone(which, seen)),
        1 => (0..6u8).prop_map(Event::Finished),
        2 => (0..3u8).prop_map(Event::PodFails),
        1 => (0..3u8).prop_map(Event::PodTerminates),
        1 => (0..3u8).prop_map(Event::PodVanishes),
        1 => (0..3u8, any::<bool>()).prop_map(|(which, drains)| Event::PodAnnotated(which, drains)),
        1 => Just(Event::AttachmentDeleted),
        1 => Just(Event::AttachmentLost),
        1 => Just(Event::AttachmentDuplicated),
        1 => Just(Event::NextVersion),
    ]
}

struct Run {
    world: World,
    /// What was seen, event by event.
    views: Vec<Seen>,
    /// Workloads that were started: no uid comes twice.
    started: u32,
    alive: Vec<String>,
}

impl Run {
    fn workload(&self, which: u8) -> Option<String> {
        self.alive.get(usize::from(which)).cloned().filter(|uid| self.world.workloads.contains_key(uid))
    }

    fn pod(&self, which: u8) -> Option<String> {
        self.world.pods.keys().nth(usize::from(which)).cloned()
    }

    fn happens(&mut self, event: &Event) {
        self.views.push(self.world.seen());
        let world = &mut self.world;
        match *event {
            Event::Pass(writes) => drop(world.pass(writes)),
            Event::OldPass(writes) => {
                let view = self.views.iter().rev().nth(3).or(self.views.first()).cloned().unwrap();
                drop(world.pass_over(&view, writes));
            }
            Event::Kubelet => world.kubelet(),
            Event::Wait(seconds) => world.wait(Duration::from_secs(seconds)),
            Event::Start => {
                self.started += 1;
                let uid = format!("w{}", self.started);
                world.start(&uid);
                self.alive.retain(|uid| world.workloads.contains_key(uid));
                self.alive.push(uid);
            }
            Event::AttachmentDeleted => {
                let name = world.attachments.keys().next().cloned();
                name.into_iter().for_each(|name| world.delete_attachment(&name));
            }
            Event::AttachmentLost => drop(world.attachments.pop_first()),
            Event::AttachmentDuplicated => {
                if let Some(mut twin) = world.attachments.values().next().cloned() {
                    twin.metadata.name = Some(format!("s3pa-{}", self.views.len()));
                    twin.metadata.finalizers = None;
                    twin.metadata.deletion_timestamp = None;
                    world.put(twin);
                }
            }
            Event::NextVersion => world.settings.driver_version = format!("{}.0.0", self.views.len()),
            Event::Terminate(which) | Event::Finished(which) | Event::Gone(which, _) => {
                if let Some(uid) = self.workload(which) {
                    self.workload_happens(&uid, event);
                }
            }
            Event::PodFails(which)
            | Event::PodTerminates(which)
            | Event::PodVanishes(which)
            | Event::PodAnnotated(which, _) => {
                if let Some(name) = self.pod(which) {
                    self.pod_happens(&name, event);
                }
            }
        }
    }

    fn workload_happens(&mut self, uid: &str, event: &Event) {
        match event {
            Event::Terminate(_) => self.world.terminate(uid),
            Event::Gone(_, seen) => self.world.gone(uid, *seen),
            _ => {
                self.world.phase(uid, "Succeeded");
                self.world.mounted.remove(uid);
            }
        }
    }

    fn pod_happens(&mut self, name: &str, event: &Event) {
        match event {
            Event::PodFails(_) => self.world.pod_becomes(name, "Failed"),
            Event::PodTerminates(_) => self.world.terminate_pod(name),
            Event::PodVanishes(_) => self.world.vanish_pod(name),
            Event::PodAnnotated(_, true) => self.world.annotate(name, NEEDS_UNMOUNT),
            _ => self.world.annotate(name, NO_NEW_WORKLOAD),
        }
    }
}

/// Running workloads stay with a pod that a person told to unmount, and one that nothing serves and nothing names is held
/// for a mount of version 1.
fn excused(world: &World) -> Vec<String> {
    let entries = world.entries();
    let runs =
        |uid: &String| world.workloads.get(uid).is_some_and(|pod| pod.status.phase.as_deref() == Some("Running"));
    let mut excused: Vec<String> = Vec::new();
    for (name, uids) in &entries {
        if world.pods.get(name).is_some_and(|pod| pod.needs_unmount() && !pod.has_ended()) {
            excused.extend(uids.iter().filter(|uid| runs(uid)).cloned());
        }
    }
    let named: Vec<_> = entries.values().flatten().collect();
    excused.extend(world.workloads.keys().filter(|uid| runs(uid) && !named.contains(uid)).cloned());
    excused
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn it_converges(events in proptest::collection::vec(event(), 1..60)) {
        let mut run = Run { world: World::new(), views: Vec::new(), started: 0, alive: Vec::new() };
        events.iter().for_each(|event| run.happens(event));
        run.world.converge();
        for uid in excused(&run.world) {
            run.world.gone(&uid, false);
        }
        run.world.converge();
        prop_assert_eq!(run.world.check(), Ok(()));
        let everyone: Vec<_> = run.world.workloads.keys().cloned().collect();
        everyone.iter().for_each(|uid| run.world.gone(uid, false));
        run.world.converge();
        prop_assert!(run.world.attachments.is_empty() && run.world.pods.is_empty(), "{:?}", run.world);
    }

    /// Once it has come to rest nothing is written, however often it is looked at.
    #[test]
    fn at_rest_nothing_is_written(events in proptest::collection::vec(event(), 1..40)) {
        let mut run = Run { world: World::new(), views: Vec::new(), started: 0, alive: Vec::new() };
        events.iter().for_each(|event| run.happens(event));
        run.world.converge();
        let writes = run.world.writes.len();
        run.world.wait(Duration::from_secs(600));
        run.world.pass(usize::MAX);
        prop_assert_eq!(run.world.writes.len(), writes);
    }

    /// Dead after each write in turn, and started again.
    #[test]
    fn a_crash_after_each_write_costs_nothing(count in 1..5u8, last in 0..8usize) {
        let mut world = World::new();
        (0..count).for_each(|n| world.start(&format!("w{n}")));
        for _ in 0..4 {
            world.pass(last);
        }
        world.converge();
        prop_assert_eq!(world.check(), Ok(()));
        (0..count).for_each(|n| world.gone(&format!("w{n}"), n % 2 == 0));
        for writes in [0, 1, 1, last, 1, 1] {
            world.pass(writes);
            world.kubelet();
        }
        world.converge();
        prop_assert!(world.attachments.is_empty() && world.pods.is_empty(), "{:?}", world);
    }
}
