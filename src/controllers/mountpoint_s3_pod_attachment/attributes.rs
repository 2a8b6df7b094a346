//! What the attributes of a volume say about its Mountpoint Pod. Pure.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::api::s3::{CACHE_FOLDER, CACHE_VOLUME};
use crate::api::s3_cache;
use crate::api::slim::PersistentVolume;

/// What a volume asks of its Mountpoint Pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attributes {
    /// The ServiceAccount it runs as.
    pub service_account: Option<String>,
    /// Resources of its container; null where nothing is said.
    pub resources: Value,
    /// The volume of its local cache.
    pub cache: Option<Value>,
}

impl Attributes {
    /// Reads them. The error says what to correct.
    pub fn of(volume: &PersistentVolume) -> Result<Self, String> {
        let none = BTreeMap::new();
        let given = volume.spec.csi.as_ref().map_or(&none, |csi| &csi.volume_attributes);
        let options = || volume.spec.mount_options.iter().flatten().map(String::as_str);
        let has_option = |name: &str| {
            let mut options = options().map(|option| option.trim_start_matches('-'));
            options.any(|option| option.split(['=', ' ']).next() == Some(name))
        };
        let cache = cache(given)?;
        if cache.is_some() && has_option("cache") {
            return Err("the attribute cache and the mount option cache exclude each other: remove one".to_owned());
        }
        // The node service gives the argument; what is wrong with it is told before a pod is made.
        s3_cache::check(s3_cache::most(|name| given.get(name).map(String::as_str))?, options())?;
        Ok(Self {
            service_account: text(given, "mountpointPodServiceAccountName"),
            resources: resources(given)?,
            cache,
        })
    }
}

/// Where the cache is mounted in the container.
pub fn mounted(_: &Value) -> Value {
    json!({ "name": CACHE_VOLUME, "mountPath": CACHE_FOLDER })
}

fn text(given: &BTreeMap<String, String>, name: &str) -> Option<String> {
    given.get(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

fn resources(given: &BTreeMap<String, String>) -> Result<Value, String> {
    let mut resources = Map::new();
    for (kind, part) in [("requests", "Requests"), ("limits", "Limits")] {
        let mut amounts = Map::new();
        for (resource, word) in [("cpu", "Cpu"), ("memory", "Memory")] {
            let name = format!("mountpointContainerResources{part}{word}");
            if let Some(amount) = quantity(given, &name)? {
                amounts.insert(resource.to_owned(), json!(amount));
            }
        }
        if !amounts.is_empty() {
            resources.insert(kind.to_owned(), Value::Object(amounts));
        }
    }
    Ok(if resources.is_empty() { Value::Null } else { Value::Object(resources) })
}

fn cache(given: &BTreeMap<String, String>) -> Result<Option<Value>, String> {
    let Some(kind) = text(given, "cache") else { return Ok(None) };
    let source = match kind.as_str() {
        "emptyDir" => json!({ "emptyDir": empty_dir(given)? }),
        "ephemeral" => json!({ "ephemeral": ephemeral(given)? }),
        other => return Err(format!("the attribute cache is {other:?}: give emptyDir or ephemeral")),
    };
    let mut volume = json!({ "name": CACHE_VOLUME });
    json_patch::merge(&mut volume, &source);
    Ok(Some(volume))
}

fn empty_dir(given: &BTreeMap<String, String>) -> Result<Value, String> {
    let mut empty = Map::new();
    if let Some(limit) = quantity(given, "cacheEmptyDirSizeLimit")? {
        empty.insert("sizeLimit".to_owned(), json!(limit));
    }
    match text(given, "cacheEmptyDirMedium").as_deref() {
        None => {}
        Some("Memory") => drop(empty.insert("medium".to_owned(), json!("Memory"))),
        Some(other) => return Err(format!("the attribute cacheEmptyDirMedium is {other:?}: give Memory or nothing")),
    }
    Ok(Value::Object(empty))
}

fn ephemeral(given: &BTreeMap<String, String>) -> Result<Value, String> {
    let missing = |name| format!("cache ephemeral needs the attribute {name}");
    let class = text(given, "cacheEphemeralStorageClassName");
    let class = class.ok_or_else(|| missing("cacheEphemeralStorageClassName"))?;
    let size = quantity(given, "cacheEphemeralStorageResourceRequest")?;
    let size = size.ok_or_else(|| missing("cacheEphemeralStorageResourceRequest"))?;
    Ok(json!({ "volumeClaimTemplate": {
        "metadata": { "labels": { "s3.csi.scality.com/type": "local-ephemeral-cache" } },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "volumeMode": "Filesystem",
            "storageClassName": class,
            "resources": { "requests": { "storage": size } },
        },
    }}))
}

/// An amount as the API takes it. Its own check comes when the pod is created; here only what is plainly none is refused,
/// so that the volume is named.
fn quantity(given: &BTreeMap<String, String>, name: &str) -> Result<Option<String>, String> {
    let Some(amount) = text(given, name) else { return Ok(None) };
    let number = amount.trim_start_matches(['+', '-']).trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let has_digits = amount.chars().any(|c| c.is_ascii_digit());
    let suffixes = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let is_exponent = number.strip_prefix(['e', 'E']).is_some_and(|power| power.parse::<i8>().is_ok());
    if has_digits && (suffixes.contains(&number) || is_exponent) && !amount.starts_with('-') {
        return Ok(Some(amount));
    }
    Err(format!("the attribute {name} is {amount:?}: give a quantity such as 500m or 2Gi"))
}
