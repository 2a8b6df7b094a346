//! The lists of metrics in the docs against the code that registers them, in both directions. No control plane; how a real
//! scrape looks is tested where all programs run (`tests/real/metrics.rs`).

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use libtest_mimic::{Failed, Trial};

use crate::api::world::root;

/// Where metrics are listed.
pub const LISTS: [&str; 3] = ["docs/operations.md", "docs/node-agent.md", "docs/storageos.md"];
/// What names of ours begin with; the second are those that StorageOS gave.
const PREFIXES: [&str; 2] = ["bulkhead_", "storageos_"];
/// The calls that register a metric, with what they put before its name.
const CALLS: [(&str, &str); 4] = [
    ("telemetry.register(", "bulkhead_"),
    ("add.metric(", "bulkhead_"),
    ("add.with(", "bulkhead_"),
    ("telemetry.register_exact(", ""),
];

/// All tests of this module.
pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("metrics::every_metric_is_documented", every_metric_is_documented),
        Trial::test("metrics::every_documented_metric_is_there", every_documented_metric_is_there),
    ]
}

fn every_metric_is_documented() -> Result<(), Failed> {
    let documented = documented()?;
    let is_listed = |name: &String| documented.contains(name) || documented.contains(&format!("{name}_total"));
    none("not documented", registered()?.into_iter().filter(|name| !is_listed(name)))
}

fn every_documented_metric_is_there() -> Result<(), Failed> {
    let registered = registered()?;
    // A counter is registered without the end that its name has.
    let is_there = |name: &String| registered.contains(name.strip_suffix("_total").unwrap_or(name));
    none("documented, and nobody registers it", documented()?.into_iter().filter(|name| !is_there(name)))
}

/// Nothing, or what is wrong with these names.
pub fn none(what: &str, names: impl Iterator<Item = String>) -> Result<(), Failed> {
    let names: Vec<_> = names.collect();
    if names.is_empty() { Ok(()) } else { Err(format!("{what}: {}", names.join(", ")).into()) }
}

/// The metrics that our programs register, by the source.
fn registered() -> Result<BTreeSet<String>, Failed> {
    let mut found = BTreeSet::new();
    sources(&root().join("src"), &mut |text| {
        for (call, prefix) in CALLS {
            let names =
                text.split(call).skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next());
            found.extend(names.map(|name| format!("{prefix}{name}")));
        }
    })?;
    if found.is_empty() { Err("the source registers no metric".into()) } else { Ok(found) }
}

/// Reads every Rust file but for tests.
pub fn sources(folder: &Path, read: &mut impl FnMut(&str)) -> Result<(), Failed> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.to_string_lossy().into_owned();
        if path.ends_with("tests") {
            continue;
        }
        if path.is_dir() {
            sources(&path, read)?;
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
            let text = fs::read_to_string(&path)?;
            read(text.split("mod tests {").next().unwrap_or_default());
        }
    }
    Ok(())
}

/// Our metrics in a text.
pub fn metrics(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| PREFIXES.iter().any(|prefix| word.starts_with(prefix))).map(str::to_owned).collect()
}

/// Our metrics in the first column of the lists.
pub fn documented() -> Result<BTreeSet<String>, Failed> {
    let mut found = BTreeSet::new();
    for list in LISTS {
        let words = fs::read_to_string(root().join(list)).map_err(|error| format!("{list}: {error}"))?;
        let is_row = |line: &&str| PREFIXES.iter().any(|prefix| line.starts_with(&format!("| `{prefix}")));
        found.extend(words.lines().filter(is_row).filter_map(|line| line.split('|').nth(1)).flat_map(metrics));
    }
    Ok(found)
}

/// Says which is not. Of a histogram the name is listed, without what its series add.
pub fn all_documented(named: &BTreeSet<String>, documented: &BTreeSet<String>) -> Result<(), String> {
    let is_listed = |name: &str| {
        let of_histogram = ["_bucket", "_count", "_sum"].into_iter().find_map(|end| name.strip_suffix(end));
        documented.contains(name) || of_histogram.is_some_and(|name| documented.contains(name))
    };
    match named.iter().find(|name| !is_listed(name)) {
        Some(name) => Err(format!("{name}, which none of {LISTS:?} lists")),
        None => Ok(()),
    }
}
