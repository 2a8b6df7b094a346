//! Maintenance windows: cron expressions, time zones and the two nights of the year when clocks are set. Expectations are
//! written as a person reads the clock.

use chrono::{DateTime, Datelike, NaiveDate, TimeDelta, Utc};
use serde_json::json;

use crate::api::resiliency_policy::{ResiliencyPolicy, RestraintType};
use crate::controllers::testing::*;

use super::super::cron::Schedule;
use super::super::pauses;
use super::super::windows::{mistake, open};
use super::World;

fn utc(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

fn window(name: &str, schedule: &str, duration: &str, zone: &str) -> serde_json::Value {
    json!({ "name": name, "schedule": schedule, "duration": duration, "timeZone": zone })
}

fn with(windows: &[serde_json::Value]) -> ResiliencyPolicy {
    policy("db", &json!({ "maintenanceWindows": windows }))
}

/// Whether the window is open at each of these moments.
fn check(schedule: &str, duration: &str, zone: &str, moments: &[(&str, bool)]) {
    let policy = with(&[window("w", schedule, duration, zone)]);
    assert_eq!(mistake(&policy), None);
    for (moment, wanted) in moments {
        let found = open(&policy, utc(moment));
        assert_eq!(!found.is_empty(), *wanted, "{schedule} {duration} {zone} at {moment}: {found:?}");
    }
}

#[test]
fn a_window_is_open_from_its_start_to_before_its_end() {
    check(
        "0 2 * * SUN",
        "4h",
        "UTC",
        &[
            ("2026-11-22T01:59:59Z", false),
            ("2026-11-22T02:00:00Z", true),
            ("2026-11-22T05:59:59Z", true),
            ("2026-11-22T06:00:00Z", false),
            ("2026-11-23T03:00:00Z", false),
        ],
    );
    // Winter in Berlin is an hour ahead, summer two.
    check(
        "0 2 * * SUN",
        "4h",
        "Europe/Berlin",
        &[
            ("2026-11-22T00:59:59Z", false),
            ("2026-11-22T01:00:00Z", true),
            ("2026-07-05T00:00:00Z", true),
            ("2026-07-04T23:59:59Z", false),
        ],
    );
}

#[test]
fn a_window_spans_midnight_the_year_and_up_to_a_week() {
    check(
        "30 23 * * *",
        "2h",
        "UTC",
        &[
            ("2026-12-31T23:29:59Z", false),
            ("2026-12-31T23:30:00Z", true),
            ("2027-01-01T01:29:59Z", true),
            ("2027-01-01T01:30:00Z", false),
        ],
    );
    check(
        "0 0 1 * *",
        "168h",
        "UTC",
        &[
            ("2026-11-30T23:59:59Z", false),
            ("2026-12-01T00:00:00Z", true),
            ("2026-12-07T23:59:59Z", true),
            ("2026-12-08T00:00:00Z", false),
        ],
    );
}

/// On 2026-03-29 Berlin's clocks go from 02:00 to 03:00, at 01:00 UTC.
#[test]
fn a_start_in_the_hour_that_is_skipped_is_the_end_of_the_gap() {
    check(
        "30 2 * * *",
        "1h",
        "Europe/Berlin",
        &[
            ("2026-03-28T01:30:00Z", true),
            ("2026-03-29T00:59:59Z", false),
            ("2026-03-29T01:00:00Z", true),
            ("2026-03-29T01:59:59Z", true),
            ("2026-03-29T02:00:00Z", false),
            ("2026-03-30T00:30:00Z", true),
        ],
    );
    // Lord Howe's clocks go half an hour ahead on 2026-10-04, from 02:00 to 02:30, at 15:30 UTC the day before.
    check(
        "15 2 * * *",
        "10m",
        "Australia/Lord_Howe",
        &[("2026-10-03T15:29:59Z", false), ("2026-10-03T15:30:00Z", true), ("2026-10-03T15:40:00Z", false)],
    );
    // In Beirut the day of 2026-03-29 begins at 01:00, at 22:00 UTC the day before.
    check(
        "0 0 * * *",
        "30m",
        "Asia/Beirut",
        &[("2026-03-28T21:59:59Z", false), ("2026-03-28T22:00:00Z", true), ("2026-03-28T22:30:00Z", false)],
    );
}

/// On 2026-10-25 Berlin's clocks go from 03:00 back to 02:00, at 01:00 UTC.
#[test]
fn a_start_in_the_hour_that_comes_twice_is_the_first() {
    check(
        "30 2 * * *",
        "45m",
        "Europe/Berlin",
        &[
            ("2026-10-25T00:29:59Z", false),
            ("2026-10-25T00:30:00Z", true),
            ("2026-10-25T01:14:59Z", true),
            ("2026-10-25T01:15:00Z", false),
            ("2026-10-25T01:30:00Z", false),
        ],
    );
    // What happens all day happens in both hours.
    check(
        "*/30 * * * *",
        "5m",
        "Europe/Berlin",
        &[
            ("2026-10-25T00:30:00Z", true),
            ("2026-10-25T00:35:00Z", false),
            ("2026-10-25T01:30:00Z", true),
            ("2026-10-25T01:35:00Z", false),
            ("2026-10-25T02:00:00Z", true),
        ],
    );
    // Havana's clocks go from 01:00 back to midnight on 2026-11-01, at 05:00 UTC: the day begins once.
    check(
        "0 0 * * *",
        "30m",
        "America/Havana",
        &[
            ("2026-11-01T03:59:59Z", false),
            ("2026-11-01T04:00:00Z", true),
            ("2026-11-01T04:30:00Z", false),
            ("2026-11-01T05:00:00Z", false),
        ],
    );
}

/// Its length is time that passes: four hours are four hours in any night.
#[test]
fn a_window_across_a_change_of_clocks_keeps_its_length() {
    for (start, end) in [
        ("2026-03-28T23:00:00Z", "2026-03-29T03:00:00Z"),
        ("2026-10-24T22:00:00Z", "2026-10-25T02:00:00Z"),
        ("2026-11-21T23:00:00Z", "2026-11-22T03:00:00Z"),
    ] {
        let policy = with(&[window("w", "0 0 * * *", "4h", "Europe/Berlin")]);
        let opened = open(&policy, utc(start) + TimeDelta::hours(1));
        assert_eq!(opened.len(), 1);
        assert_eq!((opened[0].since, opened[0].until), (utc(start), Some(utc(end))));
        assert!(open(&policy, utc(end)).is_empty() && open(&policy, utc(start) - TimeDelta::seconds(1)).is_empty());
    }
}

#[test]
fn several_windows_are_told_by_name_with_their_ends() {
    let policy = with(&[
        window("array-firmware", "0 2 * * SUN", "4h", "UTC"),
        window("switches", "0 5 * * *", "2h", "UTC"),
        window("never-now", "0 12 * * *", "1h", "UTC"),
    ]);
    let found: Vec<_> = open(&policy, utc("2026-11-22T05:30:00Z"))
        .into_iter()
        .map(|it| (it.name, it.until.map(|until| until.to_rfc3339())))
        .collect();
    let wanted = [("array-firmware", "2026-11-22T06:00:00+00:00"), ("switches", "2026-11-22T07:00:00+00:00")];
    assert_eq!(found, wanted.map(|(name, until)| (name.to_owned(), Some(until.to_owned()))));
}

#[test]
fn a_window_that_begins_anew_before_it_ends_is_one() {
    // 22:00 to 22:15, and with it what begins at 22:10 and at 22:20.
    let policy = with(&[window("w", "0,10,20 22 * * *", "15m", "UTC")]);
    let opened = open(&policy, utc("2026-11-22T22:05:00Z"));
    assert_eq!(opened[0].until, Some(utc("2026-11-22T22:35:00Z")));
    let policy = with(&[window("w", "*/5 * * * *", "10m", "UTC")]);
    assert_eq!(open(&policy, utc("2026-11-22T22:05:00Z"))[0].until, None, "it never ends");
}

#[test]
fn a_window_that_cannot_be_understood_is_open_and_the_field_is_named() {
    for (schedule, zone, wanted) in [
        ("60 2 * * *", "UTC", "minute \"60\": it is from 0 to 59"),
        ("0 24 * * *", "UTC", "hour \"24\": it is from 0 to 23"),
        ("0 2 0 * *", "UTC", "day of month \"0\": it is from 1 to 31"),
        ("0 2 * 13 *", "UTC", "month \"13\": it is from 1 to 12"),
        ("0 2 * * SUNDAY", "UTC", "day of week \"SUNDAY\": it is from 0 to 7"),
        ("0 2 * * FRI#6", "UTC", "after # comes 1 to 5"),
        ("0 5-2 * * *", "UTC", "a range begins with its lower end"),
        ("0 */0 * * *", "UTC", "a step is a number from 1"),
        ("0 2,, * * *", "UTC", "hour \"\""),
        ("0 2 * *", "UTC", "4 fields, five are wanted"),
        ("0 2 * * *", "Mars/Olympus", "timeZone: \"Mars/Olympus\" is not known"),
    ] {
        let policy = with(&[window("fine", "0 2 * * *", "1h", "UTC"), window("odd", schedule, "1h", zone)]);
        let told = mistake(&policy).unwrap_or_default();
        assert!(told.starts_with("spec.maintenanceWindows, odd: ") && told.contains(wanted), "{schedule}: {told}");
        let names: Vec<_> = open(&policy, utc("2026-11-22T12:00:00Z")).into_iter().map(|it| it.name).collect();
        assert_eq!(names, ["odd"], "{schedule}");
    }
}

/// The dates of a year that an expression names.
fn dates(expression: &str, year: i32) -> Vec<(u32, u32)> {
    let schedule: Schedule = expression.parse().unwrap();
    let first = NaiveDate::from_ymd_opt(year, 1, 1).unwrap();
    let all = first.iter_days().take_while(|date| date.year() == year);
    all.filter(|date| schedule.has_date(*date)).map(|date| (date.month(), date.day())).collect()
}

#[test]
fn dates_are_those_of_crontab() {
    let february = |expression: &str| -> Vec<u32> {
        dates(expression, 2026).into_iter().filter(|(month, _)| *month == 2).map(|(_, day)| day).collect()
    };
    // 2026-02-01 is a Sunday.
    for (expression, wanted) in [
        ("0 0 * * SUN", vec![1, 8, 15, 22]),
        ("0 0 * * 0", vec![1, 8, 15, 22]),
        ("0 0 * * 7", vec![1, 8, 15, 22]),
        ("0 0 * * sat-sun", vec![1, 7, 8, 14, 15, 21, 22, 28]),
        ("0 0 * * 5-7", vec![1, 6, 7, 8, 13, 14, 15, 20, 21, 22, 27, 28]),
        ("0 0 * * FRI#2", vec![13]),
        ("0 0 * * FRIL", vec![27]),
        ("0 0 * * 5L,MON#1", vec![2, 27]),
        ("0 0 L * *", vec![28]),
        ("0 0 1,L * *", vec![1, 28]),
        ("0 0 10/9 FEB *", vec![10, 19, 28]),
        ("0 0 */14 * *", vec![1, 15]),
        // Both are restricted: either will do. Else both must hold.
        ("0 0 3 * TUE", vec![3, 10, 17, 24]),
        ("0 0 3 * */2", vec![3]),
        ("0 0 30 * *", vec![]),
        ("0 0 1 MAR-JAN *", vec![]),
    ] {
        if expression.contains("MAR-JAN") {
            assert!(expression.parse::<Schedule>().is_err());
            continue;
        }
        assert_eq!(february(expression), wanted, "{expression}");
    }
    assert_eq!(dates("0 0 29 2 *", 2028), [(2, 29)]);
    assert_eq!(dates("0 0 31 2 *", 2028), []);
    assert_eq!(dates("0 0 L 2 *", 2028), [(2, 29)]);
    let times: Vec<_> = "5-10/5,59 */12 * * *".parse::<Schedule>().unwrap().times().collect();
    let times: Vec<_> = times.into_iter().map(|time| time.format("%H:%M").to_string()).collect();
    assert_eq!(times, ["00:05", "00:10", "00:59", "12:05", "12:10", "12:59"]);
}

/// A moment of the tests is 2027-01-16T11:46:40Z.
fn open_now() -> serde_json::Value {
    json!({ "maintenanceWindows": [window("firmware", "0 11 * * *", "1h", "UTC")] })
}

#[test]
fn in_a_window_nothing_is_opened_and_then_it_is() {
    let mut world = World::with_failed(3, 1, &open_now());
    let held = world.decide().restrained;
    assert_eq!(
        held.iter().map(|it| (it.brake, it.about.as_deref())).collect::<Vec<_>>(),
        [("MaintenanceWindow", Some("firmware"))]
    );
    world.rest();
    assert_eq!((world.opened(), world.restraints()), (0, vec![RestraintType::MaintenanceWindow]));
    let restraint = world.seen.policies[0].status.clone().unwrap().restraints[0].clone();
    assert_eq!((restraint.since, restraint.until), (utc("2027-01-16T11:00:00Z"), Some(utc("2027-01-16T12:00:00Z"))));
    world.wait(799.0);
    world.rest();
    assert_eq!(world.opened(), 0);
    world.wait(1.0);
    world.rest();
    assert_eq!((world.opened(), world.restraints()), (1, vec![]));
}

#[test]
fn a_schedule_that_cannot_be_understood_opens_nothing_and_says_so() {
    let mut world =
        World::with_failed(3, 1, &json!({ "maintenanceWindows": [window("w", "61 2 * * *", "1h", "UTC")] }));
    world.rest();
    assert_eq!(world.opened(), 0);
    let status = world.seen.policies[0].status.clone().unwrap();
    let ready = crate::api::conditions::find(&status.conditions, "Ready").unwrap();
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "InvalidSchedule"));
    assert!(ready.message.contains("spec.maintenanceWindows, w: schedule: minute"), "{}", ready.message);
    let stalled = crate::api::conditions::find(&status.conditions, "Stalled").unwrap();
    assert_eq!((stalled.reason.as_str(), &stalled.message), ("InvalidSchedule", &ready.message));
    world.wait(3600.0);
    world.rest();
}

#[test]
fn one_that_ended_unseen_is_not_taken_for_the_next() {
    let mut policy = with(&[window("w", "0 2 * * SUN", "4h", "UTC")]);
    let first = pauses::restraints(&policy, utc("2026-11-22T03:00:00Z"));
    let status = crate::api::resiliency_policy::ResiliencyPolicyStatus { restraints: first, ..Default::default() };
    policy.status = Some(status);
    let next = pauses::restraints(&policy, utc("2026-11-29T03:00:00Z"));
    assert_eq!(next[0].since, utc("2026-11-29T02:00:00Z"));
}
