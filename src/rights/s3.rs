//! The S3 driver: its node service, and the external-provisioner beside its controller service.

use super::{Account, EVENTS, Holder, READ, Role, Rule, Switch};

const NODE: Holder = Holder::Program(Account { namespace: "kube-system", name: "s3-csi-driver-sa" });
const PROVISIONER: Holder = Holder::Program(Account { namespace: "kube-system", name: "s3-csi-driver-controller-sa" });
const NODE_FILE: &str = "config/s3/node_rbac.yaml";
const PROVISIONER_FILE: &str = "config/s3/controller_rbac.yaml";

pub(super) const ROLES: &[Role] = &[
    Role {
        name: "s3-csi-driver",
        namespace: None,
        holder: NODE,
        switch: Switch::S3,
        about: "The node service: it reads which Mountpoint Pod serves whom. It writes neither s3pa nor pods, and reads no \
                Secret: the kubelet hands it those of the volumes that it mounts.",
        file: NODE_FILE,
        rules: &[
            Rule::new(
                "s3.csi.scality.com",
                "mountpoints3podattachments",
                &[(READ, "those of its node: it asks by spec.nodeName, which RBAC cannot say")],
            ),
            Rule::new(
                "",
                "nodes",
                &[
                    (READ, "its own node, by name"),
                    (
                        &["patch"],
                        "takes the taint s3.csi.scality.com/agent-not-ready off its node; s3-node-taint.bulkhead.dev \
                         allows nothing else",
                    ),
                ],
            ),
            Rule::new("storage.k8s.io", "csinodes", &[(READ, "whether the kubelet knows the driver")]),
            Rule::new("", "pods", &[(&["get"], SEES)]),
            Rule::new("", "persistentvolumes", &[(&["get"], SEES)]),
            EVENTS,
        ],
    },
    Role {
        name: "s3-csi-driver",
        namespace: Some("mount-s3"),
        holder: NODE,
        switch: Switch::S3,
        about: "Mountpoint Pods.",
        file: NODE_FILE,
        rules: &[Rule::new("", "pods", &[(READ, "whether the Mountpoint Pod of a mount runs")])],
    },
    Role {
        name: "s3-csi-driver-controller",
        namespace: None,
        holder: PROVISIONER,
        switch: Switch::S3,
        about: "What the external-provisioner beside the controller service needs. The controller service itself asks S3 \
                and nobody else, but for the Events of the sweep, if it is to log them.",
        file: PROVISIONER_FILE,
        rules: &[
            Rule::new(
                "",
                "persistentvolumes",
                &[
                    (READ, "which it made"),
                    (&["create", "patch", "delete"], "volumes of its claims, and their finalizer"),
                ],
            ),
            Rule::new(
                "",
                "persistentvolumeclaims",
                &[(READ, "claims that want a bucket"), (&["update"], "its annotations on them")],
            ),
            Rule::new("storage.k8s.io", "storageclasses", &[(READ, "how a bucket is made")]),
            Rule::new("storage.k8s.io", "csinodes", &[(READ, "where the driver runs")]),
            Rule::new("", "nodes", &[(READ, "where the driver runs")]),
            Rule::new(
                "",
                "events",
                &[(&["list", "watch", "create", "update", "patch"], "what became of a claim; it writes core Events")],
            ),
        ],
    },
    Role {
        name: "s3-csi-driver-controller",
        namespace: Some("kube-system"),
        holder: PROVISIONER,
        switch: Switch::S3,
        about: "Its Lease, and the Secret that a StorageClass may name as the one with which buckets are made. One in \
                another namespace needs a Role of its own there.",
        file: PROVISIONER_FILE,
        rules: &[
            Rule::new(
                "coordination.k8s.io",
                "leases",
                &[(&["create"], "its own, which is not there yet; this verb cannot be limited by name")],
            ),
            Rule::new(
                "coordination.k8s.io",
                "leases",
                &[(&["get", "watch", "update", "patch"], "takes and renews it")],
            )
            .named(&["s3-csi-scality-com"]),
            Rule::new("", "secrets", &[(&["get"], "keys with which buckets are made")]).named(&["s3-secret"]),
        ],
    },
];

const SEES: &str = "whether a workload's containers, and which of its volumes, see a mount that is made anew";
