# The first process of a real node: gives it a file system of its own and stays until it is killed, which ends
# all of the node. Runs in new namespaces of every kind, whose mounts are private.
# Arguments: the node's disk, which survives a reboot; its name; its boot id; its control group; the upstream programs.
set -eu
root=$1 name=$2 boot_id=$3 group=$4
shift 4
hostname "$name"

# The system comes from the host, read-only; what a node writes is on its own disk.
mount --bind "$root" "$root"
for folder in usr bin sbin lib lib32 lib64 libx32; do
    if [ -L "/$folder" ]; then
        ln -sfn "$(readlink "/$folder")" "$root/$folder"
    elif [ -d "/$folder" ]; then
        mkdir -p "$root/$folder"
        mount --bind -o ro "/$folder" "$root/$folder"
    fi
done
mkdir -p "$root/proc" "$root/sys" "$root/dev" "$root/run" "$root/tmp" "$root/mnt" "$root/etc" "$root/var/log" \
    "$root/opt/programs" "$root/old"
for file in passwd group nsswitch.conf ld.so.cache ld.so.conf protocols services alternatives ssl fuse.conf; do
    [ ! -e "/etc/$file" ] || [ -e "$root/etc/$file" ] || cp -a "/etc/$file" "$root/etc/$file"
done
: >"$root/etc/resolv.conf"
printf '127.0.0.1 localhost\n127.0.0.1 %s\n' "$name" >"$root/etc/hosts"
[ -s "$root/etc/machine-id" ] || tr -d - </proc/sys/kernel/random/uuid >"$root/etc/machine-id"
chmod 1777 "$root/tmp"
for program in "$@"; do
    : >"$root/opt/programs/${program##*/}"
    mount --bind -o ro "$program" "$root/opt/programs/${program##*/}"
done
mount --rbind /dev "$root/dev"
mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
# A new one shows the devices of the node's own network.
mount -t sysfs -o nosuid,nodev,noexec sysfs "$root/sys"
# Its part of the machine's control groups, which it takes for the whole.
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mount --bind "/sys/fs/cgroup/$group" "$root/sys/fs/cgroup"
else
    mount -t tmpfs -o nosuid,nodev,noexec,mode=755 cgroup "$root/sys/fs/cgroup"
    for hierarchy in /sys/fs/cgroup/*; do
        if [ -L "$hierarchy" ]; then
            cp -P "$hierarchy" "$root$hierarchy"
        elif [ -d "$hierarchy/$group" ]; then
            mkdir "$root$hierarchy"
            mount --bind "$hierarchy/$group" "$root$hierarchy"
        fi
    done
fi
mount -t tmpfs -o nosuid,nodev,mode=755 run "$root/run"
mkdir -p "$root/run/testbed" "$root/run/lock"
echo "$boot_id" >"$root/run/testbed/boot_id"
mount --bind -o ro "$root/run/testbed/boot_id" "$root/proc/sys/kernel/random/boot_id"
# A kubelet sets these; they are the machine's, so it sets copies.
for setting in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys \
    kernel/keys/root_maxbytes; do
    if [ -e "/proc/sys/$setting" ]; then
        mkdir -p "$root/run/testbed/${setting%/*}"
        cat "/proc/sys/$setting" >"$root/run/testbed/$setting"
        mount --bind "$root/run/testbed/$setting" "$root/proc/sys/$setting"
    fi
done
cd "$root"
pivot_root . old
umount -l /old
# What a pod mounts bidirectionally reaches the node, and nothing beyond it.
mount --make-rshared /
ip link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward
: >/run/testbed/booted
# Orphans become children of this process; waiting for the one that never ends collects them.
sleep infinity </dev/null >/dev/null 2>&1 &
while :; do wait || true; done
