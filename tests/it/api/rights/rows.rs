//! Of each row of the table by which a program writes, real requests of its ServiceAccount about somebody else's object: of a
//! Role the same in another namespace, where names are given the same of another name, and else of an object that is a
//! tenant's, another node's or another fencer's. A new row is tried here, or named among those that reach all objects.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead::rights::{Account, Holder, Rule};
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::asked::Ask;
use super::foreign::{How, Try, says};
use super::identities::Subject;
use crate::api::agent::with_token_of;
use crate::api::objects::{changed, dynamic};
use crate::api::rules::sample;
use crate::api::world::World;

/// Somebody else: a namespace, and the name of an object of each kind.
const THEIRS: &str = "somebody-elses";
/// A fencer that none of ours is.
const FENCER: &str = "somebody-elses.example.com";
/// The node that the programs run on.
const OWN_NODE: &str = "rows-own";
const WRITES: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];

/// Account, resource and verbs of the rows that reach all objects of a kind: those of our own kinds, and those by which
/// whoever is told of, released, detached or provisioned for is somebody else by their nature. What a thief of such a token
/// could do is in docs/threat-model.md.
const OF_ALL: [(&str, &str, &[&str]); 25] = [
    ("bulkhead-controller", "pods", &["delete"]),
    ("bulkhead-controller", "pods/status", &["patch"]),
    ("bulkhead-controller", "volumeattachments", &["delete"]),
    ("bulkhead-controller", "events", &["create", "patch"]),
    ("bulkhead-controller", "resiliencypolicies", &["patch"]),
    ("bulkhead-controller", "resiliencypolicies/status", &["update"]),
    ("bulkhead-controller", "nodefences", &["create", "update", "patch", "delete"]),
    ("bulkhead-controller", "nodefences/status", &["update"]),
    ("bulkhead-controller", "fencerequests", &["create", "update", "patch", "delete"]),
    ("bulkhead-controller", "volumehealths", &["create", "patch", "delete"]),
    ("bulkhead-controller", "volumehealths/status", &["update"]),
    ("bulkhead-controller", "volumehealthpolicies/status", &["update"]),
    ("bulkhead-controller", "nodevolumereports", &["create"]),
    ("bulkhead-controller", "sharedvolumes", &["create", "patch"]),
    ("bulkhead-controller", "sharedvolumes/status", &["update"]),
    ("bulkhead-controller", "sharedvolumeproviders/status", &["update"]),
    ("bulkhead-controller", "mountpoints3podattachments", &["create", "update", "patch", "delete"]),
    ("bulkhead-controller", "mountpoints3podattachments/status", &["update"]),
    ("bulkhead-node-agent", "events", &["create", "patch"]),
    ("csi-controller", "events", &["create", "patch"]),
    ("csi-controller", "networkfences", &["create", "update", "delete"]),
    ("s3-csi-driver-sa", "events", &["create", "patch"]),
    ("s3-csi-driver-controller-sa", "events", &["create", "update", "patch"]),
    ("s3-csi-driver-controller-sa", "persistentvolumes", &["create", "patch", "delete"]),
    ("s3-csi-driver-controller-sa", "persistentvolumeclaims", &["update"]),
];

/// All of them.
pub async fn tries(world: &World, subjects: &[Subject]) -> Result<Vec<Try>, Failed> {
    let theirs = Theirs::made(world).await?;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": OWN_NODE}});
    let node = create(&world.admin, &node, "nodes").await?;
    let bound = json!({"kind": "Node", "apiVersion": "v1", "name": OWN_NODE, "uid": node.uid()});
    let (mut tries, mut of_all) = (Vec::new(), BTreeSet::new());
    for subject in subjects {
        let Some(Account { namespace, name }) = account(subject) else { continue };
        let client = with_token_of(&world.testbed, &world.admin, (namespace, name), bound.clone()).await?;
        for role in &subject.roles {
            for (rule, verb) in role.rules.iter().flat_map(writes) {
                match role.namespace {
                    Some(namespace) => tries.extend(elsewhere(subject, &client, namespace, rule, verb)?),
                    None if is_of_all(name, rule, verb) => drop(of_all.insert((name, rule.resource, verb))),
                    None => tries.push(theirs.written(subject, &client, rule, verb)?),
                }
            }
        }
    }
    let named =
        OF_ALL.iter().flat_map(|(name, resource, verbs)| verbs.iter().map(move |verb| (*name, *resource, *verb)));
    let stale: Vec<_> = named.filter(|row| !of_all.contains(row)).collect();
    assert!(stale.is_empty(), "named among the rows of all objects, and in no row of the table: {stale:?}");
    Ok(tries)
}

fn account(subject: &Subject) -> Option<Account> {
    subject.roles.iter().find_map(|role| match role.holder {
        Holder::Program(account) => Some(account),
        Holder::People | Holder::Aggregated(_) => None,
    })
}

fn writes(rule: &'static Rule) -> impl Iterator<Item = (&'static Rule, &'static str)> {
    rule.all_verbs().filter(|verb| WRITES.contains(verb)).map(move |verb| (rule, verb))
}

fn is_of_all(account: &str, rule: &Rule, verb: &str) -> bool {
    OF_ALL.iter().any(|(name, resource, verbs)| (*name, *resource) == (account, rule.resource) && verbs.contains(&verb))
}

/// What a Role grants, in another namespace; and where it names objects, in its own about another one. RBAC alone refuses,
/// whatever is sent; what another Role of the program grants there is tried with that.
fn elsewhere(
    subject: &Subject,
    client: &Client,
    namespace: &'static str,
    rule: &Rule,
    verb: &'static str,
) -> Result<Vec<Try>, Failed> {
    let (group, resource) = (rule.group, rule.resource);
    let own = rule.names.first().copied();
    let mut places = vec![(THEIRS, own.unwrap_or(THEIRS))];
    places.extend(own.map(|_| (namespace, THEIRS)));
    let mut tries = Vec::new();
    for (namespace, name) in places {
        if subject.may(&Ask { verb, group, resource, namespace, name }) {
            continue;
        }
        let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1", resource), resource);
        let api = Api::namespaced_with(client.clone(), namespace, &kind);
        let sent = json!({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}});
        let sent = Box::new(dynamic(&sent)?);
        let how = match verb {
            "create" => How::Create(sent),
            "update" => How::Replace(sent),
            "patch" => How::Patch(taken()),
            "delete" => How::Delete,
            _ => return Err(format!("no request for {verb} {resource}").into()),
        };
        tries.push(Try::new(&subject.name, api, name, how));
    }
    Ok(tries)
}

/// What makes somebody else's object somebody's who writes it.
fn taken() -> Value {
    json!({"metadata": {"labels": {"team": "ours"}}})
}

/// Somebody else's objects, by their resource: as they were sent, and as they are stored.
struct Theirs(BTreeMap<&'static str, (Value, DynamicObject)>);

impl Theirs {
    async fn made(world: &World) -> Result<Self, Failed> {
        let namespace = dynamic(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": THEIRS}}))?;
        world.testbed.apply(vec![namespace]).await?;
        let mut made = BTreeMap::new();
        for (resource, object) in objects()? {
            let stored = create(&world.admin, &object, resource).await?;
            made.insert(resource, (object, stored));
        }
        Ok(Self(made))
    }

    /// The request for a row of a ClusterRole: RBAC lets it pass, an admission policy must not.
    fn written(&self, subject: &Subject, client: &Client, rule: &Rule, verb: &str) -> Result<Try, Failed> {
        let (resource, subresource) = rule.resource.split_once('/').unwrap_or((rule.resource, ""));
        let what =
            || format!("{}: {verb} {}: neither tried nor among the rows of all objects", subject.name, rule.resource);
        let (sent, stored) = self.0.get(resource).ok_or_else(what)?;
        let name = stored.name_any();
        let (name, how) = match (verb, subresource) {
            ("create", "") => {
                let another = format!("another-{name}");
                let sent = changed(sent, &another, &vec![])?;
                (another, How::Create(Box::new(dynamic(&sent)?)))
            }
            ("update", "status") => (name, says(stored, &status(resource))?),
            ("update", "") => {
                let mut next = stored.clone();
                next.labels_mut().insert("team".into(), "ours".into());
                (name, How::Replace(Box::new(next)))
            }
            ("patch", "") => (name, How::Patch(taken())),
            ("delete", "") => (name, How::Delete),
            _ => return Err(what().into()),
        };
        Ok(Try::new(&subject.name, api_of(client, sent, resource)?, &name, how))
    }
}

/// What a program would say there.
fn status(resource: &str) -> Value {
    match resource {
        "fencerequests" => json!({"progress": "0/2"}),
        "driverreports" => json!({"poweredOff": []}),
        _ => json!({"agentVersion": "0.1.0"}),
    }
}

fn objects() -> Result<Vec<(&'static str, Value)>, Failed> {
    let labels = json!({"team": "theirs"});
    let (there, anywhere) =
        (json!({"name": THEIRS, "namespace": THEIRS, "labels": labels}), json!({"name": THEIRS, "labels": labels}));
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let volume = json!({
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "csi": {"driver": "csi.block.example.com", "volumeHandle": THEIRS},
    });
    let pod = json!({"containers": [{"name": "main", "image": "app"}]});
    let service = json!({"ports": [{"name": "nfs", "port": 2049}]});
    let core = |kind: &str, metadata: &Value, spec: Value| json!({"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec});
    Ok(vec![
        ("nodes", core("Node", &anywhere, json!({}))),
        ("persistentvolumes", core("PersistentVolume", &anywhere, volume)),
        ("persistentvolumeclaims", core("PersistentVolumeClaim", &there, claim)),
        ("pods", core("Pod", &there, pod)),
        ("services", core("Service", &there, service)),
        ("endpoints", json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": there})),
        (
            "endpointslices",
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": there, "addressType": "IPv4",
                "endpoints": [],
            }),
        ),
        (
            "nodevolumereports",
            json!({"apiVersion": "bulkhead.dev/v1alpha1", "kind": "NodeVolumeReport", "metadata": anywhere}),
        ),
        ("driverreports", changed(&sample("DriverReport")?, FENCER, &vec![])?),
        ("fencerequests", changed(&sample("FenceRequest")?, THEIRS, &vec![("/spec/fencerName", json!(FENCER))])?),
    ])
}

async fn create(admin: &Client, object: &Value, resource: &str) -> Result<DynamicObject, Failed> {
    Ok(api_of(admin, object, resource)?.create(&PostParams::default(), &dynamic(object)?).await?)
}

fn api_of(client: &Client, object: &Value, plural: &str) -> Result<Api<DynamicObject>, Failed> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let (version, kind) = (text("/apiVersion").ok_or("no apiVersion")?, text("/kind").ok_or("no kind")?);
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
    Ok(match text("/metadata/namespace") {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &kind),
        None => Api::all_with(client.clone(), &kind),
    })
}
