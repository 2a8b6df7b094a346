//! What the derived schemas of our definitions cannot say by themselves.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;
use schemars::{Schema, SchemaGenerator, json_schema};

/// The definition of a kind as it is shipped.
pub(super) fn definition<K: CustomResourceExt>() -> CustomResourceDefinition {
    let mut definition = K::crd();
    for version in &mut definition.spec.versions {
        if let Some(root) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) {
            root.title = None;
            // Who gives up the last field of a spec gives up the spec: it must not be missing then.
            let spec = root.properties.as_mut().and_then(|properties| properties.get_mut("spec"));
            if let Some(spec) = spec.filter(|spec| spec.required.is_none()) {
                spec.default = Some(JSON(serde_json::json!({})));
            }
            visit(root, &mut tidy);
        }
    }
    definition
}

/// An absent optional field is left out, never null; a description is one paragraph, whatever the source lines are.
fn tidy(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    if let Some(description) = &mut schema.description {
        *description = description.split_whitespace().collect::<Vec<_>>().join(" ");
    }
}

/// The definition of a kind that people write and wait for. kstatus, which Flux and Helm wait with, takes an object without
/// a status for one that is done; this one says that nobody has looked at it yet, because no generation is 0.
pub(super) fn awaited<K: CustomResourceExt>() -> CustomResourceDefinition {
    let mut definition = definition::<K>();
    for version in &mut definition.spec.versions {
        let root = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut());
        let status = root.and_then(|root| root.properties.as_mut()?.get_mut("status"));
        if let Some(status) = status {
            status.default = Some(JSON(serde_json::json!({"observedGeneration": 0})));
        }
    }
    definition
}

fn visit(schema: &mut JSONSchemaProps, change: &mut impl FnMut(&mut JSONSchemaProps)) {
    change(schema);
    for property in schema.properties.iter_mut().flat_map(BTreeMap::values_mut) {
        visit(property, change);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        visit(items, change);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        visit(values, change);
    }
}

/// Transform for objects with defaulted properties: the default is `{}`, so that each constant stands once in the
/// schema, at its property.
pub(super) fn empty_default(schema: &mut Schema) {
    schema.insert("default".into(), serde_json::json!({}));
}

/// `metav1.Condition` with the limits that Kubernetes' own definitions have; the derived schema has none.
pub(super) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "description": "One condition (metav1.Condition).",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": { "type": "string", "description": "Condition type.", "minLength": 1, "maxLength": 316 },
                "status": {
                    "type": "string",
                    "description": "True, False or Unknown.",
                    "enum": ["True", "False", "Unknown"],
                },
                "observedGeneration": {
                    "type": "integer",
                    "format": "int64",
                    "description": "Generation of spec the condition was computed from.",
                    "minimum": 0,
                },
                "lastTransitionTime": {
                    "type": "string",
                    "format": "date-time",
                    "description": "Last time status changed.",
                },
                "reason": {
                    "type": "string",
                    "description": "CamelCase reason from the documented list.",
                    "minLength": 1,
                    "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                },
                "message": {
                    "type": "string",
                    "description": "Sentence for people; do not parse.",
                    "minLength": 0,
                    "maxLength": 32768,
                },
            },
        },
    })
}

/// Labels to match: at most 16, each value as long as Kubernetes allows.
pub(super) fn labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 16,
        "additionalProperties": { "type": "string", "maxLength": 63 },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every schema below `schema`, with its path.
    fn all(path: String, schema: &JSONSchemaProps, found: &mut Vec<(String, JSONSchemaProps)>) {
        for (name, property) in schema.properties.iter().flatten() {
            all(format!("{path}.{name}"), property, found);
        }
        if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
            all(format!("{path}[]"), items, found);
        }
        found.push((path, schema.clone()));
    }

    fn schemas() -> Vec<(String, JSONSchemaProps)> {
        let mut found = Vec::new();
        for definition in crate::api::definitions() {
            for version in &definition.spec.versions {
                let root = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref()).unwrap();
                all(definition.spec.names.kind.clone(), root, &mut found);
            }
        }
        assert!(found.len() > 150, "only {} schemas found", found.len());
        found
    }

    fn offenders(is_bad: impl Fn(&str, &JSONSchemaProps) -> bool) -> Vec<String> {
        schemas().into_iter().filter(|(path, schema)| is_bad(path, schema)).map(|(path, _)| path).collect()
    }

    #[test]
    fn every_field_is_explained() {
        let silent = offenders(|path, schema| {
            !path.ends_with("[]") && schema.description.as_deref().is_none_or(|text| !text.ends_with('.'))
        });
        assert!(silent.is_empty(), "without a sentence for kubectl explain: {silent:#?}");
    }

    /// The cost estimate of CEL, and the size of an object in etcd, need a limit everywhere; but the spec of an s3pa is
    /// upstream's, whose programs know no limit.
    #[test]
    fn every_list_map_and_text_has_a_limit() {
        let unlimited = offenders(|_, schema| match schema.type_.as_deref() {
            Some("array") => schema.max_items.is_none(),
            Some("object") => schema.additional_properties.is_some() && schema.max_properties.is_none(),
            Some("string") => schema.max_length.is_none() && schema.enum_.is_none() && schema.format.is_none(),
            _ => false,
        });
        let ours = unlimited.iter().filter(|path| !path.starts_with("MountpointS3PodAttachment.spec."));
        assert_eq!(ours.count(), 0, "{unlimited:#?}");
    }

    #[test]
    fn every_list_says_how_it_is_merged_and_one_with_a_default_is_atomic() {
        let bad = offenders(|_, schema| {
            let merge = schema.x_kubernetes_list_type.as_deref();
            schema.type_.as_deref() == Some("array")
                && (merge.is_none() || schema.default.is_some() && merge != Some("atomic"))
        });
        assert!(bad.is_empty(), "{bad:#?}");
    }

    /// Three-way diffs would show it as drift for ever.
    #[test]
    fn no_default_lies_inside_a_list_item() {
        let bad = offenders(|path, schema| path.contains("[]") && schema.default.is_some());
        assert!(bad.is_empty(), "{bad:#?}");
    }

    #[test]
    fn nothing_is_nullable() {
        assert!(offenders(|_, schema| schema.nullable.is_some()).is_empty());
    }
}
