# Outlives the testbed for the moment it takes to remove what its real nodes left on the machine, however the testbed
# ended. Its own network namespace is the switch that the nodes' cables end in; it vanishes with it.
# Goes on from `remains.sh`. Standard input is a pipe that the testbed holds open. Argument: the name of the testbed's control groups.
set -eu
group=$1
for bridge in control storage; do
    ip link add "$bridge" type bridge
    ip link set "$bridge" up
done
ip link set lo up
for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/*; do
    [ ! -e "$hierarchy/cgroup.procs" ] || mkdir -p "$hierarchy/$group"
done
echo ready
trap '' TERM INT HUP
cat >/dev/null || true
set +e

loops=$(loops_of "$group")
abort_fuse_of "$group"
tries=100
while [ -n "$(members_of "$group")" ] && [ "$tries" -gt 0 ]; do
    # shellcheck disable=SC2046 # a list of numbers
    kill -s KILL $(members_of "$group") 2>/dev/null
    tries=$((tries - 1))
    sleep 0.1
done
for device in $loops; do losetup --detach "$device"; done
find /sys/fs/cgroup -depth -type d \( -path "*/$group" -o -path "*/$group/*" \) -exec rmdir {} \;
[ -z "$(members_of "$group")" ] || echo "processes that cannot be killed: $(members_of "$group")" >&2
