//! How long a kubelet is silent, by our own clock.

use std::time::{Duration, Instant};

use crate::api::slim::{Lease, Node};
use crate::controllers::testing::*;

use super::super::heartbeat::TWO_RENEWALS;
use super::super::silence::{FencerTracker, SilenceTracker, is_still};

fn lease(renewed: i64) -> Lease {
    serde_json::from_value(serde_json::json!({ "metadata": {}, "spec": { "renewTime": at(renewed) } })).unwrap()
}

/// A tracker that is fed: `live` Leases move every 10 s, that of `dead` never.
struct Fed {
    tracker: SilenceTracker,
    start: Instant,
    second: u64,
    epoch: (u64, u64),
    /// What the watch shows of the clock: it stands while the watch does.
    shown: u64,
    stands: bool,
    /// Names of the nodes whose Leases move.
    moving: Vec<&'static str>,
    still: Vec<&'static str>,
}

impl Fed {
    fn new(moving: &[&'static str], still: &[&'static str]) -> Self {
        let tracker = SilenceTracker::default();
        let (moving, still) = (moving.into(), still.into());
        Self { tracker, start: Instant::now(), second: 0, epoch: (0, 1), shown: 0, stands: false, moving, still }
    }

    fn run(&mut self, seconds: u64, node: &Node) {
        for _ in 0..seconds {
            self.second += 1;
            if !self.stands {
                self.shown = self.second;
            }
            let moved = i64::try_from(self.shown / 10).unwrap();
            let moving = self.moving.iter().map(|name| (*name, lease(moved)));
            let leases: Vec<_> = moving.chain(self.still.iter().map(|name| (*name, lease(-5)))).collect();
            let leases = leases.iter().map(|(name, lease)| (*name, lease));
            self.tracker.update(leases, [node], self.epoch, self.now());
        }
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_secs(self.second)
    }

    fn age(&self, name: &str) -> Option<u64> {
        self.tracker.of(&node(name), self.now()).lease_age.map(|age| age.as_secs())
    }
}

#[test]
fn an_age_grows_while_the_watch_is_proved_live() {
    let mut fed = Fed::new(&["a", "b"], &["dead"]);
    fed.run(60, &node("dead"));
    let age = fed.age("dead").unwrap();
    assert!((45..=60).contains(&age), "{age}");
    assert!(fed.age("a").unwrap() <= 10);
}

#[test]
fn a_lease_that_was_found_has_not_moved() {
    let mut fed = Fed::new(&["a"], &["dead"]);
    fed.run(30, &node("dead"));
    let has_moved = |fed: &Fed| ["a", "dead"].map(|name| fed.tracker.of(&node(name), fed.now()).has_moved);
    assert_eq!(has_moved(&fed), [true, false]);
    fed.epoch.1 += 1;
    fed.run(1, &node("dead"));
    assert_eq!(has_moved(&fed), [false, false], "a new term");
}

#[test]
fn no_age_is_told_while_it_is_not() {
    let mut all_still = Fed::new(&[], &["a", "b", "dead"]);
    all_still.run(60, &node("dead"));
    assert_eq!(all_still.age("dead"), None, "the watch stands still, not the kubelets");
    let mut alone = Fed::new(&[], &["dead"]);
    alone.run(60, &node("dead"));
    assert_eq!(alone.age("dead"), None, "no other Lease to tell by");
    let mut minority = Fed::new(&["a"], &["b", "c", "dead"]);
    minority.run(60, &node("dead"));
    assert_eq!(minority.age("dead"), None, "one of three others moved");
}

#[test]
fn silence_of_the_watch_is_not_added_to_an_age() {
    let mut fed = Fed::new(&["a", "b"], &["dead"]);
    fed.run(20, &node("dead"));
    fed.stands = true;
    fed.run(300, &node("dead"));
    assert_eq!(fed.age("dead"), None);
    fed.stands = false;
    fed.run(30, &node("dead"));
    let age = fed.age("dead").unwrap();
    assert!(age <= 60, "{age}: five minutes in which nobody was looking do not count");
}

#[test]
fn a_relist_or_a_new_term_forgets_all_ages() {
    for epoch in [(1, 1), (0, 2)] {
        let mut fed = Fed::new(&["a", "b"], &["dead"]);
        let dead = unreachable("dead");
        fed.run(60, &dead);
        assert!(fed.tracker.of(&dead, fed.now()).unreachable_for.unwrap().as_secs() >= 59);
        fed.epoch = epoch;
        fed.run(1, &dead);
        assert_eq!(fed.age("dead"), None, "{epoch:?}");
        let silence = fed.tracker.of(&dead, fed.now());
        assert_eq!(silence.unreachable_for, Some(Duration::ZERO), "{epoch:?}");
        assert!(silence.may_renew(), "{epoch:?}: it stood still, perhaps since nobody could renew anything");
    }
}

#[test]
fn a_node_that_was_reachable_in_between_begins_anew() {
    let mut fed = Fed::new(&["a", "b"], &["dead"]);
    fed.run(30, &unreachable("dead"));
    fed.run(1, &node("dead"));
    fed.run(5, &unreachable("dead"));
    let since = fed.tracker.of(&unreachable("dead"), fed.now()).unreachable_for.unwrap();
    assert!(since <= Duration::from_secs(5), "{since:?}");
    let mut again = unreachable("dead");
    again.metadata.uid = Some("uid-again".into());
    assert_eq!(fed.tracker.of(&again, fed.now()).unreachable_for, None, "another Node of that name");
}

#[test]
fn a_fencer_is_silent_when_its_lease_stands_still() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut tracker = FencerTracker::default();
    for (seconds, renewed, silent) in
        [(0, 1, false), (19, 1, false), (20, 1, true), (25, 2, false), (44, 2, false), (45, 2, true)]
    {
        tracker.update([("fencer", &lease(renewed))], 1, at(seconds));
        assert_eq!(tracker.is_silent("fencer", at(seconds)), silent, "after {seconds} s");
    }
    assert!(!tracker.is_silent("another", at(100)), "one without a Lease tells nothing");
}

/// The Lease of a fencer that is gone is there for ever.
#[test]
fn a_fencer_is_there_when_its_lease_was_seen_to_move() {
    let now = Instant::now();
    let mut tracker = FencerTracker::default();
    let steps = [(1, 1, false), (1, 1, false), (2, 1, true), (2, 1, true), (2, 2, false), (3, 2, true), (4, 3, false)];
    for (renewed, term, has_moved) in steps {
        tracker.update([("fencer", &lease(renewed))], term, now);
        assert_eq!(tracker.has_moved("fencer"), has_moved, "renewal {renewed}, term {term}");
    }
    tracker.update(std::iter::empty::<(&str, &Lease)>(), 3, now);
    tracker.update([("fencer", &lease(5))], 3, now);
    assert!(!tracker.has_moved("fencer"), "made anew");
}

/// With a lost heartbeat two missed renewals declare a node: an API server that is away must not make them up, with a relist
/// when it is back, or without.
#[test]
fn an_api_server_that_is_away_makes_nobody_miss_two_renewals() {
    for (away, relists) in [(10, false), (60, true), (60, false), (600, true)] {
        let mut fed = Fed::new(&["a", "b", "c"], &[]);
        fed.run(35, &node("a"));
        let mut ages = Vec::new();
        fed.stands = true;
        for second in 0..away + 40 {
            if second == away {
                fed.stands = false;
                fed.epoch.0 += u64::from(relists);
            }
            fed.run(1, &node("a"));
            ages.extend(fed.age("a"));
        }
        let oldest = ages.into_iter().max();
        assert!(oldest < Some(TWO_RENEWALS.as_secs()), "away for {away} s: {oldest:?}");
    }
}

#[test]
fn the_next_renewal_is_due_by_what_the_lease_says_of_itself_and_within_a_minute() {
    let none = [(None, 15.0), (Some(0), 15.0), (Some(-1), 15.0)];
    let some = [(Some(40), 15.0), (Some(4), 1.5), (Some(160), 60.0)];
    let of_no_kubelet = [(Some(86_400), 60.0), (Some(i32::MAX), 60.0)];
    for (duration, seconds) in none.into_iter().chain(some).chain(of_no_kubelet) {
        let mut tracker = SilenceTracker::default();
        let mut lease = lease(0);
        lease.spec.lease_duration_seconds = duration;
        let (well, now) = (node("n1"), Instant::now());
        tracker.update([("n1", &lease)], [&well], (0, 1), now);
        assert_eq!(tracker.of(&well, now).next_renewal, Duration::from_secs_f64(seconds), "{duration:?}");
    }
}

#[test]
fn a_lease_is_still_while_it_is_the_one_that_was_seen() {
    let (n1, now) = (node("n1"), Instant::now());
    let renewed = |at: Option<i64>| at.map(lease);
    for (seen, live, still) in [
        (None, None, true),
        (Some(0), Some(0), true),
        (Some(0), Some(1), false),
        (None, Some(0), false),
        (Some(0), None, false),
    ] {
        let (known, live) = (renewed(seen), renewed(live));
        let mut tracker = SilenceTracker::default();
        tracker.update(known.iter().map(|lease| ("n1", lease)), [&n1], (0, 1), now);
        assert_eq!(is_still(live.as_ref(), tracker.of(&n1, now)), still, "{seen:?}, {live:?}");
    }
}
