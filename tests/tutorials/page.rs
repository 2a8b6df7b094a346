//! What a page asks its readers to do. Blocks in three backticks of the language `sh` are commands. A block of the language
//! `text` after one, with no other block in between, is what they print: each of its lines must be there, in this order, with
//! other lines in between if they like. `…` in a line stands for anything, and any white space is as good as any other.

use libtest_mimic::{Failed, Trial};

/// One block of commands.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The line of the page on which it begins.
    pub line: usize,
    /// The commands.
    pub commands: String,
    /// Lines that they print.
    pub shown: Vec<String>,
}

impl Step {
    /// The first line that is shown and was not printed.
    pub fn compare(&self, printed: &str) -> Result<(), String> {
        let mut lines = printed.lines();
        match self.shown.iter().find(|shown| !lines.any(|line| is_like(shown, line))) {
            Some(missing) => Err(missing.clone()),
            None => Ok(()),
        }
    }
}

/// The steps of a page, in order.
pub fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut block: Option<(&str, usize, Vec<&str>)> = None;
    let mut is_shown = false;
    for (number, line) in (1..).zip(page.lines()) {
        match (&mut block, line.strip_prefix("```")) {
            (None, Some(language)) => block = Some((language, number + 1, Vec::new())),
            (None, None) => {}
            (Some((_, _, lines)), None) => lines.push(line),
            (Some((language, first, lines)), Some(_)) => {
                match (*language, steps.last_mut().filter(|_| is_shown)) {
                    ("sh", _) => {
                        steps.push(Step { line: *first, commands: lines.join("\n"), shown: Vec::new() });
                    }
                    ("text", Some(step)) => {
                        let filled = lines.iter().filter(|line| !line.trim().is_empty());
                        step.shown = filled.map(|line| (*line).to_owned()).collect();
                    }
                    _ => {}
                }
                is_shown = *language == "sh";
                block = None;
            }
        }
    }
    steps
}

/// Whether a line is as a page shows it.
fn is_like(shown: &str, line: &str) -> bool {
    let line = words(line);
    let shown = words(shown);
    let parts: Vec<&str> = shown.split('…').map(str::trim).collect();
    let [first, middle @ .., last] = parts.as_slice() else { return line == shown };
    let Some(rest) = line.strip_prefix(first).and_then(|rest| rest.strip_suffix(last)) else { return false };
    let mut rest = rest;
    middle.iter().all(|part| match rest.split_once(part) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}

fn words(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Tests of the rules themselves.
pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("page::blocks_become_steps", blocks_become_steps),
        Trial::test("page::lines_are_compared_by_words", lines_are_compared_by_words),
        Trial::test("page::lines_are_compared_in_order", lines_are_compared_in_order),
    ]
}

fn blocks_become_steps() -> Result<(), Failed> {
    let page = "# Page\n```text\nan overture\n```\n```sh\none\ntwo\n```\nIt prints:\n```text\nhello\n\nyou\n```\n```yaml\na: 1\n```\n\
                ```sh\nthree\n```\n```yaml\nb: 2\n```\n```text\nof nobody\n```\n";
    let expected = vec![
        Step { line: 6, commands: "one\ntwo".into(), shown: vec!["hello".into(), "you".into()] },
        Step { line: 19, commands: "three".into(), shown: Vec::new() },
    ];
    let found = steps(page);
    if found == expected { Ok(()) } else { Err(format!("{found:#?}").into()) }
}

fn lines_are_compared_by_words() -> Result<(), Failed> {
    let like = [
        ("NAME  READY", "NAME      READY   "),
        ("db-0 1/1 Running …", "db-0   1/1     Running   0          41s"),
        ("…", ""),
        ("pvc-… Healthy … True", "pvc-77aa Healthy shop True"),
        ("a … b … c", "a x b y b z c"),
    ];
    let unlike =
        [("NAME", "NAME READY"), ("db-0 … Running", "db-1 1/1 Running"), ("a … b … c", "a c"), ("ab…ba", "aba")];
    let wrong = like.iter().filter(|(shown, line)| !is_like(shown, line));
    let wrong: Vec<_> = wrong.chain(unlike.iter().filter(|(shown, line)| is_like(shown, line))).collect();
    if wrong.is_empty() { Ok(()) } else { Err(format!("{wrong:?}").into()) }
}

fn lines_are_compared_in_order() -> Result<(), Failed> {
    let step = |shown: &[&str]| Step { shown: shown.iter().map(|&line| line.to_owned()).collect(), ..Step::default() };
    let printed = "one\ntwo\nthree\n";
    if step(&["one", "three"]).compare(printed).is_err() {
        return Err("a line in between must not matter".into());
    }
    match step(&["three", "one"]).compare(printed) {
        Err(missing) if missing == "one" => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}
