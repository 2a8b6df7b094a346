//! A small world in every schedule with one fault at any point.

use bulkhead_simulation::exhaustive::{Order, QUICK, all};

#[test]
fn no_schedule_of_a_small_world_breaks_an_invariant() {
    let report = all(QUICK).search(Order::Breadth, 2);
    println!("{report}; reached: {}", report.reached.join(", "));
    assert!(report.broken.is_empty(), "{}", report.broken.iter().map(|(_, told)| told.as_str()).collect::<String>());
    assert!(report.is_complete);
}
