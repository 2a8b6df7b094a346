//! Volumes as containers see them, and what of it is in the array.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};

use bulkhead_testbed::journal::Journal;
use bulkhead_testbed::ledger::{Event, Stamp};
use bulkhead_testbed::oracle;
use tonic::Code;

use crate::bed::{Bed, WRITER, code, wait};

const UID: &str = "0f5c3b2a-1111-4222-8333-94445555abcd";

pub fn a_volume_is_a_file_system() {
    let bed = Bed::new();
    let plugin = bed.plugin("a");
    let volume = bed.volume("v");
    let at = plugin.mounted(&volume, "a", false);

    let folder = at.target.join("folder");
    fs::create_dir(&folder).unwrap();
    let file = folder.join("file");
    let text: Vec<u8> = (0..300_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    fs::write(&file, &text).unwrap();
    assert_eq!(fs::read(&file).unwrap(), text, "longer than one request");
    let opened = OpenOptions::new().read(true).write(true).open(&file).unwrap();
    opened.write_all_at(b"xyz", 4095).unwrap();
    opened.set_len(4097).unwrap();
    assert_eq!(&fs::read(&file).unwrap()[4095..], b"xy");
    opened.set_len(8192).unwrap();
    assert_eq!(&fs::read(&file).unwrap()[4095..4099], b"xy\0\0");
    opened.sync_all().unwrap();
    drop(opened);

    assert_eq!(fs::remove_dir(&folder).unwrap_err().kind(), io::ErrorKind::DirectoryNotEmpty);
    fs::rename(&file, at.target.join("renamed")).unwrap();
    fs::write(at.target.join("other"), b"other").unwrap();
    fs::rename(at.target.join("other"), at.target.join("renamed")).unwrap();
    assert_eq!(fs::read(at.target.join("renamed")).unwrap(), b"other");
    let mut names: Vec<_> = fs::read_dir(&at.target).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["folder", "renamed"]);
    fs::remove_dir(&folder).unwrap();
    fs::remove_file(at.target.join("renamed")).unwrap();
    assert_eq!(File::open(&file).unwrap_err().kind(), io::ErrorKind::NotFound);
    std::os::unix::fs::chown(&at.target, Some(7), Some(8)).unwrap();
    let metadata = fs::metadata(&at.target).unwrap();
    assert_eq!((metadata.uid(), metadata.gid()), (7, 8));

    let full = fs::write(at.target.join("large"), vec![1; 17 << 20]).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    assert_eq!(plugin.stats(&volume, &at.target).unwrap().total, 16 << 20);
    assert_eq!(code(plugin.stats("other", &at.target)), Code::NotFound);

    let reader = bed.path("a/reader");
    plugin.publish(&volume, &at.staging, &reader, false, true).unwrap();
    assert_eq!(fs::write(reader.join("no"), b"").unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);

    for target in [&at.target, &reader] {
        plugin.unpublish(&volume, target).unwrap();
        plugin.unpublish(&volume, target).unwrap();
        assert!(!target.exists());
    }
    plugin.unstage(&volume, &at.staging).unwrap();
    plugin.unstage(&volume, &at.staging).unwrap();
    assert!(bed.mounts().is_empty(), "{:?}", bed.mounts());
    let ended = bed.array.ledger().entries().pop().unwrap().event;
    assert_eq!(ended, Event::Unstaged, "{}", plugin.log());
}

pub fn a_writer_whose_node_is_cut_off_is_refused_and_its_data_is_found_elsewhere() {
    let bed = Bed::new();
    let (first, second) = (bed.plugin("a"), bed.plugin("b"));
    let volume = bed.volume("v");
    let at = first.mounted(&volume, "a", false);
    // As in a container: a file of the kubelet's in the folder of the pod, and a mount namespace of its own.
    let hosts = bed.path(&format!("pods/{UID}/etc-hosts"));
    fs::create_dir_all(hosts.parent().unwrap()).unwrap();
    fs::write(&hosts, b"").unwrap();
    let script = format!("mount --bind {} /etc/hosts && exec \"$@\"", hosts.display());
    let journal = at.target.join("journal");
    let args =
        ["--mount", "sh", "-c", &script, "writer", WRITER, "--every=20ms", "--journal", journal.to_str().unwrap()];
    let writer = bed.start("writer", "unshare", &args);
    let log = || fs::read_to_string(bed.path("writer.log")).unwrap();

    wait("five records", || log().contains("wrote 5"));
    let of_the_pod = |event: &Event| matches!(event, Event::Wrote { tag, .. } if &**tag == UID);
    assert!(bed.array.ledger().entries().iter().filter(|entry| of_the_pod(&entry.event)).count() >= 5);
    let sequences: Vec<u64> = bed.array.ledger().read(|entries| {
        let writes = entries.iter().filter_map(|entry| match entry.event {
            Event::Wrote { sequence, .. } => Some(sequence),
            _ => None,
        });
        writes.collect()
    });
    assert!(sequences.is_sorted_by(|a, b| a < b), "{sequences:?}");

    bed.detach(&volume, "a");
    let cut = bed.array.ledger().now();
    wait("a refusal", || log().contains("Input/output error"));
    assert!(bed.array.ledger().refused_writes(&volume, "a", cut) > 0);
    assert_eq!(bed.array.ledger().writes(&volume, "a", cut), 0);
    let elsewhere = second.mounted(&volume, "b", false);
    let mut journal = Journal::open(&elsewhere.target.join("journal"), false).unwrap();
    let last = log().lines().filter_map(|line| line.strip_prefix("wrote ")).next_back().unwrap().to_owned();
    assert_eq!(journal.last().to_string(), last, "what was acknowledged is there");
    journal.append("b").unwrap();
    let refused = log().matches("refused").count();
    wait("the zombie goes on", || log().matches("refused").count() > refused);
    let verdict = oracle::judge(bed.array.ledger());
    assert!(verdict.is_clean() && bed.array.ledger().writes(&volume, "b", Stamp::START) > 0, "{verdict}");
    drop(writer);
}

pub fn a_raw_block_volume_is_a_loop_device_that_goes_with_it() {
    let bed = Bed::new();
    let (first, second) = (bed.plugin("a"), bed.plugin("b"));
    let volume = bed.volume("v");
    let at = first.mounted(&volume, "a", true);
    let metadata = fs::metadata(&at.target).unwrap();
    assert!(metadata.file_type().is_block_device());
    let backing = format!("/sys/block/loop{}/loop/backing_file", rustix::fs::minor(metadata.rdev()));
    let is_attached = || fs::read_to_string(&backing).is_ok_and(|file| file.contains(at.staging.to_str().unwrap()));
    assert!(is_attached());
    assert_eq!(first.stats(&volume, &at.target).unwrap().total, 16 << 20);

    let mut journal = Journal::open(&at.target, true).unwrap();
    assert_eq!(journal.append("a").unwrap(), 1);
    let by_the_kernel = |event: &Event| matches!(event, Event::Wrote { tag, .. } if &**tag == "kernel");
    assert!(bed.array.ledger().entries().iter().any(|entry| by_the_kernel(&entry.event)));
    bed.detach(&volume, "a");
    assert!(journal.append("a").is_err());
    fs::metadata(&at.staging).expect("a kubelet must be able to look at it");
    let elsewhere = second.mounted(&volume, "b", true);
    assert_eq!(Journal::open(&elsewhere.target, true).unwrap().last(), 1);

    drop(journal);
    first.unpublish(&volume, &at.target).unwrap();
    assert!(!at.target.exists());
    first.unstage(&volume, &at.staging).unwrap();
    assert!(!is_attached());
    assert_eq!(fs::read_dir(&at.staging).unwrap().count(), 0);
    second.unpublish(&volume, &elsewhere.target).unwrap();
    second.unstage(&volume, &elsewhere.staging).unwrap();
    assert!(bed.mounts().is_empty(), "{:?}", bed.mounts());
}
