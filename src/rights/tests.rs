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

/// A person who is given more keeps what she had.
#[test]
fn a_role_that_is_said_to_have_all_of_another_has_it() {
    let of = |name: &str| -> BTreeSet<_> {
        let rules = roles().filter(|role| role.name == name).flat_map(|role| role.rules);
        rules.flat_map(|rule| rule.all_verbs().map(move |verb| (rule.group, rule.resource, verb))).collect()
    };
    for (small, large) in [("bulkhead-approver", "bulkhead-operator"), ("bulkhead-viewer", "bulkhead-support")] {
        let (small, large) = (of(small), of(large));
        assert!(!small.is_empty() && small.is_subset(&large) && small != large, "{:?}", small.difference(&large));
    }
}

#[test]
fn a_role_is_there_once() {
    let mut seen = BTreeSet::new();
    for role in roles() {
        assert!(seen.insert((role.name, role.namespace)), "{} in {:?}", role.name, role.namespace);
    }
}
