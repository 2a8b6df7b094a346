//! When two states are the same. All that a world holds is compared, and the moment; but objects of the API server by
//! their history, each change read once: what watchers know of them then follows from how far they have read.

use std::fmt::{Debug, Write};
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::api::{Api, Table, View};
use crate::process::controller::Controller;
use crate::process::sidecar::Sidecar;
use crate::process::views::Views;
use crate::world::{Task, World};

/// How many kinds of objects there are.
const KINDS: usize = 12;

/// The history of the API server, as far as it has been read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct History {
    read: [u64; KINDS],
    digest: u64,
}

/// Text that is hashed instead of kept.
struct Text(DefaultHasher);

impl Write for Text {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

impl Text {
    fn add(&mut self, what: &dyn Debug) {
        // Writing to a hasher does not fail.
        let _ = write!(self, "{what:?};");
    }
}

impl History {
    /// Reads on.
    pub(super) fn read(&mut self, api: &Api) {
        let mut text = Text(DefaultHasher::new());
        self.digest.hash(&mut text.0);
        let [
            nodes,
            leases,
            leaders,
            pods,
            attachments,
            csi_nodes,
            policies,
            fences,
            requests,
            reports,
            node_reports,
            healths,
        ] = &mut self.read;
        read_table(&mut text, nodes, &api.nodes);
        read_table(&mut text, leases, &api.leases);
        read_table(&mut text, leaders, &api.leader_leases);
        read_table(&mut text, pods, &api.pods);
        read_table(&mut text, attachments, &api.attachments);
        read_table(&mut text, csi_nodes, &api.csi_nodes);
        read_table(&mut text, policies, &api.policies);
        read_table(&mut text, fences, &api.fences);
        read_table(&mut text, requests, &api.requests);
        read_table(&mut text, reports, &api.reports);
        read_table(&mut text, node_reports, &api.node_reports);
        read_table(&mut text, healths, &api.healths);
        self.digest = text.0.finish();
    }
}

fn read_table<K: Debug>(text: &mut Text, read: &mut u64, table: &Table<K>) {
    for (name, object) in table.since(*read) {
        text.add(&(name, object));
    }
    *read = table.next();
}

/// What a world will be from here on is decided by this.
pub(super) fn identity(world: &World, history: History) -> u64 {
    let mut text = Text(DefaultHasher::new());
    (history.digest, world.now, world.api.down).hash(&mut text.0);
    for Controller { views, memory, incidents, passes, quiet } in &world.controllers {
        read_so_far(views).hash(&mut text.0);
        text.add(&(memory, incidents, passes, quiet));
    }
    for Sidecar { requests, memories, passes } in &world.sidecars {
        position(requests).hash(&mut text.0);
        text.add(&(memories, passes));
    }
    for (at, _, task) in world.agenda().filter(|(at, _, task)| !world.is_overtaken(*at, task)) {
        at.hash(&mut text.0);
        add_task(&mut text, world, task);
    }
    text.add(&(&world.processes, &world.machines, &world.arrays, &world.others));
    let (writes, calls, lists) = (world.writes.values(), world.calls.values(), world.lists.values());
    writes.for_each(|write| text.add(write));
    calls.for_each(|call| text.add(call));
    lists.for_each(|call| text.add(call));
    text.add(&(&world.weather, &world.oracle));
    text.0.finish()
}

/// The numbers of writes and calls are not theirs: only their order matters.
fn add_task(text: &mut Text, world: &World, task: &Task) {
    match task {
        Task::Land(id) => text.add(&("Land", world.writes.range(..id).count())),
        Task::Answer(id) => text.add(&("Answer", world.writes.range(..id).count())),
        Task::CallEnds(id) => text.add(&("CallEnds", world.calls.range(..id).count())),
        Task::ListEnds(id) => text.add(&("ListEnds", world.lists.range(..id).count())),
        task => text.add(task),
    }
}

fn position<K>(view: &View<K>) -> (u64, u64) {
    (view.next(), view.relists)
}

fn read_so_far(views: &Views) -> [(u64, u64); KINDS] {
    [
        position(&views.nodes),
        position(&views.leases),
        position(&views.leader_leases),
        position(&views.pods),
        position(&views.attachments),
        position(&views.csi_nodes),
        position(&views.policies),
        position(&views.fences),
        position(&views.requests),
        position(&views.reports),
        position(&views.node_reports),
        position(&views.healths),
    ]
}
