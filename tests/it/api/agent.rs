//! The node agent with the token that a kubelet gives its pod: what it may write, and that a node forges nothing.

use bulkhead_testbed::{Identity, Testbed};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use kube::api::{DynamicObject, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::Outcome;
use super::admission::{comes_to_deny, denied};
use super::objects::{api, dynamic, with_status};
use super::rules::dry_run;
use super::world::World;

/// The agent's ServiceAccount and its namespace, as shipped.
const AGENT: &str = "bulkhead-node-agent";
/// Its node, and one that is not its own.
pub const NODE: &str = "worker-3";
const OTHER_NODE: &str = "worker-4";

/// A client with the token of the agent's pod on [`NODE`].
pub async fn client(testbed: &Testbed, admin: &Client) -> Result<Client, Failed> {
    for name in [NODE, OTHER_NODE] {
        make_node(admin, name).await?;
    }
    let pod = json!({
        "metadata": {"name": "agent-x", "namespace": AGENT},
        "spec": {"serviceAccountName": AGENT, "nodeName": NODE, "containers": [{"name": "agent", "image": "agent"}]},
    });
    let pods: Api<Pod> = Api::namespaced(admin.clone(), AGENT);
    let pod = pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    with_token(testbed, admin, json!({"kind": "Pod", "apiVersion": "v1", "name": pod.name_any(), "uid": pod.uid()}))
        .await
}

async fn make_node(admin: &Client, name: &str) -> Result<Node, Failed> {
    let node = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    Ok(Api::<Node>::all(admin.clone()).create(&PostParams::default(), &node).await?)
}

/// A client with a token of the agent's ServiceAccount, bound to an object or (null) to none.
pub async fn with_token(testbed: &Testbed, admin: &Client, bound: Value) -> Result<Client, Failed> {
    with_token_of(testbed, admin, (AGENT, AGENT), bound).await
}

/// The same of another ServiceAccount, by namespace and name.
pub async fn with_token_of(
    testbed: &Testbed,
    admin: &Client,
    (namespace, account): (&str, &str),
    bound: Value,
) -> Result<Client, Failed> {
    let request: TokenRequest = serde_json::from_value(json!({"spec": {"audiences": [], "boundObjectRef": bound}}))?;
    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), namespace);
    let answer = accounts.create_token_request(account, &PostParams::default(), &request).await?;
    let token = answer.status.ok_or("no token")?.token;
    let mut kubeconfig = Kubeconfig::read_from(testbed.kubeconfig(&Identity::Admin)?)?;
    for user in &mut kubeconfig.auth_infos {
        user.auth_info = Some(serde_json::from_value(json!({"token": token}))?);
    }
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// What an agent says of a clean node, in the report of it.
fn said(report: &DynamicObject) -> Result<DynamicObject, Failed> {
    Ok(with_status(report, &json!({"agentVersion": "0.1.0", "addresses": ["10.0.3.17"]}))?)
}

async fn report_of(world: &World, node: &str) -> Result<DynamicObject, Failed> {
    let object = json!({"apiVersion": "bulkhead.dev/v1alpha1", "kind": "NodeVolumeReport", "metadata": {"name": node}});
    Ok(api(&world.admin, "NodeVolumeReport").create(&PostParams::default(), &dynamic(&object)?).await?)
}

pub async fn only_the_agent_of_a_node_reports(world: &World) -> Outcome {
    let (own, others) = (said(&report_of(world, NODE).await?)?, said(&report_of(world, OTHER_NODE).await?)?);
    let dry = dry_run();
    let agent = api(&world.agent, "NodeVolumeReport");
    let text = "this token is bound to node \"worker-3\", not worker-4";
    comes_to_deny(text, async || agent.replace_status(OTHER_NODE, &dry, &others).await).await?;
    agent.replace_status(NODE, &dry, &own).await?;
    // The same ServiceAccount, from anywhere; and who may do everything.
    let unbound = api(&with_token(&world.testbed, &world.admin, Value::Null).await?, "NodeVolumeReport");
    let node = Api::<Node>::all(world.admin.clone()).get(OTHER_NODE).await?;
    let bound = json!({"kind": "Node", "apiVersion": "v1", "name": OTHER_NODE, "uid": node.uid()});
    let elsewhere = api(&with_token(&world.testbed, &world.admin, bound).await?, "NodeVolumeReport");
    let admin = api(&world.admin, "NodeVolumeReport");
    for (client, text) in [
        (unbound, "bound to node \"\", not worker-3"),
        (elsewhere, "bound to node \"worker-4\", not worker-3"),
        (admin, "bound to node \"\", not worker-3"),
    ] {
        let answer = client.replace_status(NODE, &dry, &own).await;
        assert!(denied(&answer, text), "{text}: {answer:?}");
    }
    Ok(())
}

/// With the report's status it cannot change what makes the report go with its Node.
pub async fn a_report_leaves_the_rest_of_the_object_alone(world: &World) -> Outcome {
    let name = "worker-3-owned";
    let before = report_of(world, name).await?;
    let node = make_node(&world.admin, name).await?;
    let bound = json!({"kind": "Node", "apiVersion": "v1", "name": name, "uid": node.uid()});
    let agent = api(&with_token(&world.testbed, &world.admin, bound).await?, "NodeVolumeReport");
    let mut forged = said(&before)?;
    forged.labels_mut().insert("forged".into(), "yes".into());
    forged.finalizers_mut().push("forged.example.com/stay".into());
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "x", "uid": "x"});
    forged.owner_references_mut().push(serde_json::from_value(owner)?);
    let after = agent.replace_status(name, &PostParams::default(), &forged).await?;
    assert_eq!(after.data["status"]["agentVersion"], "0.1.0");
    assert_eq!((after.labels(), after.finalizers()), (before.labels(), before.finalizers()));
    assert_eq!(after.owner_references(), before.owner_references());
    Ok(())
}
