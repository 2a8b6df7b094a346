//! People. Their roles come without a binding, but for those that Kubernetes' own roles take in.

use super::{Holder, READ, Role, Rule, Switch, joined};

const PEOPLE: &str = "config/rbac/people_roles.yaml";
const TEAMS: &str = "config/rbac/shared_volume_roles.yaml";

pub(super) const ROLES: &[Role] = &[
    Role {
        name: "bulkhead-viewer",
        namespace: None,
        holder: Holder::People,
        switch: Switch::Always,
        about: "What kubectl bulkhead explain, simulate, doctor and sidecar read (docs/kubectl.md). No Secrets, and nothing is \
                written. Bind it cluster-wide: kubectl create clusterrolebinding NAME --clusterrole=bulkhead-viewer \
                --group=TEAM.",
        file: PEOPLE,
        rules: VIEWER,
    },
    Role {
        name: "bulkhead-approver",
        namespace: None,
        holder: Holder::People,
        switch: Switch::Always,
        about: "To read an incident, to approve its plan, and to hold it: approve, hold, unhold. Bind it to whoever is on \
                call.",
        file: "config/rbac/approver_cluster_role.yaml",
        rules: APPROVER,
    },
    Role {
        name: "bulkhead-operator",
        namespace: None,
        holder: Holder::People,
        switch: Switch::Always,
        about: "All of bulkhead-approver, and what people change beyond one incident: pause and resume of policies, and what \
                they say of a volume by hand. Bind it to whoever runs the storage. Pause and resume of a Node need the right \
                to patch Nodes, which is not here: who has it may also taint them.",
        file: PEOPLE,
        rules: &OPERATOR,
    },
    Role {
        name: "bulkhead-support",
        namespace: None,
        holder: Holder::People,
        switch: Switch::Always,
        about: "What kubectl bulkhead support-bundle reads of the cluster: all of bulkhead-viewer, and more. Bind it \
                cluster-wide, with the Role of this name in the operator's namespace. No Secrets, and nothing is written.",
        file: PEOPLE,
        rules: &SUPPORT,
    },
    Role {
        name: "bulkhead-support",
        namespace: Some("bulkhead-system"),
        holder: Holder::People,
        switch: Switch::Always,
        about: "What support-bundle reads of the operator's namespace alone.",
        file: PEOPLE,
        rules: &[
            Rule::new("", "configmaps", &[(&["list"], INSTALLED)]),
            Rule::new("", "services", &[(&["list"], INSTALLED)]),
            Rule::new("policy", "poddisruptionbudgets", &[(&["list"], INSTALLED)]),
            Rule::new("networking.k8s.io", "networkpolicies", &[(&["list"], INSTALLED)]),
        ],
    },
    Role {
        name: "bulkhead-support-logs",
        namespace: None,
        holder: Holder::People,
        switch: Switch::Always,
        about: "Logs and metrics for support-bundle. RBAC cannot say of which pods: bind it in each namespace in which \
                programs of ours run, those of the drivers with a sidecar among them: kubectl create rolebinding NAME -n \
                NAMESPACE --clusterrole=bulkhead-support-logs --group=TEAM. Bound cluster-wide it reads those of every pod.",
        file: PEOPLE,
        rules: &[
            Rule::new("", "pods/log", &[(&["get"], "the end of the logs of our containers")]),
            Rule::new("", "pods/proxy", &[(&["get"], "one scrape of /metrics of each")]),
        ],
    },
    Role {
        name: "bulkhead-shared-volume-view",
        namespace: None,
        holder: Holder::Aggregated(&["view", "edit", "admin"]),
        switch: Switch::Always,
        about: "Who has Kubernetes' own role view, edit or admin in a namespace has the same for its SharedVolumes.",
        file: TEAMS,
        rules: &[Rule::new("bulkhead.dev", "sharedvolumes", &[(READ, "their own")])],
    },
    Role {
        name: "bulkhead-shared-volume-edit",
        namespace: None,
        holder: Holder::Aggregated(&["edit", "admin"]),
        switch: Switch::Always,
        about: "No status, which is the controller's, and not the virtual verb static.",
        file: TEAMS,
        rules: &[Rule::new(
            "bulkhead.dev",
            "sharedvolumes",
            &[(&["create", "update", "patch", "delete", "deletecollection"], "their own")],
        )],
    },
    Role {
        name: "bulkhead-shared-volume-static",
        namespace: None,
        holder: Holder::People,
        switch: Switch::Always,
        about: "To be bound in the namespaces whose teams may point a Service at any address: kubectl create rolebinding \
                NAME -n NAMESPACE --clusterrole=bulkhead-shared-volume-static --group=TEAM.",
        file: TEAMS,
        rules: &[Rule::new(
            "bulkhead.dev",
            "sharedvolumes",
            &[(
                &["static"],
                "a virtual verb, which shared-volume-static.bulkhead.dev asks for; it is in no other role",
            )],
        )],
    },
];

const APPROVER: &[Rule] = &[
    Rule::new(
        "bulkhead.dev",
        "nodefences",
        &[(READ, INCIDENTS), (&["patch"], "approval and hold; nodefence-people.bulkhead.dev allows nothing else")],
    ),
    Rule::new("bulkhead.dev", "resiliencypolicies", &[(READ, POLICIES)]),
    Rule::new("bulkhead.dev", "fencerequests", &[(READ, ANSWERS)]),
    Rule::new("bulkhead.dev", "driverreports", &[(READ, DRIVERS)]),
];

const OPERATOR: [Rule; APPROVER.len() + 2] = joined(
    APPROVER,
    &[
        Rule::new(
            "bulkhead.dev",
            "resiliencypolicies",
            &[(&["patch"], "pause and resume; who may patch a policy may change all of it")],
        ),
        Rule::new(
            "bulkhead.dev",
            "volumehealths",
            &[
                (READ, VOLUMES),
                (
                    &["patch"],
                    "manualTaints, suppressTaints, acknowledgeDataLoss; status, label, finalizers and new owners are \
                     the controller's: volume-health-label.bulkhead.dev",
                ),
            ],
        ),
    ],
);

const SUPPORT: [Rule; VIEWER.len() + 3] = joined(
    VIEWER,
    &[
        Rule::new("", "events", &[(&["list"], "those that we wrote, and about our objects and the nodes concerned")]),
        Rule::new("storage.k8s.io", "storageclasses", &[(&["list"], "how volumes are made")]),
        Rule::new(
            "admissionregistration.k8s.io",
            "validatingadmissionpolicies",
            &[(&["list"], "whether those that are installed are those that we ship")],
        ),
    ],
);

const VIEWER: &[Rule] = &[
    Rule::new("", "nodes", &[(READ, "what is known of a node")]),
    Rule::new("", "pods", &[(READ, "which pods a policy selects, and why one waits")]),
    Rule::new("", "persistentvolumes", &[(READ, USED)]),
    Rule::new("", "persistentvolumeclaims", &[(READ, USED)]),
    Rule::new("", "namespaces", &[(READ, "which pods a policy selects by namespace")]),
    Rule::new("storage.k8s.io", "volumeattachments", &[(READ, "what is attached where")]),
    Rule::new("storage.k8s.io", "csinodes", &[(READ, "the nodes' ids with each driver")]),
    Rule::new("storage.k8s.io", "csidrivers", &[(READ, "whether a driver attaches at all")]),
    Rule::new("coordination.k8s.io", "leases", &[(READ, "those of the kubelets, in kube-node-lease, and ours")]),
    Rule::new("bulkhead.dev", "resiliencypolicies", &[(READ, POLICIES)]),
    Rule::new("bulkhead.dev", "nodefences", &[(READ, INCIDENTS)]),
    Rule::new("bulkhead.dev", "fencerequests", &[(READ, ANSWERS)]),
    Rule::new("bulkhead.dev", "driverreports", &[(READ, DRIVERS)]),
    Rule::new("bulkhead.dev", "nodevolumereports", &[(READ, "what the agents say")]),
    Rule::new("bulkhead.dev", "volumehealths", &[(READ, VOLUMES)]),
    Rule::new("bulkhead.dev", "volumehealthpolicies", &[(READ, "which volumes are looked at, and how")]),
    Rule::new("bulkhead.dev", "sharedvolumes", &[(READ, "addresses of NFS servers")]),
    Rule::new("bulkhead.dev", "sharedvolumeproviders", &[(READ, "storage control planes")]),
    Rule::new(
        "s3.csi.scality.com",
        "mountpoints3podattachments",
        &[(READ, "which workloads share which Mountpoint Pods")],
    ),
    Rule::new("apps", "deployments", &[(READ, PLUGINS)]),
    Rule::new("apps", "statefulsets", &[(READ, PLUGINS)]),
    Rule::new("apps", "daemonsets", &[(READ, PLUGINS)]),
    Rule::new("admissionregistration.k8s.io", "validatingwebhookconfigurations", &[(READ, REFUSERS)]),
    Rule::new("admissionregistration.k8s.io", "mutatingwebhookconfigurations", &[(READ, REFUSERS)]),
    Rule::new("admissionregistration.k8s.io", "validatingadmissionpolicybindings", &[(READ, REFUSERS)]),
];

const INCIDENTS: &str = "incidents";
const POLICIES: &str = "what is protected, and how";
const ANSWERS: &str = "what fencers answered";
const DRIVERS: &str = "what drivers can do";
const VOLUMES: &str = "the health of volumes";
const INSTALLED: &str = "how the operator is installed and configured";
const USED: &str = "which volumes a pod uses";
const PLUGINS: &str = "doctor: node plugins and attachers; sidecar: the driver's controller";
const REFUSERS: &str = "doctor: what could refuse our writes";
