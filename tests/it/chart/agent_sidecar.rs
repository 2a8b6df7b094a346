//! The component `config/agent-sidecar` and its rights: the same agent as that of the DaemonSet, in a driver's node pods.

use std::collections::BTreeSet;

use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::render::kustomize;
use super::rights::{container, of_kind};
use super::same::part;

/// The driver's DaemonSet, the component, and the rights.
const TOGETHER: &str = "tests/it/chart/agent-sidecar";
/// What is not the same: its name, its port, and who asks whether it is ready.
const OF_ITS_OWN: [&str; 4] = ["name", "args", "ports", "readinessProbe"];

pub fn the_agent_beside_a_driver_is_that_of_the_daemonset() -> Result<(), Failed> {
    let (objects, shipped) = (kustomize(TOGETHER)?, kustomize("config/agent")?);
    let of_driver = of_kind(&objects, "DaemonSet").next().ok_or("no DaemonSet")?;
    let alone = of_kind(&shipped, "DaemonSet").next().ok_or("no DaemonSet of ours")?;
    let (beside, agent) = (container(of_driver, "bulkhead-node-agent"), container(alone, "agent"));
    let (beside, agent) = (beside.ok_or("no agent beside the driver")?, agent.ok_or("no agent")?);
    assert!(container(of_driver, "driver").is_some(), "the driver is there still: {of_driver}");
    assert_eq!(the_same(beside), the_same(agent));
    let port = beside.pointer("/ports/0/containerPort").and_then(Value::as_i64).unwrap_or_default();
    assert_eq!(without_port(beside), without_port(agent));
    assert!(listens(beside).contains(&json!(format!("--listen=0.0.0.0:{port}"))), "{beside}");
    assert_ne!(listens(beside), listens(agent), "both may be on one node, whose network they share");
    assert_eq!(beside.get("readinessProbe"), None, "it must not take the driver's pod out of service");
    for place in ["/spec/template/spec/hostPID", "/spec/template/metadata/labels/bulkhead.dev~1node-agent"] {
        assert!(alone.pointer(place).is_some() && of_driver.pointer(place) == alone.pointer(place), "{place}");
    }
    Ok(())
}

/// Whoever runs it has the roles of the DaemonSet's account, and no others.
pub fn it_has_the_rights_of_the_daemonset() -> Result<(), Failed> {
    let granted = |objects: &[Value], namespace: &str, name: &str| {
        let account = json!({ "kind": "ServiceAccount", "name": name, "namespace": namespace });
        let bindings = objects.iter().filter(|it| it.pointer("/subjects/0") == Some(&account));
        let roles = bindings.map(|it| [part(it, "/metadata/namespace"), part(it, "/roleRef/name")].map(str::to_owned));
        roles.collect::<BTreeSet<_>>()
    };
    let agent = granted(&kustomize("config/rbac")?, "bulkhead-node-agent", "bulkhead-node-agent");
    assert!(!agent.is_empty(), "the agent has no roles");
    assert_eq!(granted(&kustomize(TOGETHER)?, "csi-example", "csi-node"), agent);
    Ok(())
}

/// A container without what is its own. Its probe asks a port of another name.
fn the_same(container: &Value) -> Value {
    let mut rest = container.clone();
    if let Some(fields) = rest.as_object_mut() {
        fields.retain(|name, _| !OF_ITS_OWN.contains(&name.as_str()));
    }
    if let Some(port) = rest.pointer_mut("/livenessProbe/httpGet/port") {
        *port = Value::Null;
    }
    rest
}

fn listens(container: &Value) -> Vec<Value> {
    arguments(container, true)
}

fn without_port(container: &Value) -> Vec<Value> {
    arguments(container, false)
}

/// The arguments that say where it listens, or all others.
fn arguments(container: &Value, listen: bool) -> Vec<Value> {
    let all = container.get("args").and_then(Value::as_array).into_iter().flatten();
    let is_it = |it: &&Value| it.as_str().is_some_and(|it| it.starts_with("--listen=")) == listen;
    all.filter(is_it).cloned().collect()
}
