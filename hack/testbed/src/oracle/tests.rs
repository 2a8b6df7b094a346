use proptest::prelude::*;

use super::*;

/// Builds a history of one volume, one nanosecond per line.
#[derive(Clone, Debug, Default)]
struct History(Vec<Entry>);

impl History {
    fn add(mut self, node: &str, event: Event) -> Self {
        self.0.push(Entry {
            at: Stamp::new(std::time::Duration::from_nanos(self.0.len() as u64)),
            volume: "v".into(),
            node: node.into(),
            event,
        });
        self
    }

    fn created(self, access: Access) -> Self {
        self.add("", Event::Created { access })
    }

    fn publish(self, node: &str) -> Self {
        let (read_only, repeated) = (false, false);
        self.add(node, Event::Published { read_only, repeated })
    }

    fn publish_again(self, node: &str) -> Self {
        let (read_only, repeated) = (false, true);
        self.add(node, Event::Published { read_only, repeated })
    }

    fn unpublish(self, node: &str) -> Self {
        self.add(node, Event::Unpublished { repeated: false })
    }

    fn write(self, node: &str) -> Self {
        let (sequence, tag) = (0, "".into());
        self.add(node, Event::Wrote { sequence, tag })
    }

    fn judge(&self) -> Verdict {
        judge_entries(&self.0)
    }
}

fn a_then_b() -> History {
    History::default().publish("a").write("a").publish("b").write("b")
}

#[test]
fn a_write_after_the_takeover_is_a_violation() {
    let verdict = a_then_b().write("a").judge();
    assert_eq!(verdict.violations.len(), 1);
    let violation = &verdict.violations[0];
    assert_eq!((&*violation.node, &*violation.owner), ("a", "b"));
    assert!(!verdict.is_clean());
    assert!(verdict.to_string().contains("1 violations, 1 overlaps of access"));
}

#[test]
fn overlapping_access_alone_is_only_reported() {
    let verdict = a_then_b().write("b").judge();
    assert!(verdict.is_clean(), "{verdict}");
    assert_eq!(verdict.overlaps.len(), 1);
    assert_eq!(verdict.overlaps[0].until, None);
    let ended = a_then_b().unpublish("a").judge();
    assert!(ended.overlaps[0].until.is_some());
}

#[test]
fn a_proper_failback_is_legal_and_its_zombie_is_not() {
    let back = a_then_b().unpublish("a").unpublish("b").publish("a").write("a");
    assert!(back.judge().is_clean());
    // B lost access, but a lying array let it write on.
    assert_eq!(back.write("b").judge().violations.len(), 1);
}

#[test]
fn repeating_a_publish_is_no_new_grant() {
    let verdict = a_then_b().publish_again("a").write("a").judge();
    assert_eq!(verdict.violations.len(), 1);
}

#[test]
fn publishing_the_owner_again_does_not_excuse_the_earlier_node() {
    let verdict = a_then_b().unpublish("b").publish("b").write("a").judge();
    assert_eq!(verdict.violations.len(), 1);
}

#[test]
fn a_write_that_waited_for_the_other_to_begin_is_a_violation() {
    let verdict = History::default().publish("a").publish("b").write("b").write("a").judge();
    assert_eq!(verdict.violations.len(), 1);
}

#[test]
fn only_single_writer_volumes_are_judged() {
    let zombie = |access| History::default().created(access).publish("a").publish("b").write("a").write("b").write("a");
    let shared = zombie(Access::MultiWriter).judge();
    assert_eq!(shared, Verdict::default());
    assert!(!zombie(Access::SingleWriter).judge().is_clean());
}

/// One step of a random history over a few nodes.
#[derive(Clone, Copy, Debug)]
enum Step {
    Publish,
    Unpublish,
    Write,
}

fn steps() -> impl Strategy<Value = Vec<(Step, usize)>> {
    let step = prop_oneof![
        1 => Just(Step::Publish),
        1 => Just(Step::Unpublish),
        3 => Just(Step::Write),
    ];
    prop::collection::vec((step, 0..NODES.len()), 0..40)
}

const NODES: [&str; 3] = ["a", "b", "c"];

/// What an array that keeps every promise would have in its ledger: one holder at a time, and only it writes.
fn lawful(steps: &[(Step, usize)]) -> (History, Option<usize>) {
    let (mut history, mut holder) = (History::default(), None);
    for &(step, node) in steps {
        let name = NODES[node];
        match step {
            Step::Publish if holder.is_none() => {
                holder = Some(node);
                history = history.publish(name);
            }
            Step::Unpublish if holder == Some(node) => {
                holder = None;
                history = history.unpublish(name);
            }
            Step::Write if holder == Some(node) => history = history.write(name),
            _ => {}
        }
    }
    (history, holder)
}

/// What an array without any guard would have in its ledger.
fn lawless(steps: &[(Step, usize)]) -> History {
    let mut holders = BTreeSet::new();
    steps.iter().fold(History::default(), |history, &(step, node)| {
        let name = NODES[node];
        match step {
            Step::Publish if holders.insert(node) => history.publish(name),
            Step::Publish => history.publish_again(name),
            Step::Unpublish if holders.remove(&node) => history.unpublish(name),
            Step::Unpublish => history,
            Step::Write => history.write(name),
        }
    })
}

/// The rule of the module's documentation, word by word and slowly.
fn violations_by_the_book(entries: &[Entry]) -> Vec<Stamp> {
    let is_grant = |entry: &Entry| matches!(entry.event, Event::Published { repeated: false, .. });
    let is_write = |entry: &Entry| matches!(entry.event, Event::Wrote { .. });
    let grant_before = |node: &str, position: usize| {
        let granted = (0..position).rev().find(|&i| is_grant(&entries[i]) && &*entries[i].node == node);
        granted.unwrap_or(0)
    };
    let is_takeover = |i: usize| {
        let node = &entries[i].node;
        is_write(&entries[i]) && !(grant_before(node, i)..i).any(|j| is_write(&entries[j]) && entries[j].node == *node)
    };
    let violates = |&i: &usize| {
        let node = &entries[i].node;
        is_write(&entries[i]) && (grant_before(node, i)..i).any(|j| entries[j].node != *node && is_takeover(j))
    };
    (0..entries.len()).filter(violates).map(|i| entries[i].at).collect()
}

proptest! {
    #[test]
    fn a_lawful_array_is_never_accused(steps in steps()) {
        let (history, _) = lawful(&steps);
        prop_assert_eq!(history.judge(), Verdict::default());
    }

    #[test]
    fn every_write_of_a_former_owner_is_found(
        tenancies in prop::collection::vec((0..NODES.len(), 1..4usize), 1..8),
        zombie in 0..NODES.len(),
        moves in 1..NODES.len(),
    ) {
        // Any lawful past, then the zombie as owner, then another owner, then the zombie once more.
        let last = (zombie + moves) % NODES.len();
        let steps: Vec<_> = tenancies.into_iter().chain([(zombie, 1), (last, 1)]).flat_map(|(node, writes)| {
            let tenancy = [(Step::Publish, node)].into_iter();
            tenancy.chain(vec![(Step::Write, node); writes]).chain([(Step::Unpublish, node)])
        }).collect();
        let (history, _) = lawful(&steps);
        prop_assert!(history.judge().is_clean());
        prop_assert!(!history.write(NODES[zombie]).judge().is_clean());
    }

    #[test]
    fn the_oracle_agrees_with_the_book(steps in steps()) {
        let history = lawless(&steps);
        let found: Vec<Stamp> = history.judge().violations.iter().map(|violation| violation.wrote).collect();
        prop_assert_eq!(found, violations_by_the_book(&history.0));
    }
}
