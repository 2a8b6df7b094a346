//! Every program of ours is found by a PodMonitor, in whoever's pod it is.

use libtest_mimic::Failed;
use serde_json::{Map, Value};

use crate::api::objects::read;
use crate::api::world::root;

use super::render::kustomize;

/// The names of our programs' port: in our pods, and in those of CSI drivers.
const PORTS: [&str; 2] = ["http", "bulkhead-http"];
/// What is put into pods of CSI drivers, in pods of such.
const BESIDE_DRIVERS: [&str; 2] = ["tests/it/chart/drivers", "tests/it/chart/agent-sidecar"];

pub fn every_program_is_scraped() -> Result<(), Failed> {
    let monitors = read(&root().join("config/monitoring/pod_monitor.yaml"))?;
    let mut workloads = kustomize("config/with-s3")?;
    for folder in BESIDE_DRIVERS {
        workloads.extend(kustomize(folder)?);
    }
    workloads.extend(read(&root().join("config/sidecar/sidecar_patch.yaml"))?);
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
    // Controller, agent, both of the S3 driver, the sidecars of common drivers, that of any, and an agent beside a driver.
    assert!(programs >= 12, "only {programs} programs have a port");
    Ok(())
}

/// For a Prometheus without the operator. In the pods of CSI drivers the annotations are the driver's.
pub fn our_own_pods_say_where_they_are_scraped() -> Result<(), Failed> {
    let mut workloads = kustomize("config/with-s3")?;
    for folder in BESIDE_DRIVERS {
        workloads.extend(kustomize(folder)?);
    }
    for workload in workloads.iter().filter(|it| !ports(it).is_empty()) {
        let said = fields(workload, "/spec/template/metadata/annotations");
        let said = ["prometheus.io/scrape", "prometheus.io/port"].map(|name| said.get(name).and_then(Value::as_str));
        let port = number(workload, "http").map(|port| port.to_string());
        let expected = if port.is_some() { [Some("true"), port.as_deref()] } else { [None, None] };
        assert_eq!(said, expected, "{:?}", workload.pointer("/metadata/name"));
    }
    Ok(())
}

/// Our ports of a workload's containers.
fn ports(workload: &Value) -> Vec<&str> {
    PORTS.into_iter().filter(|port| number(workload, port).is_some()).collect()
}

/// The number of a port of its containers.
fn number(workload: &Value, port: &str) -> Option<i64> {
    let containers = workload.pointer("/spec/template/spec/containers")?.as_array()?;
    let mut ports = containers.iter().filter_map(|it| it.get("ports")?.as_array()).flatten();
    ports.find(|it| it.get("name").is_some_and(|name| name == port))?.get("containerPort")?.as_i64()
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
