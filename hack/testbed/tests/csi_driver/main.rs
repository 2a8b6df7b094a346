//! The test array's CSI driver as its users run it: the program, its sockets, its mounts. Needs root and /dev/fuse.
#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used, reason = "tests")]

mod bed;
mod controller;
mod deployment;
mod faults;
mod files;
mod nfs;
mod real_nodes;
mod writer;
