//! Every program of ours is found by a PodMonitor, in whoever's pod it is.

use std::fs;

use libtest_mimic::Failed;
use serde_json::{Map, Value};

use crate::api::objects::read;
use crate::api::world::root;

use super::render::kustomize;

/// The names of our programs' port: in our pods, and in those of CSI drivers.
const PORTS: [&str; 2] = ["http", "bulkhead-http"];
/// What is put into pods of CSI drivers.
const PATCHES: [&str; 2] = ["config/sidecar/sidecar_patch.yaml", "config/agent-sidecar/agent_patch.yaml"];

pub fn every_program_is_scraped() -> Result<(), Failed> {
    let monitors = read(&root().join("config/monitoring/pod_monitor.yaml"))?;
    let mut workloads = kustomize("config/with-s3")?;
    for patch in PATCHES {
        workloads.extend(read(&root().join(patch))?);
    }
    for driver in fs::read_dir(root().join("config/sidecar/drivers"))? {
        workloads.extend(read(&driver?.path().join("sidecar_patch.yaml"))?);
    }
    let mut programs = 0;
    for workload in &workloads {
        for port in ports(workload) {
            programs += 1;
            let labels = fields(workload, "/spec/template/metadata/labels");
            if !monitors.iter().any(|monitor| finds(monitor, &labels, port)) {
                return Err(format!("no PodMonitor finds port {port} of pods with {labels:?}").into());
            }
        }
    }
    // Controller, agent, node service, the two patches, and the drivers that have one of their own.
    assert!(programs >= 11, "only {programs} programs have a port");
    Ok(())
}

/// Our ports of a workload's containers.
fn ports(workload: &Value) -> Vec<&str> {
    let list = |of: &Value, pointer: &str| of.pointer(pointer).and_then(Value::as_array).cloned().unwrap_or_default();
    let containers = list(workload, "/spec/template/spec/containers");
    let names: Vec<_> = containers.iter().flat_map(|container| list(container, "/ports")).collect();
    let is_there = |port: &&str| names.iter().any(|it| it.pointer("/name").is_some_and(|name| name == *port));
    PORTS.into_iter().filter(is_there).collect()
}

fn finds(monitor: &Value, labels: &Map<String, Value>, port: &str) -> bool {
    let wanted = fields(monitor, "/spec/selector/matchLabels");
    let endpoints = monitor.pointer("/spec/podMetricsEndpoints").and_then(Value::as_array);
    let is_asked = endpoints.into_iter().flatten().any(|it| it.pointer("/port").is_some_and(|name| name == port));
    is_asked && !wanted.is_empty() && wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

fn fields(object: &Value, pointer: &str) -> Map<String, Value> {
    object.pointer(pointer).and_then(Value::as_object).cloned().unwrap_or_default()
}
