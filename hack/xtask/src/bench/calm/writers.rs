//! A writer on each node, with a volume of its own: what a disturbance must not end.

use std::time::Duration;

use bulkhead_testbed::cluster::real::{PodPlace, RealCluster, RealWorkload};
use bulkhead_testbed::ledger::{Entry, Event, Stamp};
use serde_json::json;

use crate::Result;
use crate::bench::on_real_nodes::{SOON, one};

/// All of them.
pub struct Writers(Vec<Writer>);

struct Writer {
    workload: RealWorkload,
    pod: PodPlace,
    /// The handle of its volume.
    volume: String,
}

impl Writers {
    /// Returns when all write.
    pub async fn start(cluster: &RealCluster, nodes: usize) -> Result<Self> {
        let names = (1..=nodes).map(|number| format!("node-{number}"));
        let workloads: Vec<_> = names.map(|node| workload(&node)).collect();
        for workload in &workloads {
            cluster.run(workload).await?;
        }
        let mut writers = Vec::new();
        for workload in workloads {
            let pod = one(cluster.running(&workload, &[], SOON).await?)?;
            let volume = cluster.volume(&workload, 0).await?;
            cluster.array.ledger().wait_for_write(&volume, &pod.node, Stamp::START, SOON).await?;
            writers.push(Writer { workload, pod, volume });
        }
        Ok(Self(writers))
    }

    /// Waits until each has written since `ended`, as the pod that it was, and none was refused since `began`. Returns the
    /// longest time between two writes of one since then.
    pub async fn wrote_on(&self, cluster: &RealCluster, began: Stamp, ended: Stamp) -> Result<Duration> {
        let ledger = cluster.array.ledger();
        let mut longest = Duration::ZERO;
        for Writer { workload, pod, volume } in &self.0 {
            let now = one(cluster.running(workload, &[], SOON).await?)?;
            if now != *pod {
                return Err(format!("{now:?} is there instead of {pod:?}").into());
            }
            ledger.wait_for_write(volume, &pod.node, ended, SOON).await?;
            let refused = ledger.refused_writes(volume, &pod.node, began);
            if refused > 0 {
                return Err(format!("the array refused {refused} writes of {pod:?}").into());
            }
            longest = longest.max(ledger.read(|entries| longest_pause(entries, volume, &pod.node, began)));
        }
        Ok(longest)
    }
}

/// Nowhere but on this node.
fn workload(node: &str) -> RealWorkload {
    RealWorkload {
        every: "250ms".to_owned(),
        template: json!({ "spec": { "nodeSelector": { "kubernetes.io/hostname": node } } }),
        ..RealWorkload::new(&format!("calm-{node}"))
    }
}

/// The longest time between two writes of a node to a volume after `began`, and from then to the first.
fn longest_pause(entries: &[Entry], volume: &str, node: &str, began: Stamp) -> Duration {
    let first = entries.partition_point(|entry| entry.at <= began);
    let later = entries.get(first..).unwrap_or_default();
    let is_write =
        |entry: &&Entry| &*entry.volume == volume && &*entry.node == node && matches!(entry.event, Event::Wrote { .. });
    let (mut last, mut longest) = (began, Duration::ZERO);
    for write in later.iter().filter(is_write) {
        longest = longest.max(write.at.since(last));
        last = write.at;
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_between_two_writes_of_one_writer() {
        let at = |seconds| Stamp::new(Duration::from_secs(seconds));
        let wrote = |seconds, node: &str| Entry {
            at: at(seconds),
            volume: "v".into(),
            node: node.into(),
            event: Event::Wrote { sequence: 1, tag: "pod".into() },
        };
        let entries = [wrote(1, "a"), wrote(20, "a"), wrote(22, "b"), wrote(25, "a"), wrote(27, "a")];
        assert_eq!(longest_pause(&entries, "v", "a", at(19)), Duration::from_secs(5));
        assert_eq!(longest_pause(&entries, "v", "a", at(10)), Duration::from_secs(10));
        assert_eq!(longest_pause(&entries, "v", "b", at(30)), Duration::ZERO);
    }
}
