//! The rights of our identities: what they need, and what they must not have.

use bulkhead::api::names;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use libtest_mimic::Failed;

use super::Outcome;
use super::world::{DRIVER, World};

/// Verbs on `group/resource[/subresource]`, in a namespace (empty: cluster-wide), of one name (empty: any).
type Right = (&'static [&'static str], &'static str, &'static str, &'static str);

const CONTROLLER_MAY: &[Right] = &[
    (&["get", "list", "watch", "patch"], "/nodes", "", ""),
    (&["get", "list", "watch", "patch", "delete"], "/pods", "", ""),
    (&["patch"], "/pods/status", "", ""),
    (&["get", "list", "watch", "patch"], "/persistentvolumes", "", ""),
    (&["get", "list", "watch", "patch"], "/persistentvolumeclaims", "", ""),
    (&["get", "list", "watch"], "/namespaces", "", ""),
    (&["get", "list", "watch", "delete"], "storage.k8s.io/volumeattachments", "", ""),
    (&["get", "list", "watch"], "storage.k8s.io/csinodes", "", ""),
    (&["get", "list", "watch"], "storage.k8s.io/csidrivers", "", ""),
    (&["get"], "kubevirt.io/virtualmachineinstances", "", ""),
    (&["get", "list", "watch"], "coordination.k8s.io/leases", "kube-node-lease", ""),
    (&["get", "list", "watch", "create"], "coordination.k8s.io/leases", "bulkhead-system", ""),
    (&["update"], "coordination.k8s.io/leases", "bulkhead-system", "bulkhead-controller"),
    (&["create", "patch"], "events.k8s.io/events", "", ""),
    (&["get", "list", "watch", "update", "patch"], "bulkhead.dev/resiliencypolicies", "", ""),
    (&["update", "patch"], "bulkhead.dev/resiliencypolicies/status", "", ""),
    (&["get", "list", "watch", "create", "update", "patch", "delete", "plan"], "bulkhead.dev/nodefences", "", ""),
    (&["update", "patch"], "bulkhead.dev/nodefences/status", "", ""),
    (&["get", "list", "watch", "create", "update", "patch", "delete"], "bulkhead.dev/fencerequests", "", ""),
    (&["get", "list", "watch", "patch", "project"], "bulkhead.dev/volumehealths", "", ""),
    (&["update"], "bulkhead.dev/volumehealths/status", "", ""),
    (&["get", "list", "watch"], "admissionregistration.k8s.io/validatingadmissionpolicybindings", "", ""),
    (&["get", "list", "watch"], "bulkhead.dev/driverreports", "", ""),
    (&["get", "list", "watch", "create"], "bulkhead.dev/nodevolumereports", "", ""),
    (&["get", "list", "watch", "create", "patch", "delete"], "bulkhead.dev/volumehealths", "", ""),
    (&["update"], "bulkhead.dev/volumehealths/status", "", ""),
    (&["get", "list", "watch"], "bulkhead.dev/volumehealthpolicies", "", ""),
    (&["update"], "bulkhead.dev/volumehealthpolicies/status", "", ""),
    (&["get", "list", "watch"], "admissionregistration.k8s.io/validatingadmissionpolicybindings", "", ""),
    (
        &["get", "list", "watch", "create", "update", "patch", "delete"],
        "s3.csi.scality.com/mountpoints3podattachments",
        "",
        "",
    ),
    (&["update"], "s3.csi.scality.com/mountpoints3podattachments/status", "", ""),
    (&["get", "list", "watch", "create", "patch"], "bulkhead.dev/sharedvolumes", "", ""),
    (&["update"], "bulkhead.dev/sharedvolumes/status", "", ""),
    (&["get", "list", "watch"], "bulkhead.dev/sharedvolumeproviders", "", ""),
    (&["update"], "bulkhead.dev/sharedvolumeproviders/status", "", ""),
    (&["get", "list", "watch", "create", "patch", "delete"], "/services", "", ""),
    (&["get", "list", "watch", "create", "update", "delete"], "/endpoints", "", ""),
    (&["get", "list", "watch", "create", "update", "delete"], "discovery.k8s.io/endpointslices", "", ""),
    // Where the agents learn of its replicas.
    (&["get", "list", "watch", "patch"], "/configmaps", "bulkhead-system", "bulkhead-heartbeat"),
    // Credentials of storage control planes.
    (&["get", "list", "watch"], "/secrets", "bulkhead-system", "stos-api"),
];

const CONTROLLER_MAY_NOT: &[Right] = &[
    (&["get", "list", "watch"], "/secrets", "", ""),
    (&["get"], "/secrets", "kube-system", ""),
    (&["create", "update", "patch", "delete"], "/secrets", "bulkhead-system", ""),
    (&["create", "update"], "/pods", "", ""),
    (&["create"], "/pods/exec", "", ""),
    (&["create"], "/pods/binding", "", ""),
    (&["update", "delete", "create"], "/nodes", "", ""),
    (&["create", "update", "delete"], "/persistentvolumes", "", ""),
    (&["create", "update", "delete"], "/persistentvolumeclaims", "", ""),
    (&["update", "patch"], "/services/status", "", ""),
    (&["create"], "/services/proxy", "", ""),
    (&["update", "deletecollection"], "/services", "", ""),
    (&["patch", "deletecollection"], "/endpoints", "", ""),
    (&["patch", "deletecollection"], "discovery.k8s.io/endpointslices", "", ""),
    (&["update", "delete", "static"], "bulkhead.dev/sharedvolumes", "", ""),
    (&["create", "update", "patch", "delete"], "bulkhead.dev/sharedvolumeproviders", "", ""),
    (&["tolerate"], "bulkhead.dev/volumehealths", "", ""),
    (&["create", "update", "patch"], "storage.k8s.io/volumeattachments", "", ""),
    (&["update", "patch", "delete"], "coordination.k8s.io/leases", "kube-node-lease", ""),
    (&["update"], "coordination.k8s.io/leases", "bulkhead-system", "bulkhead-fencer-189101be"),
    (&["create", "delete"], "bulkhead.dev/resiliencypolicies", "", ""),
    (&["create", "update", "patch", "delete"], "bulkhead.dev/volumehealthpolicies", "", ""),
    (&["list", "watch", "update", "patch", "delete"], "kubevirt.io/virtualmachineinstances", "", ""),
    (&["deletecollection"], "bulkhead.dev/nodefences", "", ""),
    (&["update", "patch"], "bulkhead.dev/fencerequests/status", "", ""),
    (&["update", "patch"], "bulkhead.dev/driverreports/status", "", ""),
    (&["update", "patch"], "bulkhead.dev/nodevolumereports/status", "", ""),
    (&["create", "update", "delete"], "/configmaps", "bulkhead-system", "bulkhead-heartbeat"),
    (&["get", "list", "patch"], "/configmaps", "bulkhead-system", ""),
    (&["attest"], "bulkhead.dev/fencers", "", DRIVER),
    (&["create", "update", "patch"], "rbac.authorization.k8s.io/clusterroles", "", ""),
];

const SIDECAR_MAY: &[Right] = &[
    (&["attest"], "bulkhead.dev/fencers", "", DRIVER),
    (&["get", "list", "watch"], "bulkhead.dev/fencerequests", "", ""),
    (&["update", "patch"], "bulkhead.dev/fencerequests/status", "", ""),
    (&["create", "get", "list", "watch"], "bulkhead.dev/driverreports", "", ""),
    (&["update", "patch"], "bulkhead.dev/driverreports/status", "", ""),
    (&["get"], "storage.k8s.io/csidrivers", "", ""),
    (&["get", "list", "watch"], "/persistentvolumes", "", ""),
    (&["list", "watch"], "storage.k8s.io/volumeattachments", "", ""),
    (&["list", "watch"], "storage.k8s.io/csinodes", "", ""),
    (&["list", "watch"], "bulkhead.dev/volumehealthpolicies", "", ""),
    (&["list", "watch"], "/pods", "", ""),
    (&["list", "watch"], "/namespaces", "", ""),
    (&["list", "watch"], "bulkhead.dev/resiliencypolicies", "", ""),
    (&["get"], "/secrets", "csi-test", ""),
    (&["create"], "coordination.k8s.io/leases", "bulkhead-system", ""),
    (&["create", "patch"], "events.k8s.io/events", "", ""),
];

const SIDECAR_MAY_NOT: &[Right] = &[
    (&["attest"], "bulkhead.dev/fencers", "", "csi.block.example.com"),
    (&["attest"], "bulkhead.dev/fencers", "", ""),
    (&["create", "update", "patch", "delete"], "bulkhead.dev/fencerequests", "", ""),
    (&["get", "update", "patch", "plan"], "bulkhead.dev/nodefences", "", ""),
    (&["create", "update", "patch", "delete"], "/pods", "", ""),
    (&["create", "update", "patch", "delete"], "bulkhead.dev/resiliencypolicies", "", ""),
    (&["update", "patch"], "bulkhead.dev/resiliencypolicies/status", "", ""),
    (&["get", "patch"], "/nodes", "", ""),
    (&["create", "update", "patch", "delete"], "storage.k8s.io/volumeattachments", "", ""),
    (&["update", "patch", "delete"], "/persistentvolumes", "", ""),
    (&["create", "update", "patch", "delete"], "bulkhead.dev/volumehealthpolicies", "", ""),
    (&["get", "list", "create", "update", "patch"], "bulkhead.dev/volumehealths", "", ""),
    (&["get"], "/secrets", "", ""),
    (&["list", "watch"], "/secrets", "csi-test", ""),
    (&["get"], "/secrets", "bulkhead-system", ""),
    (&["update"], "coordination.k8s.io/leases", "bulkhead-system", "bulkhead-controller"),
];

const AGENT_MAY: &[Right] = &[
    (&["get", "list", "watch"], "/nodes", "", ""),
    (&["get", "list", "watch"], "/pods", "", ""),
    (&["get", "list", "watch"], "/persistentvolumes", "", ""),
    (&["get", "list", "watch"], "bulkhead.dev/volumehealthpolicies", "", ""),
    (&["get", "list", "watch"], "bulkhead.dev/nodefences", "", ""),
    (&["get", "list", "watch"], "bulkhead.dev/nodevolumereports", "", ""),
    (&["update", "patch"], "bulkhead.dev/nodevolumereports/status", "", ""),
    (&["get", "list", "watch"], "/configmaps", "bulkhead-system", "bulkhead-heartbeat"),
    (&["get", "list", "watch"], "bulkhead.dev/resiliencypolicies", "", ""),
    (&["get", "list", "watch"], "/namespaces", "", ""),
    (&["create", "patch"], "events.k8s.io/events", "", ""),
];

/// Neither proof nor phase nor taints, nothing that releases or detaches, and no way to another identity.
const AGENT_MAY_NOT: &[Right] = &[
    (&["create", "update", "patch", "delete"], "bulkhead.dev/nodevolumereports", "", ""),
    (&["create", "update", "patch", "delete", "plan"], "bulkhead.dev/nodefences", "", ""),
    (&["update", "patch"], "bulkhead.dev/nodefences/status", "", ""),
    (&["get", "create", "update", "patch", "delete"], "bulkhead.dev/fencerequests", "", ""),
    (&["update", "patch"], "bulkhead.dev/fencerequests/status", "", ""),
    (&["update", "patch"], "bulkhead.dev/driverreports/status", "", ""),
    (&["attest"], "bulkhead.dev/fencers", "", DRIVER),
    (&["create", "update", "patch", "delete"], "/nodes", "", ""),
    (&["update", "patch"], "/nodes/status", "", ""),
    (&["create", "update", "patch", "delete"], "/pods", "", ""),
    (&["update", "patch"], "/pods/status", "", ""),
    (&["create"], "/pods/eviction", "", ""),
    (&["create"], "/pods/exec", "", ""),
    // What it says of a volume taints none by itself, and no claim is its concern.
    (&["create", "update", "patch", "delete"], "/persistentvolumes", "", ""),
    (&["get", "list"], "/persistentvolumeclaims", "", ""),
    (&["get", "create", "update", "patch", "delete"], "bulkhead.dev/volumehealths", "", ""),
    (&["update", "patch"], "bulkhead.dev/volumehealths/status", "", ""),
    (&["create", "update", "patch", "delete"], "bulkhead.dev/volumehealthpolicies", "", ""),
    // Whom it stops it does not choose.
    (&["create", "update", "patch", "delete"], "bulkhead.dev/resiliencypolicies", "", ""),
    (&["update", "patch"], "bulkhead.dev/resiliencypolicies/status", "", ""),
    (&["create", "update", "patch", "delete"], "/namespaces", "", ""),
    (&["create"], "/serviceaccounts/token", "bulkhead-node-agent", "bulkhead-node-agent"),
    (&["delete"], "storage.k8s.io/volumeattachments", "", ""),
    (&["get"], "/secrets", "", ""),
    (&["get"], "/secrets", "bulkhead-node-agent", ""),
    // Who writes it says where heartbeats go.
    (&["create", "update", "patch", "delete"], "/configmaps", "bulkhead-system", "bulkhead-heartbeat"),
    (&["get", "list"], "/configmaps", "bulkhead-system", ""),
    (&["update"], "coordination.k8s.io/leases", "kube-node-lease", ""),
    (&["create", "update"], "coordination.k8s.io/leases", "bulkhead-system", ""),
];

pub async fn rights(world: &World) -> Outcome {
    let mut wrong = Vec::new();
    for (who, client, rights, expected) in [
        ("controller", &world.controller, CONTROLLER_MAY, true),
        ("controller", &world.controller, CONTROLLER_MAY_NOT, false),
        ("sidecar", &world.sidecar, SIDECAR_MAY, true),
        ("sidecar", &world.sidecar, SIDECAR_MAY_NOT, false),
        ("agent", &world.agent, AGENT_MAY, true),
        ("agent", &world.agent, AGENT_MAY_NOT, false),
    ] {
        for (verbs, resource, namespace, name) in rights {
            for verb in *verbs {
                if may(client, verb, resource, namespace, name).await? != expected {
                    wrong.push(format!("{who} {verb} {resource} {namespace} {name}: not {expected}"));
                }
            }
        }
    }
    // Its Lease is named after the driver, as the program names it.
    for verb in ["get", "update"] {
        let lease = names::fencer_lease(DRIVER);
        if !may(&world.sidecar, verb, "coordination.k8s.io/leases", names::OPERATOR_NAMESPACE, &lease).await? {
            wrong.push(format!("sidecar {verb} Lease {lease}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}

/// Whether an identity has a right.
pub async fn may(client: &Client, verb: &str, resource: &str, namespace: &str, name: &str) -> Result<bool, Failed> {
    let (group, resource) = resource.split_once('/').ok_or("group/resource")?;
    let (resource, subresource) = match resource.split_once('/') {
        Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
        None => (resource, None),
    };
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                verb: Some(verb.into()),
                group: Some(group.into()),
                resource: Some(resource.into()),
                subresource,
                namespace: Some(namespace.into()),
                name: Some(name.into()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let answer = Api::<SelfSubjectAccessReview>::all(client.clone()).create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}
