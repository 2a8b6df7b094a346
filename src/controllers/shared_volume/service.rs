//! The Service: how it is to be, whether the one that is there is ours or may become ours, and which addresses it must
//! keep. Pure.

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

use crate::api::shared_volume::{
    ADOPT_ANNOTATION, ClaimIdentity, ClusterIpPolicy, EndpointObjects, IpFamily, ServiceIdentity, ServicePort,
};
use crate::api::slim::network::{self as slim, Service};
use crate::api::time::Now;

use super::decide::{Decision, Effect, Note, Refused, Seen};
use super::objects;
use super::servers::Server;
use super::status::Finding;

/// Pace at which a refused Service is tried again: addresses become free without telling.
const REFUSED_PACE: Duration = Duration::from_secs(2);

/// What is to become of the Service.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// It is as it is to be.
    Ready,
    /// This comes first.
    Do(Box<Decision>),
    /// It cannot be used.
    Trouble(Finding, Option<Duration>),
    /// It was created and is not seen: looked for since so long.
    Unseen {
        /// When to look again.
        look_again: Duration,
        /// Whether to look live now.
        verify: bool,
        /// Whether it takes too long.
        is_late: bool,
    },
}

/// What is to become of it.
pub fn step(seen: &Seen, claim: &ClaimIdentity, servers: &[Server], now: Now) -> Step {
    match &seen.service {
        None => missing(seen, claim, servers, now),
        Some(service) if service.metadata.deletion_timestamp.is_some() => {
            Step::Unseen { look_again: seen.intervals.create_poll, verify: false, is_late: false }
        }
        Some(service) => present(seen, claim, service, now),
    }
}

fn missing(seen: &Seen, claim: &ClaimIdentity, servers: &[Server], now: Now) -> Step {
    if let Some(created) = seen.memory.created {
        let waited = now.mono.saturating_duration_since(created);
        let verify = waited >= seen.intervals.create_poll;
        let look_again = if verify { seen.intervals.create_poll } else { seen.intervals.create_poll - waited };
        return Step::Unseen { look_again, verify, is_late: waited >= seen.intervals.create_wait };
    }
    create(seen, claim, servers, now)
}

/// Creates the Service with the addresses that it had. One that is there after all is a conflict.
pub fn create(seen: &Seen, claim: &ClaimIdentity, servers: &[Server], now: Now) -> Step {
    let spec = &seen.shared_volume.spec.service;
    let refusal = seen.memory.refused.as_ref();
    let is_lost = refusal.is_some_and(|refusal| refusal.what == Refused::Addresses);
    let pins = !(is_lost && spec.cluster_ip_policy == ClusterIpPolicy::Any);
    if let Some(waiting) = refused(seen, now).filter(|_| pins) {
        return waiting;
    }
    let mut service = desired(seen, claim, servers.first(), None);
    if pins && let Some(spec) = &mut service.spec {
        let recorded = seen.status().and_then(|status| status.service.as_ref()).map(|it| it.cluster_ips.clone());
        spec.cluster_ip = recorded.as_ref().and_then(|ips| ips.first().cloned());
        spec.cluster_ips = recorded.filter(|ips| !ips.is_empty());
    }
    let mut decision =
        Decision::new("ServiceMissing", seen, vec![Effect::ApplyService { service: Box::new(service), create: true }]);
    decision.memory.created = Some(now.mono);
    decision.memory.refused = None;
    decision.notes = created(seen);
    Step::Do(Box::new(decision))
}

fn created(seen: &Seen) -> Vec<Note> {
    let name = objects::service_name(&seen.shared_volume);
    let mut notes = vec![Note::normal("ServiceCreated", format!("Service {name} carries the address"))];
    if objects::is_hashed(&seen.shared_volume) {
        let claim = &seen.shared_volume.spec.claim_name;
        let text = format!("{claim} can be no Service's name (a DNS-1035 label): the Service is called {name}");
        notes.push(Note::normal("ServiceNameHashed", text));
    }
    notes
}

/// What the API server refused, until it is tried again.
fn refused(seen: &Seen, now: Now) -> Option<Step> {
    let refusal = seen.memory.refused.as_ref()?;
    let waited = now.mono.saturating_duration_since(refusal.at);
    let left = REFUSED_PACE.checked_sub(waited).filter(|left| !left.is_zero())?;
    let name = objects::service_name(&seen.shared_volume);
    let finding = match refusal.what {
        Refused::Addresses => {
            let ips = seen.status().and_then(|status| status.service.as_ref()).map(|it| it.cluster_ips.join(", "));
            let message = format!(
                "Service {name} cannot have its addresses {} again: free them, or set service.clusterIPPolicy to Any \
                 and mount anew: {}",
                ips.unwrap_or_default(),
                refusal.error
            );
            Finding::no("ClusterIPLost", message)
        }
        Refused::Families => {
            let message = format!(
                "the cluster does not offer the families of Service {name}: change service.ipFamilyPolicy or \
                 ipFamilies: {}",
                refusal.error
            );
            Finding::no("FamilyUnavailable", message)
        }
    };
    Some(Step::Trouble(finding, Some(left)))
}

fn present(seen: &Seen, claim: &ClaimIdentity, service: &Service, now: Now) -> Step {
    let is_ours = objects::is_our_service(&service.metadata, &seen.shared_volume);
    if let Some(conflict) = conflict(seen, service, is_ours) {
        return Step::Trouble(Finding::no("ServiceConflict", conflict), None);
    }
    if let Some(finding) = lost_address(seen, service) {
        return Step::Trouble(finding, None);
    }
    if let Some(waiting) = refused(seen, now) {
        return waiting;
    }
    let wanted = desired(seen, claim, None, Some(service));
    if !is_ours {
        let mut decision = apply("Adopted", seen, wanted);
        decision.notes = vec![Note::normal("Adopted", format!("Service {} is taken over", service.name_any()))];
        return Step::Do(Box::new(decision));
    }
    let ports = wanted.spec.iter().flat_map(|spec| spec.ports.iter().flatten()).cloned().collect::<Vec<_>>();
    if !service.spec.selector.is_empty() || !same_ports(&service.spec.ports, &ports) {
        let effect = Effect::RepairService { before: seen.service.clone().unwrap_or_default(), ports };
        return Step::Do(Box::new(Decision::new("ServiceChanged", seen, vec![effect])));
    }
    if has(service, &wanted) { Step::Ready } else { Step::Do(Box::new(apply("ServiceDiffers", seen, wanted))) }
}

fn apply(reason: &'static str, seen: &Seen, service: core::Service) -> Decision {
    let mut decision =
        Decision::new(reason, seen, vec![Effect::ApplyService { service: Box::new(service), create: false }]);
    decision.memory.refused = None;
    decision
}

/// Why a Service cannot be ours.
fn conflict(seen: &Seen, service: &Service, is_ours: bool) -> Option<String> {
    let name = service.name_any();
    let remedy = "choose another service.name in a new SharedVolume, or delete that Service";
    if is_ours {
        return addresses(service).is_empty().then(|| format!("Service {name} is headless: delete it"));
    }
    if let Some(other) = objects::owner_label(&service.metadata) {
        return Some(format!("Service {name} belongs to SharedVolume {other}: {remedy}"));
    }
    if !objects::may_be_adopted(&service.metadata) {
        return Some(format!(
            "Service {name} was made by somebody else: {remedy}, or allow it to be taken over with the annotation \
             {ADOPT_ANNOTATION}: \"true\""
        ));
    }
    if !service.spec.selector.is_empty() {
        return Some(format!("Service {name} has a selector, so others write its endpoints: remove it, or {remedy}"));
    }
    let wanted = seen.shared_volume.spec.service.type_.as_str();
    let is = service.spec.type_.as_deref().unwrap_or("ClusterIP");
    if is != wanted {
        return Some(format!("Service {name} is of type {is}, not {wanted}: {remedy}"));
    }
    addresses(service).is_empty().then(|| format!("Service {name} is headless: {remedy}"))
}

/// The recorded addresses must stay. A second family may come or go.
fn lost_address(seen: &Seen, service: &Service) -> Option<Finding> {
    let recorded = seen.status()?.service.as_ref()?.cluster_ips.first()?;
    let is = service.spec.cluster_ips.first()?;
    if recorded == is || seen.shared_volume.spec.service.cluster_ip_policy == ClusterIpPolicy::Any {
        return None;
    }
    let message = format!(
        "Service {} has address {is}, and clients mount {recorded}: delete it, so that it is made anew with that \
         address, or set service.clusterIPPolicy to Any and mount anew",
        service.name_any()
    );
    Some(Finding::no("ClusterIPLost", message))
}

/// Its addresses; a headless one has none.
pub fn addresses(service: &Service) -> Vec<IpAddr> {
    service.spec.cluster_ips.iter().filter_map(|ip| ip.parse().ok()).collect()
}

/// Its families, in order.
pub fn families(service: &Service) -> Vec<IpFamily> {
    addresses(service).into_iter().map(IpFamily::of).collect()
}

/// What the status says of it.
pub fn identity(service: &Service) -> ServiceIdentity {
    ServiceIdentity {
        name: service.name_any(),
        uid: service.uid().unwrap_or_default(),
        cluster_ips: service.spec.cluster_ips.clone(),
    }
}

/// The fields that we want. `before` is the one that is there, whose target ports stay; a new one leads to `server`.
fn desired(seen: &Seen, claim: &ClaimIdentity, server: Option<&Server>, before: Option<&Service>) -> core::Service {
    let (shared_volume, spec) = (&seen.shared_volume, &seen.shared_volume.spec.service);
    let target = |port: &ServicePort| {
        if spec.endpoints != EndpointObjects::EndpointSliceAndEndpoints {
            return None;
        }
        let leads =
            server.and_then(|server| server.ports.get(&port.name)).map(|number| IntOrString::Int((*number).into()));
        let led = || before?.spec.ports.iter().find(|it| it.port == i32::from(port.port))?.target_port.clone();
        leads.or_else(led)
    };
    let port = |port: &ServicePort| core::ServicePort {
        name: Some(port.name.clone()),
        port: port.port.into(),
        protocol: Some(port.protocol.unwrap_or_default().as_str().to_owned()),
        target_port: target(port),
        ..core::ServicePort::default()
    };
    let mut labels = spec.labels.clone();
    labels.extend([objects::label_of(shared_volume)]);
    core::Service {
        metadata: ObjectMeta {
            name: Some(objects::service_name(shared_volume)),
            namespace: shared_volume.namespace(),
            uid: before.and_then(ResourceExt::uid),
            labels: Some(labels),
            annotations: Some(spec.annotations.clone()).filter(|annotations| !annotations.is_empty()),
            owner_references: Some(vec![objects::owner(
                "PersistentVolumeClaim",
                &shared_volume.spec.claim_name,
                &claim.uid,
            )]),
            ..ObjectMeta::default()
        },
        spec: Some(core::ServiceSpec {
            type_: Some(spec.type_.as_str().to_owned()),
            ip_family_policy: Some(spec.ip_family_policy.as_str().to_owned()),
            ip_families: spec.ip_families.as_ref().map(|all| all.iter().map(|it| it.as_str().to_owned()).collect()),
            ports: Some(spec.ports.iter().map(port).collect()),
            ..core::ServiceSpec::default()
        }),
        ..core::Service::default()
    }
}

/// The Service with the server's ports as its target ports; nothing if it has them. Only with v1 Endpoints: whoever reads
/// those expects it.
pub fn retarget(seen: &Seen, service: &Service, claim: &ClaimIdentity, server: &Server) -> Option<Effect> {
    if seen.shared_volume.spec.service.endpoints != EndpointObjects::EndpointSliceAndEndpoints {
        return None;
    }
    let leads = |port: &slim::ServicePort| {
        let number = port.name.as_ref().and_then(|name| server.ports.get(name));
        number.is_none_or(|number| port.target_port == Some(IntOrString::Int((*number).into())))
    };
    if service.spec.ports.iter().all(leads) {
        return None;
    }
    let service = Box::new(desired(seen, claim, Some(server), Some(service)));
    Some(Effect::ApplyService { service, create: false })
}

/// But for their targets: these follow the server.
fn same_ports(present: &[slim::ServicePort], wanted: &[core::ServicePort]) -> bool {
    let same = |(present, wanted): (&slim::ServicePort, &core::ServicePort)| {
        let protocol = present.protocol.as_deref().unwrap_or("TCP");
        present.name == wanted.name && present.port == wanted.port && Some(protocol) == wanted.protocol.as_deref()
    };
    present.len() == wanted.len() && present.iter().zip(wanted).all(same)
}

fn has(service: &Service, wanted: &core::Service) -> bool {
    let meta = &wanted.metadata;
    let has_labels = meta.labels.as_ref().is_none_or(|it| objects::has_all(service.metadata.labels.as_ref(), it));
    let annotations = service.metadata.annotations.as_ref();
    let has_annotations = meta.annotations.as_ref().is_none_or(|it| objects::has_all(annotations, it));
    let has_owners = meta.owner_references.iter().flatten().all(|owner| objects::has_owner(&service.metadata, owner));
    let spec = wanted.spec.as_ref();
    let is_type = spec.is_none_or(|spec| spec.type_ == service.spec.type_);
    let is_policy = spec.is_none_or(|spec| spec.ip_family_policy == service.spec.ip_family_policy);
    has_labels && has_annotations && has_owners && is_type && is_policy
}
