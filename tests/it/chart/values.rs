//! The chart over a matrix of values.

use std::collections::BTreeSet;

use bulkhead_testbed::binaries::Program;
use libtest_mimic::Failed;
use serde_json::Value;

use super::render::{chart, lint, template};

pub const S3: &str = "s3.enabled=true,s3.endpointUrl=https://s3.example.com";
const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
/// Every component.
pub const ALL: &str = "s3.enabled=true,s3.endpointUrl=https://s3.example.com,networkPolicies.enabled=true,\
                   monitoring.podMonitor.enabled=true,monitoring.rules.enabled=true,monitoring.dashboards.enabled=true,\
                   namespaces.release=true";
/// None.
const NOTHING: &str = "crds.install=false,rbac.create=false,admissionPolicies.enabled=false,flowControl.enabled=false,\
                       controller.enabled=false,nodeAgent.enabled=false,volumeHealth.defaultPolicy=false";
/// Fields of values that are Kubernetes' own: what is in them is not ours to list.
const OF_KUBERNETES: [&str; 4] = ["affinity", "nodeSelector", "resources", "labels"];

/// Another value than the default's for each that is no switch.
pub fn full() -> String {
    chart().join("../../tests/it/chart/full.yaml").to_string_lossy().into_owned()
}

/// What `--set` and `-f` say, for what a server is shown too.
pub fn sets() -> Vec<(String, Vec<String>)> {
    let set = |name: &str, arguments: &[&str]| {
        (name.to_owned(), arguments.iter().map(|argument| (*argument).to_owned()).collect::<Vec<_>>())
    };
    let mut sets = vec![
        set("default", &[]),
        set("all", &["--set", ALL]),
        set("full", &["-f", &full()]),
        set("decommission", &["--set", S3, "--set", "decommission=true"]),
        set(
            "kubelet",
            &["--set", S3, "--set", "kubeletRootDir=/data/kubelet,nodeAgent.port=19809,heartbeats.port=19811"],
        ),
        set("telemetry", &["--set", "log.level=debug,log.format=json,tracing.otlpEndpoint=http://collector:4317"]),
    ];
    for example in ["control-plane", "s3", "before-1.36", "production"] {
        let file = chart().join(format!("examples/{example}.yaml"));
        sets.push(set(example, &["-f", &file.to_string_lossy()]));
    }
    sets
}

pub fn every_set_renders() -> Result<(), Failed> {
    let mut all = sets();
    for switch in switches()? {
        let off = format!("{switch}=false");
        all.push((off.clone(), ["--set", S3, "--set", &off].map(str::to_owned).to_vec()));
    }
    for (name, values) in all {
        let values: Vec<_> = values.iter().map(String::as_str).collect();
        let objects = lint(&values).and_then(|()| template(&values)).map_err(|error| format!("{name}: {error}"))?;
        is_unique(&objects).map_err(|twice| format!("{name}: {twice} is there twice"))?;
    }
    match template(&["--set", NOTHING])?.as_slice() {
        [] => Ok(()),
        objects => Err(format!("{} objects with everything off", objects.len()).into()),
    }
}

/// The switches that are on where nothing is said.
fn switches() -> Result<Vec<String>, Failed> {
    let values = read("values.yaml")?;
    let mut paths = Vec::new();
    leaves("", &values, &mut paths);
    let is_it = |path: &String| values.pointer(&format!("/{}", path.replace('.', "/"))) == Some(&Value::Bool(true));
    Ok(paths.into_iter().filter(is_it).collect())
}

fn is_unique(objects: &[Value]) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for object in objects {
        let parts = ["/kind", "/metadata/namespace", "/metadata/name"].map(|part| object.pointer(part).cloned());
        let key = format!("{parts:?}");
        if !seen.insert(key.clone()) {
            return Err(key);
        }
    }
    Ok(())
}

/// The level that is in force is one value, also beside a spec of the user's own.
pub fn enforcement_is_one_value() -> Result<(), Failed> {
    let level = |values: &[&str]| -> Result<Value, Failed> {
        let objects = template(values)?;
        let is_it = |object: &&Value| object.get("kind").is_some_and(|kind| kind == "VolumeHealthPolicy");
        let policy = objects.iter().find(is_it).ok_or("no policy")?;
        Ok(policy.pointer("/spec/enforcement").cloned().unwrap_or_default())
    };
    assert_eq!(level(&[])?, Value::Null);
    let enforce = "volumeHealth.enforcement=Enforce";
    assert_eq!(level(&["--set", enforce])?, "Enforce");
    assert_eq!(level(&["--set", enforce, "--set", "volumeHealth.defaultPolicySpec.priority=1"])?, "Enforce");
    let own = "volumeHealth.defaultPolicySpec.enforcement=Observe";
    assert_eq!(level(&["--set", enforce, "--set", own])?, "Observe");
    Ok(())
}

/// `kubectl logs -n kube-system deploy/s3-csi-controller -c s3-csi-controller`, of the Scality driver's pages.
pub fn cleanup_is_logged_where_upstream_looks() -> Result<(), Failed> {
    let logs = |values: &[&str]| -> Result<bool, Failed> {
        let objects = template(&[&["--set", S3][..], values].concat())?;
        let of = |object: &Value, pointer: &str, name: &str| object.pointer(pointer).is_some_and(|it| it == name);
        let is_it = |object: &&Value| {
            of(object, "/kind", "Deployment")
                && of(object, "/metadata/namespace", "kube-system")
                && of(object, "/metadata/name", "s3-csi-controller")
        };
        let list =
            |of: &Value, pointer: &str| of.pointer(pointer).and_then(Value::as_array).cloned().unwrap_or_default();
        let deployment = objects.iter().find(is_it).ok_or("no Deployment kube-system/s3-csi-controller")?;
        let containers = list(deployment, "/spec/template/spec/containers");
        let container = containers.iter().find(|it| of(it, "/name", "s3-csi-controller")).ok_or("no such container")?;
        Ok(list(container, "/env").iter().any(|it| of(it, "/name", "BULKHEAD_S3_LOG_CLEANUP")))
    };
    assert!(!logs(&[])?);
    assert!(logs(&["--set", "s3.controller.logCleanup=true"])?);
    Ok(())
}

pub fn images_are_named_by_values() -> Result<(), Failed> {
    let digest = format!("nodeAgent.image.digest={DIGEST}");
    let common = "image.registry=registry.example.com/bulkhead,image.tag=v9,image.pullPolicy=Always";
    let own = "s3.image.registry=other.example.com:5000,s3.image.tag=x,s3.image.pullPolicy=Never";
    let objects = template(&["--set", S3, "--set", common, "--set", own, "--set", &digest])?;
    let mut found = BTreeSet::new();
    for object in &objects {
        images(object, &mut found);
    }
    let expected = [
        "other.example.com:5000/bulkhead-s3-csi:x Never".to_owned(),
        "registry.example.com/bulkhead/bulkhead-controller:v9 Always".to_owned(),
        format!("registry.example.com/bulkhead/bulkhead-node-agent@{DIGEST} Always"),
        "registry.example.com/bulkhead/bulkhead-s3-mounter:v9 Always".to_owned(),
        format!("registry.k8s.io/sig-storage/csi-provisioner:{} Always", Program::CsiProvisioner.version()),
    ];
    if found == BTreeSet::from(expected) { Ok(()) } else { Err(format!("{found:?}").into()) }
}

/// Images with their pull policies, those of Mountpoint Pods too.
fn images(value: &Value, found: &mut BTreeSet<String>) {
    let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str);
    if let (Some(image), Some(policy)) = (text("/image"), text("/imagePullPolicy")) {
        found.insert(format!("{image} {policy}"));
    }
    let variable = |name: &str| {
        let variables = value.pointer("/env").and_then(Value::as_array).into_iter().flatten();
        let part = |variable: &Value, part: &str| variable.get(part).and_then(Value::as_str).map(str::to_owned);
        let of_name = variables.into_iter().find(|variable| part(variable, "name").as_deref() == Some(name));
        of_name.and_then(|variable| part(variable, "value"))
    };
    if let (Some(image), Some(policy)) = (variable("MOUNTPOINT_IMAGE"), variable("MOUNTPOINT_IMAGE_PULL_POLICY")) {
        found.insert(format!("{image} {policy}"));
    }
    match value {
        Value::Array(values) => values.iter().for_each(|value| images(value, found)),
        Value::Object(fields) => fields.values().for_each(|value| images(value, found)),
        _ => {}
    }
}

pub fn has_the_versions_that_are_built() -> Result<(), Failed> {
    let (about, values) = (read("Chart.yaml")?, read("values.yaml")?);
    for (file, pointer, built) in [
        (&about, "/version", env!("CARGO_PKG_VERSION")),
        (&about, "/appVersion", env!("CARGO_PKG_VERSION")),
        (&values, "/s3/controller/provisioner/image/tag", Program::CsiProvisioner.version()),
    ] {
        let said = file.pointer(pointer).and_then(Value::as_str);
        if said != Some(built) {
            return Err(format!("{pointer} of the chart is {said:?}, and {built} is built").into());
        }
    }
    Ok(())
}

/// A file of the chart.
pub fn read(name: &str) -> Result<Value, Failed> {
    Ok(serde_saphyr::from_str(&std::fs::read_to_string(chart().join(name))?)?)
}

pub fn the_readme_names_every_value() -> Result<(), Failed> {
    let values = read("values.yaml")?;
    let readme = std::fs::read_to_string(chart().join("README.md"))?;
    let mut paths = Vec::new();
    leaves("", &values, &mut paths);
    let missing: Vec<_> = paths.iter().filter(|path| !readme.contains(&format!("| `{path}` |"))).collect();
    let lines = readme.lines().filter(|line| line.starts_with("| `")).count();
    if !missing.is_empty() || lines != paths.len() {
        return Err(format!("README.md lacks {missing:?}, or has more than the {} values", paths.len()).into());
    }
    Ok(())
}

/// The paths of all values below one.
pub fn leaves(path: &str, value: &Value, found: &mut Vec<String>) {
    let last = path.rsplit('.').next().unwrap_or_default();
    match value.as_object().filter(|fields| !fields.is_empty() && !OF_KUBERNETES.contains(&last)) {
        Some(_) if path.ends_with("defaultPolicySpec") => found.push(path.to_owned()),
        Some(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                leaves(&path, value, found);
            }
        }
        None => found.push(path.to_owned()),
    }
}
