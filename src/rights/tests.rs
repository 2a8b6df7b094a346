use std::collections::BTreeSet;

use super::*;

/// A wildcard would grant what does not exist yet; who lists or watches Secrets has all that come later, too.
#[test]
fn nothing_is_granted_at_large() {
    for role in roles() {
        for rule in role.rules {
            let what = format!("{} in {:?}: {}/{}", role.name, role.namespace, rule.group, rule.resource);
            for word in rule.all_verbs().chain([rule.group, rule.resource]).chain(rule.names.iter().copied()) {
                assert!(!word.contains('*'), "{what}");
            }
            if rule.resource == "secrets" {
                assert!(role.namespace.is_some() && rule.all_verbs().eq(["get"]), "{what}: one Secret at a time");
            }
            let is_escalation = matches!(rule.group, "rbac.authorization.k8s.io" | "certificates.k8s.io")
                || matches!(rule.resource, "pods/exec" | "serviceaccounts/token" | "nodes/proxy");
            assert!(!is_escalation, "{what}: it leads to the rights of others");
        }
    }
}

#[test]
fn each_verb_has_its_reason_and_stands_once() {
    for role in roles() {
        let mut seen = BTreeSet::new();
        assert!(!role.about.is_empty() && !role.rules.is_empty(), "{}", role.name);
        for rule in role.rules {
            for (verbs, reason) in rule.verbs {
                assert!(!verbs.is_empty() && !reason.is_empty(), "{}: {}", role.name, rule.resource);
            }
            for verb in rule.all_verbs() {
                assert!(
                    seen.insert((rule.group, rule.resource, rule.names, verb)),
                    "{}: {} {verb}",
                    role.name,
                    rule.resource
                );
            }
        }
    }
}

#[test]
fn a_role_is_there_once() {
    let mut seen = BTreeSet::new();
    for role in roles() {
        assert!(seen.insert((role.name, role.namespace)), "{} in {:?}", role.name, role.namespace);
    }
}
