//! What a policy says of its external fencers before it needs them.

use serde_json::{Value, json};

use crate::api::fencing::{FenceMethodType, Proof};
use crate::api::names;
use crate::controllers::testing::*;

use super::World;

fn world(minimum: &str) -> World {
    let methods: Value = json!([{ "type": "Unpublish" }, { "type": "External", "external": { "fencerName": POWER } }]);
    let mut world = World::with_failed(3, 0, &json!({ "fencing": { "minimumProof": minimum, "methods": methods } }));
    world.seen.reports = reports(vec![able(DRIVER)]);
    world
}

#[test]
fn an_external_fencer_that_leads_can_prove_that_a_node_is_off() {
    let mut world = world("PowerOff");
    world.rest();
    let status = world.seen.policies[0].status.clone().unwrap();
    assert_eq!(
        (status.drivers[0].best_proof, status.drivers[0].method),
        (Proof::PowerOff, Some(FenceMethodType::External))
    );
    assert_eq!(world.fence_ready().1, "ProofReachable");
}

#[test]
fn one_that_is_not_there_is_told_at_noon_where_nobody_else_will_do() {
    for (minimum, ready) in [("PowerOff", "False"), ("Verified", "True")] {
        let mut missing = world(minimum);
        missing.seen.missing_fencers.insert(POWER.into());
        missing.rest();
        let (state, reason, message) = missing.fence_ready();
        assert_eq!(state, ready, "{minimum}: {reason} {message}");
        if ready == "False" {
            assert_eq!(reason, "FencerMissing");
            assert!(message.contains(POWER) && message.contains(&names::fencer_lease(POWER)), "{message}");
        }
        let mut silent = world(minimum);
        silent.seen.silent_fencers.insert(POWER.into());
        silent.rest();
        let (state, reason, message) = silent.fence_ready();
        assert_eq!(state, ready, "{minimum}: {reason} {message}");
        if ready == "False" {
            assert_eq!(reason, "FencerSilent");
            assert!(message.contains(POWER), "{message}");
        }
    }
}
