//! The decisions of Bulkhead (`resiliency_policy`, `node_fence`, `csi_sidecar`: their own `decide`, `Effect` and memory)
//! in a deterministic world in virtual time: API server, machines, arrays, and Kubernetes' own parts with their real
//! rules and periods. A seed is a schedule; after every step the invariants are judged.
#![allow(
    clippy::indexing_slicing,
    clippy::expect_used,
    reason = "a tool for tests: an index that is wrong is a defect of the simulator, and must stop it"
)]

pub mod api;
pub mod array;
pub mod batch;
mod begin;
mod canonical;
pub mod chance;
pub mod counts;
pub mod exhaustive;
pub mod faults;
pub mod mutants;
pub mod oracle;
pub mod others;
pub mod people;
pub mod process;
pub mod run;
pub mod schedule;
pub mod shape;
mod shapes;
pub mod shrink;
mod stories;
pub mod time;
pub mod world;

pub use batch::Batch;
pub use run::{Outcome, play, run};
pub use shrink::{shrink, tell};

#[cfg(test)]
mod invariant_tests;
#[cfg(test)]
mod network_tests;
#[cfg(test)]
mod power_tests;
#[cfg(test)]
mod span_tests;
#[cfg(test)]
mod tests;
