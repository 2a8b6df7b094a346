//! The list of Events in the docs against the code that tells them, in both directions. No control plane; that an Event
//! arrives is tested where what it tells of happens.

use std::collections::BTreeSet;
use std::fs;

use libtest_mimic::{Failed, Trial};

use crate::api::world::root;
use crate::metrics::{none, sources};

/// Where Events are listed.
const LIST: &str = "docs/operations.md";
/// What stands before a reason where one is told. Behind a variable no reason is seen: of those only the second test knows.
const BEFORE: [&str; 6] =
    ["EventType::Normal, ", "EventType::Warning, ", "), kind, ", "Note::normal(", "Note::warning(", "News { reason: "];
/// What stands behind the reason of a pair.
const BEHIND: &str = ", EventType::";

/// All tests of this module.
pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("events::every_event_is_documented", every_event_is_documented),
        Trial::test("events::every_documented_event_is_there", every_documented_event_is_there),
    ]
}

fn every_event_is_documented() -> Result<(), Failed> {
    let (documented, told) = (documented()?, told(&source()?));
    if told.is_empty() {
        return Err("the source tells no Event".into());
    }
    none("not documented", told.into_iter().filter(|reason| !documented.contains(reason)))
}

fn every_documented_event_is_there() -> Result<(), Failed> {
    let source = source()?;
    let is_there = |reason: &String| source.contains(&format!("\"{reason}\""));
    none("documented, and nobody tells it", documented()?.into_iter().filter(|reason| !is_there(reason)))
}

/// The source but for tests, with one space wherever there is any.
fn source() -> Result<String, Failed> {
    let mut words = String::new();
    sources(&root().join("src"), &mut |text| {
        for word in text.split_whitespace() {
            words.push_str(word);
            words.push(' ');
        }
    })?;
    Ok(words)
}

/// The reasons that are told as literals.
fn told(source: &str) -> BTreeSet<String> {
    let behind = |rest: &str| Some(rest.trim_start().strip_prefix('"')?.split('"').next()?.to_owned());
    let before = |rest: &str| Some(rest.strip_suffix('"')?.rsplit('"').next()?.to_owned());
    let mut found: BTreeSet<_> =
        BEFORE.iter().flat_map(|marker| source.split(*marker).skip(1).filter_map(behind)).collect();
    found.extend(source.split(BEHIND).filter_map(before));
    found
}

/// The reasons in the first column of the tables.
fn documented() -> Result<BTreeSet<String>, Failed> {
    let text = fs::read_to_string(root().join(LIST)).map_err(|error| format!("{LIST}: {error}"))?;
    let chapter = text.split("\n## Events\n").nth(1).and_then(|rest| rest.split("\n## ").next());
    let chapter = chapter.ok_or_else(|| format!("{LIST} has no chapter Events"))?;
    let firsts = chapter.lines().filter(|line| line.starts_with("| `")).filter_map(|line| line.split('|').nth(1));
    // Every other piece between backquotes is a reason.
    Ok(firsts.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect())
}
