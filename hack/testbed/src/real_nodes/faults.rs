//! The faults of a real node, by name.

use std::fmt;
use std::str::FromStr;

use super::error::RealNodeError;

/// A program of a node that can be frozen or killed alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeProgram {
    /// Runs containers. Those that run go on without it.
    Containerd,
    /// Runs pods.
    Kubelet,
    /// Sends what goes to Services to pods.
    KubeProxy,
}

impl NodeProgram {
    /// In the order in which they are started.
    pub const ALL: [Self; 3] = [Self::Containerd, Self::Kubelet, Self::KubeProxy];

    /// The name of the program's file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Containerd => "containerd",
            Self::Kubelet => "kubelet",
            Self::KubeProxy => "kube-proxy",
        }
    }
}

/// What can be wrong with a node. Several may be at once, and each is healed alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The control link's cable is pulled: no API server, no other node. **Containers go on running.**
    CutControl,
    /// The storage link's cable is pulled: no array.
    CutStorage,
    /// A hundredth of the packets of the control link is lost, either way.
    LossyControl,
    /// The same of the storage link.
    LossyStorage,
    /// A program is stopped (SIGSTOP); it goes on when healed.
    Freeze(NodeProgram),
    /// A program is killed and stays away; it is started when healed.
    Kill(NodeProgram),
    /// Every process, those of the containers too, is stopped, as on a suspended machine.
    FreezeEverything,
    /// Power off: no process and no mount is left. Healed, the node boots.
    KillEverything,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CutControl => write!(f, "cut-control"),
            Self::CutStorage => write!(f, "cut-storage"),
            Self::LossyControl => write!(f, "lossy-control"),
            Self::LossyStorage => write!(f, "lossy-storage"),
            Self::Freeze(program) => write!(f, "freeze {}", program.name()),
            Self::Kill(program) => write!(f, "kill {}", program.name()),
            Self::FreezeEverything => write!(f, "freeze everything"),
            Self::KillEverything => write!(f, "kill everything"),
        }
    }
}

impl FromStr for Fault {
    type Err = RealNodeError;

    fn from_str(text: &str) -> Result<Self, RealNodeError> {
        let programs = NodeProgram::ALL.into_iter().flat_map(|program| [Self::Freeze(program), Self::Kill(program)]);
        let words: Vec<&str> = text.split_whitespace().collect();
        let links = [Self::CutControl, Self::CutStorage, Self::LossyControl, Self::LossyStorage];
        links
            .into_iter()
            .chain([Self::FreezeEverything, Self::KillEverything])
            .chain(programs)
            .find(|fault| fault.to_string() == words.join(" "))
            .ok_or_else(|| RealNodeError::UnknownFault(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_as_they_are_written() {
        for text in ["cut-control", "lossy-storage", "freeze kubelet", "kill containerd", "kill everything"] {
            assert_eq!(text.parse::<Fault>().unwrap().to_string(), text);
        }
        assert_eq!("kill   kube-proxy".parse::<Fault>().unwrap(), Fault::Kill(NodeProgram::KubeProxy));
        let error = "kill everybody".parse::<Fault>().unwrap_err().to_string();
        assert!(error.contains("kill everybody") && error.contains("cut-storage"), "{error}");
    }
}
