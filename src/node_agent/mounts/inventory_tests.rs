use super::super::layout::Wanted;
use super::super::mountinfo::parse;
use super::super::vol_data::VolData;
use super::*;

const ROOT: &str = "/var/lib/kubelet";
const TARGET: &str = "/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~csi/pvc-1/mount";

fn wanted() -> Wanted {
    Wanted {
        name: "pvc-1".into(),
        driver: "csi.example.com".into(),
        handle: "handle-1".into(),
        proved: true,
        pods: vec!["u-1".into()],
        others: None,
        known: Vec::new(),
    }
}

fn record(handle: &str) -> Record {
    Record::Of(VolData { driver: "csi.example.com".into(), handle: handle.into() })
}

fn folder(name: &str, record: Record) -> Folder {
    Folder { pod: "u-1".into(), name: name.into(), block: false, record }
}

/// Facts with these mounts: device, root, path.
fn facts(mounts: &[(&str, &str, &str)]) -> Facts {
    let lines = mounts
        .iter()
        .enumerate()
        .map(|(id, (device, root, path))| format!("{} 1 {device} {root} {path} rw - ext4 source rw\n", 100 + id));
    let text: String = std::iter::once("1 1 8:1 / / rw - ext4 source rw\n".to_owned()).chain(lines).collect();
    Facts {
        root: ROOT.into(),
        mounts: parse(text.as_bytes()).unwrap(),
        folders: vec![folder("pvc-1", record("handle-1"))],
        ..Facts::default()
    }
}

fn elsewhere(remains: &Remains) -> Vec<&str> {
    remains.elsewhere.iter().map(|elsewhere| elsewhere.mount.path.as_str()).collect()
}

#[test]
fn a_folder_is_the_volumes_by_its_name_or_by_its_record() {
    for (name, said, targets, unknown) in [
        ("pvc-1", record("handle-1"), 1, None),
        ("pvc-1", Record::Absent, 1, None),
        ("pvc-9", record("handle-1"), 1, None),
        ("pvc-9", record("handle-9"), 0, None),
        ("pvc-9", Record::Unreadable("x".into()), 0, None),
        ("pvc-1", record("handle-9"), 0, Some("RecordOfAnotherVolume")),
        ("pvc-1", Record::Unreadable("x".into()), 0, Some("RecordUnreadable")),
    ] {
        let path = format!("{ROOT}/pods/u-1/volumes/kubernetes.io~csi/{name}/mount");
        let facts = Facts { folders: vec![folder(name, said.clone())], ..facts(&[("0:50", "/", &path)]) };
        let (remains, _) = assemble(&wanted(), &facts);
        assert_eq!(remains.targets.len(), targets, "{name} {said:?}");
        assert_eq!(remains.unknown.first().map(|unknown| unknown.reason.as_str()), unknown, "{name} {said:?}");
    }
}

#[test]
fn a_record_of_another_volume_is_believed_unless_this_one_is_mounted_there() {
    let inline = "/var/lib/kubelet/pods/u-2/volumes/kubernetes.io~csi/pvc-1/mount";
    for (device, unknown) in [("0:51", None), ("0:50", Some("RecordOfAnotherVolume"))] {
        let mut facts = facts(&[("0:50", "/", TARGET), (device, "/", inline)]);
        facts.folders.push(Folder { pod: "u-2".into(), ..folder("pvc-1", record("handle-9")) });
        let (remains, _) = assemble(&wanted(), &facts);
        assert_eq!(remains.targets.len(), 1);
        assert_eq!(remains.unknown.first().map(|unknown| unknown.reason.as_str()), unknown, "{device}");
    }
}

#[test]
fn every_other_mount_of_its_file_system_is_found() {
    let private = "/var/lib/kubelet/plugins/csi.example.com/private/1";
    let sub = "/var/lib/kubelet/pods/u-1/volume-subpaths/pvc-1/db/0";
    let facts = facts(&[
        ("0:50", "/", TARGET),
        ("0:50", "/", private),
        ("0:50", "/sub", sub),
        ("0:50", "/", "/run/driver/1"),
        ("0:51", "/", "/run/driver/2"),
    ]);
    let (remains, identities) = assemble(&wanted(), &facts);
    assert_eq!(elsewhere(&remains), ["/run/driver/1", sub, private]);
    assert_eq!(remains.elsewhere[1].pod.as_deref(), Some("u-1"));
    assert_eq!(remains.elsewhere[0].below_root, None);
    assert_eq!(identities.len(), 1);
}

#[test]
fn a_volume_that_is_a_part_of_a_file_system_is_only_that_part() {
    let facts = facts(&[
        ("0:50", "/vol-1", TARGET),
        ("0:50", "/vol-1/sub", "/mnt/sub"),
        ("0:50", "/vol-10", "/mnt/other"),
        ("0:50", "/", "/mnt/all"),
    ]);
    assert_eq!(elsewhere(&assemble(&wanted(), &facts).0), ["/mnt/sub"]);
}

#[test]
fn what_the_kubelet_has_for_another_volume_is_not_this_ones() {
    let other = "/var/lib/kubelet/pods/u-2/volumes/kubernetes.io~csi/pvc-2/mount";
    let staged = "/var/lib/kubelet/plugins/kubernetes.io/csi/csi.example.com/abcd/globalmount";
    let mut facts = facts(&[("0:50", "/", TARGET), ("0:50", "/", other), ("0:50", "/", staged)]);
    let unsure = assemble(&wanted(), &facts).0;
    assert_eq!(elsewhere(&unsure), Vec::<&str>::new());
    let told = |path: &str| Unknown::new(path, "MountOfTheVolumeElsewhere");
    assert_eq!(unsure.unknown, [told(staged), told(other)]);
    facts.folders.push(Folder { pod: "u-2".into(), ..folder("pvc-2", record("handle-9")) });
    facts.staged.insert(facts.below_root(staged).unwrap(), record("handle-9"));
    let (remains, _) = assemble(&wanted(), &facts);
    assert_eq!((elsewhere(&remains), remains.unknown.as_slice()), (vec![], [].as_slice()));
}

#[test]
fn an_export_of_the_same_server_is_another_volume() {
    let mut facts = facts(&[]);
    let private = "/run/driver/2";
    let lines = format!(
        "2 1 0:50 / {TARGET} rw - nfs4 server:/all/pvc-1 rw\n3 1 0:50 / {private} rw - nfs4 server:/all/pvc-10 rw\n\
         4 1 0:50 / /mnt/sub rw - nfs4 server:/all/pvc-1/sub rw\n"
    );
    facts.mounts.extend(parse(lines.as_bytes()).unwrap());
    let (remains, _) = assemble(&wanted(), &facts);
    assert_eq!((elsewhere(&remains), remains.unknown.as_slice()), (vec!["/mnt/sub"], [].as_slice()));
}

#[test]
fn a_private_mount_that_may_be_another_volumes_is_left_alone_and_told() {
    let other = "/var/lib/kubelet/pods/u-2/volumes/kubernetes.io~csi/pvc-2/mount";
    let sub = "/var/lib/kubelet/pods/u-1/volume-subpaths/pvc-1/db/0";
    for mounts in [
        [("0:50", "/", TARGET), ("0:50", "/", other), ("0:50", "/", "/run/driver/1"), ("0:50", "/", sub)],
        [("0:50", "/", "/run/driver/1"), ("0:50", "/", sub), ("0:50", "/", other), ("0:50", "/", TARGET)],
    ] {
        let mut facts = facts(&mounts);
        facts.folders.push(Folder { pod: "u-2".into(), ..folder("pvc-2", record("handle-9")) });
        let (remains, _) = assemble(&wanted(), &facts);
        assert_eq!(elsewhere(&remains), [sub]);
        assert_eq!(remains.unknown, [Unknown::new("/run/driver/1", "SharedFileSystem")]);
    }
}

#[test]
fn the_nodes_own_file_system_is_never_a_volume() {
    for root in ["/", "/var/lib"] {
        let mut facts = facts(&[("8:1", root, TARGET), ("8:1", "/", "/mnt/precious")]);
        if root == "/var/lib" {
            facts.mounts.extend(parse(b"9 1 8:1 /var/lib /var/lib rw - ext4 s rw").unwrap());
        }
        let (remains, identities) = assemble(&wanted(), &facts);
        assert_eq!((elsewhere(&remains), identities.len()), (vec![], 0), "{root}");
        assert_eq!(remains.unknown[0].reason, "SystemFileSystem");
    }
}

#[test]
fn what_somebody_mounted_on_it_is_told() {
    let facts = facts(&[("0:50", "/", TARGET), ("0:60", "/", &format!("{TARGET}/inner"))]);
    assert_eq!(assemble(&wanted(), &facts).0.unknown[0].reason, "MountedOnTheVolume");
}

#[test]
fn a_mount_that_only_the_report_knows_is_found_if_it_is_still_the_same() {
    let device = Device { major: 0, minor: 50 };
    for (mounted, found) in [("0:50", 1), ("0:51", 0)] {
        let facts = Facts { folders: Vec::new(), ..facts(&[(mounted, "/", "/run/driver/1")]) };
        let wanted = Wanted { known: vec![(device, "/run/driver/1".into())], ..wanted() };
        assert_eq!(assemble(&wanted, &facts).0.elsewhere.len(), found, "{mounted}");
    }
}

#[test]
fn loop_devices_on_the_volume_are_found_and_no_others() {
    let device = |name: &str, backing: &str| Loop { name: name.into(), backing: backing.into() };
    let facts = Facts {
        loops: vec![
            device("loop1", &format!("{TARGET}/image (deleted)")),
            device("loop2", "/mnt/image"),
            device("loop3", TARGET),
        ],
        ..facts(&[("0:50", "/", TARGET), ("0:51", "/", "/mnt")])
    };
    let (remains, _) = assemble(&wanted(), &facts);
    assert_eq!(remains.loops.iter().map(|found| found.name.as_str()).collect::<Vec<_>>(), ["loop1"]);
    assert_eq!(remains.targets[0].loops[0].name, "loop3", "one on the mount point itself goes with it");
}

#[test]
fn mounts_on_top_of_each_other_go_the_last_one_first() {
    let facts = facts(&[("0:50", "/", TARGET), ("0:51", "/", TARGET)]);
    let (remains, _) = assemble(&wanted(), &facts);
    let minors: Vec<_> = remains.targets[0].mounts.iter().map(|mount| mount.device.minor).collect();
    assert_eq!(minors, [51, 50]);
}

#[test]
fn nothing_is_nothing() {
    let facts = Facts { folders: Vec::new(), ..facts(&[]) };
    assert!(assemble(&wanted(), &facts).0.is_nothing());
}
