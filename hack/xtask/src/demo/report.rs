//! The table at the end of the demo.

use std::time::Duration;

use super::{Failover, POD, Without};
use crate::Result;
use crate::incident::{Moment, seconds};

/// What was promised, and whether it held.
pub(super) type Promise = (bool, String);

/// Prints what was promised and fails if any of it did not hold.
pub(super) fn judge(promises: Vec<Promise>) -> Result<()> {
    println!();
    for (held, promise) in &promises {
        println!("{:>7}  {promise}", if *held { "ok" } else { "NOT SO" });
    }
    let broken: Vec<_> = promises.into_iter().filter(|(held, _)| !held).map(|(_, promise)| promise).collect();
    if broken.is_empty() { Ok(()) } else { Err(format!("not so: {}", broken.join("; ")).into()) }
}

/// Prints what happened, with the audit log's and the array's stamps.
pub fn print(failover: &Failover, without: &Without) {
    let Some(zero) = failover.api.unreachable else {
        println!("\nKubernetes never noticed that {} is silent: nothing to report.", failover.from);
        return;
    };
    let api = &failover.api;
    let runs = match &failover.to {
        Some(to) => format!("{POD} runs on {to}: its first write"),
        None => format!("{POD} runs elsewhere"),
    };
    let rows = [
        (format!("{} is unreachable: taint, NoSchedule", failover.from), Some(zero)),
        ("decided: the node has failed".to_owned(), failover.decided),
        ("planned: NodeFence written".to_owned(), api.planned),
        ("tainted: bulkhead.dev/fenced".to_owned(), api.tainted),
        ("fenced: cut off on the array".to_owned(), failover.array.cut_off),
        ("verified: read back from the array".to_owned(), failover.verified),
        (format!("released: {POD} deleted"), api.pods_gone.get(POD).copied()),
        ("handed over: detaching begun".to_owned(), api.handed_over.values().max().copied()),
        ("detached: VolumeAttachment gone".to_owned(), api.detached.values().max().copied()),
        (runs, failover.array.first_write_elsewhere),
    ];
    println!("\nThe same by the stamps of the API server and the array:");
    println!("{:<44} {:>14}   without", "seconds since the taint", "with Bulkhead");
    let last = rows.len() - 1;
    for (number, (what, at)) in rows.into_iter().enumerate() {
        let beside = match number {
            0 => cell(zero, Some(zero)),
            number if number == last => without.text(),
            _ => "-".to_owned(),
        };
        println!("{what:<44} {:>14}   {beside}", cell(zero, at));
    }
    let writes = api.writes;
    println!(
        "\nAPI writes by Bulkhead: {} (controller {}, CSI sidecar {}), and {} Events; leader Leases not counted",
        writes.controller + writes.sidecar,
        writes.controller,
        writes.sidecar,
        writes.events,
    );
    println!(
        "Array's ledger: writes of {} accepted after the new node's first: {}; refused: {}; both had access: {}",
        failover.from,
        failover.array.accepted_too_late,
        failover.array.refused,
        overlap(failover),
    );
    println!();
    for (held, promise) in failover.promises() {
        println!("{:>7}  {promise}", if held { "ok" } else { "NOT SO" });
    }
}

impl Without {
    fn text(&self) -> String {
        match self {
            Self::NotTried => "not tried".to_owned(),
            Self::StillWaiting(seconds) => format!("still waiting at {seconds} s"),
            Self::Moved(seconds) => format!("{seconds:.3}"),
        }
    }
}

fn cell(zero: Moment, at: Option<Moment>) -> String {
    at.map_or_else(|| "never".to_owned(), |at| format!("{:.3}", seconds(zero, at)))
}

fn overlap(failover: &Failover) -> String {
    let overlaps = &failover.verdict.overlaps;
    if overlaps.is_empty() {
        return "never".to_owned();
    }
    let lasted = |until: Option<_>, from| {
        until.map_or(Duration::ZERO, |until: bulkhead_testbed::ledger::Stamp| until.since(from))
    };
    let total: Duration = overlaps.iter().map(|overlap| lasted(overlap.until, overlap.from)).sum();
    format!("{} times, {:.3} s", overlaps.len(), total.as_secs_f64())
}
