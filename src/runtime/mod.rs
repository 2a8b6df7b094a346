//! What every controller stands on: caches of the cluster, work queues, leadership, guarded writes,
//! Events, health and telemetry. Nothing here knows a custom resource or makes a decision about one;
//! of ours it may use only `api` and `error`.

pub mod client;
pub mod clock;
pub mod election;
pub mod events;
mod feed;
mod guarded;
pub mod health;
pub mod informer;
pub mod installation;
pub mod leader;
pub(crate) mod lock;
pub mod logs;
mod packing;
pub mod patch;
mod places;
pub mod program;
pub(crate) mod progress;
pub mod protobuf;
pub mod queue;
mod slots;
pub mod store;
pub mod telemetry;
pub mod writer;

#[cfg(test)]
pub(crate) mod fake_api;

/// A random number in `0.0..1.0`, for jitter and nothing that must be secret.
pub fn random_unit() -> f64 {
    // The upper 53 bits are exactly what an f64 can hold.
    (random_bits() >> 11) as f64 / (1u64 << 53) as f64
}

/// 64 random bits, from the seeds that the standard library draws for hash maps.
fn random_bits() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(0u8)
}
