//! The driver's manifests with other names and addresses than the files have.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use bulkhead::api::names::fencer_lease;

/// What the files say.
const DRIVER: &str = "array.testbed.bulkhead.dev";
const NAMESPACE: &str = "csi-array";
const KUBELET: &str = "/var/lib/kubelet";
const MANAGEMENT: &str = "192.0.2.1:9100";
const IO: &str = "198.51.100.1:9101";

/// One deployment of the driver. Several can be in one cluster, each with its own name and namespace.
#[derive(Clone, Debug)]
pub struct Deployment {
    /// The CSI driver's name, which is also its StorageClass's.
    pub driver_name: String,
    /// The namespace of its pods.
    pub namespace: String,
    /// The kubelet's folder on the nodes.
    pub kubelet: PathBuf,
    /// The array's management, on the control network.
    pub management: SocketAddr,
    /// The array's I/O, on the storage network.
    pub io: SocketAddr,
}

impl Deployment {
    /// As the files have it, with these addresses.
    pub fn new(management: SocketAddr, io: SocketAddr) -> Self {
        Deployment {
            driver_name: DRIVER.to_owned(),
            namespace: NAMESPACE.to_owned(),
            kubelet: KUBELET.into(),
            management,
            io,
        }
    }

    /// The folder of the files; `kubectl kustomize` makes one text of them.
    pub fn folder() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/csi-driver"))
    }

    /// What `kubectl kustomize` made of the folder, with this deployment's names and addresses.
    pub fn render(&self, kustomized: &str) -> String {
        kustomized
            // Before the driver's name, which other names contain.
            .replace(&fencer_lease(DRIVER), &fencer_lease(&self.driver_name))
            .replace(DRIVER, &self.driver_name)
            .replace(NAMESPACE, &self.namespace)
            .replace(KUBELET, &self.kubelet.to_string_lossy())
            .replace(MANAGEMENT, &self.management.to_string())
            .replace(IO, &self.io.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_of_the_files_is_replaced() {
        let files = ["kustomization", "driver", "rbac", "controller", "node"];
        let text: String = files
            .map(|file| std::fs::read_to_string(Deployment::folder().join(file).with_extension("yaml")).expect("file"))
            .concat();
        for default in [DRIVER, NAMESPACE, KUBELET, MANAGEMENT, IO, &fencer_lease(DRIVER)] {
            assert!(text.contains(default), "{default}");
        }
        let other = Deployment {
            driver_name: "other.example.com".to_owned(),
            namespace: "other".to_owned(),
            kubelet: "/tmp/kubelet".into(),
            management: "10.0.0.1:1".parse().expect("address"),
            io: "10.1.0.1:2".parse().expect("address"),
        };
        let rendered = other.render(&text);
        for default in [DRIVER, "namespace: csi-array", KUBELET, MANAGEMENT, IO, "830b183f"] {
            assert!(!rendered.contains(default), "{default}");
        }
        assert!(rendered.contains(&fencer_lease("other.example.com")));
        assert_eq!(fencer_lease("csi.test.bulkhead.dev"), "bulkhead-fencer-189101be", "as the shipped RBAC has it");
    }
}
