# Becomes the program in the arguments, in the control group that the first one names, in every hierarchy.
group=$1
shift
for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/*; do
    [ -e "$hierarchy/cgroup.procs" ] || continue
    path=$hierarchy
    for part in $(echo "$group" | tr / ' '); do
        parent=$path
        path=$path/$part
        mkdir -p "$path"
        # A new group of the first version of cpuset has no processors and takes no process in.
        for file in cpuset.cpus cpuset.mems; do
            if [ -e "$hierarchy/$file" ] && [ -z "$(cat "$path/$file")" ]; then
                cat "$parent/$file" >"$path/$file"
            fi
        done
    done
    echo $$ >"$path/cgroup.procs" || exit 1
done
exec "$@"
