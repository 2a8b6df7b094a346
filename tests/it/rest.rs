//! Nothing is written while nothing changes.

use std::time::Duration;

use bulkhead_testbed::Identity;
use bulkhead_testbed::cluster::Cluster;
use libtest_mimic::Failed;

/// Waits until these programs write their Leases and nothing else: for three renewals of the first one's in a row.
pub async fn at_rest(cluster: &Cluster, programs: &[Identity], limit: Duration) -> Result<(), Failed> {
    let users: Vec<_> = programs.iter().map(Identity::user).collect();
    let look = async || {
        let records = match cluster.testbed.audit().records() {
            Ok(records) => records,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let (mut renewals, mut last) = (0, String::new());
        for record in records.filter(|record| users.contains(&record.user) && record.is_write()) {
            if record.resource == "leases" {
                renewals += usize::from(users.first() == Some(&record.user));
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
