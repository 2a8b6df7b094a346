//! Launchers of virtual machines: which of them a machine is only on its way to.

use crate::api::slim::Pod;
use crate::controllers::testing::*;

use super::super::kubevirt::{INSTANCE_KIND, is_target};

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
