//! What the DriverReport says of the volumes: groups of what is wrong, within the limits of one object.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};

use crate::api::driver_report::{AbnormalVolumes, Coverage, DriverReportStatus};
use crate::api::time;
use crate::api::volume::VolumeState;

use super::decide::Cause;
use super::memory::Row;

/// Groups that a report may list.
const GROUPS_MAX: usize = 64;
/// Volumes that it may list.
const VOLUMES_MAX: usize = 5_000;
/// Bytes that they may take, so that the whole stays below 1 MiB.
const BYTES_MAX: usize = 900 * 1024;

/// The part of a DriverReport that is about volumes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumeReport {
    abnormal: Vec<AbnormalVolumes>,
    coverage: Option<Coverage>,
    checked: Option<u32>,
    abnormal_volumes: Option<u32>,
}

/// By this a group is told from others, worst first.
type GroupKey = (std::cmp::Reverse<VolumeState>, Cause, Option<String>, String);

impl VolumeReport {
    /// What is wrong, of so many volumes that are asked about. `None`: nothing is known of them yet, or they cannot be
    /// asked about.
    pub fn new<'a>(rows: impl Iterator<Item = Row<'a>>, checked: Option<usize>) -> Self {
        let rows: Vec<_> = rows.collect();
        let handles: BTreeSet<_> = rows.iter().map(|row| row.handle).collect();
        let mut groups = group(&rows, true);
        // Drivers that name the volume in each message would fill a report with groups of one.
        if groups.len() > GROUPS_MAX {
            groups = group(&rows, false);
        }
        let (abnormal, coverage) = fit(groups);
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Self {
            abnormal,
            coverage: checked.map(|_| coverage),
            checked: checked.map(count),
            abnormal_volumes: checked.map(|_| count(handles.len())),
        }
    }

    /// Puts it into a report.
    pub fn write(&self, status: &mut DriverReportStatus) {
        status.abnormal.clone_from(&self.abnormal);
        status.coverage = self.coverage;
        status.checked_volumes = self.checked;
        status.abnormal_volumes = self.abnormal_volumes;
    }
}

fn group<'a>(rows: &[Row<'a>], by_message: bool) -> BTreeMap<GroupKey, (DateTime<Utc>, BTreeSet<&'a str>)> {
    let mut groups = BTreeMap::new();
    for row in rows {
        let trouble = &row.settled.trouble;
        let message = if by_message { trouble.message.clone() } else { String::new() };
        let key = (std::cmp::Reverse(trouble.state), trouble.reason.clone(), row.node.map(str::to_owned), message);
        let since = time::stamp(row.settled.since);
        let (first, handles) = groups.entry(key).or_insert_with(|| (since, BTreeSet::new()));
        *first = since.min(*first);
        handles.insert(row.handle);
    }
    groups
}

fn fit(groups: BTreeMap<GroupKey, (DateTime<Utc>, BTreeSet<&str>)>) -> (Vec<AbnormalVolumes>, Coverage) {
    let (mut listed, mut bytes, mut coverage) = (0, 0, Coverage::Complete);
    let mut abnormal = Vec::new();
    for ((state, cause, node, message), (since, handles)) in groups {
        bytes += 256 + message.len();
        let mut fitting = Vec::new();
        for handle in handles {
            let size = handle.len() + 3;
            if abnormal.len() == GROUPS_MAX || listed == VOLUMES_MAX || bytes + size > BYTES_MAX {
                coverage = Coverage::Capped;
                break;
            }
            (listed, bytes) = (listed + 1, bytes + size);
            fitting.push(handle.to_owned());
        }
        if fitting.is_empty() {
            continue;
        }
        abnormal.push(AbnormalVolumes {
            state: state.0,
            reason: cause.reason,
            node,
            since,
            message: Some(message).filter(|message| !message.is_empty()),
            raw_status: cause.raw_status,
            volume_handles: fitting,
        });
    }
    (abnormal, coverage)
}
