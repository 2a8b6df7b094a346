//! The CSI Controller service of the S3 driver: asked by the conformance suite of CSI and by the real external-provisioner
//! on a real control plane; its buckets are on a real S3 server. One test at a time: there is one driver and one S3.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test says what it expects by panicking; clippy knows only those of the standard harness for tests"
)]

mod bed;
mod claims;
mod cleanup;
mod failures;
mod sanity;
mod secrets;
mod tls;

use std::sync::{Arc, OnceLock};

use bulkhead_testbed::binaries::{Binaries, Program};
use bulkhead_testbed::here;
use libtest_mimic::Trial;

use bed::Bed;

/// The programs that are needed besides those of every testbed.
const PROGRAMS: [Program; 2] = [Program::CsiProvisioner, Program::CsiSanity];

fn main() {
    let mut arguments = libtest_mimic::Arguments::from_args();
    arguments.test_threads = Some(1);
    let shared: Arc<OnceLock<Bed>> = Arc::default();
    let trial = |name: &str, test: fn(&Bed)| {
        let shared = shared.clone();
        Trial::test(name, move || {
            let bed = shared.get_or_init(Bed::new);
            bed.as_at_first();
            test(bed);
            Ok(())
        })
    };
    let mut trials = vec![
        trial("csi_sanity_passes", sanity::csi_sanity_passes),
        trial("a_claim_becomes_a_bucket_and_takes_it_along", claims::a_claim_becomes_a_bucket_and_takes_it_along),
        trial("a_class_brings_its_own_credentials", claims::a_class_brings_its_own_credentials),
        trial("a_bucket_with_data_outlives_its_volume", claims::a_bucket_with_data_outlives_its_volume),
        trial("a_bucket_with_data_holds_its_volume_if_asked", claims::a_bucket_with_data_holds_its_volume_if_asked),
        trial("a_claim_for_one_node_is_told_what_to_ask_for", claims::a_claim_for_one_node_is_told_what_to_ask_for),
        trial("s3_goes_down_and_comes_back", failures::s3_goes_down_and_comes_back),
        trial("a_restart_in_the_middle_makes_no_second_bucket", failures::a_restart_makes_no_second_bucket),
        trial("wrong_credentials_are_told_on_the_claim", failures::wrong_credentials_are_told_on_the_claim),
        trial("the_most_verbose_log_shows_no_key", secrets::the_most_verbose_log_shows_no_key),
        trial("the_sweep_is_told_in_the_log", cleanup::the_sweep_is_told_in_the_log),
        trial("a_custom_authority_is_trusted_and_no_other", tls::a_custom_authority_is_trusted_and_no_other),
        trial("without_authorities_a_call_says_what_to_do", tls::without_authorities_a_call_says_what_to_do),
    ];
    let ensured = || Binaries::ensure(None).and_then(|_| Binaries::ensure_all(None, &PROGRAMS));
    if let Some(lacking) = here::lacking(arguments.list, ensured) {
        trials = trials.into_iter().map(|trial| here::unless(Some(&lacking), trial)).collect();
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    // Before the process exits, which would drop nothing and leave the programs to themselves.
    drop(shared);
    conclusion.exit();
}
