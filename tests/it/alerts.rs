//! Alert rules: each rests on metrics that are documented, and each alert has a page that says what to do. No control plane.

use std::collections::BTreeSet;
use std::fs;

use libtest_mimic::{Failed, Trial};
use serde_json::Value;

use crate::api::objects::read;
use crate::api::world::root;
use crate::metrics::{all_documented, documented, metrics};

/// Where the rules are: whatever stands here is in the chart too.
const FOLDER: &str = "config/monitoring";
/// What a page has.
const PARTS: [&str; 3] = ["## Look", "## Do", "## Harmless"];

/// All tests of this module.
pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("alerts::rules_name_documented_metrics", rules_name_documented_metrics),
        Trial::test("alerts::each_alert_has_its_runbook", each_alert_has_its_runbook),
    ]
}

fn rules_name_documented_metrics() -> Result<(), Failed> {
    let documented = documented()?;
    for rule in rules()? {
        let alert = text(&rule, "/alert")?;
        let named = metrics(text(&rule, "/expr")?);
        if named.is_empty() {
            return Err(format!("{alert} rests on no metric of ours").into());
        }
        all_documented(&named, &documented).map_err(|name| format!("{alert} names {name}"))?;
    }
    Ok(())
}

fn each_alert_has_its_runbook() -> Result<(), Failed> {
    let list = fs::read_to_string(root().join("docs/operations.md"))?;
    let mut pages = BTreeSet::new();
    for rule in rules()? {
        let alert = text(&rule, "/alert")?;
        for annotation in ["/annotations/summary", "/annotations/description", "/labels/severity"] {
            text(&rule, annotation)?;
        }
        let page = format!("docs/runbooks/{alert}.md");
        if text(&rule, "/annotations/runbook_url")? != page {
            return Err(format!("{alert}: runbook_url is not {page}").into());
        }
        let words = fs::read_to_string(root().join(&page)).map_err(|error| format!("{page}: {error}"))?;
        let title = format!("# {alert}");
        for line in [title.as_str()].into_iter().chain(PARTS) {
            if !words.lines().any(|found| found == line) {
                return Err(format!("{page} has no line {line:?}").into());
            }
        }
        if !list.contains(&format!("(runbooks/{alert}.md)")) {
            return Err(format!("docs/operations.md does not list {alert}").into());
        }
        pages.insert(format!("{alert}.md"));
    }
    for entry in fs::read_dir(root().join("docs/runbooks"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !pages.contains(&name) {
            return Err(format!("docs/runbooks/{name} is of no alert").into());
        }
    }
    Ok(())
}

/// The rules of all PrometheusRules.
fn rules() -> Result<Vec<Value>, Failed> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join(FOLDER))? {
        let path = entry?.path();
        if path.extension().is_none_or(|ending| ending != "yaml") {
            continue;
        }
        let is_rules = |object: &Value| object.get("kind").is_some_and(|kind| kind == "PrometheusRule");
        for object in read(&path)?.into_iter().filter(is_rules) {
            let before = found.len();
            for group in object.pointer("/spec/groups").and_then(Value::as_array).into_iter().flatten() {
                found.extend(group.pointer("/rules").and_then(Value::as_array).into_iter().flatten().cloned());
            }
            if found.len() == before {
                return Err(format!("{} has no rules", path.display()).into());
            }
        }
    }
    if found.is_empty() { Err(format!("no PrometheusRule in {FOLDER}").into()) } else { Ok(found) }
}

/// The text at a JSON pointer.
fn text<'a>(rule: &'a Value, pointer: &str) -> Result<&'a str, Failed> {
    let found = rule.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty());
    found.ok_or_else(|| format!("no {pointer} in {rule}").into())
}
