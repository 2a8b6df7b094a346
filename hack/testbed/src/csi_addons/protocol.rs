//! The calls by which csi-addons speaks to a driver, as far as the array has them. `generated/` is made by `xtask generate` from
//! `proto/` and never edited.

/// Which part of a driver it is, and what can be asked of it: package `identity`.
#[allow(missing_docs, clippy::all, clippy::pedantic, unused_qualifications)]
#[rustfmt::skip]
pub mod identity {
    include!("generated/identity.rs");
}

/// Whom the storage shuts out: package `fence`.
#[allow(missing_docs, clippy::all, clippy::pedantic, unused_qualifications)]
#[rustfmt::skip]
pub mod fence {
    include!("generated/fence.rs");
}
