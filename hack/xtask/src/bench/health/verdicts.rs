//! What the API says of every volume, and since when, as whoever watches it sees it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bulkhead::api::names::TAINTED_LABEL;
use bulkhead::api::node_volume_report::NodeVolumeReport;
use bulkhead::api::volume::VolumeState;
use bulkhead::api::volume_health::{Phase, VolumeHealth};
use bulkhead_testbed::cluster::ClusterError;
use futures::{StreamExt, pin_mut};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

/// How often it is looked whether something has come true. When it did is noted by the watches.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Something that holds or does not.
#[derive(Clone, Copy, Debug, Default)]
pub struct Switch {
    /// Whether it holds.
    pub on: bool,
    /// Since when it does, or does not any more.
    pub since: Option<Instant>,
}

impl Switch {
    fn turn(&mut self, on: bool) {
        if self.on != on {
            *self = Self { on, since: Some(Instant::now()) };
        }
    }
}

/// What is said of one volume.
#[derive(Clone, Copy, Debug, Default)]
pub struct Verdict {
    /// The PersistentVolume has its claim.
    pub bound: Switch,
    /// There is a VolumeHealth.
    pub watched: Switch,
    /// It says Healthy.
    pub healthy: Switch,
    /// It has a taint.
    pub tainted: Switch,
    /// The PersistentVolume shows that it has one.
    pub projected: Switch,
    /// The report of the node that was asked for says that it is not healthy.
    pub reported: Switch,
}

/// All volumes, by name.
type All = BTreeMap<String, Verdict>;

/// What the API says of all volumes. Dropping it ends the watches.
pub struct Verdicts {
    all: Arc<Mutex<All>>,
    watches: JoinSet<()>,
    client: Client,
}

impl Verdicts {
    /// Watches PersistentVolumes and VolumeHealths.
    pub fn watch(client: Client) -> Self {
        let mut verdicts = Self { all: Arc::default(), watches: JoinSet::new(), client };
        verdicts.follow(watcher::Config::default(), |all: &mut All, volume: &PersistentVolume, gone| {
            let verdict = all.entry(volume.name_any()).or_default();
            let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
            verdict.bound.turn(!gone && phase == Some("Bound"));
            verdict.projected.turn(!gone && volume.labels().contains_key(TAINTED_LABEL));
        });
        verdicts.follow(watcher::Config::default(), |all: &mut All, health: &VolumeHealth, gone| {
            let verdict = all.entry(health.name_any()).or_default();
            let phase = health.status.as_ref().and_then(|status| status.phase);
            verdict.watched.turn(!gone);
            verdict.healthy.turn(!gone && phase == Some(Phase::Healthy));
            verdict.tainted.turn(!gone && !health.taints().is_empty());
        });
        verdicts
    }

    /// Watches the report of one node too.
    pub fn watch_report(&mut self, node: &str) {
        let only = watcher::Config::default().fields(&format!("metadata.name={node}"));
        self.follow(only, |all: &mut All, report: &NodeVolumeReport, _| {
            for volume in report.status.iter().flat_map(|status| &status.volumes) {
                let verdict = all.entry(volume.name.clone()).or_default();
                verdict.reported.turn(!matches!(volume.state, VolumeState::Healthy | VolumeState::Unknown));
            }
        });
    }

    fn follow<K>(&mut self, config: watcher::Config, note: impl Fn(&mut All, &K, bool) + Send + 'static)
    where
        K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
    {
        let (all, api) = (self.all.clone(), Api::<K>::all(self.client.clone()));
        self.watches.spawn(async move {
            let events = watcher(api, config);
            pin_mut!(events);
            while let Some(event) = events.next().await {
                let mut all = all.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                match event {
                    Ok(Event::InitApply(object) | Event::Apply(object)) => note(&mut all, &object, false),
                    Ok(Event::Delete(object)) => note(&mut all, &object, true),
                    // It begins anew by itself; who waits for something that does not come says so.
                    Ok(Event::Init | Event::InitDone) | Err(_) => {}
                }
            }
        });
    }

    /// What is said of a volume.
    pub fn of(&self, volume: &str) -> Verdict {
        self.read(|all| all.get(volume).copied().unwrap_or_default())
    }

    /// What is said of each.
    pub fn all(&self) -> Vec<Verdict> {
        self.read(|all| all.values().copied().collect())
    }

    /// How many volumes it holds for.
    pub fn count(&self, holds: impl Fn(&Verdict) -> bool) -> usize {
        self.read(|all| all.values().filter(|verdict| holds(verdict)).count())
    }

    /// The volumes that it holds for.
    pub fn names(&self, holds: impl Fn(&Verdict) -> bool) -> Vec<String> {
        self.read(|all| all.iter().filter(|(_, verdict)| holds(verdict)).map(|(name, _)| name.clone()).collect())
    }

    fn read<T>(&self, look: impl FnOnce(&All) -> T) -> T {
        look(&self.all.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Waits until it holds for so many volumes.
    pub async fn until_count(
        &self,
        what: &str,
        count: usize,
        limit: Duration,
        holds: impl Fn(&Verdict) -> bool,
    ) -> Result<(), ClusterError> {
        let look = || {
            let now = self.count(&holds);
            (now == count).then_some(()).ok_or_else(|| format!("{now} of {count}"))
        };
        self.until(what, limit, look).await
    }

    /// Waits until `look` says Ok.
    pub async fn until<T>(
        &self,
        what: &str,
        limit: Duration,
        look: impl Fn() -> Result<T, String>,
    ) -> Result<T, ClusterError> {
        let deadline = Instant::now() + limit;
        loop {
            match look() {
                Ok(found) => return Ok(found),
                Err(last) if Instant::now() >= deadline => {
                    return Err(ClusterError::Timeout { what: what.to_owned(), limit, last });
                }
                Err(_) => tokio::time::sleep(LOOK_EVERY).await,
            }
        }
    }
}
