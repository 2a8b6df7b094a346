//! Five-field cron expressions, as crontab(5) has them, with `L` and `#` for the last and the nth day of a month. Only the
//! dates and times that an expression names; what a time zone makes of them is the matter of `windows`.

use std::str::FromStr;

use chrono::{Datelike, Days, NaiveDate, NaiveTime};

/// What an expression names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    minutes: Set,
    hours: Set,
    days: Set,
    /// `L`: the last day of the month.
    last_day: bool,
    months: Set,
    weekdays: Set,
    /// `FRI#2` and `FRIL`: a weekday, and which of them in the month.
    nth: Vec<(u32, Nth)>,
    /// Days of month and of week are both restricted: then it is enough that one of them matches.
    either_day: bool,
    /// Minute and hour are given, so that it happens once though the clock shows the time twice.
    is_fixed: bool,
}

/// Which of the weekdays of a month.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nth {
    Of(u32),
    Last,
}

/// Numbers below 64.
type Set = u64;

/// A field: its name, and what numbers and names it takes.
struct Field {
    name: &'static str,
    min: u32,
    max: u32,
    names: &'static [&'static str],
}

const MINUTE: Field = Field { name: "minute", min: 0, max: 59, names: &[] };
const HOUR: Field = Field { name: "hour", min: 0, max: 23, names: &[] };
const DAY: Field = Field { name: "day of month", min: 1, max: 31, names: &[] };
const MONTHS: [&str; 12] = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const MONTH: Field = Field { name: "month", min: 1, max: 12, names: &MONTHS };
// Sunday is 0 and 7.
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
const WEEKDAY: Field = Field { name: "day of week", min: 0, max: 7, names: &WEEKDAYS };

impl Schedule {
    /// Whether it names the date.
    pub fn has_date(&self, date: NaiveDate) -> bool {
        let is_last = |date: NaiveDate, ahead: u64| {
            date.checked_add_days(Days::new(ahead)).is_none_or(|later| later.month() != date.month())
        };
        let day = has(self.days, date.day()) || self.last_day && is_last(date, 1);
        let number = date.weekday().num_days_from_sunday();
        let nth = self.nth.iter().any(|(weekday, nth)| {
            let matches = match nth {
                Nth::Of(nth) => (date.day() - 1) / 7 + 1 == *nth,
                Nth::Last => is_last(date, 7),
            };
            *weekday == number && matches
        });
        let weekday = has(self.weekdays, number) || nth;
        has(self.months, date.month()) && if self.either_day { day || weekday } else { day && weekday }
    }

    /// The times of day that it names.
    pub fn times(&self) -> impl Iterator<Item = NaiveTime> + '_ {
        let hours = (0..24).filter(|hour| has(self.hours, *hour));
        hours.flat_map(|hour| {
            let minutes = (0..60).filter(|minute| has(self.minutes, *minute));
            minutes.filter_map(move |minute| NaiveTime::from_hms_opt(hour, minute, 0))
        })
    }

    /// Whether what the clock shows twice happens once.
    pub fn is_fixed(&self) -> bool {
        self.is_fixed
    }
}

impl FromStr for Schedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fields: Vec<_> = text.split_ascii_whitespace().collect();
        let &[minute, hour, day, month, weekday] = fields.as_slice() else {
            return Err(format!("{} fields, five are wanted", fields.len()));
        };
        let (mut last_day, mut nth) = (false, Vec::new());
        let days = DAY.set(day, |item| {
            last_day |= item == "L";
            Ok(item == "L")
        })?;
        let weekdays = WEEKDAY.set(weekday, |item| {
            let found = nth_weekday(item)?;
            nth.extend(found);
            Ok(found.is_some())
        })?;
        Ok(Self {
            minutes: MINUTE.set(minute, |_| Ok(false))?,
            hours: HOUR.set(hour, |_| Ok(false))?,
            days,
            last_day,
            months: MONTH.set(month, |_| Ok(false))?,
            weekdays: weekdays | weekdays >> 7 & 1,
            nth,
            either_day: !day.starts_with('*') && !weekday.starts_with('*'),
            is_fixed: !minute.starts_with('*') && !hour.starts_with('*'),
        })
    }
}

fn has(set: Set, number: u32) -> bool {
    set >> number & 1 == 1
}

/// `FRI#2` and `FRIL`.
fn nth_weekday(item: &str) -> Result<Option<(u32, Nth)>, String> {
    let (weekday, nth) = match item.split_once('#') {
        Some((weekday, nth)) => {
            let nth = nth.parse().ok().filter(|nth| (1..=5).contains(nth));
            (weekday, Nth::Of(nth.ok_or_else(|| format!("day of week {item:?}: after # comes 1 to 5"))?))
        }
        None => match item.strip_suffix('L').filter(|weekday| !weekday.is_empty()) {
            Some(weekday) => (weekday, Nth::Last),
            None => return Ok(None),
        },
    };
    Ok(Some((WEEKDAY.number(weekday)? % 7, nth)))
}

impl Field {
    /// The numbers of a list. `special` takes what is no number or range.
    fn set(&self, text: &str, mut special: impl FnMut(&str) -> Result<bool, String>) -> Result<Set, String> {
        let mut set = 0;
        for item in text.split(',') {
            if special(item)? {
                continue;
            }
            let (range, step) = match item.split_once('/') {
                Some((range, step)) => (range, Some(step)),
                None => (item, None),
            };
            let wrong_step = || format!("{} {item:?}: a step is a number from 1", self.name);
            let every = match step {
                Some(step) => step.parse().ok().filter(|step| *step > 0).ok_or_else(wrong_step)?,
                None => 1,
            };
            let (first, last) = self.range(range, step.is_some())?;
            (first..=last).step_by(every).for_each(|number| set |= 1 << number);
        }
        Ok(set)
    }

    fn range(&self, text: &str, has_step: bool) -> Result<(u32, u32), String> {
        if text == "*" {
            return Ok((self.min, self.max));
        }
        let Some((first, last)) = text.split_once('-') else {
            let number = self.number(text)?;
            return Ok((number, if has_step { self.max } else { number }));
        };
        let (first, mut last) = (self.number(first)?, self.number(last)?);
        // SAT-SUN.
        if last == 0 && first > 0 && self.name == WEEKDAY.name {
            last = 7;
        }
        if first > last {
            return Err(format!("{} {text:?}: a range begins with its lower end", self.name));
        }
        Ok((first, last))
    }

    fn number(&self, text: &str) -> Result<u32, String> {
        let named = self.names.iter().zip(self.min..).find(|(name, _)| text.eq_ignore_ascii_case(name));
        let number = named.map(|(_, number)| number).or_else(|| text.parse().ok());
        let within = number.filter(|number| (self.min..=self.max).contains(number));
        within.ok_or_else(|| format!("{} {text:?}: it is from {} to {}", self.name, self.min, self.max))
    }
}
