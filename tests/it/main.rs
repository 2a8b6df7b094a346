//! One binary for all tests that need a control plane.

mod alerts;
mod api;
mod chart;
mod configuration;
mod crash;
mod dashboards;
mod deaths;
mod docs;
mod events;
mod failover;
mod gitops;
mod kubectl;
mod metrics;
mod printed;
mod requirements;
mod rest;
mod s3;
mod shared;
mod shared_volume;
mod shared_volume_provider;
mod storage_path;
mod threat_model;
mod tree;
mod volume_health;

use bulkhead_testbed::binaries::Binaries;
use bulkhead_testbed::here;

/// Tests at once: they mostly wait for the cluster, not for a processor.
const THREADS: usize = 6;

fn main() {
    let mut arguments = libtest_mimic::Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(THREADS));
    let mut trials: Vec<_> = [
        crash::trials(),
        requirements::trials(),
        threat_model::trials(),
        tree::trials(),
        alerts::trials(),
        dashboards::trials(),
        docs::trials(),
        metrics::trials(),
        events::trials(),
        chart::trials(),
        configuration::trials(),
        api::trials(),
        failover::trials(),
        gitops::trials(),
        storage_path::trials(),
        kubectl::trials(),
        volume_health::trials(),
        s3::trials(),
        shared_volume::trials(),
        shared_volume_provider::trials(),
    ]
    .into_iter()
    .flatten()
    .collect();
    if let Some(lacking) = here::lacking(arguments.list, || Binaries::ensure(None)) {
        trials = trials.into_iter().map(|trial| here::unless(Some(&lacking), trial)).collect();
    }
    libtest_mimic::run(&arguments, trials).exit();
}
