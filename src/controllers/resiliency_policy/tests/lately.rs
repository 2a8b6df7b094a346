//! Pods without volumes on a failed node, which no store has: between two looks at it what a look has shown tells the same, and
//! begins nothing.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;

use futures::executor::block_on;
use serde_json::json;

use crate::api::names;
use crate::api::time::Now;
use crate::controllers::testing::*;

use super::super::decide::{Decision, Effect};
use super::super::evidence::Silence;
use super::super::memory::{Found, Memory};
use super::super::plan::LiveNode;
use super::super::read::decided;

/// The passes of one process, over a cluster that none of them changes.
struct Passes {
    memory: Memory,
    found: Found,
    live: BTreeMap<String, LiveNode>,
    began: Now,
}

impl Passes {
    /// Four nodes of which the first, with a pod without volumes, has failed. One may be acted on.
    fn new() -> Self {
        let release = json!({ "release": { "podsWithoutVolumes": "Release" }, "limits": { "maxNodes": 1 } });
        let mut nodes: Vec<_> = (0..4).map(|number| Arc::new(node(&format!("n{number}")))).collect();
        nodes[0] = Arc::new(unreachable("n0"));
        let found = Found {
            policies: vec![Arc::new(policy("db", &release))],
            nodes,
            reports: vec![Arc::new(able(DRIVER))],
            ..Found::default()
        };
        let live = super::live_node(unreachable("n0"), Silence::default(), vec![pod("web", "n0", &[])]);
        Self { memory: Memory::default(), found, live: [("n0".to_owned(), live)].into(), began: now() }
    }

    /// The second one has failed too, with a pod that is more important.
    fn with_another() -> Self {
        let mut passes = Self::new();
        let important = but(pod("pg", "n1", &[csi("v1")]), |pod| pod.spec.priority = Some(1000));
        passes.found.nodes[1] = Arc::new(unreachable("n1"));
        passes.found.pods.push(important.clone());
        let live = super::live_node(unreachable("n1"), Silence::default(), vec![important]);
        passes.live.insert("n1".into(), live);
        passes
    }

    /// A pass so many seconds after the first: what it decided, and how often it read the first node.
    fn pass(&mut self, seconds: u32) -> (Decision, usize) {
        let now = later(self.began, f64::from(seconds));
        let mut seen = self.memory.look(self.found.clone(), (1, 1), now);
        let reads = Cell::new(0);
        let look = |name: String, silence: Silence| {
            reads.set(reads.get() + usize::from(name == "n0"));
            let live = self.live.get(&name).cloned();
            let live = live.map(|live| LiveNode { silence: silence.read_live(&live.node), ..live });
            ready(Ok::<_, String>(live))
        };
        let (decision, _) = block_on(decided(&mut seen, now, look));
        self.memory.note(&decision, now);
        (decision, reads.get())
    }
}

fn opened(decision: &Decision) -> usize {
    decision.effects.iter().filter(|effect| matches!(effect, Effect::Open(_))).count()
}

#[test]
fn a_brake_that_holds_is_told_between_two_looks_too() {
    type Case = (&'static str, fn(&mut Found));
    let cases: [Case; 2] = [
        ("BudgetExhausted", |_| {}),
        ("Paused", |found| {
            let paused = &mut Arc::make_mut(&mut found.nodes[0]).metadata;
            paused.annotations.get_or_insert_default().insert(names::PAUSED_ANNOTATION.into(), "on call".into());
        }),
    ];
    for (brake, change) in cases {
        let mut passes = Passes::with_another();
        change(&mut passes.found);
        let mut read_at = Vec::new();
        for second in 0..=20 {
            let (decision, reads) = passes.pass(second);
            let held: Vec<_> = decision.restrained.iter().map(|it| (it.node.as_str(), it.brake)).collect();
            assert_eq!(held, [("n0", brake)], "after {second} s");
            read_at.extend((reads > 0).then_some(second));
        }
        assert_eq!(read_at, [0, 10, 20], "{brake}");
    }
}

#[test]
fn nothing_is_begun_by_what_is_remembered() {
    let mut passes = Passes::new();
    passes.live.get_mut("n0").unwrap().lease_is_still = false;
    let (decision, reads) = passes.pass(0);
    assert_eq!((opened(&decision), reads), (0, 1), "it is heard of");
    passes.live.get_mut("n0").unwrap().lease_is_still = true;
    let (decision, reads) = passes.pass(9);
    assert_eq!((opened(&decision), reads), (0, 0));
    let (decision, reads) = passes.pass(10);
    assert_eq!((opened(&decision), reads), (1, 1));
}

#[test]
fn it_is_forgotten_with_the_failure_and_with_the_incident() {
    type Case = (&'static str, fn(&mut Found, Decision));
    let cases: [Case; 2] = [
        ("the node is back", |found, _| found.nodes[0] = Arc::new(node("n0"))),
        ("an incident has taken it in", |found, decision| {
            let fences = decision.effects.into_iter().filter_map(|effect| match effect {
                Effect::Open(fence) => Some(Arc::from(fence)),
                _ => None,
            });
            found.fences.extend(fences);
        }),
    ];
    for (name, change) in cases {
        let mut passes = Passes::new();
        let (decision, _) = passes.pass(0);
        assert_eq!((decision.lately["n0"].pods.len(), opened(&decision)), (1, 1), "{name}");
        change(&mut passes.found, decision);
        let (decision, reads) = passes.pass(1);
        assert_eq!((decision.lately.len(), opened(&decision), reads), (0, 0, 0), "{name}");
    }
}

/// The first node has a database too, of a policy of its own, and is heard of at first. Then another one fails, which is an outage for
/// the policy of the pod without volumes: that policy has nobody looked at any more.
fn with_an_outage_of_the_others() -> Passes {
    let mut passes = Passes::new();
    let only = |app: &str, more: &serde_json::Value| {
        let mut spec = json!({ "selector": { "podSelector": { "matchLabels": { "app": app } } } });
        json_patch::merge(&mut spec, more);
        Arc::new(policy(app, &spec))
    };
    let limited = json!({ "release": { "podsWithoutVolumes": "Release" }, "limits": { "maxUnhealthy": 1 } });
    passes.found.policies = vec![only("pg", &json!({})), only("web", &limited)];
    passes.found.nodes.extend((4..8).map(|number| Arc::new(node(&format!("n{number}")))));
    let database = pod("pg", "n0", &[csi("v1")]);
    passes.found.pods.push(database.clone());
    let pods = vec![database, pod("web", "n0", &[])];
    let live = super::live_node(unreachable("n0"), Silence::default(), pods);
    passes.live.insert("n0".into(), LiveNode { lease_is_still: false, ..live });
    passes.pass(0);
    passes.live.get_mut("n0").unwrap().lease_is_still = true;
    passes.found.nodes[1] = Arc::new(unreachable("n1"));
    passes
}

#[test]
fn one_that_has_gone_since_holds_a_failed_node_no_longer_than_until_the_next_look() {
    let mut passes = with_an_outage_of_the_others();
    passes.live.get_mut("n0").unwrap().pods.truncate(1);
    for second in 1..10 {
        let (decision, reads) = passes.pass(second);
        let held: Vec<_> = decision.restrained.iter().map(|it| (it.policy.as_str(), it.brake)).collect();
        assert_eq!((held, opened(&decision), reads), (vec![("web", "CorrelatedOutage")], 0, 0), "after {second} s");
    }
    let (decision, reads) = passes.pass(10);
    assert_eq!((opened(&decision), reads), (1, 1));
}

#[test]
fn one_that_is_still_there_goes_on_holding_it() {
    let mut passes = with_an_outage_of_the_others();
    let mut read_at = Vec::new();
    for second in 1..=30 {
        let (decision, reads) = passes.pass(second);
        let held: Vec<_> = decision.restrained.iter().map(|it| (it.policy.as_str(), it.brake)).collect();
        assert_eq!((held, opened(&decision)), (vec![("web", "CorrelatedOutage")], 0), "after {second} s");
        read_at.extend((reads > 0).then_some(second));
    }
    assert_eq!(read_at, [10, 20, 30]);
}

#[test]
fn a_new_term_knows_nothing_of_it_and_asks() {
    let mut passes = Passes::new();
    passes.live.get_mut("n0").unwrap().lease_is_still = false;
    assert_eq!(passes.pass(0).1, 1);
    assert_eq!(passes.pass(1).1, 0);
    passes.memory.begin_term(2, &[]);
    assert_eq!(passes.memory.look(passes.found.clone(), (1, 1), later(passes.began, 2.0)).lately, BTreeMap::new());
    assert_eq!(passes.pass(2).1, 1);
}
