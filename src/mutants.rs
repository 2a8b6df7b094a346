//! Mutants: each takes one safety measure out of the decisions, so that the tests of the simulator can show that they
//! would notice. A switch is thrown in code, by a test, for its own thread. Without the feature `mutants`, which only
//! the simulator asks for, every switch is the constant `false`: nothing of this is left in a shipped program, and
//! `src/bin` does not build otherwise.

/// A safety measure that is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutant {
    /// Nobody is asked to fence anything; pods go at once.
    NoFence,
    /// The driver's OK is taken for the proof; nothing is read after it.
    NoReadBack,
    /// Pods go as soon as their fence has begun.
    DeleteBeforeFence,
    /// The out-of-service taint is set, and kept, whatever else is on the node.
    NoOutOfServiceGuard,
    /// Whom the driver knows under the node's name now is cut off, not whom the volume was published to.
    WrongNodeId,
    /// A proof counts for ever.
    StaleProof,
    /// What the watches have brought is believed: nothing is read again before what cannot be undone.
    NoLiveReread,
    /// Kubernetes' word that a kubelet is silent counts though its Lease may be renewed as ever.
    LeaseIgnored,
    /// The brakes count only the nodes that this very pass acts on.
    BrakeCountedPerPass,
    /// Nobody minds a person's hold, a pause, or a mode.
    HoldIgnored,
    /// Leadership is asked for when a pass begins, not at its writes.
    LeaseCheckedOnce,
    /// Nobody minds I/O in progress.
    IoIgnored,
    /// The budget of crash loops counts pods, not those who make them.
    BudgetPerPod,
    /// Programs that fail are moved whatever the mode of their policies.
    CrashLoopModeIgnored,
    /// Paths that are lost for everyone are taken for lost paths.
    ArrayOutageIgnored,
    /// A proof of power counts though the node was back since.
    PowerBelieved,
    /// Whoever cuts off a whole node is asked to for the sake of some volumes.
    WholeNodeForVolumes,
    /// A heartbeat that is lost counts, whatever the peers say.
    PeersUnasked,
    /// A heartbeat that is lost counts beside a kubelet that is heard.
    HeartbeatAlone,
    /// A fencer's word that a node has no power counts though the node has denied it.
    ContradictionIgnored,
    /// A machine whose Node was deleted is let in, though it may write on.
    DeletedNodeLetIn,
    /// A network fence counts as soon as it was asked for.
    FenceUnawaited,
    /// It counts as lifted as soon as that was asked for.
    LiftUnawaited,
    /// A network fence that is made after the end of its incident is nobody's.
    LateFenceLeft,
    /// What somebody has written into a network fence is taken for what it was made to shut out.
    EditBelieved,
    /// An address is shut out that another node has by now.
    ClaimIgnored,
    /// Only the boot that failed first counts; one in which the node failed again is taken for a reboot.
    SecondBootForgotten,
    /// The boot in which a Node was deleted, with pods left, is not on record.
    DeletedBootForgotten,
    /// A network fence in any cluster of a storage counts for volumes that are not attached.
    ClusterIgnored,
    /// What an external fencer did is given back though what it cut off has power, and processes of pods that went by force.
    ProcessesLetIn,
    /// What an external fencer has begun and not proved is given back though another machine has the name of the first.
    BegunGivenBack,
    /// What somebody said of a machine lets it in, whichever failure that was of.
    FormerWordBelieved,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Self; 32] = [
        Self::NoFence,
        Self::NoReadBack,
        Self::DeleteBeforeFence,
        Self::NoOutOfServiceGuard,
        Self::WrongNodeId,
        Self::StaleProof,
        Self::NoLiveReread,
        Self::LeaseIgnored,
        Self::BrakeCountedPerPass,
        Self::HoldIgnored,
        Self::LeaseCheckedOnce,
        Self::IoIgnored,
        Self::BudgetPerPod,
        Self::CrashLoopModeIgnored,
        Self::ArrayOutageIgnored,
        Self::PowerBelieved,
        Self::WholeNodeForVolumes,
        Self::PeersUnasked,
        Self::HeartbeatAlone,
        Self::ContradictionIgnored,
        Self::DeletedNodeLetIn,
        Self::FenceUnawaited,
        Self::LiftUnawaited,
        Self::LateFenceLeft,
        Self::EditBelieved,
        Self::ClaimIgnored,
        Self::SecondBootForgotten,
        Self::DeletedBootForgotten,
        Self::ClusterIgnored,
        Self::ProcessesLetIn,
        Self::BegunGivenBack,
        Self::FormerWordBelieved,
    ];
}

/// Whether the switches are there at all.
pub const ARE_BUILT_IN: bool = cfg!(feature = "mutants");

#[cfg(feature = "mutants")]
mod switch {
    use std::cell::Cell;

    use super::Mutant;

    thread_local! {
        static THROWN: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// The switch is thrown until this is dropped.
    #[derive(Debug)]
    #[must_use = "the mutant is gone as soon as this is dropped"]
    pub struct Thrown(Option<Mutant>);

    impl Drop for Thrown {
        fn drop(&mut self) {
            THROWN.set(self.0);
        }
    }

    /// Throws a switch for this thread, instead of any that is thrown already.
    pub fn throw(mutant: impl Into<Option<Mutant>>) -> Thrown {
        Thrown(THROWN.replace(mutant.into()))
    }

    /// Whether that switch is thrown for this thread.
    pub fn is_on(mutant: Mutant) -> bool {
        THROWN.get() == Some(mutant)
    }
}

#[cfg(feature = "mutants")]
pub use switch::{Thrown, is_on, throw};

/// Whether that switch is thrown: there is none.
#[cfg(not(feature = "mutants"))]
pub const fn is_on(_: Mutant) -> bool {
    false
}

#[cfg(all(test, feature = "mutants"))]
mod tests {
    use super::*;

    #[test]
    fn a_switch_is_thrown_for_its_own_thread_and_as_long_as_it_is_held() {
        assert!(Mutant::ALL.into_iter().all(|mutant| !is_on(mutant)));
        let thrown = throw(Mutant::StaleProof);
        assert!(is_on(Mutant::StaleProof) && !is_on(Mutant::NoFence));
        assert!(!std::thread::spawn(|| is_on(Mutant::StaleProof)).join().expect("a thread"));
        drop(thrown);
        assert!(!is_on(Mutant::StaleProof));
    }
}
