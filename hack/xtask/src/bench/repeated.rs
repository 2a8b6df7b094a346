//! What the benchmarks of whole clusters have in common: which build is measured, how often, and where the results go.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead::api::time;
use bulkhead_testbed::binaries::Binaries;
use clap::Args;
use serde_json::{Value, json};

use crate::Result;
use crate::programs::{self, Profile};

use super::measured::{self, Measured};
use super::report;

/// Options of all of them.
#[derive(Args, Clone, Debug)]
pub struct Repeated {
    /// How often; each time in a new cluster
    #[arg(long, default_value_t = 1)]
    pub runs: usize,
    /// Also write the results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Measure the development build: quick to make, slow to run
    #[arg(long)]
    dev: bool,
}

impl Repeated {
    fn profile(&self) -> Profile {
        if self.dev { Profile::Dev } else { Profile::Release }
    }

    /// How long nothing happens while it is counted what is written at rest: as asked for, or long enough for this build.
    pub fn rest(&self, asked: Option<&time::Duration>) -> Duration {
        let usual = Duration::from_secs(if self.dev { 10 } else { 60 });
        asked.map_or(usual, time::Duration::get)
    }

    /// Measures as often as asked for and tells the results. `about` is for people; `params` is told with the results, with
    /// build and machine.
    pub async fn run(
        &self,
        root: &Path,
        about: &str,
        mut params: Value,
        mut measure: impl AsyncFnMut(&Path) -> Result<Measured>,
    ) -> Result<()> {
        let programs = programs::build(root, self.profile())?;
        tokio::task::spawn_blocking(|| Binaries::ensure(None)).await??;
        let mut runs = Vec::new();
        for number in 1..=self.runs {
            let measured = measure(&programs).await.map_err(|error| format!("run {number}: {error}"))?;
            println!("run {number} of {} is done", self.runs);
            runs.push(measured);
        }
        let measures = measured::measures(&runs);
        report::print(&measures, self.runs, self.profile(), about);
        if let Some(file) = &self.json {
            if let Some(params) = params.as_object_mut() {
                params.insert("build".to_owned(), json!(self.profile().name()));
                params.insert("machine".to_owned(), json!(report::machine()));
            }
            report::write(file, &measures, self.runs, &params)?;
        }
        Ok(())
    }
}
