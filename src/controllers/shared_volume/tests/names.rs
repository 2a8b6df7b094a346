//! Names of Services.

use serde_json::json;

use super::super::objects::{is_hashed, service_name};
use super::world::shared_volume;

#[test]
fn a_claims_name_that_is_no_label_gets_a_hash() {
    for (claim, wanted) in [
        ("media", "media"),
        ("a", "a"),
        ("data-0", "data-0"),
        ("my.data", "my-data-44947a07"),
        ("9lives", "lives-bc867356"),
        ("123", "volume-a665a459"),
    ] {
        let it = shared_volume(&json!({ "spec": { "claimName": claim } }));
        assert_eq!((service_name(&it).as_str(), is_hashed(&it)), (wanted, claim != wanted));
    }
}

#[test]
fn long_names_end_in_their_hash_and_never_in_two_dashes() {
    for (one, other) in
        [("x".repeat(64), "x".repeat(65)), (format!("{}.y", "x".repeat(53)), format!("{}.z", "x".repeat(53)))]
    {
        let names = [one, other].map(|claim| service_name(&shared_volume(&json!({ "spec": { "claimName": claim } }))));
        assert_ne!(names[0], names[1]);
        for name in names {
            assert!(name.len() <= 63 && !name.contains("--"), "{name}");
        }
    }
}

#[test]
fn the_recorded_name_stays() {
    let recorded = json!({ "service": { "name": "media", "uid": "u" } });
    let it = shared_volume(&json!({ "spec": { "service": { "name": "other" } }, "status": recorded }));
    assert_eq!(service_name(&it), "media");
}
