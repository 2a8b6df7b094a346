//! The wrapper modules of `hack/testbed/go`: what each builds, and with what.

/// One wrapper module; its `go.mod` pins the same version.
#[derive(Debug, PartialEq)]
pub(super) struct Module {
    pub(super) folder: &'static str,
    pub(super) path: &'static str,
    pub(super) version: &'static str,
    /// Build tags, comma-separated.
    pub(super) tags: &'static str,
    /// Linker flags in addition to those that leave out symbols.
    pub(super) linker_flags: &'static str,
    /// How long a first build takes on two cores, to be told to the person who waits.
    pub(super) usual_time: &'static str,
}

pub(super) const ETCD: Module = Module {
    folder: "etcd",
    path: "go.etcd.io/etcd/server/v3",
    version: "v3.6.16",
    tags: "",
    linker_flags: "",
    usual_time: "half a minute",
};
pub(super) const KUBERNETES: Module = Module {
    folder: "kubernetes",
    path: "k8s.io/kubernetes",
    version: "v1.36.3",
    tags: "",
    // Without them kubectl cannot parse its own version.
    linker_flags: "-X k8s.io/component-base/version.gitVersion=v1.36.3 \
                   -X k8s.io/component-base/version.gitMajor=1 \
                   -X k8s.io/component-base/version.gitMinor=36",
    usual_time: "five minutes",
};
pub(super) const KWOK: Module = Module {
    folder: "kwok",
    path: "sigs.k8s.io/kwok",
    version: "v0.8.0",
    tags: "",
    linker_flags: "",
    usual_time: "one minute",
};
pub(super) const EXTERNAL_ATTACHER: Module = Module {
    folder: "external-attacher",
    path: "github.com/kubernetes-csi/external-attacher/v4",
    version: "v4.13.0",
    tags: "",
    linker_flags: "-X main.version=v4.13.0",
    usual_time: "two minutes",
};
pub(super) const EXTERNAL_PROVISIONER: Module = Module {
    folder: "external-provisioner",
    path: "github.com/kubernetes-csi/external-provisioner/v6",
    version: "v6.3.0",
    tags: "",
    linker_flags: "-X main.version=v6.3.0",
    usual_time: "three minutes",
};
pub(super) const CSI_TEST: Module = Module {
    folder: "csi-test",
    path: "github.com/kubernetes-csi/csi-test/v5",
    version: "v5.6.0",
    tags: "",
    linker_flags: "-X main.VERSION=v5.6.0",
    usual_time: "one minute",
};
// csi-addons: the newest release that is to be had by its version.
pub(super) const CSI_ADDONS: Module = Module {
    folder: "csi-addons",
    path: "github.com/csi-addons/kubernetes-csi-addons",
    version: "v0.14.0",
    tags: "",
    linker_flags: "-X github.com/csi-addons/kubernetes-csi-addons/internal/version.Version=v0.14.0",
    usual_time: "three minutes",
};
pub(super) const CONTAINERD: Module = Module {
    folder: "containerd",
    path: "github.com/containerd/containerd/v2",
    version: "v2.4.2",
    // Storage drivers that need C libraries.
    tags: "no_btrfs,no_devmapper,no_zfs",
    linker_flags: "-X github.com/containerd/containerd/v2/version.Version=v2.4.2",
    usual_time: "one minute",
};
pub(super) const HELM: Module = Module {
    folder: "helm",
    path: "helm.sh/helm/v4",
    version: "v4.3.1",
    tags: "",
    linker_flags: "-X helm.sh/helm/v4/internal/version.version=v4.3.1",
    usual_time: "three minutes",
};
// Flux: the newest releases whose modules accept Go 1.26.
pub(super) const SOURCE_CONTROLLER: Module = Module {
    folder: "flux",
    path: "github.com/fluxcd/source-controller",
    version: "v1.9.3",
    tags: "",
    linker_flags: "",
    usual_time: "five minutes",
};
pub(super) const KUSTOMIZE_CONTROLLER: Module = Module {
    folder: "flux",
    path: "github.com/fluxcd/kustomize-controller",
    version: "v1.9.5",
    tags: "",
    linker_flags: "",
    usual_time: "three minutes",
};
pub(super) const KSTATUS: Module = Module {
    folder: "kstatus",
    path: "github.com/fluxcd/cli-utils",
    version: "v1.2.2",
    tags: "",
    linker_flags: "",
    usual_time: "half a minute",
};
// Argo CD: the newest release whose modules, all of them, are to be had by their versions.
pub(super) const ARGO_CD: Module = Module {
    folder: "argo-cd",
    path: "github.com/argoproj/argo-cd/v3",
    version: "v3.2.12",
    tags: "",
    linker_flags: "",
    usual_time: "four minutes",
};
