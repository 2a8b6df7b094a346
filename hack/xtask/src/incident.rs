//! What one failed node meant, read from the audit log and the array's ledger: when each step was done, and how much was
//! written. The clock is the machine's; its zero is the taint `unreachable:NoSchedule`.

use std::collections::BTreeMap;
use std::io;

use bulkhead::api::names::{FENCED_TAINT, OPERATOR_NAMESPACE, UNREACHABLE_TAINT};
use bulkhead_testbed::Identity;
use bulkhead_testbed::audit::{Audit, Record};
use bulkhead_testbed::ledger::{Entry, Event, Ledger, Operation, Stamp};
use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

/// A moment of the machine's clock.
pub type Moment = DateTime<Utc>;

/// What the audit log says.
#[derive(Debug, Default)]
pub struct ApiSide {
    /// Kubernetes noticed: the zero of all clocks.
    pub unreachable: Option<Moment>,
    /// The NodeFence was created.
    pub planned: Option<Moment>,
    /// Our own taint was set.
    pub tainted: Option<Moment>,
    /// When each pod was deleted for good, by name.
    pub pods_gone: BTreeMap<String, Moment>,
    /// When the deletion of each VolumeAttachment was accepted: from here on it is the attacher's work.
    pub handed_over: BTreeMap<String, Moment>,
    /// When the attacher let each VolumeAttachment go.
    pub detached: BTreeMap<String, Moment>,
    /// Writes of the operator.
    pub writes: Writes,
    /// Reads by controller and sidecars since the taint, watches and their own Leases left out.
    pub reads: usize,
}

/// API writes of the operator since the taint, refused ones too. Renewals of leader Leases are not counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Writes {
    /// By the controller, without Events.
    pub controller: usize,
    /// By the sidecars, without Events.
    pub sidecar: usize,
    /// Events, by both.
    pub events: usize,
}

/// Reads the audit log for a node. `attachments` are those that the node had when it died.
pub fn api_side(audit: &Audit, node: &str, attachments: &[String]) -> io::Result<ApiSide> {
    let mut side = ApiSide::default();
    let operators = [Identity::OperatorController.user(), Identity::CsiSidecar.user()];
    let [controller, sidecar] = &operators;
    for record in audit.records()? {
        if !record.is_write() {
            side.reads +=
                usize::from(side.unreachable.is_some() && is_read(&record) && operators.contains(&record.user));
            continue;
        }
        if side.unreachable.is_none() {
            let noticed = record.name == node && record.writes_taint(UNREACHABLE_TAINT, "NoSchedule");
            side.unreachable = noticed.then_some(record.finished);
            continue;
        }
        match record.resource.as_str() {
            "leases" => continue,
            "events" if operators.contains(&record.user) => side.writes.events += 1,
            _ if record.user == *controller => side.writes.controller += 1,
            _ if record.user == *sidecar => side.writes.sidecar += 1,
            _ => {}
        }
        if record.succeeded() {
            side.note(record, node, attachments);
        }
    }
    Ok(side)
}

/// Whether objects were read, once: a program's own Lease is none of them, a node's is.
fn is_read(record: &Record) -> bool {
    matches!(record.verb.as_str(), "get" | "list")
        && !record.resource.is_empty()
        && !(record.resource == "leases" && record.namespace == OPERATOR_NAMESPACE)
}

impl ApiSide {
    fn note(&mut self, record: Record, node: &str, attachments: &[String]) {
        let Record { verb, resource, subresource, name, finished: at, .. } = &record;
        match (resource.as_str(), verb.as_str()) {
            ("nodefences", "create") if name == node => self.planned = self.planned.or(Some(*at)),
            ("nodes", _) if name == node && record.writes_taint(FENCED_TAINT, "NoSchedule") => {
                self.tainted = self.tainted.or(Some(*at));
            }
            // A graceful deletion is followed by one with grace 0. What comes under the same name is another pod.
            ("pods", "delete") if subresource.is_empty() => {
                self.pods_gone.insert(name.clone(), *at);
            }
            ("volumeattachments", "delete") if attachments.contains(name) => {
                self.handed_over.entry(name.clone()).or_insert(*at);
            }
            // The last write before it is gone takes the attacher's finalizer off.
            ("volumeattachments", "patch" | "update") if self.handed_over.contains_key(name) => {
                self.detached.insert(name.clone(), *at);
            }
            _ => {}
        }
    }
}

/// What the array says about one volume of the dead node.
#[derive(Debug, Default)]
pub struct ArraySide {
    /// The dead node's access was taken.
    pub cut_off: Option<Moment>,
    /// The first write of another node.
    pub first_write_elsewhere: Option<Moment>,
    /// Writes of the dead node that were accepted after that: the harm that must not be.
    pub accepted_too_late: usize,
    /// Writes of the dead node that were refused.
    pub refused: usize,
}

/// Reads the ledger from `since` on for a volume that `node` (its CSI node id) had.
pub fn array_side(ledger: &Ledger, volume: &str, node: &str, since: Stamp) -> ArraySide {
    let mut side = ArraySide::default();
    let of_volume = |entry: &&Entry| entry.at > since && &*entry.volume == volume;
    for entry in ledger.entries().iter().filter(of_volume) {
        let at = || Some(ledger.wall(entry.at));
        match (&entry.event, &*entry.node == node) {
            (Event::Unpublished { repeated: false }, true) => side.cut_off = side.cut_off.or_else(at),
            (Event::Wrote { .. }, false) => side.first_write_elsewhere = side.first_write_elsewhere.or_else(at),
            (Event::Wrote { .. }, true) if side.first_write_elsewhere.is_some() => side.accepted_too_late += 1,
            (Event::Refused { operation: Operation::Write, .. }, true) => side.refused += 1,
            _ => {}
        }
    }
    side
}

/// Seconds from `zero` to `at`; negative when it was before.
pub fn seconds(zero: Moment, at: Moment) -> f64 {
    (at - zero).as_seconds_f64()
}

/// What a node holds: its VolumeAttachments and the array's handles of their volumes.
#[derive(Clone, Debug, Default)]
pub struct Held {
    /// Names of the VolumeAttachments.
    pub attachments: Vec<String>,
    /// CSI volume handles, in the same order.
    pub volumes: Vec<String>,
}

impl Held {
    /// Without the volumes of these handles and their attachments.
    pub fn without(self, handles: &[String]) -> Self {
        let pairs = self.attachments.into_iter().zip(self.volumes).filter(|(_, volume)| !handles.contains(volume));
        let (attachments, volumes) = pairs.unzip();
        Self { attachments, volumes }
    }
}

/// What a node holds now.
pub async fn held_by(client: &Client, node: &str) -> kube::Result<Held> {
    let volumes = Api::<PersistentVolume>::all(client.clone()).list(&ListParams::default()).await?;
    let handle = |name: &str| {
        let volume = volumes.items.iter().find(|volume| volume.name_any() == name)?;
        Some(volume.spec.as_ref()?.csi.as_ref()?.volume_handle.clone())
    };
    let attachments = Api::<VolumeAttachment>::all(client.clone()).list(&ListParams::default()).await?;
    let mut held = Held::default();
    for attachment in attachments.items.iter().filter(|attachment| attachment.spec.node_name == node) {
        if let Some(volume) = attachment.spec.source.persistent_volume_name.as_deref().and_then(handle) {
            held.attachments.push(attachment.name_any());
            held.volumes.push(volume);
        }
    }
    Ok(held)
}
