//! Tells the agents where this replica listens: its entry in the one ConfigMap that they watch. Nothing is written while the
//! entry is there.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::api::slim::Pod;
use crate::error::{Error, Result};
use crate::runtime::client::Clients;
use crate::runtime::informer::Informer;
use crate::runtime::leader::Leadership;
use crate::runtime::store::{ObjectKey, Store};
use crate::runtime::telemetry::Telemetry;

use super::replicas::{self, Replica};

/// Field manager of the entries.
const MANAGER: &str = "bulkhead-controller/heartbeat";
/// Pause after a failure.
const AGAIN: Duration = Duration::from_secs(5);
/// How often the leader looks for entries of replicas that are gone.
const PRUNE_EVERY: Duration = Duration::from_secs(600);
/// How long the end of the program waits until the entry is gone.
const LEAVE: Duration = Duration::from_secs(1);

/// Who announces itself.
#[derive(Clone)]
pub struct Announcer {
    /// Clients.
    pub clients: Clients,
    /// The operator's namespace.
    pub namespace: String,
    /// Our name, which is our pod's.
    pub identity: String,
    /// What the agents have to know.
    pub replica: Replica,
    /// Only the leader removes entries of others.
    pub leadership: Leadership,
}

/// The informer of the ConfigMap, for agents and replicas.
pub fn informer(clients: &Clients, namespace: &str) -> Informer<ConfigMap> {
    let config_maps: Api<ConfigMap> = Api::namespaced(clients.watches.clone(), namespace);
    Informer::new(config_maps, "heartbeatreplicas").fields(&format!("metadata.name={}", replicas::CONFIG_MAP))
}

impl Announcer {
    /// Keeps our entry there until `cancel`, and takes it back.
    pub async fn run(self, telemetry: &Telemetry, cancel: CancellationToken) {
        let store = informer(&self.clients, &self.namespace).spawn(cancel.clone(), telemetry);
        cancel.run_until_cancelled(self.keep(&store)).await;
        // The leader does it else, once our pod is gone.
        let _ = tokio::time::timeout(LEAVE, self.write(&self.identity, None)).await;
    }

    async fn keep(&self, store: &Store<ConfigMap>) {
        store.wait_synced().await;
        let mut changes = store.subscribe();
        let mut was_there = false;
        loop {
            let kept = self.announce(store, was_there).await;
            was_there |= kept.is_ok();
            if let Err(error) = &kept {
                tracing::warn!(%error, "this replica is not announced: agents do not send to it");
            }
            let pause = if kept.is_ok() { PRUNE_EVERY } else { AGAIN };
            let is_quiet = tokio::time::timeout(pause, changes.recv()).await.is_err();
            if is_quiet && let Err(error) = self.prune(store).await {
                tracing::debug!(%error, "entries of replicas that are gone stay");
            }
        }
    }

    /// Writes our entry, if it is not there. One that somebody wrote under our name since is another process's: two of one
    /// name would write for ever.
    async fn announce(&self, store: &Store<ConfigMap>, was_there: bool) -> Result<()> {
        let entry = replicas::entry(self.replica);
        let entries = self.entries(store)?;
        if entries.get(&self.identity).is_some_and(|found| was_there || *found == entry) {
            return Ok(());
        }
        self.write(&self.identity, Some(&entry)).await?;
        tracing::info!(entry, "this replica is announced to the agents");
        Ok(())
    }

    fn entries(&self, store: &Store<ConfigMap>) -> Result<BTreeMap<String, String>> {
        let key = ObjectKey::namespaced(&self.namespace, replicas::CONFIG_MAP);
        let missing = || Error::Invalid(format!("there is no ConfigMap {key}; apply config/rbac"));
        Ok(store.get(&key).ok_or_else(missing)?.data.clone().unwrap_or_default())
    }

    /// Removes entries whose pods are gone. Where we are no pod ourselves, names tell nothing of pods.
    async fn prune(&self, store: &Store<ConfigMap>) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.clients.reads.clone(), &self.namespace);
        if self.leadership.remaining().is_none() || pods.get_opt(&self.identity).await?.is_none() {
            return Ok(());
        }
        for identity in self.entries(store)?.into_keys() {
            if pods.get_opt(&identity).await?.is_none() {
                self.write(&identity, None).await?;
                tracing::info!(identity, "a replica that is gone is announced no more");
            }
        }
        Ok(())
    }

    /// Each replica writes only its own entry, and the leader takes away those of pods that are gone: no Lease is needed.
    async fn write(&self, identity: &str, entry: Option<&str>) -> Result<()> {
        let config_maps: Api<ConfigMap> = Api::namespaced(self.clients.writes.clone(), &self.namespace);
        let patch = Patch::Merge(json!({ "data": { identity: entry } }));
        let params = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
        config_maps.patch(replicas::CONFIG_MAP, &params, &patch).await?;
        Ok(())
    }
}
