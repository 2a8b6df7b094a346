//! Every parser of outside input, as a function that takes any bytes: it does not panic, and what it accepts is within its
//! bounds and is written as it was read.

mod kubernetes;
mod network;
mod node;

#[cfg(test)]
mod tests;

use std::sync::LazyLock;

/// Where the program learns which target it is.
pub const VARIABLE: &str = "BULKHEAD_FUZZ_TARGET";

/// A parser.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, and that of its folder of seeds.
    pub name: &'static str,
    /// Panics if the parser does not do what it should.
    pub feed: fn(&[u8]),
}

/// All of them.
pub const TARGETS: [Target; 19] = [
    Target { name: "mountinfo", feed: node::mountinfo },
    Target { name: "vol_data", feed: node::vol_data },
    Target { name: "kubelet_paths", feed: node::kubelet_paths },
    Target { name: "process_files", feed: node::process_files },
    Target { name: "kernel_log", feed: node::kernel_log },
    Target { name: "superblock", feed: node::superblock },
    Target { name: "host_addresses", feed: node::host_addresses },
    Target { name: "socket_message", feed: network::socket_message },
    Target { name: "heartbeat", feed: network::heartbeat },
    Target { name: "heartbeat_replicas", feed: network::heartbeat_replicas },
    Target { name: "provider_json", feed: network::provider_json },
    Target { name: "nfs_reply", feed: network::nfs_reply },
    Target { name: "s3_error", feed: network::s3_error },
    Target { name: "registration_frame", feed: network::registration_frame },
    Target { name: "volume_request", feed: kubernetes::volume_request },
    Target { name: "mount_options", feed: kubernetes::mount_options },
    Target { name: "spec_strings", feed: kubernetes::spec_strings },
    Target { name: "protobuf", feed: kubernetes::protobuf },
    Target { name: "writer_log", feed: kubernetes::writer_log },
];

/// The target of a name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.into_iter().find(|target| target.name == name)
}

/// What is said to somebody who names none.
pub fn unknown(name: &str) -> String {
    let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
    format!("{name:?} is no target: name one of {}", names.join(", "))
}

/// Feeds the target that the environment names.
pub fn chosen(data: &[u8]) {
    static CHOSEN: LazyLock<Target> = LazyLock::new(|| {
        let name = std::env::var(VARIABLE).unwrap_or_default();
        target(&name).unwrap_or_else(|| {
            eprintln!("{VARIABLE}: {}", unknown(&name));
            std::process::exit(2)
        })
    });
    (CHOSEN.feed)(data);
}
