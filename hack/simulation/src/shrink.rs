//! Makes a failing schedule short: events go one by one while it still fails.

use crate::run::{Outcome, play};
use crate::schedule::Schedule;

/// The shortest schedule found that still breaks the same invariant, and how it ends; `None` if it breaks none.
pub fn shrink(seed: u64) -> Option<(Schedule, Outcome)> {
    let schedule = Schedule::new(seed);
    let invariant = play(&schedule, false).violations.first()?.invariant;
    let shortest = shrink_while(schedule, |schedule| {
        play(schedule, false).violations.first().is_some_and(|violation| violation.invariant == invariant)
    });
    let outcome = play(&shortest, true);
    Some((shortest, outcome))
}

/// Takes events away while it still fails.
pub fn shrink_while(mut schedule: Schedule, fails: impl Fn(&Schedule) -> bool) -> Schedule {
    while let Some(shorter) = without_one(&schedule).into_iter().find(|shorter| fails(shorter)) {
        schedule = shorter;
    }
    schedule
}

/// The same with one event fewer, or without the crash.
fn without_one(schedule: &Schedule) -> Vec<Schedule> {
    let mut shorter: Vec<_> = (0..schedule.events.len())
        .map(|index| {
            let mut shorter = schedule.clone();
            shorter.events.remove(index);
            shorter
        })
        .collect();
    if schedule.crash_point.is_some() {
        shorter.push(Schedule { crash_point: None, ..schedule.clone() });
    }
    shorter
}

/// A failing seed as text: what it takes, what happened, what is broken.
pub fn tell(seed: u64) -> String {
    let Some((schedule, outcome)) = shrink(seed) else { return format!("seed {seed}: every invariant holds") };
    let mut text = format!("seed {seed}\n");
    for (when, fault) in &schedule.events {
        text.push_str(&format!("  {when:?}: {fault:?}\n"));
    }
    if let Some(point) = schedule.crash_point {
        text.push_str(&format!("  {point:?}\n"));
    }
    for line in outcome.trace {
        text.push_str(&line);
        text.push('\n');
    }
    for violation in outcome.violations {
        text.push_str(&format!("{violation}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use crate::faults::Fault;
    use crate::schedule::Schedule;

    use super::{shrink_while, tell};

    #[test]
    fn only_what_it_takes_is_left() {
        let kills = |schedule: &Schedule| {
            let kill = |fault: &Fault| matches!(fault, Fault::Disconnect(_));
            schedule.events.iter().any(|(_, fault)| kill(fault))
        };
        let seed = (0..100).find(|seed| {
            let schedule = Schedule::new(*seed);
            schedule.events.len() > 4 && kills(&schedule)
        });
        let shortest = shrink_while(Schedule::new(seed.unwrap()), kills);
        assert_eq!((shortest.events.len(), shortest.crash_point), (1, None), "{:?}", shortest.events);
    }

    #[test]
    fn a_seed_that_breaks_nothing_says_so() {
        assert_eq!(tell(1), "seed 1: every invariant holds");
    }
}
