//! `bulkhead-controller release-volumes`: takes back all that keeps users off tainted volumes, for the end of an
//! installation. Nothing of ours stays on a PersistentVolume or a pod, and no VolumeHealth waits for a controller.

use std::fmt;

use kube::api::ListParams;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use crate::api::slim::{PersistentVolume, Pod};
use crate::api::volume_health::VolumeHealth;
use crate::error::{Error, Result};
use crate::runtime::client::Clients;
use crate::runtime::store::ObjectKey;
use crate::runtime::writer::Writer;

use super::act;
use super::projection::{self, Marks};
use super::release;
use super::reservation;

/// Objects per list.
const PAGE: u32 = 500;
/// Tries for an object that others write too.
const TRIES: usize = 10;

/// What was taken back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// PersistentVolumes that lost labels, annotation or reservation.
    pub volumes: usize,
    /// Of these, how many were reserved.
    pub reservations: usize,
    /// Pods that lost their scheduling gate.
    pub pods: usize,
    /// VolumeHealths that lost label or finalizer.
    pub healths: usize,
}

impl fmt::Display for Released {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { volumes, reservations, pods, healths } = self;
        write!(f, "{volumes} PersistentVolumes restored ({reservations} reservations), {pods} pods let go, ")?;
        write!(f, "{healths} VolumeHealths released")
    }
}

/// Takes everything back. First the label that makes the admission policies work, so that nothing new is held; last the
/// finalizer, so that what fails can be done again.
pub async fn release(clients: &Clients, writer: &Writer) -> Result<Released> {
    let reads = &clients.reads;
    each(reads, async |health: &VolumeHealth| act::mark(writer, health, false, projection::is_guarded(health)).await)
        .await?;
    let mut reservations = 0;
    let volumes = each(reads, async |volume: &PersistentVolume| {
        let written = act::project(writer, volume, &Marks::none(volume)).await?;
        reservations += usize::from(written && reservation::is_reserved(volume));
        Ok(written)
    })
    .await?;
    let pods = each(reads, async |pod: &Pod| release::ungate(writer, pod).await).await?;
    let healths = each(reads, async |health: &VolumeHealth| act::mark(writer, health, false, false).await).await?;
    Ok(Released { volumes, reservations, pods, healths })
}

/// Changes every object of a kind that needs it; says how many.
async fn each<K>(client: &Client, mut change: impl AsyncFnMut(&K) -> Result<bool>) -> Result<usize>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug,
{
    let api: Api<K> = Api::all(client.clone());
    let (mut page, mut changed) = (ListParams::default().limit(PAGE), 0);
    loop {
        let list = match api.list(&page).await.map_err(Error::from) {
            // Without the definition there is none.
            Err(error) if error.is_not_found() => return Ok(0),
            list => list?,
        };
        for object in &list.items {
            changed += usize::from(one(client, object, &mut change).await?);
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(changed),
        }
    }
}

/// Changes one object, as often as somebody writes in between.
async fn one<K>(client: &Client, object: &K, change: &mut impl AsyncFnMut(&K) -> Result<bool>) -> Result<bool>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug,
{
    let mut object = object.clone();
    for _ in 0..TRIES {
        match change(&object).await {
            Err(error) if error.is_not_found() => return Ok(false),
            Err(error) if error.is_conflict() => {}
            Ok(true) => {
                tracing::info!(kind = %K::kind(&()), name = %ObjectKey::from(&object), "taken back");
                return Ok(true);
            }
            done => return done,
        }
        match reload(client, &object).await? {
            Some(now) => object = now,
            None => return Ok(false),
        }
    }
    Err(Error::Stale)
}

async fn reload<K>(client: &Client, object: &K) -> Result<Option<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug,
{
    let key = ObjectKey::from(object);
    let path = K::url_path(&(), key.namespace.as_deref());
    let request = kube::core::Request::new(path).get(&key.name, &kube::api::GetParams::default());
    let request = request.map_err(kube::Error::BuildRequest)?;
    match client.request::<K>(request).await.map_err(Error::from) {
        Err(error) if error.is_not_found() => Ok(None),
        found => found.map(Some),
    }
}
