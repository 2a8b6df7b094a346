//! A volume that an NFS server exports, behind one address: the server's node dies, and its clients go on.

use std::net::SocketAddr;

use bulkhead::api::shared_volume::{SharedVolume, SharedVolumeStatus};
use bulkhead_testbed::cluster::real::{NfsExport, RealCluster, Said};
use bulkhead_testbed::real_nodes::Fault;
use kube::Api;
use kube::api::DeleteParams;
use libtest_mimic::Failed;
use serde_json::json;

use super::Outcome;
use super::bed::SOON;

/// The claim, and with it the server, the SharedVolume, the Service.
const NAME: &str = "builds";
/// How many records a client writes after the failover before it is believed that it goes on.
const RECORDS: u64 = 20;
/// What a client must never say: the first word of a line.
const WRONG: [&str; 3] = ["stale", "lost", "broken"];

/// The server moves with its volume, and a client that has a file open notices nothing but the pause.
pub async fn nfs_server_moves(cluster: &RealCluster) -> Outcome {
    let leader = cluster.leader().await?.and_then(|pod| pod.spec?.node_name).ok_or("nobody leads")?;
    let others: Vec<_> = (1..=3).map(|number| format!("node-{number}")).filter(|name| *name != leader).collect();
    let [first, client] = <[String; 2]>::try_from(others).map_err(|_| "there are not three nodes")?;
    let export = NfsExport { name: NAME.to_owned(), nodes: vec![first, leader] };
    cluster.create_nfs_export(&export).await?;
    share(cluster).await?;
    let old = cluster.nfs_export_runs(&export, None, SOON).await?;
    let address = served(cluster, None).await?;
    let client = cluster.run_nfs_client("builder", &client, address, SOON).await?;

    cluster.node(&old.node)?.fault(Fault::KillEverything).await?;
    let safe = last(&cluster.said(&client)?);
    let new = cluster.nfs_export_runs(&export, Some(&old), SOON).await?;
    assert_ne!(new.node, old.node);
    assert_eq!(served(cluster, Some(&new.node)).await?, address, "another address");
    cluster
        .wait("the client goes on writing", SOON, async || {
            let said = cluster.said(&client)?;
            Ok(if last(&said) >= safe + RECORDS { Ok(()) } else { Err(notable(&said).join("; ")) })
        })
        .await?;

    let said = cluster.said(&client)?;
    let notable = notable(&said);
    assert!(!notable.iter().any(|line| WRONG.iter().any(|word| line.starts_with(word))), "{notable:?}");
    assert!(notable.iter().any(|line| line == "renewed Reclaimed"), "it lost what it had open: {notable:?}");
    let read = cluster.read_by_libnfs(&client, address, SOON).await?;
    assert!(read >= last(&said), "libnfs reads {read} records of {}", last(&said));

    cluster.node(&old.node)?.heal_all().await?;
    cluster.usable(&old.node, SOON).await?;
    cluster.end_shells(&[&client.name], SOON).await?;
    Api::<SharedVolume>::default_namespaced(cluster.client.clone()).delete(NAME, &DeleteParams::default()).await?;
    Ok(cluster.end_nfs_export(&export, SOON).await?)
}

async fn share(cluster: &RealCluster) -> Outcome {
    let shared = json!({
        "apiVersion": "bulkhead.dev/v1alpha1",
        "kind": "SharedVolume",
        "metadata": {"name": NAME, "namespace": "default"},
        "spec": {"claimName": NAME, "backend": {"pods": {"matchLabels": {"app": NAME}}}, "probe": {"period": "1s", "timeout": "1s"}},
    });
    Ok(cluster.testbed.apply(vec![serde_json::from_value(shared)?]).await?)
}

/// Waits until the address serves, from a server on `node` if one is named.
async fn served(cluster: &RealCluster, node: Option<&str>) -> Result<SocketAddr, Failed> {
    let volumes: Api<SharedVolume> = Api::default_namespaced(cluster.client.clone());
    let is_served = |status: &SharedVolumeStatus| {
        let ready = status.conditions.iter().any(|it| it.type_ == "Ready" && it.status == "True");
        let on = status.active.as_ref().and_then(|active| active.node_name.as_deref());
        ready && on.is_some() && (node.is_none() || on == node)
    };
    let address = cluster
        .wait("the SharedVolume is Ready", SOON, async || {
            let status = volumes.get(NAME).await?.status.unwrap_or_default();
            Ok(status.mount_endpoint.clone().filter(|_| is_served(&status)).ok_or_else(|| format!("{status:?}")))
        })
        .await?;
    Ok(address.parse()?)
}

/// The last record that was safe; 0 for none.
fn last(said: &[Said]) -> u64 {
    said.iter().filter_map(|line| line.what.strip_prefix("wrote ")?.parse().ok()).max().unwrap_or(0)
}

/// What was said but for each record.
fn notable(said: &[Said]) -> Vec<String> {
    let is_record = |what: &str| {
        what.split_once(' ')
            .is_some_and(|(word, rest)| ["wrote", "read"].contains(&word) && rest.parse::<u64>().is_ok())
    };
    said.iter().map(|line| line.what.clone()).filter(|what| !is_record(what)).collect()
}
