//! Which addresses are shut out: those by which the storage knows the node that failed, and no other node now. Whatever is in
//! doubt shuts nobody out (rook#14832 fenced the replacement of the failed node).

use std::collections::BTreeSet;

use kube::ResourceExt as _;

use super::super::decide::Failure;
use crate::api::cidr::{Cidr, readable};
use crate::api::driver_report::{KnownBy, NetworkFenceClients};
use crate::api::fence_request::RequestedVolume;
use crate::api::names::FENCED_ADDRESSES_ANNOTATION;
use crate::api::network_fence::{CsiAddonsNode, NetworkFence, NetworkFenceClass};
use crate::api::node_volume_report::unreported;
use crate::api::proof::{CLASS_NOT_FOUND, CLASS_OF_ANOTHER_CLUSTER, CLASS_OF_ANOTHER_DRIVER, class_of_another_cluster};
use crate::api::slim::NodeAddress;
use crate::api::slim::network::{NodeAddresses, ReportedAddresses};
use crate::mutants::{self, Mutant};

use super::decide::Seen;
use super::failures::stop;

/// So many addresses of a node are reported at most. Of one with so many some may be missing.
const MOST_ADDRESSES: usize = 16;

/// What addresses are whose now.
pub struct Around {
    /// The class, if there is one of that name.
    pub class: Option<NetworkFenceClass>,
    /// All Nodes.
    pub nodes: Vec<NodeAddresses>,
    /// What all agents report.
    pub reports: Vec<ReportedAddresses>,
    /// What the driver said of its nodes while they were well.
    pub record: Vec<NetworkFenceClients>,
    /// What the drivers' node plugins say.
    pub clients: Vec<CsiAddonsNode>,
    /// The namespace of this driver: its node plugins are there. What is said elsewhere anybody may have written.
    pub namespace: String,
}

/// The addresses to shut out: those of an earlier fence of this episode, else what the driver said of the node, else what its
/// agent reported, both before it failed.
pub(super) fn to_fence(seen: &Seen, around: &Around, known: Option<Vec<Cidr>>) -> Result<Vec<Cidr>, Failure> {
    check_class(seen, around)?;
    let mut addresses = match known.filter(|known| !known.is_empty()) {
        Some(known) => known,
        None => told(seen, around)?.map_or_else(|| frozen(seen, around), Ok)?,
    };
    addresses.sort();
    addresses.dedup();
    if let Some(wrong) = addresses.iter().find(|address| !address.is_client()) {
        return Err(stop("AddressUnusable", format!("{wrong} is not the address of one node: nobody is shut out")));
    }
    let claim = addresses.iter().find_map(|address| Some((address, claimed(seen, around, *address)?)));
    match claim.filter(|_| !mutants::is_on(Mutant::ClaimIgnored)) {
        Some((address, node)) => Err(stop(
            "AddressClaimed",
            format!(
                "{address} is an address of node {node} now: a fence would shut that one out. Fence by hand, or wait until it has another"
            ),
        )),
        None => Ok(addresses),
    }
}

fn check_class(seen: &Seen, around: &Around) -> Result<(), Failure> {
    match &around.class {
        None => Err(stop(CLASS_NOT_FOUND, format!("NetworkFenceClass {} not found", seen.class))),
        Some(class) if class.spec.provisioner != seen.driver => Err(stop(
            CLASS_OF_ANOTHER_DRIVER,
            format!("NetworkFenceClass {} is of driver {}, not of {}", seen.class, class.spec.provisioner, seen.driver),
        )),
        Some(_) => Ok(()),
    }
}

/// Whether the class names the cluster that each of the volumes demands, and none where they name none.
pub fn check_cluster(class: &str, cluster_id: Option<&str>, volumes: &[RequestedVolume]) -> Result<(), Failure> {
    let mut demanded = volumes.iter().filter_map(RequestedVolume::demanded_cluster);
    let other = demanded.find(|demanded| *demanded != cluster_id.unwrap_or_default());
    match other.filter(|_| !mutants::is_on(Mutant::ClusterIgnored)) {
        Some(other) => Err(stop(CLASS_OF_ANOTHER_CLUSTER, class_of_another_cluster(class, other))),
        None => Ok(()),
    }
}

/// Whether the class is still the one that was there before, by uid.
pub fn check_same(class: &str, before: &str, now: &str) -> Result<(), Failure> {
    if before == now {
        return Ok(());
    }
    let message =
        format!("NetworkFenceClass {class} was deleted or made anew meanwhile: the next round makes another fence");
    Err(stop("NetworkFenceChanged", message))
}

/// By what the storage knows the node, as the driver said while it was well: behind a NAT that is none of its addresses. `None`
/// where the driver never said it of a node.
fn told(seen: &Seen, around: &Around) -> Result<Option<Vec<Cidr>>, Failure> {
    let (name, frozen) = (&seen.request.spec.node_name, &seen.request.spec.node);
    let mut of_class = around.record.iter().filter(|it| it.class_name == seen.class).peekable();
    if of_class.peek().is_none() && !believed(around).any(|it| is_telling(seen, it)) {
        return told_elsewhere(seen, around).map_or(Ok(None), Err);
    }
    let row = of_class.find(|it| it.node == *name && it.node_uid == frozen.uid && !it.addresses.is_empty());
    let Some(row) = row else {
        return Err(stop(
            "ClientsUnknown",
            format!(
                "driver {} tells by what address class {} knows nodes, and of node {name} that is not on record from when it was well",
                seen.driver, seen.class
            ),
        ));
    };
    check_identity(seen, around)?;
    let own = read(row.addresses.iter().map(String::as_str))?;
    let telling = believed(around).filter(|it| is_telling(seen, it) && is_of_node(seen, it));
    let now = read(telling.flat_map(|it| it.clients(&seen.class)))?;
    if !now.is_empty() && now != own {
        return Err(stop(
            "AddressesChanged",
            format!(
                "the driver says by now that class {} knows node {name} by {}, and said {} while it was well: it may be another's, or \
                 not all. Fence by hand",
                seen.class,
                text(&now),
                text(&own)
            ),
        ));
    }
    // Without a NAT the node may write by any address that it had; and a plugin in a pod with one of its own tells that beside them.
    // Where nothing is frozen it may by any that it has.
    let before = if frozen.addresses.is_empty() { own_now(around, &frozen.uid) } else { readable(&frozen.addresses) };
    let is_without_nat = own.iter().any(|address| before.contains(address));
    if is_without_nat {
        check_unchanged(seen, around, &before)?;
    } else {
        check_record(seen, around, row, &own)?;
    }
    Ok(Some(own.into_iter().chain(before.into_iter().filter(|_| is_without_nat)).collect()))
}

fn read<'a>(texts: impl Iterator<Item = &'a str>) -> Result<BTreeSet<Cidr>, Failure> {
    let addresses = texts.map(str::parse).collect::<Result<BTreeSet<Cidr>, String>>();
    addresses.map_err(|message| stop("AddressUnusable", message))
}

fn text(addresses: &BTreeSet<Cidr>) -> String {
    addresses.iter().map(Cidr::to_string).collect::<Vec<_>>().join(", ")
}

/// Whoever wrote it: there may be a NAT, and then what the agent reported shuts nobody out.
fn told_elsewhere(seen: &Seen, around: &Around) -> Option<Failure> {
    let elsewhere = around.clients.iter().find(|it| is_telling(seen, it))?;
    Some(stop(
        "ClientsElsewhere",
        format!(
            "CSIAddonsNode {} tells clients of {} in namespace {}, and only those in the sidecar's own, {}, are believed",
            elsewhere.metadata.name.as_deref().unwrap_or_default(),
            seen.driver,
            elsewhere.metadata.namespace.as_deref().unwrap_or_default(),
            around.namespace,
        ),
    ))
}

/// Another machine, or boot, of that name may be known to the storage by what this one was known by.
fn check_identity(seen: &Seen, around: &Around) -> Result<(), Failure> {
    let (name, frozen) = (&seen.request.spec.node_name, &seen.request.spec.node);
    let is_another = |it: &NodeAddresses| {
        let boot_id = it.status.node_info.boot_id.as_str();
        it.metadata.uid.as_deref() != Some(frozen.uid.as_str())
            || frozen.boot_id.as_deref().is_some_and(|frozen| !boot_id.is_empty() && boot_id != frozen)
    };
    if around.nodes.iter().any(|it| it.metadata.name.as_ref() == Some(name) && is_another(it)) {
        return Err(stop(
            "IdentityAmbiguous",
            format!(
                "node {name} is another machine or boot by now: what the storage knows by its name may be that one"
            ),
        ));
    }
    Ok(())
}

/// An address that the node's agent reports since it failed is one by which it may write on.
fn check_unchanged(seen: &Seen, around: &Around, before: &[Cidr]) -> Result<(), Failure> {
    let (name, uid) = (&seen.request.spec.node_name, &seen.request.spec.node.uid);
    let is_own =
        |it: &&ReportedAddresses| it.metadata.name.as_ref() == Some(name) && it.status.node_uid.as_ref() == Some(uid);
    let now = readable(around.reports.iter().filter(is_own).flat_map(|it| &it.status.addresses));
    match now.iter().find(|address| !before.contains(address)) {
        Some(new) => Err(stop(
            "AddressesChanged",
            format!(
                "node {name} has address {new} since it failed: a fence by those that it had would leave that one out"
            ),
        )),
        None => Ok(()),
    }
}

/// csi-addons asks a driver once an hour: what is on record may be what the node had before. It is not where there is a NAT, which
/// the row tells, or the other nodes.
fn check_record(seen: &Seen, around: &Around, row: &NetworkFenceClients, own: &BTreeSet<Cidr>) -> Result<(), Failure> {
    let no_nat = match (row.known_by, known_by_its_own(seen, around)) {
        (Some(KnownBy::OwnAddress), _) => "knew it by one of its own before".to_owned(),
        (_, Some(other)) => format!("knows node {other} by one of its own"),
        (_, None) => return Ok(()),
    };
    Err(stop(
        "AddressesChanged",
        format!(
            "the driver said that class {} knows node {} by {}, which is none of those that the node is known to have, and {no_nat}: \
             csi-addons asks once an hour, and the node may have got another address since. Fence by hand",
            seen.class,
            row.node,
            text(own)
        ),
    ))
}

/// Those that a node has now.
fn own_now(around: &Around, uid: &str) -> Vec<Cidr> {
    let nodes = around.nodes.iter().filter(|node| node.metadata.uid.as_deref() == Some(uid));
    own(nodes.flat_map(|node| &node.status.addresses), &around.reports, uid)
}

/// Those of the addresses of a Node of this uid, and of what its agent reports, that are its own. An ExternalIP is that of a NAT: no
/// interface of the machine has it.
pub(super) fn own<'a>(
    of_node: impl Iterator<Item = &'a NodeAddress>,
    reports: &'a [ReportedAddresses],
    uid: &str,
) -> Vec<Cidr> {
    let internal = of_node.filter(|it| it.type_ == "InternalIP").map(|it| &it.address);
    let reports = reports.iter().filter(|report| report.status.node_uid.as_deref() == Some(uid));
    readable(internal.chain(reports.flat_map(|report| &report.status.addresses)))
}

/// Another node that the storage knows by an address which that node has: there is no NAT before the class.
fn known_by_its_own<'a>(seen: &Seen, around: &'a Around) -> Option<&'a str> {
    let is_own = |it: &&NetworkFenceClients| {
        let told = readable(&it.addresses);
        own_now(around, &it.node_uid).iter().any(|address| told.contains(address))
    };
    let (class, name) = (&seen.class, &seen.request.spec.node_name);
    let mut others = around.record.iter().filter(|it| it.class_name == *class && it.node != *name);
    others.find(is_own).map(|it| it.node.as_str())
}

/// What is said in the driver's own namespace.
fn believed(around: &Around) -> impl Iterator<Item = &CsiAddonsNode> {
    around.clients.iter().filter(|it| it.metadata.namespace.as_ref() == Some(&around.namespace))
}

fn is_telling(seen: &Seen, node: &CsiAddonsNode) -> bool {
    node.spec.driver.name == seen.driver && !node.clients(&seen.class).is_empty()
}

/// Whether it is of the node that failed. csi-addons calls it by the name of the Node, or as the driver does.
fn is_of_node(seen: &Seen, node: &CsiAddonsNode) -> bool {
    let id = &node.spec.driver.node_id;
    *id == seen.request.spec.node_name || seen.request.spec.volumes.iter().any(|volume| volume.node_id == *id)
}

/// What the agent reported before the node failed. A fence for a part of the node's addresses is none: so the list is not used
/// where it shows itself that something is missing.
fn frozen(seen: &Seen, around: &Around) -> Result<Vec<Cidr>, Failure> {
    let (name, node) = (&seen.request.spec.node_name, &seen.request.spec.node);
    let unknown = |message: String| Err(stop("AddressesUnknown", message));
    if node.addresses.is_empty() {
        return unknown(format!(
            "no addresses of node {name} are frozen: bulkhead-node-agent must run there and report each InternalIP of the Node"
        ));
    }
    if node.addresses.len() >= MOST_ADDRESSES {
        return unknown(format!(
            "node {name} has {MOST_ADDRESSES} addresses or more, and no more are reported: a fence would leave some out"
        ));
    }
    let parse = |it: &String| it.parse::<Cidr>().map_err(|message| stop("AddressUnusable", message));
    let known = node.addresses.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    // The plan was made by the same measure; but the Node may have got another address since, or the plan is of an older controller.
    let mut own = around.nodes.iter().filter(|it| it.metadata.uid.as_ref() == Some(&node.uid));
    if let Some(missing) = own.find_map(|it| unreported(&it.status.addresses, &node.addresses)) {
        return unknown(format!(
            "the Node has address {missing}, which its agent did not report: a fence would leave out that one, and maybe others"
        ));
    }
    check_unchanged(seen, around, &known)?;
    Ok(known)
}

/// The other node, or machine, that has this address now.
fn claimed(seen: &Seen, around: &Around, address: Cidr) -> Option<String> {
    let (name, uid) = (&seen.request.spec.node_name, &seen.request.spec.node.uid);
    let is_among = |others: Vec<Cidr>| overlap(&others, &[address]);
    let of_node = around.nodes.iter().find(|node| {
        let own = node.status.addresses.iter().map(|it| &it.address);
        node.metadata.uid.as_ref() != Some(uid) && is_among(readable(own))
    });
    let of_report = around.reports.iter().find(|report| {
        let is_other = report.metadata.name.as_ref() != Some(name)
            || report.status.node_uid.as_ref().is_some_and(|reported| reported != uid);
        is_other && is_among(readable(&report.status.addresses))
    });
    let of_client = believed(around).find(|client| {
        let is_of_driver = client.spec.driver.name == seen.driver;
        is_of_driver && !is_of_node(seen, client) && is_among(readable(client.clients(&seen.class)))
    });
    let of_record = around.record.iter().find(|it| {
        it.class_name == seen.class && (it.node != *name || it.node_uid != *uid) && is_among(readable(&it.addresses))
    });
    of_node
        .and_then(|node| node.metadata.name.clone())
        .or_else(|| of_report.and_then(|report| report.metadata.name.clone()))
        .or_else(|| of_client.map(|client| client.spec.driver.node_id.clone()))
        .or_else(|| of_record.map(|it| it.node.clone()))
}

/// The addresses of a fence: those that it names, and those that it was made with.
pub(super) fn of(fence: &NetworkFence) -> Vec<Cidr> {
    let mut addresses = [readable(&fence.spec.cidrs), readable(as_made(fence))].concat();
    addresses.sort();
    addresses.dedup();
    addresses
}

/// What a fence of ours was made with, and what is let in at its end: who edits the object changes whom csi-addons shuts out, and
/// not whom we have. Without a word of it, what the object names.
pub(super) fn as_made(fence: &NetworkFence) -> Vec<String> {
    let is_client = |text: &&str| text.parse::<Cidr>().is_ok_and(Cidr::is_client);
    let written = fence.annotations().get(FENCED_ADDRESSES_ANNOTATION);
    let made: Vec<&str> = written.into_iter().flat_map(|written| written.split(',')).collect();
    if !made.is_empty() && made.iter().all(is_client) && !mutants::is_on(Mutant::EditBelieved) {
        made.into_iter().map(str::to_owned).collect()
    } else {
        fence.spec.cidrs.clone()
    }
}

/// Whether both have an address in common.
pub(super) fn overlap(some: &[Cidr], others: &[Cidr]) -> bool {
    some.iter().any(|address| others.iter().any(|other| address.overlaps(*other)))
}
