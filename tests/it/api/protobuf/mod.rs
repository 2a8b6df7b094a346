//! Kubernetes' kinds that are asked for in protobuf: what is read of them is what would be read of JSON, and all that is read is
//! in the tables.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bulkhead::api::slim::protobuf::{self, Message};
use bulkhead::api::slim::{CsiNode, Lease, Node, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment};
use bulkhead::runtime::informer::Informer;
use bulkhead::runtime::store::Store;
use bulkhead::runtime::telemetry::Telemetry;
use kube::api::{Patch, PatchParams};
use kube::client::Body;
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::Outcome;
use super::world::{World, eventually, root};

/// The label of the objects that this test made.
const MADE_HERE: &str = "bulkhead.dev/test=protobuf";

fn folder() -> PathBuf {
    root().join("tests/it/api/protobuf")
}

/// Each kind, as it is listed, changed and deleted.
pub async fn what_is_read_in_protobuf_is_what_json_says(world: &World) -> Outcome {
    world.testbed.apply_file(&folder().join("objects.yaml")).await?;
    statuses(&world.admin).await?;
    same::<Pod>(world, "pods", &protobuf::POD).await?;
    same::<Node>(world, "nodes", &protobuf::NODE).await?;
    same::<Lease>(world, "leases", &protobuf::LEASE).await?;
    same::<CsiNode>(world, "csinodes", &protobuf::CSI_NODE).await?;
    same::<PersistentVolume>(world, "persistentvolumes", &protobuf::PERSISTENT_VOLUME).await?;
    same::<PersistentVolumeClaim>(world, "persistentvolumeclaims", &protobuf::PERSISTENT_VOLUME_CLAIM).await?;
    same::<VolumeAttachment>(world, "volumeattachments", &protobuf::VOLUME_ATTACHMENT).await
}

/// What is no part of an applied object.
async fn statuses(admin: &Client) -> Outcome {
    let text = std::fs::read_to_string(folder().join("statuses.json"))?;
    let patches: BTreeMap<String, Value> = serde_json::from_str(&text)?;
    for (path, patch) in patches {
        let request = http::Request::patch(path)
            .header(http::header::CONTENT_TYPE, "application/merge-patch+json")
            .body(serde_json::to_vec(&patch)?)?;
        admin.request::<Value>(request).await?;
    }
    // One that is being deleted, and is held.
    let pods: Api<Pod> = Api::namespaced(admin.clone(), "protobuf");
    pods.delete("full", &kube::api::DeleteParams::default().grace_period(7)).await?;
    Ok(())
}

async fn same<K>(world: &World, name: &'static str, message: &'static Message) -> Outcome
where
    K: Resource<DynamicType = ()> + Clone + fmt::Debug + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    let (counted, answers) = counting(&world.admin);
    let (telemetry, ended) = (Telemetry::new(), CancellationToken::new());
    let _end = ended.clone().drop_guard();
    let informer = |client: &Client| Informer::<K>::new(Api::all(client.clone()), name).labels(MADE_HERE);
    let json = informer(&world.admin).spawn(ended.clone(), &telemetry);
    // As the controllers keep the largest of them.
    let ours = informer(&counted).protobuf(message).packed().spawn(ended, &telemetry);
    json.wait_synced().await;
    ours.wait_synced().await;
    assert!(!json.is_empty(), "{name}: there is nothing to compare");
    assert_eq!(told(&ours)?, told(&json)?, "{name}, as listed");
    assert_eq!(unfilled(&json)?, [""; 0], "{name}: no object of the sample has these, so that nobody compares them");

    let label = serde_json::json!({ "metadata": { "labels": { "changed": "yes" } } });
    for object in json.list() {
        change::<K>(&world.admin, &object, &label).await?;
    }
    let is_changed = |object: &Arc<K>| object.labels().contains_key("changed");
    let both = async || [&json, &ours].iter().all(|store| store.list().iter().all(is_changed)).then_some(());
    eventually(&format!("{name}: both watches show the change"), both).await?;
    assert_eq!(told(&ours)?, told(&json)?, "{name}, as watched");

    // For who watches by label it is as if they were deleted.
    let label = serde_json::json!({ "metadata": { "labels": { "bulkhead.dev/test": null } } });
    for object in json.list() {
        change::<K>(&world.admin, &object, &label).await?;
    }
    let both = async || [&json, &ours].iter().all(|store| store.is_empty()).then_some(());
    eventually(&format!("{name}: both watches show that they are gone"), both).await?;
    assert!(answers.load(Ordering::Relaxed) > 0, "{name}: the server was not asked for protobuf");
    Ok(())
}

/// A client, and how often it was answered in protobuf.
fn counting(client: &Client) -> (Client, Arc<AtomicUsize>) {
    let answers = Arc::new(AtomicUsize::new(0));
    let (inner, count) = (client.clone(), answers.clone());
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (inner, count) = (inner.clone(), count.clone());
        async move {
            let response = inner.send(request).await?;
            let form = response.headers().get(http::header::CONTENT_TYPE);
            if form.is_some_and(|form| form.as_bytes().starts_with(b"application/vnd.kubernetes.protobuf")) {
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<_, kube::Error>(response)
        }
    });
    (Client::new(service, client.default_namespace()), answers)
}

async fn change<K>(admin: &Client, object: &K, patch: &Value) -> Outcome
where
    K: Resource<DynamicType = ()> + Clone + fmt::Debug + DeserializeOwned,
{
    let request = kube::core::Request::new(K::url_path(&(), object.namespace().as_deref()));
    let request = request.patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(patch))?;
    admin.request::<Value>(request).await?;
    Ok(())
}

/// All that a store has, by name.
fn told<K: Resource + Serialize>(store: &Store<K>) -> Result<BTreeMap<String, Value>, serde_json::Error> {
    let object = |object: Arc<K>| Ok((object.meta().name.clone().unwrap_or_default(), serde_json::to_value(&*object)?));
    store.list().into_iter().map(object).collect()
}

/// Fields that are read and that no object has.
fn unfilled<K: Resource + Serialize>(store: &Store<K>) -> Result<Vec<String>, serde_json::Error> {
    let mut filled = BTreeMap::new();
    for object in told(store)?.values() {
        look(object, String::new(), &mut filled);
    }
    Ok(filled.into_iter().filter(|(_, filled)| !filled).map(|(path, _)| path).collect())
}

fn look(value: &Value, path: String, filled: &mut BTreeMap<String, bool>) {
    let is_empty = matches!(value, Value::Null | Value::Bool(false)) || value == "" || value == &serde_json::json!([]);
    *filled.entry(path.clone()).or_default() |= !is_empty;
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| look(value, format!("{path}.{name}"), filled));
        }
        Value::Array(items) => items.iter().for_each(|item| look(item, format!("{path}[]"), filled)),
        _ => {}
    }
}
