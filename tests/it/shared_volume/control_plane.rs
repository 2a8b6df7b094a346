//! The StorageOS control plane of a test, and the SharedVolumeProvider that it is.

use bulkhead::api::names;
use bulkhead::api::shared_volume_provider::{SharedVolumeProvider, SharedVolumeProviderStatus};
use bulkhead_testbed::nfs_server::Server;
use bulkhead_testbed::storageos::{AccessMode, Method, NewVolume, StorageOs};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::DeleteParams;
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::lane::Lane;

/// A control plane, and the provider of the lane's name that it is.
pub struct ControlPlane<'a> {
    lane: &'a Lane<'a>,
    pub server: StorageOs,
    /// Id of its namespace of the lane's name.
    pub namespace: String,
}

impl<'a> ControlPlane<'a> {
    /// It serves this lane's namespace only. `spec` is merged into the provider's.
    pub async fn start(lane: &'a Lane<'a>, spec: Value) -> Result<Self, Failed> {
        let server = StorageOs::start()?;
        let namespace = server.volumes().create_namespace(&lane.name);
        let credentials = json!({
            "metadata": { "name": lane.name }, "stringData": { "username": "storageos", "password": "storageos" },
        });
        lane.create::<Secret>(Some(names::OPERATOR_NAMESPACE), credentials).await?;
        let mut whole = json!({
            "endpoints": [server.endpoint()], "transport": "Plaintext", "pollInterval": "1s",
            "credentialsRef": { "namespace": names::OPERATOR_NAMESPACE, "name": lane.name },
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": lane.name } },
        });
        bulkhead_testbed::cluster::merge(&mut whole, &spec);
        let provider = json!({ "metadata": { "name": lane.name }, "spec": whole });
        lane.create::<SharedVolumeProvider>(None, provider).await?;
        Ok(Self { lane, server, namespace })
    }

    /// Ends the provider: other tests go on.
    pub async fn end(self) -> Result<(), Failed> {
        self.api().delete(&self.lane.name, &DeleteParams::default()).await?;
        Ok(())
    }

    fn api(&self) -> Api<SharedVolumeProvider> {
        Api::all(self.lane.client())
    }

    /// A volume for the claim of this name.
    pub fn volume(&self, claim: &str) -> String {
        let volume = self.lane.volume_name(claim);
        let new = NewVolume { volume_name: &volume, claim_name: claim, claim_namespace: &self.lane.name };
        self.server.volumes().create(&self.namespace, &new)
    }

    /// It is attached as shared, and served there.
    pub fn attach(&self, id: &str, endpoint: &str) -> Result<(), Failed> {
        Ok(self.server.volumes().controller_publish(id, AccessMode::MultiNodeMultiWriter, "node-a", endpoint)?)
    }

    /// A claim with its volume, served by this server.
    pub async fn served(&self, claim: &str, server: &Server) -> Result<String, Failed> {
        self.lane.claim(claim).await?;
        let id = self.volume(claim);
        self.attach(&id, &server.address.to_string())?;
        Ok(id)
    }

    /// What the control plane has as the volume's mount endpoint.
    pub fn mounts(&self, id: &str) -> String {
        self.server.volumes().get(id).map(|volume| volume.mount_endpoint().to_owned()).unwrap_or_default()
    }

    /// Waits until it has this one.
    pub async fn mounts_at(&self, id: &str, endpoint: &str) -> Result<(), Failed> {
        self.lane
            .eventually(&format!("{id} is mounted at {endpoint:?}"), async || {
                let found = self.mounts(id);
                Ok(if found == endpoint { Ok(()) } else { Err(found) })
            })
            .await
    }

    /// How often it was told a mount endpoint.
    pub fn told(&self) -> usize {
        self.server.count(&Method::PUT, "/nfs/mount-endpoint")
    }

    /// Waits until the provider's status is as `holds` wants it.
    pub async fn status(&self, what: &str, holds: impl Fn(&SharedVolumeProviderStatus) -> bool) -> Result<(), Failed> {
        let look = async || {
            let found = self.api().get_opt(&self.lane.name).await?.and_then(|provider| provider.status);
            Ok(match found {
                Some(status) if holds(&status) => Ok(()),
                other => Err(serde_json::to_string(&other)?),
            })
        };
        self.lane.eventually(&format!("provider: {what}"), look).await
    }

    /// Waits until it has been polled so often from now on: what was to follow from the last report did.
    pub async fn polled(&self, times: usize) -> Result<(), Failed> {
        let before = self.server.count(&Method::GET, "/namespaces");
        self.lane
            .eventually("it is polled", async || {
                let found = self.server.count(&Method::GET, "/namespaces");
                Ok(if found >= before + times { Ok(()) } else { Err(found.to_string()) })
            })
            .await
    }
}
