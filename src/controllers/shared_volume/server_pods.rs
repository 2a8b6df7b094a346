//! The pods of `backend.pods`: one watch for each namespace and selector, shared by all SharedVolumes that have it, and
//! ended with the last of them. All pods of a cluster are many; those that serve NFS are few.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use kube::{Api, Client, ResourceExt};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::api::slim::network::ServerPod;
use crate::controllers::{BY_NODE, indexes};
use crate::error::{Error, Result};
use crate::runtime::informer::Informer;
use crate::runtime::lock::lock;
use crate::runtime::queue::Queue;
use crate::runtime::store::{Change, ObjectKey, Store};
use crate::runtime::telemetry::Telemetry;

/// How long a pass waits for the first list of a new watch.
const FIRST_LIST: Duration = Duration::from_secs(5);

/// Which pods.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Selection {
    /// Their namespace.
    pub namespace: String,
    /// Labels that they have.
    pub labels: BTreeMap<String, String>,
}

/// All watches.
#[derive(Clone)]
pub struct ServerPods {
    client: Client,
    telemetry: Telemetry,
    cancel: CancellationToken,
    queue: Queue<ObjectKey>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    watches: HashMap<Selection, Watch>,
    /// What each SharedVolume has selected.
    selected: HashMap<ObjectKey, Selection>,
}

struct Watch {
    pods: Store<ServerPod>,
    _ends_with_this: DropGuard,
}

impl ServerPods {
    /// No watch yet. `queue` is told of SharedVolumes whose pods change.
    pub fn new(client: Client, telemetry: Telemetry, queue: Queue<ObjectKey>, cancel: CancellationToken) -> Self {
        Self { client, telemetry, cancel, queue, state: Arc::default() }
    }

    /// The pods that this SharedVolume selects; what it selected before, and nobody else does, is watched no more.
    pub async fn select(&self, key: &ObjectKey, selection: Option<Selection>) -> Result<Vec<Arc<ServerPod>>> {
        // No pod has such labels, and the server would take none of them for a selector.
        let selection = selection.filter(Selection::is_possible);
        let Some(pods) = self.watched(key, selection) else { return Ok(Vec::new()) };
        let synced = tokio::time::timeout(FIRST_LIST, pods.wait_synced()).await;
        synced.map_err(|_| Error::Deadline(FIRST_LIST))?;
        let mut pods = pods.list();
        pods.sort_unstable_by_key(|pod| pod.name_any());
        Ok(pods)
    }

    /// SharedVolumes that have a pod on this node.
    pub fn on_node(&self, node: &str) -> Vec<ObjectKey> {
        let state = self.lock();
        let on_it = state.watches.iter().filter(|(_, watch)| !watch.pods.by_index(BY_NODE, node).is_empty());
        on_it.flat_map(|(selection, _)| state.users(selection)).collect()
    }

    fn watched(&self, key: &ObjectKey, selection: Option<Selection>) -> Option<Store<ServerPod>> {
        let mut state = self.lock();
        let before = match &selection {
            Some(selection) => state.selected.insert(key.clone(), selection.clone()),
            None => state.selected.remove(key),
        };
        if let Some(before) = before.filter(|before| Some(before) != selection.as_ref())
            && state.users(&before).is_empty()
        {
            state.watches.remove(&before);
        }
        let selection = selection?;
        if let Some(watch) = state.watches.get(&selection) {
            return Some(watch.pods.clone());
        }
        let watch = self.watch(&selection);
        let pods = watch.pods.clone();
        state.watches.insert(selection, watch);
        Some(pods)
    }

    fn watch(&self, selection: &Selection) -> Watch {
        let end = self.cancel.child_token();
        let api = Api::namespaced(self.client.clone(), &selection.namespace);
        let pods = Informer::new(api, "serverpods")
            .one_of_many()
            .labels(&selection.selector())
            .index(BY_NODE, indexes::node_of_server_pod)
            .spawn(end.clone(), &self.telemetry);
        let told = self.clone().tell(selection.clone(), pods.subscribe());
        tokio::spawn({
            let end = end.clone();
            async move { end.run_until_cancelled(told).await }
        });
        Watch { pods, _ends_with_this: end.drop_guard() }
    }

    async fn tell(self, selection: Selection, mut changes: mpsc::UnboundedReceiver<Change<ServerPod>>) {
        while let Some(change) = changes.recv().await {
            if change.differs(view) {
                let users = self.lock().users(&selection);
                users.into_iter().for_each(|key| self.queue.add(key));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    fn users(&self, selection: &Selection) -> Vec<ObjectKey> {
        let users = self.selected.iter().filter(|(_, selected)| *selected == selection);
        users.map(|(key, _)| key.clone()).collect()
    }
}

impl Selection {
    /// As a selector of the API.
    fn selector(&self) -> String {
        let labels: Vec<_> = self.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        labels.join(",")
    }

    /// Whether all of it can be in labels: nothing then means something else in a selector.
    fn is_possible(&self) -> bool {
        let is_plain = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
        let is_name = |name: &str| !name.is_empty() && name.split('/').count() <= 2 && name.split('/').all(is_plain);
        !self.labels.is_empty() && self.labels.iter().all(|(name, value)| is_name(name) && is_plain(value))
    }
}

/// What a server pod is chosen by.
fn view(pod: &ServerPod) -> (Option<String>, &Vec<crate::api::slim::network::PodIp>, Option<&str>, bool, bool) {
    let node = pod.spec.node_name.as_deref();
    (pod.uid(), &pod.status.pod_ips, node, pod.is("Ready"), pod.is_terminating())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(labels: &[(&str, &str)]) -> Selection {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Selection { namespace: "web".to_owned(), labels }
    }

    #[test]
    fn only_what_can_be_a_label_is_asked_for() {
        assert!(selection(&[("app.kubernetes.io/name", "nfs"), ("tier", "")]).is_possible());
        for odd in [&[][..], &[("app", "nfs,tier!=x")], &[("app in (a)", "")], &[("a/b/c", "d")], &[("", "x")]] {
            assert!(!selection(odd).is_possible(), "{odd:?}");
        }
        assert_eq!(selection(&[("b", "2"), ("a", "1")]).selector(), "a=1,b=2");
    }
}
