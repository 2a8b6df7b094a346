//! What the reasons mean, and what to do: the words of docs/on-call.md, so that nobody needs the page at night. A reason
//! that is not here is told as it is.

use std::collections::BTreeSet;

/// What a reason of a NodeFence means, and what to do about it.
pub struct Words {
    /// What it means.
    pub means: &'static str,
    /// What to do.
    pub next: &'static str,
}

const NOTHING: &str = "nothing: it goes on by itself";

/// A reason, what it means, and what to do.
const OF_INCIDENT: [(&str, &str, &str); 32] = [
    ("Tainting", "label and taint are being set", NOTHING),
    ("Fencing", "volumes are being cut off; pods whose volumes are all proved go meanwhile", NOTHING),
    ("Releasing", "pods whose volumes are proved are being deleted", NOTHING),
    ("Detaching", "attachments are being removed, and watched for one re-sync of the attacher", NOTHING),
    (
        "AwaitingNode",
        "everything has moved; the node is away",
        "repair or reboot the node, or delete its Node object if it never comes back",
    ),
    (
        "AwaitingStorage",
        "the node is there, and it is not proved that it reaches its storage: no pod may land on it until then",
        "mend the node's path to the array, and see that the driver's sidecar runs; where nobody can prove the path, set \
         triggers.storagePathLoss: Ignore in each policy of the plan until the node is given back",
    ),
    ("Cleaning", "the node is back, and its agent removes what is left of the moved pods", NOTHING),
    ("Recovered", "it is over; only the record is kept, for 7 days", "nothing"),
    (
        "FencerMissing",
        "no sidecar speaks for the driver, so nobody can cut its volumes off",
        "run bulkhead-csi-sidecar beside the driver's controller; kubectl bulkhead doctor says what is missing",
    ),
    (
        "FencerSilent",
        "the fencer (the driver's sidecar, or the external fencer that the message names) does not answer",
        "look at the sidecar's pod and log: does it run and lead, is the driver's socket there? External: docs/fencers.md",
    ),
    (
        "Unimplemented",
        "the driver cannot take a volume away from a node, or whom the row names has refused for good",
        "power the node off and on; or, once you know that it is off, release its pods by hand (docs/on-call.md). For the next incident: another \
         method for this driver, with a weaker proof: spec.fencing.drivers",
    ),
    ("DriverUnavailable", "the driver does not answer its sidecar", "look at the driver and the array"),
    (
        "ProofTooWeak",
        "a volume is not proved to be cut off, so the pods that use it stay",
        "look at the row's message and at the array: if it lists the node, the node still has access",
    ),
    (
        "FenceTimeout",
        "the driver gave no answer within callTimeout",
        "look at the array: it is asked again by itself. A larger spec.fencing.callTimeout counts from the next incident",
    ),
    (
        "UnknownVolumeKind",
        "a volume is of a kind that no method covers",
        "see whether its message names a method that would, for the next time; release the pod by hand once you know that the node is \
         off (docs/on-call.md)",
    ),
    (
        "LocalVolume",
        "the pod's data is on the dead node",
        "bring the node back, or give the data up: delete its claim if it has one, then release the pod by hand (docs/on-call.md)",
    ),
    (
        "SharerHeld",
        "a pod that stays uses the same volume, or must run beside it (affinityGroups: Together): the message names it",
        "bring the node back; or, once you know that it is off, release both by hand (docs/on-call.md). For the next incident: select that pod too, \
         or, where it shares the volume, sharers: CleanAll",
    ),
    (
        "IdentityAmbiguous",
        "it is not certain whom to cut off, so nothing is done",
        "find out on the array which host has the volume, unpublish there, then release the pod by hand (docs/on-call.md)",
    ),
    (
        "AwaitingApproval",
        "the plan waits for a person",
        "read it with kubectl bulkhead explain node, then kubectl bulkhead approve node",
    ),
    (
        "ApprovalOutdated",
        "the plan has grown since it was approved",
        "read it again, then kubectl bulkhead approve node",
    ),
    ("HeldByPerson", "a person holds it: spec.hold has the reason", "kubectl bulkhead unhold node when it may go on"),
    ("DryRun", "a policy of mode DryRun records what it would do", "nothing; set mode: Enforce if it should act"),
    (
        "Paused",
        "the policy or the node is paused by annotation bulkhead.dev/paused",
        "kubectl bulkhead resume policy or node when it may go on",
    ),
    (
        "MaintenanceWindow",
        "a maintenance window of the policy is open",
        "wait for its end, or take it out of the policy",
    ),
    (
        "CorrelatedOutage",
        "too many nodes are suspected at once: the observer or the network is at fault",
        "look at the network and the API server; it goes on by itself when the brake lets go",
    ),
    ("Cooldown", "too many nodes were suspected a moment ago", "wait, or lower spec.limits.cooldown"),
    (
        "BudgetExhausted",
        "spec.limits.maxNodes or ceiling is used up within window",
        "wait, or raise it; look why nodes that are back are not clean: their incidents count",
    ),
    (
        "ArrayOutage",
        "the array is in trouble for too many nodes at once",
        "look at the array; it goes on by itself when the brake lets go",
    ),
    (
        "IOInProgress",
        "the array says that the node still writes",
        "look at the node: it may be alive behind a broken network",
    ),
    (
        "MachineMayRun",
        "a network fence or an external fencer keeps a machine out that may run, and its Node was deleted or another one may have its \
         name: that one is not failed over",
        "see that the machine that failed is off, gone or rebooted; then the command in the NodeFence's condition NodeClean, or, \
         for another machine that failed, in the Event FenceHeld of its Node",
    ),
    (
        "AnotherMachine",
        "another machine may have the node's name, with its pods: the network fence of the first proves nothing of it",
        "nothing if it becomes Ready; should it be off for good, release the pods by hand (docs/on-call.md)",
    ),
    (
        "CleanupBlocked",
        "the node is back, and something may be left on it of the moved pods",
        "condition NodeClean says what: an agent that is missing, or what the agent cannot remove. Rebooting the node clears it: the taint then goes \
         by itself",
    ),
];

/// Why a whole incident waits: the reason of its condition Ready, Held or Stalled.
pub fn of_incident(reason: &str) -> Option<Words> {
    OF_INCIDENT.iter().find(|(known, ..)| *known == reason).map(|&(_, means, next)| Words { means, next })
}

/// Why a pod goes or stays.
pub fn of_pod(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "NodeFailure" => "its node failed",
        "VolumeTaint" => "its volume is tainted there",
        "StoragePathLoss" => "its node lost the path to its storage",
        "NoPolicy" => "no policy selects it for a failed node",
        "DryRun" => "its policy only records",
        "DaemonSet" => "it belongs to its node",
        "StaticPod" => "it belongs to its node",
        "Completed" => "it has ended",
        "BarePod" => "no controller would create it again",
        "NoVolumes" => "nothing proves that it stopped",
        "UnselectedSharer" => "it shares a volume with a pod that goes, and no policy selects it",
        "MigrationTarget" => "a virtual machine is moving there",
        "ReleasedByOthers" => "somebody else deleted it, without our proof",
        "NodeReturned" => "its node came back",
        "TaintGone" => "the taint of its volume went",
        other => of_incident(other)?.means,
    })
}

/// What is not known because these nodes could not be read; `None` without any.
pub fn unread(nodes: &BTreeSet<String>) -> Option<String> {
    let names: Vec<_> = nodes.iter().map(String::as_str).collect();
    let told = || {
        format!(
            "nodes that could not be read take no place in a budget, here and with the controller: {}",
            names.join(", ")
        )
    };
    (!nodes.is_empty()).then(told)
}

/// `reason`, and what it means if that is known.
pub fn pod(reason: &str) -> String {
    of_pod(reason).map_or_else(|| reason.to_owned(), |words| format!("{reason}: {words}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who is on call reads the page, or asks the plugin.
    #[test]
    fn the_page_for_who_is_on_call_and_the_plugin_know_the_same_reasons() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/on-call.md")).unwrap();
        let section = page.split("## An incident waits").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
        let first_cells = section.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
        let named: BTreeSet<_> = first_cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
        let is_reason = |name: &&str| !["REASON", "recovery.warnAfter"].contains(name);
        let documented: BTreeSet<_> = named.into_iter().filter(is_reason).collect();
        // Nothing waits any more; and what `simulate` alone tells of a driver.
        let is_for_the_page = |reason: &&str| !["Recovered", "DriverUnavailable"].contains(reason);
        assert_eq!(documented, OF_INCIDENT.iter().map(|(reason, ..)| *reason).filter(is_for_the_page).collect());
    }

    #[test]
    fn a_reason_without_words_is_told_as_it_is() {
        assert_eq!(pod("SomethingNew"), "SomethingNew");
        assert_eq!(pod("BarePod"), "BarePod: no controller would create it again");
        assert!(pod("LocalVolume").starts_with("LocalVolume: the pod's data"));
    }

    #[test]
    fn who_is_silent_may_be_an_external_fencer() {
        let words = of_incident("FencerSilent").unwrap();
        assert!(words.means.contains("sidecar") && words.means.contains("external fencer"), "{}", words.means);
        assert!(words.next.contains("docs/fencers.md"), "{}", words.next);
    }

    #[test]
    fn nodes_that_could_not_be_read_are_told_by_name() {
        assert_eq!(unread(&BTreeSet::new()), None);
        let told = unread(&["n1".to_owned(), "n2".to_owned()].into()).unwrap();
        assert!(told.starts_with("nodes that could not be read") && told.ends_with("n1, n2"), "{told}");
    }

    #[test]
    fn who_is_held_may_share_a_volume_or_belong_beside_the_other() {
        let held = of_pod("SharerHeld").unwrap();
        assert!(held.contains("uses the same volume") && held.contains("must run beside it"), "{held}");
        let words = of_incident("SharerHeld").unwrap();
        assert_eq!(words.means, held);
        assert!(words.next.contains("CleanAll"), "{}", words.next);
    }
}
