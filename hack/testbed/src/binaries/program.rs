//! The programs: of which release they are, and how each is built.

use super::modules::{
    ARGO_CD, CONTAINERD, CSI_ADDONS, CSI_TEST, ETCD, EXTERNAL_ATTACHER, EXTERNAL_PROVISIONER, HELM, KSTATUS,
    KUBERNETES, KUSTOMIZE_CONTROLLER, KWOK, Module, SOURCE_CONTROLLER,
};

/// An upstream program that the testbed runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each variant is the program of that name")]
pub enum Program {
    Etcd,
    KubeApiserver,
    KubeControllerManager,
    KubeScheduler,
    Kubectl,
    Kwok,
    CsiAttacher,
    CsiProvisioner,
    CsiSanity,
    CsiAddonsManager,
    CsiAddonsSidecar,
    Kubelet,
    KubeProxy,
    Containerd,
    ContainerdShim,
    Ctr,
    Helm,
    SourceController,
    KustomizeController,
    Kstatus,
    ArgoCd,
}

impl Program {
    /// Flux, as far as it brings what git has to a cluster.
    pub const FLUX: [Self; 2] = [Self::SourceController, Self::KustomizeController];
    /// csi-addons: its controllers, and what stands beside a driver's plugin.
    pub const CSI_ADDONS: [Self; 2] = [Self::CsiAddonsManager, Self::CsiAddonsSidecar];
    /// What every testbed needs.
    pub const BASE: [Self; 7] = [
        Self::Etcd,
        Self::KubeApiserver,
        Self::KubeControllerManager,
        Self::KubeScheduler,
        Self::Kubectl,
        Self::Kwok,
        Self::CsiAttacher,
    ];
    /// What real nodes need besides.
    pub const REAL_NODES: [Self; 5] =
        [Self::Kubelet, Self::KubeProxy, Self::Containerd, Self::ContainerdShim, Self::Ctr];

    /// The name of the program's file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::KubeApiserver => "kube-apiserver",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::KubeScheduler => "kube-scheduler",
            Self::Kubectl => "kubectl",
            Self::Kwok => "kwok",
            Self::CsiAttacher => "csi-attacher",
            Self::CsiProvisioner => "csi-provisioner",
            Self::CsiSanity => "csi-sanity",
            Self::CsiAddonsManager => "csi-addons-manager",
            Self::CsiAddonsSidecar => "csi-addons-sidecar",
            Self::Kubelet => "kubelet",
            Self::KubeProxy => "kube-proxy",
            Self::Containerd => "containerd",
            Self::ContainerdShim => "containerd-shim-runc-v2",
            Self::Ctr => "ctr",
            Self::Helm => "helm",
            Self::SourceController => "source-controller",
            Self::KustomizeController => "kustomize-controller",
            Self::Kstatus => "kstatus",
            Self::ArgoCd => "argo-cd",
        }
    }

    /// The release that is built; another patch release of the same minor fits too.
    pub fn version(self) -> &'static str {
        self.module().version
    }

    /// Built without the C library: it goes into an image that holds nothing else, or has no use for it.
    pub(super) fn is_static(self) -> bool {
        matches!(
            self,
            Self::CsiAttacher
                | Self::CsiProvisioner
                | Self::CsiSanity
                | Self::CsiAddonsManager
                | Self::CsiAddonsSidecar
                | Self::SourceController
                | Self::KustomizeController
                | Self::Kstatus
                | Self::ArgoCd
        )
    }

    /// What the wrapper adds to upstream's library, for a program that is ours but for that.
    pub(super) fn source(self) -> Option<&'static str> {
        match self {
            Self::Kstatus => Some(include_str!("../../go/kstatus/main.go")),
            Self::ArgoCd => Some(include_str!("../../go/argo-cd/main.go")),
            _ => None,
        }
    }

    pub(super) fn module(self) -> &'static Module {
        match self {
            Self::Etcd => &ETCD,
            Self::KubeApiserver
            | Self::KubeControllerManager
            | Self::KubeScheduler
            | Self::Kubectl
            | Self::Kubelet
            | Self::KubeProxy => &KUBERNETES,
            Self::Kwok => &KWOK,
            Self::CsiAttacher => &EXTERNAL_ATTACHER,
            Self::CsiProvisioner => &EXTERNAL_PROVISIONER,
            Self::CsiSanity => &CSI_TEST,
            Self::CsiAddonsManager | Self::CsiAddonsSidecar => &CSI_ADDONS,
            Self::Containerd | Self::ContainerdShim | Self::Ctr => &CONTAINERD,
            Self::Helm => &HELM,
            Self::SourceController => &SOURCE_CONTROLLER,
            Self::KustomizeController => &KUSTOMIZE_CONTROLLER,
            Self::Kstatus => &KSTATUS,
            Self::ArgoCd => &ARGO_CD,
        }
    }

    pub(super) fn package(self) -> String {
        match self {
            // These wrappers are themselves the programs.
            Self::Etcd | Self::Kstatus | Self::ArgoCd => ".".into(),
            Self::SourceController | Self::KustomizeController => self.module().path.into(),
            Self::CsiAddonsManager => format!("{}/cmd/manager", self.module().path),
            Self::CsiAddonsSidecar => format!("{}/sidecar", self.module().path),
            other => format!("{}/cmd/{}", other.module().path, other.name()),
        }
    }

    /// What `go build` calls it: after its package, which says less than the name.
    pub(super) fn built_as(self) -> &'static str {
        match self {
            Self::CsiAddonsManager => "manager",
            Self::CsiAddonsSidecar => "sidecar",
            other => other.name(),
        }
    }
}
