use proptest::prelude::*;

use super::*;

#[test]
fn every_part_of_a_line_is_read() {
    let text = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:22 - ext3 /dev/root rw,errors=continue\n";
    let mount = parse(text).unwrap().remove(0);
    assert_eq!(mount.device, Device { major: 98, minor: 0 });
    assert_eq!((mount.id, mount.root.as_str(), mount.path.as_str()), (36, "/mnt1", "/mnt2"));
    assert_eq!((mount.shared, mount.master, mount.fs_type.as_str()), (Some(22), Some(1), "ext3"));
    assert!(mount.exact && !mount.deleted);
    assert_eq!(
        (mount.options.join(" "), mount.super_options.join(" ")),
        ("rw noatime".into(), "rw errors=continue".into())
    );
}

#[test]
fn escapes_and_deleted_roots_are_undone() {
    let text = br"1 2 0:53 /a\040b//deleted /var/lib/c\134d\011e\012f rw - fuse.x\040y src rw";
    let mount = parse(text).unwrap().remove(0);
    assert!(mount.root == "/a b" && mount.deleted);
    assert_eq!(mount.path, "/var/lib/c\\d\te\nf");
    assert_eq!(mount.fs_type, "fuse.x y");
}

#[test]
fn a_line_of_a_fuse_volume_is_read() {
    let line = br"48 30 0:45 / /var/lib/kubelet/a\040b rw,relatime shared:7 - fuse.testbed vol-1 rw,user_id=0";
    let mount = parse(line).unwrap().remove(0);
    assert_eq!(mount.device, Device { major: 0, minor: 45 });
    assert_eq!((mount.root.as_str(), mount.path.as_str()), ("/", "/var/lib/kubelet/a b"));
    assert_eq!(mount.fs_type, "fuse.testbed");
    assert!(parse(b"48 30").is_err());
}

#[test]
fn a_backslash_that_is_no_code_stays() {
    assert_eq!(unescaped(br"a\9b\"), (r"a\9b\".to_owned(), true));
}

#[test]
fn a_path_that_is_no_text_is_shown_but_not_used() {
    let mount = parse(b"1 2 0:53 / /var/\xff rw - tmpfs t rw\n").unwrap().remove(0);
    assert!(!mount.exact);
}

#[test]
fn one_unreadable_line_makes_all_unreadable() {
    let good = "36 35 98:0 / /mnt rw - ext3 /dev/root rw";
    for bad in ["36 35 98:0 / /mnt rw", "36", "x 35 98:0 / /m rw - a b c", "36 35 98 / /m rw - a b c"] {
        assert!(parse(format!("{good}\n{bad}\n").as_bytes()).is_err(), "{bad}");
    }
    assert_eq!(parse(b"").unwrap(), []);
}

#[test]
fn what_lies_within_a_folder() {
    for (path, folder, within) in
        [("/a/b", "/a", true), ("/a", "/a", true), ("/ab", "/a", false), ("/a", "/", true), ("/", "/a", false)]
    {
        assert_eq!(is_within(path, folder), within, "{path} in {folder}");
    }
}

#[test]
fn the_running_kernels_own_text_is_read() {
    let mounts = parse(&std::fs::read("/proc/self/mountinfo").unwrap()).unwrap();
    assert!(mounts.iter().any(|mount| mount.path == "/proc" && mount.fs_type == "proc"));
}

proptest! {
    #[test]
    fn nothing_panics(text in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&text);
    }

    #[test]
    fn nothing_that_looks_like_a_mount_panics(fields in proptest::collection::vec("[ -~\\\\0-9:/]{0,9}", 0..14)) {
        let _ = parse(fields.join(" ").as_bytes());
    }

    #[test]
    fn what_the_kernel_escapes_comes_back(path in "/[ -~\t\n]{0,30}") {
        let escaped: String = path.chars().map(|c| match c {
            ' ' | '\t' | '\n' | '\\' => format!("\\{:03o}", c as u32),
            other => other.to_string(),
        }).collect();
        let line = format!("1 2 0:5 / {escaped} rw - tmpfs t rw");
        prop_assert_eq!(&parse(line.as_bytes()).unwrap()[0].path, &path);
    }
}
