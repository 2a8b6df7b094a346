//! `bulkhead-csi-sidecar`: a template for each driver, whose overlay sets the driver's name, its Lease and its
//! ServiceAccount, as `config/sidecar/drivers/*/rights` do.

use super::{Account, EVENTS, Holder, READ, Role, Rule, Switch};

const HOLDER: Holder = Holder::Program(Account { namespace: "csi-example", name: "csi-controller" });
const WATCH: &[&str] = &["list", "watch"];

pub(super) const ROLES: &[Role] = &[
    Role {
        name: "bulkhead-fencer",
        namespace: None,
        holder: HOLDER,
        switch: Switch::Driver,
        about: "The sidecar of one CSI driver. The rule with the driver's name is the first, so that an overlay can find it.",
        file: "config/rbac/fencer/cluster_role.yaml",
        rules: &[
            Rule::new(
                "bulkhead.dev",
                "fencers",
                &[(
                    &["attest"],
                    "a virtual resource, which fence-attest.bulkhead.dev and driver-report.bulkhead.dev ask for: it may \
                     answer for this driver and no other",
                )],
            )
            .named(&["csi.example.com"]),
            Rule::new("bulkhead.dev", "fencerequests", &[(READ, "whom to cut off, from which volumes")]),
            Rule::new(
                "bulkhead.dev",
                "driverreports",
                &[(READ, "what it said last"), (&["create"], "the report of its driver; this verb cannot be limited by name")],
            ),
            Rule::new("bulkhead.dev", "fencerequests/status", &[(&["update"], "its answers and their proof")]),
            Rule::new(
                "bulkhead.dev",
                "driverreports/status",
                &[(&["update"], "what its driver can do, and which nodes it reaches")],
            ),
            Rule::new(
                "storage.k8s.io",
                "csidrivers",
                &[(&["get"], "how the driver is called: whether it attaches, which Secret its controller calls need")],
            ),
            Rule::new("", "persistentvolumes", &[(READ, "which volumes it asks its driver about")]),
            Rule::new("storage.k8s.io", "volumeattachments", &[(WATCH, "where they are attached")]),
            Rule::new("storage.k8s.io", "csinodes", &[(WATCH, "the nodes' ids with the driver")]),
            Rule::new("bulkhead.dev", "volumehealthpolicies", &[(WATCH, "which volumes are looked at, and how")]),
            Rule::new(
                "csiaddons.openshift.io",
                "networkfences",
                &[
                    (&["list"], "method NetworkFence: whom a fence of its own shuts out, and who else wants that"),
                    (
                        &["create", "update", "delete"],
                        "its own, and a mark on those of other drivers; these verbs cannot be limited by name",
                    ),
                ],
            ),
            Rule::new("csiaddons.openshift.io", "networkfenceclasses", &[(&["get", "list"], "whether there is one for the driver")]),
            Rule::new("csiaddons.openshift.io", "csiaddonsnodes", &[(&["list"], "by what address the storage knows a node")]),
            Rule::new(
                "",
                "nodes",
                &[(
                    &["list"],
                    "whether another node has an address now that is about to be shut out; whether a node is well, of which \
                     csi-addons tells by what the storage knows it",
                )],
            ),
            Rule::new("bulkhead.dev", "nodevolumereports", &[(&["list"], ADDRESSES)]),
            Rule::new("", "pods", &[(WATCH, SELECTED)]),
            Rule::new("", "namespaces", &[(WATCH, SELECTED)]),
            Rule::new("bulkhead.dev", "resiliencypolicies", &[(WATCH, SELECTED)]),
            EVENTS,
        ],
    },
    Role {
        name: "bulkhead-fencer",
        namespace: Some("bulkhead-system"),
        holder: HOLDER,
        switch: Switch::Driver,
        about: "The Lease by which the replicas of a driver's sidecar choose who answers: bulkhead-fencer- and the first \
                eight hex digits of the SHA-256 of the driver's name.",
        file: "config/rbac/fencer/lease_role.yaml",
        rules: &[
            Rule::new(
                "coordination.k8s.io",
                "leases",
                &[(&["create"], "its own, which is not there yet; this verb cannot be limited by name")],
            ),
            Rule::new("coordination.k8s.io", "leases", &[(&["get", "update"], "takes and renews it")])
                .named(&["bulkhead-fencer-3d4a7488"]),
        ],
    },
    Role {
        name: "bulkhead-fencer-secrets",
        namespace: Some("csi-example"),
        holder: HOLDER,
        switch: Switch::Driver,
        about: "Only for drivers whose PersistentVolumes have a controllerPublishSecretRef: in the namespace of those \
                Secrets, never cluster-wide.",
        file: "config/rbac/fencer/secret_role.yaml",
        rules: &[Rule::new("", "secrets", &[(&["get"], "the Secret that a volume names for its controller calls")])],
    },
];

const ADDRESSES: &str = "whether another node has an address now that is about to be shut out; \
                         whether the storage knows a node by one of its own";

const SELECTED: &str = "which nodes it asks its driver about: those with pods that a policy selects. Used only where the \
                        driver can be asked";
