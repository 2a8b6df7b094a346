//! An API server, a provider and NFS servers in memory, for one SharedVolume. What its writes do is in `writes`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::provider_volume::{Observation, ProviderVolume};
use crate::api::shared_volume::{ProbeType, SharedVolume, SharedVolumePhase, SharedVolumeStatus};
use crate::api::slim::PersistentVolumeClaim;
use crate::api::slim::network::{EndpointSlice, Endpoints, ServerPod, Service};
use crate::api::time::{self, Now};
use crate::controllers::testing::{later, now};

use super::super::decide::{self, Answer, Decision, Effect, Intervals, Memory, Seen};

#[derive(Clone, Debug)]
pub struct World {
    pub shared_volume: Option<SharedVolume>,
    pub rivals: Vec<SharedVolume>,
    pub claim: Option<PersistentVolumeClaim>,
    pub service: Option<Service>,
    pub slices: BTreeMap<String, EndpointSlice>,
    pub endpoints: Option<Endpoints>,
    pub pods: Vec<ServerPod>,
    pub volume: Option<ProviderVolume>,
    /// Whether the provider answers.
    pub is_reachable: bool,
    pub fenced: BTreeSet<String>,
    /// Fenced nodes that are not proved to be cut off.
    pub unproved: BTreeSet<String>,
    /// Addresses at which a server answers.
    pub alive: BTreeSet<String>,
    pub answers: BTreeMap<decide::Target, Answer>,
    pub memory: Memory,
    pub intervals: Intervals,
    pub now: Now,
    /// An address that somebody else took.
    pub taken: Option<String>,
    /// Whether watches show what is created.
    pub shows_services: bool,
    /// Writes that were taken.
    pub writes: Vec<&'static str>,
    pub notes: Vec<&'static str>,
    pub(super) version: u64,
    pub(super) addresses: u8,
}

/// A SharedVolume of two candidates, `a` on node-a at 10.0.0.1 and `b` on node-b at 10.0.0.2, with changes.
pub fn shared_volume(changes: &Value) -> SharedVolume {
    let candidate = |name: &str, address: &str| {
        json!({
            "name": name, "nodeName": format!("node-{name}"), "addresses": [address],
            "ports": [{ "name": "nfs", "port": 20490 }],
        })
    };
    let candidates = [candidate("a", "10.0.0.1"), candidate("b", "10.0.0.2")];
    let mut whole = json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "SharedVolume",
        "metadata": {
            "name": "media", "namespace": "web", "uid": "uid-shv", "generation": 1, "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": { "claimName": "media", "backend": { "static": { "candidates": candidates } } },
    });
    json_patch::merge(&mut whole, changes);
    serde_json::from_value(whole).unwrap()
}

/// The same for a provider that reports 10.0.0.1:20490.
pub fn of_provider(changes: &Value) -> World {
    let mut whole = json!({ "spec": { "backend": {
        "static": null, "provider": { "name": "stos", "volumeID": "vol-1" },
    } } });
    json_patch::merge(&mut whole, changes);
    let mut world = World::of(&whole);
    world.volume = Some(ProviderVolume {
        id: "vol-1".into(),
        namespace_id: "ns-1".into(),
        version: "v1".into(),
        endpoint: Some("10.0.0.1:20490".into()),
        health: "online".into(),
        volume_name: "pv-1".into(),
        claim_name: "media".into(),
        claim_namespace: "web".into(),
        mount_endpoint: String::new(),
    });
    world
}

pub fn pod(name: &str, address: &str, age: &str) -> ServerPod {
    serde_json::from_value(json!({
        "metadata": { "name": name, "uid": format!("uid-{name}"), "creationTimestamp": format!("2026-01-{age}T00:00:00Z") },
        "spec": { "nodeName": format!("node-{name}"), "containers": [{ "ports": [{ "name": "nfs-port", "containerPort": 20490 }] }] },
        "status": { "podIPs": [{ "ip": address }], "conditions": [{ "type": "Ready", "status": "True" }] },
    }))
    .unwrap()
}

impl World {
    pub fn of(changes: &Value) -> Self {
        let claim = json!({
            "metadata": { "name": "media", "namespace": "web", "uid": "uid-claim", "resourceVersion": "1" },
            "spec": { "volumeName": "pv-1" }, "status": { "phase": "Bound" },
        });
        Self {
            shared_volume: Some(shared_volume(changes)),
            rivals: Vec::new(),
            claim: Some(serde_json::from_value(claim).unwrap()),
            service: None,
            slices: BTreeMap::new(),
            endpoints: None,
            pods: Vec::new(),
            volume: None,
            is_reachable: true,
            fenced: BTreeSet::new(),
            unproved: BTreeSet::new(),
            alive: ["10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1", "fd00::2"].map(str::to_owned).into(),
            answers: BTreeMap::new(),
            memory: Memory::default(),
            intervals: Intervals::default(),
            now: now(),
            taken: None,
            shows_services: true,
            writes: Vec::new(),
            notes: Vec::new(),
            version: 1,
            addresses: 6,
        }
    }

    /// It serves.
    pub fn serving(changes: &Value) -> Self {
        let mut world = Self::of(changes);
        world.converge();
        world.writes.clear();
        world.notes.clear();
        world
    }

    pub fn spec(&mut self) -> &mut crate::api::shared_volume::SharedVolumeSpec {
        let it = self.shared_volume.as_mut().unwrap();
        it.metadata.generation = it.metadata.generation.map(|generation| generation + 1);
        &mut it.spec
    }

    pub fn status(&self) -> SharedVolumeStatus {
        self.shared_volume.as_ref().and_then(|it| it.status.clone()).unwrap_or_default()
    }

    pub fn phase(&self) -> SharedVolumePhase {
        self.status().phase.unwrap()
    }

    /// Status and reason of a condition.
    pub fn condition(&self, type_: &str) -> Option<(String, String)> {
        let condition = self.status().conditions.into_iter().find(|it| it.type_ == type_)?;
        Some((condition.status, condition.reason))
    }

    pub fn reason(&self, type_: &str) -> String {
        self.condition(type_).unwrap_or_else(|| panic!("no {type_}: {:?}", self.status().conditions)).1
    }

    /// Addresses in our slices.
    pub fn leads_to(&self) -> Vec<String> {
        self.slices.values().flat_map(|slice| &slice.endpoints).flat_map(|it| it.addresses.clone()).collect()
    }

    pub fn ip(&self) -> String {
        self.service.as_ref().unwrap().spec.cluster_ips[0].clone()
    }

    pub fn wait(&mut self, seconds: f64) {
        self.now = later(self.now, seconds);
    }

    pub fn observation(&self) -> Option<Observation> {
        self.shared_volume.as_ref()?.spec.backend.provider.as_ref()?;
        Some(match &self.volume {
            None => Observation::Gone,
            Some(volume) if self.is_reachable => Observation::Reported(Arc::new(volume.clone())),
            Some(volume) => Observation::Unreachable(Some(Arc::new(volume.clone()))),
        })
    }

    /// What observe gives.
    pub fn seen(&self) -> Option<Seen> {
        Some(Seen {
            shared_volume: Arc::new(self.shared_volume.clone()?),
            rivals: self.rivals.iter().cloned().map(Arc::new).collect(),
            claim: self.claim.clone().map(Arc::new),
            service: self.service.clone().filter(|_| self.shows_services).map(Arc::new),
            slices: self.slices.values().cloned().map(Arc::new).collect(),
            endpoints: self.endpoints.clone().map(Arc::new),
            pods: self.pods.iter().cloned().map(Arc::new).collect(),
            observation: self.observation(),
            fenced_nodes: self.fenced.clone(),
            unproved_nodes: self.unproved.clone(),
            answers: self.answers.clone(),
            memory: self.memory.clone(),
            intervals: self.intervals,
            cluster_domain: "cluster.local".into(),
        })
    }

    pub fn decide(&self) -> Decision {
        decide::decide(&self.seen().unwrap(), self.now)
    }

    /// One pass that dies after so many writes.
    pub fn pass(&mut self, writes: usize) -> Decision {
        let Some(seen) = self.seen() else { return Decision::default() };
        let decision = decide::decide(&seen, self.now);
        self.probes(&decision);
        let until = self.writes.len().saturating_add(writes);
        for effect in &decision.effects {
            if self.apply(effect, until).is_err() {
                return decision;
            }
        }
        self.memory = decision.memory.clone();
        self.notes.extend(decision.notes.iter().map(|note| note.reason));
        decision
    }

    /// A new process: what was only remembered is gone.
    pub fn restart(&mut self) {
        self.memory = Memory::default();
        self.answers.clear();
    }

    fn probes(&mut self, decision: &Decision) {
        self.answers.retain(|target, _| decision.probes.contains(target));
        for target in &decision.probes {
            assert_ne!(target.probe, ProbeType::None);
            self.answers.entry(*target).or_insert(Answer::Pending { since: self.now.mono });
        }
    }

    /// Everybody is asked once.
    pub fn probe(&mut self) {
        let now = self.now;
        for (target, answer) in &mut self.answers {
            let serves = self.alive.contains(&target.address.to_string());
            *answer = match (serves, &*answer) {
                (true, Answer::Serving { .. }) => continue,
                (true, _) => Answer::Serving { since: now.mono, at: now.wall },
                (false, Answer::Failing { since, failures, .. }) => {
                    Answer::Failing { since: *since, failures: failures + 1, error: "refused".into() }
                }
                (false, _) => Answer::Failing { since: now.mono, failures: 1, error: "refused".into() },
            };
        }
    }

    /// Passes until nothing is left to do now.
    pub fn settle(&mut self) {
        for _ in 0..30 {
            let decision = self.pass(usize::MAX);
            if decision.effects.iter().all(|effect| matches!(effect, Effect::Verify)) {
                return;
            }
        }
        panic!("it does not come to rest: {:#?}", self.decide());
    }

    /// Passes and answers, until nothing happens any more.
    pub fn converge(&mut self) {
        for _ in 0..12 {
            self.settle();
            self.probe();
            self.settle();
            self.wait(5.0);
        }
    }

    pub fn fence(&mut self, node: &str) {
        self.fenced.insert(node.to_owned());
    }

    pub fn dies(&mut self, address: &str) {
        self.alive.remove(address);
    }

    pub fn lives(&mut self, address: &str) {
        self.alive.insert(address.to_owned());
    }

    /// The active one fails often enough.
    pub fn fails(&mut self) {
        for _ in 0..3 {
            self.probe();
            self.wait(1.0);
        }
    }

    pub fn deleted(&mut self) {
        let now = time::to_k8s(self.now.wall);
        if let Some(it) = &mut self.shared_volume {
            it.metadata.deletion_timestamp = Some(now);
        }
    }

    /// A slice that somebody else fills.
    pub fn intrudes(&mut self, name: &str) {
        let slice = json!({
            "metadata": {
                "name": name, "uid": name, "resourceVersion": "1", "labels": { "kubernetes.io/service-name": "media" },
            },
            "addressType": "IPv4", "endpoints": [{ "addresses": ["10.9.9.9"] }],
        });
        self.slices.insert(name.to_owned(), serde_json::from_value(slice).unwrap());
    }
}
