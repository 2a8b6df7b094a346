//! Texts of lines: logs, messages, values of ConfigMaps. What follows the name of a credential is masked as far as it may reach,
//! over following lines too, and words that are credentials by their looks.

use super::MASK;
use super::names::{is_before_blank, is_credential, is_login};
use super::values::{self, Bracket, Quote};

/// Masks a text.
pub fn text(text: &str) -> String {
    let mut lines = Lines { masked: String::with_capacity(text.len()), ..Lines::default() };
    // The beginning of a log may be missing, and so that of a key.
    let begins = text.find("-----BEGIN ").unwrap_or(text.len());
    if text.find("PRIVATE KEY-----").is_some_and(|ends| ends < begins) {
        lines.hide(Hides::Key);
    }
    text.split_inclusive('\n').for_each(|line| lines.line(line));
    lines.masked
}

/// What of the following lines belongs to a value that was masked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Hides {
    #[default]
    Nothing,
    /// Until the end of a private key.
    Key,
    /// What is indented deeper, as in YAML; and `items` of a list that are not.
    Deeper { indent: usize, items: bool },
    /// Until the quote closes.
    Until(Quote),
    /// Until the bracket closes, however deep it is indented.
    Within(Bracket),
    /// The next one, as an item of a list: that of a flag.
    Item,
}

/// How far a value reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// It is all of the line, and what is indented deeper.
    Line,
    /// After a colon.
    Colon,
    /// A word of a shell.
    Word,
    /// Text of XML.
    Xml,
}

#[derive(Debug, Default)]
struct Lines {
    masked: String,
    hides: Hides,
    /// The word before.
    before: String,
    /// `name: DB_PASSWORD` was there: the `value` that follows is one.
    is_named: bool,
}

fn is_separator(c: char) -> bool {
    const OTHERS: [char; 18] =
        ['"', '\'', '`', ',', ';', '&', '{', '}', '[', ']', '(', ')', '=', ':', '?', '\\', '<', '>'];
    c.is_whitespace() || OTHERS.contains(&c)
}

impl Lines {
    fn hide(&mut self, hides: Hides) {
        self.masked.push_str(MASK);
        self.masked.push('\n');
        self.hides = hides;
    }

    fn line(&mut self, whole: &str) {
        let line = whole.strip_suffix('\n').unwrap_or(whole);
        let (stamp, line) = stamped(line);
        let Some(line) = self.shown(line) else { return };
        if line.contains("-----BEGIN ") && line.contains("PRIVATE KEY") {
            return self.hide(if line.contains("-----END ") { Hides::Nothing } else { Hides::Key });
        }
        self.masked.push_str(stamp);
        let indent = indent_of(line);
        match key(line).filter(|key| self.is_secret(key.name)) {
            Some(key) => {
                let (shown, value) = line.split_at(key.value);
                self.masked.push_str(shown);
                let masked = self.mask(value, shown, Reach::Line, key.indent);
                self.words(line, key.value + masked, indent);
            }
            None => self.words(line, 0, indent),
        }
        if whole.ends_with('\n') {
            self.masked.push('\n');
        }
    }

    /// What of a line does not belong to the value before.
    fn shown<'a>(&mut self, line: &'a str) -> Option<&'a str> {
        match self.hides {
            Hides::Nothing => {}
            Hides::Key if line.contains("-----END ") => {
                self.hides = Hides::Nothing;
                return None;
            }
            Hides::Key => return None,
            Hides::Deeper { indent, items } => {
                let is_item = items && indent_of(line) == indent && line.trim_start().starts_with("- ");
                if line.trim().is_empty() || indent_of(line) > indent || is_item {
                    return None;
                }
            }
            Hides::Until(quote) => {
                let rest = line.get(quote.closes(line)?..);
                self.hides = Hides::Nothing;
                return rest;
            }
            Hides::Within(mut bracket) => {
                let closes = bracket.closes(line);
                self.hides = if closes.is_some() { Hides::Nothing } else { Hides::Within(bracket) };
                return line.get(closes?..);
            }
            Hides::Item => {
                self.hide(Hides::Deeper { indent: indent_of(line), items: false });
                return None;
            }
        }
        self.hides = Hides::Nothing;
        Some(line)
    }

    fn is_secret(&self, name: &str) -> bool {
        is_credential(name) || self.is_named && name == "value"
    }

    /// From there on, word by word.
    fn words(&mut self, line: &str, from: usize, indent: usize) {
        let mut at = from;
        while let Some(rest) = line.get(at..).filter(|rest| !rest.is_empty()) {
            if let Some(after) = rest.strip_prefix("://") {
                self.masked.push_str("://");
                at += 3;
                if let Some((user, end)) = values::user(after) {
                    self.masked.push_str(after.get(..user).unwrap_or_default());
                    self.masked.push_str(MASK);
                    at += end;
                }
                continue;
            }
            let length = rest.find(is_separator).unwrap_or(rest.len());
            if length == 0 {
                let separator = rest.chars().next().unwrap_or_default();
                self.masked.push(separator);
                at += separator.len_utf8();
                continue;
            }
            let (word, after) = rest.split_at(length);
            self.masked.push_str(if values::looks_secret(word) { MASK } else { word });
            at += length;
            let follows = self.follows(word, after);
            let is_value =
                |gap| !is_login(word) || after.get(gap..).is_some_and(|value| values::first(value).contains(':'));
            if let Some((gap, reach)) = follows.filter(|(gap, _)| is_value(*gap)) {
                let (between, value) = after.split_at(gap);
                self.masked.push_str(between);
                at += gap;
                let shown = line.get(..at).unwrap_or_default();
                at += self.mask(value, shown, reach, indent);
            } else if let Some(password) = values::password(after) {
                self.masked.extend([":", MASK]);
                at += password;
            }
            self.noted(word);
        }
    }

    /// What is between a word and the value that it names, and how far that reaches.
    fn follows(&mut self, word: &str, after: &str) -> Option<(usize, Reach)> {
        if is_before_blank(word) && after.starts_with(char::is_whitespace) {
            return Some((gap(after, after.trim_start()), Reach::Word));
        }
        if !(self.is_secret(word) || is_login(word)) {
            return None;
        }
        if after.starts_with('>') && !word.starts_with('/') && self.masked.ends_with(&format!("<{word}")) {
            return Some((1, Reach::Xml));
        }
        let closed = after.get(Quote::at(after).map_or(0, |(_, length)| length)..)?;
        let separated = closed.trim_start();
        if separated.starts_with([':', '=']) && !separated.starts_with("::") {
            let value = separated.trim_start_matches([':', '=', '>']);
            let reach = if separated.starts_with(':') { Reach::Colon } else { Reach::Word };
            return Some((gap(after, value.trim_start()), reach));
        }
        if !word.starts_with('-') {
            return None;
        }
        let value = closed.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
        if value.trim_end_matches([']', ')']).is_empty() {
            self.hides = Hides::Item;
            return None;
        }
        (value.len() < closed.len() && !value.starts_with("--")).then(|| (gap(after, value), Reach::Word))
    }

    fn noted(&mut self, word: &str) {
        if word == "name" || word == "value" {
            self.is_named = false;
        } else if self.before == "name" {
            self.is_named = is_credential(word);
        }
        word.clone_into(&mut self.before);
    }

    /// Masks the value that a text begins with; how long it is. `shown` is the line before it.
    fn mask(&mut self, text: &str, shown: &str, reach: Reach, indent: usize) -> usize {
        if let Some((quote, length)) = Quote::at(text) {
            let (opening, inside) = text.split_at(length);
            self.masked.extend([opening, MASK]);
            let closes = quote.closes(inside);
            if closes.is_none() {
                self.hides = Hides::Until(quote);
            }
            return closes.map_or(text.len(), |closes| length + closes);
        }
        self.masked.push_str(MASK);
        let is_in_string = values::is_in_string(shown);
        let of_string = Quote::JSON.closes(text).filter(|_| is_in_string);
        if let Some(mut bracket) = Bracket::at(text)
            && (reach == Reach::Line || reach == Reach::Colon && of_string.is_none())
        {
            let closes = bracket.closes(text.get(1..).unwrap_or_default());
            self.hides = match (closes, reach) {
                (None, _) => Hides::Within(bracket),
                (Some(_), Reach::Line) => Hides::Deeper { indent, items: false },
                (Some(_), _) => Hides::Nothing,
            };
            return closes.filter(|_| reach != Reach::Line).map_or(text.len(), |closes| closes + 2);
        }
        let is_block = text.trim().is_empty() || text.starts_with(['|', '>']);
        if reach == Reach::Line || reach == Reach::Colon && is_block {
            self.hides = Hides::Deeper { indent, items: true };
        }
        let end = match reach {
            Reach::Line => None,
            Reach::Xml => text.find('<'),
            _ if is_in_string => of_string,
            Reach::Word => Some(values::word(text).max(values::balanced(text).unwrap_or_default())),
            Reach::Colon if values::is_open(shown) => text.find([',', '}', ']']),
            Reach::Colon => None,
        };
        end.unwrap_or(text.len())
    }
}

fn gap(text: &str, rest: &str) -> usize {
    text.len() - rest.len()
}

/// The time that the kubelet writes before each line of a log, and the rest.
fn stamped(line: &str) -> (&str, &str) {
    let is_stamp = |word: &str| {
        let mut bytes = word.bytes();
        word.len() > 19 && bytes.nth(4) == Some(b'-') && bytes.nth(5) == Some(b'T') && has_zone(word)
    };
    match line.find(' ').filter(|at| is_stamp(line.get(..*at).unwrap_or_default())) {
        Some(at) => line.split_at(at + 1),
        None => ("", line),
    }
}

/// `Z`, or as far as the node's clock is from there: `+01:00`.
fn has_zone(time: &str) -> bool {
    let offset = time.len().checked_sub(6).and_then(|at| time.get(at..)).unwrap_or_default();
    time.ends_with('Z') || offset.starts_with(['+', '-']) && offset.get(3..4) == Some(":")
}

fn indent_of(line: &str) -> usize {
    gap(line, line.trim_start())
}

/// What a line begins with that names its value.
struct Key<'a> {
    name: &'a str,
    /// What belongs to the value is indented deeper than this.
    indent: usize,
    /// Where the value begins.
    value: usize,
}

fn key(line: &str) -> Option<Key<'_>> {
    let mut rest = line.trim_start();
    let mut indent = gap(line, rest);
    while let Some(item) = rest.strip_prefix("- ") {
        rest = item.trim_start();
        indent = gap(line, rest);
    }
    let rest = rest.strip_prefix("export ").unwrap_or(rest).trim_start();
    let opened = rest.get(Quote::at(rest).map_or(0, |(_, length)| length)..)?;
    let (name, after) = opened.split_at(opened.find(is_separator)?);
    let closed = after.get(Quote::at(after).map_or(0, |(_, length)| length)..)?.trim_start();
    let is_named = !name.is_empty() && closed.starts_with([':', '=']) && !closed.starts_with("::");
    let value = closed.trim_start_matches([':', '=']).trim_start();
    is_named.then_some(Key { name, indent, value: gap(line, value) })
}
