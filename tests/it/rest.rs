//! Nothing is written while nothing changes.

use std::time::Duration;

use bulkhead_testbed::Identity;
use bulkhead_testbed::audit::Record;
use bulkhead_testbed::cluster::Cluster;
use libtest_mimic::Failed;

/// Waits until these programs write their Leases and nothing else: for three renewals of the first one's in a row.
pub async fn at_rest(cluster: &Cluster, programs: &[Identity], limit: Duration) -> Result<(), Failed> {
    none_of(cluster, programs, limit, Record::is_write).await
}

/// Waits until these programs ask for nothing but their Leases and what changes, for as long.
pub async fn nothing_is_read(cluster: &Cluster, programs: &[Identity], limit: Duration) -> Result<(), Failed> {
    none_of(cluster, programs, limit, |record| record.verb != "watch").await
}

async fn none_of(
    cluster: &Cluster,
    programs: &[Identity],
    limit: Duration,
    counts: impl Fn(&Record) -> bool,
) -> Result<(), Failed> {
    let users: Vec<_> = programs.iter().map(Identity::user).collect();
    let look = async || {
        let records = match cluster.testbed.audit().records() {
            Ok(records) => records,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let (mut renewals, mut last) = (0, String::new());
        for record in records.filter(|record| users.contains(&record.user) && counts(record)) {
            if record.resource == "leases" {
                renewals += usize::from(users.first() == Some(&record.user) && record.is_write());
            } else {
                renewals = 0;
                last = format!(
                    "{}: {} {}/{} {}",
                    record.user, record.verb, record.resource, record.subresource, record.name
                );
            }
        }
        Ok(if renewals > 3 { Ok(()) } else { Err(format!("{renewals} renewals since {last}")) })
    };
    Ok(cluster.wait("rest", limit, look).await?)
}
