//! How long a failover takes with these settings: computed from the policies, from what was measured
//! (docs/performance.md), and from Kubernetes' own defaults. Nothing of it was measured in this cluster.

use kube::ResourceExt;
use serde::Serialize;

use crate::api::resiliency_policy::DecisiveChannel;
use crate::kubectl::gather::Gathered;
use crate::kubectl::print::Page;

use super::attachers::{self, Attacher};
use super::{drivers, protected_drivers};

/// Kubernetes' `--node-monitor-grace-period`, and the 5 s in which the controller-manager looks again.
const UNREACHABLE: f64 = 55.0;
/// Median and slowest of 30 runs with 110 pods, fence 50 ms: from the taint to the first pod gone.
const FIRST_RELEASED: f64 = 1.3;
/// The same to all pods gone and every attachment gone or marked deleted.
const HANDED_OVER: f64 = 4.1;

/// The computed timeline of a policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyTimeline {
    /// The policy.
    pub policy: String,
    /// What happens, in order.
    pub steps: Vec<TimelineStep>,
}

/// A step of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TimelineStep {
    /// What has happened then.
    pub step: &'static str,
    /// Seconds after the last sign of life of the node.
    pub at_seconds: f64,
    /// Where the number comes from.
    pub from: String,
}

/// One for each policy.
pub fn of(gathered: &Gathered, attachers: &[Attacher]) -> Vec<PolicyTimeline> {
    let mut policies = gathered.stores.policies.list();
    policies.sort_by_key(|policy| policy.name_any());
    let (protected, all, most) = (protected_drivers(gathered), drivers(gathered), attachers::busiest(gathered));
    let detach = |policy: &str| {
        let ours = protected.iter().filter(|(name, ..)| name == policy);
        let seconds = ours.map(|(_, driver, _)| {
            let attachments = most.get(driver).copied().unwrap_or_default();
            let serving = attachers::serving(attachers, driver, &all);
            let slowest = serving.iter().map(|it| it.seconds(attachments)).fold(0.0, f64::max);
            (slowest, attachments, serving.is_empty())
        });
        seconds.max_by(|a, b| a.0.total_cmp(&b.0))
    };
    let timeline = |policy: &std::sync::Arc<crate::api::resiliency_policy::ResiliencyPolicy>| {
        let name = policy.name_any();
        PolicyTimeline { steps: steps(&policy.spec.detection, detach(&name)), policy: name }
    };
    policies.iter().map(timeline).collect()
}

fn steps(
    detection: &crate::api::resiliency_policy::Detection,
    detach: Option<(f64, usize, bool)>,
) -> Vec<TimelineStep> {
    let step = |step, at_seconds: f64, from: String| TimelineStep {
        step,
        at_seconds: (at_seconds * 10.0).round() / 10.0,
        from,
    };
    let waits = detection.kubelet.decisive_after.get().as_secs_f64();
    let declared = UNREACHABLE + waits;
    let alone = detection.decisive_channels.contains(&DecisiveChannel::Kubelet);
    let by = if alone {
        format!("detection.kubelet.decisiveAfter {}", detection.kubelet.decisive_after)
    } else {
        "not by the kubelet alone: only once a second channel agrees".to_owned()
    };
    let attacher = match detach {
        Some((seconds, attachments, false)) => {
            (seconds, format!("{attachments} attachments of the busiest node at the attacher's --kube-api-qps"))
        }
        _ => (0.0, "the attacher's settings are not known".to_owned()),
    };
    vec![
        step("unreachable", UNREACHABLE, "Kubernetes' default node-monitor-grace-period, at most".into()),
        step("declared failed", declared, by),
        step("first pod released", declared + FIRST_RELEASED, "slowest of 30 measured runs, fence 50 ms".into()),
        step("all pods released", declared + HANDED_OVER, "slowest of 30 measured runs, 110 pods".into()),
        step("attachments gone", declared + HANDED_OVER + attacher.0, attacher.1),
    ]
}

impl PolicyTimeline {
    /// The table of it.
    pub fn page(&self, page: Page) -> Page {
        let rows = self.steps.iter().map(|it| [it.step.to_owned(), format!("{:.1} s", it.at_seconds), it.from.clone()]);
        let title = format!("FAILOVER UNDER POLICY {}, COMPUTED (nothing of it was measured here)", self.policy);
        page.table(&title, ["STEP", "AT MOST", "FROM"], rows.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_policy_waits_for_and_the_attacher_shift_the_steps() {
        let detection = serde_json::from_value(serde_json::json!({ "kubelet": { "decisiveAfter": "90s" } })).unwrap();
        let timeline = PolicyTimeline { policy: "db".into(), steps: steps(&detection, Some((40.0, 100, false))) };
        insta::assert_snapshot!(timeline.page(Page::default()).end());
    }

    #[test]
    fn a_policy_that_needs_two_channels_says_so() {
        let detection = serde_json::json!({ "decisiveChannels": [] });
        let steps = steps(&serde_json::from_value(detection).unwrap(), None);
        assert!(steps[1].from.contains("second channel"), "{}", steps[1].from);
        assert!(steps[4].from.contains("not known"), "{}", steps[4].from);
    }
}
