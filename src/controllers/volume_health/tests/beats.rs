//! Which sidecars are heard of.

use crate::api::slim::Lease;
use crate::api::time::Now;
use crate::controllers::testing::{later, now};
use crate::controllers::volume_health::beats::*;
use serde_json::json;

fn lease(renewed: Now) -> Lease {
    serde_json::from_value(
        json!({ "spec": { "renewTime": renewed.wall.to_rfc3339_opts(chrono::SecondsFormat::Micros, true) } }),
    )
    .unwrap()
}

#[test]
fn a_lease_that_moves_is_heard_and_one_that_stands_is_not() {
    let start = now();
    let mut beats = Beats::default();
    beats.note("a", Some(&lease(start)), start);
    assert_eq!(beats.turned(start), ["a"]);
    beats.note("a", Some(&lease(later(start, 5.0))), later(start, 5.0));
    assert!(beats.is_heard("a", later(start, 64.0)));
    assert_eq!(beats.turned(later(start, 64.0)), [""; 0]);
    assert!(!beats.is_heard("a", later(start, 65.0)));
    assert_eq!(beats.turned(later(start, 65.0)), ["a"]);
    assert!(!beats.is_heard("other", start));
}

#[test]
fn one_that_is_found_old_counts_once_it_moves() {
    let start = now();
    let late = later(start, 600.0);
    let mut beats = Beats::default();
    beats.note("a", Some(&lease(start)), late);
    assert!(!beats.is_heard("a", late));
    beats.note("a", Some(&lease(later(start, 5.0))), later(late, 1.0));
    assert!(beats.is_heard("a", later(late, 1.0)), "its holder's clock is slow");
    beats.note("a", None, later(late, 2.0));
    assert!(!beats.is_heard("a", later(late, 2.0)), "deleted");
}
