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

#[cfg(test)]
mod tests {
    use crate::controllers::testing::*;

    use super::*;

    fn launcher(api_version: &str, kind: &str, label: Option<&str>) -> Pod {
        let view = but(pod("virt-launcher-vm-x", "n1", &[csi("disk")]), |pod| {
            let owner = &mut pod.metadata.owner_references.as_mut().unwrap()[0];
            (owner.api_version, owner.kind, owner.name) = (api_version.into(), kind.into(), "vm".into());
            let labels = pod.metadata.labels.get_or_insert_default();
            labels.extend(label.map(|label| (label.to_owned(), "a-migration".to_owned())));
        });
        Pod::clone(&view.pod)
    }

    #[test]
    fn who_is_spared() {
        let label = Some("kubevirt.io/migrationJobUID");
        let cases = [
            ("a launcher", launcher("kubevirt.io/v1", "VirtualMachineInstance", None), Some("n1"), false),
            ("whose machine runs elsewhere", launcher("kubevirt.io/v1", INSTANCE_KIND, None), Some("n2"), false),
            ("made for a migration", launcher("kubevirt.io/v1", INSTANCE_KIND, label), Some("n2"), true),
            ("that is over", launcher("kubevirt.io/v1", INSTANCE_KIND, label), Some("n1"), false),
            ("of which nobody knows", launcher("kubevirt.io/v1alpha3", INSTANCE_KIND, label), None, true),
            ("another owner with the label", launcher("apps/v1", "StatefulSet", label), None, false),
            ("another group with the kind", launcher("example.com/v1", INSTANCE_KIND, label), None, false),
        ];
        for (name, pod, runs_on, target) in cases {
            assert_eq!(is_target(&pod, runs_on), target, "{name}");
        }
    }
}
