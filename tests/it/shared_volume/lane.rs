//! What one test has for itself: a namespace of its name, and volumes whose names begin with it.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use bulkhead::api::conditions;
use bulkhead::api::shared_volume::{SharedVolume, SharedVolumeStatus};
use bulkhead_testbed::Identity;
use bulkhead_testbed::audit::Record;
use bulkhead_testbed::cluster::{ClusterError, merge};
use bulkhead_testbed::nfs_server::{Mode, Server};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Endpoints, Namespace, PersistentVolume, PersistentVolumeClaim, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use libtest_mimic::Failed;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::union::Serving;
use super::world::{SOON, World};

/// One test's part of the cluster.
pub struct Lane<'a> {
    pub world: &'a World,
    pub name: String,
}

impl<'a> Lane<'a> {
    pub async fn new(world: &'a World, name: &str) -> Result<Self, Failed> {
        let lane = Self { world, name: name.to_owned() };
        lane.create::<Namespace>(None, json!({ "metadata": { "name": name } })).await?;
        Ok(lane)
    }

    pub fn client(&self) -> Client {
        self.world.admin.clone()
    }

    /// Objects of this namespace.
    pub fn all<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.client(), &self.name)
    }

    /// Creates an object; what is said only is sent, as by kubectl.
    pub async fn create<K>(&self, namespace: Option<&str>, mut object: Value) -> Result<K, Failed>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
    {
        object["apiVersion"] = K::api_version(&()).into();
        object["kind"] = K::kind(&()).into();
        let request = kube::core::Request::new(K::url_path(&(), namespace));
        Ok(self.client().request(request.create(&PostParams::default(), serde_json::to_vec(&object)?)?).await?)
    }

    /// Creates an object in this namespace.
    pub async fn here<K>(&self, object: Value) -> Result<K, Failed>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
    {
        self.create(Some(&self.name), object).await
    }

    /// Changes an object of this namespace, as by kubectl.
    pub async fn patch<K>(&self, name: &str, patch: Value) -> Result<K, Failed>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        Ok(self.all::<K>().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?)
    }

    /// Deletes an object of this namespace, if it is there.
    pub async fn delete<K>(&self, name: &str) -> Result<(), Failed>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        match self.all::<K>().delete(name, &DeleteParams::default()).await {
            Err(kube::Error::Api(gone)) if gone.code == 404 => Ok(()),
            deleted => Ok(deleted.map(drop)?),
        }
    }

    /// A server of this test.
    pub async fn server(&self, mode: Mode) -> Result<Server, Failed> {
        Ok(Server::start(self.world.here, mode).await?)
    }

    /// The PersistentVolume behind a claim of this lane.
    pub fn volume_name(&self, claim: &str) -> String {
        format!("{}-{claim}", self.name)
    }

    /// A claim of this name with its volume.
    pub async fn claim(&self, claim: &str) -> Result<PersistentVolumeClaim, Failed> {
        self.volume_of(claim).await?;
        self.unbound_claim(claim, &self.volume_name(claim)).await?;
        self.bound(claim).await
    }

    /// The PersistentVolume that waits for the claim of this name.
    pub async fn volume_of(&self, claim: &str) -> Result<PersistentVolume, Failed> {
        let name = self.volume_name(claim);
        let spec = json!({
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteMany"], "storageClassName": "",
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": { "kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": self.name, "name": claim },
            "csi": { "driver": "csi.storage.example.com", "volumeHandle": name },
        });
        self.create(None, json!({ "metadata": { "name": name }, "spec": spec })).await
    }

    /// What is created from now on is younger: the API server counts in whole seconds.
    pub async fn next_second(&self) {
        let now = chrono::Utc::now().timestamp();
        while chrono::Utc::now().timestamp() == now {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// A claim that wants the volume of this name.
    pub async fn unbound_claim(&self, claim: &str, volume: &str) -> Result<PersistentVolumeClaim, Failed> {
        let spec = json!({
            "accessModes": ["ReadWriteMany"], "volumeName": volume, "storageClassName": "",
            "resources": { "requests": { "storage": "1Gi" } },
        });
        self.here(json!({ "metadata": { "name": claim }, "spec": spec })).await
    }

    pub async fn bound(&self, claim: &str) -> Result<PersistentVolumeClaim, Failed> {
        let is_bound = |claim: &PersistentVolumeClaim| {
            claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
        };
        self.wait_for(claim, "bound", SOON, is_bound).await
    }

    /// A SharedVolume for the claim of its name. `spec` is merged into what all of them have here: probes that notice soon.
    pub async fn volume(&self, name: &str, spec: Value) -> Result<SharedVolume, Failed> {
        let mut whole = json!({
            "claimName": name, "failover": { "holdDown": "0s" },
            "probe": { "period": "1s", "timeout": "500ms", "failureThreshold": 2 },
        });
        merge(&mut whole, &spec);
        self.here(json!({ "metadata": { "name": name }, "spec": whole })).await
    }

    /// Claim and SharedVolume of one name for these servers, called `a`, `b` and so on, on nodes `node-a` and so on.
    pub async fn served_by(&self, name: &str, servers: &[&Server], spec: Value) -> Result<(), Failed> {
        self.claim(name).await?;
        let mut whole = candidates(servers);
        merge(&mut whole, &spec);
        self.volume(name, whole).await?;
        Ok(())
    }

    /// The same when it serves.
    pub async fn serving(&self, name: &str, servers: &[&Server], spec: Value) -> Result<SharedVolume, Failed> {
        self.served_by(name, servers, spec).await?;
        self.ready(name).await
    }

    /// Waits until a SharedVolume serves.
    pub async fn ready(&self, name: &str) -> Result<SharedVolume, Failed> {
        self.status(name, "Ready", |status| is(status, "Ready", "True", "Serving")).await
    }

    /// Waits until this server is the active one, in the status and to clients.
    pub async fn active(&self, name: &str, server: &Server) -> Result<SharedVolume, Failed> {
        let port = server.port();
        let what = format!("{port} is active");
        let volume = self
            .status(name, &what, |status| {
                status.active.as_ref().is_some_and(|active| active.port == port)
                    && is(status, "Ready", "True", "Serving")
            })
            .await?;
        // The garbage collector takes the slices of a Service that was deleted: they come back a moment after it.
        self.sent_to(&service_of(&volume), &[port]).await?;
        Ok(volume)
    }

    /// Waits until clients are sent to these ports.
    pub async fn sent_to(&self, service: &str, ports: &[u16]) -> Result<(), Failed> {
        let wanted: Serving = ports.iter().map(|port| i32::from(*port)).collect();
        self.eventually(&format!("{service} leads to {ports:?}"), async || {
            let found = self.serves(service).await?;
            Ok(if found == wanted { Ok(()) } else { Err(format!("{found:?}")) })
        })
        .await
    }

    /// Waits until the status of a SharedVolume is as `holds` wants it.
    pub async fn status(
        &self,
        name: &str,
        what: &str,
        holds: impl Fn(&SharedVolumeStatus) -> bool,
    ) -> Result<SharedVolume, Failed> {
        self.wait_for(name, what, SOON, |volume: &SharedVolume| volume.status.as_ref().is_some_and(&holds)).await
    }

    /// Waits until a condition has this status and reason.
    pub async fn condition(&self, name: &str, type_: &str, status: &str, reason: &str) -> Result<SharedVolume, Failed> {
        self.status(name, &format!("{type_}={status} {reason}"), |found| is(found, type_, status, reason)).await
    }

    /// Waits until an object of this namespace is as `holds` wants it.
    pub async fn wait_for<K>(
        &self,
        name: &str,
        what: &str,
        limit: Duration,
        holds: impl Fn(&K) -> bool,
    ) -> Result<K, Failed>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Serialize,
    {
        let api = self.all::<K>();
        let look = async || {
            Ok(match api.get_opt(name).await? {
                Some(found) if holds(&found) => Ok(found),
                other => Err(serde_json::to_string(&other.map(unmanaged))?),
            })
        };
        let what = format!("{}: {} {name}: {what}", self.name, K::kind(&()));
        Ok(self.world.cluster.wait(&what, limit, look).await?)
    }

    /// Waits until an object of this namespace is gone.
    pub async fn gone<K>(&self, name: &str) -> Result<(), Failed>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Serialize,
    {
        let api = self.all::<K>();
        self.eventually(&format!("{} {name} is gone", K::kind(&())), async || {
            let found = api.get_opt(name).await?;
            Ok(if found.is_none() { Ok(()) } else { Err(serde_json::to_string(&found.map(unmanaged))?) })
        })
        .await
    }

    /// Waits until `look` says Ok.
    pub async fn eventually<T>(
        &self,
        what: &str,
        look: impl AsyncFnMut() -> Result<Result<T, String>, ClusterError>,
    ) -> Result<T, Failed> {
        Ok(self.world.cluster.wait(&format!("{}: {what}", self.name), SOON, look).await?)
    }

    /// All slices of a Service, whoever writes them.
    pub async fn slices(&self, service: &str) -> Result<Vec<EndpointSlice>, kube::Error> {
        let of = ListParams::default().labels(&format!("kubernetes.io/service-name={service}"));
        Ok(self.all::<EndpointSlice>().list(&of).await?.items)
    }

    /// The ports of all ready endpoints of a Service.
    pub async fn serves(&self, service: &str) -> Result<BTreeSet<i32>, kube::Error> {
        let slices = self.slices(service).await?;
        let ports = |slice: &EndpointSlice| {
            let ready = slice.endpoints.iter().any(|it| it.conditions.as_ref().and_then(|it| it.ready) != Some(false));
            let port = slice.ports.iter().flatten().find_map(|port| port.port);
            port.filter(|_| ready)
        };
        Ok(slices.iter().filter_map(ports).collect())
    }

    /// How the union of a Service's slices changed, from the first on.
    pub fn history(&self, service: &str) -> Vec<Vec<u16>> {
        let ports = |serving: &Serving| serving.iter().filter_map(|port| u16::try_from(*port).ok()).collect();
        self.world.union.history(&self.name, service).iter().map(ports).collect()
    }

    pub async fn service(&self, name: &str) -> Result<Service, Failed> {
        Ok(self.all::<Service>().get(name).await?)
    }

    pub async fn endpoints(&self, name: &str) -> Result<Endpoints, Failed> {
        Ok(self.all::<Endpoints>().get(name).await?)
    }

    /// Writes of the controller in this namespace since the audit log ended there.
    pub fn writes_since(&self, end: u64) -> std::io::Result<Vec<Record>> {
        let us = Identity::OperatorController.user();
        let ours = |it: &Record| it.user == us && it.is_write() && it.namespace == self.name && it.resource != "events";
        Ok(self.world.cluster.testbed.audit().records_since(end)?.filter(ours).collect())
    }

    /// Waits until our controller told this of an object; returns the words.
    pub async fn told(&self, kind: &str, name: &str, reason: &str) -> Result<String, Failed> {
        self.eventually(&format!("Event {reason} of {kind} {name}"), async || {
            let told = self.events(kind, name).await?;
            let found = told.iter().find(|(of, _)| of == reason).map(|(_, note)| note.clone());
            Ok(found.ok_or_else(|| format!("{told:?}")))
        })
        .await
    }

    /// Reason and words of what was told of an object.
    pub async fn events(&self, kind: &str, name: &str) -> Result<Vec<(String, String)>, kube::Error> {
        let all = self.all::<Event>().list(&ListParams::default()).await?.items;
        let about = |event: &&Event| {
            let regarding = event.regarding.as_ref();
            regarding.is_some_and(|it| it.kind.as_deref() == Some(kind) && it.name.as_deref() == Some(name))
                && event.reporting_controller.as_deref() == Some("bulkhead-controller")
        };
        let told = all.iter().filter(about);
        Ok(told.map(|it| (it.reason.clone().unwrap_or_default(), it.note.clone().unwrap_or_default())).collect())
    }

    /// The controller has seen everything that was done before: it serves a volume that comes now.
    pub async fn barrier(&self, name: &str) -> Result<(), Failed> {
        let server = self.server(Mode::Serves).await?;
        self.serving(name, &[&server], json!({})).await?;
        self.delete::<SharedVolume>(name).await?;
        self.gone::<SharedVolume>(name).await
    }

    /// No client was ever sent to two servers.
    pub fn judge(&self) -> Result<(), Failed> {
        let broken = self.world.union.broken(&self.name);
        if broken.is_empty() { Ok(()) } else { Err(format!("{}: {broken:#?}", self.name).into()) }
    }
}

/// These servers as `backend.static`.
pub fn candidates(servers: &[&Server]) -> Value {
    let candidate = |(name, server): (char, &&Server)| {
        json!({
            "name": name, "nodeName": format!("node-{name}"), "addresses": [server.address.ip()],
            "ports": [{ "name": "nfs", "port": server.port() }],
        })
    };
    let candidates: Vec<_> = ('a'..='h').zip(servers).map(candidate).collect();
    json!({ "backend": { "static": { "candidates": candidates } } })
}

/// Whether a condition has this status and reason.
pub fn is(status: &SharedVolumeStatus, type_: &str, wanted: &str, reason: &str) -> bool {
    conditions::find(&status.conditions, type_).is_some_and(|found| found.status == wanted && found.reason == reason)
}

/// Name of the Service that is recorded.
pub fn service_of(volume: &SharedVolume) -> String {
    let service = volume.status.as_ref().and_then(|status| status.service.as_ref());
    service.map(|service| service.name.clone()).unwrap_or_default()
}

/// For messages: without field ownership, which is most of an object.
fn unmanaged<K: Resource>(mut object: K) -> K {
    object.meta_mut().managed_fields = None;
    object
}

/// The addresses of a Service.
pub fn cluster_ips(service: &Service) -> Vec<String> {
    service.spec.as_ref().and_then(|spec| spec.cluster_ips.clone()).unwrap_or_default()
}

/// Uid, which each object here has.
pub fn uid<K: Resource>(object: &K) -> String {
    object.uid().unwrap_or_default()
}
