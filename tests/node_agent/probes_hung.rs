//! Servers that die, servers that never answer, a write that nothing can end; and volumes that are all well.

use std::fs;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use bulkhead::api::hysteresis::Sample;
use bulkhead::api::volume::{Check, CheckMode};
use bulkhead::node_agent::probes::blocking::PROBES_MAX;
use bulkhead::node_agent::probes::{self, Kind, Seen, Subject};
use fuser::{Config, FileAttr, FileHandle, FileType, Filesystem, INodeNo, ReplyAttr, Request, Session, SessionACL};
use libtest_mimic::Trial;
use rustix::mount::MountFlags;

use super::bench::{Bench, NONE, good, local, run, staged, subject, target, wrong};
use super::cleaning::trial;
use super::world::{PATIENCE, bind};

/// Set in a process that is a FUSE server: where to mount.
pub const SERVE: &str = "BULKHEAD_TEST_FUSE";
/// Volumes whose server never answers.
const HUNG: usize = 50;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("probes_hung::a_fuse_server_that_is_killed", a_fuse_server_that_is_killed),
        trial("probes_hung::fifty_servers_that_never_answer", fifty_servers_that_never_answer),
        trial("probes_hung::a_write_that_cannot_be_killed", a_write_that_cannot_be_killed),
        trial("probes_hung::healthy_volumes_of_all_kinds", healthy_volumes_of_all_kinds),
    ]
}

/// A file system with one folder.
struct Empty;

impl Filesystem for Empty {
    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let attributes = FileAttr {
            ino: inode,
            size: 0,
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: FileType::Directory,
            perm: 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        };
        reply.attr(&Duration::ZERO, &attributes);
    }
}

/// Is the FUSE server, until it is killed.
pub fn serve(path: &Path) -> ExitCode {
    let session = Session::from_fd(Empty, mount(path), SessionACL::All, Config::default());
    session.and_then(Session::run).unwrap();
    ExitCode::SUCCESS
}

/// Mounts a FUSE file system that nobody serves yet.
fn mount(path: &Path) -> OwnedFd {
    let server = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").unwrap();
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", server.as_raw_fd());
    let options = std::ffi::CString::new(options).unwrap();
    rustix::mount::mount("test", path, "fuse.test", MountFlags::empty(), options.as_c_str()).unwrap();
    server.into()
}

/// Starts a FUSE server, and waits until it serves.
fn served(path: &Path) -> Child {
    let program = std::env::current_exe().unwrap();
    let child = Command::new(program).env(SERVE, path).stdin(Stdio::null()).spawn().unwrap();
    let mounted = || fs::read_to_string("/proc/self/mountinfo").unwrap().contains(path.to_str().unwrap());
    let end = Instant::now() + PATIENCE;
    while !mounted() {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(5));
    }
    run("stat", &[path.to_str().unwrap()]);
    child
}

fn fuse(path: &Path) -> Subject {
    Subject { expected: vec![staged(path)], ..subject(Kind::FUSE) }
}

async fn a_fuse_server_that_is_killed() {
    let bench = Bench::new();
    let path = bench.folder("v");
    let mut server = served(&path);
    let volume = bench.first(fuse(&path)).await;
    assert_eq!(good(&bench.probe(&volume).await), [Check::Capacity, Check::FUSE]);
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(wrong(&bench.probe(&volume).await), [(Check::FUSE, "FuseDisconnected")]);
    assert_eq!(wrong(&bench.look(&volume).await), NONE, "the mount is still there");
    super::bench::unmount(&path);
    let mut again = served(&path);
    good(&bench.probe(&volume).await);
    again.kill().unwrap();
    again.wait().unwrap();
}

fn is_silent(seen: &[Seen]) -> bool {
    matches!(seen, [Seen { check: Check::FUSE, sample: Sample::NoAnswer(trouble), .. }] if trouble.reason == "IOHung")
}

async fn fifty_servers_that_never_answer() {
    let bench = Arc::new(Bench::with_deadline(Duration::from_millis(1500)));
    let paths: Vec<PathBuf> = (0..HUNG).map(|number| bench.folder(&format!("v{number}"))).collect();
    let _servers: Vec<_> = paths.iter().map(|path| mount(path)).collect();
    // The slowest turn of the loop, and most children at once.
    let (slowest, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicUsize::new(0)));
    let watching = {
        let (slowest, most, children) = (slowest.clone(), most.clone(), bench.children.clone());
        tokio::spawn(async move {
            loop {
                let began = Instant::now();
                tokio::task::yield_now().await;
                let late = began.elapsed().as_millis().try_into().unwrap();
                slowest.fetch_max(late, Ordering::Relaxed);
                most.fetch_max(children.alive(), Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
    };
    let healthy = bench.folder("healthy");
    let healthy = bench.first(local(&healthy)).await;
    let volumes: Vec<_> = paths.iter().map(|path| fuse(path)).collect();
    // What only looks is not held up by any of them.
    let view = bench.gatherer.gather(&volumes).await;
    for volume in &volumes {
        assert_eq!(wrong(&probes::passive(&view, volume)), NONE);
        assert!(probes::passive(&view, volume).iter().any(|one| one.check == Check::MountPoint));
    }
    let round = || async {
        let began = Instant::now();
        let view = Arc::new(bench.gatherer.gather(&volumes).await);
        let asked = volumes.iter().map(|volume| {
            let (bench, view, volume) = (bench.clone(), view.clone(), volume.clone());
            tokio::spawn(async move { bench.ask(&view, &volume).await })
        });
        let asked: Vec<_> = asked.collect();
        let mut told = Vec::new();
        for one in asked {
            told.push(one.await.unwrap());
        }
        assert!(told.iter().all(|seen| is_silent(seen)), "{told:#?}");
        began.elapsed()
    };
    round().await;
    // From now on they are known not to answer: others are not held up by them.
    let waits = async {
        let mut longest = Duration::ZERO;
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let began = Instant::now();
            good(&bench.probe(&healthy).await);
            longest = longest.max(began.elapsed());
        }
        longest
    };
    let (_, longest) = tokio::join!(round(), waits);
    watching.abort();
    let (slowest, most) = (slowest.load(Ordering::Relaxed), most.load(Ordering::Relaxed));
    println!(
        "a turn of the loop took {slowest} ms at most; {most} children at once; a healthy volume waited {longest:?}"
    );
    assert!(slowest <= 100, "the loop was held up for {slowest} ms");
    assert!((1..=PROBES_MAX + 1).contains(&most), "{most} children at once");
    assert!(longest < Duration::from_secs(5), "a healthy volume waited for {longest:?}");
    assert_eq!(bench.children.hung(), 0, "each could be killed");
}

async fn a_write_that_cannot_be_killed() {
    let mut bench = Bench::new();
    bench.modes.insert(Check::WriteProbe, CheckMode::Active);
    let (disk, path) = (bench.disk("a"), bench.folder("v"));
    disk.mount(&path, "defaults");
    let volume = bench.first(local(&path)).await;
    good(&bench.probe(&volume).await);
    run("fsfreeze", &["--freeze", path.to_str().unwrap()]);
    let frozen = bench.probe(&volume).await;
    let hung = bench.children.hung();
    // While it hangs nobody asks again.
    let again = tokio::time::timeout(Duration::from_secs(2), bench.probe(&volume)).await;
    let hung_again = bench.children.hung();
    run("fsfreeze", &["--unfreeze", path.to_str().unwrap()]);
    assert_eq!((wrong(&frozen), hung), (vec![(Check::WriteProbe, "IOHung")], 1));
    assert_eq!((wrong(&again.unwrap()), hung_again), (vec![(Check::Capacity, "IOHung")], 1));
    assert!(
        bench
            .children
            .all_ended(&format!("probe of {}", volume.baseline.clone().unwrap().device.unwrap()), PATIENCE)
            .await
    );
    good(&bench.probe(&volume).await);
}

async fn healthy_volumes_of_all_kinds() {
    let mut bench = Bench::new();
    for check in [Check::ReadProbe, Check::WriteProbe, Check::Scrub] {
        bench.modes.insert(check, CheckMode::Active);
    }
    let (disk, mounted, plain) = (bench.disk("a"), bench.folder("mounted"), bench.folder("plain"));
    disk.mount(&mounted, "defaults");
    let raw = bench.disk("b");
    let (third, staging, pod) = (bench.disk("c"), bench.folder("globalmount"), bench.folder("pods/u-1"));
    third.mount(&staging, "defaults");
    bind(&staging, &pod);
    let served_at = bench.folder("fuse");
    let mut server = served(&served_at);
    let csi = Kind::CSI { driver: "csi.example.com".into(), handle: "h".into() };
    let volumes = [
        Subject { fs_type: "ext4".into(), capacity: 10 << 20, ..local(&mounted) },
        local(&plain),
        Subject { block: true, capacity: 16 << 20, ..local(&raw.device) },
        Subject { fs_type: "ext4".into(), expected: vec![staged(&staging), target(&pod, "u-1")], ..subject(csi) },
        fuse(&served_at),
    ];
    let all = bench.gatherer.gather(&volumes).await;
    for volume in volumes {
        let volume = Subject { baseline: probes::baseline(&all, &volume), ..volume };
        for _ in 0..2 {
            let (passive, active) = (bench.look(&volume).await, bench.probe(&volume).await);
            // This one takes no canary, and the disk of the machine itself need not be ours to read.
            let unreadable = volume.kind == Kind::FUSE || volume.local_path() == plain.to_str();
            let unknown = |one: &Seen| one.sample == Sample::Unknown && unreadable;
            let told: Vec<_> = passive.into_iter().chain(active).filter(|one| !unknown(one)).collect();
            assert!(told.len() > 3, "{told:?}");
            good(&told);
            assert!(told.iter().all(|one| one.pods.is_empty()), "a good one touches nobody");
        }
    }
    server.kill().unwrap();
    server.wait().unwrap();
}
