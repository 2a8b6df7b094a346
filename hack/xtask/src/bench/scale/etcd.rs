//! Objects by the hundred thousand, put straight into etcd as the API server would store them. It reads JSON as well as what
//! it writes itself, and takes them into its caches by its own watch of etcd.

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::ByteString;
use kube::{Client, Config};
use serde::Serialize;
use serde_json::Value;

use crate::Result;

/// Objects of one transaction; etcd takes 128 at most.
const BATCH: usize = 100;
/// Transactions at once.
const AT_ONCE: usize = 4;

/// An object and its key.
pub type Entry = (String, Value);

/// A client of etcd, by the JSON form of its API.
#[derive(Clone)]
pub struct Etcd(Client);

#[derive(Serialize)]
struct Transaction {
    success: Vec<Operation>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Operation {
    request_put: Put,
}

#[derive(Serialize)]
struct Put {
    key: ByteString,
    value: ByteString,
}

impl Etcd {
    /// For the etcd at this address.
    pub fn new(address: &str) -> Result<Self> {
        Ok(Self(Client::try_from(Config::new(address.parse()?))?))
    }

    /// Puts them all.
    pub async fn put(&self, entries: impl Iterator<Item = Entry> + Send) -> Result<()> {
        let mut entries = entries;
        let batches = std::iter::from_fn(|| {
            let batch: Vec<_> = entries.by_ref().take(BATCH).collect();
            (!batch.is_empty()).then_some(batch)
        });
        stream::iter(batches).map(|batch| self.transaction(batch)).buffer_unordered(AT_ONCE).try_collect().await
    }

    async fn transaction(&self, batch: Vec<Entry>) -> Result<()> {
        let operation = |(key, value): Entry| {
            let (key, value) = (ByteString(key.into_bytes()), ByteString(value.to_string().into_bytes()));
            Operation { request_put: Put { key, value } }
        };
        let body = serde_json::to_vec(&Transaction { success: batch.into_iter().map(operation).collect() })?;
        let request = http::Request::post("/v3/kv/txn").body(body)?;
        let answer: Value = self.0.request(request).await?;
        if answer.get("succeeded") == Some(&Value::Bool(true)) {
            return Ok(());
        }
        Err(format!("etcd refused objects: {answer}").into())
    }
}
