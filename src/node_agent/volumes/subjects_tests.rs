use std::time::Duration;

use serde_json::{Value, json};

use super::super::super::mounts::mountinfo;
use super::*;

const ROOT: &str = "/var/lib/kubelet";
const NOW: &str = "2026-11-21T02:40:00Z";

fn volume(name: &str, spec: Value) -> Arc<PersistentVolume> {
    let mut spec = spec;
    let phase = if spec.get("claimRef").is_some() { "Bound" } else { "Available" };
    if spec.get("local").is_some() && spec.get("nodeAffinity").is_none() {
        spec["nodeAffinity"] = json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions": [
            { "key": "kubernetes.io/hostname", "operator": "In", "values": ["n"] }] }] } });
    }
    let object = json!({ "metadata": { "name": name, "uid": format!("uid of {name}") }, "spec": spec,
                         "status": { "phase": phase } });
    Arc::new(serde_json::from_value(object).unwrap())
}

fn csi(name: &str) -> Arc<PersistentVolume> {
    let csi = json!({ "driver": "d", "volumeHandle": format!("handle of {name}"), "fsType": "ext4" });
    volume(
        name,
        json!({ "csi": csi, "claimRef": { "namespace": "shop", "name": format!("claim of {name}") },
                         "capacity": { "storage": "1Gi" } }),
    )
}

fn pod(uid: &str, claim: &str, phase: &str, since: &str) -> Arc<Pod> {
    let pod = json!({
        "metadata": { "name": uid, "namespace": "shop", "uid": uid },
        "spec": { "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }] },
        "status": { "phase": phase, "conditions": [
            { "type": "Initialized", "status": "True", "lastTransitionTime": since }] },
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

const LONG_AGO: &str = "2026-11-21T02:39:00Z";

fn mounts(paths: &[(&str, &str)]) -> Vec<Mount> {
    let line = |(number, (path, fs_type)): (usize, &(&str, &str))| {
        format!("{number} 1 0:{number} / {path} rw - {fs_type} source rw\n")
    };
    mountinfo::parse(paths.iter().enumerate().map(line).collect::<String>().as_bytes()).unwrap()
}

fn found(volumes: &[Arc<PersistentVolume>], pods: &[Arc<Pod>], paths: &[(&str, &str)]) -> Vec<Found> {
    let labels = [("kubernetes.io/hostname".to_owned(), "n".to_owned())].into();
    let mounts = mounts(paths);
    let node = Host { name: "n", labels: &labels };
    find(&Here { node, volumes, pods, mounts: &mounts, kubelet_root: ROOT, now: NOW.parse().unwrap() })
}

fn names(found: &[Found]) -> Vec<&str> {
    found.iter().map(|one| one.subject.name.as_str()).collect()
}

fn target(pod: &str, name: &str) -> String {
    format!("{ROOT}/pods/{pod}/volumes/kubernetes.io~csi/{name}/mount")
}

#[test]
fn local_volumes_are_here_by_their_affinity_in_every_phase() {
    let elsewhere = json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions": [
        { "key": "kubernetes.io/hostname", "operator": "In", "values": ["other"] }] }] } });
    let volumes = [
        volume("free", json!({ "local": { "path": "/disks/1", "fsType": "xfs" } })),
        volume("bound", json!({ "local": { "path": "/disks/2" }, "claimRef": { "namespace": "shop", "name": "c" } })),
        volume("block", json!({ "local": { "path": "/dev/sdb" }, "volumeMode": "Block" })),
        volume("elsewhere", json!({ "local": { "path": "/disks/1" }, "nodeAffinity": elsewhere })),
    ];
    let found = found(&volumes, &[], &[]);
    assert_eq!(names(&found), ["block", "bound", "free"]);
    assert_eq!((found[0].subject.block, found[2].subject.fs_type.as_str()), (true, "xfs"));
    assert_eq!(found[2].subject.kind, Kind::Local { path: "/disks/1".into() });
}

#[test]
fn others_are_here_while_they_are_mounted_or_used() {
    let volumes = [csi("v")];
    let at = target("u", "v");
    let staged = layout::staging(&Wanted {
        name: "v".into(),
        driver: "d".into(),
        handle: "handle of v".into(),
        proved: false,
        pods: Vec::new(),
        others: None,
        known: Vec::new(),
    });
    let staged = format!("{ROOT}/{}", staged[0].path);
    let runs = |phase| pod("u", "claim of v", phase, LONG_AGO);
    for (what, pods, paths, is_here) in [
        ("nothing", vec![], vec![], false),
        ("a pod that runs", vec![runs("Running")], vec![], true),
        ("a pod that starts", vec![runs("Pending")], vec![], false),
        ("a pod that has ended", vec![runs("Succeeded")], vec![], false),
        ("a mount of a pod that is gone", vec![], vec![at.as_str()], true),
        ("a mount of its pod", vec![runs("Running")], vec![at.as_str()], true),
        (
            "a mount of a pod that has no such claim",
            vec![pod("u", "other", "Running", LONG_AGO)],
            vec![at.as_str()],
            false,
        ),
        ("staged only", vec![], vec![staged.as_str()], true),
        ("a sub-path", vec![], vec!["/var/lib/kubelet/pods/u/volume-subpaths/v/c/0"], false),
        ("a mount in another folder", vec![], vec!["/elsewhere/pods/u/volumes/kubernetes.io~csi/v/mount"], false),
    ] {
        let paths: Vec<_> = paths.into_iter().map(|path| (path, "ext4")).collect();
        assert_eq!(names(&found(&volumes, &pods, &paths)) == ["v"], is_here, "{what}");
    }
    let all = found(&volumes, &[runs("Running")], &[(&at, "ext4"), (&staged, "ext4")]);
    let kinds: Vec<_> = all[0].mounts.iter().map(|mount| (mount.kind, mount.pod_uid.as_deref())).collect();
    assert_eq!(kinds, [(MountKind::Target, Some("u")), (MountKind::Staging, None)]);
    assert_eq!(all[0].staged.as_deref(), Some(staged.as_str()));
    assert_eq!(all[0].subject.expected.len(), 2);
}

#[test]
fn what_must_be_mounted_is_what_pods_have_for_good() {
    let ending = |mut pod: Arc<Pod>| {
        Arc::make_mut(&mut pod).metadata.deletion_timestamp = serde_json::from_value(json!(NOW)).unwrap();
        pod
    };
    let old = || pod("u", "claim of v", "Running", LONG_AGO);
    for (what, pod, expected) in [
        ("for a minute", old(), true),
        ("for 30 s", pod("u", "claim of v", "Running", "2026-11-21T02:39:30Z"), true),
        ("for 29 s", pod("u", "claim of v", "Running", "2026-11-21T02:39:31Z"), false),
        ("ending", ending(old()), false),
    ] {
        let path = target("u", "v");
        let wanted = Expected { path: path.clone(), kind: ExpectedKind::Target { pod: "u".into() } };
        let missed = found(&[csi("v")], std::slice::from_ref(&pod), &[]);
        assert_eq!(missed[0].subject.expected == [wanted.clone()], expected, "{what}");
        assert_eq!(missed[0].is_used, expected, "{what}");
        // What is mounted is looked at all the same, once.
        let mounted = found(&[csi("v")], &[pod], &[(&path, "ext4")]);
        assert_eq!(mounted[0].subject.expected, [wanted], "{what}");
    }
}

#[test]
fn every_kind_is_expected_at_its_place() {
    let claim = json!({ "namespace": "shop", "name": "c" });
    let pod = pod("u", "c", "Running", LONG_AGO);
    let csi = json!({ "driver": "d", "volumeHandle": "h" });
    let nfs = json!({ "server": "s", "path": "/x" });
    for (spec, expected) in [
        (json!({ "csi": csi }), Some("pods/u/volumes/kubernetes.io~csi/v/mount")),
        (json!({ "csi": csi, "volumeMode": "Block" }), Some("plugins/kubernetes.io/csi/volumeDevices/publish/v/u")),
        (json!({ "local": { "path": "/x" } }), Some("pods/u/volumes/kubernetes.io~local-volume/v")),
        (json!({ "local": { "path": "/dev/sdb" }, "volumeMode": "Block" }), None),
        (json!({ "nfs": nfs }), Some("pods/u/volumes/kubernetes.io~nfs/v")),
    ] {
        let mut spec = spec;
        spec["claimRef"] = claim.clone();
        let found = found(&[volume("v", spec.clone())], std::slice::from_ref(&pod), &[]);
        let paths: Vec<_> = found[0].subject.expected.iter().map(|one| one.path.clone()).collect();
        assert_eq!(paths, expected.map(|path| format!("{ROOT}/{path}")).into_iter().collect::<Vec<_>>(), "{spec}");
    }
    // Something else is only known by what serves it.
    let other = volume("v", json!({ "claimRef": claim }));
    let at = format!("{ROOT}/pods/u/volumes/example.com~driver/v");
    assert!(found(std::slice::from_ref(&other), std::slice::from_ref(&pod), &[(&at, "ext4")]).is_empty());
    assert_eq!(found(&[other], &[pod], &[(&at, "fuse.x")])[0].subject.kind, Kind::FUSE);
}

#[test]
fn what_is_meant_to_be_read_only() {
    let local = |more: Value| {
        let mut spec = json!({ "local": { "path": "/x" } });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        volume("v", spec)
    };
    for (one, expected) in [
        (local(json!({})), false),
        (local(json!({ "accessModes": ["ReadOnlyMany"] })), true),
        (local(json!({ "accessModes": ["ReadOnlyMany", "ReadWriteOnce"] })), false),
        (local(json!({ "mountOptions": ["noatime,ro"] })), true),
        (local(json!({ "mountOptions": ["errors=remount-ro"] })), false),
    ] {
        assert_eq!(found(std::slice::from_ref(&one), &[], &[])[0].subject.read_only, expected, "{one:?}");
    }
}

#[test]
fn sizes() {
    for (text, expected) in [("1Gi", 1 << 30), ("999999999E", u64::MAX), ("", 0), ("-1", 0), ("1Xi", 0)] {
        assert_eq!(capacity(Some(&Quantity(text.into()))), expected, "{text}");
    }
    assert_eq!(capacity(None), 0);
}

#[test]
fn the_table_of_ten_thousand_volumes_is_read_in_no_time() {
    let volumes: Vec<_> = (0..10_000).map(|number| csi(&format!("v-{number}"))).collect();
    let pods: Vec<_> = (0..100)
        .map(|number| pod(&format!("u-{number}"), &format!("claim of v-{number}"), "Running", LONG_AGO))
        .collect();
    let began = std::time::Instant::now();
    assert_eq!(
        found(&volumes, &pods, &[("/var/lib/kubelet/plugins/kubernetes.io/csi/d/0123/globalmount", "ext4")]).len(),
        100
    );
    // Milliseconds where it is optimised.
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}
