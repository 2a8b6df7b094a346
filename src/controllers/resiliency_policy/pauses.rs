//! Brakes that people set: a pause, and maintenance windows. They hold the next fence before anything else is looked at.

use chrono::{DateTime, Utc};

use crate::api::conditions;
use crate::api::names;
use crate::api::resiliency_policy::{ResiliencyPolicy, Restraint, RestraintType};
use crate::api::text::printable;
use crate::api::time;

use super::windows;

/// `maxLength` of the name of a restraint.
const NAME_MAX: usize = 253;

/// The brakes of a policy that people have set and that hold now.
pub fn restraints(policy: &ResiliencyPolicy, now: DateTime<Utc>) -> Vec<Restraint> {
    let paused = names::paused(&policy.metadata).map(|reason| {
        let mut name = printable(reason);
        conditions::truncate(&mut name, NAME_MAX);
        let since = recorded(policy, RestraintType::Paused).map_or_else(|| time::stamp(now), |known| known.since);
        Restraint { type_: RestraintType::Paused, name: Some(name), since, until: None }
    });
    let windows = windows::open(policy, now).into_iter().map(|open| {
        let of_it = |known: &&Restraint| {
            known.type_ == RestraintType::MaintenanceWindow && known.name.as_deref() == Some(open.name.as_str())
        };
        // One that goes on is the same; one that ended unseen was another.
        let known = policy.status.iter().flat_map(|status| &status.restraints).find(of_it);
        let known = known.filter(|known| known.until.is_none_or(|until| until >= open.since));
        let since = known.map_or_else(|| time::stamp(open.since), |known| known.since);
        Restraint { type_: RestraintType::MaintenanceWindow, name: Some(open.name), since, until: open.until }
    });
    paused.into_iter().chain(windows).collect()
}

fn recorded(policy: &ResiliencyPolicy, type_: RestraintType) -> Option<&Restraint> {
    policy.status.iter().flat_map(|status| &status.restraints).find(|known| known.type_ == type_)
}
