//! The results of a benchmark: as a table for people, as JSON for programs.

use std::borrow::Cow;
use std::path::Path;

use serde_json::{Value, json};

use crate::Result;
use crate::programs::Profile;

/// One thing that was measured in every run.
#[derive(Clone, Debug)]
pub struct Measure {
    name: Cow<'static, str>,
    unit: &'static str,
    /// A value per run, in ascending order.
    values: Vec<f64>,
    /// What the largest value may be.
    target: Option<f64>,
}

impl Measure {
    /// A measure with a value per run.
    pub fn new(name: impl Into<Cow<'static, str>>, unit: &'static str, mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self { name: name.into(), unit, values, target: None }
    }

    /// With what the largest value may be.
    pub fn target(self, target: Option<f64>) -> Self {
        Self { target, ..self }
    }

    fn median(&self) -> f64 {
        let half = self.values.len() / 2;
        let at = |index: usize| self.values.get(index).copied().unwrap_or(f64::NAN);
        if self.values.len() % 2 == 1 { at(half) } else { (at(half.saturating_sub(1)) + at(half)) / 2.0 }
    }

    fn max(&self) -> f64 {
        self.values.last().copied().unwrap_or(f64::NAN)
    }

    fn ok(&self) -> Option<bool> {
        self.target.map(|target| self.max() <= target)
    }
}

/// Prints the table. `about` says what the reader needs to know beside it.
pub fn print(measures: &[Measure], runs: usize, profile: Profile, about: &str) {
    println!("\n{}, {} build, {runs} runs; {about}", machine(), profile.name());
    println!("{:<36} {:>10} {:>10} {:>10}", "", "median", "max", "target");
    for measure in measures {
        let name = format!("{} {}", measure.name, measure.unit);
        let target = measure.target.map(number).unwrap_or_default();
        let verdict = measure.ok().map_or("", |ok| if ok { "ok" } else { "MISSED" });
        println!("{name:<36} {:>10} {:>10} {target:>10} {verdict}", number(measure.median()), number(measure.max()));
    }
}

/// Writes the list for `--json`.
pub fn write(file: &Path, measures: &[Measure], runs: usize, params: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(&json(measures, runs, params))?;
    std::fs::write(file, text + "\n").map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    Ok(())
}

/// The list: median and largest value of each measure; the target is for the largest.
fn json(measures: &[Measure], runs: usize, params: &Value) -> Value {
    let entry = |measure: &Measure, which: &str, value: f64, target: Option<f64>, ok: Option<bool>| {
        json!({
            "name": format!("{}/{which}", measure.name), "params": params, "value": value, "unit": measure.unit,
            "n": runs, "target": target, "ok": ok,
        })
    };
    let entries = measures.iter().flat_map(|measure| {
        [
            entry(measure, "median", measure.median(), None, None),
            entry(measure, "max", measure.max(), measure.target, measure.ok()),
        ]
    });
    Value::Array(entries.collect())
}

/// The machine, as far as it matters for numbers.
pub fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{cores} cores, Linux {}", kernel.trim())
}

/// Whole numbers as such, others to the millisecond.
fn number(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_run_is_held_to_the_target() {
        let measure = Measure::new("x", "s", vec![3.0, 1.0, 2.5, 0.5]).target(Some(2.9));
        assert_eq!((measure.median(), measure.max(), measure.ok()), (1.75, 3.0, Some(false)));
        let list = json(&[measure], 4, &json!({ "pods": 1 }));
        let expected = json!({
            "name": "x/max", "params": { "pods": 1 }, "value": 3.0, "unit": "s", "n": 4, "target": 2.9, "ok": false,
        });
        assert_eq!(list[1], expected);
        assert_eq!(list[0]["ok"], Value::Null);
    }

    #[test]
    fn the_middle_of_three_is_the_median() {
        assert_eq!(Measure::new("x", "s", vec![9.0, 1.0, 2.0]).median(), 2.0);
    }
}
