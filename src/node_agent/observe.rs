//! What a pass sees: the objects of this node, and, where there is something to clean up after, what is left on it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::names;
use crate::api::node_fence::NodeFence;
use crate::api::node_volume_report::{MountKind, NodeVolumeReport};
use crate::api::slim::Pod;
use crate::error::{Error, Result};
use crate::runtime::store::ObjectKey;

use super::child::{Answer, Task};
use super::children::{CHILDREN_MAX, Children, NoAnswer};
use super::decide::{Incident, Key, Looked, Seen};
use super::mounts::layout::Wanted;
use super::mounts::mountinfo::Device;
use super::mounts::read::Request;
use super::probes::blocking::{PROBE, PROBES_MAX};
use super::probes::gather::LOOKING;
use super::{Context, Stores, addresses, self_fence};

/// What an inventory is about: no name of a volume.
const NODE: &str = "";

/// What is known without looking at any mount; none while the node or our report is not there.
pub async fn observe(cx: &Context, stores: &Stores) -> Result<Option<Seen>> {
    let key = ObjectKey::cluster(&cx.settings.node_name);
    let (Some(node), Some(report)) = (stores.nodes.get(&key), stores.reports.get(&key)) else { return Ok(None) };
    let boot_id = read(&cx.settings.boot_id_file).await?.trim().to_owned();
    if boot_id.is_empty() {
        return Err(Error::Invalid(format!("{}: empty; set --boot-id-file", cx.settings.boot_id_file)));
    }
    let fence = stores.fences.get(&key);
    let pods = stores.pods.list();
    let live: Vec<_> = pods.iter().filter(|pod| !pod.is_finished()).flat_map(|pod| uids(pod)).collect();
    let incident = fence.as_deref().and_then(|fence| incident(fence, &report, &boot_id, &live));
    let pods = pods.iter().filter_map(|pod| Some((pod.metadata.uid.clone()?, pod.is_finished()))).collect();
    let kubelet_is_up =
        node.status.conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    Ok(Some(Seen {
        node_uid: node.metadata.uid.clone().unwrap_or_default(),
        kubelet_is_up,
        boot_id,
        node_boot_id: node.status.node_info.boot_id.clone(),
        addresses: addresses(cx, &report).await,
        heartbeat: cx.heartbeat.clone(),
        self_fencing: cx.self_fence.borrow().as_ref().map(|told| (told.is_over, self_fence::words(told))),
        report,
        has_fence: fence.is_some(),
        fenced: fence.iter().flat_map(|fence| fenced(fence)).collect(),
        health: cx.health.borrow().clone(),
        fence: incident,
        pods,
        looked: None,
        hung: cx.children.hung(),
        probes_hung: are_hung(&cx.children),
        patience: cx.settings.kubelet_patience,
        check_interval: cx.settings.check_interval,
    }))
}

/// Whether something is not asked any more because of children that hang: all of it, volumes, or the paths of local ones.
fn are_hung(children: &Children) -> bool {
    children.hung() >= CHILDREN_MAX || children.hung_like(PROBE) >= PROBES_MAX || children.hung_of(LOOKING) > 0
}

/// The uids by which the kubelet may know a pod: a static one has there another than its image in the API.
pub fn uids(pod: &Pod) -> impl Iterator<Item = String> {
    let annotations = pod.metadata.annotations.as_ref();
    let of_static = annotations.and_then(|annotations| annotations.get(names::MIRROR_POD_ANNOTATION));
    pod.metadata.uid.iter().chain(of_static).cloned().collect::<Vec<_>>().into_iter()
}

/// Names of all volumes that a NodeFence is or was about.
fn fenced(fence: &NodeFence) -> impl Iterator<Item = String> {
    let rows = fence.status.iter().flat_map(|status| &status.volumes).map(|row| row.name.clone());
    rows.chain(fence.spec.plan.volumes.iter().map(|volume| volume.name.clone()))
}

async fn read(path: &str) -> Result<String> {
    tokio::fs::read_to_string(path).await.map_err(|source| Error::Io { context: path.to_owned(), source })
}

/// The host's addresses; those reported last where they cannot be read.
async fn addresses(cx: &Context, report: &NodeVolumeReport) -> Vec<String> {
    match addresses::read(&cx.settings.host).await {
        Ok(addresses) => addresses,
        Err(error) => {
            tracing::debug!(%error, "the host's addresses cannot be read");
            report.status.as_ref().map(|status| status.addresses.clone()).unwrap_or_default()
        }
    }
}

/// The incident that is to be cleaned up after: an active NodeFence under which something was cut off. `live` are the
/// pods of the API that have not ended: of a row of an earlier episode the plan has no pods, and only those are surely
/// none of its.
pub fn incident(fence: &NodeFence, report: &NodeVolumeReport, boot_id: &str, live: &[String]) -> Option<Incident> {
    let key = Key::of(fence, boot_id)?;
    let rows = fence.status.iter().flat_map(|status| &status.volumes);
    let mut wanted = BTreeMap::<String, Wanted>::new();
    let mut unusable = Vec::new();
    for plan in fence.volumes_to_clean() {
        let of_it = |pod: &&crate::api::node_fence::PlannedPod| pod.volumes.contains(&plan.name);
        let volume = Wanted {
            name: plan.name.clone(),
            driver: plan.driver.clone().unwrap_or_default(),
            handle: plan.volume_handle.clone().unwrap_or_default(),
            proved: rows
                .clone()
                .any(|row| row.episode == plan.episode && row.name == plan.name && row.proved_at.is_some()),
            pods: fence.spec.plan.pods.iter().filter(of_it).map(|pod| pod.uid.clone()).collect(),
            others: (plan.episode != fence.spec.episode).then(|| live.to_vec()),
            known: known(report, &key, &plan.name),
        };
        // A volume may be there from two episodes; under one name it is one volume.
        let other = wanted.get(&plan.name);
        let same = other.is_none_or(|other| other.driver == volume.driver && other.handle == volume.handle);
        if !volume.is_usable() || !same {
            unusable.push(plan.name.clone());
        } else if let Some(twice) = wanted.get_mut(&plan.name) {
            twice.proved &= volume.proved;
            twice.others = twice.others.take().or(volume.others);
        } else {
            wanted.insert(plan.name.clone(), volume);
        }
    }
    let something = !wanted.is_empty() || !unusable.is_empty();
    something.then(|| Incident { key, wanted: wanted.into_values().collect(), unusable })
}

/// Mounts of a volume that only we know of: nothing on the disk tells a driver's own mounts once the volume is unstaged.
fn known(report: &NodeVolumeReport, key: &Key, volume: &str) -> Vec<(Device, String)> {
    let Some(status) = &report.status else { return Vec::new() };
    let of_it = status.cleanup.as_ref().is_some_and(|cleanup| key.is_same_incident(cleanup));
    let rows = status.volumes.iter().filter(|row| of_it && row.name == volume);
    rows.flat_map(|row| {
        let device = row.device.as_deref().and_then(|device| device.parse::<Device>().ok());
        let private = row.mounts.iter().filter(|mount| mount.kind == MountKind::Private);
        device.into_iter().flat_map(move |device| private.clone().map(move |mount| (device, mount.path.clone())))
    })
    .collect()
}

/// Looks at what is left.
pub async fn look(cx: &Context, incident: &Incident) -> Looked {
    let began = cx.clock.now().mono;
    let request = Request { kubelet_root: cx.settings.kubelet_root.clone(), wanted: incident.wanted.clone() };
    let answer = cx.children.run(NODE, Task::Inventory(request), cx.settings.inventory_timeout).await;
    let found = match answer {
        Ok(Answer::Inventory(inventory)) => Ok(Arc::new(inventory)),
        Err(NoAnswer::TimedOut(_)) => Err("InventoryTimedOut"),
        Err(NoAnswer::AtTheCap) => Err("ProbesHung"),
        other => {
            tracing::warn!(?other, "no inventory");
            Err("InventoryFailed")
        }
    };
    Looked { began, ended: cx.clock.now().mono, found: found.map_err(str::to_owned) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_asked_any_more_is_told() {
        for (about, number, expected) in [
            ("pvc-1", 1, false),
            ("pvc-1", CHILDREN_MAX, true),
            ("probe of 8:1", PROBES_MAX - 1, false),
            ("probe of 8:1", PROBES_MAX, true),
            (LOOKING, 1, true),
        ] {
            let children = Children::new("/proc/self/exe".into(), "/proc/self".into());
            let hang: Vec<_> = (0..number).map(|_| children.hangs(about)).collect();
            assert_eq!(are_hung(&children), expected, "{about} {number}");
            drop(hang);
            assert!(!are_hung(&children), "{about} ended");
        }
    }
}
