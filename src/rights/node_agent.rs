//! `bulkhead-node-agent`.

use super::{Account, EVENTS, Holder, READ, Role, Rule, Switch};

const HOLDER: Holder = Holder::Program(Account { namespace: "bulkhead-node-agent", name: "bulkhead-node-agent" });

pub(super) const ROLES: &[Role] = &[
    Role {
        name: "bulkhead-node-agent",
        namespace: None,
        holder: HOLDER,
        switch: Switch::NodeAgent,
        about: "The node agent, whose token is bound to its node: the admission policy node-report.bulkhead.dev lets it \
                write the report of that node and no other. It can neither prove nor release anything.",
        file: "config/rbac/agent_cluster_role.yaml",
        rules: &[
            Rule::new(
                "",
                "nodes",
                &[(
                    READ,
                    "its own node: our taint, and which incident it is about. It asks for its node's objects only, by name \
                     and by spec.nodeName; RBAC cannot say so",
                )],
            ),
            Rule::new("", "pods", &[(READ, "which pods the node still has: their mounts are left alone")]),
            Rule::new(
                "",
                "persistentvolumes",
                &[(
                    READ,
                    "which volumes are its own, local ones before any pod uses them too: that cannot be asked by field or \
                     label",
                )],
            ),
            Rule::new("bulkhead.dev", "volumehealthpolicies", &[(READ, "which of them are looked at, and how")]),
            Rule::new("bulkhead.dev", "nodefences", &[(READ, "what was cut off from the node and must be cleaned")]),
            Rule::new(
                "bulkhead.dev",
                "resiliencypolicies",
                &[(READ, "whom it stops when its node is alone: which policies select its pods")],
            ),
            Rule::new(
                "",
                "namespaces",
                &[(
                    READ,
                    "their labels, by which a policy may select pods; read only while a policy enables selfFencing",
                )],
            ),
            Rule::new(
                "bulkhead.dev",
                "nodevolumereports",
                &[(READ, "its report; the controller made it, with the Node as its owner")],
            ),
            Rule::new(
                "bulkhead.dev",
                "nodevolumereports/status",
                &[(&["update"], "what it says, of its own node only")],
            ),
            EVENTS,
        ],
    },
    Role {
        name: "bulkhead-heartbeat-agent",
        namespace: Some("bulkhead-system"),
        holder: HOLDER,
        switch: Switch::NodeAgent,
        about: "Where the controller's replicas listen. Nothing in it is secret.",
        file: "config/rbac/heartbeat_roles.yaml",
        rules: &[Rule::new("", "configmaps", &[(READ, "where to send heartbeats")]).named(&["bulkhead-heartbeat"])],
    },
];
