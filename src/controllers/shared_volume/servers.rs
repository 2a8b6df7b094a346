//! Which servers there are, whoever names them: the spec, a provider, or pods. Pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use crate::api::endpoint::Endpoint;
use crate::api::provider_volume::{Observation, ProviderVolume};
use crate::api::shared_volume::{
    ActiveServer, Candidate, IpFamily, PodsBackend, ProbeType, ProviderBackend, ServicePort, SharedVolumeSpec,
    StaticBackend, TargetPort,
};
use crate::api::slim::network::ServerPod;
use crate::api::time;

use super::decide::{Answer, Seen, Target};
use super::status::Finding;

/// A server that the Service can lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Candidate, pod or provider.
    pub name: String,
    /// What a record of a switch calls it: one provider reports many servers, so these go by their endpoint.
    pub label: String,
    /// Node, where it is known.
    pub node: Option<String>,
    /// Its addresses, of the Service's families.
    pub addresses: Vec<IpAddr>,
    /// Its ports, by the names of the Service's.
    pub ports: BTreeMap<String, u16>,
    /// Where it is asked.
    pub target: Target,
}

impl Server {
    /// As people are told of it.
    pub fn told(&self) -> String {
        format!("{} ({})", self.name, SocketAddr::new(self.target.address, self.target.port))
    }

    /// Whether the status tells of this one.
    pub fn is(&self, active: &ActiveServer) -> bool {
        self.name == active.name && self.addresses == active.addresses && self.target.port == active.port
    }
}

/// How a server is, as far as the prober knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It answers, or nobody asks.
    Serving,
    /// It was not asked often enough to tell.
    Unsettled,
    /// It does not answer.
    Lost,
}

/// How a server is.
pub fn health(seen: &Seen, server: &Server) -> Health {
    let threshold = seen.shared_volume.spec.probe.failure_threshold;
    match seen.answers.get(&server.target) {
        _ if server.target.probe == ProbeType::None => Health::Serving,
        Some(Answer::Serving { .. }) => Health::Serving,
        Some(Answer::Failing { failures, .. }) if *failures >= threshold => Health::Lost,
        Some(Answer::Failing { .. } | Answer::Pending { .. }) | None => Health::Unsettled,
    }
}

/// What there is to choose from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Servers, the preferred ones first.
    pub servers: Vec<Server>,
    /// What is wrong with the backend.
    pub trouble: Option<Finding>,
    /// Nobody can tell: what is there stays as it is.
    pub is_unknown: bool,
    /// What cannot be reached through the Service.
    pub out_of_family: Option<String>,
}

impl Offer {
    fn of(servers: Vec<Server>) -> Self {
        Self { servers, ..Self::default() }
    }

    fn trouble(finding: Finding) -> Self {
        Self { trouble: Some(finding), ..Self::default() }
    }
}

/// The servers of the backend that have an address of these families; without families: of any.
pub fn offered(seen: &Seen, families: &[IpFamily]) -> Offer {
    let spec = &seen.shared_volume.spec;
    let offer = match (&spec.backend.static_, &spec.backend.provider, &spec.backend.pods) {
        (Some(backend), _, _) => of_static(spec, backend),
        (_, Some(backend), _) => of_provider(seen, backend),
        (_, _, Some(backend)) => of_pods(seen, backend),
        (None, None, None) => invalid("backend has none of static, provider and pods: set one".to_owned()),
    };
    in_families(offer, families)
}

fn in_families(mut offer: Offer, families: &[IpFamily]) -> Offer {
    if families.is_empty() {
        return offer;
    }
    for server in &mut offer.servers {
        server.addresses.retain(|address| families.contains(&IpFamily::of(*address)));
        match server.addresses.first() {
            Some(address) => server.target.address = *address,
            None => {
                let names: Vec<_> = families.iter().map(|family| family.as_str()).collect();
                let text = format!("{} has no {} address, as the Service has", server.told(), names.join(" or "));
                offer.out_of_family.get_or_insert(text);
            }
        }
    }
    offer.servers.retain(|server| !server.addresses.is_empty());
    offer
}

fn invalid(message: String) -> Offer {
    Offer::trouble(Finding::no("BackendInvalid", message))
}

fn of_static(spec: &SharedVolumeSpec, backend: &StaticBackend) -> Offer {
    let servers: Result<Vec<_>, _> = backend.candidates.iter().map(|candidate| of_candidate(spec, candidate)).collect();
    match servers {
        Ok(servers) if servers.is_empty() => invalid("backend.static.candidates is empty: add a server".to_owned()),
        Ok(servers) => Offer::of(servers),
        Err(message) => invalid(message),
    }
}

fn of_candidate(spec: &SharedVolumeSpec, candidate: &Candidate) -> Result<Server, String> {
    let place = format!("backend.static.candidates[{}]", candidate.name);
    let port_of = |port: &ServicePort| {
        let found = candidate.ports.iter().find(|it| it.name == port.name).map(|it| (port.name.clone(), it.port));
        found.ok_or_else(|| format!("{place}.ports has no {0}: add it, or take {0} from service.ports", port.name))
    };
    let ports = spec.service.ports.iter().map(port_of).collect::<Result<BTreeMap<_, _>, _>>()?;
    for address in &candidate.addresses {
        strict(*address, 1).map_err(|error| format!("{place}.addresses: {error}"))?;
    }
    let server = server(spec, &candidate.name, candidate.node_name.clone(), &candidate.addresses, ports);
    server.ok_or_else(|| format!("{place} has no address, or no port {}: add it", spec.mount_port))
}

/// What is written into slices follows the rules of what a provider reports.
fn strict(address: IpAddr, port: u16) -> Result<Endpoint, String> {
    Endpoint { address, port }
        .to_string()
        .parse()
        .map_err(|error: crate::api::endpoint::InvalidEndpoint| error.to_string())
}

fn server(
    spec: &SharedVolumeSpec,
    name: &str,
    node: Option<String>,
    addresses: &[IpAddr],
    ports: BTreeMap<String, u16>,
) -> Option<Server> {
    let (address, port) = (*addresses.first()?, *ports.get(&spec.mount_port)?);
    Some(Server {
        name: name.to_owned(),
        label: name.to_owned(),
        node,
        addresses: addresses.to_vec(),
        ports,
        target: Target { address, port, probe: spec.probe.type_ },
    })
}

fn of_provider(seen: &Seen, backend: &ProviderBackend) -> Offer {
    let (provider, volume) = (&backend.name, &backend.volume_id);
    let unknown = |why: &str| {
        let message = format!("SharedVolumeProvider {provider} {why}: see its conditions");
        Some(Finding::unknown("ProviderUnreachable", message))
    };
    match &seen.observation {
        None | Some(Observation::NotPolled) => Offer { trouble: unknown("has not reported yet"), ..as_recorded(seen) },
        Some(Observation::Unreachable(None)) => Offer { trouble: unknown("does not answer"), ..as_recorded(seen) },
        Some(Observation::Gone) => Offer::trouble(Finding::no(
            "ProviderVolumeGone",
            format!("{provider} has no volume {volume} any more; the address is kept until this object is deleted"),
        )),
        Some(Observation::Unreachable(Some(report))) => {
            let offer = of_report(seen, backend, report);
            let trouble = offer.trouble.clone().or_else(|| unknown("does not answer"));
            Offer { trouble, ..offer }
        }
        Some(Observation::Reported(report)) => of_report(seen, backend, report),
    }
}

/// The server that served when the provider was heard last.
fn as_recorded(seen: &Seen) -> Offer {
    let spec = &seen.shared_volume.spec;
    let recorded = seen.status().and_then(|status| status.active.as_ref());
    let server = recorded.and_then(|active| {
        let server =
            server(spec, &active.name, active.node_name.clone(), &active.addresses, reported(spec, active.port))?;
        Some(Server { label: SocketAddr::new(*active.addresses.first()?, active.port).to_string(), ..server })
    });
    Offer { is_unknown: server.is_none(), ..Offer::of(server.into_iter().collect()) }
}

/// A provider reports the port of NFS alone: the others have the same number everywhere.
fn reported(spec: &SharedVolumeSpec, number: u16) -> BTreeMap<String, u16> {
    let port = |port: &ServicePort| (port.name.clone(), if port.name == spec.mount_port { number } else { port.port });
    spec.service.ports.iter().map(port).collect()
}

fn of_report(seen: &Seen, backend: &ProviderBackend, report: &ProviderVolume) -> Offer {
    let Some(endpoint) = &report.endpoint else {
        let message = format!("{} reports no endpoint for volume {}", backend.name, backend.volume_id);
        return Offer::trouble(Finding::no("NoCandidateServes", message));
    };
    let endpoint: Endpoint = match endpoint.parse() {
        Ok(endpoint) => endpoint,
        Err(error) => return invalid(format!("{} reports for volume {}: {error}", backend.name, backend.volume_id)),
    };
    let spec = &seen.shared_volume.spec;
    let ports = reported(spec, endpoint.port);
    match server(spec, &backend.name, None, &[endpoint.address], ports) {
        Some(server) => Offer::of(vec![Server { label: endpoint.to_string(), ..server }]),
        None => invalid(format!("service.ports has no {}, which mountPort names: add it", spec.mount_port)),
    }
}

/// Ready pods, the oldest first.
fn of_pods(seen: &Seen, backend: &PodsBackend) -> Offer {
    let spec = &seen.shared_volume.spec;
    let mut ready: Vec<_> = seen.pods.iter().filter(|pod| pod.is("Ready") && !pod.is_terminating()).collect();
    ready.sort_by_cached_key(|pod| {
        let meta = &pod.metadata;
        (meta.creation_timestamp.as_ref().map(time::from_k8s), meta.name.clone())
    });
    let found: Vec<_> = ready.iter().map(|pod| of_pod(spec, backend, pod)).collect();
    let servers: Vec<_> = found.iter().filter_map(|found| found.as_ref().ok().cloned()).collect();
    if !servers.is_empty() {
        return Offer::of(servers);
    }
    let why = found.into_iter().find_map(Result::err);
    let message = why.unwrap_or_else(|| "no pod with the labels of backend.pods.matchLabels is Ready".to_owned());
    Offer::trouble(Finding::no("NoPodReady", message))
}

fn of_pod(spec: &SharedVolumeSpec, backend: &PodsBackend, pod: &ServerPod) -> Result<Server, String> {
    let name = pod.metadata.name.clone().unwrap_or_default();
    let number =
        |port: &ServicePort| match backend.ports.iter().find(|it| it.name == port.name).map(|it| &it.target_port) {
            None => Ok((port.name.clone(), port.port)),
            Some(TargetPort::Number(number)) => Ok((port.name.clone(), *number)),
            Some(TargetPort::Name(wanted)) => {
                let number = pod.port_named(wanted).ok_or_else(|| {
                    format!(
                        "pod {name} has no container port {wanted}, which backend.pods.ports names for {}",
                        port.name
                    )
                })?;
                Ok((port.name.clone(), number))
            }
        };
    let ports = spec.service.ports.iter().map(number).collect::<Result<BTreeMap<_, _>, String>>()?;
    let addresses = pod.addresses();
    let server = server(spec, &name, pod.spec.node_name.clone(), &addresses, ports);
    server.ok_or_else(|| format!("pod {name} has no address yet, or service.ports no {}", spec.mount_port))
}
