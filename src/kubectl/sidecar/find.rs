//! Which of the workloads of a cluster is the controller of a CSI driver, and where its pods have the driver's socket. Pure.

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};
use kube::{Resource, ResourceExt};
use serde::Serialize;

use crate::kubectl::arguments::setting;
use crate::kubectl::error::{Error, Result};

/// Where the sidecar listens for health and metrics, as in `config/sidecar`.
const PORT: i32 = 8081;
/// The same in pods on the host's network.
const HOST_PORT: i32 = 9812;
/// How the sidecar's container is called.
const SIDECAR: &str = "bulkhead-csi-sidecar";

/// What is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The driver.
    pub driver: &'a str,
    /// The namespace of its controller.
    pub namespace: Option<&'a str>,
    /// The controller itself: `deployment/NAME`, `statefulset/NAME` or `NAME`.
    pub workload: Option<&'a str>,
}

/// A Deployment or StatefulSet.
#[derive(Clone, Debug)]
pub struct Workload {
    kind: &'static str,
    namespace: String,
    name: String,
    kept_by: Option<String>,
    replicas: i32,
    spec: PodSpec,
    /// All of the template, for names that it mentions.
    text: String,
}

/// The controller of a CSI driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Controller {
    /// Deployment or StatefulSet.
    pub kind: &'static str,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What its pods run as.
    pub service_account: Account,
    /// The driver's socket in its pods.
    pub socket: Socket,
    /// The port that is free for the sidecar.
    pub port: i32,
    /// Whether its pods use the network of their hosts.
    pub host_network: bool,
    /// How many pods it wants.
    pub replicas: i32,
    /// Whether its template mentions the driver.
    pub names_driver: bool,
    /// Whether the sidecar is there already.
    pub has_sidecar: bool,
    /// Who would put it back as it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_by: Option<String>,
    /// Whether its pods run the external-attacher too.
    #[serde(skip)]
    attaches: bool,
}

/// A ServiceAccount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Account {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// The socket of a driver, in a volume of its pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Socket {
    /// The volume.
    pub volume: String,
    /// The part of it that is mounted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sub_path: Option<String>,
    /// The path of the socket in that.
    pub file: String,
}

impl Workload {
    /// Of a Deployment.
    pub fn of_deployment(it: &Deployment) -> Option<Self> {
        let spec = it.spec.as_ref()?;
        Self::new("Deployment", it, &spec.template, spec.replicas)
    }

    /// Of a StatefulSet.
    pub fn of_stateful_set(it: &StatefulSet) -> Option<Self> {
        let spec = it.spec.as_ref()?;
        Self::new("StatefulSet", it, &spec.template, spec.replicas)
    }

    fn new<K: Resource<DynamicType = ()>>(
        kind: &'static str,
        object: &K,
        template: &PodTemplateSpec,
        replicas: Option<i32>,
    ) -> Option<Self> {
        let spec = template.spec.clone()?;
        Some(Self {
            kind,
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            kept_by: kept_by(object),
            replicas: replicas.unwrap_or(1),
            text: serde_json::to_string(&spec).unwrap_or_default(),
            spec,
        })
    }

    fn about(&self) -> String {
        format!("{} {}/{}", self.kind, self.namespace, self.name)
    }

    /// Whether it is what a person named.
    fn is(&self, named: &str) -> bool {
        match named.split_once('/') {
            Some((kind, name)) => self.kind.eq_ignore_ascii_case(kind) && self.name == name,
            None => self.name == named,
        }
    }

    /// Whether its template mentions a driver by its whole name.
    fn mentions(&self, driver: &str) -> bool {
        let is_inside = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
        self.text.match_indices(driver).any(|(at, found)| {
            let before = self.text.get(..at).and_then(|text| text.chars().next_back());
            let after = self.text.get(at + found.len()..).and_then(|text| text.chars().next());
            !before.is_some_and(is_inside) && !after.is_some_and(is_inside)
        })
    }

    /// What it is for the driver; nothing where no container of it calls a CSI driver.
    fn controller(&self, driver: &str) -> Option<Controller> {
        let called_by = |what: &str| self.spec.containers.iter().filter(|it| is(it, what)).find_map(socket);
        let attacher = called_by("attacher");
        let attaches = attacher.is_some();
        let name = self.spec.service_account_name.clone().filter(|name| !name.is_empty());
        Some(Controller {
            kind: self.kind,
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            service_account: Account {
                namespace: self.namespace.clone(),
                name: name.unwrap_or_else(|| "default".to_owned()),
            },
            socket: attacher.or_else(|| called_by("provisioner"))?,
            port: port(&self.spec),
            host_network: is_on_host(&self.spec),
            replicas: self.replicas,
            names_driver: self.mentions(driver),
            has_sidecar: self.spec.containers.iter().any(|it| it.name == SIDECAR),
            kept_by: self.kept_by.clone(),
            attaches,
        })
    }
}

impl Controller {
    /// Its kind and name, for people.
    pub fn about(&self) -> String {
        format!("{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// The controller of the driver among the workloads. `drivers` are all of the cluster.
pub fn choose(asked: Asked<'_>, workloads: &[Workload], drivers: &[String]) -> Result<Controller> {
    let here = |it: &&Workload| {
        asked.namespace.is_none_or(|namespace| it.namespace == namespace)
            && asked.workload.is_none_or(|named| it.is(named))
    };
    let here: Vec<_> = workloads.iter().filter(here).collect();
    let calling: Vec<_> = here.iter().filter_map(|it| Some((*it, it.controller(asked.driver)?))).collect();
    if asked.workload.is_some() {
        return only(asked, calling.into_iter().map(|(_, found)| found).collect(), &here);
    }
    // Many controllers do not name their driver. Those that name another are not it. One that names it is not taken before one
    // that is silent: anybody can write the name into a workload of their own, and would get the right to answer for the driver.
    let others = |workload: &Workload| drivers.iter().any(|it| it != asked.driver && workload.mentions(it));
    let may_be = |(workload, found): &(&Workload, Controller)| found.names_driver || !others(workload);
    let found: Vec<_> = calling.into_iter().filter(may_be).map(|(_, found)| found).collect();
    // Where attacher and provisioner are apart, the sidecar belongs to the attacher. Whose they are tells their namespace.
    let attaching: Vec<_> = found.iter().filter(|it| it.attaches).map(|it| it.namespace.clone()).collect();
    let found = found.into_iter().filter(|it| it.attaches || !attaching.contains(&it.namespace)).collect();
    only(asked, found, &here)
}

/// The only one; an error that says what to do where there is none, or more.
fn only(asked: Asked<'_>, mut found: Vec<Controller>, looked_at: &[&Workload]) -> Result<Controller> {
    let driver = asked.driver;
    if found.len() > 1 {
        let named: Vec<_> = found.iter().map(Controller::about).collect();
        return Err(Error::Refused(format!(
            "several may be the controller of driver {driver}: {}; name it with --namespace and --workload",
            named.join(", ")
        )));
    }
    let found = found.pop().ok_or_else(|| {
        Error::Refused(match (asked.workload, looked_at) {
            (Some(named), []) => format!(
                "{named} is not there; kubectl get deployments,statefulsets -A lists them: \
                 --workload takes deployment/NAME or statefulset/NAME, --namespace its namespace"
            ),
            (Some(_), [one, ..]) => format!(
                "{} has no csi-attacher and no csi-provisioner with a --csi-address in one of its volumes: is it the \
                 controller of a CSI driver? Its socket is needed; for a pod that is made otherwise copy config/sidecar",
                one.about()
            ),
            (None, _) => format!(
                "no Deployment or StatefulSet is known for the controller of driver {driver}: none with a csi-attacher or \
                 csi-provisioner names it. Name it with --namespace and --workload; where your cloud runs it out of reach \
                 there can be no sidecar: docs/csi-drivers.md says what is left"
            ),
        })
    })?;
    // Every pod of the namespace that names no account has this one.
    if found.service_account.name == "default" {
        return Err(Error::Refused(format!(
            "{} runs as ServiceAccount default of {}, as every pod there does that names none: they would all answer for driver \
             {driver}. Give it a ServiceAccount of its own first",
            found.about(),
            found.namespace
        )));
    }
    Ok(found)
}

/// Whether a container is the external-attacher, or external-provisioner.
fn is(container: &Container, what: &str) -> bool {
    let image = container.image.as_deref().unwrap_or_default();
    let is_image = |prefix: &str| image.contains(&format!("{prefix}-{what}"));
    container.name.contains(what) || is_image("csi") || is_image("external")
}

/// The socket that a container calls its driver by.
fn socket(container: &Container) -> Option<Socket> {
    let args: Vec<_> = container.command.iter().chain(&container.args).flatten().cloned().collect();
    let address = setting(&args, "csi-address")?;
    let variables = container.env.iter().flatten().filter_map(|it| Some((&it.name, it.value.as_ref()?)));
    let address = variables.fold(address, |text, (name, value)| text.replace(&format!("$({name})"), value));
    let path = address.strip_prefix("unix://").or_else(|| address.strip_prefix("unix:")).unwrap_or(&address);
    // It is printed, between lines that say what to do.
    if path.contains(char::is_control) {
        return None;
    }
    let mounts = container.volume_mounts.iter().flatten().filter(|it| it.sub_path_expr.is_none());
    let holding = mounts.filter_map(|it| Some((it, below(path, &it.mount_path)?)));
    let (mount, file) = holding.max_by_key(|(mount, _)| mount.mount_path.len())?;
    let sub_path = mount.sub_path.clone().filter(|path| !path.is_empty());
    Some(Socket { volume: mount.name.clone(), sub_path, file: file.to_owned() })
}

/// What is left of a path below a folder.
fn below<'a>(path: &'a str, folder: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(folder.trim_end_matches('/'))?.strip_prefix('/')?;
    (!rest.is_empty()).then_some(rest)
}

fn is_on_host(spec: &PodSpec) -> bool {
    spec.host_network == Some(true)
}

/// A port that no other container of the pod says it uses.
fn port(spec: &PodSpec) -> i32 {
    let others = || spec.containers.iter().filter(|it| it.name != SIDECAR);
    let is_used = |port: &i32| {
        let ending = format!(":{port}");
        others().any(|it| {
            let declared = it.ports.iter().flatten().any(|it| it.container_port == *port);
            declared || it.args.iter().flatten().any(|arg| arg.ends_with(&ending))
        })
    };
    let first = if is_on_host(spec) { HOST_PORT } else { PORT };
    (first..=i32::from(u16::MAX)).find(|port| !is_used(port)).unwrap_or(first)
}

/// Who made an object and would make it again.
fn kept_by<K: Resource>(object: &K) -> Option<String> {
    let (labels, annotations) = (object.labels(), object.annotations());
    let owner = object.owner_references().first().map(|owner| format!("{} {}", owner.kind, owner.name));
    let olm = || labels.get("olm.owner").map(|owner| format!("ClusterServiceVersion {owner}"));
    let release = || annotations.get("meta.helm.sh/release-name").map(|name| format!("Helm release {name}"));
    let addon =
        || labels.contains_key("addonmanager.kubernetes.io/mode").then(|| "the cluster's add-on manager".to_owned());
    owner.or_else(olm).or_else(release).or_else(addon).map(|keeper| keeper.replace(char::is_control, " "))
}

#[cfg(test)]
#[path = "find_tests.rs"]
mod tests;
