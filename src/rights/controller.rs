//! `bulkhead-controller`.

use super::{Account, EVENTS, Holder, READ, Role, Rule, Switch};

const ACCOUNT: Account = Account { namespace: "bulkhead-system", name: "bulkhead-controller" };
const HOLDER: Holder = Holder::Program(ACCOUNT);
const ROLES_FILE: &str = "config/rbac/controller_roles.yaml";

/// The namespace of Mountpoint Pods is a Role of its own: nowhere else does the controller create pods.
pub(super) const ROLES: &[Role] = &[
    Role {
        name: "bulkhead-controller",
        namespace: None,
        holder: HOLDER,
        switch: Switch::Always,
        about: "The controller, in every namespace. What it may change of the objects of others is cut down by admission \
                policies: see config/policies.",
        file: "config/rbac/controller_cluster_role.yaml",
        rules: CLUSTER,
    },
    Role {
        name: "bulkhead-controller",
        namespace: Some("bulkhead-system"),
        holder: HOLDER,
        switch: Switch::Always,
        about: "The controller, in its own namespace.",
        file: ROLES_FILE,
        rules: OWN_NAMESPACE,
    },
    Role {
        name: "bulkhead-controller",
        namespace: Some("kube-node-lease"),
        holder: HOLDER,
        switch: Switch::Always,
        about: "The kubelets' heartbeats.",
        file: ROLES_FILE,
        rules: &[Rule::new("coordination.k8s.io", "leases", &[(READ, "whether a kubelet still renews its Lease")])],
    },
    Role {
        name: "bulkhead-heartbeat-controller",
        namespace: Some("bulkhead-system"),
        holder: HOLDER,
        switch: Switch::Always,
        about: "Who can write this ConfigMap can make heartbeats get lost, and give agents false neighbours: nodes that fence themselves would then stop their own pods when they lose the API alone. It proves and releases nothing. Only the controllers may.",
        file: "config/rbac/heartbeat_roles.yaml",
        rules: &[Rule::new(
            "",
            "configmaps",
            &[(READ, "which replicas are entered"), (&["patch"], "enters where this replica listens for heartbeats")],
        )
        .named(&["bulkhead-heartbeat"])],
    },
    Role {
        name: "bulkhead-controller",
        namespace: Some("mount-s3"),
        holder: HOLDER,
        switch: Switch::S3,
        about: "Who makes Mountpoint Pods. Nobody else has a Role here that creates pods.",
        file: "config/s3/mount_namespace_controller_role.yaml",
        rules: &[Rule::new(
            "",
            "pods",
            &[
                (READ, "which Mountpoint Pods there are"),
                (&["create"], "one for each mount that needs it"),
                (&["patch"], "tells one that nobody uses it any more"),
                (&["delete"], "one that is not needed, or failed"),
            ],
        )],
    },
];

const CLUSTER: &[Rule] = &[
    Rule::new(
        "",
        "nodes",
        &[
            (READ, "evidence, and the identity of a node before it is fenced"),
            (&["patch"], "our taints; controller-nodes.bulkhead.dev allows no other change"),
        ],
    ),
    Rule::new(
        "",
        "pods",
        &[
            (READ, "which pods are protected, and what else a node runs"),
            (
                &["patch"],
                "takes our scheduling gate off a pod that waited for a tainted volume; controller-pods.bulkhead.dev \
                 allows no other change",
            ),
            (&["delete"], "releases a pod whose volumes are proved fenced"),
        ],
    ),
    Rule::new("", "pods/status", &[(&["patch"], "a pod with finalizers is marked Failed before it is deleted")]),
    Rule::new(
        "",
        "persistentvolumes",
        &[
            (READ, "which volumes a pod uses, and of which driver"),
            (
                &["patch"],
                "shows taints on a volume, and reserves one that no claim has; controller-volumes.bulkhead.dev allows no \
                 other change",
            ),
        ],
    ),
    Rule::new("", "namespaces", &[(READ, "which pods a policy selects by namespace")]),
    Rule::new(
        "",
        "persistentvolumeclaims",
        &[
            (READ, "from a pod to its volumes"),
            (
                &["patch"],
                "publish.targets: [ClaimAnnotation] of a SharedVolume; controller-claims.bulkhead.dev allows no other \
                 change",
            ),
        ],
    ),
    Rule::new("kubevirt.io", "virtualmachineinstances", &[(&["get"], "where a machine runs that was migrated")]),
    Rule::new(
        "storage.k8s.io",
        "volumeattachments",
        &[(READ, "what is attached where, and what was really published"), (&["delete"], "detaches a proved volume")],
    ),
    Rule::new("storage.k8s.io", "csinodes", &[(READ, "the node's id with each driver")]),
    Rule::new("storage.k8s.io", "csidrivers", &[(READ, "whether a driver attaches at all")]),
    EVENTS,
    Rule::new(
        "bulkhead.dev",
        "resiliencypolicies",
        &[(READ, "what is to be protected, and how"), (&["patch"], "its finalizer")],
    ),
    Rule::new(
        "bulkhead.dev",
        "nodefences",
        &[
            (READ, "incidents"),
            (&["create", "update"], "the plan of an incident"),
            (&["patch"], "its active label and its finalizer"),
            (&["delete"], "forgets an incident after its time"),
            (&["plan"], "a virtual verb, which the admission policies ask for: who has it writes plans"),
        ],
    ),
    Rule::new("bulkhead.dev", "resiliencypolicies/status", &[(&["update"], "what a policy does, and why not")]),
    Rule::new("bulkhead.dev", "nodefences/status", &[(&["update"], "the record of an incident")]),
    Rule::new(
        "bulkhead.dev",
        "fencerequests",
        &[
            (READ, "answers of fencers; writing them is not the controller's"),
            (&["create", "update"], "asks a fencer, and asks again"),
            (&["patch", "delete"], "withdraws a request"),
        ],
    ),
    Rule::new("bulkhead.dev", "driverreports", &[(READ, "what a driver can do, and which nodes it reaches")]),
    Rule::new(
        "bulkhead.dev",
        "volumehealths",
        &[
            (READ, "taints, and what people set"),
            (&["create", "delete"], "one for each volume that a policy selects"),
            (&["patch"], "its label and its finalizer"),
            (&["project"], "a virtual verb, which volume-projection.yaml asks for: who has it writes what taints do"),
        ],
    ),
    Rule::new("bulkhead.dev", "volumehealthpolicies", &[(READ, "which volumes are looked at, and how")]),
    Rule::new("bulkhead.dev", "volumehealths/status", &[(&["update"], "the health of a volume")]),
    Rule::new("bulkhead.dev", "volumehealthpolicies/status", &[(&["update"], "how many volumes it selects")]),
    Rule::new(
        "admissionregistration.k8s.io",
        "validatingadmissionpolicybindings",
        &[(
            READ,
            "whether what keeps pods off tainted volumes is installed: enforced without it would be a promise \
                   that nobody keeps",
        )],
    ),
    Rule::new(
        "bulkhead.dev",
        "nodevolumereports",
        &[(READ, "what the agents say"), (&["create"], "one for each node; its status is the agent's")],
    ),
    Rule::new(
        "bulkhead.dev",
        "sharedvolumes",
        &[
            (READ, "claims whose server gets an address"),
            (&["create"], "discovery, once for each volume"),
            (&["patch"], "its finalizer; the spec belongs to the namespace"),
        ],
    ),
    Rule::new("bulkhead.dev", "sharedvolumeproviders", &[(READ, "storage control planes")]),
    Rule::new("bulkhead.dev", "sharedvolumes/status", &[(&["update"], "the address, and who serves")]),
    Rule::new("bulkhead.dev", "sharedvolumeproviders/status", &[(&["update"], "whether it is reached")]),
    Rule::new(
        "",
        "services",
        &[
            (READ, "the address of a SharedVolume"),
            (
                &["create", "patch", "delete"],
                "makes it, repairs it, takes it away; controller-services.bulkhead.dev allows no other Service",
            ),
        ],
    ),
    Rule::new(
        "networking.k8s.io",
        "ipaddresses",
        &[(&["get"], "whether the addresses of a Service that was deleted are free again")],
    ),
    Rule::new("", "endpoints", &[(READ, BEHIND), (&["create", "update", "delete"], LEADS)]),
    Rule::new("discovery.k8s.io", "endpointslices", &[(READ, BEHIND), (&["create", "update", "delete"], LEADS)]),
    Rule::new(
        "s3.csi.scality.com",
        "mountpoints3podattachments",
        &[
            (READ, "which workloads share which Mountpoint Pods"),
            (&["create", "update"], "writes that down"),
            (&["patch"], "takes its finalizer off at the end of an installation"),
            (&["delete"], "one that no workload uses"),
        ],
    ),
    Rule::new("s3.csi.scality.com", "mountpoints3podattachments/status", &[(&["update"], "conditions")]),
];

const BEHIND: &str = "what is behind the address of a SharedVolume";
const LEADS: &str = "leads the address to the server; controller-services.bulkhead.dev allows no others";

const OWN_NAMESPACE: &[Rule] = &[
    Rule::new(
        "coordination.k8s.io",
        "leases",
        &[
            (READ, "who leads, and whether each fencer has a leader: one without is silent"),
            (&["create"], "its own, which is not there yet; this verb cannot be limited by name"),
        ],
    ),
    Rule::new("coordination.k8s.io", "leases", &[(&["update"], "renews its own")]).named(&["bulkhead-controller"]),
    Rule::new(
        "",
        "secrets",
        &[(
            &["get"],
            "credentials of the storage control plane that a SharedVolumeProvider names: read one by one, never listed. \
             One in another namespace needs a Role there, with this verb for that name",
        )],
    ),
];
