//! Control planes that speak the StorageOS API: what they report of their volumes, and what they are told.

pub mod providers;
