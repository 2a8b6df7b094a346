//! NFS mounts: that they show the export that is meant, and that the kernel does not wait for its server. Pure.

use super::super::mounts::mountinfo::Mount;
use super::{HostView, Kind, Seen, Subject, inaccessible, shown, silent};
use crate::api::hysteresis::Sample;
use crate::api::volume::Check;

/// Looks at what is mounted by NFS.
pub fn look(view: &HostView, subject: &Subject) -> Vec<Seen> {
    let mut seen = Vec::new();
    if let Kind::NFS { server, path } = &subject.kind {
        let other = view.mounts_of(subject).map(|(mount, _)| mount).find(|mount| !shows(mount, server, path));
        let identity = match other {
            Some(mount) => inaccessible("DeviceReplaced", format!("{} is mounted, not {server}:{path}", shown(mount))),
            None => Sample::Good,
        };
        if view.mounts.is_some() && !subject.expected.is_empty() {
            seen.push(Seen::of(subject, Check::MountIdentity, identity));
        }
    }
    if let Some(mount) = view.main_mount(subject).filter(|mount| is_nfs(mount)) {
        let waits = |name: &&String| mount.source.starts_with(&format!("{name}:")) || has_address(mount, name);
        seen.extend(view.silent_servers.iter().find(waits).map(|name| {
            let message = format!("the kernel waits for the NFS server {name}");
            Seen::of(subject, Check::NFS, silent("BackendUnreachable", message))
        }));
    }
    seen
}

/// Whether a mount is one of NFS.
pub fn is_nfs(mount: &Mount) -> bool {
    matches!(mount.fs_type.as_str(), "nfs" | "nfs4")
}

/// Whether a mount is of this export. The same server has several names: only the path can be compared, where the kernel
/// shows it.
fn shows(mount: &Mount, server: &str, path: &str) -> bool {
    let Some((_, exported)) = mount.source.rsplit_once(':') else { return false };
    let trimmed = |path: &str| path.trim_end_matches('/').to_owned();
    is_nfs(mount) && (trimmed(exported) == trimmed(path) || mount.source.starts_with(&format!("{server}:")))
}

fn has_address(mount: &Mount, name: &str) -> bool {
    mount.super_options.iter().any(|option| option.strip_prefix("addr=") == Some(name))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{local, mounts, reasons};
    use super::super::{Expected, ExpectedKind};
    use super::*;

    fn told(line: &str, silent: &str) -> Vec<(Check, &'static str)> {
        let mut view = mounts(&[line]);
        view.silent_servers.extend(Some(silent.to_owned()).filter(|name| !name.is_empty()));
        let kind = Kind::NFS { server: "files".into(), path: "/export/a/".into() };
        let expected = Expected { path: "/pods/u".into(), kind: ExpectedKind::Target { pod: "u".into() } };
        reasons(&look(&view, &Subject { kind, expected: vec![expected], ..local() }))
    }

    #[test]
    fn the_export_that_is_meant_from_a_server_that_answers() {
        let at = |fs_type: &str, source: &str| format!("1 0:40 / /pods/u rw - {fs_type} {source} rw,addr=10.0.0.1");
        let (replaced, silent) = ((Check::MountIdentity, "DeviceReplaced"), (Check::NFS, "BackendUnreachable"));
        for (line, server, expected) in [
            (at("nfs4", "files:/export/a"), "", vec![]),
            (at("nfs", "10.0.0.1:/export/a"), "", vec![]),
            (at("nfs4", "[fd00::1]:/export/a"), "", vec![]),
            (at("nfs4", "other:/export/b"), "", vec![replaced]),
            (at("tmpfs", "files:/export/a"), "", vec![replaced]),
            (at("nfs4", "files:/export/a"), "files", vec![silent]),
            (at("nfs4", "files:/export/a"), "10.0.0.1", vec![silent]),
            (at("nfs4", "files:/export/a"), "10.0.0.2", vec![]),
            (at("nfs4", "files:/export/a"), "file", vec![]),
        ] {
            assert_eq!(told(&line, server), expected, "{line} {server}");
        }
    }
}
