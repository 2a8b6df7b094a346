//! Objects by the thousand.

use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Result;

/// Requests at once.
pub const AT_ONCE: usize = 32;

/// Does all of it, some at once.
pub async fn at_once<T>(work: impl Iterator<Item = impl Future<Output = Result<T>>>) -> Result<()> {
    stream::iter(work.collect::<Vec<_>>()).buffer_unordered(AT_ONCE).try_collect::<Vec<T>>().await?;
    Ok(())
}

/// Creates an object.
pub async fn create<K>(client: &Client, namespace: Option<&str>, object: Value) -> Result<K>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Serialize,
{
    let url = K::url_path(&(), namespace);
    let request = kube::core::Request::new(url).create(&PostParams::default(), serde_json::to_vec(&object)?)?;
    Ok(client.request(request).await?)
}

/// Waits until all claims of the namespace are bound.
pub async fn claims_are_bound(client: &Client, namespace: &str, limit: Duration) -> Result<()> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let is_bound = |claim: &PersistentVolumeClaim| {
        claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
    };
    let deadline = Instant::now() + limit;
    loop {
        let open = claims.list(&ListParams::default()).await?.items.iter().filter(|it| !is_bound(it)).count();
        if open == 0 {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("{open} claims are not bound").into());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
