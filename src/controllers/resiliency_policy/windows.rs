//! Maintenance windows: which are open now, since when and until when. Pure: the time zones are compiled in.

use chrono::{DateTime, Days, MappedLocalTime, NaiveDateTime, TimeDelta, TimeZone, Utc};
use chrono_tz::Tz;

use crate::api::resiliency_policy::{MaintenanceWindow, ResiliencyPolicy};

use super::cron::Schedule;

/// A window that is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// Its name.
    pub name: String,
    /// When it began.
    pub since: DateTime<Utc>,
    /// When it ends; `None` when it begins anew before it ends, on and on.
    pub until: Option<DateTime<Utc>>,
}

/// The windows of a policy that are open. One that cannot be understood is taken for open: nobody knows when it is not.
pub fn open(policy: &ResiliencyPolicy, now: DateTime<Utc>) -> Vec<Open> {
    let windows = policy.spec.maintenance_windows.iter();
    let opened = windows.filter_map(|window| match Window::of(window) {
        Ok(parsed) => parsed.open(&window.name, now),
        Err(_) => Some(Open { name: window.name.clone(), since: now, until: None }),
    });
    opened.collect()
}

/// What is wrong with the windows of a policy, by name of the field; the definition refuses most of it.
pub fn mistake(policy: &ResiliencyPolicy) -> Option<String> {
    policy.spec.maintenance_windows.iter().find_map(|window| {
        let mistake = Window::of(window).err()?;
        Some(format!("spec.maintenanceWindows, {}: {mistake}", window.name))
    })
}

struct Window {
    schedule: Schedule,
    zone: Tz,
    length: TimeDelta,
}

impl Window {
    fn of(window: &MaintenanceWindow) -> Result<Self, String> {
        let schedule = window.schedule.parse().map_err(|mistake| format!("schedule: {mistake}"))?;
        let zone = window.time_zone.parse().map_err(|_| {
            format!(
                "timeZone: {:?} is not known to this controller; write a name such as Europe/Berlin",
                window.time_zone
            )
        })?;
        let length = TimeDelta::from_std(window.duration.get()).map_err(|error| format!("duration: {error}"))?;
        Ok(Self { schedule, zone, length })
    }

    fn open(&self, name: &str, now: DateTime<Utc>) -> Option<Open> {
        let since = self.last_start(now).filter(|start| now < *start + self.length)?;
        Some(Open { name: name.to_owned(), since, until: self.end(since) })
    }

    /// When a window that began then is over, where it may begin anew before it ends.
    fn end(&self, since: DateTime<Utc>) -> Option<DateTime<Utc>> {
        /// One that is prolonged more often than this is taken for endless.
        const TIMES: usize = 24;
        let mut start = since;
        for _ in 0..TIMES {
            let end = start + self.length;
            match self.last_start(end).filter(|again| *again > start) {
                Some(again) => start = again,
                None => return Some(end),
            }
        }
        None
    }

    /// The last start at or before a moment, as far back as a window is long. Clocks that are set may put a start of one
    /// date after one of the next, so the date before the one that has a start is looked at too.
    fn last_start(&self, at: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let latest = at.with_timezone(&self.zone).date_naive().checked_add_days(Days::new(1))?;
        let days = u64::try_from(self.length.num_days()).unwrap_or_default() + 3;
        let mut found: Option<DateTime<Utc>> = None;
        for back in 0..=days {
            let Some(date) = latest.checked_sub_days(Days::new(back)) else { break };
            let had = found.is_some();
            if self.schedule.has_date(date) {
                let starts = self.schedule.times().flat_map(|time| self.moments(date.and_time(time)));
                found = starts.filter(|start| *start <= at).chain(found).max();
            }
            if had {
                break;
            }
        }
        found
    }

    /// The moments at which the clocks of the zone show this: the end of the gap for what they skip; for what they show
    /// twice the first, and of a schedule that goes on all day both.
    fn moments(&self, local: NaiveDateTime) -> Vec<DateTime<Utc>> {
        /// No zone has skipped more than a day.
        const GAP_MINUTES: i64 = 25 * 60;
        let utc = |at: DateTime<Tz>| at.with_timezone(&Utc);
        match self.zone.from_local_datetime(&local) {
            MappedLocalTime::Single(at) => vec![utc(at)],
            MappedLocalTime::Ambiguous(first, _) if self.schedule.is_fixed() => vec![utc(first)],
            MappedLocalTime::Ambiguous(first, second) => vec![utc(first), utc(second)],
            MappedLocalTime::None => {
                let later = (1..=GAP_MINUTES).map(|minutes| local + TimeDelta::minutes(minutes));
                let mut after = later.filter_map(|later| self.zone.from_local_datetime(&later).earliest());
                after.next().map(utc).into_iter().collect()
            }
        }
    }
}
