//! Who is asked about: every program of the table by its ServiceAccount, and somebody with each role for people.

use std::collections::BTreeMap;

use bulkhead::rights::{Account, Holder, Role, roles};
use kube::api::DynamicObject;
use libtest_mimic::Failed;
use serde_json::json;

use crate::api::objects::dynamic;
use crate::api::world::{World, root};

use super::asked::Ask;

/// One identity, with all its roles.
pub struct Subject {
    /// For people.
    pub name: String,
    /// As the API server knows it.
    pub user: String,
    pub groups: Vec<String>,
    pub roles: Vec<&'static Role>,
}

impl Subject {
    /// What the table says, by the rules of RBAC.
    pub fn may(&self, ask: &Ask) -> bool {
        self.roles.iter().any(|role| {
            let is_there = role.namespace.is_none_or(|namespace| namespace == ask.namespace);
            is_there
                && role.rules.iter().any(|rule| {
                    (rule.group, rule.resource) == (ask.group, ask.resource)
                        && (rule.names.is_empty() || rule.names.contains(&ask.name))
                        && rule.all_verbs().any(|verb| verb == ask.verb)
                })
        })
    }

    /// Whether it is a program.
    pub fn is_program(&self) -> bool {
        self.roles.iter().any(|role| matches!(role.holder, Holder::Program(_)))
    }
}

/// Installs what the shared control plane does not have yet, and binds the roles for people.
pub async fn install(world: &World) -> Result<Vec<Subject>, Failed> {
    // The template of the sidecars as it is, beside the overlay of the testbed's driver.
    let namespace = dynamic(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "csi-example"}}))?;
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "csi-controller", "namespace": "csi-example"},
    });
    world.testbed.apply(vec![namespace, dynamic(&account)?]).await?;
    world.testbed.apply_dir(&root().join("config/rbac/fencer")).await?;
    for file in ["mount_namespace", "mount_namespace_controller_role", "node_rbac", "controller_rbac"] {
        world.testbed.apply_file(&root().join("config/s3").join(file).with_extension("yaml")).await?;
    }
    let mut programs: BTreeMap<Account, Vec<&'static Role>> = BTreeMap::new();
    let mut people: BTreeMap<&str, Vec<&'static Role>> = BTreeMap::new();
    for role in roles() {
        match role.holder {
            Holder::Program(account) => programs.entry(account).or_default().push(role),
            Holder::People | Holder::Aggregated(_) => {
                world.testbed.apply(vec![binding(role)?]).await?;
                people.entry(role.name).or_default().push(role);
            }
        }
    }
    let mut subjects: Vec<_> = people
        .into_iter()
        .map(|(name, roles)| Subject { name: name.into(), user: user(name), groups: groups(&[]), roles })
        .collect();
    subjects.extend(programs.into_iter().map(|(Account { namespace, name }, roles)| Subject {
        name: format!("{namespace}/{name}"),
        user: format!("system:serviceaccount:{namespace}:{name}"),
        groups: groups(&["system:serviceaccounts", &format!("system:serviceaccounts:{namespace}")]),
        roles,
    }));
    Ok(subjects)
}

fn user(role: &str) -> String {
    format!("has-{role}")
}

fn groups(more: &[&str]) -> Vec<String> {
    more.iter().chain(&["system:authenticated"]).map(|group| (*group).to_owned()).collect()
}

fn binding(role: &Role) -> Result<DynamicObject, Failed> {
    let kind = if role.namespace.is_some() { "Role" } else { "ClusterRole" };
    let user = user(role.name);
    dynamic(&json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": format!("{kind}Binding"),
        "metadata": {"name": user, "namespace": role.namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role.name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }))
}
