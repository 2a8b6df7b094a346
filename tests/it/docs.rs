//! The pages for people: every link leads somewhere, the site's table of contents names every page, and a policy that is shipped
//! is printed as it is. No control plane, no network: links to other servers are not followed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use bulkhead::rights::{Holder, Role, roles};
use bulkhead_testbed::pages::beside;
use libtest_mimic::{Failed, Trial};
use serde_json::{Value, json};

use crate::api::objects::one;
use crate::api::world::root;

/// The table of contents of the site.
const SUMMARY: &str = "docs/SUMMARY.md";
/// Where pages are, beside those in the root.
const FOLDERS: [&str; 2] = ["docs", "charts"];

/// All tests of this module.
pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("docs::every_link_leads_somewhere", every_link_leads_somewhere),
        Trial::test("docs::the_site_has_every_page_once", the_site_has_every_page_once),
        Trial::test("docs::who_comes_from_podmon_gets_the_sample", who_comes_from_podmon_gets_the_sample),
        Trial::test("docs::every_role_for_people_is_told", every_role_for_people_is_told),
    ]
}

fn every_link_leads_somewhere() -> Result<(), Failed> {
    let pages = pages()?;
    let mut dead = Vec::new();
    for (page, text) in &pages {
        for (line, target) in links(text) {
            if target.split_once(':').is_some_and(|(scheme, _)| scheme.chars().all(|c| c.is_ascii_lowercase())) {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let file = if path.is_empty() { page.clone() } else { beside(page, path) };
            let there = root().join(&file).exists();
            let has_anchor = anchor.is_empty() || pages.get(&file).is_none_or(|text| anchors(text).contains(anchor));
            if !there || !has_anchor {
                dead.push(format!("{}:{line}: {target}", page.display()));
            }
        }
    }
    if dead.is_empty() { Ok(()) } else { Err(format!("links that lead nowhere:\n{}", dead.join("\n")).into()) }
}

fn the_site_has_every_page_once() -> Result<(), Failed> {
    let pages = pages()?;
    let summary = PathBuf::from(SUMMARY);
    let text = pages.get(&summary).ok_or("there is no docs/SUMMARY.md")?;
    let listed: Vec<_> = links(text).iter().map(|(_, target)| beside(&summary, target)).collect();
    let twice: Vec<_> =
        listed.iter().enumerate().filter(|(at, page)| listed.iter().take(*at).any(|it| it == *page)).collect();
    let missing: Vec<_> =
        pages.keys().filter(|page| page.starts_with("docs") && **page != summary && !listed.contains(page)).collect();
    if twice.is_empty() && missing.is_empty() {
        return Ok(());
    }
    Err(format!("docs/SUMMARY.md lists twice {twice:?} and not at all {missing:?}").into())
}

/// The page's policy is the sample, but that it does nothing as long as podmon acts.
fn who_comes_from_podmon_gets_the_sample() -> Result<(), Failed> {
    let page = fs::read_to_string(root().join("docs/coming-from-podmon.md"))?;
    let yaml = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next());
    let mut read: Value = serde_saphyr::from_str(yaml.ok_or("the page has no policy")?)?;
    let mut sample = one(&root().join("config/samples/resiliencypolicy-podmon.yaml"))?;
    let triggers = |policy: &mut Value| policy.pointer_mut("/spec")?.as_object_mut()?.remove("triggers");
    let nothing = json!({ "nodeFailure": "Ignore", "storagePathLoss": "Ignore", "crashLoop": { "action": "Ignore" } });
    assert_eq!(triggers(&mut read), Some(nothing), "podmon acts meanwhile");
    assert!(triggers(&mut sample).is_some_and(|it| it.get("nodeFailure").is_none()), "the sample acts");
    assert_eq!(read, sample, "the page and the sample are not the same policy");
    Ok(())
}

/// Whoever binds them finds there for whom they are.
fn every_role_for_people_is_told() -> Result<(), Failed> {
    let page = fs::read_to_string(root().join("docs/kubectl.md"))?;
    let rows: Vec<_> = page.lines().filter(|line| line.starts_with("| `bulkhead-")).collect();
    let of_people = roles().filter(|role| !matches!(role.holder, Holder::Program(_)));
    let told = |role: &Role| rows.iter().any(|row| row.contains(&format!("`{}`", role.name)));
    let untold: BTreeSet<_> = of_people.filter(|role| !told(role)).map(|role| role.name).collect();
    assert!(untold.is_empty(), "docs/kubectl.md does not say for whom these are: {untold:?}");
    Ok(())
}

/// All pages, by their path in the tree.
fn pages() -> Result<BTreeMap<PathBuf, String>, Failed> {
    let mut folders: Vec<_> = FOLDERS.iter().map(|folder| root().join(folder)).collect();
    let mut files: Vec<_> = fs::read_dir(root())?.collect::<Result<Vec<_>, _>>()?.iter().map(|it| it.path()).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    let mut pages = BTreeMap::new();
    for file in files.iter().filter(|file| file.extension().is_some_and(|end| end == "md")) {
        pages.insert(file.strip_prefix(root())?.to_owned(), fs::read_to_string(file)?);
    }
    Ok(pages)
}

/// The lines of a page that are no code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// What a page links to, each with its line.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        // What stands between backticks is code, and may look as a link does.
        let read: String = line.split('`').step_by(2).collect();
        let targets = read.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        found.extend(targets.map(|target| (number, target.to_owned())));
    }
    found
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (_, line) in prose(text) {
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let anchor = anchor(heading.trim());
        let again = (1..).map(|number| format!("{anchor}-{number}"));
        if let Some(free) = [anchor.clone()].into_iter().chain(again).find(|name| !found.contains(name)) {
            found.insert(free);
        }
    }
    found
}

fn anchor(heading: &str) -> String {
    // Of a link only what is read counts.
    let mut read = String::new();
    for (at, part) in heading.split("](").enumerate() {
        read += if at == 0 { part } else { part.split_once(')').map_or(part, |(_, rest)| rest) };
    }
    let kept = read.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}
