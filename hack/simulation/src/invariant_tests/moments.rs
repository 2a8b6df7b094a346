//! Judges that go by moments: what whoever wrote could know when he decided, from the first minute on.

use std::sync::Arc;

use bulkhead::api::driver_report::PathState;
use bulkhead::api::fence_request::FenceRequest;
use bulkhead::api::names;
use bulkhead::api::node_fence::{Channel, NodeFence, STORAGE_PATH_LOSS};
use bulkhead::api::slim::{Node, Pod};
use bulkhead::api::usage::PodView;
use bulkhead::controllers::resiliency_policy::decide::{Decision, Effect};
use k8s_openapi::api::core::v1::Taint;
use serde_json::json;

use crate::api::Op;
use crate::chance::Prompt;
use crate::faults::Fault;
use crate::oracle::programs::plugin;
use crate::others::Power;
use crate::people::Person;
use crate::process::queue::Key;
use crate::run::settle;
use crate::shape::{Shape, handle, policy};
use crate::shapes::node_plugin;
use crate::stories::network::by_network;
use crate::time::{MINUTE, SECOND};
use crate::world::{Purpose, Task, World};

use super::power::switched_off;
use super::{befalls, end_all, fence_of, incarnation, just_failed, planned_again, well, writes};

/// The only driver.
const DRIVER: &str = "block.example.com";

/// A NodeFence of a node that is well, for the sake of a path that it has lost.
fn for_paths(world: &World, node: &str) -> Box<NodeFence> {
    let mut fence = fence_of(world, node);
    fence.spec.plan.evidence.iter_mut().for_each(|it| it.channel = Channel::Storage);
    fence.spec.plan.pods.iter_mut().for_each(|row| row.reason = STORAGE_PATH_LOSS.into());
    fence
}

fn is_broken(world: &World, invariant: &str) -> bool {
    world.oracle.violations.iter().any(|it| it.invariant == invariant)
}

#[test]
fn i3_pods_move_off_a_node_that_reaches_its_storage() {
    let lost = vec!["n1".to_owned()];
    for (name, told, is_wrong) in [
        ("lost", vec![lost.clone()], false),
        ("another node's", vec![vec!["n2".to_owned()]], true),
        ("nobody's", vec![Vec::new()], true),
        ("back", vec![lost, Vec::new()], true),
    ] {
        let mut world = just_failed();
        for nodes in told {
            let fault = Fault::TellPaths(DRIVER.into(), nodes, PathState::Disconnected);
            world.perform(Task::Fault(Box::new(fault)), &mut Prompt);
        }
        let later = world.now + SECOND;
        assert!(world.run_until(later, &mut Prompt), "{name}: {:?}", world.oracle.violations);
        let fence = for_paths(&world, "n1");
        writes(&mut world, Op::CreateFence(fence));
        assert_eq!(is_broken(&world, "I3"), is_wrong, "{name}: {:?}", world.oracle.violations);
    }
}

#[test]
fn i3_a_node_is_tainted_for_a_plugin_that_is_well() {
    for (name, fails_at, mended_at, is_wrong) in
        [("well", None, None, true), ("fails", Some(20), None, false), ("mended", Some(10), Some(20), true)]
    {
        let mut shape = Shape::plain();
        shape.workloads.push(node_plugin(DRIVER));
        let mut world = World::new(Arc::new(shape));
        if let Some(second) = fails_at {
            befalls(&mut world, second * SECOND, Fault::FailProgram(plugin(DRIVER)));
        }
        if let Some(second) = mended_at {
            befalls(&mut world, second * SECOND, Fault::MendProgram(plugin(DRIVER)));
        }
        assert!(world.run_until(50 * SECOND, &mut Prompt), "{name}: {:?}", world.oracle.violations);
        let node = world.api.get::<Node>("n0").unwrap();
        let key = names::driver_down_taint(DRIVER);
        let taint = Taint { key, value: None, effect: "NoSchedule".into(), time_added: None };
        writes(&mut world, Op::AddTaint(node, taint));
        assert_eq!(is_broken(&world, "I3"), is_wrong, "{name}: {:?}", world.oracle.violations);
    }
}

/// A node that failed and one that did not, each by the addresses of its own.
#[test]
fn i3_a_node_that_is_well_is_shut_out_of_its_storage() {
    for (node, is_wrong) in [("n0", false), ("n1", true)] {
        let mut world = just_failed();
        assert!(world.run_until(2 * MINUTE, &mut Prompt), "{:?}", world.oracle.violations);
        let mut request = FenceRequest::clone(world.api.requests.values().next().expect("a request"));
        request.spec.node_name = node.into();
        let address = world.own_address(node);
        world.judge_shut_out(2, &request, &[address]);
        assert_eq!(is_broken(&world, "I3"), is_wrong, "{node}: {:?}", world.oracle.violations);
    }
}

/// The first node is cut off from the API, and what is to be done is on record.
pub(super) fn planned(shape: Shape) -> World {
    let mut world = World::new(Arc::new(shape));
    befalls(&mut world, 40 * SECOND, Fault::Disconnect("n0".into()));
    let has_rows = |world: &World| {
        let status = world.api.get::<NodeFence>("n0").and_then(|fence| fence.status.clone());
        status.is_some_and(|status| !status.volumes.is_empty())
    };
    while !has_rows(&world) && world.now < 3 * MINUTE && world.step(&mut Prompt) {}
    assert!(has_rows(&world) && world.oracle.is_clean(), "{:?} at {}", world.oracle.violations, world.now);
    world
}

/// What lists nothing can be fenced by its network all the same, and so it must be.
#[test]
fn i7_a_network_fence_needs_no_list() {
    for is_over in [false, true] {
        let mut shape = by_network(false);
        shape.drivers.iter_mut().for_each(|driver| driver.lists = false);
        let mut world = planned(shape);
        if is_over {
            end_all(&mut world);
        }
        settle(&mut world, &mut Prompt);
        assert_eq!(is_broken(&world, "I7"), is_over, "{:?}", world.oracle.violations);
        assert_eq!(world.counts.released, u64::from(!is_over), "{:?}", world.oracle.violations);
    }
}

/// What is said to be in doubt is so only where the Node is another one by now; and addresses do not change.
#[test]
fn i7_nobody_is_shut_out_though_the_node_is_as_it_was() {
    for (reason, is_another, is_wrong) in [
        ("IdentityAmbiguous", false, true),
        ("IdentityAmbiguous", true, false),
        ("AddressesChanged", false, true),
        ("AddressesChanged", true, true),
    ] {
        let mut world = planned(by_network(false));
        end_all(&mut world);
        world.api.update::<NodeFence>("n0", |fence| {
            let rows = fence.status.iter_mut().flat_map(|status| &mut status.volumes);
            rows.for_each(|row| row.reason = Some(reason.into()));
        });
        if is_another {
            world.api.update::<Node>("n0", |node| node.status.node_info.boot_id = "another".into());
        }
        settle(&mut world, &mut Prompt);
        assert_eq!(is_broken(&world, "I7"), is_wrong, "{reason} {is_another}: {:?}", world.oracle.violations);
    }
}

/// Where a detach revokes nothing: a writer that goes on when its pod is gone, whoever has removed that.
#[test]
fn i1_a_second_writer_is_judged_where_nobody_else_made_it() {
    for (by_a_person, is_wrong) in [(false, true), (true, false)] {
        let mut world = World::new(Arc::new(by_network(false)));
        assert!(world.run_until(MINUTE, &mut Prompt), "{:?}", world.oracle.violations);
        let uid = world.machines["n0"].running[0].uid.clone();
        world.arrays.values_mut().next().unwrap().publish(&handle("v0"), "id-n1");
        world.machines.get_mut("n1").unwrap().running.push(incarnation("v0", 999));
        if by_a_person {
            world.oracle.released_by_a_person(&uid);
        }
        world.oracle.touch();
        world.judge();
        assert_eq!(is_broken(&world, "I1"), is_wrong, "{:?}", world.oracle.violations);
    }
}

/// A person removes the pod by force; its machine is shut out all the same, and then let in while it runs on.
#[test]
fn i1_a_second_writer_that_somebody_else_made_is_let_in_again() {
    for was_shut_out in [false, true] {
        let mut world = planned(by_network(false));
        assert!(world.run_until(4 * MINUTE, &mut Prompt), "{:?}", world.oracle.violations);
        let uid = world.machines["n0"].running[0].uid.clone();
        let let_in = |world: &mut World| world.arrays.get_mut(DRIVER).unwrap().shut_out.clear();
        if !was_shut_out {
            let_in(&mut world);
        }
        world.oracle.released_by_a_person(&uid);
        world.oracle.touch();
        world.judge();
        assert!(world.oracle.is_clean(), "{:?}", world.oracle.violations);
        let_in(&mut world);
        world.oracle.touch();
        world.judge();
        assert_eq!(is_broken(&world, "I1"), was_shut_out, "{:?}", world.oracle.violations);
    }
}

#[test]
fn i14_a_program_is_moved_that_no_policy_selects() {
    let mut shape = Shape::plain();
    shape.policies = vec![policy("all", &["queue"], &json!({}))];
    let mut world = World::new(Arc::new(shape));
    befalls(&mut world, 40 * SECOND, Fault::FailProgram("db".into()));
    assert!(world.run_until(MINUTE, &mut Prompt), "{:?}", world.oracle.violations);
    let pod = world.api.get::<Pod>("db-0").unwrap();
    assert!(pod.crash_looping().is_some());
    writes(&mut world, Op::DeletePod(pod, None));
    assert!(is_broken(&world, "I14"), "{:?}", world.oracle.violations);
}

#[test]
fn i12_a_program_is_moved_though_people_said_not_to() {
    for (name, mode, person, is_wrong) in [
        ("nobody says so", "Enforce", None, false),
        ("people are asked first", "RequireApproval", None, true),
        ("it is only rehearsed", "DryRun", None, true),
        ("its policy is paused", "Enforce", Some(Person::PausePolicies), true),
    ] {
        let mut shape = Shape::plain();
        shape.policies = vec![policy("all", &["db", "queue"], &json!({ "mode": mode }))];
        let mut world = World::new(Arc::new(shape));
        person.iter().for_each(|person| world.person(person));
        assert!(world.run_until(50 * SECOND, &mut Prompt), "{name}: {:?}", world.oracle.violations);
        let pod = PodView::new(world.api.get::<Pod>("db-0").unwrap(), world.shape.as_ref());
        let effects = vec![Effect::Reschedule { pod, note: String::new() }];
        world.notice_cluster(0, &Decision { effects, ..Decision::default() });
        assert_eq!(is_broken(&world, "I12"), is_wrong, "{name}: {:?}", world.oracle.violations);
    }
}

#[test]
fn i14_a_program_is_moved_that_only_the_process_sees_fail() {
    let mut world = well();
    let mut pod = Pod::clone(&world.api.get::<Pod>("db-0").unwrap());
    let status = json!({ "name": "main", "state": { "waiting": { "reason": "CrashLoopBackOff" } } });
    pod.status.container_statuses = vec![serde_json::from_value(status).unwrap()];
    writes(&mut world, Op::DeletePod(Arc::new(pod), None));
    assert!(is_broken(&world, "I14"), "{:?}", world.oracle.violations);
}

#[test]
fn i2_a_late_deletion_was_sent_while_the_node_that_is_called_switched_off_ran() {
    for ran in [true, false] {
        let mut world = switched_off();
        let pod = planned_again(&mut world);
        world.arrays.values_mut().next().unwrap().publish(&handle("v0"), "id-n0");
        let machine = world.machines.get_mut("n0").unwrap();
        machine.power = if ran { Power::Running } else { Power::Off };
        machine.running.push(incarnation("v0", 1));
        world.oracle.touch();
        world.judge();
        let (op, sent) = (Op::DeletePod(pod, Some(0)), world.now);
        let id = world.post(0, &Key::Cluster, op, Purpose::Plan, sent, SECOND, &mut Prompt);
        world.now += SECOND;
        world.machines.get_mut("n0").unwrap().power = Power::Off;
        world.oracle.touch();
        world.judge();
        world.now += 10 * SECOND;
        world.land(id, &mut Prompt);
        assert_eq!(is_broken(&world, "I2"), ran, "{:?}", world.oracle.violations);
    }
}
