//! The real binder and the real scheduler against volumes that are tainted and untainted at random moments.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bulkhead::api::names;
use bulkhead_testbed::cluster::ClusterOptions;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::json;

use super::stage::{self, Stage};
use crate::failover::fleet;

/// Rounds; the bench asks for 10,000 with the environment variable.
const ROUNDS: usize = 200;
const ROUNDS_VARIABLE: &str = "BULKHEAD_BIND_ROUNDS";
/// Rounds at once.
const CONCURRENCY: usize = 16;

/// What the history of all volumes shows, in the order in which the store has it.
#[derive(Default)]
struct History {
    /// Name to whether it was tainted under Enforce, and the uid of its claim.
    volumes: HashMap<String, (bool, Option<String>)>,
    /// Bindings to a volume that was tainted when it happened.
    wrong: Vec<String>,
    taintings: usize,
    bindings: usize,
}

impl History {
    fn see(&mut self, volume: &PersistentVolume) {
        let tainted = volume.labels().get(names::TAINTED_LABEL).map(String::as_str) == Some("Enforce");
        let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        let uid = claim.and_then(|claim| claim.uid.clone());
        let (was_tainted, had) = self.volumes.insert(volume.name_any(), (tainted, uid.clone())).unwrap_or_default();
        self.taintings += usize::from(tainted && !was_tainted);
        if uid.is_some() && uid != had {
            self.bindings += 1;
            if was_tainted || tainted {
                self.wrong.push(format!("{}: {claim:?}", volume.name_any()));
            }
        }
    }
}

/// Follows every version of every volume.
async fn follow(volumes: Api<PersistentVolume>, history: Arc<Mutex<History>>) -> Result<(), Failed> {
    let mut version = volumes.list(&ListParams::default()).await?.metadata.resource_version.ok_or("no version")?;
    loop {
        let mut events = volumes.watch(&WatchParams::default().timeout(250), &version).await?.boxed();
        while let Some(event) = events.try_next().await? {
            match event {
                WatchEvent::Added(volume) | WatchEvent::Modified(volume) => {
                    version = volume.resource_version().ok_or("no version")?;
                    history.lock().map_err(|_| "poisoned")?.see(&volume);
                }
                WatchEvent::Deleted(volume) => version = volume.resource_version().ok_or("no version")?,
                WatchEvent::Bookmark(bookmark) => version = bookmark.metadata.resource_version,
                WatchEvent::Error(error) => return Err(format!("the history has a gap: {error:?}").into()),
            }
        }
    }
}

/// SplitMix64: the same rounds each time.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % limit
    }

    async fn pause(&mut self, limit: u64) {
        tokio::time::sleep(Duration::from_millis(self.below(limit))).await;
    }
}

pub async fn no_claim_is_bound_to_a_volume_while_it_is_tainted() -> Result<(), Failed> {
    let options = ClusterOptions { arrays: Vec::new(), nodes: 2, ..fleet::options() };
    let (cluster, stage) = stage::cluster(options).await?;
    stage.policy("enforced", "Enforce").await?;
    let rounds = std::env::var(ROUNDS_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(ROUNDS);
    let history = Arc::new(Mutex::new(History::default()));
    let following = tokio::spawn(follow(stage.volumes.clone(), history.clone()));
    let (small, large) = (AtomicUsize::new(0), AtomicUsize::new(0));
    stream::iter((0..rounds).map(Ok))
        .try_for_each_concurrent(CONCURRENCY, |round| {
            let (stage, small, large) = (&stage, &small, &large);
            async move {
                let bound = play(stage, round).await?;
                let counted = if bound.ends_with("small") { small } else { large };
                counted.fetch_add(1, Ordering::Relaxed);
                Ok::<_, Failed>(())
            }
        })
        .await?;
    assert!(!following.is_finished(), "{:?}", following.await);
    following.abort();
    let refused = cluster.testbed.audit().records()?.filter(|record| {
        record.resource == "persistentvolumes" && record.code == 403 && !record.user.ends_with("bulkhead-controller")
    });
    let (refused, small, large) = (refused.count(), small.into_inner(), large.into_inner());
    let history = history.lock().map_err(|_| "poisoned")?;
    println!(
        "{rounds} rounds: {} bindings, {small} to the smaller volume, {large} to the other; {} taintings; {refused} \
         refused at the last moment",
        history.bindings, history.taintings
    );
    assert_eq!(history.wrong, Vec::<String>::new(), "bound while it was tainted");
    // Or this would not have been a race.
    assert!(history.bindings >= rounds && history.taintings >= rounds / 2, "too little happened");
    assert!(small > 0 && large > 0, "the moments do not vary");
    Ok(())
}

/// A claim for which the smaller of two volumes fits best, which is tainted and untainted meanwhile. Returns what it got.
async fn play(stage: &Stage, round: usize) -> Result<String, Failed> {
    let mut chance = Chance(round as u64);
    let (name, waits) = (format!("race-{round}"), round % 2 == 1);
    let (small, large) = (format!("{name}-small"), format!("{name}-large"));
    if waits {
        make_waiting_class(stage, &name).await?;
    }
    stage.volume(&small, &name, 1).await?;
    stage.volume(&large, &name, 2).await?;
    if chance.below(3) == 0 {
        stage.taint(&small).await?;
        stage.shows(&small, Some("Enforce"), true).await?;
    }
    let (mut of_claim, mut of_taint) = (Chance(chance.below(u64::MAX)), Chance(chance.below(u64::MAX)));
    let claiming = async {
        of_claim.pause(120).await;
        stage.claim(&name, &name, None).await?;
        if waits {
            stage.pod(&name, &name, json!({})).await?;
        }
        stage.bound(&name).await
    };
    let tainting = async {
        for _ in 0..=of_taint.below(3) {
            of_taint.pause(200).await;
            stage.taint(&small).await?;
            of_taint.pause(200).await;
            stage.untaint(&small).await?;
        }
        Ok::<_, Failed>(())
    };
    let (bound, tainted) = tokio::join!(claiming, tainting);
    tainted?;
    if waits {
        stage.delete_pod(&name).await?;
    }
    stage.claims.delete(&name, &DeleteParams::default()).await?;
    bound
}

async fn make_waiting_class(stage: &Stage, name: &str) -> Result<(), Failed> {
    let class = json!({
        "metadata": {"name": name}, "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    });
    let classes: Api<StorageClass> = Api::all(stage.client.clone());
    classes.create(&PostParams::default(), &serde_json::from_value(class)?).await?;
    Ok(())
}
