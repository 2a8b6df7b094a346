//! What helm and kustomize make of the tree.

use std::path::{Path, PathBuf};
use std::process::Command;

use bulkhead_testbed::binaries::{Binaries, Program};
use serde_json::Value;

use crate::api::world::root;

/// The only namespace that it goes into.
const NAMESPACE: &str = "bulkhead-system";
/// What helm prints between two objects.
const BETWEEN: &str = "\n---\n";

/// The chart's folder.
pub fn chart() -> PathBuf {
    root().join("charts/bulkhead")
}

/// What `helm template` makes of the chart with these values: `--set`, `-f` and the like.
pub fn template(values: &[&str]) -> Result<Vec<Value>, String> {
    objects(&printed(values)?)
}

/// The same as helm prints it.
pub fn printed(values: &[&str]) -> Result<String, String> {
    helm("template", NAMESPACE, values)
}

/// Whether two such texts are of the same objects, in the same order. What is the same text is not read, up to what differs.
pub fn are_same(one: &str, other: &str) -> Result<bool, String> {
    let pairs = one.split(BETWEEN).zip(other.split(BETWEEN));
    for (one, other) in pairs.filter(|(one, other)| one != other) {
        match (objects(one)?.as_slice(), objects(other)?.as_slice()) {
            ([one], [other]) if one == other => {}
            ([_], [_]) => return Ok(false),
            // What is no object, or more than one, may stand at another place in the other text.
            _ => break,
        }
    }
    Ok(objects(one)? == objects(other)?)
}

/// The same in another namespace.
pub fn template_in(namespace: &str, values: &[&str]) -> Result<Vec<Value>, String> {
    objects(&helm("template", namespace, values)?)
}

/// The same of a chart in another folder.
pub fn template_of(folder: &Path, values: &[&str]) -> Result<Vec<Value>, String> {
    objects(&helm_of(folder, "template", NAMESPACE, values)?)
}

/// What `helm lint --strict` says against these values is the error.
pub fn lint(values: &[&str]) -> Result<(), String> {
    helm("lint", NAMESPACE, &[&["--strict"][..], values].concat()).map(drop)
}

/// What `kubectl kustomize` makes of a folder of ours.
pub fn kustomize(folder: &str) -> Result<Vec<Value>, String> {
    objects(&run(Program::Kubectl, &["kustomize", &root().join(folder).to_string_lossy()])?)
}

/// Without the kinds of the Prometheus operator, whose definitions no API server of the tests has.
pub fn without_operators_kinds(mut objects: Vec<Value>) -> Vec<Value> {
    let is_known = |object: &Value| {
        let version = object.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
        !version.starts_with("monitoring.coreos.com/")
    };
    objects.retain(is_known);
    objects
}

fn helm(command: &str, namespace: &str, further: &[&str]) -> Result<String, String> {
    helm_of(&chart(), command, namespace, further)
}

fn helm_of(folder: &Path, command: &str, namespace: &str, further: &[&str]) -> Result<String, String> {
    let folder = folder.to_string_lossy().into_owned();
    let fixed: [&str; 4] = [command, &folder, "--namespace", namespace];
    // Its tests are hooks, which are no part of a release.
    let without_tests: &[&str] = if command == "template" { &["--skip-tests"] } else { &[] };
    run(Program::Helm, &[&fixed[..], without_tests, further].concat())
}

/// What a program prints; what it says when it fails is the error.
fn run(program: Program, arguments: &[&str]) -> Result<String, String> {
    let binaries = Binaries::ensure_all(None, &[program]).map_err(|error| error.to_string())?;
    let output = Command::new(binaries.path(program)).args(arguments).output().map_err(|error| error.to_string())?;
    let (printed, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // `helm lint` says on its output what is wrong.
    if output.status.success() { Ok(printed.into_owned()) } else { Err(format!("{said}{printed}")) }
}

fn objects(text: &str) -> Result<Vec<Value>, String> {
    let found: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| error.to_string())?;
    // A document of comments only.
    Ok(found.into_iter().filter(|object| !object.is_null()).collect())
}
