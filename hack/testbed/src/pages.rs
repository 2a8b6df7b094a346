//! Links between pages of the documentation.

use std::path::{Component, Path, PathBuf};

/// A path that is written in a page, from the root of the tree on.
pub fn beside(page: &Path, target: &str) -> PathBuf {
    let mut path = page.parent().unwrap_or(Path::new("")).to_owned();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    path
}
