//! A volume that an NFS server exports, behind one address: the server's node dies, and its clients go on.

use std::net::{IpAddr, SocketAddr};

use bulkhead_testbed::cluster::real::{NFS_PORT, NfsExport, PodPlace, RealCluster, Said};
use bulkhead_testbed::real_nodes::Fault;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use libtest_mimic::Failed;
use serde_json::json;

use super::Outcome;
use super::bed::SOON;
use super::scenes::leader;

/// The server moves with its volume, and a client that has a file open notices nothing but the pause.
pub async fn nfs_server_moves(cluster: &RealCluster) -> Outcome {
    let leader = leader(cluster).await?.spec.and_then(|spec| spec.node_name).ok_or("the leader is on no node")?;
    let nodes: Vec<_> = (1..=3).map(|number| format!("node-{number}")).collect();
    let at = nodes.iter().filter(|name| **name != leader).cloned().collect::<Vec<_>>();
    let [first, client_node] = <[String; 2]>::try_from(at).map_err(|_| "there are not three nodes")?;
    let export = NfsExport { name: "builds".to_owned(), nodes: vec![first, leader] };
    cluster.create_nfs_export(&export).await?;
    let old = cluster.nfs_export_runs(&export, None, SOON).await?;
    let address = published(cluster, &export, &old).await?;
    let client = cluster.run_nfs_client("builder", &client_node, address, SOON).await?;

    cluster.node(&old.node)?.fault(Fault::KillEverything).await?;
    let safe = last(&cluster.said(&client)?);
    let new = cluster.nfs_export_runs(&export, Some(&old), SOON).await?;
    assert_ne!(new.node, old.node);
    switch(cluster, &export, &new).await?;
    cluster
        .wait("the client writes again", SOON, async || {
            let said = cluster.said(&client)?;
            Ok(if last(&said) > safe.map(|safe| safe + 20) {
                Ok(())
            } else {
                Err(format!("{:?}", said.iter().rev().take(20).collect::<Vec<_>>()))
            })
        })
        .await?;
    let said = cluster.said(&client)?;
    for line in &said {
        if !line.what.starts_with("wrote") && !line.what.starts_with("read ") {
            println!("{} {}", line.at, line.what);
        }
    }
    let wrong =
        |line: &&Said| ["stale", "lost", "broken", "read something"].iter().any(|word| line.what.starts_with(word));
    assert_eq!(said.iter().find(wrong), None);
    assert!(said.iter().any(|line| line.what == "renewed Reclaimed"), "{said:?}");
    let found = cluster.read_by_libnfs(&client, address, SOON).await?;
    assert!(Some(found) >= last(&said), "libnfs reads {found} records of {:?}", last(&said));

    cluster.node(&old.node)?.heal_all().await?;
    cluster.usable(&old.node, SOON).await?;
    cluster.end_shells(&[&client.name], SOON).await?;
    Ok(cluster.end_nfs_export(&export, SOON).await?)
}

fn last(said: &[Said]) -> Option<u64> {
    said.iter().filter_map(|line| line.what.strip_prefix("wrote ")?.parse().ok()).max()
}

async fn published(cluster: &RealCluster, export: &NfsExport, server: &PodPlace) -> Result<SocketAddr, Failed> {
    let service: Service = serde_json::from_value(json!({
        "metadata": {"name": export.name},
        "spec": {"ports": [{"name": "nfs", "port": 2049}]},
    }))?;
    let services: Api<Service> = Api::default_namespaced(cluster.client.clone());
    let made = services.create(&PostParams::default(), &service).await?;
    let address: IpAddr = made.spec.and_then(|spec| spec.cluster_ip).ok_or("no address")?.parse()?;
    switch(cluster, export, server).await?;
    Ok(SocketAddr::new(address, 2049))
}

async fn switch(cluster: &RealCluster, export: &NfsExport, server: &PodPlace) -> Outcome {
    let pods: Api<Pod> = Api::default_namespaced(cluster.client.clone());
    let address = pods.get(&server.name).await?.status.and_then(|status| status.pod_ip).ok_or("no address")?;
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "builds-ipv4", "labels": {"kubernetes.io/service-name": export.name}},
        "addressType": "IPv4",
        "ports": [{"name": "nfs", "port": NFS_PORT, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": true}}],
    });
    let slices: Api<EndpointSlice> = Api::default_namespaced(cluster.client.clone());
    slices.patch("builds-ipv4", &PatchParams::apply("test"), &Patch::Apply(slice)).await?;
    let _ = DeleteParams::default();
    Ok(())
}
