//! Objects as data: read from YAML, changed at a path, sent to the server.

use std::fmt::Debug;
use std::path::Path;

use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use libtest_mimic::Failed;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// What to change: JSON pointers and the values to put there; null removes.
pub type Changes = Vec<(&'static str, Value)>;

/// The objects of a YAML file.
pub fn read(path: &Path) -> Result<Vec<Value>, Failed> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(serde_saphyr::from_multiple(&text).map_err(|error| format!("{}: {error}", path.display()))?)
}

/// The one object of a YAML file.
pub fn one(path: &Path) -> Result<Value, Failed> {
    match read(path)?.as_slice() {
        [object] => Ok(object.clone()),
        objects => Err(format!("{}: {} objects instead of one", path.display(), objects.len()).into()),
    }
}

/// `object` under another name, changed.
pub fn changed(object: &Value, name: &str, changes: &Changes) -> Result<Value, Failed> {
    let mut object = object.clone();
    set(&mut object, "/metadata/name", name.into())?;
    for (pointer, value) in changes {
        set(&mut object, pointer, value.clone())?;
    }
    Ok(object)
}

/// Sets the value at a JSON pointer; objects on the way are made, list entries must be there. Null removes.
fn set(object: &mut Value, pointer: &str, value: Value) -> Result<(), Failed> {
    let (parent, key) = pointer.rsplit_once('/').ok_or("a pointer starts with /")?;
    let mut place = object;
    for step in parent.split('/').skip(1) {
        place = match place {
            Value::Array(list) => {
                step.parse::<usize>().ok().and_then(|index| list.get_mut(index)).ok_or_else(|| missing(pointer))?
            }
            Value::Object(fields) => fields.entry(step).or_insert_with(|| Value::Object(Default::default())),
            _ => return Err(missing(pointer)),
        };
    }
    match (place, value) {
        (Value::Object(fields), Value::Null) => drop(fields.remove(key).ok_or_else(|| missing(pointer))?),
        (Value::Object(fields), value) => drop(fields.insert(key.to_owned(), value)),
        (Value::Array(list), Value::Null) => {
            let index = key.parse().ok().filter(|index| *index < list.len()).ok_or_else(|| missing(pointer))?;
            list.remove(index);
        }
        (Value::Array(list), value) if key == "-" => list.push(value),
        (Value::Array(list), value) => {
            *key.parse::<usize>().ok().and_then(|index| list.get_mut(index)).ok_or_else(|| missing(pointer))? = value;
        }
        _ => return Err(missing(pointer)),
    }
    Ok(())
}

fn missing(pointer: &str) -> Failed {
    format!("{pointer}: not there").into()
}

/// The API of one of our cluster-wide kinds.
pub fn api(client: &Client, kind: &str) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &resource(kind))
}

/// The API for an object of ours.
pub fn api_of(client: &Client, object: &Value) -> Result<Api<DynamicObject>, Failed> {
    let kind = object.get("kind").and_then(Value::as_str).ok_or("an object without kind")?;
    Ok(match object.pointer("/metadata/namespace").and_then(Value::as_str) {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource(kind)),
        None => api(client, kind),
    })
}

fn resource(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("bulkhead.dev", "v1alpha1", kind))
}

/// Writes what is new of a status as our programs write it, who may update and not patch: the whole, at the version that
/// was read.
pub async fn tell<K>(api: &Api<K>, name: &str, status: &Value) -> kube::Result<K>
where
    K: Clone + Debug + Serialize + DeserializeOwned,
{
    let told = with_status(&api.get(name).await?, status).map_err(kube::Error::SerdeError)?;
    api.replace_status(name, &PostParams::default(), &told).await
}

/// An object that was read, with what is new of its status.
pub fn with_status<K: Serialize + DeserializeOwned>(stored: &K, status: &Value) -> serde_json::Result<K> {
    let mut object = serde_json::to_value(stored)?;
    json_patch::merge(&mut object, &json!({ "status": status }));
    serde_json::from_value(object)
}

/// An object to send.
pub fn dynamic(object: &Value) -> Result<DynamicObject, Failed> {
    Ok(serde_json::from_value(object.clone())?)
}
