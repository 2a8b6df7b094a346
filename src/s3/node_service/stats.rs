//! NodeGetVolumeStats: how full a volume is, and whether its mount answers.

use std::time::Duration;

use tonic::Status;

use crate::csi::v1::volume_usage::Unit;
use crate::csi::v1::{NodeGetVolumeStatsResponse, VolumeCondition, VolumeUsage};

use super::Node;
use super::mounts::Table;
use super::probe::{Answer, Usage};
use super::publication::target;
use super::source::failed;

/// How long a mount may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// Asks what is mounted for a pod.
pub async fn stats(
    node: &Node,
    volume_id: &str,
    pod_uid: &str,
    volume: &str,
) -> Result<NodeGetVolumeStatsResponse, Status> {
    let target = target(pod_uid, volume);
    let absolute = node.absolute(&target);
    let table = Table::read().map_err(|error| failed("read the mount table", &error))?;
    let is_other = node.records.get(&target).is_some_and(|record| record.volume_id != volume_id);
    if is_other || table.at(&absolute).is_none() {
        return Err(Status::not_found(format!("volume {volume_id} is not mounted at {absolute}")));
    }
    let (usage, abnormal, message) = match node.probes.ask(&absolute, ANSWER).await {
        Answer::Alive(usage) => (usage, false, "mount-s3 answers".to_owned()),
        Answer::Dead(errno) => {
            let error = std::io::Error::from_raw_os_error(errno);
            (Usage::default(), true, format!("mount-s3 of this mount has ended: {error}"))
        }
        Answer::Silent => {
            (Usage::default(), true, format!("mount-s3 of this mount has not answered within {ANSWER:?}"))
        }
    };
    Ok(NodeGetVolumeStatsResponse {
        usage: in_units(usage),
        volume_condition: Some(VolumeCondition { abnormal, message }),
    })
}

/// Of a mount that does not answer too: the kubelet reads no condition without a usage.
fn in_units(usage: Usage) -> Vec<VolumeUsage> {
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let bytes = |blocks: u64| signed(blocks.saturating_mul(usage.block));
    let space = VolumeUsage {
        total: bytes(usage.blocks),
        available: bytes(usage.available),
        used: bytes(usage.blocks.saturating_sub(usage.free)),
        unit: Unit::Bytes.into(),
    };
    let inodes = VolumeUsage {
        total: signed(usage.files),
        available: signed(usage.files_free),
        used: signed(usage.files.saturating_sub(usage.files_free)),
        unit: Unit::Inodes.into(),
    };
    vec![space, inodes]
}
