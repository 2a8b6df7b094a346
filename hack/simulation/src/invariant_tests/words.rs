//! The judge of a fencer's words on the power of nodes.

use std::sync::Arc;

use bulkhead::api::node_fence::Channel;
use bulkhead::controllers::resiliency_policy::decide::{Decision, Effect};

use crate::chance::Prompt;
use crate::faults::Fault;
use crate::others::{FencerMood, Lie};
use crate::stories::with_power_reported;
use crate::time::{MINUTE, SECOND};
use crate::world::World;

use super::{befalls, fence_of};

/// The first node lost its power, and its pods have moved. What the fencer reports of the second goes by these faults from then on.
fn declared_off(faults: Vec<(u64, Fault)>) -> World {
    let mut world = World::new(Arc::new(with_power_reported()));
    befalls(&mut world, 40 * SECOND, Fault::PowerOff("n0".into()));
    faults.into_iter().for_each(|(second, fault)| befalls(&mut world, 4 * MINUTE + second * SECOND, fault));
    assert!(world.run_until(4 * MINUTE + 35 * SECOND, &mut Prompt), "{:?}", world.oracle.violations);
    let mut fence = fence_of(&world, "n1");
    fence.spec.plan.evidence.iter_mut().for_each(|it| it.channel = Channel::Power);
    world.notice_cluster(0, &Decision { effects: vec![Effect::Open(fence)], ..Decision::default() });
    world
}

#[test]
fn i15_a_node_is_declared_failed_on_a_word_that_does_not_count() {
    let mood = |lies| Fault::Fencer(FencerMood { lies, ..FencerMood::default() });
    let wrong = || mood(Some(("n1".to_owned(), Lie::ThisBoot)));
    let of_before = || mood(Some(("n1".to_owned(), Lie::BootBefore)));
    let away = || Fault::Disconnect("n1".into());
    let dead = Fault::Fencer(FencerMood { is_dead: true, ..FencerMood::default() });
    for (name, faults, wanted) in [
        ("silent since", vec![(0, wrong()), (0, away())], None),
        ("said just now, and all is well", vec![(34, wrong())], Some("renews its Lease")),
        ("its kubelet is heard", vec![(0, wrong())], Some("heard since")),
        ("it was heard", vec![(0, wrong()), (20, away())], Some("heard since")),
        (
            "said again, of another boot in between",
            vec![(0, wrong()), (15, of_before()), (18, wrong()), (18, away())],
            Some("heard since"),
        ),
        ("never said", vec![(0, away())], Some("nobody has said so")),
        ("of the boot before", vec![(0, of_before()), (0, away())], Some("nobody has said so")),
        ("taken back", vec![(0, wrong()), (0, away()), (10, mood(None))], Some("taken it back")),
        (
            "said before whoever decides began, of a node that has just fallen silent",
            vec![(0, wrong()), (30, away()), (33, Fault::Crash(0, SECOND))],
            Some("before anybody looked"),
        ),
        ("its fencer has ended", vec![(0, wrong()), (0, away()), (1, dead)], Some("not heard of")),
    ] {
        let world = declared_off(faults);
        let told: Vec<_> = world.oracle.violations.iter().filter(|it| it.invariant == "I15").collect();
        assert_eq!(told.is_empty(), wanted.is_none(), "{name}: {told:?}");
        let is_told = |words: &str| told.iter().any(|it| it.what.contains(words));
        assert!(wanted.is_none_or(is_told), "{name}: {told:?}");
    }
}
