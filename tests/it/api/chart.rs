//! What the Helm chart makes, shown to a server, and the question that `helm test` asks.

use std::time::Duration;

use bulkhead::api::names::OPERATOR_NAMESPACE;
use bulkhead::runtime::installation;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::chart::render::{template, without_operators_kinds};
use crate::chart::values;

use super::Outcome;
use super::world::{World, root};

/// The controllers' Lease, and the pod that is made here for one of them.
const CONTROLLER: &str = "bulkhead-controller";

pub async fn what_the_chart_makes_is_taken(world: &World) -> Outcome {
    world.testbed.apply_file(&root().join("config/s3/mount_namespace.yaml")).await?;
    // That of full.yaml: a dry run makes none.
    let buckets = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "buckets"}});
    world.testbed.apply(vec![serde_json::from_value(buckets)?]).await?;
    let folder = tempfile::tempdir()?;
    for (name, values) in values::sets() {
        let rendered = tokio::task::spawn_blocking(move || {
            let values: Vec<_> = values.iter().map(String::as_str).collect();
            template(&values)
        });
        let objects = without_operators_kinds(rendered.await?.map_err(|error| format!("{name}: {error}"))?);
        let file = folder.path().join(format!("{name}.json"));
        let path = file.to_string_lossy().into_owned();
        std::fs::write(&file, json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string())?;
        // As whoever applied what is there: else what another manager says would stay beside it.
        let apply = ["apply", "--server-side", "--force-conflicts", "--field-manager=bulkhead-testbed"];
        let dry = ["--dry-run=server", "--validate=strict", "-f", &path];
        let answer = world.testbed.kubectl(&[&apply[..], &dry].concat()).await;
        answer.map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(())
}

pub async fn an_installation_is_checked(world: &World) -> Outcome {
    let check = async |patience| installation::check(&world.controller, OPERATOR_NAMESPACE, patience).await;
    let said = check(Duration::ZERO).await.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(said.contains("nobody renews the Lease bulkhead-controller"), "{said}");
    assert!(said.contains("no pod of the controller is ready"), "{said}");
    assert!(!said.contains("cannot be"), "it has the rights that it needs: {said}");

    let pods: Api<Pod> = Api::namespaced(world.admin.clone(), OPERATOR_NAMESPACE);
    pods.create(&PostParams::default(), &serde_json::from_value(pod())?).await?;
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    pods.patch_status(CONTROLLER, &PatchParams::default(), &Patch::Merge(ready)).await?;
    let leases: Api<Lease> = Api::namespaced(world.admin.clone(), OPERATOR_NAMESPACE);
    let lease = json!({"metadata": {"name": CONTROLLER}, "spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}});
    leases.create(&PostParams::default(), &serde_json::from_value(lease)?).await?;
    // A Lease that nobody renews is of a controller that is gone.
    let said = check(Duration::ZERO).await.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(said.contains("nobody renews") && !said.contains("no pod"), "{said}");
    let renewed = async {
        for second in 1.. {
            let spec =
                json!({"spec": {"renewTime": format!("2026-01-01T00:{:02}:{:02}.000000Z", second / 60, second % 60)}});
            leases.patch(CONTROLLER, &PatchParams::default(), &Patch::Merge(spec)).await?;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Ok::<_, kube::Error>(())
    };
    tokio::select! {
        ended = renewed => ended?,
        answer = check(Duration::from_secs(60)) => answer?,
    }
    pods.delete(CONTROLLER, &DeleteParams::default().grace_period(0)).await?;
    leases.delete(CONTROLLER, &DeleteParams::default()).await?;
    Ok(())
}

/// As the namespace wants pods to be.
fn pod() -> Value {
    json!({
        "metadata": {
            "name": CONTROLLER,
            "labels": {"app.kubernetes.io/name": "bulkhead", "app.kubernetes.io/component": "controller"},
        },
        "spec": {
            "serviceAccountName": CONTROLLER,
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "controller",
                "image": CONTROLLER,
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    })
}
