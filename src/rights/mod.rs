//! Who of ours may do what in the Kubernetes API, and why: one table. `cargo xtask generate` makes the Roles of `config/`, the
//! chart's copies and `docs/rbac.md` from it; the tests ask a real API server about each of its rows, and about what no row
//! grants (`tests/it/api/rights`).

mod controller;
mod fencer;
mod node_agent;
mod people;
mod s3;

#[cfg(test)]
mod tests;

/// What a program that watches a kind does with it.
const READ: &[&str] = &["get", "list", "watch"];
/// Events are created, and patched when one comes again.
const EVENTS: Rule = Rule::new("events.k8s.io", "events", &[(&["create", "patch"], "says what was done, and why not")]);

/// A Role or ClusterRole of ours.
#[derive(Clone, Copy, Debug)]
pub struct Role {
    /// Its name, and that of its binding.
    pub name: &'static str,
    /// Where it holds; none: everywhere (a ClusterRole).
    pub namespace: Option<&'static str>,
    /// Who has it.
    pub holder: Holder,
    /// What installs it.
    pub switch: Switch,
    /// What it is for.
    pub about: &'static str,
    /// The file that it is written to.
    pub file: &'static str,
    /// What it grants.
    pub rules: &'static [Rule],
}

/// Who has a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A program, by the ServiceAccount of its pods.
    Program(Account),
    /// Whoever is given it: no binding is shipped.
    People,
    /// Who has one of these roles of Kubernetes' own: `view`, `edit`, `admin`.
    Aggregated(&'static [&'static str]),
}

/// A ServiceAccount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Account {
    /// Its namespace.
    pub namespace: &'static str,
    /// Its name.
    pub name: &'static str,
}

/// What installs a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// Every installation.
    Always,
    /// Every installation; its binding goes with the node agents.
    NodeAgent,
    /// Only with the S3 driver.
    S3,
    /// Once for each CSI driver with a sidecar, from a template.
    Driver,
}

/// What may be done with one resource.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// API group; empty: Kubernetes' core.
    pub group: &'static str,
    /// Resource, or `resource/subresource`.
    pub resource: &'static str,
    /// Only objects of these names; none: of any name.
    pub names: &'static [&'static str],
    /// Verbs, each with the reason for them.
    pub verbs: &'static [(&'static [&'static str], &'static str)],
}

impl Rule {
    const fn new(
        group: &'static str,
        resource: &'static str,
        verbs: &'static [(&'static [&'static str], &'static str)],
    ) -> Self {
        Self { group, resource, names: &[], verbs }
    }

    /// The same, for objects of these names only.
    const fn named(self, names: &'static [&'static str]) -> Self {
        Self { names, ..self }
    }

    /// All verbs of the rule.
    pub fn all_verbs(&self) -> impl Iterator<Item = &'static str> {
        self.verbs.iter().flat_map(|(verbs, _)| verbs.iter().copied())
    }
}

impl Switch {
    /// What turns it on, for people.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Always => "always; chart: `rbac.create`",
            Self::NodeAgent => "always, its binding with the agents; chart: `rbac.create`, `nodeAgent.enabled`",
            Self::S3 => "with `config/s3`; chart: `s3.enabled` and `rbac.create`",
            Self::Driver => "for each driver with a sidecar, from the template `config/rbac/fencer`",
        }
    }
}

/// The rules of a role that has all of another one, and more.
const fn joined<const N: usize>(mut first: &[Rule], mut more: &[Rule]) -> [Rule; N] {
    assert!(N == first.len() + more.len());
    let mut all = [Rule::new("", "", &[]); N];
    let mut room: &mut [Rule] = &mut all;
    while let Some((place, rest)) = room.split_first_mut() {
        match (first.split_first(), more.split_first()) {
            (Some((rule, left)), _) => (*place, first) = (*rule, left),
            (None, Some((rule, left))) => (*place, more) = (*rule, left),
            (None, None) => {}
        }
        room = rest;
    }
    all
}

/// The table.
pub fn roles() -> impl Iterator<Item = &'static Role> {
    [controller::ROLES, node_agent::ROLES, fencer::ROLES, people::ROLES, s3::ROLES].into_iter().flatten()
}
