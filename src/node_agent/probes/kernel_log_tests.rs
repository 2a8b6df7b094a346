use std::time::Duration;

use proptest::prelude::*;

use super::super::testing::{disk, local, on_disk, reasons};
use super::*;

fn line(text: &str) -> Option<Line> {
    parse(&format!("3,1234,5678,-;{text}\n SUBSYSTEM=block\n DEVICE=b7:0\n"))
}

#[test]
fn lines_of_the_kernel_are_understood() {
    let device = |name: &str, sector, event| Some(Line::Device(name.into(), sector, event));
    for (text, expected) in [
        (
            "I/O error, dev loop0, sector 2048 op 0x0:(READ) flags 0x800 phys_seg 1 prio class 2",
            device("loop0", Some(2048), Event::IOError),
        ),
        (
            "blk_update_request: I/O error, dev sda, sector 8 op 0x1:(WRITE) flags 0x0",
            device("sda", Some(8), Event::IOError),
        ),
        (
            "critical medium error, dev sdb, sector 99 op 0x0:(READ) flags 0x0",
            device("sdb", Some(99), Event::MediumError),
        ),
        ("blk_update_request: critical medium error, dev sdb, sector 1", device("sdb", Some(1), Event::MediumError)),
        ("timeout error, dev sdb, sector 1 op 0x0:(READ)", device("sdb", Some(1), Event::Timeout)),
        ("I/O error, dev sda, sector 8 op 0x3:(DISCARD) flags 0x800", None),
        ("operation not supported error, dev loop1, sector 8 op 0x9:(WRITE_ZEROES)", None),
        ("critical space allocation error, dev dm-3, sector 8 op 0x1:(WRITE)", None),
        ("Buffer I/O error on dev sda1, logical block 3, async page read", device("sda1", None, Event::IOError)),
        ("Buffer I/O error on device dm-0, logical block 3", device("dm-0", None, Event::IOError)),
        ("sd 2:0:0:0: [sdc] tag#0 rejecting I/O to offline device", device("sdc", None, Event::Offline)),
        ("sd 2:0:0:0: rejecting I/O to offline device", None),
        (
            "nvme0n1: I/O Cmd(0x2) @ LBA 8, 8 blocks, I/O Error (sct 0x0 / sc 0x4)",
            device("nvme0n1", None, Event::IOError),
        ),
        ("nvme nvme0: I/O 12 QID 3 timeout, aborting", None),
        (
            "XFS (sda1): Metadata I/O Error (0x1) detected. Shutting down filesystem.",
            device("sda1", None, Event::Shutdown),
        ),
        ("XFS (dm-2): Log I/O error detected. Shutting down filesystem", device("dm-2", None, Event::Shutdown)),
        ("XFS (sda1): Ending clean mount", None),
        ("EXT4-fs (loop0): shut down requested (1)", device("loop0", None, Event::Shutdown)),
        ("EXT4-fs (loop0): Remounting filesystem read-only", None),
        ("nfs: server 10.0.0.1 not responding, still trying", Some(Line::Server("10.0.0.1".into(), true))),
        (
            "nfs: server files.example.com not responding, timed out",
            Some(Line::Server("files.example.com".into(), true)),
        ),
        ("nfs: server 10.0.0.1 OK", Some(Line::Server("10.0.0.1".into(), false))),
        ("I/O error, dev ../../x, sector 1", None),
        ("I/O error, dev ", None),
        ("", None),
    ] {
        assert_eq!(line(text), expected, "{text}");
    }
}

#[test]
fn what_a_program_writes_there_is_no_fact() {
    let text = "I/O error, dev sda, sector 1 op 0x0:(READ)";
    assert!(parse(&format!("3,1,2,-;{text}")).is_some());
    assert_eq!(parse(&format!("11,1,2,-;{text}")), None, "facility 1: written to /dev/kmsg by somebody");
    for record in [text.to_owned(), format!("x,1,2;{text}"), ";".into(), String::new()] {
        assert_eq!(parse(&record), None, "{record}");
    }
}

fn fact(device: &str, sector: Option<u64>, kind: Event, age: u64) -> Fact {
    Fact { number: 1, device: device.into(), sector, kind, age: Duration::from_secs(age), mounts: Vec::new() }
}

#[test]
fn a_line_is_of_the_volume_whose_device_it_names() {
    let mut view = on_disk("rw", "rw");
    view.events.insert(local().name);
    // A partition from sector 100 to 199 of sda.
    view.devices.insert(
        disk(),
        Some(BlockDevice { name: "sda1".into(), disk: "sda".into(), start: 100, sectors: 100, ..Default::default() }),
    );
    for (fact, expected) in [
        (fact("sda", Some(150), Event::IOError, 5), Some("IOError")),
        (fact("sda", Some(99), Event::IOError, 5), None),
        (fact("sda", Some(200), Event::IOError, 5), None),
        (fact("sda", None, Event::Offline, 5), Some("DeviceMissing")),
        (fact("sda1", Some(3), Event::IOError, 5), Some("IOError")),
        (fact("sda1", Some(3), Event::IOError, 61), None),
        (fact("sda1", Some(3), Event::MediumError, 59), Some("BadBlocks")),
        (fact("sda2", Some(150), Event::IOError, 5), None),
        (fact("sdb", Some(150), Event::IOError, 5), None),
    ] {
        view.kernel = vec![fact.clone()];
        let found = reasons(&look(&view, &local()));
        assert_eq!(
            found,
            expected.map(|reason| (Check::KernelLog, reason)).into_iter().collect::<Vec<_>>(),
            "{fact:?}"
        );
    }
    view.kernel = vec![fact("sda1", None, Event::Timeout, 1), fact("sda1", None, Event::MediumError, 50)];
    assert_eq!(reasons(&look(&view, &local())), [(Check::KernelLog, "BadBlocks")], "the worst is told");
    view.events.clear();
    assert_eq!(look(&view, &local())[0].sample, Sample::Unknown, "the lines were counted, and are not old yet");
}

#[test]
fn a_shutdown_lasts_as_long_as_the_mount() {
    let mut view = on_disk("rw", "rw");
    let id = view.mount_of("/v").unwrap().id;
    view.kernel = vec![Fact { mounts: vec![id], ..fact("sda1", None, Event::Shutdown, 9999) }];
    assert_eq!(reasons(&look(&view, &local())), [(Check::KernelLog, "FilesystemShutdown")]);
    view.kernel = vec![Fact { mounts: vec![id + 1000], ..fact("sda1", None, Event::Shutdown, 1) }];
    assert_eq!(reasons(&look(&view, &local())), []);
}

proptest! {
    #[test]
    fn nothing_panics(record in "\\PC{0,200}", text in "(XFS|nfs: server|I/O error, dev|sd|\\[|\\(| |[a-z0-9,:;()\\[\\]]){0,20}") {
        let _ = parse(&record);
        let _ = line(&text);
    }
}
