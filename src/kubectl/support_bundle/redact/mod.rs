//! What leaves the cluster in a bundle looks like a credential nowhere. Pure. It errs on the side of masking: where a value ends
//! that has no quotes can only be guessed.

mod lines;
mod names;
#[cfg(test)]
mod property;
#[cfg(test)]
mod tests;
mod values;

use serde_json::Value;

pub use lines::text;
use names::{is_credential, is_login, is_reference};

/// What stands in place of what was masked.
pub const MASK: &str = "(redacted)";

/// Holds a whole object, as somebody applied it.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Masks an object of the API, and takes out what nobody reads.
pub fn object(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("managedFields");
            fields.remove("binaryData");
            // An environment variable.
            let named = fields.get("name").and_then(Value::as_str).is_some_and(is_credential);
            for (key, field) in fields.iter_mut() {
                if key == LAST_APPLIED || is_credential(key) || named && key == "value" {
                    whole(field);
                } else if let (Value::Array(items), "args" | "command") = (&mut *field, key.as_str()) {
                    arguments(items);
                } else {
                    object(field);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(object),
        Value::String(line) => *line = text(line),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Masks all of a field that is named like a credential, but what refers to one: the volume `secret` names a Secret.
fn whole(value: &mut Value) {
    match value {
        Value::String(_) | Value::Number(_) => *value = MASK.into(),
        Value::Array(items) => items.iter_mut().for_each(whole),
        Value::Object(fields) => {
            let named = |(key, field): &(&String, &mut Value)| !(is_reference(key) || field.is_number());
            fields.iter_mut().filter(named).for_each(|(_, field)| whole(field));
        }
        Value::Null | Value::Bool(_) => {}
    }
}

/// `--password=x`, `--password x`, and `-u user:x`.
fn arguments(items: &mut [Value]) {
    let (mut follows, mut login) = (false, false);
    for item in items {
        let Value::String(argument) = item else {
            object(item);
            continue;
        };
        if std::mem::replace(&mut login, is_login(argument)) && argument.contains(':') {
            MASK.clone_into(argument);
            continue;
        }
        let is_flag = argument.starts_with('-');
        let (name, has_value) = argument.split_once('=').map_or((argument.as_str(), false), |(name, _)| (name, true));
        let is_credential = !name.contains(char::is_whitespace) && is_credential(name);
        let is_name = is_flag && is_credential && !has_value;
        *argument = match (is_credential && has_value && (is_flag || !follows), follows && !is_name) {
            (true, _) => format!("{name}={MASK}"),
            (false, true) => MASK.to_owned(),
            (false, false) => text(argument),
        };
        follows = is_name;
    }
}
