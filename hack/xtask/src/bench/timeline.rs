//! Where the time goes: who asked the API server for what from the taint to the end of the run, from the audit log.

use std::collections::BTreeMap;
use std::fmt;

use bulkhead_testbed::audit::Record;

use crate::Result;
use crate::incident::{Moment, seconds};

/// Requests of one kind by one user.
#[derive(Debug, Default)]
struct Line {
    /// Seconds since the zero, of the first request's begin.
    first: f64,
    /// Of the last one's end.
    last: f64,
    /// How long each took, in seconds.
    took: Vec<f64>,
}

/// All requests by user, verb and resource.
#[derive(Debug, Default)]
pub struct Timeline(BTreeMap<(String, String, String), Line>);

impl Timeline {
    /// One request more.
    fn add(&mut self, record: Record, zero: Moment) {
        let (first, last) = (seconds(zero, record.received), seconds(zero, record.finished));
        let user = record.user.rsplit(':').next().unwrap_or_default().to_owned();
        let resource = match record.subresource.as_str() {
            "" => record.resource,
            subresource => format!("{}/{subresource}", record.resource),
        };
        let line = self.0.entry((user, record.verb, resource)).or_insert(Line { first, ..Line::default() });
        line.first = line.first.min(first);
        line.last = line.last.max(last);
        line.took.push(last - first);
    }
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines: Vec<_> = self.0.iter().collect();
        lines.sort_by(|a, b| a.1.first.total_cmp(&b.1.first));
        writeln!(f, "{:>7} {:>7} {:>5} {:>8} {:>8}  who, what (seconds)", "from", "to", "n", "median", "max")?;
        for ((user, verb, resource), line) in lines {
            let mut took = line.took.clone();
            took.sort_by(f64::total_cmp);
            let median = took.get(took.len() / 2).copied().unwrap_or_default();
            let max = took.last().copied().unwrap_or_default();
            let (first, last, count) = (line.first, line.last, took.len());
            writeln!(f, "{first:>7.3} {last:>7.3} {count:>5} {median:>8.3} {max:>8.3}  {user} {verb} {resource}")?;
        }
        Ok(())
    }
}

/// The timelines of one run: until the hand-over, a little longer, and what came after that.
pub fn of_run(cluster: &bulkhead_testbed::cluster::Cluster, zero: Moment, handed_over: f64) -> Result<[Timeline; 2]> {
    Ok(split(cluster.testbed.audit().records()?, zero, handed_over + 0.5))
}

/// What was asked for from `zero` until so many seconds later, and what after that. Watches and Leases are left out.
fn split(records: impl Iterator<Item = Record>, zero: Moment, end: f64) -> [Timeline; 2] {
    let [mut before, mut after] = [Timeline::default(), Timeline::default()];
    for record in records.filter(|record| record.verb != "watch" && record.resource != "leases") {
        match seconds(zero, record.received) {
            first if first < 0.0 => {}
            first if first < end => before.add(record, zero),
            _ => after.add(record, zero),
        }
    }
    [before, after]
}

#[cfg(test)]
mod tests {
    use chrono::{TimeDelta, Utc};

    use super::*;

    fn at(zero: Moment, milliseconds: i64) -> Moment {
        zero + TimeDelta::milliseconds(milliseconds)
    }

    fn record(verb: &str, received: Moment, finished: Moment) -> Record {
        Record {
            user: "system:serviceaccount:bulkhead-system:bulkhead-controller".into(),
            verb: verb.into(),
            resource: "pods".into(),
            subresource: String::new(),
            namespace: "default".into(),
            name: "db".into(),
            code: 200,
            received,
            finished,
            body: None,
        }
    }

    fn lines(timeline: &Timeline) -> Vec<String> {
        timeline.to_string().lines().skip(1).map(str::to_owned).collect()
    }

    #[test]
    fn requests_of_a_kind_are_one_line_in_the_order_of_their_beginning() {
        let zero = Utc::now();
        let record = |verb: &str, from, to| record(verb, at(zero, from), at(zero, to));
        let records =
            [record("list", -20, -10), record("delete", 100, 150), record("list", 50, 60), record("delete", 120, 190)];
        let [before, after] = split(records.into_iter(), zero, 1.0);
        assert_eq!(
            lines(&before),
            [
                "  0.050   0.060     1    0.010    0.010  bulkhead-controller list pods",
                "  0.100   0.190     2    0.070    0.070  bulkhead-controller delete pods",
            ]
        );
        assert!(lines(&after).is_empty());
    }

    #[test]
    fn what_begins_at_the_end_comes_after_it() {
        let zero = Utc::now();
        let records = [("list", 0), ("delete", 999), ("list", 1000), ("watch", 1500)];
        let records = records.map(|(verb, from)| record(verb, at(zero, from), at(zero, from + 10)));
        let [before, after] = split(records.into_iter(), zero, 1.0);
        assert_eq!(
            lines(&before),
            [
                "  0.000   0.010     1    0.010    0.010  bulkhead-controller list pods",
                "  0.999   1.009     1    0.010    0.010  bulkhead-controller delete pods",
            ]
        );
        assert_eq!(lines(&after), ["  1.000   1.010     1    0.010    0.010  bulkhead-controller list pods"]);
    }
}
