//! What the node plugin of a CSI driver says of its volumes, in either generation of the specification. Which one it
//! speaks its capabilities tell, never its version.

use std::time::Duration;

use super::super::driver::{Failure, Plugin};
use super::settle::Look;
use crate::api::hysteresis::{Sample, Trouble};
use crate::api::volume::{Check, VolumeState};
use crate::csi::v1::volume_health::VolumeHealthEntry;
use crate::csi::v1::{VolumeCondition, VolumeHealthErrorType};

/// A volume to ask about.
#[derive(Clone, Debug)]
pub struct Question {
    /// PersistentVolume.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// CSI handle.
    pub handle: String,
    /// Where it is published, or else staged.
    pub path: String,
    /// Where it is staged; empty if it is not.
    pub staging: String,
    /// Uids of the pods that use it.
    pub pods: Vec<String>,
}

/// How a plugin can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// By NodeGetVolumeHealth: CSI 1.13 and later.
    Health,
    /// By the VolumeCondition of NodeGetVolumeStats: CSI 1.3 to 1.12.
    Condition,
}

/// What the plugin says of a volume.
pub async fn ask(plugin: &Plugin, by: Generation, question: &Question, deadline: Duration) -> Look {
    let answer = match by {
        Generation::Health => {
            let Question { handle, path, staging, .. } = question;
            plugin.volume_health(handle, path, staging, deadline).await.map(|entries| of_entries(&entries))
        }
        Generation::Condition => {
            let Question { handle, path, staging, .. } = question;
            plugin.volume_condition(handle, path, staging, deadline).await.map(of_condition)
        }
    };
    let sample = answer.unwrap_or_else(|failure| failed(&failure));
    let pods = if matches!(sample, Sample::Good | Sample::Unknown) { Vec::new() } else { question.pods.clone() };
    Look { check: Check::ControllerHealth, sample, pods }
}

/// A call that the plugin does not have tells nothing, neither good nor bad; every other failure is silence.
fn failed(Failure { code, message }: &Failure) -> Sample<String> {
    if code == "Unimplemented" {
        return Sample::Unknown;
    }
    let message = format!("the driver's node plugin answers {code}: {message}");
    Sample::NoAnswer(Trouble { state: VolumeState::Inaccessible, reason: "BackendUnreachable".to_owned(), message })
}

fn of_condition(condition: Option<VolumeCondition>) -> Sample<String> {
    match condition {
        // A plugin that has the capability must tell.
        None => Sample::Unknown,
        Some(VolumeCondition { abnormal: false, .. }) => Sample::Good,
        // All that such a driver can say of the health of a volume: new users are kept off it.
        Some(VolumeCondition { message, .. }) => {
            Sample::Bad(Trouble { state: VolumeState::Inaccessible, reason: ABNORMAL.to_owned(), message })
        }
    }
}

/// The cause where a driver names none.
const ABNORMAL: &str = "VolumeConditionAbnormal";

/// The worst of what is told, with all of it in words. A status that we do not know is none to act upon, and not good.
fn of_entries(entries: &[VolumeHealthEntry]) -> Sample<String> {
    let state = |entry: &VolumeHealthEntry| match VolumeHealthErrorType::try_from(entry.status) {
        Ok(VolumeHealthErrorType::Degraded) => VolumeState::Degraded,
        Ok(VolumeHealthErrorType::Inaccessible) => VolumeState::Inaccessible,
        Ok(VolumeHealthErrorType::DataLoss) => VolumeState::DataLoss,
        _ => VolumeState::Unknown,
    };
    let mut entries: Vec<_> = entries.iter().map(|entry| (state(entry), entry)).collect();
    // In an order of their own: a driver may tell the same in another one each time.
    entries.sort_by_key(|(state, entry)| (std::cmp::Reverse(*state), &entry.reason));
    let Some((state, worst)) = entries.first() else { return Sample::Good };
    let reason = if is_reason(&worst.reason) { worst.reason.clone() } else { ABNORMAL.to_owned() };
    let shown = |(state, entry): &(VolumeState, &VolumeHealthEntry)| match state {
        VolumeState::Unknown => format!("{} (status {}): {}", entry.reason, entry.status, entry.message),
        _ => format!("{}: {}", entry.reason, entry.message),
    };
    let message = entries.iter().map(shown).collect::<Vec<_>>().join("; ");
    Sample::Bad(Trouble { state: *state, reason, message })
}

/// Whether a driver's word is a reason as the API wants it.
fn is_reason(text: &str) -> bool {
    let mut letters = text.chars();
    letters.next().is_some_and(|first| first.is_ascii_uppercase())
        && text.len() <= 64
        && letters.all(|letter| letter.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(status: i32, reason: &str) -> VolumeHealthEntry {
        VolumeHealthEntry { status, reason: reason.into(), message: "words".into() }
    }

    fn told(entries: &[VolumeHealthEntry]) -> (VolumeState, String, String) {
        match of_entries(entries) {
            Sample::Bad(Trouble { state, reason, message }) => (state, reason, message),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_worst_names_the_cause_and_all_is_told() {
        let [degraded, inaccessible, loss] = [
            entry(VolumeHealthErrorType::Degraded as i32, "RaidDegraded"),
            entry(VolumeHealthErrorType::Inaccessible as i32, "PathLost"),
            entry(VolumeHealthErrorType::DataLoss as i32, "BlocksLost"),
        ];
        assert_eq!(of_entries(&[]), Sample::Good);
        let both = told(&[degraded.clone(), inaccessible.clone()]);
        assert_eq!(both, (VolumeState::Inaccessible, "PathLost".into(), "PathLost: words; RaidDegraded: words".into()));
        assert_eq!(both, told(&[inaccessible.clone(), degraded.clone()]), "the order says nothing");
        assert_eq!(told(&[inaccessible, loss]).0, VolumeState::DataLoss);
        assert_eq!(told(&[degraded]).0, VolumeState::Degraded);
    }

    #[test]
    fn what_is_not_known_is_not_healthy_and_hides_nothing() {
        let unknown = entry(17, "MultipathLoss");
        let alone = told(std::slice::from_ref(&unknown));
        assert_eq!(alone, (VolumeState::Unknown, "MultipathLoss".into(), "MultipathLoss (status 17): words".into()));
        let degraded = entry(VolumeHealthErrorType::Degraded as i32, "RaidDegraded");
        assert_eq!(told(&[unknown, degraded]).0, VolumeState::Degraded);
    }

    #[test]
    fn a_word_that_is_no_reason_is_told_in_the_message_only() {
        for word in ["", "raid degraded", "lower", "Ä", &"X".repeat(65)] {
            assert_eq!(told(&[entry(1, word)]).1, ABNORMAL, "{word}");
        }
    }

    #[test]
    fn an_error_is_no_answer_and_a_missing_call_tells_nothing() {
        let failure = |code: &str| Failure { code: code.into(), message: "words".into() };
        assert!(matches!(failed(&failure("DeadlineExceeded")), Sample::NoAnswer(_)));
        assert!(matches!(failed(&failure("NotFound")), Sample::NoAnswer(_)));
        assert_eq!(failed(&failure("Unimplemented")), Sample::Unknown);
    }

    #[test]
    fn a_condition_is_good_bad_or_not_told() {
        let condition = |abnormal| Some(VolumeCondition { abnormal, message: "words".into() });
        assert_eq!(of_condition(condition(false)), Sample::Good);
        let abnormal =
            Trouble { state: VolumeState::Inaccessible, reason: ABNORMAL.to_owned(), message: "words".to_owned() };
        assert_eq!(of_condition(condition(true)), Sample::Bad(abnormal));
        assert_eq!(of_condition(None), Sample::Unknown);
    }
}
