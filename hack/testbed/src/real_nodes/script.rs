//! Faults as lines of text, for the command and for scripts that play an outage: `node-1 cut-control`,
//! `5s node-1 freeze kubelet`, `1m node-1 heal cut-control`, `node-2 reboot`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::error::RealNodeError;
use super::faults::Fault;
use super::node::RealNode;

/// What is done to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Break something.
    Fault(Fault),
    /// Mend something.
    Heal(Fault),
    /// Mend all that is broken.
    HealAll,
    /// Power off and on.
    Reboot,
}

impl Action {
    /// Does it.
    ///
    /// # Errors
    /// See [`RealNodeError`].
    pub async fn apply(self, node: &RealNode) -> Result<(), RealNodeError> {
        match self {
            Self::Fault(fault) => node.fault(fault).await,
            Self::Heal(fault) => node.heal(fault).await,
            Self::HealAll => node.heal_all().await,
            Self::Reboot => node.reboot().await,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(fault) => write!(f, "{fault}"),
            Self::Heal(fault) => write!(f, "heal {fault}"),
            Self::HealAll => write!(f, "heal"),
            Self::Reboot => write!(f, "reboot"),
        }
    }
}

impl FromStr for Action {
    type Err = RealNodeError;

    fn from_str(text: &str) -> Result<Self, RealNodeError> {
        let text = text.trim();
        match (text, text.strip_prefix("heal ")) {
            ("reboot", _) => Ok(Self::Reboot),
            ("heal", _) => Ok(Self::HealAll),
            (_, Some(fault)) => Ok(Self::Heal(fault.parse()?)),
            (fault, None) => Ok(Self::Fault(fault.parse()?)),
        }
    }
}

/// A line of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// How long after the start of the script; without a time, at once after the line before.
    pub at: Option<Duration>,
    /// The node's name.
    pub node: String,
    /// What is done to it.
    pub action: Action,
}

/// Without its time, as it is carried out.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.node, self.action)
    }
}

/// Reads a script: one step per line; empty lines and those that begin with `#` say nothing.
///
/// # Errors
/// With the first line that is not understood.
pub fn parse(text: &str) -> Result<Vec<Step>, RealNodeError> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(str::parse).collect()
}

impl FromStr for Step {
    type Err = RealNodeError;

    fn from_str(line: &str) -> Result<Self, RealNodeError> {
        let not_understood = || RealNodeError::UnknownStep(line.to_owned());
        let (first, rest) = line.trim().split_once(char::is_whitespace).ok_or_else(not_understood)?;
        let (at, node, action) = match duration(first) {
            Some(at) => {
                let (node, action) = rest.trim().split_once(char::is_whitespace).ok_or_else(not_understood)?;
                (Some(at), node, action)
            }
            None => (None, first, rest),
        };
        Ok(Self { at, node: node.to_owned(), action: action.parse()? })
    }
}

/// `500ms`, `5s` or `2m`.
fn duration(word: &str) -> Option<Duration> {
    let digits = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().ok()?;
    match word.strip_prefix(digits)? {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "m" => number.checked_mul(60).map(Duration::from_secs),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::faults::NodeProgram;
    use super::*;

    #[test]
    fn a_script_is_read_line_by_line() {
        let steps = parse("# an outage\nnode-1 cut-control\n\n  5s node-1 freeze kubelet\n2m node-2 reboot\n").unwrap();
        let times: Vec<_> = steps.iter().map(|step| (step.at, step.node.as_str(), step.action)).collect();
        let frozen = Action::Fault(Fault::Freeze(NodeProgram::Kubelet));
        assert_eq!(
            times,
            [
                (None, "node-1", Action::Fault(Fault::CutControl)),
                (Some(Duration::from_secs(5)), "node-1", frozen),
                (Some(Duration::from_secs(120)), "node-2", Action::Reboot),
            ]
        );
        assert_eq!("node-1 heal".parse::<Step>().unwrap().action, Action::HealAll);
        let healed = Action::Heal(Fault::CutStorage);
        let step: Step = "500ms node-1 heal cut-storage".parse().unwrap();
        assert_eq!(step.action, healed);
        assert_eq!(step.to_string(), "node-1 heal cut-storage");
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for text in ["node-1", "5s node-1", "node-1 explode", "node-1 heal everyone"] {
            let error = parse(text).unwrap_err().to_string();
            let last = text.rsplit(' ').next().unwrap();
            assert!(error.contains(last), "{error}");
        }
    }
}
