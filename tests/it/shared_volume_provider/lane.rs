//! What one test has for itself.

use bulkhead::api::names::OPERATOR_NAMESPACE;
use bulkhead::api::shared_volume::SharedVolume;
use bulkhead::api::shared_volume_provider::{SharedVolumeProvider, SharedVolumeProviderStatus};
use bulkhead_testbed::storageos::{AccessMode, NewVolume, StorageOs};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::world::{World, eventually};

/// Where the first NFS server is.
pub const ENDPOINT: &str = "10.0.0.1:4711";

/// A control plane with a namespace, the Secret for it, and a Kubernetes namespace: all have the name of the test.
pub struct Lane<'a> {
    pub world: &'a World,
    pub name: String,
    pub server: StorageOs,
    /// Id of its namespace at the control plane.
    pub namespace: String,
}

impl<'a> Lane<'a> {
    pub async fn open(world: &'a World, name: &str) -> Result<Self, Failed> {
        Self::with(world, name, StorageOs::start()?).await
    }

    pub async fn with(world: &'a World, name: &str, server: StorageOs) -> Result<Self, Failed> {
        world.namespace(name, json!({ "lane": name })).await?;
        let namespace = server.volumes().create_namespace(name);
        let lane = Self { world, name: name.to_owned(), server, namespace };
        lane.secret(json!({ "username": "storageos", "password": "storageos\n" })).await?;
        Ok(lane)
    }

    /// The others are not to wait for its provider.
    pub async fn close(&self) -> Result<(), Failed> {
        match self.providers().delete(&self.name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            deleted => Ok(deleted.map(drop)?),
        }
    }

    pub fn providers(&self) -> Api<SharedVolumeProvider> {
        Api::all(self.world.admin.clone())
    }

    pub fn shared_volumes(&self) -> Api<SharedVolume> {
        Api::namespaced(self.world.admin.clone(), &self.name)
    }

    pub fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.world.admin.clone(), OPERATOR_NAMESPACE)
    }

    /// Writes the Secret anew.
    pub async fn secret(&self, data: Value) -> Result<(), Failed> {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": self.name }, "stringData": data,
        });
        self.secrets().patch(&self.name, &PatchParams::apply("test").force(), &Patch::Apply(secret)).await?;
        Ok(())
    }

    /// Starts to poll the control plane.
    pub async fn provider(&self, spec: Value) -> Result<SharedVolumeProvider, Failed> {
        let mut whole = json!({
            "endpoints": [self.server.endpoint()], "transport": "Plaintext",
            "credentialsRef": { "namespace": OPERATOR_NAMESPACE, "name": self.name },
        });
        json_patch::merge(&mut whole, &spec);
        let provider = serde_json::from_value(json!({
            "apiVersion": "bulkhead.dev/v1alpha1", "kind": "SharedVolumeProvider",
            "metadata": { "name": self.name }, "spec": whole,
        }))?;
        Ok(self.providers().create(&PostParams::default(), &provider).await?)
    }

    /// A claim that is bound to `pv-<claim>`, if to anything.
    pub async fn claim(&self, claim: &str) -> Result<PersistentVolumeClaim, Failed> {
        let object = serde_json::from_value(json!({
            "metadata": { "name": claim },
            "spec": {
                "accessModes": ["ReadWriteMany"], "resources": { "requests": { "storage": "1Gi" } },
                "volumeName": format!("pv-{claim}"), "storageClassName": "",
            },
        }))?;
        let claims = Api::namespaced(self.world.admin.clone(), &self.name);
        Ok(claims.create(&PostParams::default(), &object).await?)
    }

    /// A volume at the control plane, attached as shared. Returns its id.
    pub fn volume(&self, claim: &str) -> String {
        let volume_name = format!("pv-{claim}");
        let new = NewVolume { volume_name: &volume_name, claim_name: claim, claim_namespace: &self.name };
        self.attached(&self.namespace, &new)
    }

    pub fn attached(&self, namespace: &str, new: &NewVolume<'_>) -> String {
        let id = self.server.volumes().create(namespace, new);
        let attached = self.server.volumes().controller_publish(&id, AccessMode::MultiNodeMultiWriter, "n1", ENDPOINT);
        assert_eq!(attached, Ok(()));
        id
    }

    /// Waits for a SharedVolume.
    pub async fn discovered(&self, name: &str) -> Result<SharedVolume, Failed> {
        let look = async || Ok(self.shared_volumes().get_opt(name).await?);
        eventually(&format!("SharedVolume {}/{name}", self.name), look).await
    }

    /// Names of all SharedVolumes.
    pub async fn all(&self) -> Result<Vec<String>, Failed> {
        let all = self.shared_volumes().list(&ListParams::default()).await?;
        Ok(all.iter().map(ResourceExt::name_any).collect())
    }

    /// Waits for a status.
    pub async fn reports(
        &self,
        what: &str,
        holds: impl Fn(&SharedVolumeProviderStatus) -> bool,
    ) -> Result<SharedVolumeProvider, Failed> {
        let mut last = None;
        let look = async || {
            let found = self.providers().get(&self.name).await?;
            last.clone_from(&found.status);
            Ok(found.status.as_ref().is_some_and(&holds).then_some(found))
        };
        let found = eventually(what, look).await;
        found.map_err(|failed| match failed.message() {
            Some(words) => format!("{words}; it is {}", json!(last)).into(),
            None => failed,
        })
    }

    /// Waits for a condition, as `Type=Status/Reason`.
    pub async fn says(&self, condition: &str) -> Result<SharedVolumeProvider, Failed> {
        self.reports(condition, |status| {
            status.conditions.iter().any(|it| format!("{}={}/{}", it.type_, it.status, it.reason) == condition)
        })
        .await
    }

    /// What our controller told of the provider, as reason and note.
    pub async fn told(&self) -> Result<Vec<(String, String)>, Failed> {
        let events: Api<Event> = Api::all(self.world.admin.clone());
        let all = events.list(&ListParams::default()).await?;
        let is_ours = |event: &&Event| {
            let regarding = event.regarding.as_ref();
            regarding.is_some_and(|it| {
                it.name.as_deref() == Some(&self.name) && it.kind.as_deref() == Some("SharedVolumeProvider")
            })
        };
        let told = all.items.iter().filter(is_ours).map(|it| {
            let times = it.series.as_ref().map_or(1, |series| series.count);
            assert_eq!(times, 1, "told more than once: {it:?}");
            (it.reason.clone().unwrap_or_default(), it.note.clone().unwrap_or_default())
        });
        Ok(told.collect())
    }

    /// Waits for an Event; returns its note.
    pub async fn hears(&self, reason: &str) -> Result<String, Failed> {
        let look = async || Ok(self.told().await?.into_iter().find(|(of, _)| of == reason).map(|(_, note)| note));
        eventually(&format!("Event {reason} of {}", self.name), look).await
    }

    /// How often the control plane was polled.
    pub fn polls(&self) -> usize {
        self.server.count(&http::Method::GET, "/v2/namespaces")
    }

    /// Waits for so many polls more, all of which came to their end.
    pub async fn polled(&self, times: usize) -> Result<(), Failed> {
        let wanted = self.polls() + times + 1;
        let look = async || Ok((self.polls() >= wanted).then_some(()));
        eventually(&format!("{times} polls of {}", self.name), look).await
    }
}
