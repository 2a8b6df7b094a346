//! What the power fencer that we ship reports before anybody asks it for a fence, against BMCs of simulated nodes. A node that
//! has lost its power is declared in seconds, long before two renewals of its Lease are missed; one whose BMC lies is left alone,
//! though its agent dies too. Kubernetes itself would take ten minutes to notice anything here.

use std::time::{Duration, Instant};

use bulkhead::api::node_fence::Channel;
use bulkhead_testbed::cluster::{Cluster, Workload};
use bulkhead_testbed::process::Process;
use bulkhead_testbed::redfish::{Faults, Redfish};
use libtest_mimic::{Failed, Trial};
use serde_json::json;

use super::agents;
use super::fleet::{SOON, create_policy};
use super::heartbeat::{HEARD, NODES, UNREACHABLE, as_root, comes_to, fences, listening};
use super::look::event;
use super::power::{Shipped, by, tell_bmc};

const FENCER: &str = "redfish.evidence.test";
/// Two renewals are missed after 21 s at the soonest.
const SECONDS: Duration = Duration::from_secs(15);
/// Longer than it takes from the loss of a heartbeat to the declaration of a node that nothing contradicts.
const LONG_ENOUGH: Duration = Duration::from_secs(10);

pub fn trial() -> Trial {
    as_root(super::alone("power_that_is_gone_declares_a_node_and_a_lie_about_it_does_not", declares_a_node))
}

async fn declares_a_node() -> Result<(), Failed> {
    let cluster = start().await?;
    let mut agents = Vec::new();
    for number in 1..=NODES {
        agents.push(agents::start(&cluster, &format!("node-{number}")).await?);
    }
    comes_to(&cluster, HEARD, |heard| heard == NODES as u64).await?;
    let _fencer = Shipped::start(&cluster, FENCER).await?;
    let bmcs = Redfish::start().await?;
    for node in ["node-1", "node-2"] {
        tell_bmc(&cluster, node, &bmcs.add(cluster.node(node)?, node)).await?;
    }
    a_lie_is_told_and_counts_for_nothing(&cluster, &bmcs, agents.remove(1)).await?;
    a_node_loses_its_power(&cluster, &bmcs, agents.remove(0)).await?;
    cluster.judge()?;
    Ok(())
}

/// A cluster with a protected pod on each of two nodes, whose policies name the fencer.
async fn start() -> Result<Cluster, Failed> {
    let cluster = listening().await?;
    let mut spec = by(FENCER, "30s");
    spec["limits"] = json!({ "maxUnhealthy": "99%" });
    for number in 1..=2 {
        let name = format!("power-{number}");
        create_policy(&cluster.client, &name, &name, &spec).await?;
        let labels = [("lane".to_owned(), name.clone())].into();
        let set = Workload { labels, node: Some(format!("node-{number}")), ..Workload::new(&name) };
        cluster.stateful_set(&set).await?;
        cluster.pods_ready(&set, SOON).await?;
    }
    Ok(cluster)
}

/// The node runs, and its kubelet renews its Lease: the loss of its agent makes the lie no truer.
async fn a_lie_is_told_and_counts_for_nothing(cluster: &Cluster, bmcs: &Redfish, agent: Process) -> Result<(), Failed> {
    bmcs.set_faults("node-2", Faults { calls_off: true, ..Faults::default() });
    event(cluster, "Node", "node-2", "PowerContradicted", FENCER).await?;
    agent.kill().await;
    comes_to(cluster, UNREACHABLE, |count| count >= 1).await?;
    let began = Instant::now();
    while began.elapsed() < LONG_ENOUGH {
        assert_eq!(fences(cluster).await?.len(), 0, "after {:?}", began.elapsed());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(bmcs.resets("node-2").is_empty(), "{:?}", bmcs.asked("node-2"));
    Ok(())
}

async fn a_node_loses_its_power(cluster: &Cluster, bmcs: &Redfish, agent: Process) -> Result<(), Failed> {
    let died = Instant::now();
    bmcs.lose_power("node-1").await;
    agent.kill().await;
    let fence = cluster.fence("node-1", "declared", SOON, |_| true).await?;
    let took = died.elapsed();
    println!("node-1 declared {took:?} after it lost its power");
    let evidence = &fence.spec.plan.evidence;
    assert_eq!(
        evidence.iter().map(|it| it.channel).collect::<Vec<_>>(),
        [Channel::Agent, Channel::Power],
        "{evidence:?}"
    );
    assert!(took < SECONDS, "{took:?}");
    let set = Workload::new("power-1");
    let elsewhere = async || {
        let placed = cluster.pods_ready(&set, SOON).await?;
        Ok(if placed.values().any(|node| node == "node-1") { Err(format!("{placed:?}")) } else { Ok(()) })
    };
    cluster.wait("it runs elsewhere", SOON, elsewhere).await?;
    println!("runs elsewhere {:?} after it lost its power", died.elapsed());
    let acted_on: Vec<_> = fences(cluster).await?.into_iter().filter_map(|fence| fence.metadata.name).collect();
    assert_eq!(acted_on, ["node-1"]);
    Ok(())
}
