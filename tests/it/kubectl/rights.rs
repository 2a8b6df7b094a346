//! People without rights are told which are missing and whom to ask; nothing half-read is explained.

use bulkhead_testbed::Identity;
use bulkhead_testbed::cluster::Cluster;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::Api;
use kube::api::PostParams;
use libtest_mimic::Failed;
use serde_json::json;

use super::plugin;
use crate::failover::fleet::{Lane, LaneOptions};

pub fn person(name: &str) -> Identity {
    Identity::User { name: name.into(), groups: vec![] }
}

pub async fn bind(cluster: &Cluster, name: &str, role: &str) -> Result<(), Failed> {
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": { "name": format!("{name}-{role}") },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name }],
    }))?;
    let admin = cluster.testbed.client(&Identity::Admin).await?;
    Api::all(admin).create(&PostParams::default(), &binding).await?;
    Ok(())
}

/// Waits until the API server's authorizer knows of a binding.
pub async fn may_read(cluster: &Cluster, person: &Identity) -> Result<(), Failed> {
    cluster
        .wait("the binding counts", crate::failover::fleet::SOON, async || {
            let said = plugin::run(cluster, person, &["explain", "node", "node-1"]).await;
            let said = said.map_err(super::simulate::told)?;
            Ok(if said.code == 0 { Ok(()) } else { Err(said.error) })
        })
        .await?;
    Ok(())
}

pub async fn who_may_not_read_is_told_what_is_missing(cluster: &Cluster) -> Result<(), Failed> {
    let said = plugin::run(cluster, &person("nobody"), &["explain", "node", "node-1"]).await?;
    assert_eq!(said.code, 2);
    assert_eq!(said.out, "", "nothing is said of what was not read");
    for needed in [
        "you may not list",
        "nodes",
        "leases.coordination.k8s.io in namespace kube-node-lease",
        "nodefences.bulkhead.dev",
        "bulkhead-viewer",
    ] {
        assert!(said.error.contains(needed), "{needed} is not in: {}", said.error);
    }
    let doctor = plugin::run(cluster, &person("nobody"), &["doctor"]).await?;
    assert_eq!(doctor.code, 2, "{}", doctor.out);
    Ok(())
}

pub async fn who_may_read_may_not_write(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "viewed", LaneOptions::default()).await?;
    let set = lane.workload("db");
    lane.run(&set).await?;
    let viewer = person("viewer");
    bind(cluster, "viewer", "bulkhead-viewer").await?;
    may_read(cluster, &viewer).await?;
    let victim = lane.victim()?.name();
    let pod = format!("{}-0", set.name);
    for arguments in
        [vec!["simulate", "node", victim], vec!["explain", "node", victim], vec!["explain", "pod", pod.as_str()]]
    {
        let said = plugin::run(cluster, &viewer, &arguments).await?;
        assert_eq!(said.code, 0, "{arguments:?}: {}", said.error);
    }
    let doctor = plugin::run(cluster, &viewer, &["doctor"]).await?;
    assert!(!doctor.out.contains("Rights"), "the role lacks something that doctor reads: {}", doctor.out);
    let pause = ["pause", "policy", "viewed", "--reason", "x"];
    let said = plugin::run(cluster, &viewer, &pause).await?;
    assert_eq!(said.code, 2);
    assert!(said.error.contains("you may not patch resiliencypolicies.bulkhead.dev"), "{}", said.error);
    assert!(said.error.contains("bulkhead-operator"), "{}", said.error);
    bind(cluster, "viewer", "bulkhead-operator").await?;
    cluster
        .wait("the binding counts", crate::failover::fleet::SOON, async || {
            let said = plugin::run(cluster, &viewer, &pause).await.map_err(super::simulate::told)?;
            Ok(if said.code == 0 { Ok(()) } else { Err(said.error) })
        })
        .await?;
    lane.end().await
}
