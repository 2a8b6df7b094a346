//! The certificate: what was done when, and what it is worth.

use std::process::ExitCode;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::kubectl::print::{Page, Report, or_dash};

use super::judge::Verdict;

/// What a certification came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Certificate {
    /// Whether the driver's unpublish takes a node's access away.
    pub verdict: Verdict,
    /// Why, in a word.
    pub reason: &'static str,
    /// Why, in a sentence.
    pub message: String,
    /// The StorageClass of the volume.
    pub storage_class: String,
    /// Its driver.
    pub driver: String,
    /// The node that was cut off. It was Ready all the time and had no out-of-service taint.
    pub node: String,
    /// The node that read what arrived.
    pub other_node: String,
    /// What was done, in order.
    pub steps: Vec<Step>,
    /// What could not be removed, by kind and name.
    pub left: Vec<String>,
    /// When it began.
    pub at: DateTime<Utc>,
}

/// One thing that was done.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// What.
    pub step: &'static str,
    /// Whether it came to its end.
    pub done: bool,
    /// Seconds from the beginning to its end.
    pub at_seconds: f64,
    /// Seconds that it took.
    pub took_seconds: f64,
    /// What came of it.
    pub message: String,
}

impl Step {
    /// A step that began and ended at these times.
    pub fn new(step: &'static str, began: Duration, ended: Duration, outcome: Result<String, String>) -> Self {
        let rounded = |time: Duration| (time.as_secs_f64() * 10.0).round() / 10.0;
        Self {
            step,
            done: outcome.is_ok(),
            at_seconds: rounded(ended),
            took_seconds: rounded(ended.saturating_sub(began)),
            message: outcome.unwrap_or_else(|message| message),
        }
    }
}

impl Certificate {
    /// 0: certified; 1: not certified; 2: it was not shown either way.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self.verdict {
            Verdict::Certified => 0,
            Verdict::NotCertified => 1,
            Verdict::Inconclusive => 2,
        })
    }
}

impl Report for Certificate {
    fn text(&self) -> String {
        let rows = self.steps.iter().map(|step| {
            [
                step.step.to_owned(),
                if step.done { "yes" } else { "no" }.to_owned(),
                format!("{:.1} s", step.at_seconds),
                format!("{:.1} s", step.took_seconds),
                or_dash(Some(&step.message).filter(|message| !message.is_empty())),
            ]
        });
        let page = Page::default()
            .line(format!("driver {}: {:?}: {}: {}", self.driver, self.verdict, self.reason, self.message))
            .line(format!(
                "StorageClass {}, node {} cut off without the out-of-service key, node {} looked",
                self.storage_class, self.node, self.other_node
            ))
            .table("", ["STEP", "DONE", "AT", "TOOK", "WHAT"], rows.collect());
        let page =
            if self.left.is_empty() { page } else { page.line("").line("COULD NOT BE REMOVED, REMOVE IT BY HAND") };
        page.list(&self.left).end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_names_what_is_left() {
        let second = Duration::from_secs(1);
        let certificate = Certificate {
            verdict: Verdict::NotCertified,
            reason: "StillPublished",
            message: "the driver said OK and lists the node".into(),
            storage_class: "fast".into(),
            driver: "block.example.com".into(),
            node: "worker-1".into(),
            other_node: "worker-2".into(),
            steps: vec![
                Step::new("writer counts", Duration::ZERO, 12 * second, Ok("volume pvc-1 on worker-1".into())),
                Step::new("node cut off", 12 * second, 13 * second, Err("StillPublished".into())),
            ],
            left: vec!["PersistentVolume pvc-1".into()],
            at: DateTime::UNIX_EPOCH,
        };
        insta::assert_snapshot!(certificate.text(), @r"
        driver block.example.com: NotCertified: StillPublished: the driver said OK and lists the node
        StorageClass fast, node worker-1 cut off without the out-of-service key, node worker-2 looked

        STEP            DONE   AT       TOOK     WHAT
        writer counts   yes    12.0 s   12.0 s   volume pvc-1 on worker-1
        node cut off    no     13.0 s   1.0 s    StillPublished

        COULD NOT BE REMOVED, REMOVE IT BY HAND
        - PersistentVolume pvc-1
        ");
    }
}
