//! EndpointSlices and v1 Endpoints: how they are to be for a server, and whose those are that are there. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use crate::api::shared_volume::{IpFamily, SLICE_MANAGER, SharedVolumeSpec};
use crate::api::slim::network::{
    EndpointAddress, EndpointConditions, EndpointSlice, EndpointSubset, Endpoints, MANAGED_BY_LABEL,
    SERVICE_NAME_LABEL, SKIP_MIRROR_LABEL, Service, SliceEndpoint, SlicePort,
};

use super::decide::{Effect, Seen};
use super::objects;
use super::servers::Server;

/// Families that a slice may have.
pub const FAMILIES: [IpFamily; 2] = [IpFamily::IPv4, IpFamily::IPv6];

/// Endpoints and ports of a slice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Content {
    /// At most one.
    pub endpoints: Vec<SliceEndpoint>,
    /// Its ports.
    pub ports: Vec<SlicePort>,
}

impl Content {
    /// Traffic of this family goes to the server, if it has an address there.
    pub fn of(spec: &SharedVolumeSpec, server: &Server, family: IpFamily) -> Self {
        let address = server.addresses.iter().find(|address| IpFamily::of(**address) == family);
        let endpoint = address.map(|address| SliceEndpoint {
            addresses: vec![address.to_string()],
            conditions: EndpointConditions { ready: Some(true), serving: Some(true), terminating: Some(false) },
            node_name: server.node.clone(),
        });
        let ports = if endpoint.is_some() { ports(spec, server) } else { Vec::new() };
        Self { endpoints: endpoint.into_iter().collect(), ports }
    }

    /// What a slice has.
    pub fn in_slice(slice: &EndpointSlice) -> Self {
        Self { endpoints: slice.endpoints.clone(), ports: slice.ports.clone() }
    }
}

/// The ports by their names in the Service: that is how they are matched.
fn ports(spec: &SharedVolumeSpec, server: &Server) -> Vec<SlicePort> {
    let port = |port: &crate::api::shared_volume::ServicePort| SlicePort {
        name: Some(port.name.clone()),
        port: server.ports.get(&port.name).map(|number| i32::from(*number)),
        protocol: Some(port.protocol.unwrap_or_default().as_str().to_owned()),
    };
    spec.service.ports.iter().map(port).collect()
}

/// Where the slices of the Service lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Addresses, over all slices.
    pub addresses: Vec<IpAddr>,
    /// Port of `mountPort`.
    pub port: u16,
    /// Node.
    pub node: Option<String>,
}

/// Where our slices lead; nothing when they are empty.
pub fn written(seen: &Seen) -> Option<Written> {
    let slices: Vec<_> = ours(seen).filter(|slice| !slice.endpoints.is_empty()).collect();
    let first = slices.first()?;
    let addresses: Vec<_> = slices.iter().flat_map(|slice| addresses(slice)).collect();
    let node = first.endpoints.iter().find_map(|endpoint| endpoint.node_name.clone());
    Some(Written { addresses, port: port(seen, first), node })
}

/// Whether all that is written is this server.
pub fn leads_to(written: &Written, server: &Server) -> bool {
    written.port == server.target.port && written.addresses.iter().all(|it| server.addresses.contains(it))
}

/// Whether a slice leads to anything but this server.
pub fn leads_elsewhere(seen: &Seen, slice: &EndpointSlice, server: &Server) -> bool {
    let other = |address: &IpAddr| !server.addresses.contains(address);
    !slice.endpoints.is_empty()
        && (addresses(slice).iter().any(other)
            || addresses(slice).is_empty()
            || port(seen, slice) != server.target.port)
}

fn addresses(slice: &EndpointSlice) -> Vec<IpAddr> {
    slice.endpoints.iter().flat_map(|endpoint| &endpoint.addresses).filter_map(|text| text.parse().ok()).collect()
}

fn port(seen: &Seen, slice: &EndpointSlice) -> u16 {
    let name = Some(&seen.shared_volume.spec.mount_port);
    let port = slice.ports.iter().find(|port| port.name.as_ref() == name).and_then(|port| port.port);
    port.and_then(|port| u16::try_from(port).ok()).unwrap_or_default()
}

/// Our slices of the Service, IPv4 first.
pub fn ours(seen: &Seen) -> impl Iterator<Item = &Arc<EndpointSlice>> {
    FAMILIES.into_iter().filter_map(|family| slice(seen, family))
}

/// Our slice of that family.
pub fn slice(seen: &Seen, family: IpFamily) -> Option<&Arc<EndpointSlice>> {
    let name = slice_name(seen, family);
    seen.slices.iter().find(|slice| is_ours(seen, slice) && slice.metadata.name.as_ref() == Some(&name))
}

/// Slices of ours that have no business to be there: of an earlier name, or of another family than their name says.
pub fn strays(seen: &Seen) -> Vec<Arc<EndpointSlice>> {
    let is_home = |slice: &EndpointSlice| {
        FAMILIES
            .into_iter()
            .any(|family| slice.name_any() == slice_name(seen, family) && slice.address_type == family.as_str())
    };
    seen.slices.iter().filter(|slice| is_ours(seen, slice) && !is_home(slice)).cloned().collect()
}

/// Slices of the Service that others fill: traffic would be split between them and ours.
pub fn foreign(seen: &Seen) -> Vec<String> {
    let squats =
        |slice: &EndpointSlice| FAMILIES.into_iter().any(|family| slice.name_any() == slice_name(seen, family));
    let is_foreign = |slice: &&Arc<EndpointSlice>| {
        !is_ours(seen, slice)
            && slice.service() == Some(&*objects::service_name(&seen.shared_volume))
            && (!slice.endpoints.is_empty() || squats(slice))
    };
    seen.slices.iter().filter(is_foreign).map(|slice| slice.name_any()).collect()
}

/// One that was left to the claim carries our manager's name alone.
fn is_ours(seen: &Seen, slice: &EndpointSlice) -> bool {
    let owner = objects::owner_label(&slice.metadata);
    let is_this = owner == seen.shared_volume.metadata.name.as_deref();
    let is_left =
        owner.is_none() && seen.service.as_ref().is_some_and(|it| objects::is_ours(&it.metadata, &seen.shared_volume));
    slice.manager() == Some(SLICE_MANAGER) && (is_this || is_left)
}

fn slice_name(seen: &Seen, family: IpFamily) -> String {
    let family = match family {
        IpFamily::IPv4 => "ipv4",
        IpFamily::IPv6 => "ipv6",
    };
    format!("{}-{family}", objects::service_name(&seen.shared_volume))
}

/// Writes a slice, unless it is as it is to be. An empty one is not made.
pub fn write(seen: &Seen, service: &Service, family: IpFamily, content: &Content) -> Option<Effect> {
    let before = slice(seen, family).cloned();
    let labels = labels(seen);
    match &before {
        None if content.endpoints.is_empty() => return None,
        Some(before) if is_as_wanted(before, service, &labels, content) => return None,
        _ => {}
    }
    let slice = Box::new(build(seen, service, family, content, labels, before.as_deref()));
    Some(Effect::WriteSlice { slice, before })
}

/// The slice without our label, for the claim to keep.
pub fn disown(seen: &Seen, service: &Service, family: IpFamily) -> Option<Effect> {
    let before = slice(seen, family).filter(|slice| objects::owner_label(&slice.metadata).is_some())?;
    let mut labels = labels(seen);
    labels.remove(&objects::label_of(&seen.shared_volume).0);
    let slice = build(seen, service, family, &Content::in_slice(before), labels, Some(before));
    Some(Effect::WriteSlice { slice: Box::new(slice), before: Some(before.clone()) })
}

fn labels(seen: &Seen) -> BTreeMap<String, String> {
    BTreeMap::from([
        objects::label_of(&seen.shared_volume),
        (SERVICE_NAME_LABEL.to_owned(), objects::service_name(&seen.shared_volume)),
        (MANAGED_BY_LABEL.to_owned(), SLICE_MANAGER.to_owned()),
    ])
}

fn is_as_wanted(
    before: &EndpointSlice,
    service: &Service,
    labels: &BTreeMap<String, String>,
    content: &Content,
) -> bool {
    objects::has_all(before.metadata.labels.as_ref(), labels)
        && objects::has_owner(&before.metadata, &objects::owned_by(service))
        && Content::in_slice(before) == *content
}

fn build(
    seen: &Seen,
    service: &Service,
    family: IpFamily,
    content: &Content,
    labels: BTreeMap<String, String>,
    before: Option<&EndpointSlice>,
) -> discovery::EndpointSlice {
    let endpoint = |it: &SliceEndpoint| discovery::Endpoint {
        addresses: it.addresses.clone(),
        conditions: Some(discovery::EndpointConditions {
            ready: it.conditions.ready,
            serving: it.conditions.serving,
            terminating: it.conditions.terminating,
        }),
        node_name: it.node_name.clone(),
        ..discovery::Endpoint::default()
    };
    let port = |it: &SlicePort| discovery::EndpointPort {
        name: it.name.clone(),
        port: it.port,
        protocol: it.protocol.clone(),
        ..discovery::EndpointPort::default()
    };
    discovery::EndpointSlice {
        metadata: metadata(seen, service, slice_name(seen, family), labels, before.map(|before| &before.metadata)),
        address_type: family.as_str().to_owned(),
        endpoints: content.endpoints.iter().map(endpoint).collect(),
        ports: Some(content.ports.iter().map(port).collect()),
    }
}

fn metadata(
    seen: &Seen,
    service: &Service,
    name: String,
    labels: BTreeMap<String, String>,
    before: Option<&ObjectMeta>,
) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: seen.shared_volume.namespace(),
        uid: before.and_then(|before| before.uid.clone()),
        resource_version: before.and_then(|before| before.resource_version.clone()),
        labels: Some(labels),
        owner_references: Some(vec![objects::owned_by(service)]),
        ..ObjectMeta::default()
    }
}

/// The subsets of v1 Endpoints for a server: an address of the Service's first family, if it has one. They know one.
pub fn subsets(spec: &SharedVolumeSpec, server: &Server, families: &[IpFamily]) -> Vec<EndpointSubset> {
    let first = families.first();
    let of_first = server.addresses.iter().find(|address| Some(&IpFamily::of(**address)) == first);
    let address = of_first.or(server.addresses.first());
    let address = address.map(|it| EndpointAddress { ip: it.to_string(), node_name: server.node.clone() });
    let subset = |address| EndpointSubset {
        addresses: vec![address],
        not_ready_addresses: Vec::new(),
        ports: ports(spec, server),
    };
    address.map(subset).into_iter().collect()
}

/// Writes the Endpoints, unless they are as they are to be.
pub fn write_endpoints(seen: &Seen, service: &Service, subsets: &[EndpointSubset]) -> Option<Effect> {
    let before = seen.endpoints.clone();
    let labels = endpoints_labels(seen);
    if let Some(before) = &before {
        let is_same = sorted(&before.subsets) == sorted(subsets)
            && objects::has_all(before.metadata.labels.as_ref(), &labels)
            && objects::has_owner(&before.metadata, &objects::owned_by(service));
        if is_same {
            return None;
        }
    }
    let endpoints = build_endpoints(seen, service, subsets, labels, before.as_deref());
    Some(Effect::WriteEndpoints { endpoints: Box::new(endpoints), before })
}

/// The API server may order ports as it likes.
fn sorted(subsets: &[EndpointSubset]) -> Vec<EndpointSubset> {
    let mut sorted = subsets.to_vec();
    sorted.iter_mut().for_each(|subset| subset.ports.sort_by(|a, b| a.name.cmp(&b.name)));
    sorted
}

/// The Endpoints without our label, for the claim to keep.
pub fn disown_endpoints(seen: &Seen, service: &Service) -> Option<Effect> {
    let before = seen.endpoints.clone().filter(|it| objects::is_ours(&it.metadata, &seen.shared_volume))?;
    let mut labels = endpoints_labels(seen);
    labels.remove(&objects::label_of(&seen.shared_volume).0);
    let endpoints = build_endpoints(seen, service, &before.subsets, labels, Some(&before));
    Some(Effect::WriteEndpoints { endpoints: Box::new(endpoints), before: Some(before) })
}

/// Whether nobody copies the Endpoints: as we write them, also those that were left to the claim.
pub fn is_not_mirrored(endpoints: &Endpoints) -> bool {
    endpoints
        .metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get(SKIP_MIRROR_LABEL))
        .is_some_and(|value| value == "true")
}

/// Whoever copies Endpoints into slices must leave these alone: the server would be there twice, one of them late.
fn endpoints_labels(seen: &Seen) -> BTreeMap<String, String> {
    BTreeMap::from([objects::label_of(&seen.shared_volume), (SKIP_MIRROR_LABEL.to_owned(), "true".to_owned())])
}

fn build_endpoints(
    seen: &Seen,
    service: &Service,
    subsets: &[EndpointSubset],
    labels: BTreeMap<String, String>,
    before: Option<&Endpoints>,
) -> core::Endpoints {
    let address = |it: &EndpointAddress| core::EndpointAddress {
        ip: it.ip.clone(),
        node_name: it.node_name.clone(),
        ..core::EndpointAddress::default()
    };
    let port = |it: &SlicePort| core::EndpointPort {
        name: it.name.clone(),
        port: it.port.unwrap_or_default(),
        protocol: it.protocol.clone(),
        ..core::EndpointPort::default()
    };
    let subset = |it: &EndpointSubset| core::EndpointSubset {
        addresses: Some(it.addresses.iter().map(address).collect()),
        ports: Some(it.ports.iter().map(port).collect()),
        ..core::EndpointSubset::default()
    };
    let name = objects::service_name(&seen.shared_volume);
    core::Endpoints {
        metadata: metadata(seen, service, name, labels, before.map(|before| &before.metadata)),
        subsets: Some(subsets.iter().map(subset).collect()),
    }
}
