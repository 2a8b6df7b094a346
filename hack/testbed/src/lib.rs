//! A real Kubernetes control plane on one machine, with simulated or real nodes and a test array, for tests, the
//! demo and benchmarks.
//!
//! The upstream programs are unmodified; [`Testbed`] starts them and nothing outlives it.

mod components;
mod error;
mod folder;
mod helm;
mod lock;
mod pod_watch;
mod ports;

pub mod apply;
pub mod array;
pub mod audit;
pub mod binaries;
pub mod cluster;
pub mod control_plane;
pub mod csi_addons;
pub mod csi_driver;
pub mod fault_proxy;
pub mod flux;
pub mod ganesha;
pub mod git_server;
pub mod here;
pub mod image;
pub mod images;
pub mod journal;
pub mod kubeconfig;
pub mod ledger;
pub mod mount_nodes;
pub mod mount_s3;
pub mod nfs_client;
pub mod nfs_server;
pub mod nodes;
pub mod options;
pub mod oracle;
pub mod pages;
pub mod pki;
pub mod process;
pub mod real_nodes;
pub mod redfish;
pub mod s3_server;
pub mod storageos;
pub mod usage;

pub use control_plane::Testbed;
pub use error::TestbedError;
pub use options::{AttacherOptions, Component, KwokNodes, KwokOptions, TestbedOptions};
pub use pki::Identity;
