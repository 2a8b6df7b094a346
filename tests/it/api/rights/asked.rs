//! What is asked for: the rows of the table; of each kind in it every verb on somebody else's object; and a world of requests
//! around them that matter when they are granted by mistake.

use std::collections::BTreeSet;
use std::fmt;

use bulkhead::rights::roles;
use k8s_openapi::api::authorization::v1::ResourceAttributes;

use super::identities::Subject;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ask {
    pub verb: &'static str,
    pub group: &'static str,
    /// With the subresource.
    pub resource: &'static str,
    /// Empty: all of them.
    pub namespace: &'static str,
    pub name: &'static str,
}

impl Ask {
    pub fn attributes(&self) -> ResourceAttributes {
        let (resource, subresource) = match self.resource.split_once('/') {
            Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
            None => (self.resource, None),
        };
        ResourceAttributes {
            verb: Some(self.verb.into()),
            group: Some(self.group.into()),
            resource: Some(resource.into()),
            subresource,
            namespace: Some(self.namespace.into()),
            name: Some(self.name.into()),
            ..ResourceAttributes::default()
        }
    }
}

impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, group, resource, namespace, name } = self;
        write!(f, "{verb} {group}/{resource} {name:?} in {namespace:?}")
    }
}

/// Somebody else's namespace and object. A right on these is a right on all that no row names.
const TENANT: &str = "somebody-elses";
const VERBS: [&str; 8] = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];

/// Resources in namespaces. The first lead to the rights of others, or past them: they are asked about in each namespace in
/// which somebody has a Role.
const DANGEROUS: [(&str, &str); 14] = [
    ("", "secrets"),
    ("", "configmaps"),
    ("", "pods"),
    ("", "pods/exec"),
    ("", "pods/ephemeralcontainers"),
    ("", "pods/binding"),
    ("", "serviceaccounts"),
    ("", "serviceaccounts/token"),
    ("", "services"),
    ("apps", "daemonsets"),
    ("apps", "deployments"),
    ("coordination.k8s.io", "leases"),
    ("rbac.authorization.k8s.io", "roles"),
    ("rbac.authorization.k8s.io", "rolebindings"),
];
const NAMESPACED: [(&str, &str); 28] = [
    ("", "pods/status"),
    ("", "pods/eviction"),
    ("", "pods/attach"),
    ("", "pods/portforward"),
    ("", "pods/proxy"),
    ("", "pods/log"),
    ("", "persistentvolumeclaims"),
    ("", "persistentvolumeclaims/status"),
    ("", "services/status"),
    ("", "services/proxy"),
    ("", "endpoints"),
    ("", "events"),
    ("", "resourcequotas"),
    ("", "limitranges"),
    ("", "podtemplates"),
    ("apps", "statefulsets"),
    ("apps", "replicasets"),
    ("apps", "deployments/scale"),
    ("batch", "jobs"),
    ("batch", "cronjobs"),
    ("autoscaling", "horizontalpodautoscalers"),
    ("discovery.k8s.io", "endpointslices"),
    ("events.k8s.io", "events"),
    ("kubevirt.io", "virtualmachineinstances"),
    ("networking.k8s.io", "networkpolicies"),
    ("policy", "poddisruptionbudgets"),
    ("bulkhead.dev", "sharedvolumes"),
    ("bulkhead.dev", "sharedvolumes/status"),
];
const CLUSTER_WIDE: [(&str, &str); 51] = [
    ("", "nodes"),
    ("", "nodes/status"),
    ("", "nodes/proxy"),
    ("", "namespaces"),
    ("", "namespaces/finalize"),
    ("", "persistentvolumes"),
    ("", "persistentvolumes/status"),
    ("admissionregistration.k8s.io", "mutatingadmissionpolicies"),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("apiregistration.k8s.io", "apiservices"),
    ("authentication.k8s.io", "tokenreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
    ("certificates.k8s.io", "certificatesigningrequests"),
    ("certificates.k8s.io", "certificatesigningrequests/approval"),
    ("certificates.k8s.io", "certificatesigningrequests/status"),
    ("csiaddons.openshift.io", "networkfences"),
    ("flowcontrol.apiserver.k8s.io", "flowschemas"),
    ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations"),
    ("networking.k8s.io", "ipaddresses"),
    ("networking.k8s.io", "servicecidrs"),
    ("node.k8s.io", "runtimeclasses"),
    ("rbac.authorization.k8s.io", "clusterroles"),
    ("rbac.authorization.k8s.io", "clusterrolebindings"),
    ("scheduling.k8s.io", "priorityclasses"),
    ("storage.k8s.io", "csidrivers"),
    ("storage.k8s.io", "csinodes"),
    ("storage.k8s.io", "storageclasses"),
    ("storage.k8s.io", "volumeattachments"),
    ("storage.k8s.io", "volumeattachments/status"),
    ("bulkhead.dev", "driverreports"),
    ("bulkhead.dev", "driverreports/status"),
    ("bulkhead.dev", "fencerequests"),
    ("bulkhead.dev", "fencerequests/status"),
    ("bulkhead.dev", "nodefences"),
    ("bulkhead.dev", "nodefences/status"),
    ("bulkhead.dev", "nodevolumereports"),
    ("bulkhead.dev", "nodevolumereports/status"),
    ("bulkhead.dev", "resiliencypolicies"),
    ("bulkhead.dev", "resiliencypolicies/status"),
    ("bulkhead.dev", "sharedvolumeproviders"),
    ("bulkhead.dev", "sharedvolumeproviders/status"),
    ("bulkhead.dev", "volumehealthpolicies"),
    ("bulkhead.dev", "volumehealthpolicies/status"),
    ("bulkhead.dev", "volumehealths"),
    ("bulkhead.dev", "volumehealths/status"),
    ("s3.csi.scality.com", "mountpoints3podattachments"),
    ("s3.csi.scality.com", "mountpoints3podattachments/status"),
];
/// Verbs beside the usual ones: ours, and those by which Kubernetes hands rights on.
const SPECIAL: [(&str, &str, &str); 19] = [
    ("attest", "bulkhead.dev", "fencers"),
    ("plan", "bulkhead.dev", "nodefences"),
    ("approve", "bulkhead.dev", "nodefences"),
    ("project", "bulkhead.dev", "volumehealths"),
    ("tolerate", "bulkhead.dev", "volumehealths"),
    ("static", "bulkhead.dev", "sharedvolumes"),
    ("impersonate", "", "users"),
    ("impersonate", "", "groups"),
    ("impersonate", "", "serviceaccounts"),
    ("impersonate", "authentication.k8s.io", "userextras"),
    ("bind", "rbac.authorization.k8s.io", "roles"),
    ("bind", "rbac.authorization.k8s.io", "clusterroles"),
    ("escalate", "rbac.authorization.k8s.io", "roles"),
    ("escalate", "rbac.authorization.k8s.io", "clusterroles"),
    ("approve", "certificates.k8s.io", "signers"),
    ("sign", "certificates.k8s.io", "signers"),
    ("attest", "certificates.k8s.io", "signers"),
    ("use", "policy", "podsecuritypolicies"),
    ("proxy", "", "nodes"),
];

/// One request for each verb of each row.
pub fn granted(subject: &Subject) -> impl Iterator<Item = Ask> {
    subject.roles.iter().flat_map(|role| {
        role.rules.iter().flat_map(move |rule| {
            let names = if rule.names.is_empty() { &[""] } else { rule.names };
            names.iter().flat_map(move |name| {
                let namespace = role.namespace.unwrap_or_default();
                let (group, resource) = (rule.group, rule.resource);
                rule.all_verbs().map(move |verb| Ask { verb, group, resource, namespace, name })
            })
        })
    })
}

/// Of each kind of the table the usual verbs and those that anybody has of it, on somebody else's object.
fn of_the_table() -> impl Iterator<Item = Ask> {
    roles().flat_map(|role| role.rules).flat_map(|rule| {
        let (group, resource) = (rule.group, rule.resource);
        let verbs = VERBS.into_iter().chain(rule.all_verbs());
        verbs.map(move |verb| Ask { verb, group, resource, namespace: TENANT, name: TENANT })
    })
}

/// Everything of this world, about somebody else's objects, once; granted or not.
pub fn others(subject: &Subject) -> impl Iterator<Item = Ask> {
    let namespaces: BTreeSet<_> = roles().filter_map(|role| role.namespace).filter(|_| subject.is_program()).collect();
    let ask = |verb, (group, resource), namespace| Ask { verb, group, resource, namespace, name: TENANT };
    let mut asks: BTreeSet<_> = of_the_table().collect();
    for verb in VERBS {
        asks.extend(CLUSTER_WIDE.map(|kind| ask(verb, kind, "")));
        asks.extend(NAMESPACED.map(|kind| ask(verb, kind, TENANT)));
        for namespace in namespaces.iter().copied().chain([TENANT]) {
            asks.extend(DANGEROUS.map(|kind| ask(verb, kind, namespace)));
        }
    }
    asks.extend(SPECIAL.map(|(verb, group, resource)| ask(verb, (group, resource), "")));
    asks.into_iter()
}
