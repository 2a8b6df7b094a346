//! What runs in the cluster, by its templates; and the pods that must live where things break: the drivers' node plugins and our
//! own agent.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec, Toleration};
use kube::{Resource, ResourceExt};

use crate::api::names;
use crate::api::plugin_folder;
use crate::kubectl::gather::Gathered;

use super::{Finding, drivers};

const CHECK: &str = "Tolerations";

/// A Deployment, StatefulSet or DaemonSet.
pub struct Workload {
    /// `kind namespace/name`.
    pub about: String,
    /// It puts a pod on every node.
    pub is_daemon_set: bool,
    /// How many pods it wants; a DaemonSet has no number.
    pub replicas: i32,
    /// Something keeps its pods on different nodes, or tries to.
    pub is_spread: bool,
    /// Its pods run our node agent.
    pub is_agent: bool,
    /// What its pods tolerate.
    pub tolerations: Vec<Toleration>,
    /// Its containers, as (name, image, arguments).
    pub containers: Vec<(String, String, Vec<String>)>,
    /// All of the template, for names that it mentions.
    text: String,
}

impl Workload {
    /// Of a Deployment.
    pub fn of_deployment(it: &Deployment) -> Self {
        let replicas = it.spec.as_ref().and_then(|spec| spec.replicas);
        Self::new(it, it.spec.as_ref().map(|spec| &spec.template), replicas.or(Some(1)))
    }

    /// Of a StatefulSet.
    pub fn of_stateful_set(it: &StatefulSet) -> Self {
        let replicas = it.spec.as_ref().and_then(|spec| spec.replicas);
        Self::new(it, it.spec.as_ref().map(|spec| &spec.template), replicas.or(Some(1)))
    }

    /// Of a DaemonSet.
    pub fn of_daemon_set(it: &DaemonSet) -> Self {
        Self::new(it, it.spec.as_ref().map(|spec| &spec.template), None)
    }

    /// Without a number of replicas it is a DaemonSet.
    fn new<K: Resource<DynamicType = ()>>(
        object: &K,
        template: Option<&PodTemplateSpec>,
        replicas: Option<i32>,
    ) -> Self {
        let spec = template.and_then(|template| template.spec.as_ref());
        let labels = template.and_then(|template| template.metadata.as_ref()).and_then(|meta| meta.labels.as_ref());
        let container = |it: &Container| {
            let all = it.command.iter().chain(&it.args).flatten().cloned().collect();
            (it.name.clone(), it.image.clone().unwrap_or_default(), all)
        };
        Self {
            about: format!("{} {}/{}", K::kind(&()), object.namespace().unwrap_or_default(), object.name_any()),
            is_daemon_set: replicas.is_none(),
            replicas: replicas.unwrap_or_default(),
            is_spread: spec.is_some_and(is_spread),
            is_agent: labels.is_some_and(|labels| labels.get(names::NODE_AGENT_LABEL).is_some_and(|it| it == "true")),
            tolerations: spec.and_then(|spec| spec.tolerations.clone()).unwrap_or_default(),
            containers: spec.iter().flat_map(|spec| &spec.containers).map(container).collect(),
            text: spec.and_then(|spec| serde_json::to_string(spec).ok()).unwrap_or_default(),
        }
    }

    /// Whether its template mentions a driver by name.
    pub fn mentions(&self, driver: &str) -> bool {
        self.text.contains(driver)
    }

    /// Whether its pods may be the node plugin of a driver: it mentions the driver, or the folder of its socket.
    fn may_be_plugin_of(&self, driver: &str) -> bool {
        let has_folder = |folder: &str| self.text.contains(&format!("plugins/{folder}"));
        self.is_daemon_set && (self.mentions(driver) || plugin_folder::of(driver).is_some_and(has_folder))
    }

    /// Seconds after which a pod of it is evicted from a node that is unreachable; `None` when it never is.
    pub fn evicted_after(&self) -> Option<i64> {
        /// What Kubernetes adds to a pod that says nothing: `--default-unreachable-toleration-seconds`.
        const DEFAULT: i64 = 300;
        let counts = |it: &&Toleration| {
            let is =
                |field: &Option<String>, value: &str| field.as_deref().is_none_or(|it| it.is_empty() || it == value);
            is(&it.key, names::UNREACHABLE_TAINT) && is(&it.effect, "NoExecute")
        };
        let mut own = self.tolerations.iter().filter(counts).peekable();
        if own.peek().is_none() {
            return Some(DEFAULT);
        }
        own.filter_map(|it| it.toleration_seconds).min()
    }

    fn tolerates(&self, key: &str, effect: &str) -> bool {
        self.tolerations.iter().any(|it| {
            let same_effect = it.effect.as_deref().is_none_or(|it| it.is_empty() || it == effect);
            let key_matches = it.key.as_deref().is_none_or(|it| it.is_empty() || it == key);
            let exists = it.operator.as_deref() == Some("Exists");
            // A taint of ours has a value of its own in each episode.
            same_effect && key_matches && exists
        })
    }
}

fn is_spread(spec: &PodSpec) -> bool {
    let apart = spec.affinity.as_ref().and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    let must = apart.and_then(|it| it.required_during_scheduling_ignored_during_execution.as_ref());
    let should = apart.and_then(|it| it.preferred_during_scheduling_ignored_during_execution.as_ref());
    let evenly = spec.topology_spread_constraints.as_ref();
    must.is_some_and(|it| !it.is_empty())
        || should.is_some_and(|it| !it.is_empty())
        || evenly.is_some_and(|it| !it.is_empty())
}

/// Whether node plugins and agents can live on a node that is fenced.
pub fn check(gathered: &Gathered, workloads: &[Workload]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let agents: Vec<_> = workloads.iter().filter(|it| it.is_agent && it.is_daemon_set).collect();
    if agents.is_empty() {
        let message = "no DaemonSet runs bulkhead-node-agent: a node that comes back without a reboot stays tainted";
        let remedy = "kubectl apply -k config/agent, or add config/agent-sidecar to the driver's node pods";
        findings.push(Finding::warning("Agent", names::NODE_AGENT_LABEL, message, remedy));
    }
    for driver in drivers(gathered) {
        findings.extend(plugins_of(&driver, workloads));
    }
    findings.extend(agents.into_iter().map(tolerations));
    findings
}

fn plugins_of(driver: &str, workloads: &[Workload]) -> Vec<Finding> {
    let plugins: Vec<_> = workloads.iter().filter(|it| it.may_be_plugin_of(driver)).collect();
    if plugins.is_empty() {
        let message = format!("no DaemonSet mentions driver {driver}: its node plugin was not looked at");
        let remedy = "look whether the driver's node pods tolerate every taint: {operator: Exists}";
        return vec![Finding::unknown(CHECK, driver, message, remedy)];
    }
    plugins.into_iter().filter(|it| !it.is_agent).map(tolerations).collect()
}

fn tolerations(workload: &Workload) -> Finding {
    let taints = [names::FENCED_TAINT, names::OUT_OF_SERVICE_TAINT];
    let lacking: Vec<_> = taints.into_iter().filter(|key| !workload.tolerates(key, "NoSchedule")).collect();
    if lacking.is_empty() {
        return Finding::ok(CHECK, workload.about.clone(), "its pods come back on a node that is fenced");
    }
    let message =
        format!("its pods do not tolerate {}: restarted on a fenced node they would stay away", lacking.join(", "));
    Finding::warning(CHECK, workload.about.clone(), message, "add the toleration {operator: Exists}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Severity;
    use super::*;

    fn daemon_set(tolerations: serde_json::Value) -> Workload {
        let template = json!({ "spec": { "containers": [{ "name": "x", "image": "i" }], "tolerations": tolerations } });
        let set = json!({ "metadata": { "name": "plugin", "namespace": "csi" }, "spec": { "selector": {}, "template": template } });
        Workload::of_daemon_set(&serde_json::from_value(set).unwrap())
    }

    #[test]
    fn a_plugin_that_does_not_tolerate_our_taint_is_told() {
        let cases = [
            (json!([{ "operator": "Exists" }]), Severity::Ok),
            (json!([]), Severity::Warning),
            (json!([{ "key": "node.kubernetes.io/unreachable", "operator": "Exists" }]), Severity::Warning),
            (json!([{ "operator": "Exists", "effect": "NoExecute" }]), Severity::Warning),
            (json!([{ "operator": "Exists", "effect": "NoSchedule" }]), Severity::Ok),
            (json!([{ "key": "bulkhead.dev/fenced", "operator": "Equal", "value": "1" }]), Severity::Warning),
        ];
        for (tolerations_of, severity) in cases {
            assert_eq!(tolerations(&daemon_set(tolerations_of.clone())).severity, severity, "{tolerations_of}");
        }
    }

    /// The template of Dell's PowerFlex driver does not have the driver's name, only its folder.
    #[test]
    fn a_plugin_is_found_by_its_folder_and_one_that_is_not_found_is_not_called_well() {
        let mounting = |path: &str| {
            let volume = json!({ "name": "driver-path", "hostPath": { "path": path } });
            let spec = json!({ "containers": [{ "name": "driver", "image": "i" }], "volumes": [volume] });
            let set =
                json!({ "metadata": { "name": "node" }, "spec": { "selector": {}, "template": { "spec": spec } } });
            [Workload::of_daemon_set(&serde_json::from_value(set).unwrap())]
        };
        let found = |driver: &str, path: &str| {
            let findings = plugins_of(driver, &mounting(path));
            findings.into_iter().map(|it| it.severity).collect::<Vec<_>>()
        };
        let powerflex = "csi-vxflexos.dellemc.com";
        assert_eq!(found(powerflex, "/var/lib/kubelet/plugins/vxflexos.emc.dell.com"), [Severity::Warning]);
        assert_eq!(found(powerflex, "/var/lib/kubelet/plugins/unity.emc.dell.com"), [Severity::Unknown]);
        assert_eq!(found("a.example.com", "/var/lib/kubelet/plugins/a.example.com/"), [Severity::Warning]);
        assert_eq!(found("a.example.com", "/var/lib/kubelet/plugins/b.example.com/"), [Severity::Unknown]);
    }
}
