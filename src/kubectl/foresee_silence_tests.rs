//! How silent kubelets are taken to be by who looks once: by what Kubernetes says of their nodes, and by their Leases.

use futures::executor::block_on;
use serde_json::json;

use crate::controllers::testing::*;

use super::super::simulate;
use super::super::simulate::report::{Outcome, Simulation};
use super::tests::{VICTIM, lease, live_of};
use super::*;

/// The node that is asked for, and another one with a more important pod; three more are well. Both kubelets renewed their Leases at
/// these times, and the policy may act on one node.
fn found(nodes: [Node; 2], renewed: [i64; 2], decisive_after: &str) -> Found {
    let important = but(pod("p1", "n1", &[csi("v1")]), |pod| pod.spec.priority = Some(1000));
    let spec = json!({
        "limits": { "maxNodes": 1 }, "detection": { "kubelet": { "decisiveAfter": decisive_after } },
    });
    let well = ["n2", "n3", "n4"];
    let leases = [(VICTIM, renewed[0]), ("n1", renewed[1])].into_iter().chain(well.map(|name| (name, 99_998)));
    Found {
        nodes: nodes.into_iter().chain(well.map(node)).map(Arc::new).collect(),
        leases: leases.map(|(name, renewed)| lease(name, renewed)).collect(),
        pods: vec![pod("p0", VICTIM, &[csi("v0")]), important],
        policies: vec![Arc::new(policy("db", &spec))],
        reports: vec![Arc::new(able(DRIVER))],
        fencer_leases: vec![lease(&names::fencer_lease(DRIVER), 99_999)],
        ..Found::default()
    }
}

fn presently(found: &Found) -> Foreseen {
    let look = async |name: &str, _: Silence| Ok::<_, Error>(live_of(found, name));
    block_on(present(found.clone(), VICTIM, now(), look)).unwrap()
}

fn failing(found: &Found) -> Foreseen {
    let look = async |name: &str, _: Silence| Ok::<_, Error>(live_of(found, name));
    block_on(failure(found.clone(), VICTIM, now(), look)).unwrap()
}

fn told(foreseen: &Foreseen) -> Simulation {
    simulate::node(VICTIM, foreseen, None, &[], now())
}

#[test]
fn a_node_that_was_given_up_has_failed_once_the_next_renewal_of_its_lease_is_overdue() {
    for (renewed, has_failed) in [(0, true), (99_980, true), (99_996, false), (100_050, false)] {
        let found = found([unreachable(VICTIM), node("n1")], [renewed, 99_998], "0s");
        let present = presently(&found);
        assert_eq!(present.written.is_empty(), !has_failed, "renewed at {renewed}");
        assert!(present.decision.suspected.contains(VICTIM), "renewed at {renewed}");
        // One that fails is given up only when its Lease has stood still.
        assert_eq!(told(&failing(&found)).outcome, Outcome::Opens, "renewed at {renewed}");
    }
}

#[test]
fn a_lease_that_moved_since_it_was_listed_is_one_that_is_renewed() {
    let found = found([unreachable(VICTIM), node("n1")], [99_900, 99_998], "0s");
    let look = async |name: &str, _: Silence| {
        Ok::<_, Error>(live_of(&found, name).map(|live| LiveNode { lease_is_still: false, ..live }))
    };
    let present = block_on(present(found.clone(), VICTIM, now(), look)).unwrap();
    assert!(present.written.is_empty());
    assert!(present.live.is_some_and(|live| live.silence.may_renew()));
}

/// Both have been unreachable for longer than any of these policies waits.
#[test]
fn another_node_that_has_failed_takes_the_only_place_and_one_that_renews_its_lease_takes_none() {
    for decisive_after in ["0s", "1h"] {
        for (other, outcome) in [(99_900, Outcome::Restrained), (99_996, Outcome::Opens)] {
            let both = found([unreachable(VICTIM), unreachable("n1")], [99_900, other], decisive_after);
            let one = found([node(VICTIM), unreachable("n1")], [99_998, other], decisive_after);
            for foreseen in [presently(&both), failing(&both), failing(&one)] {
                let told = told(&foreseen);
                assert_eq!(told.outcome, outcome, "{decisive_after}, {other}: {}", told.message);
                let holding: Vec<_> = told.brakes.iter().filter(|it| it.holds).map(|it| it.type_.as_str()).collect();
                let expected = if outcome == Outcome::Restrained { vec!["BudgetExhausted"] } else { vec![] };
                assert_eq!(holding, expected, "{decisive_after}, {other}");
            }
        }
    }
}

#[test]
fn what_passes_between_two_passes_makes_nobody_silent_but_the_node_that_fails() {
    let found = found([node(VICTIM), node("n1")], [99_998, 99_998], "1h");
    let foreseen = failing(&found);
    assert_eq!(told(&foreseen).outcome, Outcome::Opens);
    assert_eq!(foreseen.decision.suspected, BTreeSet::from([VICTIM.to_owned()]));
    assert!(foreseen.seen.silent_fencers.is_empty());
}
