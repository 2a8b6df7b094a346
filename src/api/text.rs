//! Texts for people: of errors, and such as somebody else chose, made fit to be shown.

/// A text for people: no control characters, and nothing that hides the others or turns their order.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || is_format(c) { '?' } else { c }).collect()
}

/// Characters without a shape of their own, which can turn the order of the others or hide them.
fn is_format(c: char) -> bool {
    matches!(u32::from(c),
        0xad | 0x34f | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x890..=0x891 | 0x8e2 | 0x115f..=0x1160 | 0x17b4..=0x17b5
        | 0x180b..=0x180f | 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x206f | 0x3164 | 0xfe00..=0xfe0f | 0xfeff
        | 0xffa0 | 0xfff0..=0xfffb | 0x110bd | 0x110cd | 0x13430..=0x1343f | 0x1bca0..=0x1bca3 | 0x1d173..=0x1d17a
        | 0xe0000..=0xe0fff)
}

/// The words of an error and of all its sources: an HTTP client says what it wanted, its sources say what went wrong.
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
