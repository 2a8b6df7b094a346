//! When a node counts as failed.

use std::time::Duration;

use crate::api::slim::Node;
use crate::api::time;
use crate::controllers::testing::{at, node};
use crate::controllers::volume_health::nodes::*;

const AFTER: Duration = Duration::from_secs(120);

fn failed(name: &str, second: i64) -> Node {
    let mut node = node(name);
    node.status.conditions[0].status = "Unknown".into();
    node.status.conditions[0].last_transition_time = Some(time::to_k8s(at(second)));
    node
}

#[test]
fn a_node_counts_as_failed_after_the_threshold() {
    let failed = failed("n", 100);
    let verdict_at = |second| verdict(Some(&failed), AFTER, None, at(second));
    assert_eq!(verdict_at(219), Verdict::Failing { due: at(220) });
    assert_eq!(verdict_at(220), Verdict::Down { since: at(100) });
    assert_eq!(verdict(None, AFTER, None, at(0)), Verdict::Gone, "at once");
    let never_ready = Node { status: Default::default(), ..node("m") };
    assert_eq!(verdict(Some(&never_ready), AFTER, None, at(120)), Verdict::Down { since: at(0) });
    assert_eq!(verdict(Some(&node("m")), AFTER, None, at(999)), Verdict::Up);
}

#[test]
fn many_at_once_count_later() {
    let node = failed("n", 100);
    let storm = Some(at(110));
    assert_eq!(verdict(Some(&node), AFTER, storm, at(300)), Verdict::Failing { due: at(110 + 300 + 120) });
    assert_eq!(verdict(Some(&node), AFTER, storm, at(530)), Verdict::Down { since: at(100) });
    assert_eq!(verdict(None, AFTER, storm, at(111)), Verdict::Gone, "a Node that is deleted is no partition");
}

#[test]
fn a_storm_is_more_than_30_percent_and_three_at_least() {
    let cluster = |all: usize, failed_nodes: i64| -> Vec<Node> {
        let healthy = (0..all - failed_nodes as usize).map(|number| node(&format!("up-{number}")));
        healthy.chain((0..failed_nodes).map(|number| failed(&format!("down-{number}"), 100 + number))).collect()
    };
    for (all, failed, since) in
        [(3, 2, None), (3, 3, Some(102)), (10, 3, None), (10, 4, Some(103)), (100, 30, None), (100, 31, Some(130))]
    {
        assert_eq!(storm_since(&cluster(all, failed)), since.map(at), "{failed} of {all}");
    }
}
