//! The folder below `<kubelet>/plugins` in which the node plugin of a CSI driver has its socket. CSI's documents ask for one
//! that is named after the driver. Dell's drivers but PowerStore, which are those that podmon protects, have another.

/// Drivers by their default names, with their folders as `templates/node.yaml` of Dell's charts mounts them.
const NAMED_OTHERWISE: [(&str, &str); 4] = [
    ("csi-isilon.dellemc.com", "csi-isilon"),
    ("csi-powermax.dellemc.com", "powermax.emc.dell.com"),
    ("csi-unity.dellemc.com", "unity.emc.dell.com"),
    ("csi-vxflexos.dellemc.com", "vxflexos.emc.dell.com"),
];

/// The folder of a driver, where it is not named after it.
pub fn of(driver: &str) -> Option<&'static str> {
    NAMED_OTHERWISE.iter().find(|(name, _)| *name == driver).map(|(_, folder)| *folder)
}
