//! A secret that is written in any of the usual forms never comes out, not even a word of it.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{object, text};

const KEYS: [&str; 12] = [
    "password",
    "db-password",
    "DB_PASS",
    "pwd",
    "dsn",
    "apiKey",
    "api_key",
    "passphrase",
    "signature",
    "clientSecret",
    "AUTH_TOKEN",
    "private-key",
];

/// How a name and its value are written, and what may be between the words of the value there.
type Form = (fn(&str, &str) -> String, &'static [&'static str]);

/// What the kubelet writes before each line, by its node's clock.
const STAMPS: [&str; 4] =
    ["", "2026-11-23T02:00:00.123456789Z ", "2026-11-23T03:00:00.123456789+01:00 ", "2026-11-22T22:30:00-03:30 "];

const ANY: &[&str] = &[" ", ",", ";", ": ", "=", "&", "@", "/", "\\", "\"", "'", "\n", "}", " | ", "$", "?"];
const ONE_LINE: &[&str] = &[" ", ",", ";", ": ", "=", "&", "@", "/", "\\", "\"", "'", "}", " | ", "$", "?"];
const PLAIN: &[&str] = &[" ", ",", ";", "=", "&", "@", "/", "}", "$", "?"];
const WORD: &[&str] = &[",", ";", "=", "&", "@", "/", "}", "$", "?", ":", "'", "(", "%"];
const BEARER: &[&str] = &[".", "_", "-", "~", "+", "/", "="];

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect()
}

const FORMS: [Form; 33] = [
    (|key, value| json!({ "a": 1, key: value, "z": "y" }).to_string(), ANY),
    (|key, value| serde_json::to_string_pretty(&json!({ "a": 1, key: value, "z": "y" })).unwrap(), ANY),
    (|key, value| json!({ "body": json!({ key: value }).to_string() }).to_string(), ANY),
    (|key, value| json!({ "body": json!({ "body": json!({ key: value }).to_string() }).to_string() }).to_string(), ANY),
    (|key, value| json!({ key: [value, { "x": value }] }).to_string(), ANY),
    (|key, value| json!({ "env": [{ "name": key, "value": value }] }).to_string(), ANY),
    (|key, value| json!({ "args": [format!("--{key}"), value] }).to_string(), ANY),
    (|key, value| json!({ "message": format!("cannot log in: {key}: {value}"), "n": 1 }).to_string(), PLAIN),
    (|key, value| format!("INFO reconcile{{key=n}}: cannot log in: {key}: {value}\n"), ONE_LINE),
    (|key, value| format!("{key}: {}\nuser: u\n", quoted(value)), ANY),
    (|key, value| format!("{key}: '{}'\nuser: u\n", value.replace('\'', "''").replace('\\', "/")), ANY),
    (|key, value| format!("  {key}: {value}\n  user: u\n"), ONE_LINE),
    (|key, value| format!("- {key}: |\n{}- user: u\n", indented(value)), ANY),
    (|key, value| format!("x:\n  {key}: >-\n{}  user: u\n", indented(value)), ANY),
    (|key, value| format!("{key}:\n{}user: u\n", indented(value)), ANY),
    (|key, value| format!("\"{key}\": [\n{},\n\"b\"\n],\n\"n\": 1\n", quoted(value)), ANY),
    (|key, value| format!("{key}: [\n{value},\nb]\nuser: u\n"), PLAIN),
    (|key, value| format!("cannot log in: {key}: {{x:\n{value}, y: [z]}}\nuser: u\n"), BEARER),
    (|key, value| format!("{key}:\n- {value}\n- b\n"), ONE_LINE),
    (|key, value| format!("- name: {key}\n  value: {value}\n"), ONE_LINE),
    (|key, value| format!("args:\n- --{key}\n- {value}\n"), ONE_LINE),
    (|key, value| format!("{key}={value}\nUSER=u\n"), ONE_LINE),
    (|key, value| format!("level=info {key}={value} n=1\n"), WORD),
    (|key, value| format!("level=info {key}={} n=1\n", quoted(value)), ANY),
    (|key, value| format!("run --{key} {value} --verbose\n"), WORD),
    (|key, value| format!("run --{key} {} --verbose --{key}={}\n", quoted(value), quoted(value)), ANY),
    (|_, value| format!("GET https://user:{value}@host/path 200\n"), WORD),
    (|_, value| format!("open root:{value}@tcp(db:3306)/x: refused\n"), WORD),
    (|_, value| format!("curl -u user:{value} https://host/x\n"), WORD),
    (|_, value| format!("curl --user {} https://host/x\n", quoted(&format!("user:{value}"))), ANY),
    (|_, value| json!({ "args": ["-u", format!("user:{value}")] }).to_string(), ANY),
    (|_, value| format!("requirepass {value}\nport 6379\n"), WORD),
    (|_, value| format!("> Authorization: Bearer {value}\nbearer {value} refused\n"), BEARER),
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_secret_never_comes_out(
        form in 0..FORMS.len(),
        key in prop::sample::select(&KEYS[..]),
        words in prop::collection::vec("[A-Za-z0-9]{10}", 1..5),
        joiners in prop::collection::vec(any::<prop::sample::Index>(), 4),
        stamp in prop::sample::select(&STAMPS[..]),
    ) {
        let (write, between) = FORMS[form];
        let mut value = words[0].clone();
        for (word, joiner) in words[1..].iter().zip(&joiners) {
            value.push_str(between[joiner.index(between.len())]);
            value.push_str(word);
        }
        let mut written = format!("before\n{}\nafter\n", write(key, &value));
        written = written.lines().map(|line| format!("{stamp}{line}\n")).collect();
        let masked = text(&written);
        for word in &words {
            prop_assert!(!masked.contains(word), "{word} of\n{written}\nis in\n{masked}");
        }
        prop_assert!(masked.contains("before") && masked.contains("after"), "{masked}");
    }

    #[test]
    fn nor_does_it_from_an_object(
        key in prop::sample::select(&KEYS[..]),
        words in prop::collection::vec("[A-Za-z0-9]{10}", 1..5),
        joiners in prop::collection::vec(any::<prop::sample::Index>(), 4),
    ) {
        let mut value = words[0].clone();
        for (word, joiner) in words[1..].iter().zip(&joiners) {
            value.push_str(ANY[joiner.index(ANY.len())]);
            value.push_str(word);
        }
        let mut written = json!({
            "a": { key: value }, "b": { key: [value] }, "c": { key: { "x": value } },
            "env": [{ "name": key, "value": value }],
            "command": ["curl", "-u", format!("user:{value}")],
            "args": [format!("--{key}"), value, format!("--{key}={value}")],
            "data": { "config.json": json!({ key: value }).to_string() },
        });
        object(&mut written);
        let masked = written.to_string();
        for word in &words {
            prop_assert!(!masked.contains(word), "{word} is in {masked}");
        }
    }

    #[test]
    fn any_text_can_be_masked(written in "(\\PC|\n|password|:|=|\"|'|-){0,200}") {
        let masked = text(&written);
        prop_assert!(masked.len() <= written.len() + 10 * (written.len() + 1));
    }
}
