//! People. Their roles come without a binding, but for those that Kubernetes' own roles take in.

use super::{Holder, READ, Role, Rule, Switch};

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
                --group=TEAM. Whoever only approves and holds incidents needs no more than these reads and \
                bulkhead-operator.",
        file: PEOPLE,
        rules: VIEWER,
    },
    Role {
        name: "bulkhead-operator",
        namespace: None,
        holder: Holder::People,
        switch: Switch::Always,
        about: "approve, hold, unhold; pause and resume of policies. Pause and resume of a Node need the right to patch \
                Nodes, which is not here: who has it may also taint them.",
        file: PEOPLE,
        rules: &[
            Rule::new(
                "bulkhead.dev",
                "nodefences",
                &[
                    (READ, INCIDENTS),
                    (&["patch"], "approval and hold; nodefence-people.bulkhead.dev allows nothing else"),
                ],
            ),
            Rule::new(
                "bulkhead.dev",
                "resiliencypolicies",
                &[(READ, POLICIES), (&["patch"], "pause and resume; who may patch a policy may change all of it")],
            ),
        ],
    },
    Role {
        name: "bulkhead-approver",
        namespace: None,
        holder: Holder::People,
        switch: Switch::Always,
        about: "To read an incident, to approve its plan, and to hold it. Bind it to whoever is on call.",
        file: "config/rbac/approver_cluster_role.yaml",
        rules: &[
            Rule::new(
                "bulkhead.dev",
                "nodefences",
                &[
                    (READ, INCIDENTS),
                    (&["update", "patch"], "approval and hold; nodefence-people.bulkhead.dev allows nothing else"),
                ],
            ),
            Rule::new("bulkhead.dev", "resiliencypolicies", &[(READ, POLICIES)]),
            Rule::new("bulkhead.dev", "fencerequests", &[(READ, ANSWERS)]),
            Rule::new("bulkhead.dev", "driverreports", &[(READ, DRIVERS)]),
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
    Rule::new("bulkhead.dev", "volumehealths", &[(READ, "the health of volumes")]),
    Rule::new("bulkhead.dev", "volumehealthpolicies", &[(READ, "which volumes are looked at, and how")]),
    Rule::new("bulkhead.dev", "sharedvolumes", &[(READ, "addresses of NFS servers")]),
    Rule::new("bulkhead.dev", "sharedvolumeproviders", &[(READ, "storage control planes")]),
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
const USED: &str = "which volumes a pod uses";
const PLUGINS: &str = "doctor: node plugins and attachers; sidecar: the driver's controller";
const REFUSERS: &str = "doctor: what could refuse our writes";
