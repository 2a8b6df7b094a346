//! Waiting for the API to show something, with a deadline.

use std::time::{Duration, Instant};

use bulkhead::api::node_fence::NodeFence;
use kube::{Api, Client, Resource};
use serde::Serialize;

use super::ClusterError;

/// How often is looked: what is looked at changes without telling.
const POLL: Duration = Duration::from_millis(25);

/// Waits until `look` says Ok; what it says otherwise is for the error.
pub(super) async fn until<T>(
    what: &str,
    limit: Duration,
    mut look: impl AsyncFnMut() -> Result<Result<T, String>, ClusterError>,
) -> Result<T, ClusterError> {
    let deadline = Instant::now() + limit;
    loop {
        match look().await? {
            Ok(found) => return Ok(found),
            Err(last) if Instant::now() >= deadline => {
                return Err(ClusterError::Timeout { what: what.to_owned(), limit, last });
            }
            Err(_) => tokio::time::sleep(POLL).await,
        }
    }
}

/// Waits until the NodeFence of a node is as `holds` wants it.
pub(super) async fn fence(
    client: &Client,
    node: &str,
    what: &str,
    limit: Duration,
    holds: impl Fn(&NodeFence) -> bool,
) -> Result<NodeFence, ClusterError> {
    let api: Api<NodeFence> = Api::all(client.clone());
    until(&format!("NodeFence {node}: {what}"), limit, async || {
        let fence = api.get_opt(node).await?;
        Ok(match fence {
            Some(fence) if holds(&fence) => Ok(fence),
            other => Err(described(other)?),
        })
    })
    .await
}

/// For messages: without field ownership, which is most of an object.
pub(super) fn described<K: Resource + Serialize>(object: Option<K>) -> Result<String, serde_json::Error> {
    let object = object.map(|mut object| {
        object.meta_mut().managed_fields = None;
        object
    });
    serde_json::to_string(&object)
}
