//! When the next poll comes.

use std::time::Duration;

use crate::controllers::shared_volume_provider::pace::pause;

const INTERVAL: Duration = Duration::from_secs(5);

#[test]
fn polls_that_go_well_jitter_by_a_tenth() {
    assert_eq!(pause(INTERVAL, 0, 0.0), Duration::from_millis(4500));
    assert_eq!(pause(INTERVAL, 0, 0.5), INTERVAL);
    assert!(pause(INTERVAL, 0, 0.999) < Duration::from_millis(5500));
}

#[test]
fn failures_double_the_pause_up_to_a_minute() {
    let longest: Vec<_> = (1..8).map(|failures| pause(INTERVAL, failures, 1.0).as_secs()).collect();
    assert_eq!(longest, [5, 10, 20, 40, 60, 60, 60]);
    assert_eq!(pause(INTERVAL, 3, 0.0), Duration::from_secs(10), "half of it is jitter");
    assert_eq!(pause(INTERVAL, u32::MAX, 1.0), Duration::from_secs(60));
    assert_eq!(pause(Duration::from_secs(300), 9, 1.0), Duration::from_secs(300), "polls may be rarer anyhow");
}
