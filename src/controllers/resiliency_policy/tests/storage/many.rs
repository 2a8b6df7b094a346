//! Paths of many nodes at once: `maxUnhealthy` holds for them too, whichever backends they are to.

use serde_json::{Value, json};

use crate::api::driver_report::PathState;
use crate::api::resiliency_policy::RestraintType;
use crate::api::usage::PodView;
use crate::controllers::testing::*;

use super::super::World;
use super::super::plugins::plugin;
use super::{OTHER, world};

/// A pod on each of the six nodes.
fn one_each() -> Vec<PodView> {
    (0..6).map(|i| pod(&format!("p{i}"), &format!("n{i}"), &[csi(&format!("v{i}"))])).collect()
}

/// The same, and two more that use the other driver.
fn of_two_drivers() -> Vec<PodView> {
    let others = (2..4).map(|i| pod(&format!("q{i}"), &format!("n{i}"), &[csi_of(OTHER, &format!("w{i}"))]));
    one_each().into_iter().chain(others).collect()
}

fn both(world: &mut World) {
    world.loses(&["n0", "n1"]);
    world.says_of(OTHER, &["n2", "n3"], PathState::Disconnected);
}

#[test]
fn paths_of_too_many_nodes_move_nobody_until_a_calm_has_passed() {
    let mut world = world(one_each(), &json!({ "limits": { "maxUnhealthy": 2 } }));
    // Half of the nodes that use the backend: by that alone it is not out.
    world.loses(&["n0", "n1", "n2"]);
    assert_eq!(world.decide().restrained.iter().map(|it| it.brake).collect::<Vec<_>>(), ["ArrayOutage"; 3]);
    world.rest();
    let brake = (RestraintType::ArrayOutage, None);
    assert_eq!((world.opened(), world.named_restraints()), (0, vec![brake.clone()]));
    world.loses(&["n2"]);
    world.wait(60.0);
    world.rest();
    assert_eq!((world.opened(), world.named_restraints()), (0, vec![brake]), "the calm has only begun");
    world.wait(601.0);
    world.rest();
    assert_eq!((world.opened(), world.named_restraints()), (1, vec![]), "one that is still lost is lost by itself");
}

#[test]
fn which_nodes_count() {
    type Case = (&'static str, Vec<PodView>, Value, fn(&mut World), bool);
    let tainted_too = json!({ "triggers": { "volumeTaints": ["VolumeNotUsable"] } });
    let cases: Vec<Case> = vec![
        ("no more than half", one_each(), json!({}), |w| w.loses(&["n0", "n1", "n2"]), false),
        ("of two backends together", of_two_drivers(), json!({}), both, true),
        ("of a backend that no pod uses", one_each(), json!({}), both, false),
        (
            "of one whose plugins are away",
            of_two_drivers(),
            json!({}),
            |w| {
                both(w);
                for node in ["n2", "n3"] {
                    let path = format!("/var/lib/kubelet/plugins/{OTHER}");
                    let folder = |pod: &mut crate::api::slim::Pod| {
                        pod.spec.volumes[1].source = crate::api::slim::VolumeSource::HostPath(path);
                    };
                    w.plugin_becomes(node, Some(but(plugin(node, false), folder)));
                }
            },
            false,
        ),
        (
            "with nodes that are suspected",
            one_each(),
            json!({}),
            |w| {
                w.loses(&["n0", "n1"]);
                ["n4", "n5"].iter().for_each(|name| w.node_becomes(with_ready(node(name), "False")));
            },
            true,
        ),
        (
            "with nodes whose volumes are tainted",
            one_each(),
            tainted_too,
            |w| {
                w.loses(&["n0", "n1"]);
                let health = tainted("v4", "VolumeNotUsable", &["n4", "n5"]);
                w.seen.healths.insert("v4".into(), std::sync::Arc::new(health));
            },
            true,
        ),
    ];
    for (name, pods, spec, prepare, holds) in cases {
        let mut world = world(pods, &spec);
        prepare(&mut world);
        world.rest();
        let brakes = world.named_restraints();
        assert_eq!(brakes.contains(&(RestraintType::ArrayOutage, None)), holds, "{name}: {brakes:?}");
        assert_eq!(world.opened() == 0, holds, "{name}");
    }
}

#[test]
fn a_policy_that_moves_nobody_for_a_path_counts_none() {
    let mut world =
        world(one_each(), &json!({ "triggers": { "storagePathLoss": "Ignore" }, "limits": { "maxUnhealthy": 2 } }));
    world.loses(&["n0", "n1", "n2"]);
    world.rest();
    assert_eq!(world.named_restraints(), []);
}

#[test]
fn lost_paths_hold_no_node_that_fails() {
    let mut world = world(one_each(), &json!({ "limits": { "maxUnhealthy": 2 } }));
    world.loses(&["n0", "n1", "n2"]);
    world.node_becomes(unreachable("n5"));
    world.rest();
    assert_eq!((world.opened(), world.named_restraints()), (1, vec![(RestraintType::ArrayOutage, None)]));
    assert!(!world.fence("n5").expect("it failed").spec.plan.is_by_path());
}
