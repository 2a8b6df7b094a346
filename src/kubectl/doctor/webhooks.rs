//! Webhooks of others that would stop a failover while their backend is dead: with `failurePolicy: Fail` nothing that they
//! match is written then, and their backend may have been on the node that died.

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use kube::ResourceExt;

use super::Finding;

/// A webhook that refuses when it does not answer.
pub struct Hook {
    /// Kind, configuration and webhook.
    about: String,
    /// Where its backend is.
    backend: String,
    /// It looks at some namespaces only.
    is_narrowed: bool,
    /// What it matches.
    rules: Vec<RuleWithOperations>,
}

/// What a failover writes: verb, API group, resource, and what stops without it.
const WRITES: [(&str, &str, &str, &str); 8] = [
    ("DELETE", "", "pods", "no pod is released"),
    ("UPDATE", "", "pods/status", "pods with finalizers are not released"),
    ("UPDATE", "", "nodes", "no node is tainted"),
    ("DELETE", "storage.k8s.io", "volumeattachments", "nothing is detached"),
    ("CREATE", "storage.k8s.io", "volumeattachments", "no replacement is attached"),
    ("CREATE", "", "pods", "no replacement is created"),
    ("CREATE", "bulkhead.dev", "nodefences", "no incident begins"),
    ("CREATE", "bulkhead.dev", "fencerequests", "nothing is cut off"),
];

/// Both kinds of webhooks have the same fields, and no type in common.
macro_rules! failing {
    ($kind:literal, $all:expr) => {{
        let mut hooks = Vec::new();
        for configuration in $all {
            let failing = configuration.webhooks.iter().flatten();
            for hook in failing.filter(|hook| fails(hook.failure_policy.as_deref())) {
                hooks.push(Hook {
                    about: format!("{} {}, {}", $kind, configuration.name_any(), hook.name),
                    backend: backend(&hook.client_config),
                    is_narrowed: is_narrowed(
                        hook.namespace_selector.as_ref(),
                        hook.object_selector.as_ref(),
                        hook.match_conditions.is_some(),
                    ),
                    rules: hook.rules.clone().unwrap_or_default(),
                });
            }
        }
        hooks
    }};
}

/// Those of ValidatingWebhookConfigurations.
pub fn of_validating(all: &[ValidatingWebhookConfiguration]) -> Vec<Hook> {
    failing!("ValidatingWebhookConfiguration", all)
}

/// Those of MutatingWebhookConfigurations.
pub fn of_mutating(all: &[MutatingWebhookConfiguration]) -> Vec<Hook> {
    failing!("MutatingWebhookConfiguration", all)
}

fn fails(policy: Option<&str>) -> bool {
    policy.is_none_or(|policy| policy == "Fail")
}

fn backend(config: &WebhookClientConfig) -> String {
    match (&config.service, &config.url) {
        (Some(service), _) => format!("Service {}/{}", service.namespace, service.name),
        (None, Some(url)) => url.clone(),
        (None, None) => "an unknown backend".into(),
    }
}

fn is_narrowed(
    namespaces: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector>,
    objects: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector>,
    has_conditions: bool,
) -> bool {
    let narrows = |selector: &k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector| {
        selector.match_labels.as_ref().is_some_and(|it| !it.is_empty())
            || selector.match_expressions.as_ref().is_some_and(|it| !it.is_empty())
    };
    has_conditions || namespaces.is_some_and(narrows) || objects.is_some_and(narrows)
}

/// Which writes of a failover they would stop.
pub fn check(hooks: Vec<Hook>) -> Vec<Finding> {
    const CHECK: &str = "Webhooks";
    let mut findings = Vec::new();
    for hook in hooks {
        let stopped: Vec<_> = WRITES
            .into_iter()
            .filter(|(verb, group, resource, _)| matches(&hook.rules, verb, group, resource))
            .collect();
        if stopped.is_empty() {
            continue;
        }
        let what: Vec<_> =
            stopped.iter().map(|(verb, _, resource, without)| format!("{verb} {resource}: {without}")).collect();
        let narrowed = if hook.is_narrowed { ", for what its selectors match" } else { "" };
        let message = format!("failurePolicy Fail{narrowed}: while {} is dead, {}", hook.backend, what.join("; "));
        let remedy = "failurePolicy: Ignore, or leave these out of its rules, or run its backend on several nodes outside of the policies' reach";
        findings.push(Finding::warning(CHECK, hook.about, message, remedy));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, "all", "none would stop a failover while its backend is dead"));
    }
    findings
}

fn matches(rules: &[RuleWithOperations], verb: &str, group: &str, resource: &str) -> bool {
    let lists = |list: &Option<Vec<String>>, wanted: &str| list.iter().flatten().any(|it| it == "*" || it == wanted);
    let (bare, sub) = resource.split_once('/').unwrap_or((resource, ""));
    let names = |pattern: &String| {
        let (resource, subresource) = pattern.split_once('/').unwrap_or((pattern, ""));
        (resource == "*" || resource == bare) && (subresource == sub || subresource == "*")
            || pattern == "*" && sub.is_empty()
    };
    rules.iter().any(|rule| {
        lists(&rule.operations, verb) && lists(&rule.api_groups, group) && rule.resources.iter().flatten().any(names)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn hooks(webhook: serde_json::Value) -> Vec<Finding> {
        let mut whole = json!({
            "name": "deny.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": { "service": { "namespace": "policy", "name": "hook" } },
        });
        json_patch::merge(&mut whole, &webhook);
        let configuration = json!({ "metadata": { "name": "guard" }, "webhooks": [whole] });
        check(of_validating(&[serde_json::from_value(configuration).unwrap()]))
    }

    fn rule(verbs: &[&str], groups: &[&str], resources: &[&str]) -> serde_json::Value {
        json!([{ "operations": verbs, "apiGroups": groups, "apiVersions": ["*"], "resources": resources }])
    }

    #[test]
    fn one_that_fails_closed_on_what_a_failover_writes_is_told() {
        let found = hooks(json!({ "rules": rule(&["DELETE"], &[""], &["pods"]) }));
        insta::assert_snapshot!(format!("{}\n{}\n{}", found[0].about, found[0].message, found[0].remedy));
        let all = hooks(json!({ "rules": rule(&["*"], &["*"], &["*/*"]) }));
        assert!(WRITES.iter().all(|(.., without)| all[0].message.contains(without)), "{}", all[0].message);
    }

    #[test]
    fn one_that_ignores_or_looks_elsewhere_is_not() {
        for webhook in [
            json!({ "failurePolicy": "Ignore", "rules": rule(&["*"], &["*"], &["*/*"]) }),
            json!({ "rules": rule(&["CREATE"], &["apps"], &["deployments"]) }),
            json!({ "rules": rule(&["UPDATE"], &[""], &["pods"]) }),
            json!({ "rules": rule(&["DELETE"], &[""], &["pods/status"]) }),
        ] {
            let found = hooks(webhook.clone());
            assert_eq!(found[0].message, "none would stop a failover while its backend is dead", "{webhook}");
        }
    }

    #[test]
    fn one_that_looks_at_some_namespaces_says_so() {
        let selector = json!({ "matchLabels": { "a": "b" } });
        let found = hooks(json!({ "namespaceSelector": selector, "rules": rule(&["DELETE"], &[""], &["pods"]) }));
        assert!(found[0].message.contains("for what its selectors match"), "{}", found[0].message);
    }
}
