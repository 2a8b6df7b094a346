//! Carries out what a pass decided, in order, each effect at its own moment of leadership.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::networking::v1::IPAddress;
use kube::core::Status;
use kube::core::response::{StatusCause, StatusDetails};
use kube::{Api, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::shared_volume::{MOUNT_ENDPOINT_ANNOTATION, SERVICE_MANAGER, SHARED_VOLUME_LABEL, UNPUBLISH_FINALIZER};
use crate::api::slim::network::Service;
use crate::controllers::Context;
use crate::error::{Error, Result};
use crate::runtime::patch::{self, Edit};
use crate::runtime::store::ObjectKey;
use crate::runtime::writer::{Kind, Writer};

use super::decide::{Effect, Refusal, Refused, Seen};
use super::metrics::Written;

/// Pauses after which addresses that a Service had are asked for again, before they count as taken.
const ADDRESS_PAUSES: [Duration; 5] = [
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
];

/// Carries out one effect. Telling a provider and reading live are not among them: see [`publisher`](super::publisher) and
/// [`verify`](super::verify).
pub async fn act(cx: &Context, seen: &Seen, effect: &Effect) -> Result<()> {
    let (writer, owned) = (&cx.writer, &cx.writer.under(SERVICE_MANAGER));
    let shared_volume = seen.shared_volume.as_ref();
    match effect {
        Effect::Record { before, status } => writer.record(before.as_ref(), status.as_ref().clone()).await.map(drop),
        Effect::AddFinalizer => {
            let patch = patch::add_finalizer(&shared_volume.metadata, UNPUBLISH_FINALIZER);
            writer.patch(shared_volume, patch).await.map(drop)
        }
        Effect::RemoveFinalizer => {
            let patch = patch::remove_finalizer(&shared_volume.metadata, UNPUBLISH_FINALIZER);
            writer.patch(shared_volume, patch).await.map(drop)
        }
        Effect::ApplyService { service, create: true } => create(cx, owned, service).await,
        Effect::ApplyService { service, .. } => owned.apply(service.as_ref()).await.map(drop),
        Effect::RepairService { before, ports } => repair(owned, before, ports).await,
        Effect::DeleteService(before) => delete(owned, before.as_ref(), None).await,
        Effect::DisownService(before) => {
            let edit = Edit::of(&before.metadata).label(SHARED_VOLUME_LABEL, None);
            owned.patch(before.as_ref(), edit.patch()).await.map(drop)
        }
        Effect::WriteSlice { slice, before } => write(owned, slice.as_ref(), before.is_some()).await,
        Effect::DeleteSlice(before) => delete(owned, before.as_ref(), before.resource_version()).await,
        Effect::WriteEndpoints { endpoints, before } => write(owned, endpoints.as_ref(), before.is_some()).await,
        Effect::DeleteEndpoints(before) => delete(owned, before.as_ref(), before.resource_version()).await,
        Effect::AnnotateClaim { claim, endpoint } => {
            let edit = Edit::of(&claim.metadata).annotation(MOUNT_ENDPOINT_ANNOTATION, endpoint.as_deref());
            writer.patch(claim.as_ref(), edit.patch()).await.map(drop)
        }
        Effect::Publish { .. } | Effect::Verify => Ok(()),
    }
}

/// What was written by an effect, for those who count.
pub fn written(effect: &Effect) -> Option<Written> {
    Some(match effect {
        Effect::Record { .. } => Written::Record,
        Effect::AddFinalizer | Effect::RemoveFinalizer => Written::Finalizer,
        Effect::ApplyService { .. }
        | Effect::RepairService { .. }
        | Effect::DeleteService(_)
        | Effect::DisownService(_) => Written::Service,
        Effect::WriteSlice { .. } | Effect::DeleteSlice(_) => Written::EndpointSlice,
        Effect::WriteEndpoints { .. } | Effect::DeleteEndpoints(_) => Written::Endpoints,
        Effect::AnnotateClaim { .. } => Written::Claim,
        Effect::Publish { .. } | Effect::Verify => return None,
    })
}

/// Whether an effect makes an object that is not there.
pub fn is_creation(effect: &Effect) -> bool {
    matches!(
        effect,
        Effect::ApplyService { create: true, .. }
            | Effect::WriteSlice { before: None, .. }
            | Effect::WriteEndpoints { before: None, .. }
    )
}

/// What the API server has against a Service; nothing if that is no reason of its own.
pub fn refusal(effect: &Effect, error: &Error, at: Instant) -> Option<Refusal> {
    let Effect::ApplyService { .. } = effect else { return None };
    refused(error).map(|what| Refusal { what, error: error.to_string(), at })
}

fn refused(error: &Error) -> Option<Refused> {
    let Error::Api(inner) = error else { return None };
    let kube::Error::Api(status) = inner.as_ref() else { return None };
    let details = status.details.as_ref().filter(|_| status.code == 422)?;
    Refused::of(details.causes.iter().map(|cause| cause.field.as_str()))
}

/// The addresses of a Service that was deleted become free a moment after everybody is told that it is gone. Nothing is
/// asked for before all of them are: an API server that can give one and not the other keeps the one for nobody, until it
/// finds out minutes later (kubernetes#136475).
async fn create(cx: &Context, writer: &Writer, service: &core::Service) -> Result<()> {
    let wanted = service.spec.as_ref().and_then(|spec| spec.cluster_ips.as_deref()).unwrap_or_default();
    let mut pauses = ADDRESS_PAUSES.into_iter();
    while let Some(held) = held(cx, wanted).await? {
        let Some(pause) = pauses.next() else { return Err(taken(held)) };
        tokio::time::sleep(pause).await;
    }
    writer.create(service).await.map(drop)
}

/// The first of these addresses that is not free, and who has it.
async fn held(cx: &Context, addresses: &[String]) -> Result<Option<String>> {
    let api: Api<IPAddress> = Api::all(cx.clients.reads.clone());
    for address in addresses {
        let Some(object) = api.get_opt(address).await? else { continue };
        let holder = object.spec.map(|spec| spec.parent_ref);
        let holder = holder.map(|it| format!("{} {}/{}", it.resource, it.namespace.unwrap_or_default(), it.name));
        return Ok(Some(format!("{address} is held for {}", holder.unwrap_or_else(|| "nobody known".to_owned()))));
    }
    Ok(None)
}

/// As the API server says it when it is asked.
fn taken(held: String) -> Error {
    let cause =
        StatusCause { reason: "FieldValueInvalid".into(), message: held.clone(), field: "spec.clusterIPs".into() };
    let details = StatusDetails {
        name: String::new(),
        group: String::new(),
        kind: "Service".into(),
        uid: String::new(),
        causes: vec![cause],
        retry_after_seconds: 0,
    };
    let status = Status::failure(&held, "Invalid").with_code(422).with_details(details);
    kube::Error::Api(status.boxed()).into()
}

async fn repair(writer: &Writer, before: &Service, ports: &[core::ServicePort]) -> Result<()> {
    let edit = Edit::of(&before.metadata).put(&["spec", "ports"], ports);
    let has_selector = !before.spec.selector.is_empty();
    let edit = if has_selector { edit.take(&["spec", "selector"]) } else { edit };
    writer.patch(before, edit.patch()).await.map(drop)
}

async fn write<K: Kind + Serialize + DeserializeOwned>(writer: &Writer, object: &K, is_there: bool) -> Result<()> {
    if is_there { writer.replace(object).await.map(drop) } else { writer.create(object).await.map(drop) }
}

async fn delete<K: Kind>(writer: &Writer, before: &K, version: Option<String>) -> Result<()> {
    let uid = before.meta().uid.as_deref().unwrap_or_default();
    writer.delete::<K>(&ObjectKey::from(before), uid, version.as_deref(), None).await
}
