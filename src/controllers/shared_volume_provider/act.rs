//! Carries out what a pass decided: begins and ends polls, and writes to the API, each effect at its own moment of leadership.

use std::sync::{Arc, Mutex};

use futures::{FutureExt as _, StreamExt as _, stream};
use kube::ResourceExt;
use tokio_util::sync::CancellationToken;

use crate::api::shared_volume_provider::{DiscoveryMode, SharedVolumeProvider, SharedVolumeProviderStatus};
use crate::controllers::Context;
use crate::error::Result;
use crate::runtime::lock::lock;
use crate::storageos::providers::{ControlPlane, Intervals, Providers};
use crate::storageos::{Client, Credentials, Settings};

use super::decide::{self, Effect, Secret, Seen};
use super::discovery::Draft;
use super::link::{Link, State};
use super::metrics::Metrics;
use super::poll::{self, Poller, Served};
use super::{Controller, Running, tell};

/// SharedVolumes written at once.
const CONCURRENCY: usize = 16;
/// Field manager of what discovery writes: everybody else may edit it.
const MANAGER: &str = "bulkhead-controller/discovery";

impl Controller {
    /// Carries out what a pass decided for the provider of this name.
    pub(super) async fn act(
        &self,
        name: &str,
        seen: &Seen,
        credentials: Option<Credentials>,
        effects: &[Effect],
    ) -> Result<()> {
        let Some(provider) = &seen.provider else {
            self.polls().remove(name);
            self.secrets().remove(name);
            self.providers.forget(name);
            return Ok(());
        };
        if effects.contains(&Effect::Connect) {
            if let (Some(credentials), Secret::Usable(secret)) = (credentials, &seen.secret) {
                self.connect(provider, credentials, secret);
            }
        } else if effects.contains(&Effect::Disconnect) {
            self.polls().remove(name);
            self.providers.connect(name, None);
            self.providers.silent(name);
        }
        let Self { cx, metrics, providers, .. } = self;
        let created = Discoverer { cx, metrics, providers, provider }.create(effects).await;
        for effect in effects {
            if let Effect::Record { provider, status } = effect {
                record(cx, metrics, provider, status).await?;
            }
        }
        created
    }

    /// Begins a poll in place of the one that runs, with what that one has brought.
    fn connect(&self, provider: &SharedVolumeProvider, credentials: Credentials, secret: &str) {
        let (name, spec) = (provider.name_any(), &provider.spec);
        self.providers.configure(&name, Intervals::from(spec));
        let mut polls = self.polls();
        let before = polls.remove(&name).map(|running| lock(&running.link).clone());
        let link = Arc::new(Mutex::new(Link { state: State::Pending, ..before.unwrap_or_default() }));
        let cancel = CancellationToken::new();
        match Client::new(&Settings::from(spec), credentials, self.api_metrics.clone()) {
            Ok(client) => {
                let control_plane: Arc<dyn ControlPlane> = Arc::new(client.clone());
                self.providers.connect(&name, Some(control_plane));
                let poller = Poller {
                    provider: name.clone(),
                    client,
                    providers: self.providers.clone(),
                    link: link.clone(),
                    queue: self.queue.clone(),
                    leadership: self.cx.writer.leadership().clone(),
                    served: Served {
                        selector: spec.namespace_selector.clone(),
                        namespaces: self.cx.stores.namespaces.clone(),
                    },
                    interval: spec.poll_interval.as_ref().map_or(self.config.poll, |it| it.get()),
                    named: (spec.discovery.mode == DiscoveryMode::Disabled).then(|| self.stores.shared_volumes.clone()),
                    metrics: self.metrics.clone(),
                    api_metrics: self.api_metrics.clone(),
                };
                let ended = cancel.clone();
                tokio::spawn(async move { ended.run_until_cancelled(poller.run()).await });
            }
            Err(error) => {
                self.providers.connect(&name, None);
                self.providers.silent(&name);
                lock(&link).state = State::Down(poll::failure(&error));
                self.queue.add(name.clone());
            }
        }
        let is = decide::Poll {
            generation: provider.metadata.generation.unwrap_or_default(),
            uid: provider.uid().unwrap_or_default(),
            secret: secret.to_owned(),
            link: Link::default(),
        };
        polls.insert(name, Running { is, link, _ends: cancel.drop_guard() });
    }
}

/// Writes what discovery found for one provider.
struct Discoverer<'a> {
    /// Writer and Events.
    pub cx: &'a Context,
    /// What is counted.
    pub metrics: &'a Metrics,
    /// Who is told that a volume is worked on.
    pub providers: &'a Providers,
    /// The provider.
    pub provider: &'a SharedVolumeProvider,
}

impl Discoverer<'_> {
    /// Writes the SharedVolumes among the effects. One that is refused keeps no other from being written; the first error is
    /// returned.
    pub async fn create(&self, effects: &[Effect]) -> Result<()> {
        let mut writes = Vec::new();
        for effect in effects {
            if let Effect::Create { draft, volume_id, is_hashed } = effect {
                writes.push(self.create_one(draft, volume_id, *is_hashed).boxed());
            }
        }
        let results: Vec<_> = stream::iter(writes).buffer_unordered(CONCURRENCY).collect().await;
        results.into_iter().collect()
    }

    async fn create_one(&self, draft: &Draft, volume_id: &str, is_hashed: bool) -> Result<()> {
        let name = self.provider.name_any();
        // Before it is seen by anybody who says that it is settled.
        self.providers.expect(&name, volume_id);
        let created = write(self.cx, draft).await;
        match &created {
            Ok(true) => {
                self.metrics.created();
                tell::created(self.cx, self.provider, draft, is_hashed);
            }
            // There is one already, and who works on it says when it is settled; or it is for a later poll.
            Ok(false) | Err(_) => self.providers.settled(&name, volume_id),
        }
        created.map(drop)
    }
}

/// Returns whether it was written: there may be one of that name.
async fn write(cx: &Context, draft: &Draft) -> Result<bool> {
    match cx.writer.under(MANAGER).create(draft).await {
        Err(error) if error.is_conflict() => Ok(false),
        created => created.map(|_: Draft| true),
    }
}

/// Writes the status of a provider.
async fn record(
    cx: &Context,
    metrics: &Metrics,
    provider: &SharedVolumeProvider,
    status: &SharedVolumeProviderStatus,
) -> Result<()> {
    let written = cx.writer.record(provider, status.clone()).await?;
    metrics.recorded();
    tell::transitions(cx, &provider.status.clone().unwrap_or_default(), &written);
    Ok(())
}
