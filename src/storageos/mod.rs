//! Control planes that speak the StorageOS API, version 2: what they report of their volumes, and what they are told.

pub mod client;
pub mod error;
pub mod metrics;
pub mod providers;
mod reported;
pub mod session;
mod transport;
pub mod wire;

pub use client::Client;
pub use error::CallError;
pub use session::{Credentials, Settings};
