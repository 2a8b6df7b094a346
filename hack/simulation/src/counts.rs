//! What happened, in numbers: so that a simulator that tests nothing is noticed.

macro_rules! counts {
    ($($(#[$doc:meta])* $field:ident,)*) => {
        /// What happened, in numbers.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Counts {
            /// All numbers with their names.
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field),)*]
            }

            /// Adds those of another world.
            pub fn add(&mut self, other: &Self) {
                $(self.$field += other.$field;)*
            }

            /// 1 for everything that happened at all: to count worlds instead of events.
            pub fn happened(&self) -> Self {
                Self { $($field: u64::from(self.$field > 0),)* }
            }
        }
    };
}

counts! {
    /// Things that happened.
    steps,
    /// Passes of the programs under test.
    passes,
    /// Writes and calls that the programs under test sent.
    writes,
    /// NodeFences opened.
    opened,
    /// Of these, for the sake of volumes.
    opened_for_volumes,
    /// Incidents of a lost path that were opened.
    opened_for_paths,
    /// Nodes that Kubernetes gave up though their kubelets renewed their Leases.
    given_up_alive,
    /// Nodes declared failed before Kubernetes gave them up.
    declared_early,
    /// Nodes declared failed beside a fencer's word that they have no power.
    declared_off,
    /// Such words, by passes, that the node had denied.
    contradicted,
    /// Pods that stayed though their volumes were tainted.
    unmoved,
    /// Passes that found volumes of too many nodes tainted.
    array_outages,
    /// Questions whether nodes are doing I/O.
    asked_about_io,
    /// Of these, to which the answer was that they are.
    vetoed,
    /// Pods moved by us since their program failed.
    rescheduled,
    /// Taints set for plugins that were down.
    plugins_tainted,
    /// Later episodes begun.
    reopened,
    /// Plans that grew.
    grown,
    /// Incidents that came to Recovered.
    recovered,
    /// Nodes given back on their agent's word, without a reboot.
    cleaned,
    /// Unpublish calls sent.
    unpublishes,
    /// Proofs of class Verified.
    verified,
    /// Proofs of class Acknowledged.
    acknowledged,
    /// Proofs of class PowerOff.
    powered_off,
    /// Of these, those that were taken back as somebody gave the node its power.
    power_restored,
    /// Answers of a fencer that leaves machines their power: they are cut off.
    kept_out,
    /// Machines that it let in again.
    given_back,
    /// NetworkFences made by us.
    shut_out,
    /// Nodes let in again, by a driver's sidecar.
    let_in,
    /// Nodes that got another address while they were well.
    renumbered,
    /// Machines that run on while another one has their name.
    replaced,
    /// Machines of an earlier boot that somebody said to be off.
    said_to_be_off,
    /// Fences lifted that were made when their incident was over.
    left_behind,
    /// Writes of NetworkFences that were refused: somebody was there before.
    network_refused,
    /// Fences and lifts of csi-addons that failed, or that it gave up.
    network_failures,
    /// Of these, and of those that nobody waited for any more, those that were carried out later.
    network_late,
    /// Pods deleted with grace 0 by us.
    released,
    /// Of these, pods that had been asked to end.
    ended,
    /// Deletions of pods that had become unready since the live look.
    marked_meanwhile,
    /// Pods that went by force, by us, though a volume of theirs is not attached.
    released_unattached,
    /// Pods deleted gracefully by us, as their node was back.
    released_gracefully,
    /// Pods marked Failed by us.
    failed_pods,
    /// Attachments deleted by us.
    detached,
    /// Attachments deleted by us as the fence call.
    detached_as_fence,
    /// Out-of-service taints set.
    out_of_service,
    /// Of these, on nodes that Kubernetes called Ready.
    out_of_service_early,
    /// Incidents undone before anything was sent.
    undone,
    /// Incidents held by an outage.
    held_for_outage,
    /// Nodes held back by a brake.
    restrained,
    /// Volumes fenced again.
    refenced,
    /// Lies caught: OK, but still listed.
    still_published,
    /// Lists that were no proof.
    not_listed,
    /// Records of volumes that are not attached, and of another cluster than their NetworkFenceClass.
    of_another_cluster,
    /// Records of such volumes for which the node is switched off last.
    power_waits,
    /// Pods that others removed without proof.
    released_by_others,
    /// Deletions dropped because their proof had grown too old.
    too_late,
    /// Attachments that admission denied.
    attachments_denied,
    /// Volumes that an attacher published again.
    republished,
    /// Crashes.
    crashes,
    /// Terms begun.
    terms,
    /// Terms that ended because the Lease was not renewed.
    terms_lost,
    /// Moments when two processes believed that they led.
    leader_overlaps,
    /// Watches that listed again.
    relists,
    /// Writes that never arrived.
    lost_writes,
    /// Writes that arrived after their sender gave up.
    late_writes,
    /// Answers that never arrived.
    lost_answers,
    /// Writes refused with a conflict.
    conflicts,
    /// Faults.
    faults,
}
