//! `bulkhead-controller release-s3`: takes our finalizer from every s3pa, before another controller takes over, or for the
//! end of an installation. Nothing else changes: no mount is interrupted, and upstream's controller reads these objects.

use kube::api::ListParams;
use kube::{Api, ResourceExt};

use crate::api::mountpoint_s3_pod_attachment::MountpointS3PodAttachment;
use crate::api::s3::FINALIZER;
use crate::error::{Error, Result};
use crate::runtime::client::Clients;
use crate::runtime::patch;
use crate::runtime::writer::Writer;

/// Objects per list.
const PAGE: u32 = 500;
/// Tries for an object that others write too.
const TRIES: usize = 10;

/// Says how many were released.
pub async fn release(clients: &Clients, writer: &Writer) -> Result<usize> {
    let api: Api<MountpointS3PodAttachment> = Api::all(clients.reads.clone());
    let (mut page, mut released) = (ListParams::default().limit(PAGE), 0);
    loop {
        let list = match api.list(&page).await.map_err(Error::from) {
            // Without the definition there is none.
            Err(error) if error.is_not_found() => return Ok(0),
            list => list?,
        };
        for attachment in list.items {
            released += usize::from(one(&api, writer, attachment).await?);
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(released),
        }
    }
}

/// Releases one, as often as somebody writes in between.
async fn one(
    api: &Api<MountpointS3PodAttachment>,
    writer: &Writer,
    mut attachment: MountpointS3PodAttachment,
) -> Result<bool> {
    for _ in 0..TRIES {
        match writer.patch(&attachment, patch::remove_finalizer(&attachment.metadata, FINALIZER)).await {
            Err(error) if error.is_not_found() => return Ok(false),
            Err(error) if error.is_conflict() => {}
            done => return done.map(|written| written.is_some()),
        }
        match api.get_opt(&attachment.name_any()).await? {
            Some(now) => attachment = now,
            None => return Ok(false),
        }
    }
    Err(Error::Stale)
}
