//! What is foreseen is what happens: in random clusters the NodeFence that the controller's passes write, second by second
//! after a node has failed, is the one that was foreseen while the node was well; what holds the node is what was foreseen to;
//! and so is what the first pass over the incident waits for.

#[path = "foresee_clusters_tests.rs"]
mod clusters;

use futures::executor::block_on;
use proptest::prelude::*;
use serde_json::json;

use crate::api::conditions;
use crate::api::names::UNREACHABLE_TAINT;
use crate::api::node_fence::{PodAction, PodStatusState};
use crate::api::slim::Lease;
use crate::controllers::node_fence::decide::Settings;
use crate::controllers::node_fence::memory::{Found as NodeFound, Incident, Live};
use crate::controllers::node_fence::rows::Rows;
use crate::controllers::node_fence::status;
use crate::controllers::resiliency_policy::decide::{Restrained, decide};
use crate::controllers::testing::*;

use super::super::print::Report;
use super::super::simulate;
use super::super::simulate::report::{Outcome, Said, Simulation};
use super::*;

use self::clusters::{PLAIN, Shape, cluster, shape};
pub(in crate::kubectl) use self::clusters::{VICTIM, lease, live_of, unreached};

/// What the stores have of a cluster: pods without volumes are in none.
fn stored(found: &Found) -> Found {
    let mut found = found.clone();
    found.pods.retain(|pod| !pod.volumes.is_empty());
    found
}

/// The controller's passes, one a second.
struct Executor {
    found: Found,
    memory: Memory,
    begun: Now,
    passed: u32,
    /// What held the victim in the last pass.
    held: BTreeSet<Restrained>,
}

impl Executor {
    fn of(shape: &Shape) -> Self {
        Self { found: cluster(shape), memory: Memory::default(), begun: now(), passed: 0, held: BTreeSet::new() }
    }

    fn now(&self) -> Now {
        later(self.begun, f64::from(self.passed))
    }

    fn pass(&mut self) {
        let now = self.now();
        // The victim's stands still for as long as Kubernetes takes to give a node up.
        let is_silent = |node: &Node| node.is_unreachable() || node.name_any() == VICTIM;
        let names: Vec<_> = self.found.nodes.iter().map(|node| (node.name_any(), is_silent(node))).collect();
        let renewed = |name: &str, silent: bool| lease(name, if silent { 0 } else { i64::from(self.passed / 10) });
        self.found.leases = names.iter().map(|(name, silent)| renewed(name, *silent)).collect();
        let mut seen = self.memory.look(stored(&self.found), (1, 1), now);
        let mut decision = decide(&seen, now);
        for name in decision.look_at.clone() {
            let (_, silence) = seen.nodes.iter().find(|(node, _)| node.name_any() == name).cloned().unwrap();
            let live = live_of(&self.found, &name).unwrap();
            seen.live.insert(name, LiveNode { silence: silence.read_live(&live.node), ..live });
        }
        if !seen.live.is_empty() {
            decision = decide(&seen, now);
        }
        self.memory.note(&decision, now);
        self.held = holding(&decision);
        decision.effects.into_iter().for_each(|effect| apply(&mut self.found, effect));
        self.passed += 1;
    }

    /// What the node lifecycle controller does with the victim.
    fn fail(&mut self) {
        let victim = self.found.nodes.iter_mut().find(|node| node.name_any() == VICTIM).unwrap();
        *victim = Arc::new(with_taint(with_ready(Node::clone(victim), "Unknown"), UNREACHABLE_TAINT, "", "NoSchedule"));
        for pod in self.found.pods.iter_mut().filter(|pod| pod.pod.spec.node_name.as_deref() == Some(VICTIM)) {
            *pod = but(pod.clone(), |pod| pod.status.conditions[1].status = "False".into());
        }
    }

    fn fence(&self) -> Option<&Arc<NodeFence>> {
        self.found.fences.iter().find(|fence| fence.name_any() == VICTIM)
    }

    /// What the first pass over the incident waits for, by what its stores show and the API has.
    fn waits(&self) -> Option<Waits> {
        let fence = self.fence()?.clone();
        let live = live_of(&self.found, VICTIM)?;
        let lease = self.found.leases.iter().find(|lease| lease.name_any() == VICTIM).cloned();
        let named = |policy: &&Arc<ResiliencyPolicy>| fence.spec.policies.iter().any(|it| it.name == policy.name_any());
        let mut incident = Incident::default();
        let found = NodeFound {
            fence: fence.clone(),
            node: Some(live.node.clone()),
            lease: lease.clone(),
            pods: stored(&self.found)
                .pods
                .into_iter()
                .filter(|pod| live.pods.iter().any(|it| it.uid() == pod.uid()))
                .collect(),
            attachments: live.attachments.clone(),
            requests: Vec::new(),
            reports: reports([able(DRIVER)]),
            node_report: None,
            healths: Some(BTreeMap::new()),
            policies: self.found.policies.iter().filter(named).cloned().collect(),
        };
        let seen = incident.look(found, Settings::default(), self.now());
        let live = Live {
            fence: Some(fence.clone()),
            node: Some(live.node),
            lease: lease.map(|lease| Lease::clone(&lease)),
            pods: live.pods,
            attachments: live.attachments,
            node_report: None,
        };
        let seen = incident.look_live(seen, live, self.now());
        let rows = Rows::advance(&seen, self.now());
        let status = status::compute(&seen, &rows, None, self.now());
        let held = conditions::find(&status.conditions, "Held").filter(|held| held.status == "True");
        let goes = |uid: &str| {
            let row = fence.spec.plan.pods.iter().find(|row| row.uid == uid);
            row.is_some_and(|row| row.action == PodAction::Release)
        };
        let waiting = status.pods.iter().filter(|row| row.state == PodStatusState::Waiting && goes(&row.uid));
        let words = |text: &Option<String>| text.clone().unwrap_or_default();
        Some(Waits {
            held: held.map(|held| Said { reason: held.reason.clone(), message: held.message.clone() }),
            pods: waiting
                .map(|row| (row.uid.clone(), Said { reason: words(&row.reason), message: words(&row.message) }))
                .collect(),
            needed: rows.volumes.iter().filter(|row| row.needed).map(|row| row.plan.name.clone()).collect(),
        })
    }
}

/// What an incident waits for when it begins.
#[derive(Debug, PartialEq)]
struct Waits {
    /// As a whole.
    held: Option<Said>,
    /// Its pods, by uid.
    pods: BTreeMap<String, Said>,
    /// The volumes that pods wait for.
    needed: BTreeSet<String>,
}

impl Waits {
    fn foreseen(simulation: &Simulation) -> Self {
        let pods = simulation.pods.iter().filter_map(|row| Some((row.plan.uid.clone(), row.waits.clone()?)));
        let needed = simulation.volumes.iter().filter(|row| row.needed);
        Self {
            held: simulation.held.clone(),
            pods: pods.collect(),
            needed: needed.map(|row| row.plan.name.clone()).collect(),
        }
    }
}

/// What holds the victim.
fn holding(decision: &Decision) -> BTreeSet<Restrained> {
    decision.restrained.iter().filter(|held| held.node == VICTIM).cloned().collect()
}

fn foreseen(found: &Found, now: Now) -> Foreseen {
    let look = async |name: &str, _: Silence| Ok::<_, Error>(live_of(found, name));
    block_on(failure(stored(found), VICTIM, now, look)).unwrap()
}

/// What an incident will do.
fn deed(fence: Option<&Arc<NodeFence>>) -> Option<(i64, serde_json::Value)> {
    let spec = &fence?.spec;
    let policies: Vec<_> = spec.policies.iter().map(|policy| &policy.name).collect();
    Some((
        spec.episode,
        json!({ "digest": spec.plan.digest, "pods": spec.plan.pods, "volumes": spec.plan.volumes, "policies": policies }),
    ))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 160, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_foreseen_is_what_the_controller_does(shape in shape()) {
        foreseen_is_done(&shape);
    }
}

/// Was not so once.
#[test]
fn what_was_foreseen_of_nodes_without_pods_is_what_the_controller_does() {
    foreseen_is_done(&Shape { nodes: vec![0, 0], pods: vec![], policies: vec![PLAIN], past: 0, paused: 1 });
}

/// Nor was this: nobody looks for them more often than every ten seconds, and by then the policy had had enough of waiting.
#[test]
fn what_was_foreseen_of_pods_without_volumes_that_wait_is_what_the_controller_does() {
    let mut patient = PLAIN;
    (patient[1], patient[5]) = (0, 3);
    let shape =
        Shape { nodes: vec![5; 4], pods: vec![(0, 0, 2, true, 0)], policies: vec![patient], past: 5, paused: 1 };
    let executor = foreseen_is_done(&shape);
    assert!(executor.fence().is_some(), "it goes after all");
}

/// Nor this: an outage that begins with the failure holds the open incident too.
#[test]
fn what_was_foreseen_of_an_outage_is_what_the_controller_does() {
    let mut limited = PLAIN;
    limited[3] = 2;
    let shape =
        Shape { nodes: vec![5, 0], pods: vec![(0, 7, 2, true, 0)], policies: vec![limited], past: 2, paused: 1 };
    let executor = foreseen_is_done(&shape);
    assert!(executor.waits().is_some_and(|waits| waits.held.is_some_and(|held| held.reason == "CorrelatedOutage")));
}

fn foreseen_is_done(shape: &Shape) -> Executor {
    let mut executor = Executor::of(shape);
    (0..25).for_each(|_| executor.pass());
    let (before, moment) = (executor.fence().cloned(), executor.now());
    let foreseen = foreseen(&executor.found, moment);
    let simulation = simulate::node(VICTIM, &foreseen, before.as_deref(), &[], moment);
    let before = deed(before.as_ref());
    executor.fail();
    // In the last of them too the node is looked at for pods without volumes.
    (0..=10).for_each(|_| executor.pass());
    let after = deed(executor.fence());
    assert_eq!(deed(foreseen.fence.as_ref()), after.clone());
    assert_eq!(foreseen.written.is_empty(), before == after);
    let (_, last) = foreseen.written.last().map(|(after, fence)| (after, fence.spec.plan.digest.clone())).unzip();
    assert!(last.is_none_or(|digest| after.is_some_and(|(_, deed)| deed["digest"] == json!(digest))));
    assert_eq!(holding(&foreseen.decision), executor.held);
    // Of what a brake holds back, and of nothing, there is no incident.
    if !matches!(simulation.outcome, Outcome::Restrained | Outcome::Nothing) {
        assert_eq!(Some(Waits::foreseen(&simulation)), executor.waits());
    }
    executor
}

#[test]
fn the_random_clusters_reach_every_outcome() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let mut met: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..256 {
        let shape = shape().new_tree(&mut runner).unwrap().current();
        let mut executor = Executor::of(&shape);
        (0..25).for_each(|_| executor.pass());
        let (before, moment) = (executor.fence().cloned(), executor.now());
        let foreseen = foreseen(&executor.found, moment);
        let simulation = simulate::node(VICTIM, &foreseen, before.as_deref(), &[], moment);
        let mut meet = |what: String| *met.entry(what).or_default() += 1;
        meet(format!("{:?}", simulation.outcome));
        if foreseen.written.len() > 1 {
            meet("in steps".into());
        }
        simulation.held.iter().for_each(|held| meet(held.reason.clone()));
        holding(&foreseen.decision).iter().for_each(|held| meet(format!("brake {}", held.brake)));
        let told = |reason: &str| format!("pod {reason}");
        let released = simulation.pods.iter().filter(|row| row.plan.action == PodAction::Release);
        released.clone().for_each(|row| meet(row.waits.as_ref().map_or("goes".into(), |waits| told(&waits.reason))));
        released.filter(|row| row.plan.volumes.is_empty()).for_each(|_| meet("without volumes".into()));
        simulation.pods.iter().for_each(|row| meet(told(&row.plan.reason)));
    }
    for (what, times) in [
        ("Opens", 20),
        ("NextEpisode", 5),
        ("Restrained", 5),
        ("IsOpen", 1),
        ("in steps", 3),
        ("DryRun", 3),
        ("AwaitingApproval", 3),
        ("brake Paused", 3),
        ("brake MaintenanceWindow", 3),
        ("brake CorrelatedOutage", 3),
        ("goes", 20),
        ("without volumes", 2),
        ("pod BarePod", 5),
        ("pod DryRun", 1),
        ("pod UnselectedSharer", 1),
        ("pod UnknownVolumeKind", 3),
        ("pod LocalVolume", 3),
    ] {
        assert!(met.get(what).is_some_and(|met| *met >= times), "{what}: {met:#?}");
    }
}

#[test]
fn to_foresee_changes_nothing_and_needs_no_controller() {
    let nodes = vec![Arc::new(node(VICTIM)), Arc::new(node("n1")), Arc::new(node("n2"))];
    let found = Found {
        nodes,
        pods: vec![pod("p0", VICTIM, &[csi("v0")])],
        policies: vec![Arc::new(policy("db", &json!({})))],
        leases: vec![lease(VICTIM, 0)],
        ..Found::default()
    };
    let first = foreseen(&found, now());
    let fence = first.fence.expect("a plan");
    assert_eq!(fence.spec.plan.pods.len(), 1);
    assert_eq!(deed(foreseen(&found, now()).fence.as_ref()), deed(Some(&fence)));
    let look = async |name: &str, _: Silence| Ok::<_, Error>(live_of(&found, name));
    let present = block_on(present(found.clone(), VICTIM, now(), look)).unwrap();
    assert!(present.fence.is_none() && present.written.is_empty() && present.decision.suspected.is_empty());
}

/// It takes the only place, until it is known that it cannot be read.
#[test]
fn another_node_that_cannot_be_read_is_no_end_of_it() {
    let important = but(pod("p1", "n1", &[csi("v1")]), |pod| pod.spec.priority = Some(1000));
    let nodes = [node(VICTIM), unreachable("n1"), node("n2"), node("n3"), node("n4")];
    let found = Found {
        nodes: nodes.into_iter().map(Arc::new).collect(),
        pods: vec![pod("p0", VICTIM, &[csi("v0")]), important],
        policies: vec![Arc::new(policy("db", &json!({ "limits": { "maxNodes": 1 } })))],
        reports: vec![Arc::new(able(DRIVER))],
        ..Found::default()
    };
    let foreseen_but = |unreadable: &str| {
        let look = async |name: &str, _: Silence| {
            if name == unreadable { Err(Error::Deadline(Duration::from_secs(5))) } else { Ok(live_of(&found, name)) }
        };
        block_on(failure(found.clone(), VICTIM, now(), look))
    };
    let other = foreseen_but("n1").unwrap();
    assert_eq!(other.unread, BTreeSet::from(["n1".to_owned()]));
    let told = simulate::node(VICTIM, &other, None, &[], now()).text();
    assert!(told.contains("could not be read") && told.contains(": n1\n"), "{told}");
    assert!(other.fence.is_some_and(|fence| fence.spec.plan.pods.len() == 1));
    assert!(foreseen_but(VICTIM).is_err(), "of a node that cannot be read nothing is known");
}
