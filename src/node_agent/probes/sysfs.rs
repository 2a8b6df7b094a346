//! Reads of sysfs: answered by the kernel from memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::mounts::mountinfo::{Device, Mount};
use super::device::{Stall, parse_bad_blocks, parse_completed, parse_in_flight};
use super::view::{BlockDevice, Counters, Wear};

/// Where the kernel shows its devices.
pub const SYSFS: &str = "/sys";

fn text(folder: &Path, name: &str) -> Option<String> {
    Some(fs::read_to_string(folder.join(name)).ok()?.trim().to_owned())
}

fn number(folder: &Path, name: &str) -> Option<u64> {
    text(folder, name)?.parse().ok()
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// What the kernel tells of a block device; `None` if it has none of that number. `stall` is what was seen of its requests
/// before, `since` that long ago.
pub fn block_device(device: Device, stall: &mut Stall, since: Duration) -> Option<BlockDevice> {
    let folder = fs::canonicalize(format!("{SYSFS}/dev/block/{device}")).ok()?;
    let is_part = folder.join("partition").exists();
    let disk = if is_part { folder.parent()?.to_owned() } else { folder.clone() };
    let (in_flight, completed) = (text(&folder, "inflight"), text(&folder, "stat"));
    let requests = in_flight.as_deref().and_then(parse_in_flight).zip(completed.as_deref().and_then(parse_completed));
    let wwid = ["wwid", "device/wwid", "device/serial", "serial", "dm/uuid", "md/uuid"];
    let bad = text(&disk, "badblocks").map(|text| parse_bad_blocks(&text)).unwrap_or_default();
    Some(BlockDevice {
        name: file_name(&folder),
        start: number(&folder, "start").unwrap_or_default(),
        sectors: number(&folder, "size")?,
        read_only: number(&folder, "ro") == Some(1),
        state: text(&disk, "device/state"),
        disk_sequence: number(&disk, "diskseq"),
        wwid: wwid.iter().find_map(|name| text(&disk, name)).filter(|text| !text.is_empty()),
        raid: text(&disk, "md/array_state").map(|state| (state, number(&disk, "md/degraded").unwrap_or_default())),
        suspended: number(&disk, "dm/suspended") == Some(1),
        bad_blocks: bad,
        stalled: requests.and_then(|(in_flight, completed)| stall.add(in_flight, completed, since)),
        wear: text(&disk, "device/pre_eol_info").and_then(|text| {
            let value = u8::from_str_radix(text.trim_start_matches("0x"), 16).ok()?;
            Some(Wear { pre_end_of_life: value })
        }),
        disk: file_name(&disk),
    })
}

/// Error counters of a mounted file system on a block device, where it keeps some.
pub fn counters(mount: &Mount, device: Device) -> Option<Counters> {
    match mount.fs_type.as_str() {
        "ext2" | "ext3" | "ext4" => {
            let name = file_name(&fs::canonicalize(format!("{SYSFS}/dev/block/{device}")).ok()?);
            let folder = PathBuf::from(format!("{SYSFS}/fs/ext4/{name}"));
            let errors = number(&folder, "errors_count")?;
            Some(Counters { errors, corruption: 0, last: number(&folder, "last_error_time") })
        }
        "btrfs" => btrfs(device),
        _ => None,
    }
}

/// btrfs counts by device; which file system has the device is told by links.
fn btrfs(device: Device) -> Option<Counters> {
    let wanted = fs::canonicalize(format!("{SYSFS}/dev/block/{device}")).ok()?;
    let entries = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let has = |folder: &PathBuf| {
        entries(folder.join("devices")).any(|entry| fs::canonicalize(entry.path()).is_ok_and(|path| path == wanted))
    };
    let folder = entries(format!("{SYSFS}/fs/btrfs").into()).map(|entry| entry.path()).find(has)?;
    let mut sum = Counters::default();
    for entry in entries(folder.join("devinfo")) {
        let stats = text(&entry.path(), "error_stats").unwrap_or_default();
        for (name, count) in stats.lines().filter_map(|line| line.split_once(' ')) {
            let count: u64 = count.trim().parse().unwrap_or_default();
            sum.errors += count;
            sum.corruption += if name == "corruption_errs" { count } else { 0 };
        }
    }
    Some(sum)
}

/// The number of the block device that a mount names as its source, for a file system that has a number without one.
pub fn device_of_source(mount: &Mount) -> Option<Device> {
    let name = mount.source.strip_prefix("/dev/")?;
    let device = |name: &str| text(Path::new(SYSFS), &format!("class/block/{name}/dev"))?.parse().ok();
    let Some(mapped) = name.strip_prefix("mapper/") else {
        return Some(name).filter(|name| !name.contains('/')).and_then(device);
    };
    let mut all = fs::read_dir(format!("{SYSFS}/class/block")).ok()?.filter_map(Result::ok);
    let is_it = |folder: &Path| text(folder, "dm/name").is_some_and(|name| name == mapped);
    all.find(|entry| is_it(&entry.path())).and_then(|entry| device(&file_name(&entry.path())))
}
