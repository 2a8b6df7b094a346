//! What a write does: versions are checked, names are unique, addresses are given out, and after every write it is asked
//! whether clients could reach two servers.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::api::shared_volume::{SharedVolumeStatus, UNPUBLISH_FINALIZER};
use crate::api::slim::network::{EndpointSlice, Endpoints, Service};

use super::super::decide::{Effect, PublishFailure, Refusal, Refused};
use super::world::World;

/// What a write was refused for, or where the process died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

fn slim<K: DeserializeOwned>(object: &impl Serialize) -> K {
    serde_json::from_value(json!(object)).unwrap()
}

impl World {
    fn written(&mut self, what: &'static str, until: usize) -> Result<(), Stopped> {
        if self.writes.len() >= until {
            return Err(Stopped);
        }
        self.writes.push(what);
        self.version += 1;
        Ok(())
    }

    fn stamped(&self, meta: &ObjectMeta, before: Option<&ObjectMeta>) -> ObjectMeta {
        let mut meta = meta.clone();
        meta.resource_version = Some(self.version.to_string());
        meta.uid = before.map_or_else(|| Some(format!("uid-{}", self.version)), |before| before.uid.clone());
        meta
    }

    /// Carries out one effect, unless so many writes were taken already.
    pub(super) fn apply(&mut self, effect: &Effect, until: usize) -> Result<(), Stopped> {
        match effect {
            Effect::Record { before, status } => {
                let version = before.metadata.resource_version.clone();
                let is_same = self.shared_volume.as_ref().is_some_and(|it| it.metadata.resource_version == version);
                if !is_same {
                    return Err(Stopped);
                }
                self.written("status", until)?;
                let version = self.version.to_string();
                // As the API server stores it.
                let status: SharedVolumeStatus = slim(status);
                if let Some(it) = &mut self.shared_volume {
                    (it.status, it.metadata.resource_version) = (Some(status), Some(version));
                }
                self.check_published();
            }
            Effect::AddFinalizer | Effect::RemoveFinalizer => {
                let wanted = *effect == Effect::AddFinalizer;
                self.written("finalizer", until)?;
                let version = self.version.to_string();
                let it = self.shared_volume.as_mut().unwrap();
                it.metadata.resource_version = Some(version);
                it.metadata.finalizers = wanted.then(|| vec![UNPUBLISH_FINALIZER.to_owned()]);
                if !wanted && it.metadata.deletion_timestamp.is_some() {
                    self.shared_volume = None;
                }
            }
            Effect::ApplyService { service, create: true } => self.create_service(service, until)?,
            Effect::ApplyService { service, .. } => {
                let before =
                    self.service.clone().filter(|it| it.metadata.uid == service.metadata.uid).ok_or(Stopped)?;
                self.written("service", until)?;
                let mut whole = json!(before);
                json_patch::merge(&mut whole, &json!(service));
                let mut after: Service = serde_json::from_value(whole).unwrap();
                after.metadata = self.stamped(&after.metadata, Some(&before.metadata));
                self.service = Some(after);
            }
            Effect::RepairService { before, ports } => {
                self.check_version(self.service.as_ref().map(|it| &it.metadata), &before.metadata)?;
                self.written("service", until)?;
                let mut after = before.as_ref().clone();
                after.spec.selector.clear();
                after.spec.ports = ports.iter().map(slim).collect();
                after.metadata = self.stamped(&after.metadata, Some(&before.metadata));
                self.service = Some(after);
            }
            Effect::DeleteService(_) => {
                self.written("service", until)?;
                self.service = None;
            }
            Effect::DisownService(before) => {
                self.written("service", until)?;
                let mut after = before.as_ref().clone();
                after.metadata.labels.as_mut().unwrap().remove(crate::api::shared_volume::SHARED_VOLUME_LABEL);
                self.service = Some(after);
            }
            Effect::WriteSlice { slice, before } => {
                let name = slice.metadata.name.clone().unwrap();
                let present = self.slices.get(&name).map(|it| it.metadata.clone());
                match before {
                    Some(before) => self.check_version(present.as_ref(), &before.metadata)?,
                    None if present.is_some() => return Err(Stopped),
                    None => {}
                }
                let nodes: Vec<_> = slice.endpoints.iter().filter_map(|it| it.node_name.clone()).collect();
                assert!(nodes.iter().all(|node| !self.fenced.contains(node)), "written to a fenced node: {nodes:?}");
                self.written("slice", until)?;
                let mut after: EndpointSlice = slim(slice);
                after.metadata = self.stamped(&after.metadata, present.as_ref());
                self.slices.insert(name, after);
                self.check_slices();
            }
            Effect::DeleteSlice(before) => {
                self.written("slice", until)?;
                self.slices.remove(before.metadata.name.as_ref().unwrap());
            }
            Effect::WriteEndpoints { endpoints, before } => {
                let present = self.endpoints.as_ref().map(|it| it.metadata.clone());
                match before {
                    Some(before) => self.check_version(present.as_ref(), &before.metadata)?,
                    None if present.is_some() => return Err(Stopped),
                    None => {}
                }
                self.written("endpoints", until)?;
                let mut after: Endpoints = slim(endpoints);
                after.metadata = self.stamped(&after.metadata, present.as_ref());
                self.endpoints = Some(after);
            }
            Effect::DeleteEndpoints(before) => {
                self.written("endpoints", until)?;
                self.endpoints = None;
                // What was copied from them goes too.
                let name = before.metadata.name.clone().unwrap();
                self.slices.remove(&format!("{name}-mirrored"));
            }
            Effect::Publish { endpoint, .. } => self.publish(endpoint, until)?,
            Effect::AnnotateClaim { endpoint, .. } => {
                self.written("claim", until)?;
                let key = crate::api::shared_volume::MOUNT_ENDPOINT_ANNOTATION.to_owned();
                let annotations = self.claim.as_mut().unwrap().metadata.annotations.get_or_insert_default();
                match endpoint {
                    Some(endpoint) => drop(annotations.insert(key, endpoint.clone())),
                    None => drop(annotations.remove(&key)),
                }
            }
            Effect::Verify => {}
        }
        Ok(())
    }

    fn publish(&mut self, endpoint: &str, until: usize) -> Result<(), Stopped> {
        if !self.is_reachable {
            let failures = self.memory.publish_failed.as_ref().map_or(0, |failure| failure.failures) + 1;
            self.memory.publish_failed = Some(PublishFailure {
                endpoint: endpoint.to_owned(),
                is_conflict: false,
                error: "no answer".into(),
                failures,
                at: self.now.mono,
            });
            return Err(Stopped);
        }
        self.written("publish", until)?;
        let version = self.version;
        let volume = self.volume.as_mut().ok_or(Stopped)?;
        volume.mount_endpoint = endpoint.to_owned();
        volume.version = format!("v{version}");
        Ok(())
    }

    fn create_service(&mut self, wanted: &k8s_openapi::api::core::v1::Service, until: usize) -> Result<(), Stopped> {
        if self.service.is_some() {
            return Err(Stopped);
        }
        let spec = wanted.spec.clone().unwrap();
        let pinned = spec.cluster_ips.clone().unwrap_or_default();
        if self.taken.is_some() && self.taken == pinned.first().cloned() {
            let what = Refused::of(["spec.clusterIPs[0]"]).unwrap();
            self.memory.refused = Some(Refusal { what, error: "already allocated".into(), at: self.now.mono });
            return Err(Stopped);
        }
        self.written("service", until)?;
        let mut service: Service = slim(wanted);
        if pinned.is_empty() {
            self.addresses += 1;
            let second = format!("fd00:96::{}", self.addresses);
            service.spec.cluster_ips = vec![format!("10.96.0.{}", self.addresses)];
            if spec.ip_families.as_ref().is_some_and(|families| families.len() == 2) {
                service.spec.cluster_ips.push(second);
            }
        }
        service.metadata = self.stamped(&service.metadata, None);
        self.service = Some(service);
        Ok(())
    }

    fn check_version(&self, present: Option<&ObjectMeta>, before: &ObjectMeta) -> Result<(), Stopped> {
        let is_same = present.is_some_and(|it| it.uid == before.uid && it.resource_version == before.resource_version);
        if is_same { Ok(()) } else { Err(Stopped) }
    }

    /// Two candidates have no address in common: 10.0.0.1 and fd00::1 are one, 10.0.0.2 and fd00::2 the other.
    fn check_slices(&self) {
        let ours = self.slices.values().filter(|slice| slice.manager() == Some("sharedvolume.bulkhead.dev"));
        let ready = ours.flat_map(|slice| &slice.endpoints).filter(|endpoint| endpoint.is_ready());
        let servers: BTreeSet<_> =
            ready.flat_map(|it| &it.addresses).filter_map(|address| address.chars().last()).collect();
        assert!(servers.len() < 2, "two servers at once: {:?}", self.leads_to());
    }

    fn check_published(&self) {
        let Some(service) = self.status().service else { return };
        for mount in self.status().mount_endpoints.iter().filter(|mount| !mount.contains("svc")) {
            let address: std::net::SocketAddr = mount.parse().unwrap();
            assert!(service.cluster_ips.contains(&address.ip().to_string()) && address.port() == 2049, "{mount}");
        }
    }
}
