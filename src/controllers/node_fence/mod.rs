//! Carries one node's incident through: taint, fence, read back, release, detach, clean.

pub mod decide;
pub mod guard;
pub mod pods;
pub mod requests;
pub mod rows;
pub mod status;
