//! What was read in a run, and what it should have been.

use std::borrow::Cow;
use std::time::Duration;

use super::report::Measure;

/// One number.
#[derive(Clone, Debug)]
struct Reading {
    name: Cow<'static, str>,
    unit: &'static str,
    value: f64,
    target: Option<f64>,
}

/// All numbers of a run, in the order in which they were read.
#[derive(Clone, Debug, Default)]
pub struct Measured(Vec<Reading>);

impl Measured {
    /// Notes a number.
    pub fn note(&mut self, name: impl Into<Cow<'static, str>>, unit: &'static str, value: f64) {
        self.0.push(Reading { name: name.into(), unit, value, target: None });
    }

    /// Notes a number that should not be larger than `target`.
    pub fn hold(&mut self, name: impl Into<Cow<'static, str>>, unit: &'static str, value: f64, target: f64) {
        self.0.push(Reading { name: name.into(), unit, value, target: Some(target) });
    }
}

/// The numbers of all runs.
pub fn measures(runs: &[Measured]) -> Vec<Measure> {
    let first = runs.iter().take(1).flat_map(|run| &run.0);
    let of_all = |name: &str| {
        let named = runs.iter().flat_map(|run| run.0.iter().filter(move |reading| reading.name == name));
        named.map(|reading| reading.value).collect::<Vec<_>>()
    };
    let measure = |reading: &Reading| {
        Measure::new(reading.name.clone(), reading.unit, of_all(&reading.name)).target(reading.target)
    };
    first.map(measure).collect()
}

/// Times of many events.
#[derive(Clone, Debug, Default)]
pub struct Times(Vec<f64>);

impl Times {
    /// One more.
    pub fn add(&mut self, time: Duration) {
        self.0.push(time.as_secs_f64());
        self.0.sort_by(f64::total_cmp);
    }

    /// The smallest time that so many percent do not exceed.
    pub fn percentile(&self, percent: usize) -> f64 {
        let rank = (self.0.len() * percent).div_ceil(100);
        self.0.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_times() {
        let mut times = Times::default();
        assert!(times.percentile(50).is_nan());
        (1..=200).rev().for_each(|second| times.add(Duration::from_secs(second)));
        assert_eq!([50, 99, 100].map(|percent| times.percentile(percent)), [100.0, 198.0, 200.0]);
    }
}
