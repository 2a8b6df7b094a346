# Functions for the end of a node. Loop devices belong to the machine, so they outlive a node whose file they show; and all nodes see them all.

# The processes in a control group and those below.
members_of() {
    find /sys/fs/cgroup -path "*/$1/*" -name cgroup.procs -exec cat {} + 2>/dev/null | sort -un | grep -vx 0
}

# The loop devices of the processes in a control group: those over a file system that only they have, by device number, and
# those that their kubelet made over another device, by a path that holds a pod's UID.
loops_of() {
    processes=$(members_of "$1")
    host=$(cut -d ' ' -f 3 /proc/self/mountinfo)
    known=$(for process in $processes; do cut -d ' ' -f 3 "/proc/$process/mountinfo"; done 2>/dev/null | grep -vxF "$host")
    # The columns are aligned with spaces that are written as \x20.
    losetup --list --noheadings --raw --output NAME,BACK-MAJ:MIN,BACK-FILE | sed 's/\\x20//g' |
        while read -r device number file; do
            if echo "$known" | grep -qx "$number"; then
                echo "$device"
                continue
            fi
            case $file in
            /var/lib/kubelet/plugins/kubernetes.io/*)
                for process in $processes; do
                    if [ -e "/proc/$process/root$file" ]; then
                        echo "$device"
                        break
                    fi
                done
                ;;
            esac
        done
}

# Ends the FUSE connections of the processes in a control group. A FUSE server that is killed does not end while one of its own
# threads waits for its answer: with that thread its descriptor stays open, and so the question.
abort_fuse_of() {
    minors() {
        sed -n 's/^[0-9]* [0-9]* 0:\([0-9]*\) .* - fuse[. ].*/\1/p' "$@" 2>/dev/null
    }
    host=$(minors /proc/self/mountinfo)
    for minor in $(for process in $(members_of "$1"); do minors "/proc/$process/mountinfo"; done | sort -u | grep -vxF "$host"); do
        # shellcheck disable=SC2016 # for the inner shell
        unshare --mount sh -c 'mount -t fusectl fusectl "$1" && echo 1 >"$1/$2/abort"' abort /sys/fs/fuse/connections "$minor" 2>/dev/null
    done
}
