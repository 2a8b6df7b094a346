//! The Grafana dashboards of `config/monitoring/dashboards`: one per job, each panel has a query, a unit and a place of its own,
//! and asks only for metrics that exist. No Grafana.

use std::collections::BTreeSet;
use std::fs;

use libtest_mimic::{Failed, Trial};
use serde_json::Value;

use crate::api::world::root;
use crate::metrics::{all_documented, documented, metrics};

/// Where they are.
const FOLDER: &str = "config/monitoring/dashboards";
/// The jobs.
const JOBS: [&str; 4] = ["failover", "s3-mounts", "shared-volumes", "volume-health"];
/// How wide Grafana's grid is.
const WIDTH: u64 = 24;

/// All tests of this module.
pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("dashboards::there_is_one_per_job", there_is_one_per_job),
        Trial::test("dashboards::panels_ask_for_documented_metrics", panels_ask_for_documented_metrics),
        Trial::test("dashboards::panels_lie_side_by_side", panels_lie_side_by_side),
    ]
}

fn there_is_one_per_job() -> Result<(), Failed> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root().join(FOLDER))? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    if names != JOBS.map(|job| format!("{job}.json")) {
        return Err(format!("{FOLDER} has {names:?}").into());
    }
    for job in JOBS {
        let uid = dashboard(job)?.pointer("/uid").cloned();
        if uid != Some(format!("bulkhead-{job}").into()) {
            return Err(format!("{job}: its uid is {uid:?}, by which links find it").into());
        }
    }
    Ok(())
}

fn panels_ask_for_documented_metrics() -> Result<(), Failed> {
    let documented = documented()?;
    for job in JOBS {
        for panel in panels(&dashboard(job)?) {
            let title = text(panel, "/title")?;
            let targets = panel.pointer("/targets").and_then(Value::as_array).into_iter().flatten();
            let queries: Vec<&str> = targets.map(|target| text(target, "/expr")).collect::<Result<_, _>>()?;
            let named = metrics(&queries.concat());
            if queries.iter().any(|query| metrics(query).is_empty() || !is_balanced(query)) {
                return Err(format!("{job}, {title}: a query is incomplete: {queries:?}").into());
            }
            text(panel, "/fieldConfig/defaults/unit")?;
            all_documented(&named, &documented).map_err(|name| format!("{job}, {title}, names {name}"))?;
        }
    }
    Ok(())
}

fn panels_lie_side_by_side() -> Result<(), Failed> {
    for job in JOBS {
        let dashboard = dashboard(job)?;
        let (mut taken, mut ids) = (BTreeSet::new(), BTreeSet::new());
        for panel in panels(&dashboard) {
            let title = text(panel, "/title")?;
            let of =
                |side: &str| panel.pointer(&format!("/gridPos/{side}")).and_then(Value::as_u64).unwrap_or_default();
            let (x, y, w, h) = (of("x"), of("y"), of("w"), of("h"));
            if w * h == 0 || x + w > WIDTH || !ids.insert(panel.pointer("/id").and_then(Value::as_u64)) {
                return Err(format!("{job}: {title} has no place or no id of its own").into());
            }
            let mut cells = (x..x + w).flat_map(|column| (y..y + h).map(move |row| (column, row)));
            if !cells.all(|cell| taken.insert(cell)) {
                return Err(format!("{job}: {title} lies over another panel").into());
            }
        }
    }
    Ok(())
}

fn dashboard(job: &str) -> Result<Value, Failed> {
    let path = root().join(FOLDER).join(format!("{job}.json"));
    Ok(serde_json::from_str(&fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?)?)
}

/// All but the headings of rows.
fn panels(dashboard: &Value) -> impl Iterator<Item = &Value> {
    let panels = dashboard.pointer("/panels").and_then(Value::as_array).into_iter().flatten();
    panels.filter(|panel| panel.pointer("/type").and_then(Value::as_str) != Some("row"))
}

fn text<'a>(value: &'a Value, pointer: &str) -> Result<&'a str, String> {
    let found = value.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty());
    found.ok_or_else(|| format!("no {pointer} in {value}"))
}

/// Whether every bracket of a query is closed by its own kind.
fn is_balanced(query: &str) -> bool {
    let mut open = Vec::new();
    for c in query.chars() {
        match c {
            '(' => open.push(')'),
            '{' => open.push('}'),
            '[' => open.push(']'),
            ')' | '}' | ']' if open.pop() != Some(c) => return false,
            _ => {}
        }
    }
    open.is_empty()
}
