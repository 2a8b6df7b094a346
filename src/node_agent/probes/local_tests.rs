use super::super::testing::{disk, first, local, mounts, on_disk, reasons, there};
use super::super::{Expected, ExpectedKind};
use super::*;

const MOUNTED: &str = "1 8:1 / /v rw - ext4 /dev/sda1 rw";

fn at_v(lines: &[&str]) -> HostView {
    let mut view = mounts(lines);
    view.paths.insert("/v".into(), there("/v", What::Folder));
    view
}

#[test]
fn what_is_at_the_path() {
    let volume = first(&at_v(&[MOUNTED]), local());
    let block = Subject { block: true, ..local() };
    let folder = || there("/v", What::Folder);
    for (subject, looked, expected) in [
        (&volume, Some(folder()), Sample::Good),
        (&volume, None, Sample::Unknown),
        (&volume, Some(Looked::Unclear("EACCES".into())), Sample::Unknown),
        (&volume, Some(there("/elsewhere", What::Folder)), Sample::Unknown),
        (&block, Some(there("/v", What::Block(disk()))), Sample::Good),
        (&block, Some(there("/dev/sda1", What::Block(disk()))), Sample::Good),
    ] {
        let mut view = mounts(&[MOUNTED]);
        view.paths.extend(looked.clone().map(|looked| ("/v".to_owned(), looked)));
        assert_eq!(look(&view, subject)[0].sample, expected, "{looked:?}");
    }
    for (subject, looked) in [
        (&volume, Looked::Missing),
        (&volume, there("/v", What::Other)),
        (&volume, there("/v", What::Block(disk()))),
        (&block, folder()),
    ] {
        let mut view = mounts(&[MOUNTED]);
        view.paths.insert("/v".into(), looked);
        assert_eq!(reasons(&look(&view, subject)), [(Check::PathExists, "PathMissing")]);
    }
}

#[test]
fn what_is_mounted_there() {
    let folder = "1 8:0 /data /v rw - ext4 /dev/root rw";
    let memory = "1 0:40 / /v rw - tmpfs disk-1 rw";
    for (was, now, expected) in [
        (vec![MOUNTED], vec![MOUNTED], vec![]),
        (vec![MOUNTED], vec![], vec![(Check::MountPoint, "NotMountPoint")]),
        (vec![], vec![], vec![]),
        (vec![], vec![MOUNTED], vec![(Check::Overmount, "Shadowed")]),
        (vec![MOUNTED], vec![MOUNTED, "2 0:40 / /v rw - tmpfs t rw"], vec![(Check::Overmount, "Shadowed")]),
        // The same once more.
        (vec![MOUNTED], vec![MOUNTED, "2 8:1 / /v rw - ext4 /dev/sda1 rw"], vec![]),
        // Below what is seen, or beside it.
        (vec![MOUNTED], vec![MOUNTED, "2 0:40 / /v/inside rw - tmpfs t rw"], vec![]),
        (vec![MOUNTED], vec![MOUNTED, "1 0:40 / /vv rw - tmpfs t rw"], vec![]),
        (vec![MOUNTED], vec!["1 8:2 / /v rw - ext4 /dev/sda2 rw"], vec![(Check::MountIdentity, "DeviceReplaced")]),
        (vec![MOUNTED], vec!["1 8:1 /other /v rw - ext4 /dev/sda1 rw"], vec![(Check::MountIdentity, "DeviceReplaced")]),
        (vec![folder], vec![folder], vec![]),
        (
            vec![folder],
            vec!["1 8:0 /data//deleted /v rw - ext4 /dev/root rw"],
            vec![(Check::PathExists, "PathMissing")],
        ),
        // Numbers without a device are new with each mount.
        (vec![memory], vec!["1 0:77 / /v rw - tmpfs disk-1 rw"], vec![]),
        (vec![memory], vec!["1 0:77 / /v rw - tmpfs disk-2 rw"], vec![(Check::MountIdentity, "DeviceReplaced")]),
        // Another of the same kind over it.
        (vec![memory], vec![memory, "2 0:77 / /v rw - tmpfs disk-1 rw"], vec![(Check::Overmount, "Shadowed")]),
        (vec![memory], vec![MOUNTED], vec![(Check::MountIdentity, "DeviceReplaced")]),
    ] {
        let volume = first(&at_v(&was), local());
        assert_eq!(reasons(&look(&at_v(&now), &volume)), expected, "{was:?} {now:?}");
    }
}

#[test]
fn a_mount_above_hides_what_the_table_still_has() {
    let below = "1 8:1 / /mnt/v rw - ext4 /dev/sda1 rw";
    let view = |lines: &[&str]| {
        let mut view = mounts(lines);
        view.paths.insert("/mnt/v".into(), there("/mnt/v", What::Folder));
        view
    };
    let volume =
        first(&view(&[below]), Subject { kind: super::super::Kind::Local { path: "/mnt/v/".into() }, ..local() });
    assert!(volume.baseline.as_ref().is_some_and(|first| first.mount_point));
    let hidden = view(&[below, "1 0:40 / /mnt rw - tmpfs t rw"]);
    assert_eq!(reasons(&look(&hidden, &volume)), [(Check::Overmount, "Shadowed")]);
    assert!(hidden.mounted_at("/mnt/v").is_none() && hidden.all_at("/mnt/v").count() == 1);
}

#[test]
fn the_file_system_is_known_by_its_uuid() {
    let with = |mut view: HostView, uuid: &str| {
        let device = view.mount_of("/v").unwrap().device;
        view.uuids.insert(device, uuid.into());
        view
    };
    let volume = first(&with(on_disk("rw", "rw"), "a"), local());
    let moved = at_v(&["1 8:17 / /v rw - ext4 /dev/sdb1 rw"]);
    for (view, expected) in [
        (with(on_disk("rw", "rw"), "a"), 0),
        (with(on_disk("rw", "rw"), "b"), 1),
        (with(moved.clone(), "a"), 0),
        (with(moved.clone(), "b"), 1),
        (moved, 1),
    ] {
        assert_eq!(reasons(&look(&view, &volume)).len(), expected, "{view:?}");
    }
}

#[test]
fn a_device_with_a_number_that_was_used_before_is_another() {
    let sequence = |number| {
        let mut view = on_disk("rw", "rw");
        view.devices.get_mut(&disk()).unwrap().as_mut().unwrap().disk_sequence = Some(number);
        view
    };
    let volume = first(&sequence(1), local());
    assert_eq!(reasons(&look(&sequence(1), &volume)), []);
    assert_eq!(reasons(&look(&sequence(2), &volume)), [(Check::MountIdentity, "DeviceReplaced")]);
}

#[test]
fn a_table_that_could_not_be_read_says_nothing() {
    let volume = first(&at_v(&[MOUNTED]), local());
    let mut view = at_v(&[]);
    view.mounts = None;
    assert_eq!(reasons(&super::super::passive(&view, &volume)), []);
    assert_eq!(reasons(&super::super::passive(&HostView::default(), &volume)), []);
}

#[test]
fn a_look_that_is_newer_than_the_table_is_not_contradicted() {
    let volume = first(&at_v(&[MOUNTED]), local());
    let mut view = mounts(&[]);
    let looked = There { canonical: "/v".into(), what: What::Folder, mount_root: Some(true) };
    view.paths.insert("/v".into(), Looked::There(looked));
    assert_eq!(reasons(&look(&view, &volume)), []);
}

#[test]
fn mounts_in_pods_are_expected_too() {
    let pods = Expected { path: "/pods/u".into(), kind: ExpectedKind::Target { pod: "u".into() } };
    let volume = first(&at_v(&[MOUNTED]), Subject { expected: vec![pods], ..local() });
    assert_eq!(reasons(&look(&at_v(&[MOUNTED]), &volume)), [(Check::MountPoint, "NotMounted")]);
    let both = at_v(&[MOUNTED, "1 8:1 / /pods/u rw - ext4 /dev/sda1 rw"]);
    assert_eq!(reasons(&look(&both, &volume)), []);
}

#[test]
fn a_table_that_is_a_circle_ends() {
    let view = mounts(&["3 0:1 / /v rw - a b rw", "2 0:2 / /v rw - a b rw"]);
    assert_eq!(view.mount_of("/v").map(|mount| mount.id), Some(1));
    let own = mounts(&["2 0:1 / /v rw - a b rw"]);
    assert!(own.mount_of("/v").is_some());
}
