//! `xtask docs`: a site from the pages for people, by mdBook.
//!
//! The pages lie in the site as they lie in the tree, so that their links hold in both. `docs/SUMMARY.md` is the table of
//! contents, and says which pages there are; other files that a page links to are taken along.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use bulkhead_testbed::pages::beside;

use crate::Result;
use crate::steps::Steps;
use crate::tools::Tool;

/// What makes the site. It needs neither to watch nor to serve.
const MDBOOK: Tool =
    Tool { name: "mdbook", version: "0.5.4", arguments: &["--no-default-features", "--features", "search"] };
/// Where the site is made, below the root.
const FOLDER: &str = "target/site";
const SUMMARY: &str = "docs/SUMMARY.md";
const SETTINGS: &str = "docs/book.toml";

/// Builds the site, and says where it begins.
pub fn run(root: &Path) -> Result<()> {
    build(&mut Steps::new(root))?;
    println!("The site begins at {}", root.join(FOLDER).join("book/index.html").display());
    Ok(())
}

/// Builds the site.
pub fn build(steps: &mut Steps) -> Result<()> {
    let root = steps.root.clone();
    let site = root.join(FOLDER);
    steps.step("pages", |_| gather(&root, &site))?;
    steps.step("site", |steps| {
        let mut book = Command::new(MDBOOK.ensure(steps)?);
        book.arg("build").arg(&site);
        steps.run(&mut book, "mdBook has something to say: see above")
    })
}

/// Copies what is in the site, as mdBook wants it.
fn gather(root: &Path, site: &Path) -> Result<()> {
    if site.exists() {
        std::fs::remove_dir_all(site)?;
    }
    let source = site.join("src");
    std::fs::create_dir_all(&source)?;
    std::fs::copy(root.join(SETTINGS), site.join("book.toml"))?;
    let summary = std::fs::read_to_string(root.join(SUMMARY))?;
    std::fs::write(source.join("SUMMARY.md"), from_root(&summary))?;
    for page in targets(Path::new(SUMMARY), &summary) {
        let text = std::fs::read_to_string(root.join(&page)).map_err(|error| format!("{}: {error}", page.display()))?;
        copy(root, &source, &page)?;
        let linked = targets(&page, &text);
        for file in linked.iter().filter(|file| !is_page(file) && root.join(file).is_file()) {
            copy(root, &source, file)?;
        }
    }
    Ok(())
}

fn copy(root: &Path, source: &Path, file: &Path) -> Result<()> {
    let to = source.join(file);
    std::fs::create_dir_all(to.parent().unwrap_or(source))?;
    std::fs::copy(root.join(file), to)?;
    Ok(())
}

/// The table of contents with the paths of its pages from the root of the tree on.
fn from_root(summary: &str) -> String {
    let mut parts = summary.split("](");
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (target, rest) = part.split_once(')').unwrap_or((part, ""));
        whole += &format!("]({}){rest}", beside(Path::new(SUMMARY), target).display());
    }
    whole
}

/// The files of this tree that a page links to.
fn targets(page: &Path, text: &str) -> BTreeSet<PathBuf> {
    let links = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    links.filter(|target| !target.is_empty() && !target.contains(':')).map(|target| beside(page, target)).collect()
}

fn is_page(file: &Path) -> bool {
    file.extension().is_some_and(|end| end == "md")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_contents_names_pages_from_the_root_on() {
        let summary = "# Site\n\n[Bulkhead](../README.md)\n\n- [Install](install.md)\n  - [Why](adr/README.md)\n";
        assert_eq!(
            from_root(summary),
            "# Site\n\n[Bulkhead](README.md)\n\n- [Install](docs/install.md)\n  - [Why](docs/adr/README.md)\n"
        );
    }

    #[test]
    fn what_a_page_links_to_is_taken_along() {
        let text = "[a](b.md#c), [d](../config/e.yaml), [here](#f), [there](https://example.com/g.md)";
        let found: Vec<_> = targets(Path::new("docs/page.md"), text).into_iter().collect();
        assert_eq!(found, [PathBuf::from("config/e.yaml"), PathBuf::from("docs/b.md")]);
    }
}
