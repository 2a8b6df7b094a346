//! What the agents of many nodes are sent: each what is of its node, so that it costs an agent nothing how many others there
//! are. The library's own agents in this process, on a real API server.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use bulkhead::node_agent::children::Children;
use bulkhead::node_agent::driver::Plugins;
use bulkhead::node_agent::metrics::Metrics;
use bulkhead::node_agent::self_fence::record::Record;
use bulkhead::node_agent::{self, Context, Settings, VOLUMES_AT_ONCE};
use bulkhead::runtime::client::Clients;
use bulkhead::runtime::clock::Clock;
use bulkhead::runtime::events::Events;
use bulkhead::runtime::health::Health;
use bulkhead::runtime::leader::Leadership;
use bulkhead::runtime::telemetry::Telemetry;
use bulkhead::runtime::writer::Writer;
use bulkhead_testbed::{Identity, Testbed, TestbedOptions};
use futures::{StreamExt, TryStreamExt, stream};
use http::HeaderValue;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use libtest_mimic::Failed;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::fleet::SOON;
use crate::api::world::root;

/// Where the pods are.
const NAMESPACE: &str = "many";
/// Pods of each node.
const PODS: usize = 10;
/// Requests under way at once.
const AT_ONCE: usize = 16;

/// What one agent is sent: for each request its path, and the answer so far.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<Answer>>>);

/// The path that was asked for, and what came.
type Answer = (String, Vec<u8>);

impl Told {
    fn all(&self) -> MutexGuard<'_, Vec<Answer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same client, with an ear on what it is answered: in JSON, which is read here, though the agent asks for protobuf.
    fn listening(&self, client: Client) -> Client {
        let told = self.clone();
        let service = tower::service_fn(move |mut request: http::Request<kube::client::Body>| {
            let (client, told) = (client.clone(), told.clone());
            async move {
                request.headers_mut().insert(http::header::ACCEPT, HeaderValue::from_static("application/json"));
                let number = told.begins(request.uri().path());
                let (parts, body) = client.send(request).await?.into_parts();
                let heard = Body::new(body).into_data_stream().inspect_ok(move |data| told.hears(number, data));
                Ok::<_, kube::Error>(http::Response::from_parts(parts, Body::from_stream(heard)))
            }
        });
        Client::new(service, "default")
    }

    fn begins(&self, path: &str) -> usize {
        let mut all = self.all();
        all.push((path.to_owned(), Vec::new()));
        all.len() - 1
    }

    fn hears(&self, number: usize, data: &[u8]) {
        self.all()[number].1.extend_from_slice(data);
    }

    /// The objects in all events of the watches of this path. Bookmarks have none.
    fn objects(&self, path: &str) -> Result<Vec<Value>, Failed> {
        let mut objects = Vec::new();
        for (_, answer) in self.all().iter().filter(|(of, _)| of == path) {
            let text = String::from_utf8_lossy(answer);
            // What follows the last line is still on its way.
            for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
                let mut event: Value = serde_json::from_str(line)?;
                match event["type"].as_str() {
                    Some("ADDED" | "MODIFIED") => objects.push(event["object"].take()),
                    Some("BOOKMARK") => {}
                    _ => return Err(format!("no event of a watch of {path}: {line}").into()),
                }
            }
        }
        Ok(objects)
    }
}

/// The objects of all nodes.
async fn populate(client: &Client, nodes: &[String]) -> Result<(), Failed> {
    let namespace: Namespace = serde_json::from_value(json!({ "metadata": { "name": NAMESPACE } }))?;
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await?;
    let (all, pods): (Api<Node>, Api<Pod>) = (Api::all(client.clone()), Api::namespaced(client.clone(), NAMESPACE));
    let objects = nodes.iter().cloned().map(|node| {
        let (all, pods) = (all.clone(), pods.clone());
        async move {
            let object = serde_json::from_value(json!({ "metadata": { "name": node } }))?;
            all.create(&PostParams::default(), &object).await?;
            for number in 0..PODS {
                let pod = serde_json::from_value(json!({
                    "metadata": { "name": format!("{node}-{number}") },
                    "spec": { "nodeName": node, "containers": [{ "name": "main", "image": "app" }] },
                }))?;
                pods.create(&PostParams::default(), &pod).await?;
            }
            Ok::<_, Failed>(())
        }
    });
    stream::iter(objects).buffer_unordered(AT_ONCE).try_collect().await
}

/// Runs the agent of a node until `cancel`.
fn run(folder: &Path, node: &str, client: Client, cancel: &CancellationToken) {
    let telemetry = Telemetry::new();
    let settings = Settings {
        node_name: node.to_owned(),
        kubelet_root: folder.display().to_string(),
        host: "/proc/self".into(),
        boot_id_file: "/proc/sys/kernel/random/boot_id".into(),
        kubelet_patience: Duration::from_secs(3),
        check_interval: Duration::from_secs(30),
        call_timeout: Duration::from_secs(30),
        inventory_timeout: Duration::from_secs(15),
    };
    let children = Children::new(env!("CARGO_BIN_EXE_bulkhead-node-agent").into(), settings.host.clone());
    let always = Leadership::always();
    let cx = Context {
        plugins: Plugins { host: settings.host.clone(), kubelet_root: settings.kubelet_root.clone(), beside: None },
        settings: Arc::new(settings),
        metrics: Metrics::register(&telemetry, children.clone()),
        children,
        clients: Clients {
            reads: client.clone(),
            writes: client.clone(),
            leases: client.clone(),
            watches: client.clone(),
        },
        writer: Writer::new(client.clone(), always.clone(), "bulkhead-node-agent"),
        events: Events::spawn(client, "agent", node, always, &telemetry, cancel.clone()),
        clock: Clock::system(),
        turns: Arc::new(Semaphore::new(VOLUMES_AT_ONCE)),
        found: Arc::default(),
        heartbeat: None,
        self_fence: Arc::default(),
        health: Arc::default(),
    };
    let cancel = cancel.clone();
    tokio::spawn(async move {
        node_agent::run(cx, (None, Record::default()), &telemetry, &Health::new(), cancel).await;
    });
}

/// Waits until each agent was sent so many pods.
async fn all_told(agents: &[(String, Told)], pods: usize) -> Result<(), Failed> {
    let end = Instant::now() + SOON;
    loop {
        let mut short = Vec::new();
        for (node, told) in agents {
            let sent = told.objects("/api/v1/pods")?.len();
            if sent < pods {
                short.push(format!("{node}: {sent}"));
            }
        }
        if short.is_empty() {
            return Ok(());
        }
        if Instant::now() >= end {
            return Err(format!("not within {SOON:?}: {pods} pods for each; {}", short.join(", ")).into());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

pub async fn an_agent_is_sent_what_is_of_its_node() -> Result<(), Failed> {
    let count = if super::is_wide() { 100 } else { 20 };
    let testbed = Testbed::start(TestbedOptions::api_server_only()).await?;
    testbed.apply_dir(&root().join("crds")).await?;
    let client = testbed.client(&Identity::Admin).await?;
    let nodes: Vec<_> = (0..count).map(|number| format!("node-{number}")).collect();
    populate(&client, &nodes).await?;
    let (folder, cancel) = (tempfile::tempdir()?, CancellationToken::new());
    let _end = cancel.clone().drop_guard();
    let agents: Vec<_> = nodes.into_iter().map(|node| (node, Told::default())).collect();
    for (node, told) in &agents {
        let kubelet = folder.path().join(node);
        std::fs::create_dir_all(kubelet.join("pods"))?;
        run(&kubelet, node, told.listening(client.clone()), &cancel);
    }
    all_told(&agents, PODS).await?;
    let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
    for (node, _) in &agents {
        let patch = json!({ "metadata": { "annotations": { "changed": "yes" } } });
        pods.patch(&format!("{node}-0"), &PatchParams::default(), &Patch::Merge(patch)).await?;
    }
    all_told(&agents, PODS + 1).await?;
    for (node, told) in &agents {
        let pods = told.objects("/api/v1/pods")?;
        let foreign: Vec<_> = pods.iter().filter(|pod| pod["spec"]["nodeName"] != json!(node)).collect();
        assert!(foreign.is_empty(), "{node} was sent pods of others: {foreign:?}");
        assert_eq!(pods.len(), PODS + 1, "{node} was sent some twice");
        let nodes = told.objects("/api/v1/nodes")?;
        assert!(!nodes.is_empty(), "{node} was not sent its Node");
        assert!(nodes.iter().all(|sent| sent["metadata"]["name"] == json!(node)), "{node} was sent others: {nodes:?}");
    }
    Ok(())
}
