//! What values do: each makes something else, what is switched off is gone, and what is renamed is so everywhere.

use std::collections::BTreeSet;

use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::render::{are_same, chart, printed, template};
use super::same::part;
use super::values::{ALL, full, leaves, read};

/// A kind, and a name; without one all of the kind.
type Gone = (&'static str, &'static str);

/// Switches, and what is not there without them.
const GONE: [(&str, &[Gone]); 14] = [
    ("crds.install", &[("CustomResourceDefinition", "")]),
    (
        "rbac.create",
        &[
            ("ServiceAccount", ""),
            ("Role", ""),
            ("RoleBinding", ""),
            ("ClusterRole", ""),
            ("ClusterRoleBinding", ""),
            ("ConfigMap", "bulkhead-heartbeat"),
        ],
    ),
    (
        "admissionPolicies.enabled",
        &[
            ("ValidatingAdmissionPolicy", ""),
            ("ValidatingAdmissionPolicyBinding", ""),
            ("MutatingAdmissionPolicy", ""),
            ("MutatingAdmissionPolicyBinding", ""),
        ],
    ),
    ("admissionPolicies.schedulingGate", &[("MutatingAdmissionPolicy", ""), ("MutatingAdmissionPolicyBinding", "")]),
    ("flowControl.enabled", &[("FlowSchema", "")]),
    (
        "heartbeats.enabled",
        &[
            ("ConfigMap", "bulkhead-heartbeat"),
            ("Role", "bulkhead-heartbeat-agent"),
            ("Role", "bulkhead-heartbeat-controller"),
            ("RoleBinding", "bulkhead-heartbeat-agent"),
            ("RoleBinding", "bulkhead-heartbeat-controller"),
        ],
    ),
    ("controller.enabled", &[("Deployment", "bulkhead-controller"), ("PodDisruptionBudget", "")]),
    (
        "nodeAgent.enabled",
        &[
            ("DaemonSet", "bulkhead-node-agent"),
            ("Namespace", "bulkhead-node-agent"),
            ("ServiceAccount", "bulkhead-node-agent"),
            ("ClusterRoleBinding", "bulkhead-node-agent"),
            ("RoleBinding", "bulkhead-heartbeat-agent"),
        ],
    ),
    ("volumeHealth.defaultPolicy", &[("VolumeHealthPolicy", "")]),
    ("networkPolicies.enabled", &[("NetworkPolicy", "bulkhead-controller")]),
    ("monitoring.podMonitor.enabled", &[("PodMonitor", "")]),
    ("monitoring.rules.enabled", &[("PrometheusRule", "")]),
    ("s3.node.enabled", &[("DaemonSet", "s3-csi-node"), ("ServiceAccount", "s3-csi-driver-sa")]),
    (
        "s3.enabled",
        &[("CSIDriver", ""), ("PriorityClass", ""), ("Namespace", "mount-s3"), ("ConfigMap", "s3-csi-settings")],
    ),
];

/// Beside everything, each value alone: a switch turned, or what `full.yaml` says.
pub fn each_value_does_something() -> Result<(), Failed> {
    let (values, full) = (read("values.yaml")?, serde_saphyr::from_str::<Value>(&std::fs::read_to_string(full())?)?);
    let everything = printed(&["--set", ALL])?;
    assert!(are_same(&everything, &everything)?, "else nothing is found to be idle");
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("value.yaml");
    let (mut paths, mut idle) = (Vec::new(), Vec::new());
    leaves("", &values, &mut paths);
    for path in paths {
        let place = format!("/{}", path.replace('.', "/"));
        let own = format!("{path}=");
        let others: Vec<_> = ALL.split(',').filter(|set| !set.starts_with(&own)).collect();
        let value = match values.pointer(&place) {
            Some(Value::Bool(is_on)) => json!(!is_on && others.len() == ALL.split(',').count()),
            _ => full.pointer(&place).cloned().ok_or_else(|| format!("full.yaml has no {path}"))?,
        };
        let alone = path.rsplit('.').fold(value, |value, name| json!({ name: value }));
        std::fs::write(&file, alone.to_string())?;
        let other = printed(&["--set", &others.join(","), "-f", &file.to_string_lossy()])?;
        if are_same(&everything, &other)? {
            idle.push(alone.to_string());
        }
    }
    if idle.is_empty() { Ok(()) } else { Err(format!("these change nothing: {}", idle.join(" ")).into()) }
}

pub fn what_is_switched_off_is_gone() -> Result<(), Failed> {
    let everything = template(&["--set", ALL])?;
    for (switch, gone) in GONE {
        let without = template(&["--set", ALL, "--set", &format!("{switch}=false")])?;
        for (kind, name) in gone {
            let is_it = |it: &&Value| part(it, "/kind") == *kind && (name.is_empty() || *name == named(it));
            assert!(everything.iter().any(|it| is_it(&it)), "no {kind} {name} with {switch}");
            let left: Vec<_> = without.iter().filter(is_it).map(named).collect();
            assert!(left.is_empty(), "without {switch} there are {kind} {left:?}");
        }
    }
    // Nothing is left that names the agents' namespace: it is not there.
    let without = template(&["--set", ALL, "--set", "nodeAgent.enabled=false"])?;
    let left: Vec<_> = without.iter().filter(|it| says(it, "bulkhead-node-agent", "/namespace")).map(named).collect();
    if left.is_empty() { Ok(()) } else { Err(format!("{left:?} name the namespace of the agents").into()) }
}

pub fn mountpoint_pods_have_a_namespace_of_any_name() -> Result<(), Failed> {
    let objects = template(&["--set", ALL, "--set", "mountpointPod.namespace=buckets"])?;
    let left: Vec<_> = objects.iter().filter(|it| says(it, "mount-s3", "")).map(named).collect();
    assert!(left.is_empty(), "{left:?} say mount-s3 still");
    let kind_and_name = |it: &Value| format!("{} {}", part(it, "/kind"), named(it));
    let there: BTreeSet<_> =
        objects.iter().filter(|it| part(it, "/metadata/namespace") == "buckets").map(kind_and_name).collect();
    let expected = [
        "NetworkPolicy mountpoint-pods",
        "Role bulkhead-controller",
        "Role s3-csi-driver",
        "RoleBinding bulkhead-controller",
        "RoleBinding s3-csi-driver",
    ];
    assert_eq!(there, expected.map(str::to_owned).into());
    assert!(objects.iter().any(|it| kind_and_name(it) == "Namespace buckets"), "nobody makes it");
    let told: BTreeSet<_> = objects
        .iter()
        .filter(|it| variable(it, "MOUNTPOINT_NAMESPACE").as_deref() == Some("buckets"))
        .map(named)
        .collect();
    assert_eq!(told, BTreeSet::from(["bulkhead-controller", "s3-csi-controller", "s3-csi-node"]));
    Ok(())
}

/// Their image is from the same registry as the others. What the template says of them itself stays.
pub fn mountpoint_pods_are_pulled_with_the_same_secrets() -> Result<(), Failed> {
    let pulled = |values: &[&str]| -> Result<Value, Failed> {
        let objects = template(&[&["--set", ALL][..], values].concat())?;
        let text = objects.iter().find_map(|it| variable(it, "MOUNTPOINT_POD_TEMPLATE"));
        Ok(text.map_or(Ok(Value::Null), |text| serde_json::from_str(&text))?)
    };
    let secrets = ["--set", "image.pullSecrets[0].name=registry"];
    let (template, own) = ("s3.mountpointPods.template.spec", "imagePullSecrets[0].name=own");
    assert_eq!(pulled(&[])?, Value::Null);
    let expected = json!({ "spec": { "imagePullSecrets": [{ "name": "registry" }] } });
    assert_eq!(pulled(&secrets)?, expected);
    let beside = format!("{template}.hostname=mounts");
    let expected = json!({ "spec": { "hostname": "mounts", "imagePullSecrets": [{ "name": "registry" }] } });
    assert_eq!(pulled(&[&secrets[..], &["--set", &beside]].concat())?, expected);
    let instead = format!("{template}.{own}");
    let expected = json!({ "spec": { "imagePullSecrets": [{ "name": "own" }] } });
    assert_eq!(pulled(&[&secrets[..], &["--set", &instead]].concat())?, expected);
    Ok(())
}

/// What the package leaves out: nothing that its README leads to.
pub fn its_examples_are_packaged() -> Result<(), Failed> {
    let left_out = std::fs::read_to_string(chart().join(".helmignore"))?;
    assert!(!left_out.lines().any(|line| line.trim_end_matches('/') == "examples"), "{left_out}");
    Ok(())
}

fn named(object: &Value) -> &str {
    part(object, "/metadata/name")
}

/// Whether a text of the object is this word, or has it in quotes; only where the path to it ends so.
fn says(value: &Value, word: &str, ending: &str) -> bool {
    fn at(path: &str, value: &Value, word: &str, ending: &str) -> bool {
        match value {
            Value::String(text) => {
                let is_said = text == word || ['\'', '"'].iter().any(|it| text.contains(&format!("{it}{word}{it}")));
                is_said && path.ends_with(ending)
            }
            Value::Array(items) => items.iter().any(|item| at(path, item, word, ending)),
            Value::Object(fields) => fields.iter().any(|(name, it)| at(&format!("{path}/{name}"), it, word, ending)),
            _ => false,
        }
    }
    at("", value, word, ending)
}

/// The value of an environment variable of any container of a workload.
fn variable(workload: &Value, name: &str) -> Option<String> {
    let containers = workload.pointer("/spec/template/spec/containers")?.as_array()?;
    let mut variables = containers.iter().filter_map(|it| it.get("env")?.as_array()).flatten();
    let found = variables.find(|it| it.get("name").is_some_and(|it| it == name))?;
    Some(found.get("value")?.as_str()?.to_owned())
}
