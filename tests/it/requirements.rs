//! The pages of requirements name tests that there are, in the files that they say. No control plane.

use std::fs;
use std::path::Path;

use libtest_mimic::{Failed, Trial};

use crate::api::world::root;

/// How the names of the pages end. What is before it is the topic of a page.
const PAGE: &str = "-requirements.md";
/// What stands before a `/`, on the page of this topic or, without one, on all, and where its tests are. Each page says so
/// at its top. Before a `::` is a module of `tests/it`.
const PREFIXES: [(&str, &str, &str); 13] = [
    ("", "real", "tests/real"),
    ("", "agent", "tests/node_agent"),
    ("", "node", "tests/s3_node"),
    ("", "mounter", "tests/s3_mounter"),
    ("", "csi", "tests/s3_controller"),
    ("resiliency", "policy", "src/controllers/resiliency_policy/tests"),
    ("resiliency", "fence", "src/controllers/node_fence/tests"),
    ("resiliency", "sidecar", "src/csi_sidecar/tests"),
    ("resiliency", "connectivity", "src/csi_sidecar/connectivity/tests"),
    ("volume-health", "unit", "src/controllers/volume_health/tests"),
    ("volume-health", "sidecar", "src/csi_sidecar/health/tests"),
    ("s3", "unit", "src/controllers/mountpoint_s3_pod_attachment/tests"),
    ("shared-volume", "unit", "src/controllers/shared_volume/tests"),
];
/// Fewer names than this, and the tables are not as they were.
const AT_LEAST: usize = 100;

/// All tests of this module.
pub fn trials() -> Vec<Trial> {
    vec![Trial::test("requirements::what_shows_them_is_there", what_shows_them_is_there)]
}

fn what_shows_them_is_there() -> Result<(), Failed> {
    let everything = ["src", "tests", "hack"].map(code).concat();
    let mut missing = Vec::new();
    for entry in fs::read_dir(root().join("docs"))? {
        let path = entry?.path();
        let page = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(topic) = page.strip_suffix(PAGE) else { continue };
        let text = fs::read_to_string(&path)?;
        let mut named = 0;
        for row in text.lines().filter(|line| line.starts_with("| ")) {
            // The last file that the row names: what follows may be in it.
            let mut file = None;
            for word in names(row) {
                file = if word.ends_with(".rs") { Some(word) } else { file };
                match is_there(topic, file, word, &everything) {
                    Some(true) => named += 1,
                    Some(false) => missing.push(format!("{page}: {word}")),
                    None => {}
                }
            }
        }
        assert!(named >= AT_LEAST, "{page} names only {named}: are the tables as they were?");
    }
    assert!(missing.is_empty(), "the pages name what is not there:\n{}", missing.join("\n"));
    Ok(())
}

/// What stands between backticks in the last column and may be a name. A name is spelt out: `…` is there to be found wrong.
fn names(row: &str) -> impl Iterator<Item = &str> {
    let shown_by = row.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
    let is_name = |word: &&str| word.chars().all(|c| c.is_ascii_alphanumeric() || "_:/.*…".contains(c));
    shown_by.split('`').skip(1).step_by(2).filter(is_name)
}

/// Whether the test or the file is there; nothing for what is neither.
fn is_there(topic: &str, file: Option<&str>, word: &str, everything: &str) -> Option<bool> {
    if word.ends_with(".rs") {
        return Some(root().join(word).is_file());
    }
    if let Some((prefix, test)) = word.split_once('/') {
        let mut folders = PREFIXES.iter().filter(|(of, name, _)| *name == prefix && (of.is_empty() || *of == topic));
        return folders.next().map(|(_, _, folder)| has(folder, test));
    }
    if let Some((module, test)) = word.split_once("::") {
        return Some(has(&format!("tests/it/{module}"), test));
    }
    // Fields and flags are shorter than the names of tests.
    if word.contains('.') || word.matches('_').count() < 2 {
        return None;
    }
    Some(match file {
        Some(file) => code(file).contains(&format!("fn {word}(")),
        None => defines(everything, word),
    })
}

/// Whether there is such a test in the file that its first part names, or below `folder` if that is no file. `*` is any.
fn has(folder: &str, test: &str) -> bool {
    let all = |path: &str| [code(format!("{path}.rs")), code(path)].concat();
    let (first, rest) = test.split_once("::").unwrap_or((test, ""));
    let module = all(&format!("{folder}/{first}"));
    if rest == "*" && !module.is_empty() {
        return true;
    }
    let text = if module.is_empty() { all(folder) } else { module };
    let name = last(test);
    match name.strip_suffix('*') {
        Some("") => !text.is_empty(),
        Some(begin) => text.contains(&format!("fn {begin}")) || text.contains(&format!("\"{begin}")),
        // A case of a test, by the name of its value.
        None if name.starts_with(|c: char| c.is_ascii_uppercase()) => text.contains(name),
        None => defines(&text, name),
    }
}

/// Whether there is a test of that name: a function; or one that is registered under another name than its own, perhaps with
/// cases. That somebody mentions it is not enough.
fn defines(text: &str, name: &str) -> bool {
    let forms = ["fn NAME(", "fn NAME<", "\"NAME\"", "::NAME\"", "\"NAME::{", "::NAME::{"];
    forms.iter().any(|form| text.contains(&form.replace("NAME", name)))
}

/// The last part of a name that says something.
fn last(name: &str) -> &str {
    name.rsplit("::").find(|part| *part != "*").unwrap_or("*")
}

/// All Rust of a file or below a folder; nothing if there is neither.
fn code(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    if path.extension().is_some_and(|extension| extension == "rs") {
        return fs::read_to_string(path).unwrap_or_default();
    }
    fs::read_dir(path).into_iter().flatten().flatten().map(|entry| code(entry.path())).collect()
}
