//! The watch of whoever plays kubelets: all pods that are bound to a node.

use std::collections::BTreeSet;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};

/// Follows them, for ever. `lose` is told which uids are gone: those for which its argument holds.
pub(crate) async fn follow(client: Client, see: impl Fn(Pod), lose: impl Fn(&dyn Fn(&str) -> bool)) {
    let config = watcher::Config::default().fields("spec.nodeName!=");
    let events = watcher::watcher(Api::<Pod>::all(client), config).default_backoff();
    let mut events = std::pin::pin!(events);
    let mut listed = BTreeSet::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(pod)) => {
                listed.extend(pod.uid());
                see(pod);
            }
            Ok(Event::InitDone) => lose(&|uid| !listed.contains(uid)),
            Ok(Event::Apply(pod)) => see(pod),
            Ok(Event::Delete(pod)) => lose(&|uid| pod.uid().as_deref() == Some(uid)),
            Err(error) => tracing::debug!(%error, "the watch of pods goes on"),
        }
    }
}
