use super::*;

fn reason(sample: &Sample) -> &str {
    match sample {
        Sample::Good => "good",
        Sample::Unknown => "unknown",
        Sample::Bad(trouble) | Sample::NoAnswer(trouble) => trouble.reason,
    }
}

#[test]
fn what_is_left() {
    for (blocks, available, inodes, inodes_free, expected) in [
        (1000, 10, 0, 0, "good"),
        (1000, 9, 0, 0, "OutOfSpace"),
        (1000, 0, 10, 1, "OutOfSpace"),
        (1000, 500, 10, 1, "good"),
        (1000, 500, 10, 0, "OutOfInodes"),
        (0, 0, 0, 0, "good"),
        (u64::MAX, u64::MAX, u64::MAX, 1, "good"),
    ] {
        let outcome = Outcome::Space(Space { blocks, available, inodes, inodes_free });
        let told = of_root(Server::Kernel, false, &outcome);
        assert_eq!((told.len(), told[0].0, reason(&told[0].1)), (1, Check::Capacity, expected), "{outcome:?}");
        assert_eq!(of_root(Server::Kernel, true, &outcome), [(Check::Capacity, Sample::Good)], "nobody writes there");
        let told = of_root(Server::FUSE, false, &outcome);
        assert_eq!((told[0].clone(), reason(&told[1].1)), ((Check::FUSE, Sample::Good), expected));
    }
}

#[test]
fn errors_of_the_kernel() {
    for (errno, expected) in [
        (Errno::NOTCONN, "FuseDisconnected"),
        (Errno::STALE, "StaleHandle"),
        (Errno::IO, "IOError"),
        (Errno::UCLEAN, "IOError"),
        (Errno::ROFS, "ReadOnlyRemount"),
        (Errno::NOSPC, "OutOfSpace"),
        (Errno::NODEV, "DeviceMissing"),
        (Errno::TIMEDOUT, "BackendUnreachable"),
        (Errno::ACCESS, "unknown"),
        (Errno::PERM, "unknown"),
        (Errno::NOMEM, "unknown"),
    ] {
        let outcome = Outcome::Failed { errno: errno.raw_os_error(), at: "stat".into() };
        for server in [Server::Kernel, Server::NFS, Server::FUSE] {
            let told = of_root(server, false, &outcome);
            assert_eq!((told.len(), told[0].0, reason(&told[0].1)), (1, server.check(), expected), "{errno}");
        }
        assert_eq!(reason(&of_data(&outcome)), expected);
    }
    assert_eq!(reason(&of_data(&Outcome::Mismatch)), "IOError");
    assert_eq!(reason(&of_data(&Outcome::Changed)), "unknown");
    assert_eq!(reason(&of_data(&Outcome::Done)), "good");
    assert_eq!(reason(&of_scrub(&[])), "good");
    assert_eq!(reason(&of_scrub(&[4096])), "BadBlocks");
}

#[test]
fn silence_is_not_yet_trouble() {
    for (server, expected) in
        [(Server::Kernel, "IOHung"), (Server::NFS, "BackendUnreachable"), (Server::FUSE, "IOHung")]
    {
        assert!(matches!(server.silence("x"), Sample::NoAnswer(trouble) if trouble.reason == expected));
    }
}
