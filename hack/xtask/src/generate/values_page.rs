//! The table of the chart's values in its README, from the comments of `values.yaml`.

use std::path::Path;

use serde_json::Value;

use crate::Result;

/// The page, of which only the table is generated.
pub const FILE: &str = "charts/bulkhead/README.md";
const VALUES: &str = "charts/bulkhead/values.yaml";
/// Between these the table stands.
const BEGIN: &str = "<!-- values: the comments of values.yaml -->\n";
const END: &str = "<!-- end of values -->";
/// A default that takes more is to be looked up.
const LONGEST: usize = 40;

/// Writes the page with its table.
pub fn write(root: &Path, out: &Path) -> Result<()> {
    let page = std::fs::read_to_string(root.join(FILE))?;
    let (before, rest) = page.split_once(BEGIN).ok_or_else(|| format!("{FILE} has no line {BEGIN}"))?;
    let (_, after) = rest.split_once(END).ok_or_else(|| format!("{FILE} has no line {END}"))?;
    let table = table(&std::fs::read_to_string(root.join(VALUES))?)?;
    let path = out.join(FILE);
    std::fs::create_dir_all(path.parent().unwrap_or(out))?;
    Ok(std::fs::write(path, format!("{before}{BEGIN}{table}{END}{after}"))?)
}

/// A row for each value that has a comment with two dashes, which may go on in further lines.
fn table(text: &str) -> Result<String> {
    let values: Value = serde_saphyr::from_str(text)?;
    let mut table = "| value | default | meaning |\n|---|---|---|\n".to_owned();
    let mut path: Vec<(usize, &str)> = Vec::new();
    let mut comment = String::new();
    for line in text.lines() {
        let words = line.trim_start();
        let indent = line.len() - words.len();
        if let Some(begun) = words.strip_prefix("# -- ") {
            comment = begun.to_owned();
        } else if let Some(more) = words.strip_prefix("# ") {
            comment = if comment.is_empty() { comment } else { format!("{comment} {more}") };
        } else if let Some((key, _)) = words.split_once(':') {
            path.retain(|(outer, _)| *outer < indent);
            path.push((indent, key));
            if !comment.is_empty() {
                let keys: Vec<_> = path.iter().map(|(_, key)| *key).collect();
                let default = default(values.pointer(&format!("/{}", keys.join("/"))));
                table += &format!("| `{}` | {default} | {comment} |\n", keys.join("."));
            }
            comment.clear();
        } else {
            comment.clear();
        }
    }
    Ok(table)
}

/// Nothing for what is empty.
fn default(value: Option<&Value>) -> String {
    let text = match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(items)) if items.is_empty() => String::new(),
        Some(Value::Object(fields)) if fields.is_empty() => String::new(),
        Some(value) => value.to_string(),
    };
    match text.len() {
        0 => text,
        1..=LONGEST => format!("`{text}`"),
        _ => "see values.yaml".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_its_path_its_default_and_the_whole_of_its_comment() {
        let text = "# Values.\n\nouter:\n  # -- One thing,\n  # and more of it.\n  inner: 3\n  # No value of its own.\n  list:\n  # -- Empty.\n  none: \"\"\n# -- Long.\nlong:\n- key: node-role.kubernetes.io/control-plane\n";
        let rows: Vec<_> = table(text).unwrap().lines().skip(2).map(str::to_owned).collect();
        let expected = [
            "| `outer.inner` | `3` | One thing, and more of it. |",
            "| `outer.none` |  | Empty. |",
            "| `long` | see values.yaml | Long. |",
        ];
        assert_eq!(rows, expected);
    }
}
