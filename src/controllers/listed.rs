//! The stores of a program that looks once: each kind is listed, and never watched.

use k8s_openapi::NamespaceResourceScope;
use kube::api::ListParams;
use kube::{Api, Client, Resource};

use crate::api::fence_request::FenceRequest;
use crate::api::slim::VolumeAttachment;
use crate::error::Error;
use crate::runtime::store::{IndexFn, Store};

use super::stores::{Watched, uses_volumes};
use super::{BY_NODE, BY_VOLUME, NODE_LEASES, Stores, indexes};

/// A list that the API server did not give.
#[derive(Debug)]
pub struct Unread {
    /// What was to be listed, as `resource.group`.
    pub resource: String,
    /// Where; everywhere if it is absent.
    pub namespace: Option<String>,
    /// Why not.
    pub error: Error,
}

impl Stores {
    /// What failover rests on, listed once and never again: for a program that looks, tells and ends. `namespace` is the
    /// operator's own.
    pub async fn listed(reads: &Client, namespace: &str) -> Result<Self, Vec<Unread>> {
        let list = Listing { reads };
        let (nodes, leases, fencer_leases, pods, claims, volumes, attachments) = tokio::join!(
            list.all(&[]),
            list.within(NODE_LEASES),
            list.within(namespace),
            list.pages(Api::all(reads.clone()), None, &[(BY_NODE, indexes::node_of_pod)], uses_volumes),
            list.all(&[(BY_VOLUME, indexes::volume_of_claim)]),
            list.all(&[]),
            list.all(&[(BY_NODE, |attachment: &VolumeAttachment| vec![attachment.spec.node_name.clone()])]),
        );
        let (csi_nodes, csi_drivers, namespaces, policies, fences, requests, reports, node_reports, healths) = tokio::join!(
            list.all(&[]),
            list.all(&[]),
            list.all(&[]),
            list.all(&[]),
            list.all(&[]),
            list.all(&[(BY_NODE, |request: &FenceRequest| vec![request.spec.node_name.clone()])]),
            list.all(&[]),
            list.all(&[]),
            list.all(&[]),
        );
        let mut unread = Vec::new();
        let stores = Self {
            nodes: kept(nodes, &mut unread),
            leases: kept(leases, &mut unread),
            fencer_leases: kept(fencer_leases, &mut unread),
            pods: kept(pods, &mut unread),
            claims: kept(claims, &mut unread),
            volumes: kept(volumes, &mut unread),
            attachments: kept(attachments, &mut unread),
            csi_nodes: kept(csi_nodes, &mut unread),
            csi_drivers: kept(csi_drivers, &mut unread),
            namespaces: kept(namespaces, &mut unread),
            policies: kept(policies, &mut unread),
            fences: kept(fences, &mut unread),
            requests: kept(requests, &mut unread),
            reports: kept(reports, &mut unread),
            node_reports: kept(node_reports, &mut unread),
            healths: kept(healths, &mut unread),
            health_policies: Store::new_detached(Vec::new()),
            agents: Store::new_detached(Vec::new()),
            admission_bindings: Store::new_detached(Vec::new()),
        };
        if unread.is_empty() { Ok(stores) } else { Err(unread) }
    }
}

fn kept<K>(listed: Result<Store<K>, Unread>, unread: &mut Vec<Unread>) -> Store<K> {
    listed.unwrap_or_else(|error| {
        unread.push(error);
        Store::new_detached(Vec::new())
    })
}

/// Lists, page by page.
struct Listing<'a> {
    reads: &'a Client,
}

impl Listing<'_> {
    async fn all<K: Watched>(&self, indexes: &[(&'static str, IndexFn<K>)]) -> Result<Store<K>, Unread> {
        self.pages(Api::all(self.reads.clone()), None, indexes, |_| true).await
    }

    async fn within<K>(&self, namespace: &str) -> Result<Store<K>, Unread>
    where
        K: Watched + Resource<Scope = NamespaceResourceScope>,
    {
        self.pages(Api::namespaced(self.reads.clone(), namespace), Some(namespace), &[], |_| true).await
    }

    async fn pages<K: Watched>(
        &self,
        api: Api<K>,
        namespace: Option<&str>,
        indexes: &[(&'static str, IndexFn<K>)],
        keep: fn(&K) -> bool,
    ) -> Result<Store<K>, Unread> {
        const PAGE: u32 = 500;
        let store = Store::new_detached(indexes.to_vec());
        store.list_begins();
        let mut page = ListParams::default().limit(PAGE);
        loop {
            let listed = api.list(&page).await.map_err(|error| Unread {
                resource: [K::plural(&()), K::group(&())].join(".").trim_end_matches('.').to_owned(),
                namespace: namespace.map(str::to_owned),
                error: error.into(),
            })?;
            listed.items.into_iter().filter(keep).for_each(|object| store.insert(object));
            match listed.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => break,
            }
        }
        store.list_done();
        Ok(store)
    }
}
