//! Small views for the tests of this folder.

use crate::api::hysteresis::Sample;
use crate::api::volume::Check;

use super::super::mounts::mountinfo::{Device, parse};
use super::view::{BlockDevice, Looked, There, What};
use super::{HostView, Kind, Seen, Subject, baseline};

/// The device that the volume at `/v` is on.
pub fn disk() -> Device {
    Device { major: 8, minor: 1 }
}

/// A node with these mounts beside its root.
pub fn mounts(lines: &[&str]) -> HostView {
    let mut text = "1 0 8:0 / / rw - ext4 /dev/root rw\n".to_owned();
    for (line, id) in lines.iter().zip(2..) {
        text += &format!("{id} {line}\n");
    }
    HostView { mounts: Some(parse(text.as_bytes()).unwrap()), ..HostView::default() }
}

/// A node with a file system at `/v`, with these options of the mount and of the file system.
pub fn on_disk(options: &str, super_options: &str) -> HostView {
    let mut view = mounts(&[&format!("1 8:1 / /v {options} - ext4 /dev/sda1 {super_options}")]);
    let facts = BlockDevice { name: "sda1".into(), disk: "sda".into(), sectors: 2048, ..BlockDevice::default() };
    view.devices.insert(disk(), Some(facts));
    view.paths.insert("/v".into(), there("/v", What::Folder));
    view
}

/// Something at a path.
pub fn there(canonical: &str, what: What) -> Looked {
    Looked::There(There { canonical: canonical.into(), what, mount_root: None })
}

/// The volume at `/v`, not yet seen.
pub fn local() -> Subject {
    Subject {
        name: "pv-1".into(),
        kind: Kind::Local { path: "/v".into() },
        block: false,
        fs_type: String::new(),
        read_only: false,
        capacity: 0,
        expected: Vec::new(),
        device: None,
        baseline: None,
    }
}

/// The same, first seen like this.
pub fn first(view: &HostView, subject: Subject) -> Subject {
    Subject { baseline: baseline(view, &subject), ..subject }
}

/// What is wrong.
pub fn reasons(seen: &[Seen]) -> Vec<(Check, &'static str)> {
    let reason = |one: &Seen| match &one.sample {
        Sample::Bad(trouble) | Sample::NoAnswer(trouble) => Some((one.check, trouble.reason)),
        Sample::Good | Sample::Unknown => None,
    };
    seen.iter().filter_map(reason).collect()
}
