//! What leaves the cluster in a bundle looks like a credential nowhere. Pure. It errs on the side of masking.

use serde_json::Value;

/// What stands in place of what was masked.
pub const MASK: &str = "(redacted)";

/// Parts of the names of fields, flags, variables and keys whose values are nobody's business.
const CREDENTIALS: [&str; 12] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "credential",
    "apikey",
    "accesskey",
    "privatekey",
    "authorization",
    "bearer",
    "kubeconfig",
];
/// Ends of names that say where a credential is, or for how long, and not what it is.
const REFERENCES: [&str; 8] = ["name", "namespace", "ref", "path", "file", "dir", "seconds", "version"];
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
                let whole = key == LAST_APPLIED || is_credential(key) || named && key == "value";
                match field {
                    Value::String(text) if whole => MASK.clone_into(text),
                    Value::Array(items) if whole || key == "args" || key == "command" => arguments(items),
                    field => object(field),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(object),
        Value::String(line) => *line = text(line),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// `--password=x`, and `--password x`.
fn arguments(items: &mut [Value]) {
    let mut follows = false;
    for item in items {
        let Value::String(argument) = item else {
            object(item);
            continue;
        };
        let is_flag = argument.starts_with('-');
        match argument.split_once('=') {
            _ if follows && !is_flag => MASK.clone_into(argument),
            Some((flag, _)) if is_credential(flag) => *argument = format!("{flag}={MASK}"),
            _ => *argument = text(argument),
        }
        follows = is_flag && !argument.contains('=') && is_credential(argument);
    }
}

/// Whether a value of that name is a credential.
fn is_credential(name: &str) -> bool {
    let plain: String = name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    CREDENTIALS.iter().any(|part| plain.contains(part)) && !REFERENCES.iter().any(|end| plain.ends_with(end))
}

/// Masks a text of lines: logs, messages, values of ConfigMaps.
pub fn text(text: &str) -> String {
    let mut masked = String::with_capacity(text.len());
    let mut in_key = false;
    for line in text.split_inclusive('\n') {
        if in_key || line.contains("-----BEGIN ") && line.contains("PRIVATE KEY") {
            if !in_key {
                masked.push_str(MASK);
                masked.push('\n');
            }
            in_key = !line.contains("-----END ");
            continue;
        }
        self::line(line, &mut masked);
    }
    masked
}

fn is_separator(c: char) -> bool {
    c.is_whitespace()
        || matches!(c, '"' | '\'' | ',' | ';' | '&' | '{' | '}' | '[' | ']' | '(' | ')' | '=' | ':' | '?' | '\\')
}

/// Word by word: what follows the name of a credential, and words that are credentials by their looks.
fn line(line: &str, masked: &mut String) {
    let mut before = Before::Nothing;
    let mut rest = line;
    while !rest.is_empty() {
        let gap = rest.find(|c| !is_separator(c)).unwrap_or(rest.len());
        let (between, words) = rest.split_at(gap);
        masked.push_str(between);
        let end = words.find(is_separator).unwrap_or(words.len());
        let (word, after) = words.split_at(end);
        let named = before == Before::Name && between.contains([':', '=']);
        let mask = !word.is_empty() && (named || before == Before::Scheme || looks_secret(word));
        // The password of a URL, `//user:password@host`.
        let of_url = before == Before::User && between == ":" && word.contains('@');
        match word.split_once('@') {
            Some((_, host)) if of_url => masked.extend([MASK, "@", host]),
            _ => masked.push_str(if mask { MASK } else { word }),
        }
        before = Before::of(word, between, mask && named);
        rest = after;
    }
}

/// What the last word was.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    /// The name of a credential.
    Name,
    /// `Bearer` or `Basic`.
    Scheme,
    /// What may be the user in a URL.
    User,
}

impl Before {
    fn of(word: &str, between: &str, was_value: bool) -> Self {
        let is = |scheme: &str| word.eq_ignore_ascii_case(scheme);
        if is("bearer") || is("basic") {
            Self::Scheme
        } else if is_credential(word) && !was_value {
            Self::Name
        } else if word.starts_with("//") && between.ends_with(':') {
            Self::User
        } else {
            Self::Nothing
        }
    }
}

/// A JSON web token, or an AWS key id.
fn looks_secret(word: &str) -> bool {
    let is_jwt = word.starts_with("eyJ") && word.len() > 30 && word.matches('.').count() == 2;
    let is_key = word.len() == 20
        && (word.starts_with("AKIA") || word.starts_with("ASIA"))
        && word.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit());
    is_jwt || is_key
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn credentials_in_objects_are_masked_and_references_to_them_are_not() {
        let mut pod = json!({
            "metadata": {
                "name": "p",
                "managedFields": [{ "manager": "m" }],
                "annotations": { LAST_APPLIED: "{\"x\":1}", "example.com/api-token": "t1", "bulkhead.dev/paused": "upgrade" },
            },
            "spec": {
                "automountServiceAccountToken": false,
                "imagePullSecrets": [{ "name": "registry" }],
                "containers": [{
                    "args": ["--listen=:8080", "--db-password=p1", "--secret-key", "p2", "--verbose", "https://u:p3@host/x"],
                    "env": [
                        { "name": "AWS_SECRET_ACCESS_KEY", "value": "p4" },
                        { "name": "LOG", "value": "info" },
                        { "name": "PASSWORD", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } },
                    ],
                    "volumeMounts": [{ "name": "token", "mountPath": "/var/run/token" }],
                }],
                "volumes": [{ "name": "tls", "secret": { "secretName": "tls", "defaultMode": 420 } }],
            },
            "data": { "config.yaml": "user: u\npassword: p5\n", "token": "p6" },
            "binaryData": { "x": "cDc=" },
        });
        object(&mut pod);
        let text = pod.to_string();
        for gone in ["p1", "p2", "p3", "p4", "p5", "p6", "cDc=", "t1", "managedFields", "{\\\"x"] {
            assert!(!text.contains(gone), "{gone} is in {text}");
        }
        for kept in [
            "registry",
            "--listen=:8080",
            "--verbose",
            "info",
            "secretKeyRef",
            "\"tls\"",
            "upgrade",
            "/var/run/token",
            "user: u",
        ] {
            assert!(text.contains(kept), "{kept} is not in {text}");
        }
    }

    #[test]
    fn credentials_in_lines_are_masked() {
        let jwt = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJl";
        let got = format!("got {jwt}");
        let cases = [
            ("login password=hunter2 ok", "login password=(redacted) ok"),
            (r#"{"token":"abc","n":1}"#, r#"{"token":"(redacted)","n":1}"#),
            ("Authorization: Bearer abc", "Authorization: (redacted) (redacted)"),
            (
                "GET https://u:hunter2@host:8443/x?api_key=abc",
                "GET https://u:(redacted)@host:8443/x?api_key=(redacted)",
            ),
            (got.as_str(), "got (redacted)"),
            ("key AKIAIOSFODNN7EXAMPLE refused", "key (redacted) refused"),
            ("volume pvc-1: StillPublished: listed still", "volume pvc-1: StillPublished: listed still"),
            ("the token has expired", "the token has expired"),
            ("secretName: tls", "secretName: tls"),
            ("a\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nb", "a\n(redacted)\nb"),
        ];
        for (line, masked) in cases {
            assert_eq!(text(line), masked);
        }
    }

    #[test]
    fn a_text_without_credentials_stays_as_it_is() {
        let log = "2026-11-23T02:00:00Z  INFO reconcile{queue=\"node_fence\" key=node-1}: released grace_seconds=0\n\n\tat (x)\n";
        assert_eq!(text(log), log);
    }
}
