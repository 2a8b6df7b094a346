//! A real FUSE mount, made as the node service makes it, served by the real engine from a real S3 server. The mounter has no
//! privilege and cannot write to its root, as in a Mountpoint Pod.

use std::ffi::CString;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};

use bulkhead_testbed::mount_s3;
use bulkhead_testbed::s3_server::{KeyPair, S3Server, Usable};
use libtest_mimic::Trial;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, Signal};

use super::engine::trial;
use super::node::{document, send};
use super::world::{Mounter, Pod, until};

/// The user of a Mountpoint Pod.
const USER: u32 = 1000;
const BUCKET: &str = "bytes";

pub fn trials() -> Vec<Trial> {
    vec![
        trial("mounted::bytes_go_to_the_bucket_and_come_back", bytes_go_to_the_bucket_and_come_back),
        trial("mounted::a_drained_node_keeps_the_mount", a_drained_node_keeps_the_mount),
        trial("mounted::a_killed_engine_is_seen_and_replaced", a_killed_engine_is_seen_and_replaced),
        trial("mounted::a_read_only_part_of_a_bucket", a_read_only_part_of_a_bucket),
        trial("mounted::wrong_keys_are_told_and_not_shown", wrong_keys_are_told_and_not_shown),
    ]
}

/// S3, a Mountpoint Pod, and where its bucket is mounted.
struct Bed {
    s3: S3Server,
    pod: Pod,
    source: PathBuf,
}

impl Bed {
    fn new() -> Self {
        let pod = Pod::new();
        let buckets = pod.path().join("buckets");
        let source = pod.path().join("source");
        for folder in [&buckets, &source] {
            fs::create_dir(folder).unwrap();
        }
        let s3 = S3Server::start(&buckets, ([127, 0, 0, 1], 0).into()).unwrap();
        s3.create_bucket(BUCKET).unwrap();
        s3.keys().set(KeyPair::new("AKEXAMPLE", "secretexample"), Usable::All);
        fs::copy(mount_s3::ensure().unwrap(), pod.path().join("bin/mount-s3")).unwrap();
        chown(pod.path().join("comm"), Some(USER), Some(USER)).unwrap();
        // The folder of a test is for root alone.
        fs::set_permissions(pod.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        Self { s3, pod, source }
    }

    /// As in a container: a user that is nobody in particular, no capabilities and no way to get any.
    fn start(&self) -> Mounter {
        Mounter::run(&self.command())
    }

    fn command(&self) -> Vec<String> {
        let user = USER.to_string();
        let setpriv = ["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups", "--no-new-privs"];
        let nothing = ["--bounding-set", "-all", "--inh-caps", "-all", "--"];
        let mut command: Vec<String> = setpriv.into_iter().chain(nothing).map(str::to_owned).collect();
        command.extend(self.pod.command());
        // Where it was built, only root may come.
        let mounter = self.pod.path().join("bin/bulkhead-s3-mounter");
        fs::copy(env!("CARGO_BIN_EXE_bulkhead-s3-mounter"), &mounter).unwrap();
        let built = command.iter_mut().find(|word| *word == env!("CARGO_BIN_EXE_bulkhead-s3-mounter")).unwrap();
        *built = mounter.to_str().unwrap().to_owned();
        command
    }

    /// Mounts, and sends the descriptor. Only the engine has it afterwards.
    fn mount(&self, args: &[&str], secret: &str) {
        let fuse = mount_fuse(&self.source);
        let endpoint = format!("--endpoint-url={}", self.s3.endpoint());
        let mut all = vec!["--allow-other", "--force-path-style", endpoint.as_str()];
        all.extend(args);
        let secret = format!("AWS_SECRET_ACCESS_KEY={secret}");
        let env = ["AWS_ACCESS_KEY_ID=AKEXAMPLE", &secret, "AWS_REGION=us-east-1", "AWS_EC2_METADATA_DISABLED=true"];
        send(&self.pod, &document(BUCKET, &all, &env), &[fuse.as_fd()]);
    }

    fn unmount(&self) {
        rustix::mount::unmount(&self.source, UnmountFlags::empty()).unwrap();
    }

    /// The end that the node service gives a mount.
    fn end(&self, mounter: &mut Mounter) {
        self.pod.write_exit_file();
        self.unmount();
        assert_eq!(mounter.code(), 0);
        assert!(!self.pod.comm("mount.err").exists());
    }

    fn object(&self, key: &str) -> PathBuf {
        self.s3.bucket(BUCKET).join(key)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        // After a failed assertion; otherwise there is nothing any more.
        let _ = rustix::mount::unmount(&self.source, UnmountFlags::DETACH);
    }
}

/// Mounts a FUSE file system that nobody serves yet.
fn mount_fuse(source: &Path) -> OwnedFd {
    let fuse = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").unwrap();
    let options =
        format!("fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other", fuse.as_raw_fd());
    let flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOATIME;
    let options = CString::new(options).unwrap();
    rustix::mount::mount("mountpoint-s3", source, "fuse", flags, options.as_c_str()).unwrap();
    fuse.into()
}

/// More than one part of an upload, and no two pages alike.
fn content(length: usize) -> Vec<u8> {
    (0..length).map(|position| (position / 7 + position / 4093) as u8).collect()
}

fn bytes_go_to_the_bucket_and_come_back() {
    let bed = Bed::new();
    let mut mounter = bed.start();
    bed.mount(&["--allow-delete", "--uid=1234", "--gid=2345", "--dir-mode=770", "--file-mode=660"], "secretexample");
    let written = content(20 << 20);
    fs::create_dir(bed.source.join("folder")).unwrap();
    fs::write(bed.source.join("folder/large"), &written).unwrap();
    // An object is there once its upload has ended, and closing the file waits for that.
    assert!(fs::read(bed.object("folder/large")).unwrap() == written);
    assert!(fs::read(bed.source.join("folder/large")).unwrap() == written);

    fs::write(bed.object("from-elsewhere"), "of another client").unwrap();
    assert_eq!(fs::read_to_string(bed.source.join("from-elsewhere")).unwrap(), "of another client");
    let file = fs::metadata(bed.source.join("from-elsewhere")).unwrap();
    let folder = fs::metadata(bed.source.join("folder")).unwrap();
    assert_eq!((file.uid(), file.gid(), file.mode() & 0o777), (1234, 2345, 0o660));
    assert_eq!((folder.uid(), folder.gid(), folder.mode() & 0o777), (1234, 2345, 0o770));
    fs::remove_file(bed.source.join("from-elsewhere")).unwrap();
    assert!(!bed.object("from-elsewhere").exists());
    bed.end(&mut mounter);
}

/// L12.
fn a_drained_node_keeps_the_mount() {
    let bed = Bed::new();
    let mut mounter = bed.start();
    bed.mount(&[], "secretexample");
    fs::write(bed.source.join("before"), "before").unwrap();
    mounter.signal(Signal::TERM);
    fs::write(bed.source.join("after"), "after").unwrap();
    assert_eq!(fs::read_to_string(bed.object("after")).unwrap(), "after");
    assert!(mounter.is_running());
    bed.end(&mut mounter);
}

fn a_killed_engine_is_seen_and_replaced() {
    let bed = Bed::new();
    let mut mounter = bed.start();
    bed.mount(&[], "secretexample");
    fs::write(bed.source.join("file"), "there").unwrap();
    let [engine] = mounter.children()[..] else { panic!("no engine") };
    let engine = i32::try_from(engine).ok().and_then(Pid::from_raw).unwrap();
    rustix::process::kill_process(engine, Signal::KILL).unwrap();
    assert_eq!(mounter.code(), 1);
    assert!(bed.pod.error().ends_with("mount-s3 was killed (signal 9), perhaps because it ran out of memory"));
    let error = fs::read_dir(&bed.source).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotConnected, "nobody keeps the descriptor: {error}");

    // The kubelet starts the container again, and the node service mounts again.
    fs::remove_file(bed.pod.comm("mount.err")).unwrap();
    bed.unmount();
    let mut mounter = bed.start();
    bed.mount(&[], "secretexample");
    assert_eq!(fs::read_to_string(bed.source.join("file")).unwrap(), "there");
    bed.end(&mut mounter);
}

fn a_read_only_part_of_a_bucket() {
    let bed = Bed::new();
    fs::create_dir(bed.object("part")).unwrap();
    fs::write(bed.object("part/inside"), "seen").unwrap();
    fs::write(bed.object("outside"), "not seen").unwrap();
    let cache = bed.pod.path().join("local-cache");
    fs::create_dir(&cache).unwrap();
    chown(&cache, Some(USER), Some(USER)).unwrap();
    let mut mounter = bed.start();
    bed.mount(&["--read-only", "--prefix=part/", "--cache=/elsewhere", "--max-cache-size=64"], "secretexample");
    let names: Vec<_> =
        fs::read_dir(&bed.source).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(names, ["inside"]);
    assert_eq!(fs::read_to_string(bed.source.join("inside")).unwrap(), "seen");
    assert!(fs::write(bed.source.join("new"), "").is_err());
    // What is read goes to the cache beside the reading, and not at all when the file is closed before.
    until("something in the cache", || {
        fs::read(bed.source.join("inside")).unwrap();
        fs::read_dir(cache.join("mountpoint-cache")).ok()?.next()?.ok()
    });
    bed.end(&mut mounter);
}

fn wrong_keys_are_told_and_not_shown() {
    let bed = Bed::new();
    let mut mounter = Mounter::run_verbose(&bed.command(), &bed.pod.log());
    bed.mount(&["--debug"], "anothersecret");
    assert_eq!(mounter.code(), 1);
    let (error, log) = (bed.pod.error(), fs::read_to_string(bed.pod.log()).unwrap());
    for shown in [error, log] {
        assert!(shown.contains("initial ListObjectsV2 failed for bucket bytes"), "{shown}");
        assert!(!shown.contains("anothersecret"), "{shown}");
    }
    bed.unmount();
}
