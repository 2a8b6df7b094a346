//! The chart and `config/` make the same objects, but for what is Helm's own.

use std::collections::{BTreeMap, BTreeSet};

use libtest_mimic::Failed;
use serde_json::Value;

use super::render::{kustomize, template};

/// Labels that Helm's conventions ask for.
const HELM_LABELS: [&str; 4] =
    ["app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"];
/// What annotations of Helm, and those that restart pods when settings change, begin with.
const HELM_ANNOTATIONS: [&str; 3] = ["helm.sh/", "meta.helm.sh/", "checksum/"];

/// kustomize's images are placeholders, without registry and with the tag `latest`.
const IMAGES: &str =
    "image.tag=latest,s3.controller.provisioner.image.registry=,s3.controller.provisioner.image.tag=latest";
const NAMESPACE: &str = "namespaces.release=true";
const S3: &str = "s3.enabled=true,s3.endpointUrl=https://s3.example.com";

pub fn objects_of_kustomize() -> Result<(), Failed> {
    let cases: [(&str, &[&str], &[&str]); 6] = [
        // Helm itself makes the namespace of a release.
        ("config/default", &[], &["v1 Namespace /bulkhead-system: only in config/default"]),
        ("config/default", &["--set", NAMESPACE], &[]),
        ("config/before-1.36", &["--set", NAMESPACE, "--kube-version", "1.35.0"], &[]),
        ("config/before-1.36", &["--set", NAMESPACE, "--set", "admissionPolicies.schedulingGate=false"], &[]),
        ("config/with-s3", &["--set", NAMESPACE, "--set", S3], &[]),
        (
            "tests/it/chart/network-policies",
            &["--set", NAMESPACE, "--set", S3, "--set", "networkPolicies.enabled=true"],
            &[],
        ),
    ];
    for (folder, values, expected) in cases {
        let chart = template(&[&["--set", IMAGES][..], values].concat())?;
        let found = differences(folder, kustomize(folder)?, chart)?;
        if found != expected {
            return Err(format!("{folder} and the chart with {values:?} differ:\n{}", found.join("\n")).into());
        }
    }
    Ok(())
}

pub fn monitoring() -> Result<(), Failed> {
    let switches =
        "monitoring.podMonitor.enabled=true,monitoring.rules.enabled=true,monitoring.dashboards.enabled=true";
    let mut chart = template(&["--set", switches])?;
    let is_dashboard = |object: &Value| object.pointer("/metadata/labels/grafana_dashboard").is_some();
    chart.retain(|object| part(object, "/apiVersion").starts_with("monitoring.coreos.com/") || is_dashboard(object));
    let found = differences("config/monitoring", kustomize("tests/it/chart/monitoring")?, chart)?;
    if found.is_empty() { Ok(()) } else { Err(found.join("\n").into()) }
}

/// A line for each difference.
fn differences(folder: &str, kustomize: Vec<Value>, chart: Vec<Value>) -> Result<Vec<String>, Failed> {
    let (kustomize, chart) = (by_name(kustomize)?, by_name(chart)?);
    let names: BTreeSet<_> = kustomize.keys().chain(chart.keys()).collect();
    let mut found = Vec::new();
    for name in names {
        match (kustomize.get(name), chart.get(name)) {
            (Some(shipped), Some(rendered)) => compare(name, shipped, rendered, &mut found),
            (Some(_), None) => found.push(format!("{name}: only in {folder}")),
            (None, _) => found.push(format!("{name}: only in the chart")),
        }
    }
    Ok(found)
}

fn by_name(objects: Vec<Value>) -> Result<BTreeMap<String, Value>, Failed> {
    let mut found = BTreeMap::new();
    for object in objects {
        let (version, kind) = (part(&object, "/apiVersion"), part(&object, "/kind"));
        let key = format!("{version} {kind} {}/{}", part(&object, "/metadata/namespace"), name(&object));
        if found.insert(key.clone(), comparable("", object)).is_some() {
            return Err(format!("{key} is there twice").into());
        }
    }
    Ok(found)
}

fn name(object: &Value) -> &str {
    part(object, "/metadata/name")
}

/// The text at a place of an object; nothing where there is none.
pub fn part<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Without what is Helm's own, and with environment variables in order. `key` is the field that holds the value.
fn comparable(key: &str, value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.into_iter().filter(|(name, _)| !is_helms(key, name));
            let compared = kept.map(|(name, value)| {
                let value = comparable(&name, value);
                (name, value)
            });
            // Nothing else was in them.
            let is_left = |(name, value): &(String, Value)| {
                !(matches!(name.as_str(), "labels" | "annotations")
                    && value.as_object().is_some_and(|it| it.is_empty()))
            };
            Value::Object(compared.filter(is_left).collect())
        }
        Value::Array(values) => {
            let mut values: Vec<_> = values.into_iter().map(|value| comparable("", value)).collect();
            if key == "env" {
                values.sort_by_cached_key(|variable| part(variable, "/name").to_owned());
            }
            Value::Array(values)
        }
        other => other,
    }
}

fn is_helms(parent: &str, name: &str) -> bool {
    match parent {
        "labels" => HELM_LABELS.contains(&name),
        "annotations" => HELM_ANNOTATIONS.iter().any(|prefix| name.starts_with(prefix)),
        _ => false,
    }
}

fn compare(path: &str, shipped: &Value, rendered: &Value, found: &mut Vec<String>) {
    match (shipped, rendered) {
        (Value::Object(shipped), Value::Object(rendered)) => {
            let names: BTreeSet<_> = shipped.keys().chain(rendered.keys()).collect();
            for name in names {
                let of = |fields: &serde_json::Map<String, Value>| fields.get(name).cloned().unwrap_or_default();
                compare(&format!("{path}.{name}"), &of(shipped), &of(rendered), found);
            }
        }
        (Value::Array(shipped), Value::Array(rendered)) if shipped.len() == rendered.len() => {
            for (index, (shipped, rendered)) in shipped.iter().zip(rendered).enumerate() {
                compare(&format!("{path}[{index}]"), shipped, rendered, found);
            }
        }
        _ if shipped != rendered => found.push(format!("{path}: {shipped} in kustomize, {rendered} in the chart")),
        _ => {}
    }
}
