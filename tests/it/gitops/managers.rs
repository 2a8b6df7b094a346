//! The field managers that the page names, against the code that writes under them, in both directions; and against what a server
//! has seen of it.

use std::collections::BTreeSet;
use std::fs;

use bulkhead::api::shared_volume::SLICE_MANAGER;
use bulkhead_testbed::Testbed;
use kube::ResourceExt;
use libtest_mimic::Failed;

use super::Outcome;
use super::world::items;
use crate::api::world::root;
use crate::metrics::{none, sources};

const PAGE: &str = "docs/gitops.md";
/// The calls that take a field manager: a constant that is called so, or the name itself.
const CALLS: [&str; 3] = [".under(", "PatchParams::apply(", "field_manager: Some("];
/// What else stands before one. Where a program names no other, it writes under its own name.
const BEFORE: [&str; 2] = ["MANAGER: &str =", ".serve("];
/// Who applies our manifests on the testbed.
const TESTBED: &str = "bulkhead-testbed";

pub fn every_field_manager_is_documented() -> Outcome {
    let documented = documented()?;
    none("not documented", in_code()?.into_iter().filter(|name| !documented.contains(name)))
}

pub fn every_documented_field_manager_is_there() -> Outcome {
    let there = in_code()?;
    none("documented, and nobody writes under it", documented()?.into_iter().filter(|name| !there.contains(name)))
}

/// Whoever has written a status of ours, and whoever bears a name of ours, is on the page; these are among them.
pub async fn whom_the_server_saw_is_documented(testbed: &Testbed, expected: &[&str]) -> Outcome {
    let (seen, documented) = (seen(testbed).await?, documented()?);
    for name in expected {
        assert!(seen.contains(*name), "{name} has written nothing: {seen:?}");
    }
    none("not documented", seen.into_iter().filter(|name| !documented.contains(name)))
}

/// The names in the last column of the table.
fn documented() -> Result<BTreeSet<String>, Failed> {
    let text = fs::read_to_string(root().join(PAGE)).map_err(|error| format!("{PAGE}: {error}"))?;
    let chapter = text.split("\n## Who owns which field\n").nth(1).and_then(|rest| rest.split("\n## ").next());
    let chapter = chapter.ok_or_else(|| format!("{PAGE} does not say who owns which field"))?;
    let rows = chapter.lines().filter(|line| line.starts_with("| "));
    let lasts = rows.filter_map(|row| row.trim_end_matches('|').rsplit('|').next());
    // Every other piece between backquotes is a name.
    Ok(lasts.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect())
}

/// The names that the source has.
fn in_code() -> Result<BTreeSet<String>, Failed> {
    let (mut found, mut hidden) = (BTreeSet::new(), Vec::new());
    let literal = |rest: &str| Some(rest.trim_start().strip_prefix('"')?.split('"').next()?.to_owned());
    sources(&root().join("src"), &mut |text| {
        for before in BEFORE.iter().chain(&CALLS) {
            found.extend(text.split(*before).skip(1).filter_map(literal));
        }
        let handed = CALLS.iter().flat_map(|call| text.split(*call).skip(1)).map(str::trim_start);
        let is_seen = |rest: &&str| {
            let argument = rest.split([')', ',']).next().unwrap_or_default();
            argument.starts_with('"') || argument.contains("MANAGER") || argument.starts_with("self.manager.")
        };
        hidden.extend(handed.filter(|rest| !is_seen(rest)).filter_map(|rest| rest.lines().next()).map(str::to_owned));
    })?;
    // Who looks after EndpointSlices: a label, and no field manager.
    found.remove(SLICE_MANAGER);
    none("a field manager that this test does not see", hidden.into_iter())?;
    if found.is_empty() { Err("the source has no field manager".into()) } else { Ok(found) }
}

/// Who has written a status of our objects, and which names of ours are on them.
async fn seen(testbed: &Testbed) -> Result<BTreeSet<String>, Failed> {
    let kinds: Vec<_> = bulkhead::api::definitions().iter().map(ResourceExt::name_any).collect();
    let list = testbed.kubectl(&["get", &kinds.join(","), "-A", "--show-managed-fields", "-o", "json"]).await?;
    let mut seen = BTreeSet::new();
    for object in items(&list)? {
        for entry in object["metadata"]["managedFields"].as_array().into_iter().flatten() {
            let name = entry["manager"].as_str().unwrap_or_default();
            if entry["subresource"] == "status" || name.contains("bulkhead") {
                seen.insert(name.to_owned());
            }
        }
    }
    seen.remove(TESTBED);
    Ok(seen)
}
