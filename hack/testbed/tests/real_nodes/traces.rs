//! What a testbed leaves on the machine if nobody removes it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// What a testbed's nodes leave on the machine if nobody removes it. Names and numbers of networks are used again by the next
/// testbed, so what is looked for is what the kernel never gives twice.
pub struct Traces {
    processes: Vec<i32>,
    loop_device: String,
    /// `ifindex` of the host's ends of its networks.
    interfaces: Vec<String>,
    /// Hierarchies and inodes of its control groups: each hierarchy counts its inodes by itself.
    groups: Vec<(u64, u64)>,
}

impl Traces {
    /// Those of the testbed whose networks are `10.{second_byte}.0.0/16`.
    pub fn of(second_byte: u8, loop_device: &str) -> Self {
        assert!(loop_device.starts_with("/dev/loop"), "{loop_device}");
        let group = format!("bulkhead-testbed-{second_byte}");
        let interfaces = interfaces().into_iter().filter(|(name, _)| name.starts_with(&format!("bh{second_byte}-")));
        Self {
            processes: processes_of(second_byte),
            loop_device: loop_device.trim_start_matches("/dev/").to_owned(),
            interfaces: interfaces.map(|(_, index)| index).collect(),
            groups: control_groups().into_iter().filter(|(name, _)| *name == group).map(|(_, group)| group).collect(),
        }
    }

    pub fn left(&self) -> Vec<String> {
        let processes =
            self.processes.iter().filter(|process| lives(process)).map(|process| format!("process {process}"));
        let interfaces =
            interfaces().into_iter().filter(|(_, index)| self.interfaces.contains(index)).map(|(name, _)| name);
        let groups =
            control_groups().into_iter().filter(|(_, group)| self.groups.contains(group)).map(|(name, _)| name);
        let device = Path::new("/sys/block").join(&self.loop_device).join("loop").exists();
        let device = device.then(|| self.loop_device.clone());
        let mut left = mounts_of_nodes();
        left.extend(processes.take(1).chain(interfaces.take(1)).chain(groups.take(1)).chain(device));
        left
    }

    pub async fn assert_gone(&self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !self.left().is_empty() {
            assert!(Instant::now() < deadline, "left behind: {:?}", self.left());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Whether the process is there and no zombie.
pub fn lives(process: &i32) -> bool {
    Path::new(&format!("/proc/{process}/ns/mnt")).read_link().is_ok()
}

/// The host's numbers of the processes in the control groups of this testbed.
pub fn processes_of(second_byte: u8) -> Vec<i32> {
    let group = format!(":/bulkhead-testbed-{second_byte}/");
    let processes = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let groups = fs::read_to_string(entry.path().join("cgroup")).ok()?;
        let process = entry.file_name().to_str()?.parse().ok()?;
        groups.contains(&group).then_some(process)
    });
    processes.collect()
}

/// The machine's network interfaces: name and index.
fn interfaces() -> Vec<(String, String)> {
    let entries = fs::read_dir("/sys/class/net").unwrap().flatten();
    entries
        .filter_map(|entry| {
            let index = fs::read_to_string(entry.path().join("ifindex")).ok()?;
            Some((entry.file_name().into_string().ok()?, index))
        })
        .collect()
}

/// The machine's uppermost control groups, of all hierarchies: name; hierarchy and inode.
fn control_groups() -> Vec<(String, (u64, u64))> {
    let root = Path::new("/sys/fs/cgroup");
    let hierarchies = fs::read_dir(root).unwrap().flatten().map(|entry| entry.path()).chain([root.to_owned()]);
    hierarchies
        .flat_map(|hierarchy| fs::read_dir(hierarchy).into_iter().flatten().flatten())
        .filter_map(|entry| {
            let group = entry.metadata().ok()?;
            Some((entry.file_name().into_string().ok()?, (group.dev(), group.ino())))
        })
        .collect()
}

/// The host's mounts that belong to nodes. There are none, not even while nodes run.
fn mounts_of_nodes() -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let ours = |line: &&str| line.contains("bulkhead-testbed-") || line.contains("/var/lib/kubelet");
    mounts.lines().filter(ours).map(str::to_owned).collect()
}
