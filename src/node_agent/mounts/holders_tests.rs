use super::super::mountinfo::parse;
use super::*;

const HOST: &str = "1 0 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
    50 1 0:50 / /var/lib/kubelet/pods/u-1/volumes/kubernetes.io~csi/pvc-1/mount rw shared:9 - fuse.x x rw\n";

/// What is seen of the volume of pod u-1 by processes with these mounts.
fn view(mounts: &str) -> View {
    let facts = Facts { root: "/var/lib/kubelet".into(), mounts: parse(HOST.as_bytes()).unwrap(), ..Facts::default() };
    let wanted = [Wanted {
        name: "pvc-1".into(),
        driver: "csi.example.com".into(),
        handle: "handle-1".into(),
        proved: true,
        pods: vec!["u-1".into()],
        others: None,
        known: Vec::new(),
    }];
    let identities = [facts.mounts.iter().skip(1).map(Identity::from).collect::<Vec<_>>()];
    let search = Search {
        facts: &facts,
        wanted: &wanted,
        identities: &identities,
        devices: BTreeMap::new(),
        nodes: BTreeMap::new(),
        ids: HashMap::new(),
        views: HashMap::new(),
        reader: Reader::start(),
    };
    search.look_at(parse(mounts.as_bytes()).unwrap(), false)
}

#[test]
fn a_mount_goes_with_the_hosts_only_if_what_it_is_mounted_on_follows() {
    let kubelet = "200 199 8:1 /var/lib/kubelet /kubelet rw shared:1 - ext4 /dev/sda1 rw\n";
    let slave = "200 199 8:1 /var/lib/kubelet /kubelet rw master:1 - ext4 /dev/sda1 rw\n";
    let private = "200 199 8:1 /var/lib/kubelet /kubelet rw - ext4 /dev/sda1 rw\n";
    let at = |path: &str| format!("201 200 0:50 / {path} rw master:9 - fuse.x x rw\n");
    let same = at("/kubelet/pods/u-1/volumes/kubernetes.io~csi/pvc-1/mount");
    for (mounts, keeps) in [
        (format!("{kubelet}{same}"), false),
        (format!("{slave}{same}"), false),
        (format!("{private}{same}"), true),
        (format!("{kubelet}{}", at("/kubelet/elsewhere")), true),
        // A volumeMount with HostToContainer: the volume follows, the container's own root does not.
        (format!("200 199 0:77 / / rw - overlay o rw\n{}", at("/data")), true),
    ] {
        let view = view(&mounts);
        assert_eq!(view.keeps.contains(&0), keeps, "{mounts}");
        assert_eq!(view.of_the_host && !keeps, view.is_of_the_host(0), "{mounts}");
    }
}

#[test]
fn a_container_of_the_pod_is_its_user_even_if_it_shares_the_kubelets_mounts() {
    let shared = "200 199 8:1 / /host rw shared:1 - ext4 /dev/sda1 rw\n";
    let hosts = "201 199 8:1 /var/lib/kubelet/pods/u-1/etc-hosts /etc/hosts rw - ext4 /dev/sda1 rw\n";
    let driver = view(shared);
    assert!(driver.is_of_the_host(0) && driver.users.is_empty());
    let pod = view(&format!("{shared}{hosts}"));
    assert!(!pod.is_of_the_host(0) && pod.users.contains(&0));
}

#[test]
fn what_ends_while_it_is_looked_at_is_gone_and_nothing_unknown() {
    let mut command = std::process::Command::new("/bin/sh");
    let mut child = command.args(["-c", "read line"]).stdin(std::process::Stdio::piped()).spawn().unwrap();
    let mut looked = 0;
    let found = while_it_lives(child.id(), |_| {
        looked += 1;
        child.kill().unwrap();
        child.wait().unwrap();
        Err::<(), _>(Errno::INVAL.into())
    });
    assert!(is_gone(&found.unwrap_err()));
    assert_eq!(looked, 1);
}

#[test]
fn what_cannot_be_read_of_a_process_that_lives_is_no_sign_of_its_end() {
    let found = while_it_lives(std::process::id(), |_| Err::<(), _>(Errno::NOENT.into()));
    assert!(!is_gone(&found.unwrap_err()));
    assert_eq!(
        while_it_lives(std::process::id(), |folder| Ok(folder.to_owned())).unwrap(),
        format!("/proc/{}", std::process::id())
    );
}

#[test]
fn only_roots_child_of_an_agent_that_is_gone_unmounts() {
    let status = |uid: u32, parent: u32| format!("Name:\tx\nPPid:\t{parent}\nUid:\t{uid}\t0\t0\t0\n");
    let line = "/bulkhead-node-agent\0child\0unmount\0";
    for (line, status, expected) in [
        (line, status(0, 1), true),
        (line, status(0, 70), false),
        (line, status(1000, 1), false),
        ("/bulkhead-node-agent\0child\0inventory\0", status(0, 1), false),
        ("/bin/sh\0child\0unmount\0", status(0, 1), false),
        ("", String::new(), false),
    ] {
        assert_eq!(is_unmounting(line, &status, Some(70)), expected, "{line} {status}");
    }
}

#[test]
fn devices_made_of_a_block_device_are_told() {
    let folder = std::env::temp_dir().join(format!("bulkhead-holders-{}", std::process::id()));
    assert!(stacked(&folder).is_empty());
    fs::create_dir_all(folder.join("dm-3")).unwrap();
    assert_eq!(stacked(&folder), ["dm-3"]);
    fs::remove_dir_all(&folder).unwrap();
    fs::write(&folder, "").unwrap();
    assert_eq!(stacked(&folder), [folder.display().to_string()]);
    fs::remove_file(&folder).unwrap();
}
