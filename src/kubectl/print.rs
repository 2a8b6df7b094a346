//! How reports look: columns for people, JSON and YAML for programs.

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;

use super::error::{Error, Result};

/// How a report is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// Tables and sentences.
    #[default]
    Table,
    /// One JSON object.
    Json,
    /// One YAML document.
    Yaml,
}

/// Something to be printed. The names of its fields are documented and stay.
pub trait Report: Serialize {
    /// For people.
    fn text(&self) -> String;
}

impl Output {
    /// The report in this form, ending with a line feed.
    pub fn render(self, report: &impl Report) -> Result<String> {
        match self {
            Self::Table => Ok(ended(&report.text())),
            Self::Json => json(report),
            Self::Yaml => yaml(report),
        }
    }
}

/// As JSON, ending with a line feed.
pub fn json(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value);
    text.map(|text| ended(&text)).map_err(|error| Error::Unwritable(error.to_string()))
}

/// As a YAML document, ending with a line feed.
pub fn yaml(value: &impl Serialize) -> Result<String> {
    let text = serde_saphyr::to_string(value);
    text.map(|text| ended(&text)).map_err(|error| Error::Unwritable(error.to_string()))
}

fn ended(text: &str) -> String {
    format!("{}\n", text.trim_end())
}

/// A text of paragraphs and tables.
#[derive(Default)]
pub struct Page(String);

impl Page {
    /// A line of its own.
    #[must_use]
    pub fn line(mut self, text: impl AsRef<str>) -> Self {
        self.0.push_str(text.as_ref());
        self.0.push('\n');
        self
    }

    /// Lines with a mark before each.
    #[must_use]
    pub fn list(self, items: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        items.into_iter().fold(self, |page, item| page.line(format!("- {}", item.as_ref())))
    }

    /// Columns under a title; nothing at all where there are no rows.
    #[must_use]
    pub fn table<const N: usize>(mut self, title: &str, head: [&str; N], rows: Vec<[String; N]>) -> Self {
        if rows.is_empty() {
            return self;
        }
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        if !title.is_empty() {
            self.0.push_str(title);
            self.0.push('\n');
        }
        let rows: Vec<_> = [head.map(str::to_owned)].into_iter().chain(rows).collect();
        let mut widths = [0; N];
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for row in &rows {
            let cells: Vec<_> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            self.0.push_str(cells.join("   ").trim_end());
            self.0.push('\n');
        }
        self
    }

    /// The text.
    pub fn end(self) -> String {
        self.0
    }
}

/// A span as kubectl prints ages.
pub fn span(span: TimeDelta) -> String {
    let seconds = span.num_seconds().max(0);
    match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7199 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        7200..=172_799 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// How long ago something was.
pub fn ago(at: DateTime<Utc>, now: DateTime<Utc>) -> String {
    span(now.signed_duration_since(at))
}

/// The value, or a dash.
pub fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Names, or a dash.
pub fn names(names: &[String]) -> String {
    if names.is_empty() { "-".to_owned() } else { names.join(",") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = vec![["a".into(), "long value".into(), String::new()], ["é".repeat(5), "b".into(), "c".into()]];
        insta::assert_snapshot!(Page::default().line("One").list(["two"]).table("THREE", ["X", "Y", "Z"], rows).end());
        assert_eq!(Page::default().table("NONE", ["X"], vec![]).end(), "");
    }

    #[test]
    fn ages_are_short() {
        let cases = [(0, "0s"), (119, "119s"), (150, "2m30s"), (7260, "2h01m"), (200_000, "2d7h"), (-5, "0s")];
        for (seconds, text) in cases {
            assert_eq!(span(TimeDelta::seconds(seconds)), text);
        }
    }

    #[test]
    fn every_form_says_the_same() {
        #[derive(Serialize)]
        struct One {
            a: i32,
        }
        impl Report for One {
            fn text(&self) -> String {
                format!("a is {}", self.a)
            }
        }
        let render = |output: Output| output.render(&One { a: 1 }).unwrap();
        assert_eq!(render(Output::Table), "a is 1\n");
        assert_eq!(render(Output::Json), "{\n  \"a\": 1\n}\n");
        assert_eq!(render(Output::Yaml), "a: 1\n");
    }
}
