//! What a machine needs for real nodes.

use std::path::Path;

use super::command::PATH;
use super::error::RealNodeError;

/// Programs of the system, and the Debian package each is in.
const PROGRAMS: [(&str, &str); 9] = [
    ("runc", "runc"),
    ("iptables", "iptables"),
    ("ip", "iproute2"),
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("losetup", "util-linux"),
    ("busybox", "busybox-static"),
    ("find", "findutils"),
    ("hostname", "hostname"),
];
/// Where distributions put the CNI plugins.
const PLUGINS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];

/// Whether this machine can have real nodes.
///
/// # Errors
/// [`RealNodeError::Requirements`], which names all that is missing.
pub fn check() -> Result<(), RealNodeError> {
    let mut missing = Vec::new();
    if !cfg!(target_os = "linux") {
        missing.push("Linux".to_owned());
    }
    if !rustix::process::geteuid().is_root() {
        missing.push("root".to_owned());
    }
    let absent = PROGRAMS.iter().filter(|(program, _)| find(program).is_none());
    missing.extend(absent.map(|(program, package)| format!("the program {program} (package {package})")));
    if plugins().is_none() {
        missing.push("the CNI plugins (package containernetworking-plugins)".to_owned());
    }
    if missing.is_empty() { Ok(()) } else { Err(RealNodeError::Requirements { missing: missing.join(", ") }) }
}

/// The file of a program of the system.
pub(super) fn find(program: &str) -> Option<std::path::PathBuf> {
    PATH.split(':').map(|folder| Path::new(folder).join(program)).find(|path| path.is_file())
}

/// The folder of the CNI plugins.
pub(super) fn plugins() -> Option<&'static str> {
    PLUGINS.into_iter().find(|folder| Path::new(folder).join("bridge").is_file())
}
