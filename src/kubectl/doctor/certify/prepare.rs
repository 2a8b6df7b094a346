//! What a certification needs before it creates anything: the driver and its sidecar, two nodes, an image, and rights.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt};

use crate::api::fencing::Proof;
use crate::api::names;
use crate::kubectl::error::{Error, Result};
use crate::kubectl::gather::Gathered;
use crate::runtime::store::ObjectKey;

use super::Certify;
use super::choose::{Choice, Pair};
use super::scratch::Program;

/// What is done, as the person is asked.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The StorageClass.
    pub class: String,
    /// Its driver.
    pub driver: String,
    /// The nodes.
    pub pair: Pair,
    /// What the pods run.
    pub program: Program,
    /// The strongest proof that the driver can give.
    pub proof: Proof,
}

/// Looks whether it can be done. Writes nothing.
pub async fn plan(asked: &Certify, class: &str, gathered: &Gathered, operator: &str) -> Result<Plan> {
    rights(gathered).await?;
    let classes: Api<StorageClass> = Api::all(gathered.clients.reads.clone());
    let remedy = || "kubectl get storageclasses lists them".to_owned();
    let missing = || Error::NotFound { kind: "storageclass", name: class.to_owned(), remedy: remedy() };
    let driver = classes.get_opt(class).await?.ok_or_else(missing)?.provisioner;
    nothing_to_take(class, gathered).await?;
    let stores = &gathered.stores;
    let report = stores.reports.get(&ObjectKey::cluster(&driver));
    let proof = report.as_ref().map_or(Proof::None, |report| report.unpublish_proof());
    if proof == Proof::None {
        let why = match report {
            None => "has no DriverReport: run bulkhead-csi-sidecar beside its controller",
            Some(_) => "does not answer its sidecar, or cannot unpublish: kubectl describe driverreport",
        };
        return Err(Error::Refused(format!("driver {driver} {why}. Nothing was created")));
    }
    let open = stores.fences.list();
    let in_trouble: Vec<_> =
        open.iter().filter(|it| it.labels().contains_key(names::ACTIVE_LABEL)).map(|it| it.name_any()).collect();
    let (nodes, csi_nodes) = (stores.nodes.list(), stores.csi_nodes.list());
    let choice = Choice { driver: &driver, nodes: &nodes, csi_nodes: &csi_nodes, in_trouble: &in_trouble };
    let pair = choice.pair(asked.node.as_deref(), asked.other_node.as_deref()).map_err(Error::Refused)?;
    let program = program(asked, gathered, operator).await?;
    Ok(Plan { class: class.to_owned(), driver, pair, program, proof })
}

/// A claim takes a volume that is there and free before a new one is made: it would be written to, and deleted in the end.
async fn nothing_to_take(class: &str, gathered: &Gathered) -> Result<()> {
    let volumes: Api<PersistentVolume> = Api::all(gathered.clients.reads.clone());
    let is_free = |it: &PersistentVolume| {
        let of_class = it.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()) == Some(class);
        of_class && it.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Available")
    };
    let listed = volumes.list(&ListParams::default()).await?.items;
    let Some(free) = listed.iter().find(|it| is_free(it)) else { return Ok(()) };
    let name = free.name_any();
    Err(Error::Refused(format!(
        "PersistentVolume {name} of StorageClass {class} is Available: the claim of the trial would take it, and what is on it \
         would be lost. Nothing was created. Use a StorageClass of the same driver that has none"
    )))
}

/// The image of the controller, which every node of the cluster can get.
async fn program(asked: &Certify, gathered: &Gathered, operator: &str) -> Result<Program> {
    if let Some(image) = &asked.image {
        return Ok(Program { image: image.clone(), pull_policy: None });
    }
    let deployments: Api<Deployment> = Api::namespaced(gathered.clients.reads.clone(), operator);
    let controllers = ListParams::default().labels("app.kubernetes.io/component=controller");
    let found = deployments.list(&controllers).await?;
    let specs = found.items.into_iter().filter_map(|it| it.spec?.template.spec);
    let mut containers = specs.flat_map(|spec| spec.containers).filter(|it| it.name == "controller");
    let container = containers.find_map(|it| Some(Program { image: it.image?, pull_policy: it.image_pull_policy }));
    container.ok_or_else(|| {
        Error::Refused(format!(
            "no Deployment of bulkhead-controller in namespace {operator}: name that with --operator-namespace, or an image \
             of bulkhead-controller with --image"
        ))
    })
}

/// What is needed, as (verb, group, resource, subresource).
const NEEDED: [(&str, &str, &str, &str); 12] = [
    ("create", "", "namespaces", ""),
    ("delete", "", "namespaces", ""),
    ("create", "", "persistentvolumeclaims", ""),
    ("get", "", "persistentvolumeclaims", ""),
    ("patch", "", "persistentvolumes", ""),
    ("create", "", "pods", ""),
    ("delete", "", "pods", ""),
    ("get", "", "pods", "log"),
    ("create", "bulkhead.dev", "fencerequests", ""),
    ("patch", "bulkhead.dev", "fencerequests", ""),
    ("delete", "bulkhead.dev", "fencerequests", ""),
    // As the admission policy controller-writes.bulkhead.dev has it.
    ("plan", "bulkhead.dev", "nodefences", ""),
];

/// Asks before anything is begun: half a certification leaves things behind.
async fn rights(gathered: &Gathered) -> Result<()> {
    let api: Api<SelfSubjectAccessReview> = Api::all(gathered.clients.reads.clone());
    let asked = NEEDED.map(|(verb, group, resource, subresource)| {
        let api = api.clone();
        async move {
            let attributes = ResourceAttributes {
                verb: Some(verb.into()),
                group: Some(group.into()),
                resource: Some(resource.into()),
                subresource: Some(subresource.to_owned()).filter(|it| !it.is_empty()),
                ..ResourceAttributes::default()
            };
            let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
            let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
            let answer = api.create(&PostParams::default(), &review).await?;
            let allowed = answer.status.is_some_and(|status| status.allowed);
            let name = [resource, subresource].into_iter().filter(|it| !it.is_empty()).collect::<Vec<_>>().join("/");
            Ok::<_, kube::Error>((!allowed).then(|| format!("{verb} {name}")))
        }
    });
    let answers = futures::future::try_join_all(asked).await?;
    let lacking: Vec<_> = answers.into_iter().flatten().collect();
    if lacking.is_empty() {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "you may not {}: who may do this may cut any node off any volume, so no role of Bulkhead has it; ask an administrator \
         of the cluster to certify. Nothing was created",
        lacking.join(", ")
    )))
}
