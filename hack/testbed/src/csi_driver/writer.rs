//! Who writes: the pod of the process that sent a request to the file system.

use std::fs;

/// For writes of no process: the kernel's own, such as those of a loop device.
const KERNEL: &str = "kernel";
/// For writes of a process that is in no pod.
pub(super) const NODE: &str = "node";
/// The shortest and the longest uid of a pod: those of static pods have no dashes.
const UID_LENGTH: std::ops::RangeInclusive<usize> = 32..=36;

/// The uid of the writer's pod, or [`KERNEL`], or [`NODE`]. `pid` is as this process sees it; 0 for none.
pub(super) fn tag(pid: u32) -> String {
    if pid == 0 {
        return KERNEL.to_owned();
    }
    // A process that has ended meanwhile has no files any more; its write is somebody's all the same.
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    if let Some(uid) = of_cgroups(&read("cgroup")).or_else(|| of_mounts(&read("mountinfo"))) {
        return uid;
    }
    let is_kernel_thread = read("cmdline").is_empty();
    if is_kernel_thread { KERNEL.to_owned() } else { NODE.to_owned() }
}

/// A kubelet that makes cgroups of pods has the uid in their path.
fn of_cgroups(cgroups: &str) -> Option<String> {
    cgroups.lines().find_map(|line| line.split('/').find_map(of_cgroup))
}

/// `pod<uid>` of cgroupfs, or `kubepods-burstable-pod<uid, underscored>.slice` of systemd.
fn of_cgroup(name: &str) -> Option<String> {
    let name = name.strip_suffix(".slice").unwrap_or(name);
    let (_, uid) = name.rsplit_once("pod")?;
    uid_of(&uid.replace('_', "-"))
}

/// Without such cgroups: the files that the kubelet puts into every container come from the pod's own folder.
fn of_mounts(mounts: &str) -> Option<String> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        if point != "/etc/hosts" && point != "/dev/termination-log" {
            return None;
        }
        let (_, below) = root.split_once("/pods/")?;
        uid_of(below.split('/').next()?)
    })
}

fn uid_of(text: &str) -> Option<String> {
    let fits = UID_LENGTH.contains(&text.len()) && text.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    fits.then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0f5c3b2a-1111-4222-8333-94445555abcd";

    #[test]
    fn the_pod_is_found_in_the_cgroups_of_either_driver() {
        let cgroupfs = format!("12:pids:/kubepods/burstable/pod{UID}/0123\n0::/\n");
        assert_eq!(of_cgroups(&cgroupfs).as_deref(), Some(UID));
        let systemd = format!(
            "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{}.slice/cri-1.scope\n",
            UID.replace('-', "_")
        );
        assert_eq!(of_cgroups(&systemd).as_deref(), Some(UID));
        assert_eq!(of_cgroups("1:cpu:/user.slice/podman-0123.scope\n0::/\n"), None);
    }

    #[test]
    fn the_pod_is_found_in_the_mounts_of_a_container_and_not_of_the_node() {
        let container = format!("40 30 8:1 /var/lib/kubelet/pods/{UID}/etc-hosts /etc/hosts rw - ext4 /dev/sda1 rw\n");
        assert_eq!(of_mounts(&container).as_deref(), Some(UID));
        let node =
            format!("40 30 8:1 /pods/{UID}/volumes/x /var/lib/kubelet/pods/{UID}/volume-subpaths/x rw - ext4 a rw\n");
        assert_eq!(of_mounts(&node), None);
        assert_eq!(of_mounts("garbage\n"), None);
    }

    #[test]
    fn a_process_in_no_pod_and_no_process_at_all_are_told_apart() {
        assert_eq!(tag(std::process::id()), NODE);
        assert_eq!(tag(0), KERNEL);
    }
}
