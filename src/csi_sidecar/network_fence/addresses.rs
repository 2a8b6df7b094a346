//! Which addresses are shut out: those by which the storage knows the node that failed, and no other node now. Whatever is in
//! doubt shuts nobody out (rook#14832 fenced the replacement of the failed node).

use super::super::decide::Failure;
use crate::api::cidr::Cidr;
use crate::api::network_fence::{CsiAddonsNode, NetworkFence, NetworkFenceClass};
use crate::api::slim::network::{NodeAddresses, ReportedAddresses};

use super::decide::{Seen, stop};

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
    /// What the drivers' node plugins say.
    pub clients: Vec<CsiAddonsNode>,
    /// The namespace of this driver: its node plugins are there. What is said elsewhere anybody may have written.
    pub namespace: String,
}

/// The addresses to shut out: those of an earlier fence of this episode, else what the driver says of the node, else what its
/// agent reported before it failed.
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
    match addresses.iter().find_map(|address| Some((address, claimed(seen, around, *address)?))) {
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
        None => Err(stop("ClassNotFound", format!("NetworkFenceClass {} not found", seen.class))),
        Some(class) if class.spec.provisioner != seen.driver => Err(stop(
            "ClassOfAnotherDriver",
            format!("NetworkFenceClass {} is of driver {}, not of {}", seen.class, class.spec.provisioner, seen.driver),
        )),
        Some(_) => Ok(()),
    }
}

/// By what the storage knows the node, as the driver says: behind a NAT that is none of its addresses. `None` where the driver
/// says it of no node.
fn told(seen: &Seen, around: &Around) -> Result<Option<Vec<Cidr>>, Failure> {
    let node = &seen.request.spec.node_name;
    let mut telling = believed(around).filter(|it| is_telling(seen, it)).peekable();
    if telling.peek().is_none() {
        // Whoever wrote it: there may be a NAT, and then what the agent reported shuts nobody out.
        return match around.clients.iter().find(|it| is_telling(seen, it)) {
            Some(elsewhere) => Err(stop(
                "ClientsElsewhere",
                format!(
                    "CSIAddonsNode {} tells clients of {} in namespace {}, and only those in the sidecar's own, {}, are \
                     believed",
                    elsewhere.metadata.name.as_deref().unwrap_or_default(),
                    seen.driver,
                    elsewhere.metadata.namespace.as_deref().unwrap_or_default(),
                    around.namespace,
                ),
            )),
            None => Ok(None),
        };
    }
    let told: Vec<_> = telling.filter(|it| is_of_node(seen, it)).flat_map(|it| it.clients(&seen.class)).collect();
    if told.is_empty() {
        return Err(stop(
            "ClientsUnknown",
            format!("no CSIAddonsNode says by what address class {} knows node {node}, and others do", seen.class),
        ));
    }
    let frozen = &seen.request.spec.node;
    let is_another = |it: &&NodeAddresses| {
        let boot_id = it.status.node_info.boot_id.as_str();
        it.metadata.uid.as_deref() != Some(frozen.uid.as_str())
            || frozen.boot_id.as_deref().is_some_and(|frozen| !boot_id.is_empty() && boot_id != frozen)
    };
    let is_named = |it: &&NodeAddresses| it.metadata.name.as_ref() == Some(node);
    if around.nodes.iter().filter(is_named).any(|it| is_another(&it)) {
        return Err(stop(
            "IdentityAmbiguous",
            format!("node {node} is another machine or boot by now: what the driver says may be of that one"),
        ));
    }
    let told = told.into_iter().map(str::parse).collect::<Result<Vec<Cidr>, String>>();
    let told = told.map_err(|message| stop("AddressUnusable", message))?;
    // Without a NAT the node may have been known by what it was called before.
    let before = parsed(&frozen.addresses);
    let is_without_nat = told.iter().all(|address| before.contains(address));
    Ok(Some(if is_without_nat { before } else { told }))
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
        return unknown(format!("nobody reported addresses of node {name}: run bulkhead-node-agent there"));
    }
    if node.addresses.len() >= MOST_ADDRESSES {
        return unknown(format!(
            "node {name} has {MOST_ADDRESSES} addresses or more, and no more are reported: a fence would leave some out"
        ));
    }
    let parse = |it: &String| it.parse::<Cidr>().map_err(|message| stop("AddressUnusable", message));
    let known = node.addresses.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    let own = around.nodes.iter().filter(|it| it.metadata.uid.as_ref() == Some(&node.uid));
    let internal = own.flat_map(|it| &it.status.addresses).filter(|it| it.type_ == "InternalIP");
    let is_missing = |address: &Cidr| !known.iter().any(|it| it.overlaps(*address));
    match internal.filter_map(|it| it.address.parse::<Cidr>().ok()).find(is_missing) {
        Some(missing) => unknown(format!(
            "the Node has address {missing}, which its agent did not report: a fence would leave out that one, and maybe others"
        )),
        None => Ok(known),
    }
}

/// The other node, or machine, that has this address now.
fn claimed(seen: &Seen, around: &Around, address: Cidr) -> Option<String> {
    let (name, uid) = (&seen.request.spec.node_name, &seen.request.spec.node.uid);
    let has = |texts: &mut dyn Iterator<Item = &String>| {
        texts.filter_map(|text| text.parse::<Cidr>().ok()).any(|other| other.overlaps(address))
    };
    let of_node = around.nodes.iter().find(|node| {
        node.metadata.uid.as_ref() != Some(uid) && has(&mut node.status.addresses.iter().map(|it| &it.address))
    });
    let of_report = around.reports.iter().find(|report| {
        let is_other = report.metadata.name.as_ref() != Some(name)
            || report.status.node_uid.as_ref().is_some_and(|reported| reported != uid);
        is_other && has(&mut report.status.addresses.iter())
    });
    let of_client = believed(around).find(|client| {
        let told = client.clients(&seen.class);
        let overlaps = |text: &&str| text.parse::<Cidr>().is_ok_and(|other| other.overlaps(address));
        client.spec.driver.name == seen.driver && !is_of_node(seen, client) && told.iter().any(overlaps)
    });
    of_node
        .and_then(|node| node.metadata.name.clone())
        .or_else(|| of_report.and_then(|report| report.metadata.name.clone()))
        .or_else(|| of_client.map(|client| client.spec.driver.node_id.clone()))
}

/// The addresses of a fence.
pub(super) fn of(fence: &NetworkFence) -> Vec<Cidr> {
    parsed(&fence.spec.cidrs)
}

/// Those that can be read.
pub(super) fn parsed(texts: &[String]) -> Vec<Cidr> {
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

/// Whether both have an address in common.
pub(super) fn overlap(some: &[Cidr], others: &[Cidr]) -> bool {
    some.iter().any(|address| others.iter().any(|other| address.overlaps(*other)))
}
