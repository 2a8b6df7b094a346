//! Node plugins that are not ready: new pods stay away, nobody is released, and the taint goes with its cause.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::names;
use crate::api::slim::Volume;
use crate::api::usage::PodView;
use crate::controllers::testing::*;

use super::super::decide::Effect;
use super::super::plugins::is_plugin;
use super::World;

fn tainting() -> Value {
    json!({ "triggers": { "driverPluginDown": "TaintNode" } })
}

/// The driver's plugin on a node.
pub(super) fn plugin(node: &str, ready: bool) -> PodView {
    let paths = ["/var/lib/kubelet/plugins_registry", "/var/lib/kubelet/plugins/block.example.com/"];
    let plugin = owned_by(pod(&format!("plugin-{node}"), node, &[local("h")]), Some("DaemonSet"));
    but(plugin, |pod| {
        pod.spec.volumes = paths.iter().map(|path| host_path(path)).collect();
        pod.metadata.labels = Some([("skip".to_owned(), String::new())].into());
        if ready {
            pod.status.conditions[1].status = "True".into();
        }
    })
}

fn host_path(path: &str) -> Volume {
    serde_json::from_value(json!({ "name": "p", "hostPath": { "path": path } })).unwrap()
}

/// Four nodes, a protected pod on the last, and a plugin on each, of which these are not ready.
fn world(down: &[&str], spec: &Value) -> World {
    let mut pods = vec![but(pod("pg", "n3", &[csi("v1")]), |pod| pod.status.conditions[1].status = "True".into())];
    pods.extend((0..4).map(|i| format!("n{i}")).map(|node| plugin(&node, !down.contains(&node.as_str()))));
    World::new((0..4).map(|i| node(&format!("n{i}"))).collect(), pods, vec![policy("db", spec)])
}

impl World {
    pub(super) fn plugin_becomes(&mut self, node: &str, plugin: Option<PodView>) {
        let pods = self.seen.pods.entry(node.to_owned()).or_default();
        pods.retain(|pod| !pod.name().starts_with("plugin-"));
        pods.extend(plugin);
    }

    /// Nodes with our taint.
    fn plugin_taints(&self) -> Vec<String> {
        let nodes = self.seen.nodes.iter().map(|(node, _)| node);
        let tainted =
            nodes.filter(|node| node.taint("driver-down.bulkhead.dev/block.example.com", "NoSchedule").is_some());
        tainted.filter_map(|node| node.metadata.name.clone()).collect()
    }
}

#[test]
fn the_taint_lasts_as_long_as_its_cause() {
    let mut world = world(&["n0"], &tainting());
    world.rest();
    assert_eq!(world.plugin_taints(), ["n0"]);
    world.plugin_becomes("n0", Some(plugin("n0", true)));
    world.rest();
    assert_eq!(world.plugin_taints(), [""; 0], "it is ready again");
    world.plugin_becomes("n0", Some(plugin("n0", false)));
    world.rest();
    assert_eq!(world.plugin_taints(), ["n0"]);
    world.plugin_becomes("n0", None);
    world.rest();
    assert_eq!(world.plugin_taints(), [""; 0], "it is not to run there any more");
}

#[test]
fn it_stays_though_the_last_protected_pod_is_elsewhere_and_goes_with_the_policy() {
    let mut world = world(&["n0"], &tainting());
    world.rest();
    let pods = world.seen.pods.get_mut("n3").unwrap();
    pods.retain(|pod| pod.name() != "pg");
    world.rest();
    assert_eq!(world.plugin_taints(), ["n0"]);
    world.seen.policies[0] = Arc::new(policy("db", &json!({})));
    world.rest();
    assert_eq!(world.plugin_taints(), [""; 0]);
    let mut other = self::world(&["n0"], &tainting());
    other.rest();
    other.seen.policies.clear();
    other.rest();
    assert_eq!(other.plugin_taints(), [""; 0], "the last policy is gone");
}

#[test]
fn when_nobody_is_tainted() {
    type Case = (&'static str, &'static [&'static str], Value, fn(&mut World));
    let nothing: fn(&mut World) = |_| {};
    let cases: [Case; 6] = [
        ("no policy asks", &["n0"], json!({}), nothing),
        ("all are ready", &[], tainting(), nothing),
        ("nobody protected uses the driver", &["n0"], tainting(), |w| {
            w.seen.pods.get_mut("n3").unwrap().retain(|pod| pod.name() != "pg");
        }),
        ("one of two policies does not want it", &["n0"], tainting(), |w| {
            w.seen.policies.push(Arc::new(policy("other", &json!({}))));
        }),
        ("too many are down", &["n0", "n1", "n2"], tainting(), nothing),
        ("the node is not ready itself", &["n0"], tainting(), |w| w.node_becomes(unreachable("n0"))),
    ];
    for (name, down, spec, change) in cases {
        let mut world = world(down, &spec);
        change(&mut world);
        world.rest();
        assert_eq!(world.plugin_taints(), [""; 0], "{name}");
    }
}

/// Row 17 of what podmon lacks (docs/resiliency-requirements.md): a rolling upgrade deletes no pod, not even where one
/// is idle and not Ready.
#[test]
fn a_rolling_upgrade_releases_nobody() {
    let mut spec = tainting();
    json_patch::merge(&mut spec, &json!({ "detection": { "taints": [{ "key": "*" }] } }));
    let mut world = world(&[], &spec);
    let idle = (0..4).map(|i| (format!("n{i}"), pod(&format!("idle-{i}"), &format!("n{i}"), &[csi(&format!("i{i}"))])));
    for (node, pod) in idle {
        world.seen.pods.get_mut(&node).unwrap().push(pod);
    }
    for node in ["n0", "n1", "n2", "n3"] {
        for plugin in [Some(plugin(node, false)), None, Some(plugin(node, false)), Some(plugin(node, true))] {
            world.plugin_becomes(node, plugin);
            for _ in 0..3 {
                let effects = world.pass();
                let harmless = |effect: &Effect| {
                    matches!(effect, Effect::AddTaint { .. } | Effect::RemoveTaint { .. } | Effect::Record(_))
                };
                assert!(effects.iter().all(harmless), "{node}: {effects:?}");
            }
        }
    }
    assert_eq!(world.opened(), 0);
    assert_eq!(world.plugin_taints(), [""; 0]);
}

#[test]
fn how_a_plugin_is_known() {
    let with = |kind: Option<&str>, paths: &[&str]| {
        let view = owned_by(pod("x", "n0", &[]), kind);
        but(view, |pod| pod.spec.volumes = paths.iter().map(|path| host_path(path)).collect())
    };
    let registry = "/var/lib/kubelet/plugins_registry/";
    let cases = [
        ("as all are", with(Some("DaemonSet"), &[registry, "/var/lib/kubelet/plugins/block.example.com"]), true),
        ("another root", with(Some("DaemonSet"), &["/k0s/plugins_registry", "/k0s/plugins/block.example.com/x"]), true),
        ("another driver", with(Some("DaemonSet"), &[registry, "/var/lib/kubelet/plugins/file.example.com"]), false),
        ("a name that only contains it", with(Some("DaemonSet"), &[registry, "/plugins/block.example.com.old"]), false),
        ("who registers nothing", with(Some("DaemonSet"), &["/var/lib/kubelet/plugins/block.example.com"]), false),
        ("a controller plugin", with(Some("ReplicaSet"), &[registry, "/plugins/block.example.com"]), false),
    ];
    for (name, pod, expected) in cases {
        assert_eq!(is_plugin(&pod.pod, DRIVER), expected, "{name}");
    }
    // As the charts of dell/helm-charts mount them: four of the five are not named after their driver.
    let dell = [
        ("csi-vxflexos.dellemc.com", "vxflexos.emc.dell.com"),
        ("csi-unity.dellemc.com", "unity.emc.dell.com"),
        ("csi-powermax.dellemc.com", "powermax.emc.dell.com"),
        ("csi-isilon.dellemc.com", "csi-isilon"),
        ("csi-powerstore.dellemc.com", "csi-powerstore.dellemc.com"),
    ];
    for (_, folder) in dell {
        let pod = with(Some("DaemonSet"), &[registry, &format!("/var/lib/kubelet/plugins/{folder}")]);
        let known: Vec<_> = dell.iter().map(|(driver, _)| *driver).filter(|it| is_plugin(&pod.pod, it)).collect();
        let expected: Vec<_> = dell.iter().filter(|(_, it)| *it == folder).map(|(driver, _)| *driver).collect();
        assert_eq!(known, expected, "{folder}");
    }
}

#[test]
fn the_taint_is_one_that_the_api_takes() {
    let longest = "d".repeat(63);
    let key = names::driver_down_taint(&longest);
    let (prefix, name) = key.split_once('/').expect("a qualified name");
    assert!(prefix.len() <= 253 && name.len() <= 63);
}
