//! What is said of drivers that a policy names.

use serde_json::json;

use crate::controllers::testing::policy;

use super::super::Severity;
use super::*;

#[test]
fn a_selector_that_names_a_driver_without_attachments_is_told() {
    let by = |name: &str, drivers: serde_json::Value| {
        Arc::new(policy(name, &json!({ "selector": { "podSelector": {}, "drivers": drivers } })))
    };
    let policies = [by("files", json!(["file.example.com", "block.example.com"])), by("all", json!([]))];
    let found = uncovered(&policies, |driver| driver != "file.example.com");
    let [finding] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(
        (finding.severity, finding.about.as_str()),
        (Severity::Warning, "policy files, driver file.example.com")
    );
    assert!(finding.message.contains("attachRequired: false") && !finding.remedy.is_empty());
}
