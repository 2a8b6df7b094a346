//! The threat model names tests, fuzz targets and admission policies that there are. No control plane.

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
            let is_test = code.contains(&format!("fn {name}(")) || code.contains(&format!("{name}\""));
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
