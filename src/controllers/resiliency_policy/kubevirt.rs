//! Virtual machines of KubeVirt: each runs in a `virt-launcher` pod, owned by its VirtualMachineInstance. While one migrates
//! there is a second, which KubeVirt itself ends or makes the first: it is spared. Its label stays when the migration is over,
//! so the VirtualMachineInstance is asked where the machine runs.

use crate::api::slim::Pod;

/// Kind that owns launchers.
pub const INSTANCE_KIND: &str = "VirtualMachineInstance";
/// Its group, in any version.
pub const GROUP: &str = "kubevirt.io";
/// Label of a pod that was made for a migration.
const MIGRATION_LABEL: &str = "kubevirt.io/migrationJobUID";

/// The VirtualMachineInstance that a migration made the pod for.
pub fn migrated_instance(pod: &Pod) -> Option<&str> {
    let owner = pod.controller().filter(|owner| owner.kind == INSTANCE_KIND)?;
    let group = owner.api_version.split('/').next().filter(|group| *group == GROUP);
    let labels = pod.metadata.labels.as_ref()?;
    group.filter(|_| labels.contains_key(MIGRATION_LABEL)).map(|_| owner.name.as_str())
}

/// Whether the machine is only on its way to the pod: it runs on another node, or nobody says where.
pub fn is_target(pod: &Pod, runs_on: Option<&str>) -> bool {
    migrated_instance(pod).is_some() && (runs_on.is_none() || runs_on != pod.spec.node_name.as_deref())
}
