//! What the array knows: volumes, nodes, who has access. Synchronous, without gRPC transport, clock or faults.
//!
//! Every change is written to the ledger before the lock is let go, so the ledger's order is the array's order.

mod staging;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tonic::Status;

use super::ArrayOptions;
use super::file_protocol::{FileAnswer, FileError};
use super::files::Files;
use super::health::Health;
use super::io_protocol::FileRequest;
use super::networks::Networks;
use crate::ledger::{Access, Event, Ledger, Operation, Reason, Stamp};

/// What the array does with a publish of a single-writer volume that another node has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MultiAttach {
    /// Both nodes have access then: the array can be misused.
    #[default]
    Accept,
    /// `FailedPrecondition`.
    Refuse,
}

/// The path between a node and the array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Link {
    /// I/O passes.
    #[default]
    Up,
    /// I/O is refused at once.
    Refuse,
    /// I/O waits until the link is something else.
    Hang,
}

/// One volume as the array lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub volume: Arc<str>,
    pub capacity_bytes: i64,
    pub nodes: Vec<String>,
}

/// The last accepted write of a volume.
#[derive(Clone, Debug)]
pub(super) struct LastWrite {
    pub at: Stamp,
    pub node: Arc<str>,
    pub sequence: u64,
    pub tag: Arc<str>,
}

#[derive(Debug)]
pub(super) struct Volume {
    pub access: Access,
    pub capacity_bytes: i64,
    /// Node → it may only read.
    pub published: BTreeMap<Arc<str>, bool>,
    pub last_write: Option<LastWrite>,
    pub files: Files,
}

/// A node as the array and the driver's node plugin there know it.
#[derive(Debug, Default)]
struct Node {
    link: Link,
    staged: BTreeSet<Arc<str>>,
    targets: BTreeSet<(Arc<str>, String)>,
}

#[derive(Debug)]
pub(super) struct State {
    pub ledger: Ledger,
    pub multi_attach: MultiAttach,
    /// See [`ArrayOptions::attaches`].
    attaches: bool,
    volumes: BTreeMap<Arc<str>, Volume>,
    nodes: BTreeMap<Arc<str>, Node>,
    /// Volumes that were: nobody has access to them.
    deleted: BTreeSet<Arc<str>>,
    /// Of these, those that were lost and may be found again.
    lost: BTreeMap<Arc<str>, Volume>,
    /// What the driver says of the volumes' health.
    pub health: Health,
    /// Volumes with a controller operation under way.
    pub busy: BTreeSet<Arc<str>>,
    /// Whom the array shuts out by their address.
    pub networks: Networks,
}

/// Why I/O or staging is refused.
pub(super) struct Refusal(pub Reason);

impl State {
    pub fn new(ledger: Ledger, options: &ArrayOptions) -> Self {
        State {
            ledger,
            multi_attach: options.multi_attach,
            attaches: options.attaches,
            volumes: BTreeMap::new(),
            nodes: BTreeMap::new(),
            deleted: BTreeSet::new(),
            lost: BTreeMap::new(),
            health: Health::default(),
            busy: BTreeSet::new(),
            networks: Networks::default(),
        }
    }

    pub fn add_node(&mut self, node: &str) {
        self.nodes.entry(node.into()).or_default();
    }

    pub fn set_link(&mut self, node: &str, link: Link) {
        self.nodes.entry(node.into()).or_default().link = link;
    }

    pub fn link(&self, node: &str) -> Result<Link, Status> {
        Ok(self.node(node)?.1.link)
    }

    pub fn volume(&self, volume: &str) -> Result<(&Arc<str>, &Volume), Status> {
        let found = self.volumes.get_key_value(volume);
        found.ok_or_else(|| Status::not_found(format!("volume {volume} does not exist")))
    }

    fn node(&self, node: &str) -> Result<(&Arc<str>, &Node), Status> {
        let found = self.nodes.get_key_value(node);
        found.ok_or_else(|| Status::not_found(format!("node {node} is not registered with the array")))
    }

    pub fn create(&mut self, name: &str, access: Access, bytes: i64) -> Result<Arc<str>, Status> {
        let volume: Arc<str> = format!("vol-{name}").into();
        match self.volumes.get(&volume) {
            Some(there) if there.access == access && there.capacity_bytes == bytes => {}
            Some(_) => {
                return Err(Status::already_exists(format!("volume {name} exists with another size or access")));
            }
            None => {
                let (published, files) = (BTreeMap::new(), Files::new(bytes));
                let created = Volume { access, capacity_bytes: bytes, published, last_write: None, files };
                self.volumes.insert(volume.clone(), created);
                self.deleted.remove(&volume);
                self.record(&volume, "", Event::Created { access });
            }
        }
        Ok(volume)
    }

    pub fn delete(&mut self, volume: &str) -> Result<(), Status> {
        let Ok((id, there)) = self.volume(volume) else {
            return Ok(());
        };
        if let Some(node) = there.published.keys().next() {
            return Err(Status::failed_precondition(format!("volume {volume} is published to node {node}")));
        }
        let id = id.clone();
        self.volumes.remove(&id);
        self.deleted.insert(id.clone());
        self.record(&id, "", Event::Deleted);
        Ok(())
    }

    pub fn publish(&mut self, volume: &str, node: &str, read_only: bool) -> Result<(), Status> {
        let (id, there) = self.volume(volume)?;
        let (node, _) = self.node(node)?;
        let (id, node) = (id.clone(), node.clone());
        let read_only = read_only || there.access == Access::ReadOnly;
        let other = there.published.keys().find(|holder| **holder != node);
        let repeated = match there.published.get(&node) {
            Some(now) if *now != read_only => {
                return Err(Status::already_exists(format!(
                    "volume {id} is published to node {node} with another access mode"
                )));
            }
            now => now.is_some(),
        };
        if let (Some(other), MultiAttach::Refuse, Access::SingleWriter, false) =
            (other, self.multi_attach, there.access, repeated)
        {
            let refused = Status::failed_precondition(format!("volume {id} is published to node {other}"));
            self.refuse(&id, &node, Operation::Publish, Reason::InUse);
            return Err(refused);
        }
        if let Some(there) = self.volumes.get_mut(&id) {
            there.published.insert(node.clone(), read_only);
        }
        let event = Event::Published { read_only, repeated };
        self.ledger.record(&id, &node, event);
        Ok(())
    }

    pub fn unpublish(&mut self, volume: &str, node: Option<&str>) -> Result<(), Status> {
        if self.deleted.contains(volume) {
            return Ok(());
        }
        let id = self.volume(volume)?.0.clone();
        let nodes: Vec<Arc<str>> = match node {
            Some(node) => vec![self.node(node)?.0.clone()],
            None => self.volume(volume)?.1.published.keys().cloned().collect(),
        };
        for node in nodes {
            let there = self.volumes.get_mut(&id);
            let held = there.and_then(|there| there.published.remove(&node));
            let repeated = held.is_none();
            self.ledger.record(&id, &node, Event::Unpublished { repeated });
        }
        Ok(())
    }

    /// Takes the volume away from everyone, published or not, as somebody at the array's own console can.
    pub fn lose(&mut self, volume: &str) {
        if let Some((id, there)) = self.volumes.remove_entry(volume) {
            self.deleted.insert(id.clone());
            self.record(&id, "", Event::Deleted);
            self.lost.insert(id, there);
        }
    }

    /// A lost volume is there again, as it was.
    pub fn find(&mut self, volume: &str) -> Result<(), Status> {
        let lost = self.lost.remove_entry(volume);
        let (id, there) = lost.ok_or_else(|| Status::not_found(format!("volume {volume} is not lost")))?;
        self.deleted.remove(&id);
        self.record(&id, "", Event::Created { access: there.access });
        for (node, read_only) in &there.published {
            self.ledger.record(&id, node, Event::Published { read_only: *read_only, repeated: false });
        }
        self.volumes.insert(id, there);
        Ok(())
    }

    pub fn list(&self) -> Vec<Listed> {
        self.volumes.iter().map(|(volume, there)| listed(volume, there)).collect()
    }

    pub fn list_one(&self, volume: &str) -> Option<Listed> {
        self.volume(volume).ok().map(|(volume, there)| listed(volume, there))
    }

    /// The list as it was at `then`, from the ledger.
    pub fn list_at(&self, then: Stamp) -> Vec<Listed> {
        let mut volumes: BTreeMap<Arc<str>, BTreeSet<Arc<str>>> = BTreeMap::new();
        self.ledger.read(|entries| {
            for entry in entries.iter().take_while(|entry| entry.at <= then) {
                let volume = &entry.volume;
                match entry.event {
                    Event::Created { .. } => {
                        volumes.insert(volume.clone(), BTreeSet::new());
                    }
                    Event::Deleted => {
                        volumes.remove(volume);
                    }
                    Event::Published { .. } => {
                        let nodes = volumes.entry(volume.clone()).or_default();
                        nodes.insert(entry.node.clone());
                    }
                    Event::Unpublished { .. } => {
                        let nodes = volumes.entry(volume.clone()).or_default();
                        nodes.remove(&entry.node);
                    }
                    _ => {}
                }
            }
        });
        let listed = volumes.into_iter().map(|(volume, nodes)| Listed {
            capacity_bytes: self.volumes.get(&volume).map_or(0, |v| v.capacity_bytes),
            nodes: nodes.iter().map(|node| node.to_string()).collect(),
            volume,
        });
        listed.collect()
    }

    /// Whether `node` may do `operation` on `volume` now; a no is written down.
    pub fn admit(&self, volume: &str, node: &str, operation: Operation) -> Result<(), Refusal> {
        let reason = match (self.volumes.get(volume), self.nodes.get(node)) {
            (None, _) => Reason::NoVolume,
            (_, Some(node)) if node.link != Link::Up => Reason::LinkDown,
            _ if self.networks.shuts_out(node) => Reason::NoAccess,
            (Some(there), _) => match there.published.get(node) {
                None => Reason::NoAccess,
                Some(true) if operation == Operation::Write => Reason::ReadOnly,
                Some(_) => return Ok(()),
            },
        };
        self.refuse(&volume.into(), &node.into(), operation, reason);
        Err(Refusal(reason))
    }

    pub fn write(&mut self, volume: &Arc<str>, node: &Arc<str>, sequence: u64, tag: Arc<str>) -> Result<(), Refusal> {
        self.admit(volume, node, Operation::Write)?;
        self.wrote(volume, node, sequence, tag);
        Ok(())
    }

    fn wrote(&mut self, volume: &Arc<str>, node: &Arc<str>, sequence: u64, tag: Arc<str>) {
        let event = Event::Wrote { sequence, tag: tag.clone() };
        let at = self.ledger.record(volume, node, event);
        if let Some(there) = self.volumes.get_mut(volume) {
            there.last_write = Some(LastWrite { at, node: node.clone(), sequence, tag });
        }
    }

    /// Carries out an operation on the volume's files; one that changed something is a write.
    pub fn file(
        &mut self,
        volume: &Arc<str>,
        node: &Arc<str>,
        asked: FileRequest,
    ) -> Result<Result<(FileAnswer, Vec<u8>), FileError>, Refusal> {
        let changes = asked.operation.changes();
        self.admit(volume, node, if changes { Operation::Write } else { Operation::Read })?;
        let Some(there) = self.volumes.get_mut(volume) else {
            return Err(Refusal(Reason::NoVolume));
        };
        let done = there.files.carry_out(&asked.operation, &asked.data);
        if changes && done.is_ok() {
            self.wrote(volume, node, asked.sequence, asked.tag);
        }
        Ok(done)
    }

    pub fn read(&self, volume: &str, node: &str) -> Result<Option<LastWrite>, Refusal> {
        self.admit(volume, node, Operation::Read)?;
        Ok(self.volumes.get(volume).and_then(|there| there.last_write.clone()))
    }

    fn record(&self, volume: &Arc<str>, node: &str, event: Event) {
        self.ledger.record(volume, &node.into(), event);
    }

    fn refuse(&self, volume: &Arc<str>, node: &Arc<str>, operation: Operation, reason: Reason) {
        let event = Event::Refused { operation, reason };
        self.ledger.record(volume, node, event);
    }
}

fn listed(volume: &Arc<str>, there: &Volume) -> Listed {
    Listed {
        volume: volume.clone(),
        capacity_bytes: there.capacity_bytes,
        nodes: there.published.keys().map(|node| node.to_string()).collect(),
    }
}
