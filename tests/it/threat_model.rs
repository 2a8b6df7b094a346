//! The threat model names tests and fuzz targets that there are. No control plane. (Admission policies are shown by the tests that
//! it names for them.)

use std::fs;
use std::path::{Path, PathBuf};

use libtest_mimic::{Failed, Trial};

/// All tests of this module.
pub fn trials() -> Vec<Trial> {
    vec![Trial::test("threat_model::what_it_names_is_there", what_it_names_is_there)]
}

fn what_it_names_is_there() -> Result<(), Failed> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/threat-model.md"))?;
    let code: String = sources(root).iter().map(fs::read_to_string).collect::<Result<_, _>>()?;
    let (mut missing, mut named) = (Vec::new(), 0);
    // The last column of the tables of threats.
    for row in page.lines().filter(|line| line.starts_with("| ") && line.matches(" | ").count() == 2) {
        let shown_by = row.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
        let words: Vec<_> = shown_by.split('`').skip(1).step_by(2).filter(|word| is_name(word)).collect();
        for word in words {
            let name = word.rsplit("::").next().unwrap_or(word);
            let is_test = is_unit_test(&code, name) || is_trial(&code, name);
            let is_target = root.join("hack/fuzzing/seeds").join(name).is_dir();
            named += 1;
            if !is_test && !is_target {
                missing.push(word.to_owned());
            }
        }
    }
    assert!(named > 40, "only {named} are named: are the tables as they were?");
    assert!(missing.is_empty(), "docs/threat-model.md names what is not there: {missing:?}");
    Ok(())
}

/// A function with the mark of a test.
fn is_unit_test(code: &str, name: &str) -> bool {
    let function = format!("fn {name}(");
    code.match_indices(&function).any(|(at, _)| {
        let above = code.get(..at).and_then(|before| before.rsplit("\n\n").next()).unwrap_or_default();
        ["#[test]", "#[tokio::test"].iter().any(|mark| above.contains(mark))
    })
}

/// In a list of tests of our own harnesses: by its name as a text, or in a macro that makes the name of the function.
fn is_trial(code: &str, name: &str) -> bool {
    [format!("\"{name}\""), format!("::{name}\""), format!("::{name},")].iter().any(|listed| code.contains(listed))
}

/// A name of Rust's, not a command or a file.
fn is_name(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == ':')
}

/// All Rust files but this one.
fn sources(root: &Path) -> Vec<PathBuf> {
    let (mut folders, mut files) = (["src", "tests", "hack"].map(|folder| root.join(folder)).to_vec(), Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("threat_model.rs")
            {
                files.push(path);
            }
        }
    }
    files
}
