//! `metav1.Condition` lists as kstatus wants them.

use chrono::{DateTime, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::time;

/// What a condition says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It holds.
    True,
    /// It does not.
    False,
    /// It cannot be told.
    Unknown,
}

impl State {
    /// As the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for State {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// The condition of that type.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Whether the condition of that type is there and True.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|condition| condition.status == State::True.as_str())
}

/// Sets a condition; its transition time moves only when its status changes, so an unchanged state writes nothing.
/// `generation` is 0 for kinds without a spec.
pub fn set(
    conditions: &mut Vec<Condition>,
    type_: &str,
    state: State,
    reason: &str,
    message: impl Into<String>,
    generation: i64,
    now: DateTime<Utc>,
) {
    let mut message = message.into();
    truncate(&mut message, 1024);
    let generation = (generation > 0).then_some(generation);
    match conditions.iter_mut().find(|condition| condition.type_ == type_) {
        Some(condition) => {
            if condition.status != state.as_str() {
                condition.last_transition_time = time::to_k8s(now);
            }
            condition.status = state.as_str().into();
            condition.reason = reason.into();
            condition.message = message;
            condition.observed_generation = generation;
        }
        None => conditions.push(Condition {
            type_: type_.into(),
            status: state.as_str().into(),
            reason: reason.into(),
            message,
            observed_generation: generation,
            last_transition_time: time::to_k8s(now),
        }),
    }
}

/// Removes a condition that is present only while True.
pub fn remove(conditions: &mut Vec<Condition>, type_: &str) {
    conditions.retain(|condition| condition.type_ != type_);
}

/// Cuts a text for a status field to at most `max` bytes, at a character boundary.
pub fn truncate(text: &mut String, max: usize) {
    if text.len() > max {
        let end = (0..=max).rev().find(|index| text.is_char_boundary(*index)).unwrap_or(0);
        text.truncate(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
        let (first, later) = (DateTime::UNIX_EPOCH, DateTime::UNIX_EPOCH + chrono::TimeDelta::seconds(60));
        let mut conditions = Vec::new();
        set(&mut conditions, "Ready", State::False, "Fencing", "1 of 2", 1, first);
        set(&mut conditions, "Ready", State::False, "Releasing", "2 of 2", 1, later);
        assert_eq!(conditions[0].last_transition_time, time::to_k8s(first));
        assert_eq!(conditions[0].reason, "Releasing");
        set(&mut conditions, "Ready", State::True, "Recovered", "", 1, later);
        assert_eq!(conditions[0].last_transition_time, time::to_k8s(later));
        assert!(is_true(&conditions, "Ready"));
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let mut text = "é".repeat(10);
        truncate(&mut text, 5);
        assert_eq!(text, "éé");
    }
}
