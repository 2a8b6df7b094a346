//! Roles and bindings of `config/`, from the table of rights.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use bulkhead::rights::{Account, Holder, Role, Rule, roles};

use super::{HEADER, rights_page};
use crate::Result;

/// For people: the same as a page.
const PAGE: &str = "docs/rbac.md";

/// Programs that are switched on one by one bring their ServiceAccount along; all others stand in one file.
const WITH_ACCOUNT: [&str; 2] = ["config/s3/node_rbac.yaml", "config/s3/controller_rbac.yaml"];

/// Longest line of a comment.
const WIDTH: usize = 125;

/// The files that are made here.
pub fn files() -> impl Iterator<Item = &'static str> {
    roles().map(|role| role.file).chain([PAGE])
}

/// Writes them.
pub fn write(out: &Path) -> Result<()> {
    let mut texts: BTreeMap<&str, String> = BTreeMap::new();
    for role in roles() {
        texts.entry(role.file).or_insert_with(|| beginning(role)).push_str(&role_and_binding(role));
    }
    let texts = texts.into_iter().map(|(file, text)| (file, format!("{HEADER}{}", text.trim_start_matches("---\n"))));
    for (file, text) in texts.chain([(PAGE, rights_page::text())]) {
        let path = out.join(file);
        std::fs::create_dir_all(path.parent().unwrap_or(out))?;
        std::fs::write(path, text)?;
    }
    Ok(())
}

fn beginning(role: &Role) -> String {
    match role.holder {
        Holder::Program(Account { namespace, name }) if WITH_ACCOUNT.contains(&role.file) => {
            format!("---\napiVersion: v1\nkind: ServiceAccount\nmetadata:\n  name: {name}\n  namespace: {namespace}\n")
        }
        _ => String::new(),
    }
}

fn role_and_binding(role: &Role) -> String {
    let kind = if role.namespace.is_some() { "Role" } else { "ClusterRole" };
    let mut text = format!("---\n{}{}", comment(role.about), head(role, kind));
    if let Holder::Aggregated(into) = role.holder {
        text += "  labels:\n";
        for name in into {
            let _ = writeln!(text, "    rbac.authorization.k8s.io/aggregate-to-{name}: \"true\"");
        }
    }
    text += "rules:\n";
    text.extend(role.rules.iter().map(rule));
    let Holder::Program(Account { namespace, name }) = role.holder else { return text };
    text += "---\n";
    text += &head(role, &format!("{kind}Binding"));
    let _ = writeln!(text, "roleRef:\n  apiGroup: rbac.authorization.k8s.io\n  kind: {kind}\n  name: {}", role.name);
    let _ = writeln!(text, "subjects:\n- kind: ServiceAccount\n  name: {name}\n  namespace: {namespace}");
    text
}

fn head(role: &Role, kind: &str) -> String {
    let mut text =
        format!("apiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}\nmetadata:\n  name: {}\n", role.name);
    if let Some(namespace) = role.namespace {
        let _ = writeln!(text, "  namespace: {namespace}");
    }
    text
}

fn rule(rule: &Rule) -> String {
    let group = if rule.group.is_empty() { "\"\"" } else { rule.group };
    let mut text: String =
        rule.verbs.iter().map(|(verbs, why)| comment(&format!("{}: {why}.", verbs.join(", ")))).collect();
    let _ = writeln!(text, "- apiGroups: [{group}]\n  resources: [{}]", rule.resource);
    if !rule.names.is_empty() {
        let _ = writeln!(text, "  resourceNames: [{}]", rule.names.join(", "));
    }
    let _ = writeln!(text, "  verbs: [{}]", rule.all_verbs().collect::<Vec<_>>().join(", "));
    text
}

/// A text as comment, in lines that fit.
fn comment(text: &str) -> String {
    let mut lines = String::from("#");
    let mut length = 1;
    for word in text.split_whitespace() {
        if length + 1 + word.len() > WIDTH {
            lines += "\n#";
            length = 1;
        }
        lines += " ";
        lines += word;
        length += 1 + word.len();
    }
    lines + "\n"
}
