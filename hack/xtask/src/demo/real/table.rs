//! The table at the end, and whether the promise held. What Kubernetes or a person do is reported, whatever it is.

use super::scene::{Outcome, title};
use super::{Actor, Array, Options};
use crate::Result;

/// Prints what happened, by the stamps of the array's ledger.
pub(in crate::demo) fn print(all: &[Outcome], options: &Options) {
    println!("\nThe array's ledger. Seconds are after the control link was cut; grace period {}.", options.grace);
    for outcome in all {
        println!("\n{}", title(outcome.actor, outcome.array));
        let moved = match &outcome.to {
            Some(to) => format!("{} -> {to}", outcome.from),
            None => format!("stays on {}", outcome.from),
        };
        if let Some((after, moved)) = outcome.alone {
            let value = if moved { "moved" } else { "still waits" };
            println!("  {:<60} {value:>18}", format!("nobody acts: the pod {} s after the taint", after.as_secs()));
        }
        for (what, value) in [
            ("the pod", moved),
            ("Kubernetes calls the node unreachable", outcome.after_cut(outcome.unreachable)),
            ("last write of the old node", outcome.after_cut(outcome.last_old)),
            ("first write of the new node", outcome.after_cut(outcome.first_new)),
            ("writes of the old node: accepted", outcome.accepted.to_string()),
            ("                        refused", outcome.refused.to_string()),
            ("                        accepted after the new node's first", outcome.double.to_string()),
            ("from the healed link to a node without taints, s", recovered(outcome)),
        ] {
            println!("  {what:<60} {value:>18}");
        }
        if let (Some(safe), Some(found)) = (outcome.safe, outcome.found) {
            println!(
                "  {:<60} {:>18}",
                "last record safe on the old node / found by the new one",
                format!("{safe} / {found}")
            );
        }
        if let Some(held) = &outcome.held {
            println!("  it holds and says: {held}");
        }
    }
    println!();
    for (outcome, held, promise) in promises(all) {
        println!("{:>7}  {}: {promise}", if held { "ok" } else { "NOT SO" }, title(outcome.actor, outcome.array));
    }
}

fn recovered(outcome: &Outcome) -> String {
    outcome.recovered.map_or_else(|| "never".to_owned(), |took| format!("{:.1}", took.as_secs_f64()))
}

/// What was promised, of Bulkhead only.
fn promises(all: &[Outcome]) -> Vec<(&Outcome, bool, &'static str)> {
    let mut promises = Vec::new();
    for outcome in all.iter().filter(|outcome| outcome.actor == Actor::Bulkhead) {
        promises.push((
            outcome,
            outcome.double == 0,
            "no write of the old node was accepted after the new node's first",
        ));
        if outcome.array == Array::SaysOk {
            let holds = outcome.to.is_none() && outcome.held.is_some();
            promises.push((outcome, holds, "nothing is proved: the pod is not released, and it says why"));
            continue;
        }
        let moved = outcome.to.as_ref().is_some_and(|to| *to != outcome.from);
        promises.push((outcome, moved, "the pod runs on another node"));
        promises.push((outcome, outcome.refused > 0, "the old container went on writing, and the array refused it"));
        let kept = outcome.safe.zip(outcome.found).is_some_and(|(safe, found)| found >= safe);
        promises.push((outcome, kept, "the new container found every record that the old one knew to be safe"));
        promises.push((outcome, outcome.recovered.is_some(), "the node was cleaned and given back without a reboot"));
    }
    promises
}

/// Fails with what was promised and did not hold.
pub(in crate::demo) fn judge(all: &[Outcome]) -> Result<()> {
    let broken: Vec<_> = promises(all).into_iter().filter(|(_, held, _)| !held).map(|(_, _, what)| what).collect();
    if broken.is_empty() {
        return Ok(());
    }
    Err(format!("the promise did not hold: not so: {}", broken.join("; ")).into())
}
