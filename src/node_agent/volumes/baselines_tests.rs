use super::*;

fn kept(mount_point: bool, uuid: Option<&str>, outdated: bool) -> Kept {
    let baseline = Baseline { mount_point, fs_uuid: uuid.map(str::to_owned), root: "/".into(), ..Baseline::default() };
    Kept { baseline, outdated }
}

#[test]
fn what_was_seen_first_stays_and_is_only_completed() {
    let now = |mount_point, uuid| Some(kept(mount_point, uuid, false).baseline);
    for (what, before, now, expected) in [
        ("nothing is there yet", None, None, None),
        ("the first sight", None, now(true, None), Some(kept(true, None, false))),
        ("it went", Some(kept(true, None, false)), now(false, None), Some(kept(true, None, false))),
        ("it cannot be seen", Some(kept(true, None, false)), None, Some(kept(true, None, false))),
        ("told later", Some(kept(true, None, false)), now(true, Some("a")), Some(kept(true, Some("a"), false))),
        ("another one", Some(kept(true, Some("a"), false)), now(true, Some("b")), Some(kept(true, Some("a"), false))),
        (
            "mounted after a reboot",
            Some(kept(true, Some("a"), true)),
            now(true, Some("a")),
            Some(kept(true, Some("a"), false)),
        ),
        (
            "another after a reboot",
            Some(kept(true, Some("a"), true)),
            now(true, Some("b")),
            Some(kept(true, Some("a"), true)),
        ),
        ("not mounted after a reboot", Some(kept(true, None, true)), now(false, None), Some(kept(true, None, true))),
        (
            "no UUID after a reboot",
            Some(kept(true, Some("a"), true)),
            now(true, None),
            Some(kept(true, Some("a"), false)),
        ),
    ] {
        assert_eq!(next(before.as_ref(), now), expected, "{what}");
    }
}

#[tokio::test]
async fn a_restart_knows_it_and_a_reboot_outdates_it() {
    let folder = tempfile::tempdir().unwrap();
    let boot = folder.path().join("boot_id");
    std::fs::write(&boot, "boot-1\n").unwrap();
    let settings = Settings {
        node_name: "n".into(),
        kubelet_root: folder.path().to_str().unwrap().into(),
        host: "/proc/self".into(),
        boot_id_file: boot.to_str().unwrap().into(),
        kubelet_patience: std::time::Duration::ZERO,
        check_interval: std::time::Duration::ZERO,
        call_timeout: std::time::Duration::ZERO,
        inventory_timeout: std::time::Duration::ZERO,
    };
    let mut first = Baselines::read(&settings).await;
    first.volumes.insert("uid".into(), kept(true, Some("a"), false));
    first.changed = true;
    first.write(&settings).await;
    assert_eq!(Baselines::read(&settings).await.volumes, first.volumes);
    std::fs::write(&boot, "boot-2\n").unwrap();
    let rebooted = Baselines::read(&settings).await;
    assert_eq!(rebooted.volumes["uid"], kept(true, Some("a"), true));
    // What cannot be read is seen anew.
    std::fs::write(folder.path().join("plugins/bulkhead-node-agent/volumes.json"), "{").unwrap();
    assert!(Baselines::read(&settings).await.volumes.is_empty());
}
