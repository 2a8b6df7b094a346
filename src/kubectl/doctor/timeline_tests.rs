//! What is told of a policy's failovers.

use serde_json::{Value, json};

use crate::controllers::testing::{now, policy};

use super::*;

fn all_tell() -> Facts {
    let tellers = Tellers { heartbeats: true, array: Some(Duration::from_secs_f64(49.5)), fencer: true };
    Facts { tellers, tells_io: true, detach: Some((40.0, 100)) }
}

fn of_spec(spec: &Value, facts: &Facts) -> Vec<TimelineStep> {
    steps(&policy("db", spec), facts, now())
}

/// The row of a step.
fn row<'a>(steps: &'a [TimelineStep], name: &str) -> &'a TimelineStep {
    steps.iter().find(|it| it.step == name).unwrap_or_else(|| panic!("no {name} in {steps:?}"))
}

#[test]
fn what_tells_sooner_and_what_the_policy_and_the_attacher_take() {
    let spec = json!({ "detection": { "kubelet": { "decisiveAfter": "90s" } } });
    let timeline = PolicyTimeline { policy: "db".into(), steps: of_spec(&spec, &all_tell()) };
    insta::assert_snapshot!(timeline.page(Page::default()).end());
}

/// The example of docs/kubectl.md.
#[test]
fn the_page_shows_what_is_printed() {
    let tellers = Tellers { fencer: false, ..all_tell().tellers };
    let facts = Facts { tellers, tells_io: false, ..all_tell() };
    let spec = json!({ "detection": { "kubelet": { "decisiveAfter": "90s" } } });
    let timeline = PolicyTimeline { policy: "databases".into(), steps: of_spec(&spec, &facts) };
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/kubectl.md");
    let printed = timeline.page(Page::default()).end();
    assert!(std::fs::read_to_string(page).unwrap().contains(&printed), "{printed}");
}

#[test]
fn only_what_goes_by_itself_has_a_time() {
    let asked = all_tell();
    let unasked = Facts { tells_io: false, ..all_tell() };
    let veto = json!({ "detection": { "storage": { "whenIOInProgress": "Veto" } } });
    let unchecked =
        json!({ "detection": { "storage": { "whenIOInProgress": "Veto", "ioInProgressCheck": "Disabled" } } });
    let cases = [
        ("it acts", json!({}), &asked, Some(59.1), "4.1 s after that"),
        ("a rehearsal", json!({ "mode": "DryRun" }), &asked, None, "DryRun: does not act by itself"),
        ("a person is asked", json!({ "mode": "RequireApproval" }), &asked, None, "does not act by itself"),
        ("I/O is waited for", veto.clone(), &asked, None, "whenIOInProgress Veto"),
        ("of a driver that tells it", veto, &unasked, Some(59.1), "4.1 s after that"),
        ("where it is asked", unchecked, &asked, Some(59.1), "4.1 s after that"),
        (
            "two channels must agree",
            json!({ "detection": { "decisiveChannels": [] } }),
            &asked,
            None,
            "4.1 s after that",
        ),
    ];
    for (name, spec, facts, seconds, from) in cases {
        let steps = of_spec(&spec, facts);
        let released = row(&steps, "all pods released");
        assert_eq!(released.at_seconds, seconds, "{name}");
        assert!(released.from.contains(from), "{name}: {}", released.from);
        assert_eq!(row(&steps, "first pod released").at_seconds.is_some(), seconds.is_some(), "{name}");
        assert_eq!(row(&steps, "attachments gone").at_seconds.is_some(), seconds.is_some(), "{name}");
    }
}

#[test]
fn a_policy_that_ignores_failed_nodes_has_no_times_at_all() {
    let steps = of_spec(&json!({ "triggers": { "nodeFailure": "Ignore" } }), &all_tell());
    let [only] = steps.as_slice() else { panic!("{steps:?}") };
    assert_eq!(only.at_seconds, None);
    assert!(only.from.contains("nodeFailure Ignore: does not act by itself"), "{}", only.from);
}

#[test]
fn a_policy_that_needs_two_channels_says_so() {
    let spec = json!({ "detection": { "decisiveChannels": [] } });
    let steps = of_spec(&spec, &Facts::default());
    let declared = row(&steps, "declared failed");
    assert!(declared.at_seconds.is_none() && declared.from.contains("2 channels"), "{declared:?}");
    assert!(row(&steps, "attachments gone").from.contains("not known"), "{steps:?}");
    let steps = of_spec(&spec, &all_tell());
    let beats = row(&steps, "declared failed by heartbeats");
    assert!(beats.at_seconds == Some(27.0) && beats.from.contains("is not cut off"), "{beats:?}");
}

#[test]
fn only_what_is_sooner_than_kubernetes_is_told() {
    let names = |spec: &Value, facts: &Facts| {
        let steps = of_spec(spec, facts);
        steps.into_iter().map(|it| it.step).take_while(|name| name != "unreachable").collect::<Vec<_>>()
    };
    let who = |heartbeats, array: Option<u64>, fencer| {
        let tellers = Tellers { heartbeats, array: array.map(Duration::from_secs), fencer };
        Facts { tellers, ..Facts::default() }
    };
    let by = |who: &str| format!("declared failed by {who}");
    assert_eq!(names(&json!({}), &who(false, None, false)), [""; 0]);
    assert_eq!(names(&json!({}), &who(false, Some(2), false)), [""; 0], "the array alone declares nothing");
    assert_eq!(names(&json!({}), &who(false, None, true)), [by("fencer")]);
    assert_eq!(names(&json!({}), &who(true, None, false)), [by("heartbeats")]);
    let all = [by("heartbeats and array"), by("heartbeats and fencer"), by("heartbeats")];
    assert_eq!(names(&json!({}), &who(true, Some(2), true)), all);
    let three = json!({ "detection": { "requiredChannels": 3 } });
    assert_eq!(names(&three, &who(true, Some(2), true)), all[..2]);
}

#[test]
fn a_slow_array_and_a_node_that_writes_are_told() {
    let quick = Facts { tellers: Tellers { array: Some(Duration::from_secs(2)), ..all_tell().tellers }, ..all_tell() };
    let unchecked = json!({ "detection": { "storage": { "ioInProgressCheck": "Disabled" } } });
    let from = |spec: &Value, facts: &Facts| {
        row(&of_spec(spec, facts), "declared failed by heartbeats and array").from.clone()
    };
    assert!(from(&json!({}), &all_tell()).contains("the array's word takes 49.5 s"));
    assert!(from(&json!({}), &all_tell()).contains("still writes"));
    assert!(from(&json!({}), &quick).contains("from when the array knows of it"));
    assert!(!from(&unchecked, &quick).contains("still writes"));
}
