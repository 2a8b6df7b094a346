//! Makes a failing schedule short: events go one by one while it still fails.

use crate::run::{Outcome, play};
use crate::schedule::Schedule;

/// The shortest schedule found that still breaks the same invariant, and how it ends; `None` if it breaks none.
pub fn shrink(seed: u64) -> Option<(Schedule, Outcome)> {
    let mut schedule = Schedule::new(seed);
    let invariant = play(&schedule, false).violations.first()?.invariant;
    let fails = |schedule: &Schedule| {
        play(schedule, false).violations.first().is_some_and(|violation| violation.invariant == invariant)
    };
    loop {
        let shorter = without_one(&schedule).into_iter().find(|shorter| fails(shorter));
        match shorter {
            Some(shorter) => schedule = shorter,
            None => break,
        }
    }
    let outcome = play(&schedule, true);
    Some((schedule, outcome))
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
