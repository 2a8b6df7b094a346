//! NFS, as far as it takes to ask a server whether it serves.

pub mod null_call;
