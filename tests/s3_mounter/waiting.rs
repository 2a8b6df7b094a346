//! Before there are options.

use std::os::fd::AsFd as _;

use libtest_mimic::Trial;
use rustix::process::Signal;

use super::engine::trial;
use super::node::{document, send, send_document};
use super::world::{Mounter, Pod, until};

/// Set for a run with more rounds.
const WIDE: &str = "BULKHEAD_WIDE";

pub fn trials() -> Vec<Trial> {
    vec![
        trial("waiting::a_mount_that_is_never_made_ends_well", a_mount_that_is_never_made_ends_well),
        trial("waiting::it_can_be_stopped", it_can_be_stopped),
        trial("waiting::it_does_not_wait_for_ever", it_does_not_wait_for_ever),
        trial("waiting::a_socket_that_was_left_is_no_hindrance", a_socket_that_was_left_is_no_hindrance),
        trial("waiting::bad_messages_are_refused_and_leave_nothing", bad_messages_are_refused_and_leave_nothing),
    ]
}

/// L28.
fn a_mount_that_is_never_made_ends_well() {
    let pod = Pod::new();
    let mut mounter = pod.start();
    until("the socket", || pod.socket().exists().then_some(()));
    pod.write_exit_file();
    assert_eq!(mounter.code(), 0);
    // And when it is started again.
    assert_eq!(pod.start().code(), 0);
    assert!(!pod.comm("mount.err").exists());
}

fn it_can_be_stopped() {
    for signal in [Signal::TERM, Signal::INT] {
        let pod = Pod::new();
        let mut mounter = pod.start();
        until("the socket", || pod.socket().exists().then_some(()));
        mounter.signal(signal);
        assert_eq!(mounter.code(), 143);
        assert!(!pod.socket().exists());
    }
}

fn it_does_not_wait_for_ever() {
    let pod = Pod::new();
    assert_eq!(pod.start_with(&["--mount-sock-recv-timeout=300ms"]).code(), 1);
    assert!(!pod.socket().exists());
}

/// L29.
fn a_socket_that_was_left_is_no_hindrance() {
    let pod = Pod::new();
    pod.engine("echo > $here/started; exec sleep 1000");
    let mut killed = pod.start();
    until("the socket", || pod.socket().exists().then_some(()));
    killed.signal(Signal::KILL);
    until("its end", || (!killed.is_running()).then_some(()));
    assert!(pod.socket().exists());
    let _mounter = pod.start();
    send_document(&pod, &document("bucket", &[], &[]));
    pod.told("started");
}

/// L43.
fn bad_messages_are_refused_and_leave_nothing() {
    let pod = Pod::new();
    pod.engine("echo > $here/started; exec sleep 1000");
    let mounter = pod.start();
    let file = tempfile::tempfile().unwrap();
    let bad = [
        (document("b", &[], &[]), 0),
        (document("b", &[], &[]), 2),
        (document("b", &[], &[]), 8),
        ("{\"bucketName\":1}".to_owned(), 1),
        ("no JSON".to_owned(), 1),
        (String::from("{\"bucketName\":\"b\",\"env\":\"AWS_SECRET_ACCESS_KEY=hush\"}"), 1),
    ];
    let rounds = if std::env::var_os(WIDE).is_some() { 10_000 } else { 1_000 };
    let (mut before, warm) = (0, 100);
    for round in 0..rounds {
        let (document, count) = &bad[round % bad.len()];
        send(&pod, document, &vec![file.as_fd(); *count]);
        if round == warm {
            before = quiet(&pod, &mounter);
        }
    }
    let after = quiet(&pod, &mounter);
    assert!(after <= before, "{before} descriptors became {after}");
    assert!(!pod.error().contains("hush"));
    send_document(&pod, &document("bucket", &[], &[]));
    pod.told("started");
}

/// Open descriptors once the mounter listens again and has nothing else to do.
fn quiet(pod: &Pod, mounter: &Mounter) -> usize {
    let mut last = None;
    until("a quiet mounter", || {
        let now = pod.socket().exists().then(|| mounter.open_descriptors());
        let quiet = now.is_some() && now == last;
        last = now;
        if quiet { now } else { None }
    })
}
