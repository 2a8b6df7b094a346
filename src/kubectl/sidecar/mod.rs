//! `kubectl bulkhead sidecar`: finds the controller of a CSI driver, and prints what adds our sidecar to it and the rights that
//! the sidecar needs. It writes nothing: the driver's own manifests are where both belong.

pub mod find;
pub mod manifests;
#[cfg(test)]
mod manifests_tests;

use std::iter::once;

use clap::Args;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use kube::api::ListParams;
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::api::slim::{CsiDriver, PersistentVolume};
use crate::controllers::Unread;

use super::error::{Error, Result};
use super::gather::Cluster;
use super::print::{self, Output, Page, Report};

use find::{Asked, Controller, Workload};
use manifests::Secrets;

/// Whose sidecar, and what of it is printed.
#[derive(Debug, Args)]
pub struct Sidecar {
    /// The CSI driver, by the name of its CSIDriver.
    #[arg(long)]
    driver: String,
    /// Its controller: deployment/NAME, statefulset/NAME or NAME. Without it: what is found to be.
    #[arg(long)]
    workload: Option<String>,
    /// Image of the sidecar. Without it a name that kustomize replaces.
    #[arg(long, default_value = manifests::IMAGE)]
    image: String,
    /// A namespace whose Secrets volumes will name for calls of the driver's controller, beside those that they name now. May be
    /// given more than once.
    #[arg(long = "secrets-in", value_name = "NAMESPACE")]
    secrets: Vec<String>,
    /// Print this alone, for kubectl apply, kustomize or a post-renderer of Helm.
    #[arg(long, value_enum)]
    only: Option<Part>,
}

/// What there is to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// The objects that give the sidecar its rights.
    Rights,
    /// The strategic merge patch that adds it to the driver's controller.
    Patch,
}

/// What was found and made.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// The driver.
    pub driver: String,
    /// Its controller.
    pub controller: Controller,
    /// What to know before it is used.
    pub notes: Vec<String>,
    /// The strategic merge patch.
    pub patch: Value,
    /// The objects with the rights.
    pub rights: Vec<Value>,
    /// How to go on.
    #[serde(skip)]
    pub again: Again,
}

/// The commands that go on with the same: driver, controller, image, Secrets and cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Again {
    /// This one.
    sidecar: String,
    /// `kubectl`, of the same cluster.
    kubectl: String,
}

/// A flag that says which cluster, and what was given for it.
pub type Flag = (&'static str, Option<String>);

impl Sidecar {
    /// Looks, and prints. In the namespace, or everywhere; `reached` says which cluster it is.
    pub async fn run(
        self,
        cluster: &Cluster,
        namespace: Option<&str>,
        reached: &[Flag],
        output: Output,
    ) -> Result<String> {
        let plan = self.plan(cluster, namespace, reached).await?;
        // Nobody looks at what is piped: an account of the wrong workload would answer for the driver.
        if self.only.is_some() && (namespace.is_none() || self.workload.is_none()) {
            return Err(Error::Refused(format!(
                "--only needs --namespace and --workload: {} may be the controller of driver {}. Look at what is said without \
                 --only; if it is, go on with {}",
                plan.controller.about(),
                plan.driver,
                plan.again.sidecar
            )));
        }
        match self.only {
            None => output.render(&plan),
            Some(Part::Rights) => alone(&plan.rights, output),
            Some(Part::Patch) => alone(&[plan.patch], output),
        }
    }

    async fn plan(&self, cluster: &Cluster, namespace: Option<&str>, reached: &[Flag]) -> Result<Plan> {
        let (drivers, volumes, deployments, stateful_sets) = tokio::join!(
            list(Api::<CsiDriver>::all(cluster.clients.reads.clone()), None),
            list(Api::<PersistentVolume>::all(cluster.clients.reads.clone()), None),
            list(place::<Deployment>(cluster, namespace), namespace),
            list(place::<StatefulSet>(cluster, namespace), namespace),
        );
        let mut unread = Vec::new();
        let (drivers, volumes) = (read(drivers, &mut unread), read(volumes, &mut unread));
        let (deployments, stateful_sets) = (read(deployments, &mut unread), read(stateful_sets, &mut unread));
        if !unread.is_empty() {
            return Err(Error::Unread(unread));
        }
        let Some(driver) = drivers.iter().find(|it| it.name_any() == self.driver) else {
            let remedy = "kubectl get csidrivers lists them".to_owned();
            return Err(Error::NotFound { kind: "csidriver", name: self.driver.clone(), remedy });
        };
        let deployments = deployments.iter().filter_map(Workload::of_deployment);
        let workloads: Vec<_> = deployments.chain(stateful_sets.iter().filter_map(Workload::of_stateful_set)).collect();
        let names: Vec<_> = drivers.iter().map(ResourceExt::name_any).collect();
        let asked = Asked { driver: &self.driver, namespace, workload: self.workload.as_deref() };
        let controller = find::choose(asked, &workloads, &names)?;
        let secrets = secrets(&self.driver, &volumes, &self.secrets);
        let attaches = driver.spec.attach_required != Some(false);
        let found = (namespace.is_none() || self.workload.is_none()).then(|| {
            format!(
                "{} was found, and not named: be sure that it is the driver's. What it runs as may say that nodes are cut off",
                controller.about()
            )
        });
        let known = notes(&controller, attaches, &self.image);
        Ok(Plan {
            notes: found.into_iter().chain(about_secrets(&secrets)).chain(known).collect(),
            again: self.again(&controller, reached),
            patch: manifests::patch(&controller, &self.image)?,
            rights: manifests::rights(&self.driver, &controller.service_account, &secrets)?,
            driver: self.driver.clone(),
            controller,
        })
    }

    fn again(&self, controller: &Controller, reached: &[Flag]) -> Again {
        let Controller { kind, namespace, name, .. } = controller;
        let flag = |(flag, value): Flag| Some(format!(" {flag} {}", quoted(&value?)));
        let cluster: String = reached.iter().cloned().filter_map(flag).collect();
        let image = Some(self.image.clone()).filter(|image| image != manifests::IMAGE);
        let secrets = self.secrets.iter().map(|namespace| ("--secrets-in", Some(namespace.clone())));
        let more: String = once(("--image", image)).chain(secrets).filter_map(flag).collect();
        let driver = quoted(&self.driver);
        Again {
            sidecar: format!(
                "kubectl bulkhead sidecar --driver {driver} -n {namespace} --workload {kind}/{name}{more}{cluster}"
            ),
            kubectl: format!("kubectl{cluster}"),
        }
    }
}

/// As a shell takes it for one word.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@=+".contains(c);
    if text.chars().all(is_plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// The Secrets that the driver's volumes name for calls of its controller, and all of the namespaces that a person names.
fn secrets(driver: &str, volumes: &[PersistentVolume], named: &[String]) -> Secrets {
    let mut found = Secrets::new();
    let sources = volumes.iter().filter_map(|it| it.spec.csi.as_ref()).filter(|it| it.driver == driver);
    for secret in sources.filter_map(|it| it.controller_publish_secret_ref.as_ref()) {
        if let (Some(namespace), Some(name)) = (&secret.namespace, &secret.name) {
            found.entry(namespace.clone()).or_default().get_or_insert_default().insert(name.clone());
        }
    }
    found.extend(named.iter().map(|namespace| (namespace.clone(), None)));
    found
}

/// What it may read.
fn about_secrets(secrets: &Secrets) -> Option<String> {
    let said = secrets.iter().flat_map(|(namespace, names)| match names {
        None => vec![format!("all of {namespace}")],
        Some(names) => names.iter().map(|name| format!("{namespace}/{name}")).collect(),
    });
    let said: Vec<_> = said.collect();
    let text = || {
        format!(
            "it may read these Secrets: {}. A volume that names another one cannot be fenced before the rights are printed and \
             applied again; --secrets-in allows all of a namespace",
            said.join(", ")
        )
    };
    (!said.is_empty()).then(text)
}

/// What a person should know before the sidecar is added.
fn notes(controller: &Controller, attaches: bool, image: &str) -> Vec<String> {
    let mut notes = Vec::new();
    if controller.has_sidecar {
        notes.push("the sidecar is there already".to_owned());
    }
    if !controller.names_driver {
        notes.push(format!(
            "nothing in {} names the driver: make sure that it is its controller. Beside another driver the sidecar may say \
             nothing, and no DriverReport appears",
            controller.about()
        ));
    }
    if !attaches {
        notes.push(
            "attachRequired: false: of the methods that it carries out only NetworkFence covers its volumes (docs/csi-drivers.md)"
                .to_owned(),
        );
    }
    if let Some(keeper) = &controller.kept_by {
        notes.push(format!(
            "{keeper} made it, and may take the sidecar away again with its next change: docs/csi-drivers.md says how to keep it"
        ));
    }
    if controller.host_network {
        notes.push(format!("its pods use the host's network: port {} must be free on the hosts", controller.port));
    }
    if controller.replicas < 2 {
        notes.push(format!(
            "replicas: {}: on the node that dies it fences nobody; have two, never on one node",
            controller.replicas
        ));
    }
    if image == manifests::IMAGE {
        notes.push(format!("{image} is a name for kustomize's `images`; --image names yours"));
    }
    notes
}

/// Where to look for a kind.
fn place<K>(cluster: &Cluster, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    let client = cluster.clients.reads.clone();
    namespace.map_or_else(|| Api::all(client.clone()), |namespace| Api::namespaced(client.clone(), namespace))
}

async fn list<K>(api: Api<K>, namespace: Option<&str>) -> Result<Vec<K>, Unread>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    api.list(&ListParams::default()).await.map(|listed| listed.items).map_err(|error| Unread {
        resource: format!("{}.{}", K::plural(&()), K::group(&())).trim_end_matches('.').to_owned(),
        namespace: namespace.map(str::to_owned),
        error: error.into(),
    })
}

fn read<K>(listed: Result<Vec<K>, Unread>, unread: &mut Vec<Unread>) -> Vec<K> {
    listed.unwrap_or_else(|error| {
        unread.push(error);
        Vec::new()
    })
}

impl Report for Plan {
    fn text(&self) -> String {
        let Self { driver, controller, again: Again { sidecar: again, kubectl }, .. } = self;
        let (kind, name, namespace) = (controller.kind, &controller.name, &controller.namespace);
        let Controller { service_account, socket, port, .. } = controller;
        let page = Page::default().line(format!("driver {driver}: {}", controller.about())).line(format!(
            "ServiceAccount {}, socket {} in volume {}, the sidecar listens on port {port}",
            service_account.name, socket.file, socket.volume
        ));
        let page = if self.notes.is_empty() { page } else { page.line("").line("NOTES") };
        let todo = [
            format!("its rights: {again} --only rights | {kubectl} apply -f -"),
            format!("its container: {again} --only patch > sidecar_patch.yaml"),
            format!(
                "keep that where the {kind} is made, with kustomize: patches: [{{path: sidecar_patch.yaml, target: {{kind: {kind}, \
                 name: {name}}}}}]"
            ),
            format!(
                "or beside whoever makes it, which not each of them leaves in place: {kubectl} apply --server-side \
                 --field-manager=bulkhead -n {namespace} -f sidecar_patch.yaml"
            ),
            format!("see that it answers: {kubectl} get driverreports -o wide"),
        ];
        page.list(&self.notes).line("").line("WHAT TO DO").list(todo).end()
    }
}

/// The objects alone, as kubectl takes them: documents of YAML, or a List where it is to be JSON.
fn alone(objects: &[Value], output: Output) -> Result<String> {
    match (output, objects) {
        (Output::Json, [one]) => print::json(one),
        (Output::Json, _) => print::json(&json!({ "apiVersion": "v1", "kind": "List", "items": objects })),
        _ => Ok(objects.iter().map(print::yaml).collect::<Result<Vec<_>>>()?.join("---\n")),
    }
}
