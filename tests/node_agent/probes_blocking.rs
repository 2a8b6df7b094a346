//! Probes that read and write: what only a failing request tells.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

use bulkhead::api::hysteresis::Sample;
use bulkhead::api::volume::{Check, CheckMode, VolumeState};
use bulkhead::node_agent::probes::watch::KernelLog;
use bulkhead::node_agent::probes::{Kind, Seen, Subject};
use libtest_mimic::Trial;
use rustix::mount::MountFlags;

use super::bench::{Bench, NONE, good, local, run, staged, subject, unmount, wrong};
use super::cleaning::trial;

pub fn trials() -> Vec<Trial> {
    let known = trial("probes_blocking::bad_blocks_that_the_kernel_knows", bad_blocks_that_the_kernel_knows);
    vec![
        trial("probes_blocking::a_disk_that_is_cut_away", a_disk_that_is_cut_away),
        trial("probes_blocking::a_scrub_finds_what_cannot_be_read", a_scrub_finds_what_cannot_be_read),
        trial("probes_blocking::a_canary_is_written_and_read_back", a_canary_is_written_and_read_back),
        trial("probes_blocking::a_canary_is_written_nowhere_else", a_canary_is_written_nowhere_else),
        trial("probes_blocking::a_file_system_that_is_full", a_file_system_that_is_full),
        // Only some drivers of disks keep such a list; a table tests how it is understood.
        if disk_with_bad_blocks().is_some() { known } else { known.with_kind("no such disk").with_ignored_flag(true) },
    ]
}

fn sample(seen: &[Seen], check: Check) -> &Sample {
    &seen.iter().find(|one| one.check == check).unwrap_or_else(|| panic!("{check:?} is not told: {seen:#?}")).sample
}

async fn a_disk_that_is_cut_away() {
    let mut bench = Bench::new();
    bench.modes.insert(Check::ReadProbe, CheckMode::Active);
    let (disk, path) = (bench.disk("a"), bench.folder("v"));
    let (spared, untouched) = (bench.disk("b"), bench.folder("w"));
    disk.mount(&path, "defaults");
    spared.mount(&untouched, "defaults");
    let log = KernelLog::open().unwrap();
    let gatherer = bench.gatherer.clone();
    let reading = tokio::spawn(async move {
        while let Ok(line) = log.next().await {
            gatherer.note(line);
        }
    });
    let (volume, other) = (bench.first(local(&path)).await, bench.first(local(&untouched)).await);
    assert_eq!(good(&bench.probe(&volume).await), [Check::Capacity, Check::ReadProbe]);
    let whole = fs::metadata(&disk.image).unwrap().len();
    run("truncate", &["--size", "0", disk.image.to_str().unwrap()]);
    assert_eq!(wrong(&bench.probe(&volume).await), [(Check::ReadProbe, "IOError")]);
    bench.until_wrong(&volume, &[(Check::KernelLog, "IOError")]).await;
    good(&bench.look(&other).await);
    good(&bench.probe(&other).await);
    run("truncate", &["--size", &whole.to_string(), disk.image.to_str().unwrap()]);
    assert_eq!(wrong(&bench.probe(&volume).await), NONE);
    reading.abort();
}

async fn a_scrub_finds_what_cannot_be_read() {
    let mut bench = Bench::new();
    bench.modes.insert(Check::Scrub, CheckMode::Active);
    bench.modes.insert(Check::ReadProbe, CheckMode::Disabled);
    let disk = bench.disk("a");
    let volume = bench.first(Subject { block: true, ..local(&disk.device) }).await;
    assert_eq!(good(&bench.probe(&volume).await), [Check::Scrub]);
    // The last quarter is gone.
    run("truncate", &["--size", "12M", disk.image.to_str().unwrap()]);
    let seen = bench.probe(&volume).await;
    assert_eq!(wrong(&seen), [(Check::Scrub, "BadBlocks")]);
    let Sample::Bad(trouble) = sample(&seen, Check::Scrub) else { panic!("{seen:?}") };
    assert!(trouble.message.contains(&format!("at byte {}", 12 << 20)), "{}", trouble.message);
    run("truncate", &["--size", "16M", disk.image.to_str().unwrap()]);
    assert_eq!(good(&bench.probe(&volume).await), [Check::Scrub]);
}

async fn a_canary_is_written_and_read_back() {
    let mut bench = Bench::new();
    bench.modes.insert(Check::WriteProbe, CheckMode::Active);
    let (disk, path) = (bench.disk("a"), bench.folder("v"));
    disk.mount(&path, "errors=remount-ro");
    // Nothing is written to what was not seen first, nor without being asked to.
    assert_eq!(good(&bench.probe(&local(&path)).await), [Check::Capacity]);
    let volume = bench.first(local(&path)).await;
    let reader = Subject { read_only: true, ..volume.clone() };
    assert_eq!(good(&bench.probe(&reader).await), [Check::Capacity]);
    bench.modes.remove(&Check::WriteProbe);
    bench.probe(&volume).await;
    assert!(!path.join(".bulkhead").exists());
    bench.modes.insert(Check::WriteProbe, CheckMode::Active);
    assert_eq!(good(&bench.probe(&volume).await), [Check::Capacity, Check::WriteProbe]);
    let canary = path.join(".bulkhead/canary-worker-1");
    let first = fs::read(&canary).unwrap();
    assert_eq!((first.len(), fs::metadata(path.join(".bulkhead")).unwrap().mode() & 0o777), (4096, 0o700));
    good(&bench.probe(&volume).await);
    assert_ne!(fs::read(&canary).unwrap(), first, "another text each time");
    disk.break_file_system();
    assert_eq!(wrong(&bench.probe(&volume).await), [(Check::WriteProbe, "ReadOnlyRemount")]);
    unmount(&path);
    let status = Command::new("e2fsck").arg("-fy").arg(&disk.device).output().unwrap().status;
    assert!(status.code().unwrap() <= 1, "{status}");
    disk.mount(&path, "defaults");
    good(&bench.probe(&volume).await);
}

async fn a_canary_is_written_nowhere_else() {
    let mut bench = Bench::new();
    bench.modes.insert(Check::WriteProbe, CheckMode::Active);
    let (path, elsewhere) = (bench.folder("v"), bench.folder("elsewhere"));
    let volume = bench.first(local(&path)).await;
    let ours = path.join(".bulkhead");
    // The tenant lets our folder lead elsewhere, by a link or a mount, or our file be another one.
    std::os::unix::fs::symlink(&elsewhere, &ours).unwrap();
    assert_eq!(sample(&bench.probe(&volume).await, Check::WriteProbe), &Sample::Unknown);
    fs::remove_file(&ours).unwrap();
    fs::create_dir(&ours).unwrap();
    super::world::bind(&elsewhere, &ours);
    assert_eq!(sample(&bench.probe(&volume).await, Check::WriteProbe), &Sample::Unknown);
    unmount(&ours);
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    let victim = bench.root.join("victim");
    fs::write(&victim, "precious").unwrap();
    let canary = ours.join("canary-worker-1");
    for lead in [fs::hard_link::<_, _>, std::os::unix::fs::symlink::<_, _>] {
        lead(&victim, &canary).unwrap();
        assert_eq!(sample(&bench.probe(&volume).await, Check::WriteProbe), &Sample::Unknown);
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        fs::remove_file(&canary).unwrap();
    }
    run("mkfifo", &[canary.to_str().unwrap()]);
    assert!(matches!(sample(&bench.probe(&volume).await, Check::WriteProbe), Sample::Unknown));
    fs::remove_file(&canary).unwrap();
    good(&bench.probe(&volume).await);
    // The path of the volume itself is not followed either.
    let link = bench.root.join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let linked = bench.first(local(&link)).await;
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
    bench.probe(&linked).await;
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0, "a link that leads elsewhere now");
}

async fn a_file_system_that_is_full() {
    let bench = Bench::new();
    let path = bench.folder("v");
    rustix::mount::mount("tmpfs", &path, "tmpfs", MountFlags::empty(), Some(c"size=1M,nr_inodes=8")).unwrap();
    let kind = Kind::CSI { driver: "csi.example.com".into(), handle: "h".into() };
    let volume = bench.first(Subject { expected: vec![staged(&path)], ..subject(kind) }).await;
    good(&bench.probe(&volume).await);
    let mut number = 0;
    while fs::write(path.join(number.to_string()), "").is_ok() {
        number += 1;
    }
    let seen = bench.probe(&volume).await;
    assert_eq!(wrong(&seen), [(Check::Capacity, "OutOfInodes")]);
    assert!(matches!(sample(&seen, Check::Capacity), Sample::Bad(trouble) if trouble.state == VolumeState::Degraded));
    (0..number).for_each(|number| fs::remove_file(path.join(number.to_string())).unwrap());
    good(&bench.probe(&volume).await);
    let _ = fs::write(path.join("big"), vec![1; 2 << 20]).unwrap_err();
    assert_eq!(wrong(&bench.probe(&volume).await), [(Check::Capacity, "OutOfSpace")]);
}

/// A disk of this machine whose driver keeps a list of bad blocks: persistent memory does.
fn disk_with_bad_blocks() -> Option<std::path::PathBuf> {
    let disks = fs::read_dir("/sys/block").ok()?.filter_map(Result::ok).map(|entry| entry.path());
    disks.into_iter().find(|disk| disk.join("badblocks").exists())
}

async fn bad_blocks_that_the_kernel_knows() {
    let bench = Bench::new();
    let disk = disk_with_bad_blocks().unwrap();
    let device = std::path::Path::new("/dev").join(disk.file_name().unwrap());
    let volume = bench.first(Subject { block: true, ..local(&device) }).await;
    let listed = !fs::read_to_string(disk.join("badblocks")).unwrap().trim().is_empty();
    let is_bad = matches!(sample(&bench.look(&volume).await, Check::BadBlocks), Sample::Bad(_));
    assert_eq!(is_bad, listed);
}
