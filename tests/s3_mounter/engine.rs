//! What mount-s3 is given.

use std::fs;
use std::io::{Read as _, pipe};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;

use bulkhead_testbed::here;
use libtest_mimic::Trial;

use super::node::{document, send, send_document};
use super::world::{Mounter, Pod, until};

/// Tells everything that it was given, and waits.
const TELLS: &str = "
tr '\\0' '\\n' < /proc/$$/environ > $here/environment
readlink /proc/$$/fd/3 > $here/descriptor
printf '%s\\n' \"$@\" > $here/new
mv $here/new $here/arguments
exec sleep 1000";

pub fn trials() -> Vec<Trial> {
    vec![
        trial("engine::it_gets_exactly_what_was_sent", it_gets_exactly_what_was_sent),
        trial("engine::nobody_else_keeps_the_descriptor", nobody_else_keeps_the_descriptor),
        trial("engine::the_cache_is_in_the_pods_volume", the_cache_is_in_the_pods_volume),
        trial("engine::a_bucket_that_is_an_option_is_refused", a_bucket_that_is_an_option_is_refused),
        // For a PID namespace.
        here::unless(here::lacks_root(), trial("engine::no_process_is_left_a_zombie", no_process_is_left_a_zombie)),
        trial("engine::the_most_verbose_log_shows_no_key", the_most_verbose_log_shows_no_key),
    ]
}

pub fn trial(name: &str, test: fn()) -> Trial {
    Trial::test(name, move || {
        test();
        Ok(())
    })
}

fn it_gets_exactly_what_was_sent() {
    let pod = Pod::new();
    pod.engine(TELLS);
    let _mounter = pod.start();
    let args = ["--allow-root", "--gid=2000", "--user-agent-prefix=s3-csi-driver/2.2.0 k8s/v1.36"];
    let (_reader, writer) = pipe().unwrap();
    send(&pod, &document("my-bucket", &args, &["AWS_REGION=eu", "EMPTY=", "A=b=c"]), &[writer.as_fd()]);
    let expected = "my-bucket\n/dev/fd/3\n--allow-root\n--foreground\n--gid=2000\n\
                    --user-agent-prefix=s3-csi-driver/2.2.0 k8s/v1.36\n";
    assert_eq!(pod.told("arguments"), expected);
    let environment = pod.told("environment");
    let mut environment: Vec<&str> = environment.lines().collect();
    environment.sort_unstable();
    assert_eq!(environment, ["A=b=c", "AWS_REGION=eu", "EMPTY="]);
    let sent = fs::read_link(format!("/proc/self/fd/{}", writer.as_raw_fd())).unwrap();
    assert_eq!(Path::new(pod.told("descriptor").trim()), sent);
    assert!(!pod.socket().exists(), "one connection, one message");
}

/// When mount-s3 dies, its mount has to be seen to be dead.
fn nobody_else_keeps_the_descriptor() {
    let pod = Pod::new();
    pod.engine("echo > $here/started; kill -9 $$");
    let mut mounter = pod.start();
    let (mut reader, writer) = pipe().unwrap();
    send(&pod, &document("bucket", &[], &[]), &[writer.as_fd()]);
    drop(writer);
    pod.told("started");
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).unwrap();
    assert_eq!(mounter.code(), 1);
}

fn the_cache_is_in_the_pods_volume() {
    let pod = Pod::new();
    pod.engine(TELLS);
    let folder = pod.path().join("local-cache");
    fs::create_dir(&folder).unwrap();
    let _mounter = pod.start();
    send_document(&pod, &document("bucket", &["--cache=/anywhere", "--max-cache-size=64"], &[]));
    let cache = format!("--cache={}", folder.display());
    assert_eq!(pod.told("arguments"), format!("bucket\n/dev/fd/3\n{cache}\n--foreground\n--max-cache-size=64\n"));
}

fn a_bucket_that_is_an_option_is_refused() {
    let pod = Pod::new();
    pod.engine("echo > $here/started");
    let mut mounter = pod.start();
    send_document(&pod, &document("--version", &[], &[]));
    assert_eq!(mounter.code(), 1);
    assert!(pod.error().starts_with("\"--version\" is no name of a bucket: correct bucketName"), "{}", pod.error());
    assert!(!pod.path().join("started").exists());
}

/// In a container it is process 1, and gets those whose parent ended.
fn no_process_is_left_a_zombie() {
    let pod = Pod::new();
    pod.engine("(sh -c 'echo > $0/orphan' $here &) ; echo $$ > $here/engine; exec sleep 1000");
    let unshare = ["unshare", "--pid", "--fork", "--kill-child", "--"].map(str::to_owned);
    let outside = Mounter::run(&[unshare.to_vec(), pod.command()].concat());
    send_document(&pod, &document("bucket", &[], &[]));
    pod.told("orphan");
    pod.told("engine");
    let [mounter] = outside.children()[..] else { panic!("no mounter") };
    // The engine is left, and nobody else, dead or alive.
    until("one child", || {
        let children = fs::read_to_string(format!("/proc/{mounter}/task/{mounter}/children")).unwrap();
        (children.split_whitespace().count() == 1).then_some(())
    });
}

/// Keys in a message that is refused, and in one that mount-s3 fails with.
fn the_most_verbose_log_shows_no_key() {
    let pod = Pod::new();
    pod.engine("echo nothing works >&2; exit 3");
    let mut mounter = Mounter::run_verbose(&pod.command(), &pod.log());
    let keys =
        ["AWS_ACCESS_KEY_ID=AKVERBOSE", "AWS_SECRET_ACCESS_KEY=verbose/secret", "AWS_SESSION_TOKEN=verbose+token"];
    send_document(&pod, &document("bucket", &[], &keys).replace("\"env\"", "env"));
    let refused = pod.error();
    send_document(&pod, &document("bucket", &["--debug"], &keys));
    assert_eq!(mounter.code(), 1);
    let log = fs::read_to_string(pod.log()).unwrap();
    for told in ["a message is refused", "options received", "nothing works", "bucket=\"bucket\""] {
        assert!(log.contains(told), "{told:?} is not in the log:\n{log}");
    }
    for shown in [log, refused, pod.error()] {
        assert!(keys.iter().all(|entry| !shown.contains(entry.split_once('=').unwrap().1)), "{shown}");
    }
}
