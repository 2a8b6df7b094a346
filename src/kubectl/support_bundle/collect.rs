//! What a bundle is made of. Each thing is read by itself: one that may not be read, or takes too long, is named, and the
//! others are read all the same.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, ListParams, LogParams};
use kube::core::GroupVersionKind;
use kube::{Api, ResourceExt};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::controllers::resiliency_policy::brakes;
use crate::error::Error as ApiError;
use crate::kubectl::gather::{Cluster, Gathered};
use crate::kubectl::print::Output;
use crate::kubectl::{doctor, node};

use super::archive::Archive;
use super::{ours, redact};

/// How long one thing may take.
const ONE: Duration = Duration::from_secs(30);
/// Objects of one list.
const PAGE: u32 = 500;
/// Events are the longest list of a cluster; the newest come with any page.
const PAGES_MAX: usize = 40;
/// What runs in the operator's namespace, as (group, version, kind, plural).
const WORKLOADS: [(&str, &str, &str, &str); 9] = [
    ("apps", "v1", "Deployment", "deployments"),
    ("apps", "v1", "DaemonSet", "daemonsets"),
    ("apps", "v1", "StatefulSet", "statefulsets"),
    ("", "v1", "Pod", "pods"),
    ("", "v1", "Service", "services"),
    ("", "v1", "ConfigMap", "configmaps"),
    ("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    ("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies"),
    ("coordination.k8s.io", "v1", "Lease", "leases"),
];
/// What else is read of the whole cluster; of the policies only ours.
const CLUSTER: [(&str, &str, &str, &str); 5] = [
    ("storage.k8s.io", "v1", "CSIDriver", "csidrivers"),
    ("storage.k8s.io", "v1", "StorageClass", "storageclasses"),
    ("storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments"),
    ("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
    ("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
];

/// Collects into an archive until the time is up.
pub struct Collector<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// Where it goes.
    pub archive: Archive,
    /// When to stop.
    pub end: Instant,
    /// Of each log.
    pub log_bytes: i64,
}

impl Collector<'_> {
    /// Everything: what is short and says most first.
    pub async fn all(&mut self) -> io::Result<()> {
        self.versions().await?;
        self.ours().await?;
        let gathered = self.one("what failover rests on", self.cluster.gather()).await;
        let nodes: BTreeSet<_> = gathered.iter().flat_map(Gathered::fences).map(|fence| fence.name_any()).collect();
        if let Some(gathered) = &gathered {
            self.answers(gathered).await?;
        }
        self.nodes(&nodes).await?;
        let namespace = self.cluster.operator.clone();
        for kind in WORKLOADS {
            self.list(&format!("namespace/{}.json", kind.3), kind, Some(&namespace), |_| true).await?;
        }
        for kind in CLUSTER {
            let ours = kind.0 != "admissionregistration.k8s.io";
            let is_ours = |it: &DynamicObject| ours || it.name_any().ends_with(".bulkhead.dev");
            self.list(&format!("cluster/{}.json", kind.3), kind, None, is_ours).await?;
        }
        self.events(&nodes).await?;
        self.pods().await
    }

    /// Awaits one thing; why it is not there is noted.
    async fn one<T, E: ToString>(&mut self, what: &str, reading: impl Future<Output = Result<T, E>>) -> Option<T> {
        let until = self.end.min(Instant::now() + ONE);
        let why = match tokio::time::timeout_at(until, reading).await {
            Ok(Ok(read)) => return Some(read),
            Ok(Err(error)) => error.to_string(),
            Err(_) if until == self.end => "the time was up: --timeout".to_owned(),
            Err(_) => format!("no answer within {} s", ONE.as_secs()),
        };
        self.archive.lacks(what, redact::text(&why));
        None
    }

    fn add_json(&mut self, path: &str, value: &impl Serialize) -> io::Result<()> {
        let mut value = serde_json::to_value(value).map_err(io::Error::other)?;
        redact::object(&mut value);
        let text = serde_json::to_string_pretty(&value).map_err(io::Error::other)?;
        self.archive.add(path, &text)
    }

    async fn versions(&mut self) -> io::Result<()> {
        let reads = self.cluster.clients.reads.clone();
        let server = self.one("the API server's version", reads.apiserver_version()).await;
        self.add_json("versions.json", &json!({ "kubectlBulkhead": env!("CARGO_PKG_VERSION"), "server": server }))
    }

    /// Every object of ours, of every kind.
    async fn ours(&mut self) -> io::Result<()> {
        for definition in crate::api::definitions() {
            let spec = definition.spec;
            let Some(version) = spec.versions.into_iter().find(|version| version.storage) else { continue };
            let kind =
                (spec.group.as_str(), version.name.as_str(), spec.names.kind.as_str(), spec.names.plural.as_str());
            self.list(&format!("bulkhead/{}.json", spec.names.plural), kind, None, |_| true).await?;
        }
        Ok(())
    }

    /// What the other commands say: of each open incident, and of the whole.
    async fn answers(&mut self, gathered: &Gathered) -> io::Result<()> {
        for fence in gathered.fences().iter().filter(|fence| brakes::in_progress(fence)) {
            let name = fence.name_any();
            let told = async { Output::Table.render(&node(gathered, &name).await?) };
            if let Some(text) = self.one(&format!("explain node {name}"), told).await {
                self.archive.add(&format!("explain/{name}.txt"), &redact::text(&text))?;
            }
        }
        // With the timeline that is computed for each policy.
        let cluster = self.cluster;
        let told = async { Output::Table.render(&doctor::examine(cluster).await?) };
        if let Some(text) = self.one("doctor", told).await {
            self.archive.add("doctor.txt", &redact::text(&text))?;
        }
        Ok(())
    }

    /// The nodes with an incident, open or recorded, and the Leases of their kubelets.
    async fn nodes(&mut self, names: &BTreeSet<String>) -> io::Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        let concerned = |it: &DynamicObject| names.contains(&it.name_any());
        self.list("nodes/nodes.json", ("", "v1", "Node", "nodes"), None, concerned).await?;
        self.list("nodes/csinodes.json", ("storage.k8s.io", "v1", "CSINode", "csinodes"), None, concerned).await?;
        let leases = ("coordination.k8s.io", "v1", "Lease", "leases");
        self.list("nodes/leases.json", leases, Some(crate::controllers::NODE_LEASES), concerned).await
    }

    /// Events that we wrote, about our objects, about the nodes concerned, and in the operator's namespace.
    async fn events(&mut self, nodes: &BTreeSet<String>) -> io::Result<()> {
        let namespace = self.cluster.operator.clone();
        let text = |it: &DynamicObject, path: &str| {
            it.data.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let is_wanted = move |it: &DynamicObject| {
            let by_us = text(it, "/reportingComponent").starts_with("bulkhead")
                || text(it, "/source/component").starts_with("bulkhead");
            let about_ours = text(it, "/involvedObject/apiVersion").contains("bulkhead.dev/");
            let about_node =
                text(it, "/involvedObject/kind") == "Node" && nodes.contains(&text(it, "/involvedObject/name"));
            by_us || about_ours || about_node || it.namespace().as_deref() == Some(namespace.as_str())
        };
        self.list("events.json", ("", "v1", "Event", "events"), None, is_wanted).await
    }

    async fn list(
        &mut self,
        path: &str,
        (group, version, kind, plural): (&str, &str, &str, &str),
        namespace: Option<&str>,
        is_wanted: impl Fn(&DynamicObject) -> bool,
    ) -> io::Result<()> {
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
        let client = self.cluster.clients.reads.clone();
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &resource),
            None => Api::all_with(client, &resource),
        };
        let Some((items, is_whole)) = self.one(path, pages(&api, is_wanted)).await else { return Ok(()) };
        if !is_whole {
            self.archive.lacks(format!("the rest of {path}"), "the list is too long");
        }
        if items.is_empty() { Ok(()) } else { self.add_json(path, &json!({ "kind": kind, "items": items })) }
    }

    /// Logs and metrics of our containers, whoever deployed their pods.
    async fn pods(&mut self) -> io::Result<()> {
        let api: Api<Pod> = Api::all(self.cluster.clients.reads.clone());
        let all = ListParams::default().limit(PAGE);
        let mut params = all.clone();
        let mut pods = Vec::new();
        loop {
            let Some(page) = self.one("pods of the cluster, for logs", api.list(&params)).await else { break };
            let is_ours = |pod: &Pod| ours::containers(pod, &self.cluster.operator).next().is_some();
            pods.extend(page.items.into_iter().filter(is_ours));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = all.clone().continue_token(&token),
                None => break,
            }
        }
        for pod in &pods {
            self.metrics(pod).await?;
        }
        for pod in &pods {
            self.logs(pod).await?;
        }
        Ok(())
    }

    async fn logs(&mut self, pod: &Pod) -> io::Result<()> {
        let cluster = self.cluster;
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let api: Api<Pod> = Api::namespaced(cluster.clients.reads.clone(), &namespace);
        for container in ours::containers(pod, &cluster.operator) {
            let container = &container.name;
            let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
            let restarted = statuses.into_iter().any(|it| it.name == *container && it.restart_count > 0);
            for previous in [false, true].into_iter().filter(|previous| !previous || restarted) {
                let params = LogParams {
                    container: Some(container.clone()),
                    previous,
                    timestamps: true,
                    tail_lines: Some(self.log_bytes / 64),
                    ..LogParams::default()
                };
                let end = if previous { ".previous" } else { "" };
                let path = format!("logs/{namespace}/{name}/{container}{end}.log");
                if let Some(log) = self.one(&path, api.logs(&name, &params)).await {
                    let kept = usize::try_from(self.log_bytes).unwrap_or(usize::MAX);
                    self.archive.add(&path, tail(&redact::text(&log), kept))?;
                }
            }
        }
        Ok(())
    }

    /// One scrape of each container, through the API server.
    async fn metrics(&mut self, pod: &Pod) -> io::Result<()> {
        let cluster = self.cluster;
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        for (container, port) in ours::scraped(pod, &cluster.operator) {
            let path = format!("metrics/{namespace}/{name}/{container}.txt");
            let client = cluster.clients.reads.clone();
            let uri = format!("/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy/metrics");
            let scrape = async {
                let request = http::Request::get(uri).body(Vec::new()).map_err(|error| error.to_string())?;
                client.request_text(request).await.map_err(|error| ApiError::from(error).to_string())
            };
            if let Some(text) = self.one(&path, scrape).await {
                self.archive.add(&path, &text)?;
            }
        }
        Ok(())
    }
}

/// The items that are wanted, and whether every page was read.
async fn pages(
    api: &Api<DynamicObject>,
    is_wanted: impl Fn(&DynamicObject) -> bool,
) -> Result<(Vec<DynamicObject>, bool), ApiError> {
    let first = ListParams::default().limit(PAGE);
    let (mut params, mut items) = (first.clone(), Vec::new());
    for _ in 0..PAGES_MAX {
        let page = api.list(&params).await?;
        items.extend(page.items.into_iter().filter(&is_wanted));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = first.clone().continue_token(&token),
            None => return Ok((items, true)),
        }
    }
    Ok((items, false))
}

/// The last whole lines that have room.
fn tail(text: &str, bytes: usize) -> &str {
    let start = text.len().saturating_sub(bytes);
    let start = (start..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    let kept = text.get(start..).unwrap_or_default();
    if start == 0 { kept } else { kept.split_once('\n').map_or("", |(_, lines)| lines) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_log_keeps_its_last_whole_lines() {
        assert_eq!(tail("one\ntwo\nthree\n", 100), "one\ntwo\nthree\n");
        assert_eq!(tail("one\ntwo\nthree\n", 8), "three\n");
        assert_eq!(tail("ä\nü\n", 4), "ü\n");
    }
}
