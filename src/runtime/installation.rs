//! Whether an installation works, asked from inside the cluster with the controller's own rights. Reads only.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt};
use tokio::time::Instant;

use crate::error::{Error, Result};

/// The controllers' Lease.
const LEASE: &str = "bulkhead-controller";
/// Their pods.
const PODS: &str = "app.kubernetes.io/name=bulkhead,app.kubernetes.io/component=controller";
/// Time between two looks.
const PAUSE: Duration = Duration::from_secs(1);

/// Returns when all is there. What is missing after `patience` is the error, with where to look.
pub async fn check(client: &Client, namespace: &str, patience: Duration) -> Result<()> {
    let deadline = Instant::now() + patience;
    let before = renewed(client, namespace).await.ok().flatten();
    loop {
        let mut missing = unserved(client).await;
        missing.extend(not_led(client, namespace, before.as_ref()).await);
        missing.extend(not_ready(client, namespace).await);
        if missing.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Error::Invalid(missing.join("; ")));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Definitions whose objects cannot be listed.
async fn unserved(client: &Client) -> Vec<String> {
    let mut missing = Vec::new();
    for definition in crate::api::definitions() {
        let Some(resource) = resource(&definition) else { continue };
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        if let Err(error) = api.list(&ListParams::default().limit(1)).await {
            missing.push(format!("{} cannot be listed: {}", definition.name_any(), Error::from(error)));
        }
    }
    missing
}

fn resource(definition: &CustomResourceDefinition) -> Option<ApiResource> {
    let spec = &definition.spec;
    let version = spec.versions.iter().find(|version| version.storage)?;
    let kind = GroupVersionKind::gvk(&spec.group, &version.name, &spec.names.kind);
    Some(ApiResource::from_gvk_with_plural(&kind, &spec.names.plural))
}

/// A Lease that stands still has no holder, whatever it says.
async fn not_led(client: &Client, namespace: &str, before: Option<&MicroTime>) -> Option<String> {
    match renewed(client, namespace).await {
        Ok(Some(now)) if before != Some(&now) => None,
        Ok(_) => {
            Some(format!("nobody renews the Lease {LEASE}: kubectl -n {namespace} logs deploy/bulkhead-controller"))
        }
        Err(error) => Some(format!("the Lease {LEASE} cannot be read: {error}")),
    }
}

/// When the Lease was renewed last.
async fn renewed(client: &Client, namespace: &str) -> Result<Option<MicroTime>> {
    let api: Api<Lease> = Api::namespaced(client.clone(), namespace);
    Ok(api.get_opt(LEASE).await?.and_then(|lease| lease.spec).and_then(|spec| spec.renew_time))
}

async fn not_ready(client: &Client, namespace: &str) -> Option<String> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    match api.list(&ListParams::default().labels(PODS)).await {
        Ok(pods) if pods.items.iter().any(is_ready) => None,
        Ok(_) => Some(format!("no pod of the controller is ready: kubectl -n {namespace} describe pods -l {PODS}")),
        Err(error) => Some(format!("the controller's pods cannot be listed: {}", Error::from(error))),
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
