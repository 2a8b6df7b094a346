//! A driver's words as our API takes them: reasons in CamelCase, messages printable, both bounded.

use crate::api::conditions;
use crate::api::volume::VolumeState;

/// Bytes of a reason.
const REASON_MAX: usize = 64;
/// Bytes of a message.
const MESSAGE_MAX: usize = 512;

/// The reason as the driver gives it if it is CamelCase, else made so; one of which nothing remains is named after the
/// state.
pub fn reason(given: &str, state: VolumeState) -> String {
    let words = given.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let mut camel = String::new();
    for word in words {
        let mut letters = word.chars();
        camel.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        camel.push_str(letters.as_str());
    }
    conditions::truncate(&mut camel, REASON_MAX);
    if camel.starts_with(|c: char| c.is_ascii_uppercase()) { camel } else { default_reason(state).to_owned() }
}

fn default_reason(state: VolumeState) -> &'static str {
    match state {
        VolumeState::DataLoss => "DataLoss",
        VolumeState::Inaccessible => "Inaccessible",
        VolumeState::Degraded => "Degraded",
        VolumeState::Unknown | VolumeState::Healthy => "UnknownHealthStatus",
    }
}

/// The message on one line, without what a terminal would act on.
pub fn message(given: &str) -> String {
    // Formatting characters are not control characters, but turn the text around or hide it.
    let hidden =
        |c: char| matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
    let printable: String = given.chars().map(|c| if c.is_control() || hidden(c) { ' ' } else { c }).collect();
    let mut line = printable.split_whitespace().collect::<Vec<_>>().join(" ");
    conditions::truncate(&mut line, MESSAGE_MAX);
    line
}
