//! How it ends, and what it says then.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use libtest_mimic::Trial;
use rustix::process::Signal;

use super::engine::trial;
use super::node::{document, send_document};
use super::world::{Mounter, Pod, until};

/// Waits until the test makes the file `go`.
const WAITS: &str = "echo > $here/started; while [ ! -e $here/go ]; do sleep 0.02; done";

pub fn trials() -> Vec<Trial> {
    vec![
        trial("ending::an_engine_that_fails_is_quoted", an_engine_that_fails_is_quoted),
        trial("ending::what_an_engine_says_is_in_the_containers_log", what_an_engine_says_is_in_the_containers_log),
        trial("ending::an_engine_that_is_killed_is_told_of", an_engine_that_is_killed_is_told_of),
        trial("ending::an_engine_that_is_not_there_is_told_of", an_engine_that_is_not_there_is_told_of),
        trial("ending::success_is_what_the_exit_file_says", success_is_what_the_exit_file_says),
        trial("ending::sigterm_does_not_take_the_mount", sigterm_does_not_take_the_mount),
        trial("ending::much_that_is_said_takes_little_room", much_that_is_said_takes_little_room),
        trial("ending::last_words_are_not_waited_for_for_ever", last_words_are_not_waited_for_for_ever),
    ]
}

/// A mounter whose engine runs.
fn started(pod: &Pod, script: &str) -> Mounter {
    pod.engine(script);
    let mounter = pod.start();
    send_document(pod, &document("bucket", &[], &["AWS_SECRET_ACCESS_KEY=hush"]));
    mounter
}

fn an_engine_that_fails_is_quoted() {
    let pod = Pod::new();
    let mut mounter = started(&pod, "echo 'Error: Failed to create S3 client' >&2; exit 3");
    assert_eq!(mounter.code(), 1);
    assert_eq!(pod.error(), "Error: Failed to create S3 client\nmount-s3 ended with exit code 3");
    let mode = fs::metadata(pod.comm("mount.err")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(!pod.comm("mount.err.new").exists());
}

/// For `kubectl logs`: word by word, as it says it. The container's log is our standard error.
fn what_an_engine_says_is_in_the_containers_log() {
    let pod = Pod::new();
    pod.engine("echo 'Error: Failed to create S3 client' >&2; exit 3");
    let script = format!("exec \"$@\" 2>{}", pod.path().join("log").display());
    let command =
        ["sh", "-c", script.as_str(), "sh"].map(str::to_owned).into_iter().chain(pod.command()).collect::<Vec<_>>();
    let mut mounter = Mounter::run(&command);
    send_document(&pod, &document("bucket", &[], &["AWS_SECRET_ACCESS_KEY=hush"]));
    assert_eq!(mounter.code(), 1);
    let log = pod.told("log");
    assert!(log.lines().any(|line| line == "Error: Failed to create S3 client"), "{log}");
    assert!(!log.contains("hush"), "{log}");
}

fn an_engine_that_is_killed_is_told_of() {
    let pod = Pod::new();
    let mut mounter = started(&pod, "kill -9 $$");
    assert_eq!(mounter.code(), 1);
    assert_eq!(pod.error(), "mount-s3 was killed (signal 9), perhaps because it ran out of memory");
}

fn an_engine_that_is_not_there_is_told_of() {
    let pod = Pod::new();
    let mut mounter = pod.start();
    send_document(&pod, &document("bucket", &[], &[]));
    assert_eq!(mounter.code(), 1);
    let error = pod.error();
    assert!(error.starts_with("cannot run ") && error.ends_with("MOUNTPOINT_BIN_DIR?"), "{error}");
}

/// L30.
fn success_is_what_the_exit_file_says() {
    for (exit, told, code) in [("exit 0", false, 1), ("exit 7", false, 1), ("exit 0", true, 0), ("exit 7", true, 0)] {
        let pod = Pod::new();
        let mut mounter = started(&pod, &format!("{WAITS}; {exit}"));
        pod.told("started");
        if told {
            pod.write_exit_file();
        }
        fs::write(pod.path().join("go"), "").unwrap();
        assert_eq!(mounter.code(), code, "{exit}, exit file: {told}");
        assert_eq!(pod.comm("mount.err").exists(), !told, "{exit}");
    }
}

/// L12.
fn sigterm_does_not_take_the_mount() {
    let pod = Pod::new();
    let mut mounter = started(&pod, &format!("trap 'echo > $here/signalled' TERM; {WAITS}"));
    pod.told("started");
    for _ in 0..3 {
        mounter.signal(Signal::TERM);
        mounter.signal(Signal::INT);
    }
    until("signals taken", || (pending(mounter.id()) == 0).then_some(()));
    assert!(mounter.is_running());
    assert!(!pod.path().join("signalled").exists(), "nor does mount-s3 learn of it");
    pod.write_exit_file();
    fs::write(pod.path().join("go"), "").unwrap();
    assert_eq!(mounter.code(), 0);
}

/// Signals that a process has not taken yet.
fn pending(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap()
}

/// L43.
fn much_that_is_said_takes_little_room() {
    let pod = Pod::new();
    let script = format!("yes 'the same line again and again' | head -c 100000000 >&2; {WAITS}; echo last >&2; exit 1");
    pod.engine(&script);
    // What it passes on is not for the screen.
    let command = pod.command();
    let quiet = ["sh", "-c", "exec \"$0\" \"$@\" 2> /dev/null"].map(str::to_owned);
    let mut mounter = Mounter::run(&[quiet.to_vec(), command].concat());
    send_document(&pod, &document("bucket", &[], &[]));
    pod.told("started");
    let peak = peak_memory(mounter.id());
    assert!(peak < 50_000, "{peak} KiB");
    fs::write(pod.path().join("go"), "").unwrap();
    assert_eq!(mounter.code(), 1);
    let error = pod.error();
    assert!(error.len() < 66_000, "{} bytes", error.len());
    assert!(error.starts_with("the same line") && error.ends_with("last\nmount-s3 ended with exit code 1"));
}

fn peak_memory(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// A child of mount-s3 may hold its standard error.
fn last_words_are_not_waited_for_for_ever() {
    let pod = Pod::new();
    let mut mounter = started(&pod, "sleep 1000 & echo $! > $here/holder; echo 'its words' >&2; exit 4");
    assert_eq!(mounter.code(), 1);
    assert_eq!(pod.error(), "its words\nmount-s3 ended with exit code 4");
    let holder = pod.told("holder").trim().parse().unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(holder).unwrap(), Signal::KILL).unwrap();
}
