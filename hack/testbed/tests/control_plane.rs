//! The control plane itself, with the real programs. Each test takes some seconds.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test says what it expects by panicking")]

use std::future::Future;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bulkhead_testbed::binaries::cache_folder;
use bulkhead_testbed::{Component, Identity, KwokNodes, KwokOptions, Testbed, TestbedOptions};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// Polls until `check` says yes.
async fn eventually<F: Future<Output = bool>>(what: &str, seconds: u64, mut check: impl FnMut() -> F) {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    while !check().await {
        assert!(Instant::now() < deadline, "not within {seconds} s: {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn config_maps(testbed: &Testbed, identity: &Identity) -> Api<ConfigMap> {
    Api::default_namespaced(testbed.client(identity).await.unwrap())
}

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

fn refused_with(error: kube::Error) -> (u16, String) {
    match error {
        kube::Error::Api(status) => (status.code, status.message),
        other => panic!("no answer from the apiserver: {other}"),
    }
}

#[tokio::test]
async fn only_who_may_can_and_the_audit_log_tells_who_did() {
    let testbed = Testbed::start(TestbedOptions::default()).await.unwrap();
    let post = PostParams::default();
    let by_admin = config_maps(&testbed, &Identity::Admin).await;
    by_admin.create(&post, &config_map("by-admin")).await.unwrap();

    let operator = Identity::OperatorController;
    let by_operator = config_maps(&testbed, &operator).await;
    let error = by_operator.create(&post, &config_map("refused")).await.unwrap_err();
    let (code, message) = refused_with(error);
    assert_eq!(code, 403);
    assert!(message.contains("system:serviceaccount:bulkhead-system:bulkhead-controller"));

    // Groups count, the second as well as the first.
    let user = Identity::User { name: "eve".into(), groups: vec!["nobodies".into(), "writers".into()] };
    let bind = "--clusterrole=admin";
    testbed.kubectl(&["create", "rolebinding", "w", bind, "--group=writers"]).await.unwrap();
    let by_user = config_maps(&testbed, &user).await;
    eventually("the binding counts", 5, || async { by_user.create(&post, &config_map("by-user")).await.is_ok() }).await;

    let find = |user: String, code: u16| {
        testbed.audit().first(|record| record.user == user && record.resource == "configmaps" && record.code == code)
    };
    let record = find(operator.user(), 403).unwrap().unwrap();
    assert_eq!((record.verb.as_str(), record.namespace.as_str()), ("create", "default"));
    assert!(!record.succeeded());
    assert!(find("eve".into(), 201).unwrap().is_some());
    let writes = testbed.audit().writes().unwrap();
    assert_eq!(writes.get(&(Identity::Admin.user(), "configmaps".into())), Some(&1));
}

#[tokio::test]
async fn two_side_by_side_do_not_meet_and_survive_a_restart() {
    let (one, two) = tokio::join!(
        Testbed::start(TestbedOptions::api_server_only()),
        Testbed::start(TestbedOptions::api_server_only()),
    );
    let (one, two) = (one.unwrap(), two.unwrap());
    let in_one = config_maps(&one, &Identity::Admin).await;
    in_one.create(&PostParams::default(), &config_map("here")).await.unwrap();
    let in_two = config_maps(&two, &Identity::Admin).await;
    assert!(in_two.get_opt("here").await.unwrap().is_none());

    one.stop(Component::ApiServer).await.unwrap();
    assert!(in_one.get_opt("here").await.is_err());
    one.start_again(Component::ApiServer).await.unwrap();
    assert!(in_one.get_opt("here").await.unwrap().is_some());

    one.pause(Component::ApiServer).unwrap();
    let frozen = tokio::time::timeout(Duration::from_secs(1), in_one.get_opt("here")).await;
    assert!(frozen.is_err(), "a frozen apiserver answered: {frozen:?}");
    one.resume(Component::ApiServer).unwrap();
    eventually("the apiserver goes on", 10, || async {
        in_one.get_opt("here").await.is_ok_and(|found| found.is_some())
    })
    .await;
}

#[tokio::test]
async fn files_are_applied_definitions_first() {
    let testbed = Testbed::start(TestbedOptions::api_server_only()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let samples = "\
# A comment before the first document.
---
apiVersion: example.com/v1
kind: Widget
metadata: {name: first, namespace: shop}
spec: {size: 3}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop}
";
    let definition = "\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Widget, plural: widgets}
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec: {type: object, properties: {size: {type: integer, maximum: 5}}}
";
    std::fs::write(folder.path().join("a-samples.yaml"), samples).unwrap();
    std::fs::write(folder.path().join("b-definition.yaml"), definition).unwrap();
    testbed.apply_dir(folder.path()).await.unwrap();
    let get = ["get", "widget", "first", "-n", "shop", "-o", "jsonpath={.spec.size}"];
    assert_eq!(testbed.kubectl(&get).await.unwrap(), "3");

    let bad = folder.path().join("a-samples.yaml");
    std::fs::write(&bad, samples.replace("size: 3", "size: 9")).unwrap();
    let error = testbed.apply_file(&bad).await.unwrap_err().to_string();
    assert!(error.contains("Widget first") && error.contains("spec.size"), "{error}");
}

async fn create_node(client: &Client, name: &str) -> Api<Node> {
    let nodes: Api<Node> = Api::all(client.clone());
    let node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    nodes
}

async fn ready(nodes: &Api<Node>, name: &str) -> String {
    let node = nodes.get(name).await.unwrap();
    let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
    ready.map(|condition| condition.status).unwrap_or_default()
}

async fn unreachable_taints(nodes: &Api<Node>, name: &str) -> usize {
    let taints = nodes.get(name).await.unwrap().spec.and_then(|spec| spec.taints);
    taints.into_iter().flatten().filter(|taint| taint.key == UNREACHABLE).count()
}

#[tokio::test]
async fn a_killed_node_becomes_unreachable_and_can_come_back() {
    let testbed = Testbed::start(TestbedOptions::fast_nodes()).await.unwrap();
    let client = testbed.client(&Identity::TestbedNodes).await.unwrap();
    let nodes = create_node(&client, "node-1").await;
    create_node(&client, "node-2").await;
    let start = |name: &str| {
        let nodes = KwokNodes::One(name.to_owned());
        testbed.start_kwok(&nodes, &KwokOptions::fast()).unwrap()
    };
    let node_1 = start("node-1");
    let _node_2 = start("node-2");
    for name in ["node-1", "node-2"] {
        eventually("a new node is Ready", 20, || async { ready(&nodes, name).await == "True" }).await;
    }

    let killed_at = chrono::Utc::now();
    node_1.kill().await;
    eventually("the node is unreachable", 30, || async {
        ready(&nodes, "node-1").await == "Unknown" && unreachable_taints(&nodes, "node-1").await == 2
    })
    .await;
    assert_eq!(ready(&nodes, "node-2").await, "True");
    assert_eq!(unreachable_taints(&nodes, "node-2").await, 0);

    let audit = testbed.audit();
    let tainted = audit
        .first(|r| r.name == "node-1" && r.writes_taint(UNREACHABLE, "NoSchedule"))
        .unwrap()
        .expect("the taint is in the audit log");
    assert_eq!(tainted.user, "system:serviceaccount:kube-system:node-controller");
    let silent = tainted.finished - killed_at;
    assert!((6..20).contains(&silent.num_seconds()), "tainted after {silent}");
    let by_kwok = |record: &bulkhead_testbed::audit::Record| {
        record.user == Identity::Kwok.user()
            && record.is_write()
            && record.name == "node-1"
            && record.received > killed_at + chrono::TimeDelta::seconds(1)
    };
    assert_eq!(audit.first(by_kwok).unwrap(), None, "a dead node wrote to the API");

    let _node_1 = start("node-1");
    eventually("the returned node is clean", 30, || async {
        ready(&nodes, "node-1").await == "True" && unreachable_taints(&nodes, "node-1").await == 0
    })
    .await;
    nodes.delete("node-2", &DeleteParams::default()).await.unwrap();
}

/// A `testbed up --foreground` and the folder of its testbed.
fn foreground(name: &str) -> (Child, PathBuf) {
    let name = format!("{name}-{}", std::process::id());
    let mut child = Command::new(env!("CARGO_BIN_EXE_testbed"))
        .args(["up", "--foreground", &name])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let kubeconfig = line.trim().strip_prefix("export KUBECONFIG=").expect("the line to copy");
    (child, Path::new(kubeconfig).parent().unwrap().to_owned())
}

/// How many processes name the folder in their command line: each server, and its supervisor.
fn processes_of(folder: &Path) -> usize {
    let folder = folder.to_str().unwrap();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let command_lines = entries.flat_map(|entry| std::fs::read(entry.path().join("cmdline")));
    command_lines.filter(|line| String::from_utf8_lossy(line).contains(folder)).count()
}

async fn nothing_left(folder: &Path) {
    eventually("all processes are gone", 10, || async { processes_of(folder) == 0 }).await;
}

#[tokio::test]
async fn nothing_outlives_a_killed_parent() {
    let (mut child, folder) = foreground("killed");
    assert!(processes_of(&folder) >= 4);
    child.kill().unwrap();
    child.wait().unwrap();
    nothing_left(&folder).await;

    let state = format!("run/killed-{}.json", std::process::id());
    std::fs::remove_file(cache_folder().unwrap().join(state)).unwrap();

    // The files that it could not remove, the next testbed does: this one, or one of another test before it.
    let next = Testbed::start(TestbedOptions::api_server_only()).await.unwrap();
    assert!(!folder.exists());
    let next_folder = next.folder().to_owned();
    drop(next);
    assert_eq!(processes_of(&next_folder), 0);
    assert!(!next_folder.exists());
}

#[tokio::test]
async fn ctrl_c_ends_everything() {
    let (mut child, folder) = foreground("interrupted");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert!(child.wait().unwrap().success());
    nothing_left(&folder).await;
    assert!(!folder.exists());
}
