//! Programs of two releases beside each other: what a newer one stores, an older one must be able to read. No control plane.

use bulkhead::api;
use bulkhead::api::driver_report::DriverReport;
use bulkhead::api::fence_request::FenceRequest;
use bulkhead::api::mountpoint_s3_pod_attachment::MountpointS3PodAttachment;
use bulkhead::api::node_fence::NodeFence;
use bulkhead::api::node_volume_report::NodeVolumeReport;
use bulkhead::api::resiliency_policy::ResiliencyPolicy;
use bulkhead::api::shared_volume::SharedVolume;
use bulkhead::api::shared_volume_provider::SharedVolumeProvider;
use bulkhead::api::volume_health::VolumeHealth;
use bulkhead::api::volume_health_policy::VolumeHealthPolicy;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::Outcome;

/// A field of a release that is not there yet.
const NEWER: &str = "fieldOfANewerRelease";

/// Every kind, made from its definition with every field filled, and one more in each of its objects.
pub fn fields_of_a_newer_release_are_ignored() -> Outcome {
    let mut read = 0;
    for definition in api::definitions() {
        let definition = serde_json::to_value(&definition)?;
        let kind = definition.pointer("/spec/names/kind").and_then(Value::as_str).unwrap_or_default();
        let schema = definition.pointer("/spec/versions/0/schema/openAPIV3Schema").ok_or("no schema")?;
        let mut object = filled(schema);
        if let Value::Object(fields) = &mut object {
            let version =
                format!("{}/v1", definition.pointer("/spec/group").and_then(Value::as_str).unwrap_or_default());
            fields.insert("apiVersion".to_owned(), json!(version));
            fields.insert("kind".to_owned(), json!(kind));
            fields.insert("metadata".to_owned(), json!({"name": "any", "namespace": "any"}));
        }
        reads(kind, object).map_err(|error| format!("{kind}: {error}"))?;
        read += 1;
    }
    if read == 10 { Ok(()) } else { Err(format!("{read} kinds").into()) }
}

fn reads(kind: &str, object: Value) -> Result<(), String> {
    fn as_a<K: DeserializeOwned>(object: Value) -> Result<(), String> {
        serde_json::from_value::<K>(object).map(drop).map_err(|error| error.to_string())
    }
    match kind {
        "DriverReport" => as_a::<DriverReport>(object),
        "FenceRequest" => as_a::<FenceRequest>(object),
        "MountpointS3PodAttachment" => as_a::<MountpointS3PodAttachment>(object),
        "NodeFence" => as_a::<NodeFence>(object),
        "NodeVolumeReport" => as_a::<NodeVolumeReport>(object),
        "ResiliencyPolicy" => as_a::<ResiliencyPolicy>(object),
        "SharedVolume" => as_a::<SharedVolume>(object),
        "SharedVolumeProvider" => as_a::<SharedVolumeProvider>(object),
        "VolumeHealth" => as_a::<VolumeHealth>(object),
        "VolumeHealthPolicy" => as_a::<VolumeHealthPolicy>(object),
        _ => Err("no type of ours: add it here".to_owned()),
    }
}

/// A value of a schema.
fn filled(schema: &Value) -> Value {
    let first = schema.get("enum").and_then(|values| values.get(0));
    if let Some(value) = first.or_else(|| schema.get("default")).filter(|value| !value.is_object()) {
        return value.clone();
    }
    let is = |key: &str| schema.get(key) == Some(&Value::Bool(true));
    match schema.get("type").and_then(Value::as_str) {
        Some("object") => Value::Object(fields(schema)),
        Some("array") => json!([schema.get("items").map(filled)]),
        // Limits are floating-point numbers in the schema's type.
        Some("integer" | "number") => {
            json!(schema.get("minimum").and_then(Value::as_f64).map_or(1, |least| least as i64))
        }
        Some("boolean") => json!(true),
        Some("string") => json!(text(schema)),
        _ if is("x-kubernetes-int-or-string") => json!("10%"),
        _ => Value::Null,
    }
}

fn fields(schema: &Value) -> Map<String, Value> {
    let mut fields = Map::new();
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        fields.extend(properties.iter().map(|(name, field)| (name.clone(), filled(field))));
        fields.insert(NEWER.to_owned(), json!({"with": ["anything"]}));
    } else if let Some(values) = schema.get("additionalProperties") {
        fields.insert("key".to_owned(), filled(values));
    }
    fields
}

/// A text that every type of ours can read.
fn text(schema: &Value) -> &'static str {
    let pattern = schema.get("pattern").and_then(Value::as_str).unwrap_or_default();
    match schema.get("format").and_then(Value::as_str) {
        Some("date-time") => "2030-01-01T00:00:00Z",
        _ if pattern.contains("|ms)") => "10s",
        // It is a name as well as an address.
        _ => "10.0.0.1",
    }
}
