//! What the sweep of attachments and Mountpoint Pods does is looked for in the log of this service, by the Scality driver's pages.
//! Here `bulkhead-controller` sweeps, in another Deployment. It tells of it in Events, and they are logged here for who asks for
//! that.

use k8s_openapi::api::core::v1::Event;
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

use crate::api::s3::SWEEP_ACTION;
use crate::api::text::printable;
use crate::runtime::informer::Informer;
use crate::runtime::telemetry::Telemetry;

/// Which Events are asked for: a cluster has many others.
const OF_CONTROLLER: &str = "reportingComponent=bulkhead-controller";

/// Logs what the Events tell that are there, and those that come, until `cancel`.
pub async fn log(watches: &Client, telemetry: &Telemetry, cancel: CancellationToken) {
    let events = Informer::new(Api::all(watches.clone()), "sweep_events").fields(OF_CONTROLLER).keep(is_of_sweep);
    let mut changes = events.spawn(cancel.clone(), telemetry).subscribe();
    while let Some(Some(change)) = cancel.run_until_cancelled(changes.recv()).await {
        if let Some(event) = change.new {
            // Whoever may write Events chooses what they say.
            let Event { involved_object: object, message, reason, .. } = &*event;
            let [name, reason, message] =
                [&object.name, reason, message].map(|it| printable(it.as_deref().unwrap_or_default()));
            tracing::info!(name, reason, "cleanup: {message}");
        }
    }
}

fn is_of_sweep(event: &Event) -> bool {
    event.action.as_deref() == Some(SWEEP_ACTION)
}
