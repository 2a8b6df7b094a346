//! Virtual machines of KubeVirt, as its API shows them: launchers are failed over as pods are, but for those into which a
//! machine is just being migrated. Nobody writes a machine's phase here, as nobody does whose node is dead: KubeVirt waits for the
//! launcher to be gone.

use std::collections::BTreeMap;

use bulkhead::api::node_fence::{NodeFence, PodStatusState};
use bulkhead_testbed::Identity;
use bulkhead_testbed::array::Claim;
use bulkhead_testbed::cluster::Cluster;
use bulkhead_testbed::ledger::Access;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::fleet::{Lane, LaneOptions, SOON};
use super::kinds::{pod, volume};
use super::look::{is_released, pod_row};

/// The definition, as much of it as is asked for here.
fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "virtualmachineinstances.kubevirt.io" },
        "spec": {
            "group": "kubevirt.io", "scope": "Namespaced",
            "names": {
                "kind": "VirtualMachineInstance", "plural": "virtualmachineinstances",
                "singular": "virtualmachineinstance",
            },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
            }],
        },
    })
}

/// Machines of the tests' namespace.
async fn instances(lane: &Lane<'_>) -> Result<(ApiResource, Api<DynamicObject>), Failed> {
    let kind = GroupVersionKind::gvk("kubevirt.io", "v1", "VirtualMachineInstance");
    let resource = ApiResource::from_gvk_with_plural(&kind, "virtualmachineinstances");
    let admin = lane.cluster.testbed.client(&Identity::Admin).await?;
    let instances = Api::namespaced_with(admin, "default", &resource);
    Ok((resource, instances))
}

/// A machine that runs on a node, with a launcher on the victim.
async fn machine(lane: &Lane<'_>, name: &str, runs_on: &str, migrated: bool) -> Result<(), Failed> {
    let full = format!("{}-{name}", lane.name);
    let claim = Claim { access: Access::MultiWriter, ..Claim::new("default", &full) };
    lane.array().claim(&lane.client(), &claim).await?;
    let (resource, instances) = instances(lane).await?;
    let status = json!({ "status": { "nodeName": runs_on, "phase": "Running" } });
    let instance = DynamicObject::new(&full, &resource).data(status);
    let instance = instances.create(&PostParams::default(), &instance).await?;
    let owner = json!([{
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": full, "uid": instance.uid(),
        "controller": true, "blockOwnerDeletion": true,
    }]);
    let spec = json!({ "volumes": volume(&full), "nodeName": lane.victim()?.name() });
    let mut launcher = pod(lane, name, &json!({ "ownerReferences": owner }), spec)?;
    let labels: BTreeMap<_, _> = [("kubevirt.io", "virt-launcher"), ("kubevirt.io/migrationJobUID", "0123")].into();
    let labels = labels.into_iter().filter(|(key, _)| migrated || *key == "kubevirt.io");
    launcher.labels_mut().extend(labels.map(|(key, value)| (key.to_owned(), value.to_owned())));
    Ok(lane.cluster.testbed.apply(vec![launcher]).await?)
}

pub async fn launchers_go_and_migration_targets_are_spared(cluster: &Cluster) -> Result<(), Failed> {
    cluster.testbed.apply(vec![serde_json::from_value(definition())?]).await?;
    let lane = Lane::new(cluster, "machines", LaneOptions::default()).await?;
    let [victim, other] = lane.nodes.as_slice() else { return Err("two nodes".into()) };
    machine(&lane, "here", victim.name(), false).await?;
    machine(&lane, "arrived", victim.name(), true).await?;
    machine(&lane, "coming", other.name(), true).await?;
    let api: Api<Pod> = Api::default_namespaced(lane.client());
    for name in ["here", "arrived", "coming"] {
        let runs = async || {
            let pod = api.get(&format!("machines-{name}")).await?;
            let runs = pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
            Ok(if runs { Ok(()) } else { Err(format!("{:?}", pod.status)) })
        };
        cluster.wait(&format!("{name} runs"), SOON, runs).await?;
    }
    victim.kill().await;
    let released = |fence: &NodeFence| is_released(fence, "machines-here") && is_released(fence, "machines-arrived");
    let fence = lane.fence("released", released).await?;
    // As KubeVirt leaves it until then: who waited for another phase would wait for himself.
    for name in ["machines-here", "machines-arrived"] {
        let instance = instances(&lane).await?.1.get(name).await?;
        assert_eq!(instance.data["status"]["phase"], "Running", "{name}: {:?}", instance.data);
    }
    let kept = pod_row(&fence, "machines-coming").ok_or("no row")?;
    assert_eq!((kept.state, kept.reason.as_deref()), (PodStatusState::Kept, Some("MigrationTarget")));
    assert!(api.get_opt("machines-coming").await?.is_some());
    let handle = format!("vol-{}", Claim::new("default", "machines-coming").volume_name());
    assert_eq!(lane.array().published_nodes(&handle), [victim.csi_node_id()], "its disk was cut off");
    lane.end().await
}
